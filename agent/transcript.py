"""Projections of the record on the wire: the messages of a request, and what makes them lawful."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from agent.arguments import as_sent
from agent.model import Message
from agent.record import INVALID_TOOL, ReplyReceived, UserMessage
from agent.state import Entry, Exchange, chars_of

SHRUNK = '{"ok":null,"truncated":true,"note":"left out to save space; ask again if it matters"}'
MESSAGE_CHARS = 60
"""What a message costs besides its text: role, quotes and brackets, roughly."""

_UNSAFE_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class PairingFault:
    """A broken rule of the protocol, at the message with this index."""

    index: int
    message: str


def check_pairing(messages: Sequence[Mapping[str, Any]]) -> list[PairingFault]:
    """Return what is unlawful in a list of wire messages; empty where a strict server would take it.

    Each tool-call id is non-empty and unique in the list, and answered by exactly one tool message
    before the next user or assistant message. No tool message stands without its call, no
    `tool_calls` is empty, no content is null without calls.
    """
    faults: list[PairingFault] = []
    seen: set[str] = set()
    open_ids: set[str] = set()
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            if message.get("tool_call_id") in open_ids:
                open_ids.discard(message["tool_call_id"])
            else:
                faults.append(PairingFault(index, f"{message.get('tool_call_id')!r} answers no open call."))
            if not isinstance(message.get("content"), str):
                faults.append(PairingFault(index, "A tool message needs a text."))
            continue
        if open_ids:
            faults.append(PairingFault(index, f"Unanswered before this message: {sorted(open_ids)}."))
            open_ids = set()
        if role not in _ROLES:
            faults.append(PairingFault(index, f"{role!r} is no role."))
        calls = message.get("tool_calls")
        if calls is None:
            if message.get("content") is None:
                faults.append(PairingFault(index, "A message without calls needs a content."))
            continue
        faults.extend(PairingFault(index, text) for text in _call_faults(role, calls, seen, open_ids))
    if open_ids:
        faults.append(PairingFault(len(messages), f"Unanswered at the end: {sorted(open_ids)}."))
    return faults


def _call_faults(role: Any, calls: Any, seen: set[str], open_ids: set[str]) -> Iterator[str]:
    if role != "assistant" or not isinstance(calls, list) or not calls:
        yield "tool_calls must be a non-empty list of an assistant message."
        return
    for call in calls:  # pyright: ignore[reportUnknownVariableType]
        call_id = call.get("id") if isinstance(call, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if not isinstance(call_id, str) or not call_id:
            yield "A call has no id."
        elif call_id in seen:
            yield f"The id {call_id!r} stands for more than one call."
        else:
            seen.add(call_id)
            open_ids.add(call_id)


def lawful_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """A copy of messages from elsewhere, without a leading system message; ValueError if unlawful."""
    try:
        copied: list[Any] = json.loads(json.dumps(list(messages)))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("The messages are not JSON.") from None
    if copied and isinstance(copied[0], dict) and copied[0].get("role") == "system":  # pyright: ignore[reportUnknownMemberType]
        copied = copied[1:]
    for number, message in enumerate(copied):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "tool"):  # pyright: ignore[reportUnknownMemberType]
            raise ValueError(f"Message {number} is not one of a user, an assistant or a tool.")
        if not isinstance(message.get("content"), str | None):  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            raise ValueError(f"The content of message {number} is not a text.")
    if faults := check_pairing(copied):
        raise ValueError(f"The messages are not lawful: {faults[0].message}")
    return tuple(_own(number, message) for number, message in enumerate(copied))


def _own(number: int, message: Message) -> Message:
    """A message with the fields of the protocol alone, and calls that each server takes."""
    own = {key: message[key] for key in ("role", "content", "tool_call_id") if key in message}
    if message.get("tool_calls") is None:
        return own
    try:
        calls = [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message["tool_calls"]
        ]
    except (KeyError, TypeError):
        raise ValueError(f"A call in message {number} lacks its function, name or arguments.") from None
    if not all(isinstance(part, str) for call in calls for part in call):
        raise ValueError(f"A call in message {number} holds something that is not a text.")
    return {**own, "tool_calls": [wire_call(i, name, as_sent(arguments)) for i, name, arguments in calls]}


@dataclass(frozen=True, slots=True)
class Window:
    """What a request holds: entries from `first` to `upto`, with tool results shrunk before `shrunk`."""

    first: int
    upto: int
    shrunk: int


def window(entries: Sequence[Entry], chars: int, max_chars: int, run_id: str) -> Window | None:
    """Fit the transcript: leave out vendor fields that are not echoed, shrink results of earlier runs, then
    drop whole earlier runs; None where the run at hand alone is too large."""
    upto = len(entries)
    spent = chars + MESSAGE_CHARS * upto
    if spent <= max_chars:
        return Window(0, upto, 0)
    starts = [n for n, entry in enumerate(entries) if _begins_run(entry)] or [0]
    sizes = [_sent_chars(entry, n < starts[-1], run_id) for n, entry in enumerate(entries)]
    spent += sum(sizes) - sum(map(chars_of, entries))
    for first in starts:
        if spent - sum(sizes[:first]) - MESSAGE_CHARS * first <= max_chars:
            return Window(first, upto, starts[-1])
    return None


def _begins_run(entry: Entry) -> bool:
    return isinstance(entry, UserMessage) or (isinstance(entry, dict) and entry.get("role") == "user")


def _sent_chars(entry: Entry, shrunk: bool, run_id: str) -> int:
    """What an entry costs in a request of this run."""
    chars = chars_of(entry)
    reply = entry.reply if isinstance(entry, Exchange) else entry
    if isinstance(reply, ReplyReceived) and not _is_echoed(reply, run_id):
        chars -= len(reply.extra or "")
    if shrunk and isinstance(entry, Exchange):
        chars += len(SHRUNK) * len(entry.results) - sum(map(len, entry.results))
    return chars


def wire_messages(prompt: str, entries: Sequence[Entry], view: Window, run_id: str | None) -> list[Message]:
    """The messages of a request. Vendor fields of a reply are echoed within its own run, and after it
    where its server wants that."""
    messages: list[Message] = [{"role": "system", "content": prompt}]
    for number in range(view.first, view.upto):
        entry = entries[number]
        match entry:
            case UserMessage():
                messages.append({"role": "user", "content": entry.text})
            case ReplyReceived():
                messages.append({**_echo(entry, run_id)[0], "role": "assistant", "content": entry.text})
            case Exchange():
                messages.append(_asking(entry, run_id))
                messages.extend(_answers(entry, number < view.shrunk))
            case _:
                messages.append(deepcopy(entry) if "tool_calls" in entry else {**entry})
    return messages


def _is_echoed(reply: ReplyReceived, run_id: str | None) -> bool:
    return run_id is not None and (reply.run_id == run_id or reply.extra_lasts)


def _echo(reply: ReplyReceived, run_id: str | None) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """The vendor fields of a message and of each of its calls that go back with them."""
    if not reply.extra or not _is_echoed(reply, run_id):
        return {}, [dict[str, Any]()] * len(reply.calls)
    # Not as the gates read arguments: these numbers go back as they came, and Decimal is no JSON.
    echo = json.loads(reply.extra)
    return echo["message"], echo["calls"]


def _asking(entry: Exchange, run_id: str | None) -> Message:
    extra, extras = _echo(entry.reply, run_id)
    parts = zip(entry.reply.calls, entry.arguments, extras, strict=True)
    calls = [{**more, **wire_call(call.id, call.name, arguments)} for call, arguments, more in parts]
    return {**extra, "role": "assistant", "content": entry.reply.text or None, "tool_calls": calls}


def _answers(entry: Exchange, shrunk: bool) -> Iterator[Message]:
    for call, content in zip(entry.reply.calls, entry.results, strict=True):
        yield {"role": "tool", "tool_call_id": call.id, "content": SHRUNK if shrunk else content}


def wire_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as it is sent back, under a name that each server takes; the model's own is in the record."""
    safe = _UNSAFE_NAME.sub("_", name)[:64] or INVALID_TOOL
    return {"id": call_id, "type": "function", "function": {"name": safe, "arguments": arguments}}
