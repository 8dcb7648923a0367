"""The loop: look at the folded state, do one thing, append what happened.

This file is the lesson. A run is one user message to its end. `advance` does its next step and returns
True; it returns False where the run has ended or waits for a person. It keeps nothing between two calls:
whatever it must know stands in the record, so a run can stop at any line here and be taken up again.

The model only asks. Each call that it asks for goes to the gateway, which judges it, and each judged
call has an answer before the next request goes out. That rule, one answer for each id, is what strict
servers check and what naive loops break when something is denied, stopped, or fails.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agent import gateway
from agent.errors import ModelError
from agent.limits import Deadline
from agent.model import OnDelta, Reply, Usage, WireCall
from agent.record import (
    CallState,
    ReplyReceived,
    RequestFailed,
    RequestSent,
    RunEnded,
    RunState,
    State,
    ToolCall,
    ToolResult,
    is_final,
)
from agent.transcript import check_pairing, window, wire_messages

if TYPE_CHECKING:
    from agent.agent import Agent

MAX_ATTEMPTS = 3
FIRST_BACKOFF_S = 0.5
CHARS_PER_TOKEN = 4
MAX_ID_CHARS = 64


def advance(agent: "Agent", run: RunState, on_delta: OnDelta | None) -> bool:
    """Do the next thing of a run; False where nothing can be done without a person, or at all."""
    if run.ended:
        return False
    if run.elapsed_s(agent.now()) >= agent.limits.run_s:
        # Time is out for everything at once: there is no last request, because there is no time for it.
        end(agent, run, State.FAILED, "run_timeout", call_code="limit_reached")
    elif call := next(run.in_phase("open"), None):
        # In order, and each that needs no person runs before the next is judged.
        gateway.handle(agent, run, call)
    elif run.pending:
        return False
    elif call := next(run.in_phase("approved", "deferred"), None):
        go_on(agent, run, call)
    elif is_final(run):
        finish(agent, run)
    elif run.failed and run.failed.retry_in_s is None:
        # Of a last request nobody needs to know why it failed: the run ends as the limit said.
        end(agent, run, State.FAILED, run.limit or run.failed.code)
    else:
        ask_model(agent, run, on_delta)
    return True


def go_on(agent: "Agent", run: RunState, call: CallState) -> None:
    """Take up a call that waited: for a person, or for another call with the same meaning."""
    if call.phase == "approved":
        gateway.carry_out(agent, run, call, gateway.read_approved(agent, call))
    elif call.behind and call.behind.again:
        gateway.handle(agent, run, call)
    elif call.behind:
        gateway.follow(agent, run, call, run.calls[call.behind.behind])


def ask_model(agent: "Agent", run: RunState, on_delta: OnDelta | None) -> None:
    """Send the transcript and append the reply, or why there is none."""
    limits = agent.limits
    if run.failed and run.failed.retry_in_s:
        agent.pause(run, run.failed.retry_in_s)
    # One request is kept back: a run that met a limit still gets to explain itself, without tools.
    last_for = run.limit or ("max_requests" if run.requests >= limits.max_requests - 1 else None)
    tools = [] if last_for else agent.offered_tools()
    view = window(agent.state.transcript, agent.state.chars + agent.fixed_chars, limits.max_context_chars)
    if view is None:
        end(agent, run, State.FAILED, run.limit or "context_overflow")
        return
    agent.append(
        RequestSent(
            at=agent.now(),
            run_id=run.id,
            number=run.requests + 1,
            first=view.first,
            upto=view.upto,
            shrunk=view.shrunk,
            last_for=last_for,
        )
    )
    messages = wire_messages(agent.prompt.text, agent.state.transcript, view, run.id)
    if faults := check_pairing(messages):
        raise AssertionError(f"An unlawful request was not sent: {faults}")
    started = agent.now()
    deadline = Deadline(agent.clock, started + limits.run_s - run.elapsed_s(started))
    try:
        reply = agent.model.reply(messages, tools, deadline, only_while(run, on_delta))
    except ModelError as error:
        agent.append(failed(agent, run, error))
        return
    usage = reply.usage or estimate(agent.state.chars + agent.fixed_chars, reply)
    agent.append(
        ReplyReceived(
            at=agent.now(),
            run_id=run.id,
            text=reply.text,
            calls=name_calls(reply.calls, agent.state.call_ids),
            usage=usage,
            finish_reason=reply.finish_reason,
            refusal=reply.refusal,
            notes=reply.notes + dropped(reply, last_for),
            elapsed_ms=round((agent.now() - started) * 1000),
            extra=reply.extra or None,
        )
    )


def finish(agent: "Agent", run: RunState) -> None:
    """End a run whose last reply is there, under the name of what that reply was."""
    reply, request = run.reply, run.request
    text = reply.text if reply and reply.text and reply.text.strip() else None
    if reply is None or (request and request.last_for):
        end(agent, run, State.FAILED, run.limit, text)
    elif reply.finish_reason == "length":
        end(agent, run, State.FAILED, "length", text)
    elif reply.refusal or reply.finish_reason == "content_filter":
        end(agent, run, State.FAILED, "refused", reply.refusal or text)
    elif text is None:
        end(agent, run, State.FAILED, "empty_response")
    else:
        end(agent, run, State.COMPLETED, None, text)


def end(
    agent: "Agent",
    run: RunState,
    state: State,
    code: str | None,
    answer: str | None = None,
    call_code: str = "cancelled",
) -> None:
    """End a run, and answer each call that is still open with `call_code`: no id stays without one."""
    answers = tuple((call.id, closing(agent, call, call_code)) for call in run.open if call.result is None)
    agent.append(
        RunEnded(
            at=agent.now(),
            run_id=run.id,
            state=state,
            code=code,
            answer=answer,
            usage=run.usage,
            answers=answers,
        )
    )


def closing(agent: "Agent", call: CallState, code: str) -> ToolResult:
    """The answer to a call that the end of its run left open. A claimed write may have happened."""
    if call.phase == "running" and call.effect == "write":
        return gateway.stamped(agent, gateway.unknown_outcome(call.call.name))
    message = f"The run ended before this call was made ({code}). It was not done."
    return gateway.stamped(agent, gateway.failed(call.call.name, code, message))


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
        named.append(ToolCall(wire_id, given, call.name, call.arguments))
    return tuple(named)


def _ids(given: str | None, taken: int) -> Iterator[str]:
    """One id more than there are taken ones: the given one, suffixed, or made up where no server takes it."""
    if given and given.isprintable() and len(given) <= MAX_ID_CHARS:
        yield given
        yield from (f"{given}-{n}" for n in range(2, taken + 2))
    else:
        yield from (f"call-{n:03d}" for n in range(taken + 1, 2 * taken + 2))


def dropped(reply: Reply, last_for: str | None) -> tuple[str, ...]:
    if reply.calls and last_for:
        return ("calls in the last reply of a run are dropped: no tools were offered",)
    if reply.calls and reply.finish_reason in ("length", "content_filter"):
        return (f"calls of a reply that ended with {reply.finish_reason} are not looked at",)
    return ()


def estimate(sent_chars: int, reply: Reply) -> Usage:
    """Tokens where the server does not say: a server that is silent must not evade the budget."""
    written = len(reply.text or "") + sum(len(str(call.arguments)) for call in reply.calls)
    return Usage(sent_chars // CHARS_PER_TOKEN, written // CHARS_PER_TOKEN, estimated=True)


def only_while(run: RunState, on_delta: OnDelta | None) -> OnDelta | None:
    """Pass on what a model says while its run goes on; a stopped run says nothing more."""
    return (lambda text: None if run.ended else on_delta(text)) if on_delta else None
