"""From what a model sent to an event: ids that are ours, tokens, notes, and what is sent again."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agent.arguments import json_text
from agent.errors import ModelError
from agent.model import Reply, Usage, WireCall
from agent.model.quirks import Quirk
from agent.record import INVALID_TOOL, ReplyReceived, RequestFailed, ToolCall
from agent.state import RunState

if TYPE_CHECKING:
    from agent.agent import Agent

MAX_ATTEMPTS = 3
FIRST_BACKOFF_S = 0.5
CHARS_PER_TOKEN = 4

_ID = re.compile(r"[A-Za-z0-9_.:|/+=-]{1,64}")


def received(agent: "Agent", run: RunState, reply: Reply, started: float) -> ReplyReceived:
    """The event of a whole reply to the request at hand, which went out at `started`."""
    now = agent.now()
    last_for = run.request.last_for if run.request else None
    calls = name_calls(reply.calls, agent.state.call_ids)
    return ReplyReceived(
        at=now,
        run_id=run.id,
        text=reply.text,
        calls=calls,
        usage=reply.usage or estimate(agent.state.chars + agent.fixed_chars, reply),
        finish_reason=reply.finish_reason,
        refusal=reply.refusal,
        notes=reply.notes + renamed(calls) + dropped(reply, last_for),
        elapsed_ms=round((now - started) * 1000),
        reasoning=reply.reasoning,
        extra=extra_text(reply),
        extra_lasts=reply.extra_lasts,
    )


def failed(agent: "Agent", run: RunState, error: ModelError) -> RequestFailed:
    """Name a failed request, and say when it is sent again: a temporary failure, while there is time."""
    left_s = agent.limits.run_s - run.elapsed_s(agent.now())
    backoff_s = FIRST_BACKOFF_S * 2**run.failed_in_a_row * (0.5 + agent.jitter())
    wait_s = backoff_s if error.retry_after_s is None else error.retry_after_s
    is_last = run.limit is not None or run.requests >= agent.limits.max_requests - 1
    again = error.retry and run.failed_in_a_row + 1 < MAX_ATTEMPTS and not is_last and wait_s < left_s
    named = f" It asks to wait {wait_s:g} s." if error.retry_after_s and not again else ""
    return RequestFailed(
        at=agent.now(),
        run_id=run.id,
        code=error.code,
        message=error.message + named,
        retry_in_s=wait_s if again else None,
    )


def name_calls(calls: Sequence[WireCall], taken: set[str]) -> tuple[ToolCall, ...]:
    """Give each call an id that is unique in the whole record: the server's own where it is free."""
    used = set(taken)
    named: list[ToolCall] = []
    for call in calls:
        given = call.provider_id if call.provider_id and call.provider_id.strip() else None
        wire_id = next(one for one in _ids(given, len(used)) if one not in used)
        used.add(wire_id)
        named.append(ToolCall(wire_id, given, call.name or INVALID_TOOL, as_text(call.arguments)))
    return tuple(named)


def _ids(given: str | None, taken: int) -> Iterator[str]:
    """One id more than there are taken ones: the given one, suffixed, or made up where no server takes it."""
    if given and _ID.fullmatch(given):
        yield given
        yield from (f"{given[:-8] if len(given) > 56 else given}-{n}" for n in range(2, taken + 2))
    else:
        yield from (f"call-{n:03d}" for n in range(taken + 1, 2 * taken + 2))


def extra_text(reply: Reply) -> str | None:
    """Vendor fields as text, None where there are none, or where they are no JSON."""
    calls = [dict(call.extra) for call in reply.calls]
    if not reply.extra and not any(calls):
        return None
    try:
        return json_text({"message": dict(reply.extra), "calls": calls}, sort_keys=False)
    except (TypeError, ValueError, RecursionError):
        return None


def as_text(arguments: str | dict[str, Any] | None) -> str | None:
    """An object that a server sent in place of a text, as text. NaN stays NaN: gate 4 refuses it."""
    try:
        return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
    except RecursionError:
        return "{nested too deep"


def renamed(calls: Sequence[ToolCall]) -> tuple[str, ...]:
    """The note of an id that was given before, or that is no id."""
    other = any(call.provider_id is not None and call.id != call.provider_id for call in calls)
    return (Quirk.ID_TAKEN,) if other else ()


def dropped(reply: Reply, last_for: str | None) -> tuple[str, ...]:
    if reply.calls and last_for:
        return (Quirk.CALLS_UNASKED,)
    if reply.calls and reply.finish_reason in ("length", "content_filter"):
        return (Quirk.CALLS_CUT,)
    return ()


def estimate(sent_chars: int, reply: Reply) -> Usage:
    """Tokens where the server does not say: a server that is silent must not evade the budget."""
    written = len(reply.text or "") + len(reply.reasoning or "")
    written += sum(len(str(call.arguments)) for call in reply.calls)
    return Usage(sent_chars // CHARS_PER_TOKEN, written // CHARS_PER_TOKEN, estimated=True)
