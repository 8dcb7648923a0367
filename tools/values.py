"""JSON values of tool calls: exact numbers, the canonical form, and faults told in one sentence."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, cast

from typing_extensions import TypeAliasType

JsonValue = TypeAliasType(
    "JsonValue", "bool | int | float | Decimal | str | list[JsonValue] | dict[str, JsonValue] | None"
)
FaultKind = Literal["missing", "unknown_field", "type", "range", "not_finite"]

MAX_DIGITS = 1_000
MAX_EXPONENT = 1_000
MAX_FAULTS = 10
MAX_MESSAGE_CHARS = 200
MAX_FIELD_CHARS = 80
ECHO_CHARS = 40

_TOO_LARGE = 10**MAX_DIGITS


@dataclass(frozen=True, slots=True)
class FieldFault:
    """What is wrong with one field. `field` is a dotted path, and "" for the arguments as a whole."""

    field: str
    kind: FaultKind
    message: str


class BadArguments(Exception):
    """Arguments that do not fit a tool's schema: the model may correct them and call again."""

    def __init__(self, faults: Iterable[FieldFault]) -> None:
        self.faults = tuple(faults)
        super().__init__(" ".join(fault.message for fault in self.faults))


class BadNumber(ValueError):
    """A number that is not finite, or too long to compute with."""

    def __init__(self, kind: Literal["range", "not_finite"], want: str) -> None:
        super().__init__(want)
        self.kind: Literal["range", "not_finite"] = kind
        self.want = want


# --- numbers ------------------------------------------------------------------------------------


def is_number(value: object) -> bool:
    """Whether a value is a number in JSON's sense. true and false are none, although bool is an int."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def exact(value: int | float | Decimal) -> int | Decimal:
    """The canonical form of a number: int where integral, else Decimal. A float counts as it prints.

    Raises `BadNumber` for NaN, infinity, more than 1,000 digits or an exponent beyond 1,000: the
    bound comes before any arithmetic, because 1e999999999 as an integer would fill the memory.
    """
    if isinstance(value, int):
        return _bounded(value)
    number = Decimal(repr(value)) if isinstance(value, float) else value
    if not number.is_finite():
        raise BadNumber("not_finite", "a finite number")
    if not number:
        return 0
    _, digits, exponent = number.as_tuple()
    if len(digits) > MAX_DIGITS or abs(int(exponent)) > MAX_EXPONENT or number.adjusted() >= MAX_DIGITS:
        raise _too_long()
    return int(number) if number == number.to_integral_value() else number


def _bounded(value: int) -> int:
    if abs(value) >= _TOO_LARGE:
        raise _too_long()
    return value


def _too_long() -> BadNumber:
    return BadNumber(
        "range", f"a number of at most {MAX_DIGITS:,} digits and an exponent within {MAX_EXPONENT:,}"
    )


class NumberKind:
    """Tells pydantic how a `Number` is read, when a tool is made; importing this loads no pydantic."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from tools.signature import number_schema

        return number_schema()


Number = Annotated[int | Decimal, NumberKind()]
"""An exact number: int or Decimal, finite, of bounded size."""


# --- the canonical form -------------------------------------------------------------------------


def canonical(value: object) -> JsonValue:
    """A Python value of a tool's parameters as the JSON value that is shown, digested and stored.

    Models become objects, enums their values, dates ISO text, tuples and sets lists; a set is sorted
    because its own order changes from process to process. Raises TypeError for what has no such form.
    """
    match value:
        case Enum():
            return canonical(value.value)
        case None | bool() | str():
            return value
        case int() | float() | Decimal():
            return exact(value)
        case date() | datetime() | time():
            return value.isoformat()
        case _:
            return _canonical_container(value)


def _canonical_container(value: object) -> JsonValue:
    model_fields: Iterable[str] | None = getattr(type(value), "model_fields", None)
    if model_fields is not None:
        return {name: canonical(getattr(value, name)) for name in model_fields}
    if isinstance(value, Mapping):
        pairs = cast(Mapping[object, object], value).items()
        return {_key(key): canonical(item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in cast(Sequence[object], value)]
    if isinstance(value, AbstractSet):
        items = [canonical(item) for item in cast(AbstractSet[object], value)]
        return sorted(items, key=lambda item: (type(item).__name__, str(item)))
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError("a key that is no text has no JSON form")
    return key


def with_floats(value: JsonValue) -> JsonValue:
    """A copy in which each Decimal is a float: for what is written by the plain json module."""
    match value:
        case Decimal():
            return float(value)
        case list():
            return [with_floats(item) for item in value]
        case dict():
            return {key: with_floats(item) for key, item in value.items()}
        case _:
            return value


# --- faults -------------------------------------------------------------------------------------


def missing(field: str) -> FieldFault:
    return _fault(field, "missing", f"{_named(field)} is missing.")


def unknown_field(field: str, known: Iterable[str] = ()) -> FieldFault:
    names = ", ".join(known)
    return _fault(
        field, "unknown_field", f"There is no field {field!r}{f'; there is {names}' if names else ''}."
    )


def counted(want: str, limit: object) -> str:
    """A phrase such as "at least {} characters long", in the singular where the limit is one."""
    return want.replace("characters", "character").replace("items", "item") if limit == 1 else want


def unfit(field: str, kind: FaultKind, want: str, value: object) -> FieldFault:
    """The fault of a value that is there: what is wanted, and how the value began."""
    return _fault(field, kind, f"{_named(field)} must be {clip(want, 80)}; it was {echo(value)}.")


def _fault(field: str, kind: FaultKind, message: str) -> FieldFault:
    return FieldFault(field, kind, clip(message, MAX_MESSAGE_CHARS))


def _named(field: str) -> str:
    return f"'{field}'" if field else "The arguments"


def dotted(parts: Iterable[object]) -> str:
    """A path such as filter.tags.0; keys come from a model and may be anything, so they are cut."""
    return clip(".".join(clip(printable(str(part)), ECHO_CHARS) for part in parts), MAX_FIELD_CHARS)


def echo(value: object) -> str:
    """A value in at most 40 characters of its own, safe to print: never a whole list or object."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{clip(printable(value[: ECHO_CHARS + 1]), ECHO_CHARS)}"'
        case int() if abs(value) >= 10**ECHO_CHARS:
            return "a number of many digits"
        case int() | float() | Decimal():
            return clip(str(value), ECHO_CHARS)
        case list() | tuple():
            return "a list"
        case _:
            return "an object" if isinstance(value, Mapping) else "no JSON value"


def printable(text: str) -> str:
    """The text with control, direction and surrogate characters written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
