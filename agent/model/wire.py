"""The tolerant reader: what real servers send, read into one Reply.

Pure functions over decoded JSON. Each deviation that is tolerated leaves a note of `Quirk`; what cannot
be read as an answer raises `ModelError`. The strict writer is `agent.transcript`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from typing_extensions import TypeIs

from agent.model import Reply, Usage, WireCall
from agent.model.failures import Unreadable, answered_error, unreadable
from agent.model.quirks import Quirk
from agent.model.reasoning import Thinking, of_fields, split, text_of

Notes = dict[str, None]
"""An ordered set of wire notes."""


MAX_CALLS = 128
"""Calls of one reply."""
MAX_WORD_CHARS = 256
"""Of an id or a tool name."""
MAX_EXTRA_BYTES = 256_000
"""Of all vendor fields of one reply: a server that wants its reasoning back wants all of it."""
MAX_EXTRA_DEPTH = 32
MAX_REASONING_CHARS = 100_000
MAX_TOKENS = 1_000_000_000

_FINISH_REASON = re.compile(r"[A-Za-z_]{1,40}")

_CALL_AS_TEXT = re.compile(
    r"<tool_calls?>|<\|tool_calls?|<｜tool▁call|<\|python_tag\|>|\[TOOL_CALLS\]|<function_calls?>|<function[=(]"
    r"|<invoke name=|functions\.\w+:\d"
    # Possessive, because a long run of blanks would otherwise be tried in each of its parts.
    r"|\A\s*+(?:```\w*+\s*+)?[\[{]\s*+(?:\{\s*+)?\"(?:name|function|tool|tool_name)\"\s*+:"
    r"(?=.*\"(?:arguments|parameters|tool_input)\"\s*+:)",
    re.DOTALL,
)
"""How models write a call where their server does not take it out of the text."""
_MAX_SEARCHED_CHARS = 100_000

_OWN_FIELDS = frozenset({"role", "content", "tool_calls", "refusal", "audio", "annotations", "function_call"})
_CALL_FIELDS = frozenset({"index", "id", "type", "function"})


def read_message(body: object) -> Reply:
    """Read a whole chat completion. `ModelError` where it holds an error or no message."""
    answer = _object(body, Unreadable.NO_OBJECT)
    _refuse_error(answer)
    choices = _choices(answer)
    notes: Notes = {}
    if len(choices) > 1:
        notes[Quirk.CHOICES_EXTRA] = None
    choice = _object(choices[0], Unreadable.NO_CHOICE)
    finish_reason = _finish_reason(choice.get("finish_reason"), notes)
    usage = _usage(answer.get("usage"), notes)
    return _checked_finish(_read(choice.get("message"), finish_reason, usage, notes))


def read_assistant(message: object, finish_reason: str | None = None, usage: Usage | None = None) -> Reply:
    """Read a bare assistant message, as it stands inside a completion."""
    return _read(message, finish_reason, usage, {})


def _read(message: object, finish_reason: str | None, usage: Usage | None, notes: Notes) -> Reply:
    fields = _object(message, Unreadable.NO_MESSAGE)
    if fields.get("function_call") is not None:
        notes[Quirk.LEGACY_CALL] = None
    content = _content(fields.get("content"), notes)
    content.refusal = _text(fields.get("refusal"), Unreadable.REFUSAL) or content.refusal
    extra = {name: value for name, value in fields.items() if name not in _OWN_FIELDS and value is not None}
    return _reply(content, _calls(fields, notes), extra, finish_reason, usage, notes)


def _reply(
    content: "_Content",
    calls: tuple[WireCall, ...],
    extra: Mapping[str, Any],
    finish_reason: str | None,
    usage: Usage | None,
    notes: Notes,
) -> Reply:
    thought, text = split(content.text)
    if text != content.text:
        notes[Quirk.THINKING_IN_TEXT] = None
    if not calls and _CALL_AS_TEXT.search(text, 0, _MAX_SEARCHED_CHARS):
        notes[Quirk.CALL_AS_TEXT] = None
    room = _Room(notes)
    return Reply(
        text=_clean(text, notes) or None,
        calls=tuple(replace(call, extra=room.kept(call.extra)) if call.extra else call for call in calls),
        usage=usage,
        finish_reason=finish_reason,
        refusal=_clean(content.refusal, notes) or None,
        reasoning=_reasoning(of_fields(extra) or content.thought or thought, notes),
        extra=room.kept(extra),
        notes=tuple(str(note) for note in notes),
    )


def _reasoning(text: str, notes: Notes) -> str | None:
    if len(text) > MAX_REASONING_CHARS:
        notes[Quirk.REASONING_CUT] = None
    return _clean(text[:MAX_REASONING_CHARS], notes).strip() or None


def _checked_finish(reply: Reply) -> Reply:
    """Note a finish_reason that contradicts the calls. `length` and `content_filter` speak for themselves."""
    note = None
    if reply.calls and reply.finish_reason in (None, "stop"):
        note = Quirk.FINISH_MISMATCH
    elif not reply.calls and reply.finish_reason == "tool_calls":
        note = Quirk.FINISH_WITHOUT_CALLS
    if note is None:
        return reply
    return replace(reply, notes=(*reply.notes, str(note)))


# --- parts of a message ---


def _object(value: object, otherwise: Unreadable) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    raise unreadable(otherwise)


def _list(value: object, otherwise: Unreadable) -> list[Any]:
    if isinstance(value, list):
        return cast(list[Any], value)
    raise unreadable(otherwise)


def _text(value: object, otherwise: Unreadable) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise unreadable(otherwise)


def _refuse_error(answer: Mapping[str, Any]) -> None:
    error = answer.get("error")
    if error:
        raise answered_error(error)


def _choices(answer: Mapping[str, Any]) -> list[Any]:
    choices = _list(answer.get("choices"), Unreadable.NO_CHOICES)
    if not choices:
        raise unreadable(Unreadable.NO_CHOICES)
    return choices


def _finish_reason(value: object, notes: Notes) -> str | None:
    if isinstance(value, str) and _FINISH_REASON.fullmatch(value):
        return value
    notes[Quirk.FINISH_UNREADABLE if value else Quirk.FINISH_MISSING] = None
    return None


def _usage(value: object, notes: Notes) -> Usage | None:
    if not value:
        notes[Quirk.USAGE_MISSING] = None
        return None
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    prompt, completion = fields.get("prompt_tokens"), fields.get("completion_tokens")
    if _is_count(prompt) and _is_count(completion):
        if prompt or completion:
            return Usage(prompt, completion)
        notes[Quirk.USAGE_MISSING] = None
    else:
        notes[Quirk.USAGE_UNREADABLE] = None
    return None


def _is_count(value: object) -> TypeIs[int]:
    return type(value) is int and 0 <= value <= MAX_TOKENS


@dataclass(slots=True)
class _Content:
    """What a content says, refuses and thinks."""

    text: str = ""
    refusal: str = ""
    thought: str = ""


def _content(value: object, notes: Notes) -> _Content:
    """Read a content, which may be null, a text or a list of parts."""
    if not isinstance(value, list):
        return _Content(_text(value, Unreadable.CONTENT))
    notes[Quirk.CONTENT_PARTS] = None
    parts = [_part(part, notes) for part in cast(list[object], value)]
    return _Content(
        "".join(part.text for part in parts),
        "".join(part.refusal for part in parts),
        "".join(part.thought for part in parts),
    )


def _part(part: object, notes: Notes) -> _Content:
    if isinstance(part, str):
        return _Content(part)
    fields = _object(part, Unreadable.CONTENT)
    kind = fields.get("type")
    if kind == "refusal":
        return _Content(refusal=_text(fields.get("refusal"), Unreadable.REFUSAL))
    if kind in ("text", "output_text", None) and "text" in fields:
        return _Content(_text(fields["text"], Unreadable.CONTENT))
    if kind in ("thinking", "reasoning"):
        return _Content(thought=text_of(fields))
    notes[Quirk.CONTENT_PART_DROPPED] = None
    return _Content()


def _calls(fields: Mapping[str, Any], notes: Notes) -> tuple[WireCall, ...]:
    if "tool_calls" not in fields:
        return ()
    value = fields["tool_calls"]
    if not value and (value is None or isinstance(value, list)):
        notes[Quirk.CALLS_EMPTY] = None
        return ()
    entries = _list(value, Unreadable.CALLS)
    if len(entries) > MAX_CALLS:
        raise unreadable(Unreadable.CALLS_MANY)
    return tuple(_call(entry, notes) for entry in entries)


def _call(entry: object, notes: Notes) -> WireCall:
    fields = _object(entry, Unreadable.CALL)
    function = _function(fields)
    if function is None:
        notes[Quirk.FUNCTION_MISSING] = None
        function = {}
    arguments = _arguments(function.get("arguments"), notes)
    provider_id, name = _id(fields.get("id"), notes), _name(function.get("name"))
    return _wire_call(provider_id, name, arguments, _call_extra(fields), notes)


def _call_extra(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Vendor fields of a call, such as the signature of a thought, without which some take no answer."""
    if fields.keys() <= _CALL_FIELDS:
        return {}
    return {name: value for name, value in fields.items() if name not in _CALL_FIELDS and value is not None}


def _wire_call(
    provider_id: str | None,
    name: str,
    arguments: str | dict[str, Any] | None,
    extra: Mapping[str, Any],
    notes: Notes,
) -> WireCall:
    if provider_id is None:
        notes[Quirk.ID_MISSING] = None
    elif not _is_word(provider_id := _clean(provider_id, notes)):
        notes[Quirk.ID_UNUSABLE] = None
        provider_id = None
    if not name:
        notes[Quirk.NAME_MISSING] = None
    if arguments is None:
        notes[Quirk.ARGUMENTS_NULL] = None
    elif isinstance(arguments, str) and not _is_enclosed(arguments.strip()):
        notes[Quirk.ARGUMENTS_NO_OBJECT] = None
    return WireCall(provider_id, _shown(_clean(name, notes), notes), arguments, extra)


def _is_enclosed(text: str) -> bool:
    return text.startswith("{") and text.endswith("}")


def _is_word(text: str) -> bool:
    return len(text) <= MAX_WORD_CHARS and text.isprintable()


def _shown(name: str, notes: Notes) -> str:
    """A tool name that cannot spoil the line it is shown in."""
    if _is_word(name):
        return name
    notes[Quirk.NAME_UNUSABLE] = None
    return "".join(char if char.isprintable() else "\ufffd" for char in name[:MAX_WORD_CHARS])


def _function(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    function = fields.get("function")
    return None if function is None else _object(function, Unreadable.FUNCTION)


def _id(value: object, notes: Notes) -> str | None:
    if value is None or isinstance(value, str):
        return value if value and value.strip() else None
    notes[Quirk.ID_NOT_TEXT] = None
    return str(value) if type(value) is int else None


def _name(value: object) -> str:
    name = _text(value, Unreadable.NAME)
    return name if name.strip() else ""


def _arguments(value: object, notes: Notes) -> str | dict[str, Any] | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        notes[Quirk.ARGUMENTS_OBJECT] = None
        return cast(dict[str, Any], value)
    notes[Quirk.ARGUMENTS_OTHER] = None
    return json.dumps(value)


def _clean(text: str, notes: Notes) -> str:
    """Join surrogate pairs that came apart, and put U+FFFD in place of lone ones."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        notes[Quirk.SURROGATE] = None
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class _Room:
    """The room for the vendor fields of one reply. They are sent back, so they are bounded together."""

    def __init__(self, notes: Notes) -> None:
        self._left_bytes = MAX_EXTRA_BYTES
        self._notes = notes

    def kept(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that fit, one after the other."""
        kept: dict[str, Any] = {}
        for name, value in extra.items():
            text = _plain_json({name: value})
            clean = text and _clean(text, self._notes)
            size = len(clean.encode()) if clean else self._left_bytes + 1
            if clean and size <= self._left_bytes and not _is_deeper(value, MAX_EXTRA_DEPTH):
                self._left_bytes -= size
                kept.update(json.loads(clean))
                self._notes[Quirk.VENDOR_FIELDS] = None
            else:
                self._notes[Quirk.VENDOR_DROPPED] = None
        return kept


def _plain_json(value: object) -> str | None:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def _is_deeper(value: object, depth: int) -> bool:
    """Whether lists and objects lie in each other more than `depth` times."""
    if not isinstance(value, dict | list):
        return False
    inner = cast(dict[str, object], value).values() if isinstance(value, dict) else cast(list[object], value)
    return depth == 0 or any(_is_deeper(item, depth - 1) for item in inner)


# --- streams ---


class _Call:
    """A tool call while its pieces arrive."""

    __slots__ = ("arguments", "extra", "has_function", "index", "name", "object", "provider_id")

    def __init__(self, index: int | None, provider_id: str | None) -> None:
        self.index = index
        self.provider_id = provider_id
        self.name = ""
        self.arguments: list[str] | None = None
        self.object: dict[str, Any] | None = None
        self.has_function = False
        self.extra = _Extra()

    def add(self, name: str, arguments: str | dict[str, Any] | None, notes: Notes) -> None:
        if name and name != self.name:
            if self.name:
                notes[Quirk.NAME_PIECES] = None
            self.name += name
        if arguments is None:
            return
        if isinstance(arguments, dict) and not self.arguments and self.object is None:
            self.object = arguments
        else:
            self._add_text(arguments, notes)

    def _add_text(self, arguments: str | dict[str, Any], notes: Notes) -> None:
        if self.object is not None:
            if not arguments:
                return
            notes[Quirk.ARGUMENTS_MIXED] = None
            self.arguments, self.object = [json.dumps(self.object)], None
        if self.arguments is None:
            self.arguments = []
        self.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def value(self) -> str | dict[str, Any] | None:
        if self.object is not None:
            return self.object
        return None if self.arguments is None else "".join(self.arguments)

    def is_complete(self) -> bool:
        """Whether the arguments so far are one whole JSON value, so that more belongs to another call."""
        value = self.value()
        if not isinstance(value, str):
            return value is not None
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            return False
        return True


class Stream:
    """Puts the chunks of one streamed completion together."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._thought: list[str] = []
        self._thinking = Thinking()
        self._calls: list[_Call] = []
        self._extra = _Extra()
        self._usage: object = None
        self._finish: object = None
        self._choice: object = None
        self._seen = False
        self._notes: Notes = {}

    def feed(self, chunk: object) -> str | None:
        """Take one chunk; return the text that it adds to what the model says."""
        fields = _object(chunk, Unreadable.NO_OBJECT)
        if fields.get("usage"):
            self._usage = fields["usage"]
        choices = fields.get("choices")
        if not choices:
            return _refuse_error(fields)
        choices = _list(choices, Unreadable.NO_CHOICES)
        _refuse_error(fields)
        if len(choices) > 1:
            self._notes[Quirk.CHOICES_EXTRA] = None
        return self._feed_choice(_object(choices[0], Unreadable.NO_CHOICE))

    def _feed_choice(self, choice: dict[str, Any]) -> str | None:
        index = choice.get("index")
        if not self._seen:
            self._seen, self._choice = True, index
        elif index != self._choice:
            self._notes[Quirk.CHOICES_EXTRA] = None
            return None
        reason = choice.get("finish_reason")
        if reason:
            self._finish = reason
        delta = choice.get("delta")
        if delta is None:
            delta = self._whole_message(choice)
        return self._feed_delta(_object(delta, Unreadable.NO_DELTA))

    def _whole_message(self, choice: Mapping[str, Any]) -> object:
        message = choice.get("message")
        if message is None:
            return {}
        self._notes[Quirk.DELTA_MESSAGE] = None
        return message

    def _feed_delta(self, delta: dict[str, Any]) -> str | None:
        for field in delta:
            if field != "content" and field != "role":
                self._feed_field(field, delta[field])
        content = delta.get("content")
        if not content:
            return None
        if not isinstance(content, str):
            parts = _content(content, self._notes)
            self._refusal.append(parts.refusal)
            self._thought.append(parts.thought)
            content = parts.text
        self._text.append(content)
        said = self._thinking.feed(content)
        return said if said.isascii() else _clean(said, self._notes)

    def _feed_field(self, field: str, value: object) -> None:
        if value is None:
            return
        if field == "tool_calls":
            self._feed_calls(_list(value, Unreadable.CALLS))
        elif field == "refusal":
            self._refusal.append(_text(value, Unreadable.REFUSAL))
        elif field == "function_call":
            self._notes[Quirk.LEGACY_CALL] = None
        elif field not in _OWN_FIELDS:
            self._extra.add(field, value)

    def _feed_calls(self, entries: list[Any]) -> None:
        if not entries:
            self._notes[Quirk.CALLS_EMPTY] = None
        for entry in entries:
            self._feed_call(_object(entry, Unreadable.CALL))

    def _feed_call(self, entry: dict[str, Any]) -> None:
        function = _function(entry)
        has_function, function = function is not None, function or {}
        index = entry.get("index")
        if type(index) is not int:
            self._notes[Quirk.INDEX_MISSING] = None
            index = None
        provider_id = _id(entry.get("id"), self._notes)
        name = _name(function.get("name"))
        arguments = _arguments(function.get("arguments"), self._notes)
        call = self._find(index, provider_id, name, bool(arguments))
        if call is None:
            if len(self._calls) >= MAX_CALLS:
                raise unreadable(Unreadable.CALLS_MANY)
            call = _Call(index, provider_id)
            self._calls.append(call)
        elif call.provider_id is None:
            call.provider_id = provider_id
        call.add(name, arguments, self._notes)
        call.has_function |= has_function
        for field, value in _call_extra(entry).items():
            call.extra.add(field, value)

    def _find(self, index: int | None, provider_id: str | None, name: str, more: bool) -> _Call | None:
        """The call that a piece belongs to; None where it starts a new one."""
        near = [call for call in reversed(self._calls) if index is None or call.index == index]
        for call in near:
            if provider_id is not None and call.provider_id == provider_id:
                repeated = index is None and name and more and call.is_complete()
                return None if repeated else call
        if not near:
            return None
        last = near[0]
        if provider_id is not None and (last.provider_id is not None or index is None):
            return None
        if name and last.name and more and ((last.value() and name != last.name) or last.is_complete()):
            return None
        return last

    def rest(self) -> str:
        """What of the text was held back at its end."""
        return self._thinking.finish()

    def finish(self, *, done: bool) -> Reply:
        """The whole reply; `done` says whether [DONE] was seen. A cut stream raises `ModelError`."""
        if not done and self._finish is None:
            raise unreadable(Unreadable.CUT_OFF)
        if not self._seen:
            raise unreadable(Unreadable.NO_CHOICES)
        notes = self._notes
        if not done:
            notes[Quirk.DONE_MISSING] = None
        if not all(call.has_function for call in self._calls):
            notes[Quirk.FUNCTION_MISSING] = None
        calls = tuple(
            _wire_call(call.provider_id, call.name, call.value(), call.extra.whole(), notes)
            for call in self._ordered()
        )
        finish_reason = _finish_reason(self._finish, notes)
        usage = _usage(self._usage, notes)
        content = _Content("".join(self._text), "".join(self._refusal), "".join(self._thought))
        return _checked_finish(_reply(content, calls, self._extra.whole(), finish_reason, usage, notes))

    def _ordered(self) -> list[_Call]:
        indexes = [call.index for call in self._calls if call.index is not None]
        if not indexes or len(indexes) < len(self._calls):
            return self._calls
        if min(indexes) > 0:
            self._notes[Quirk.INDEX_START] = None
        if len(set(indexes)) < len(indexes):
            self._notes[Quirk.INDEX_REPEATED] = None
        if indexes != sorted(indexes):
            self._notes[Quirk.INDEX_ORDER] = None
        return sorted(self._calls, key=lambda call: call.index or 0)


class _Extra:
    """Vendor fields while they arrive."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    def add(self, field: str, value: object) -> None:
        """Texts and lists grow; of anything else the last one stands."""
        known = self._fields.get(field)
        if isinstance(value, str):
            if isinstance(known, _Pieces):
                known.append(value)
            else:
                self._fields[field] = _Pieces([value])
        elif type(known) is list and isinstance(value, list):
            cast(list[object], known).extend(cast(list[object], value))
        else:
            self._fields[field] = value

    def whole(self) -> dict[str, Any]:
        return {
            name: "".join(value) if isinstance(value, _Pieces) else value
            for name, value in self._fields.items()
        }


class _Pieces(list[str]):
    """A text of a vendor's field while it arrives."""
