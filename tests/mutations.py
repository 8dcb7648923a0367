"""Valid replies, and what a broken server makes of them: mutated fields, chunks, bytes and headers."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

from hypothesis import strategies as st

from tests.endpoint import Completion, chunks, completion, says, wants
from tests.model.server import Answer, head
from tests.support import asks, call

Json = Any
MOST_PIECES = 1_000

_NOTE = call("n1", "note", {"text": "A"})
_LOOK = call("l1", "look", {"text": "A"})
_ADD = call("a1", "add", {"a": 1, "b": 2.5})
_SIGNED = {**_LOOK, "extra_content": {"google": {"thought_signature": "c2ln"}}}
_PARTS: Json = [{"type": "thinking", "thinking": "Well."}, {"type": "text", "text": "Yes."}]

REPLIES: tuple[Completion, ...] = (
    says("Hello."),
    wants(_LOOK),
    wants(_ADD),
    wants(_NOTE),
    wants(_LOOK, _NOTE, call("n2", "note", {"text": "B"}), _ADD),
    completion(asks(_ADD, _NOTE, text="One moment."), "tool_calls"),
    completion(
        {**asks(_SIGNED, _NOTE), "reasoning_content": "First look, then note.", "score": 0.5}, "tool_calls"
    ),
    completion({"role": "assistant", "content": "<think>Grüße?</think>\n你好 🎉"}, "stop"),
    completion({"role": "assistant", "content": None, "refusal": "I will not."}, "stop"),
    completion({"role": "assistant", "content": _PARTS}, "stop"),
    completion(asks(_NOTE, text="Cut"), "length"),
    says(" "),
    {"error": {"message": "Too many tokens: sk-abcdefgh12345678", "type": "server_error", "code": 500}},
)

_RAW = "\x02"
"""A text between two of these stands in the JSON text as it is, without quotes."""
_TWIN = "\x01"
"""A field whose name ends with this gets the name without it: twice the same name in one object."""


def _mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from((usual,) * 2 * len(others) + others)


def _raw(text: str) -> str:
    return _RAW + text + _RAW


_ODD: tuple[Json, ...] = (
    None, True, False, 0, 1, -1, 3, 500, 2.5, 10**400, float("nan"), float("-inf"),
    "", " ", "a", "A", "\x00", "\n", "\u202e", "\ud83d", "\udc00 x", "é" * 65, "x" * 300, "x" * 30_000,
    "note", "look", "add", "n1", "invalid_tool", "stop", "length", "tool_calls", "content_filter",
    "<think>", "</think>", "[TOOL_CALLS]", "null", "[]", "{}", "{", '{"text": "A"}', '{"text": "C"}',
    '{"text": "\\ud800"}', '{"text": "A", "text": "B"}', '{"a": 1e999, "b": NaN}', '{"a": 1, "b": 1}}',
    [], [None], [[]], ["a"], [{}], {}, {"": None}, {"a": {"b": []}}, {"text": "A"}, {"text": "D"},
    {"name": "note", "arguments": '{"text": "E"}'}, {"a": 10**400, "b": 1}, {"message": "context length"},
    {"prompt_tokens": 10**9, "completion_tokens": 1}, {"prompt_tokens": -1, "completion_tokens": 1},
    _raw("1" * 5000), _raw("1e999"), _raw("-0.0"), _raw("1E-400"),
)  # fmt: skip

_COMMON: tuple[Json, ...] = (
    None,
    -1,
    0.5,
    10**400,
    float("nan"),
    "",
    [],
    {},
    _raw("1" * 5000),
    _raw("[" * 2000 + "]" * 2000),
)
_DEEP = st.integers(1, 1_100).map(lambda n: _raw("[" * n + "]" * n)) | st.integers(1, 1_100).map(
    lambda n: _raw('{"text":' * n + "1" + "}" * n)
)
_NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
_TEXTS = st.sampled_from(
    (
        "\ud83d",
        "\udc00",
        "\x00",
        "\u202e",
        "\u2028",
        "\n",
        " ",
        '"',
        "\\",
        "{",
        "é" * 65,
        "x" * 300,
        "<think>",
        "</think>",
    )
)
ODD: st.SearchStrategy[Json] = st.one_of(
    st.sampled_from(_ODD), _TEXTS, st.sampled_from(_COMMON), _NESTED, _DEEP
)


# --- fields and chunks ---


@dataclass(frozen=True)
class Edit:
    """One change of a JSON value: at the spot of this number, counted round, `shallow` of the top ones."""

    kind: Literal["retype", "spoil", "drop", "double", "turn", "graft", "swap", "add"]
    at: int
    other: int
    value: Json
    text: str
    shallow: bool


def _edits(shallow: bool, *kinds: str) -> st.SearchStrategy[Edit]:
    where = st.integers(0, 999)
    return st.builds(Edit, st.sampled_from(kinds), where, where, ODD, _TEXTS, st.just(shallow))


Spot = tuple[Any, Any]
"""What holds a value, and the name or the number it has there."""


def edited(value: Json, changes: Sequence[Edit]) -> Json:
    """A changed copy; None where nothing is left."""
    root: dict[str, Json] = {"": deepcopy(value)}
    for change in changes:
        top = _spots(root[""]) if change.shallow and "" in root else []
        spots = top or list(_all_spots(root))
        if spots:
            _change(change, spots[change.at % len(spots)], spots[change.other % len(spots)])
    return root.get("")


def _spots(holder: Json) -> list[Spot]:
    if isinstance(holder, dict):
        return [(holder, name) for name in holder]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(holder, list):
        return [(holder, number) for number in range(len(holder))]  # pyright: ignore[reportUnknownArgumentType]
    return []


def _all_spots(holder: Json, depth: int = 1) -> Iterator[Spot]:
    """All spots, the deep ones more often: that is where the texts and the calls are."""
    for inside, name in _spots(holder):
        yield from [(inside, name)] * depth
        yield from _all_spots(inside[name], depth + 1)


def values_of(name: str, value: Json) -> list[Json]:
    """What stands under a name, at any depth."""
    return [holder[key] for holder, key in _all_spots(value) if key == name]


def _change(change: Edit, spot: Spot, other: Spot) -> None:
    (holder, name), (there, its_name) = spot, other
    mine, its = deepcopy(holder[name]), deepcopy(there[its_name])
    match change.kind:
        case "spoil" if isinstance(mine, str):
            at = change.other % (len(mine) + 1)
            holder[name] = mine[:at] + change.text + mine[at:]
        case "retype" | "spoil":
            holder[name] = deepcopy(change.value)
        case "drop":
            del holder[name]
        case "double" if isinstance(holder, list):
            holder.insert(name, mine)  # pyright: ignore[reportUnknownMemberType]
        case "double":
            holder[f"{name}{_TWIN}"] = mine
        case "turn" if isinstance(mine, list):
            holder[name] = [*mine[1:], *mine[:1]]  # pyright: ignore[reportUnknownVariableType]
        case "turn" if isinstance(mine, dict):
            holder[name] = dict(reversed(mine.items()))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case "turn":
            holder[name] = [mine]
        case "graft":
            holder[name] = its
        case "swap":
            holder[name], there[its_name] = its, mine
        case "add" if isinstance(mine, dict):
            holder[name] = {**mine, ("vendor", "reasoning_content")[change.other % 2]: deepcopy(change.value)}
        case "add":
            holder[name] = [mine, deepcopy(change.value)]


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]


# Strategies are made once: most of the time of an example goes into making and checking them.
# Replies with calls come twice as often.
_REPLY = st.sampled_from(REPLIES + REPLIES[1:7])
_CHUNKS = _REPLY.map(lambda reply: list(chunks(reply)))

_OF_FIELDS = _edits(False, "retype", "retype", "spoil", "drop", "double", "turn", "graft", "swap", "add")
_OF_CHUNKS = _edits(True, "drop", "double", "graft", "swap")

MESSAGES: st.SearchStrategy[Json] = st.builds(edited, _REPLY, st.lists(_OF_FIELDS, max_size=3))
"""Whole completions, as decoded JSON."""
STREAMS: st.SearchStrategy[list[Json]] = st.builds(
    edited,
    _CHUNKS | st.tuples(_CHUNKS, _CHUNKS).map(lambda two: two[0] + two[1]),
    st.lists(_OF_FIELDS | _OF_CHUNKS, max_size=4),
).map(_listed)
"""Lists of chunks, some with those of another reply behind them."""


# --- bytes ---

_TOKENS = (
    b"\n", b"\r", b"\r\n\r\n", b"\n\n", b" ", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xf0\x9f", b"\xef\xbb\xbf",
    b"data:", b"data: ", b"data\n", b"event: error\n", b": ping\n\n", b"id: 1\n", b"data: [DONE]\n\n",
    b"data: {}\n\n", b"data: null\n\n", b"[DONE]", b"{", b"}", b"[", b"]", b'"', b"\\", b"\\ud83d",
    b",", b":", b"null", b"NaN", b"1e999", b"<html>", b"0\r\n\r\n", b"[" * 3_000, b"1" * 5_000,
)  # fmt: skip


@dataclass(frozen=True)
class Blow:
    """One change of bytes, at a place counted round."""

    kind: Literal["cut", "insert", "flip", "drop", "double"]
    at: int
    length: int
    token: bytes


def blows(most: int) -> st.SearchStrategy[list[Blow]]:
    kinds = st.sampled_from(("insert", "flip", "drop", "double", "cut"))
    tokens = st.sampled_from(_TOKENS) | st.binary(max_size=4)
    return st.lists(st.builds(Blow, kinds, st.integers(0, 9_999), st.integers(1, 60), tokens), max_size=most)


def struck(data: bytes, changes: Sequence[Blow]) -> bytes:
    for change in changes:
        at = change.at % (len(data) + 1)
        end = at + change.length
        match change.kind:
            case "cut":
                data = data[:at]
            case "insert":
                data = data[:at] + change.token + data[at:]
            case "flip":
                flipped = bytes(byte ^ (1 << change.length % 8) for byte in data[at : at + 1])
                data = data[:at] + flipped + data[at + 1 :]
            case "drop":
                data = data[:at] + data[end:]
            case "double":
                data = data[:end] + data[at:]
    return data


_IN_RAW = re.compile(r'"\\u0002((?:[^"\\]|\\.)*?)\\u0002"')


def text_of(value: Json, is_ascii: bool = True, indent: int | None = None) -> bytes:
    """JSON, but for what cannot be said in it: NaN, the same field twice, halves of surrogate pairs."""
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent).replace('\\u0001"', '"')
    text = _IN_RAW.sub(lambda found: json.loads(f'"{found[1]}"'), text)
    return text.encode("utf-8", "surrogatepass")


def _events(values: list[Json], is_ascii: bool, newline: str, in_lines: bool, done: bool) -> bytes:
    texts = [text_of(value, is_ascii, 0 if in_lines else None) for value in values]
    lines = [
        b"event: message\n"[: 15 * in_lines] + b"data: " + text.replace(b"\n", b"\ndata: ") for text in texts
    ]
    return b"".join(line + b"\n\n" for line in [*lines, *[b"data: [DONE]"] * done]).replace(
        b"\n", newline.encode()
    )


_BLOWS = st.just(list[Blow]()) | blows(2)
_NEWLINES = st.sampled_from(("\n", "\n", "\r\n", "\r"))
_JSON_BODIES = st.builds(struck, st.builds(text_of, MESSAGES, st.booleans()), _BLOWS)
_SSE_BODIES = st.builds(
    struck,
    st.builds(_events, STREAMS, st.booleans(), _NEWLINES, _mostly(False, True), _mostly(True, False)),
    _BLOWS,
)
BODIES = _JSON_BODIES | _SSE_BODIES
SIZES = st.just(list[int]()) | st.just([1]) | st.lists(st.integers(1, 80), min_size=1, max_size=4)
"""Lengths of pieces, taken in turn: [1] is byte by byte, none is all at once."""


def pieces(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    """The same bytes in pieces of these lengths, longer ones where there would be too many."""
    cut: list[bytes] = []
    start, least = 0, len(data) // MOST_PIECES
    for length in cycle(lengths or [len(data) or 1]):
        if start >= len(data):
            return cut
        end = start + max(length, least)
        cut.append(data[start:end])
        start = end
    return cut


# --- HTTP ---

_JSON, _SSE = "application/json", "text/event-stream"
_STATUSES = (201, 204, 304, 307, 400, 401, 404, 408, 409, 413, 422, 429, 500, 503, 100, 103, 999)
_WAITS = ("0", "0.5", "-1", "nan", "1e9", "soon", "Wed, 21 Oct 2015 07:28:00 GMT")


@dataclass(frozen=True)
class Wire:
    """One answer over HTTP."""

    body: bytes
    content_type: str
    status: int = 200
    coding: Literal["", "gzip", "deflate", "unsaid", "claimed", "cut", "more", "br"] = ""
    framing: Literal["length", "chunked", "none"] = "length"
    lie: int = 0
    """How much the length that it names is off."""
    sizes: Sequence[int] = ()
    retry_after: str = "0"

    @property
    def is_honest(self) -> bool:
        """Whether the connection can be used again."""
        return self.status == 200 and self.framing != "none" and not self.lie

    @property
    def headers(self) -> dict[str, str]:
        named = {"claimed": "gzip", "cut": "gzip", "more": "gzip", "unsaid": ""}.get(self.coding, self.coding)
        return {"Retry_After": self.retry_after} | ({"Content_Encoding": named} if named else {})

    @property
    def coded(self) -> bytes:
        match self.coding:
            case "gzip" | "unsaid":
                return gzip.compress(self.body, 1, mtime=0)
            case "cut":
                return gzip.compress(self.body, 1, mtime=0)[:-9]
            case "more":
                return gzip.compress(self.body, 1, mtime=0) + self.body[:9]
            case "deflate":
                return zlib.compress(self.body, 1)
            case _:
                return self.body

    def answer(self, hold_at: int | None = None) -> Answer:
        """What the server plays; with `hold_at` it falls silent there, counted round."""
        data, framing, body = self.coded, dict[str, str](), list[bytes]()
        if self.framing == "chunked":
            parts = pieces(data, self.sizes)
            body = [f"{max(1, len(part) + self.lie):x}\r\n".encode() + part + b"\r\n" for part in parts]
            body.append(b"0\r\n\r\n")
            framing = {"Transfer_Encoding": "chunked"}
        else:
            body = pieces(data, self.sizes)
            if self.framing == "length":
                framing = {"Content_Length": str(max(0, len(data) + self.lie))}
        out = [head(self.status, self.content_type, **self.headers, **framing), *body]
        if hold_at is not None:
            whole = b"".join(out)
            return Answer([whole[: hold_at % (len(whole) + 1)]], hold=True)
        return Answer(out, close=not self.is_honest)


def _wires(body: st.SearchStrategy[bytes], *types: str) -> st.SearchStrategy[Wire]:
    return st.builds(
        Wire,
        body=body,
        content_type=_mostly(*types),
        status=st.sampled_from((200,) * 40 + _STATUSES),
        coding=_mostly("", "gzip", "deflate", "unsaid", "claimed", "cut", "more", "br"),
        framing=st.sampled_from(("length", "length", "chunked", "none")),
        lie=_mostly(0, -40, -1, 1, 40),
        sizes=SIZES,
        retry_after=st.sampled_from(_WAITS),
    )


WIRES = _wires(_JSON_BODIES, _JSON, _JSON + "; charset=utf-8", "text/html", "", _SSE) | _wires(
    _SSE_BODIES, _SSE, _SSE + "; charset=utf-8", "TEXT/EVENT-STREAM", _JSON
)
_CALLING = st.builds(edited, st.sampled_from(REPLIES[3:7]), st.lists(_OF_FIELDS, max_size=2))
ASKING = st.builds(Wire, st.builds(text_of, _CALLING), st.just(_JSON)) | WIRES
"""More of them come whole and ask for tools, so that runs get far."""
