"""Tool-call arguments: one strict reader, one canonical form, one digest.

`json.loads` alone would take the last of two equal keys, turn 1e999 into infinity, accept NaN and
fail on deep nesting with a RecursionError. Each of these would let a person approve something other
than what runs, so each is refused here, before anything else looks at the arguments.
"""

import hashlib
import json
import math
import re
import sys
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

from agent.limits import Limits
from tools.base import JsonValue

EXCERPT_CHARS = 40
MAX_EXPONENT = 1_000

# An unclosed string matches to the end of the text, so the scan stays linear on hostile input.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


class BadJson(Exception):
    """Arguments that are not one strict JSON object. The text says what is wrong, and where."""


DEFAULTS = Limits()
BOUNDLESS = Limits(max_arguments_chars=sys.maxsize, max_arguments_depth=sys.maxsize)

_OPTIONS: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
_encode = json.JSONEncoder(**_OPTIONS).encode
_encode_sorted = json.JSONEncoder(sort_keys=True, **_OPTIONS).encode


def parse(raw: str, limits: Limits = DEFAULTS) -> dict[str, JsonValue]:
    """Read one strict JSON object: integral numbers as int, others as Decimal. Raises `BadJson`."""
    if not raw.strip():
        raise BadJson("The arguments are empty; they must be one JSON object, such as {}.")
    if len(raw) > limits.max_arguments_chars:
        raise BadJson(f"The arguments have {len(raw)} characters; at most {limits.max_arguments_chars} fit.")
    if _depth(raw) > limits.max_arguments_depth:
        raise BadJson(f"The arguments are nested deeper than {limits.max_arguments_depth} levels.")
    try:
        value = json.loads(
            raw, parse_float=_number, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys
        )
    except json.JSONDecodeError as error:
        raise BadJson(_where(raw, error)) from None
    except ValueError:  # an integer of more digits than Python converts
        raise BadJson("A number in the arguments has too many digits.") from None
    if not isinstance(value, dict):
        raise BadJson("The arguments must be one JSON object, such as {}.")
    try:
        written = json_text(value).encode()
    except UnicodeEncodeError:
        raise BadJson("The arguments hold half of a surrogate pair, which is not text.") from None
    if len(written) > 4 * limits.max_arguments_chars:
        raise BadJson("The arguments are too long once their numbers are written out.")
    return value  # pyright: ignore[reportUnknownVariableType]  # the hook above types its values


def value_of(text: str) -> Any:
    """Read back a JSON text that this program wrote; its bounds were checked when it was written."""
    return json.loads(text, parse_float=_read_back)


def _read_back(text: str) -> int | Decimal:
    number = Decimal(text)
    is_short = 0 <= number.adjusted() <= MAX_EXPONENT
    return int(number) if is_short and number == number.to_integral_value() else number


def sendable(text: str) -> str:
    """Text that can be sent: halves of surrogate pairs are joined, or replaced."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def as_sent(raw: str | None, limits: Limits = DEFAULTS) -> str:
    """Arguments as they stand in the history: the canonical text, or {} for what cannot be read."""
    try:
        return json_text(parse(raw or "", limits))
    except BadJson:
        return "{}"


def json_text(value: Any, *, sort_keys: bool = True) -> str:
    """JSON text of a value: sorted keys, no blanks, Decimals as exact numbers. NaN raises ValueError."""
    try:
        return (_encode_sorted if sort_keys else _encode)(value)
    except TypeError:
        return _with_decimals(value, sort_keys)


def digest(tool: str, content: str) -> str:
    """SHA-256 of a tool's name and the content of a call, in hex."""
    return hashlib.sha256(f"{tool}\n{content}".encode(errors="surrogatepass")).hexdigest()


def _with_decimals(value: Any, sort_keys: bool) -> str:
    """The same by hand, for what the json module cannot write: each number keeps all its digits."""
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, Decimal) and value.is_finite():
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, dict):
        pairs: list[tuple[str, Any]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType]
        if sort_keys:
            pairs.sort(key=lambda pair: pair[0])
        texts = (f"{encode_basestring(key)}:{_with_decimals(item, sort_keys)}" for key, item in pairs)
        return "{" + ",".join(texts) + "}"
    if isinstance(value, list | tuple):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return "[" + ",".join(_with_decimals(item, sort_keys) for item in items) + "]"
    if type(value) is int:
        return repr(value)
    return _encode(value)


def _depth(raw: str) -> int:
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(raw):
        character = match[0][0]
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _number(text: str) -> int | Decimal:
    try:
        if not math.isfinite(float(text)):
            raise BadJson(f"The number {text[:EXCERPT_CHARS]} is too large.")
        number = Decimal(text)
    except ArithmeticError:
        raise BadJson(f"The number {text[:EXCERPT_CHARS]} cannot be read.") from None
    if abs(number.adjusted()) > MAX_EXPONENT:
        raise BadJson(f"The number {text[:EXCERPT_CHARS]} has too large an exponent.")
    if number.adjusted() < 0:
        return number if number else 0
    return int(number) if number == number.to_integral_value() else number


def _refuse_constant(name: str) -> JsonValue:
    raise BadJson(f"{name} is not JSON.")


def _unique_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise BadJson(f"The key {twice[:EXCERPT_CHARS]!r} stands twice in one object.")
    return found


def _where(raw: str, error: json.JSONDecodeError) -> str:
    near = raw[max(0, error.pos - EXCERPT_CHARS // 2) : error.pos + EXCERPT_CHARS // 2]
    return f"Not valid JSON at character {error.pos}: {error.msg}, near {near!r}."
