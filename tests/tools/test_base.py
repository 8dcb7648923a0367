"""The tool contract: one golden schema a kind of annotation, what each kind accepts, what is refused."""

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal, NotRequired

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel
from typing_extensions import TypedDict

from tests.tools.fakes import context
from tools.base import (
    TOOL_CODES,
    BadArguments,
    JsonValue,
    Number,
    Tool,
    ToolContext,
    ToolError,
    tool,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Point(BaseModel):
    """A place."""

    x: float
    y: Number = Decimal("0.5")


class Line(BaseModel):
    points: list[Point]
    colour: Colour = Colour.RED


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Options(TypedDict):
    depth: int
    label: NotRequired[str]


class Tree(BaseModel):
    children: list["Tree"]


class Aliased(BaseModel):
    x: int = Field(alias="ex")


ONE_POINT = {
    "description": "A place.",
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.5}},
    "required": ["x"],
    "additionalProperties": False,
}
NOTHING: Any = object()


def taking(annotation: Any, default: Any = NOTHING) -> Tool:
    """A tool with one parameter `v`."""

    def take(v: Any) -> JsonValue:
        """Take a value."""
        return str(v)

    take.__annotations__["v"] = annotation
    if default is not NOTHING:
        take.__defaults__ = (default,)
    return tool(effect="none", permission="test")(take)


def schema_of(annotation: Any, default: Any = NOTHING) -> dict[str, Any]:
    return taking(annotation, default).parameters["properties"]["v"]


# --- the golden schemas -------------------------------------------------------------------------

GOLDEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "text": (str, {"type": "string"}),
    "integer": (int, {"type": "integer"}),
    "float": (float, {"type": "number"}),
    "Number": (Number, {"type": "number"}),
    "boolean": (bool, {"type": "boolean"}),
    "range": (Annotated[int, Field(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
    "range of Number": (Annotated[Number, Field(gt=0)], {"type": "number", "exclusiveMinimum": 0}),
    "length": (
        Annotated[str, Field(min_length=1, max_length=5)],
        {"type": "string", "minLength": 1, "maxLength": 5},
    ),
    "description": (
        Annotated[str, Field(description="A word.")],
        {"type": "string", "description": "A word."},
    ),
    "enum": (Colour, {"type": "string", "enum": ["red", "blue"]}),
    "integer enum": (Level, {"type": "integer", "enum": [1, 2]}),
    "literal": (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    "mixed literal": (Literal["a", 1], {"enum": ["a", 1]}),
    "array": (list[int], {"type": "array", "items": {"type": "integer"}}),
    "array of arrays": (
        list[list[str]],
        {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
    ),
    "set": (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
    "tuple": (
        tuple[int, str],
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "minItems": 2,
            "maxItems": 2,
        },
    ),
    "mapping": (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    "optional": (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    "union": (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    "date": (date, {"type": "string", "format": "date"}),
    "date and time": (datetime, {"type": "string", "format": "date-time"}),
    "time": (time, {"type": "string", "format": "time"}),
    "nested": (Point, ONE_POINT),
    "nested twice": (
        Line,
        {
            "type": "object",
            "properties": {
                "points": {"type": "array", "items": ONE_POINT},
                "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            },
            "required": ["points"],
            "additionalProperties": False,
        },
    ),
    "typed dict": (
        Options,
        {
            "type": "object",
            "properties": {"depth": {"type": "integer"}, "label": {"type": "string"}},
            "required": ["depth"],
            "additionalProperties": False,
        },
    ),
    "tagged union": (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"type": "string", "const": "cat"}, "lives": {"type": "integer"}},
                    "required": ["kind", "lives"],
                    "additionalProperties": False,
                },
                {
                    "type": "object",
                    "properties": {"kind": {"type": "string", "const": "dog"}, "name": {"type": "string"}},
                    "required": ["kind", "name"],
                    "additionalProperties": False,
                },
            ]
        },
    ),
}


@pytest.mark.parametrize(("annotation", "expected"), GOLDEN.values(), ids=GOLDEN)
def test_golden_schema(annotation: Any, expected: dict[str, Any]) -> None:
    assert schema_of(annotation) == expected


DEFAULTS: list[tuple[Any, Any, JsonValue]] = [
    (int, 3, 3),
    (int | None, None, None),
    (Number, Decimal("0.1"), 0.1),
    (Colour, Colour.BLUE, "blue"),
    (set[str], {"b", "a"}, ["a", "b"]),
    (tuple[int, ...], (), []),
    (date, date(2026, 7, 31), "2026-07-31"),
    (Point, Point(x=1.5), {"x": 1.5, "y": 0.5}),
]


@pytest.mark.parametrize(("annotation", "default", "told"), DEFAULTS)
def test_golden_default(annotation: Any, default: Any, told: JsonValue) -> None:
    made = taking(annotation, default)
    assert made.parameters["properties"]["v"]["default"] == told
    assert "required" not in made.parameters
    assert not made.has_required
    assert made.validate(made.validate({})) == made.validate({})


@tool(effect="read", permission="books", source="shelf", phrases=(r"find (?P<title>\w+)",))
def find_book(
    ctx: ToolContext, title: str, copies: Annotated[int, Field(ge=1, description="How many.")] = 1
) -> JsonValue:
    """Find a book.

    Use it for books. Not
    for films.

    Args:
        title: The title,
            or its beginning.
        copies (int): Not used, the annotation says it.

    Returns:
        Where it stands.
    """
    return {"title": title, "copies": copies, "key": ctx.idempotency_key}


FIND_BOOK = "Find a book.\n\nUse it for books. Not for films.\n\nReturns:\n    Where it stands."


def test_golden_wire_schema() -> None:
    assert find_book.schema == {
        "type": "function",
        "function": {
            "name": "find_book",
            "description": FIND_BOOK,
            "parameters": {
                "type": "object",
                "properties": {
                    "title": {"type": "string", "description": "The title, or its beginning."},
                    "copies": {"type": "integer", "minimum": 1, "default": 1, "description": "How many."},
                },
                "required": ["title"],
                "additionalProperties": False,
            },
        },
    }
    assert find_book.schema is find_book.schema
    assert find_book.has_required


def test_a_tool_without_parameters() -> None:
    @tool(effect="none", permission="p", name="other-name")
    def nothing() -> JsonValue:
        """Do nothing."""
        return None

    assert nothing.name == "other-name"
    assert nothing.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert not nothing.has_required
    assert nothing.run({}, context()) is None


def test_a_property_may_be_called_title() -> None:
    class Book(BaseModel):
        title: str

    assert schema_of(Book)["properties"] == {"title": {"type": "string"}}


def test_annotations_as_text() -> None:
    def take(v: "list[int]", ctx: "ToolContext") -> "JsonValue":
        """Take a list."""
        return [*v, ctx.idempotency_key]

    made = tool(effect="none", permission="p")(take)
    assert list(made.parameters["properties"]) == ["v"]
    assert made.run({"v": [1]}, context()) == [1, "k-1"]


# --- what is accepted, and in which form --------------------------------------------------------

ACCEPTED: list[tuple[Any, JsonValue, JsonValue]] = [
    (int, 10**300, 10**300),
    (float, 5, 5),
    (float, Decimal("0.1"), Decimal("0.1")),
    (float, 0.1, Decimal("0.1")),
    (list[float], [1, Decimal("2.5")], [1, Decimal("2.5")]),
    (float | None, Decimal("2.5"), Decimal("2.5")),
    (int | float, Decimal("2.5"), Decimal("2.5")),
    (float | str, "2.5", "2.5"),
    (dict[str, float], {"a": Decimal("0.5")}, {"a": Decimal("0.5")}),
    (Number, 2**53 + 1, 2**53 + 1),
    (Number, Decimal("0.1000000000000000000001"), Decimal("0.1000000000000000000001")),
    (Number, Decimal("2.00"), 2),
    (Number, Decimal("1E+5"), 100_000),
    (Number, 0.1, Decimal("0.1")),
    (Number, Decimal("-0.0"), 0),
    (Number, Decimal("0E-5000"), 0),
    (bool, True, True),
    (Colour, "blue", "blue"),
    (Level, 2, 2),
    (Literal["a", 1], 1, 1),
    (date, "2026-07-31", "2026-07-31"),
    (datetime, "2026-07-31T09:00:00Z", "2026-07-31T09:00:00+00:00"),
    (time, "09:00:00", "09:00:00"),
    (set[str], ["b", "a", "b"], ["a", "b"]),
    (tuple[int, str], [1, "x"], [1, "x"]),
    (Point, {"x": 1}, {"x": 1, "y": Decimal("0.5")}),
    (
        Line,
        {"points": [{"x": Decimal("0.5"), "y": 2}]},
        {"points": [{"x": Decimal("0.5"), "y": 2}], "colour": "red"},
    ),
    (Options, {"depth": 1}, {"depth": 1}),
    (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        {"kind": "cat", "lives": 9},
        {"kind": "cat", "lives": 9},
    ),
    (Cat | Dog, {"kind": "dog", "name": "Rex"}, {"kind": "dog", "name": "Rex"}),
    (date | str, "tomorrow", "tomorrow"),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), ACCEPTED)
def test_accepted(annotation: Any, value: JsonValue, expected: JsonValue) -> None:
    made = taking(annotation)
    canonical = made.validate({"v": value})
    assert canonical == {"v": expected}
    assert repr(made.validate(canonical)) == repr(canonical)


# --- what is refused ----------------------------------------------------------------------------

TOO_LONG = 10**1000
REFUSED: list[tuple[Any, Any, str, str]] = [
    (int, "1", "v", "type"),
    (int, True, "v", "type"),
    (int, Decimal("1.5"), "v", "type"),
    (int, TOO_LONG, "v", "range"),
    (float, "1", "v", "type"),
    (float, True, "v", "type"),
    (float, 10**400, "v", "not_finite"),
    (float, Decimal("1E+400"), "v", "not_finite"),
    (float, float("nan"), "v", "not_finite"),
    (Number, "1", "v", "type"),
    (Number, False, "v", "type"),
    (Number, None, "v", "type"),
    (Number, TOO_LONG, "v", "range"),
    (Number, Decimal("1E+1000"), "v", "range"),
    (Number, Decimal("1E+999999999"), "v", "range"),
    (Number, Decimal("1E-999999999"), "v", "range"),
    (Number, Decimal("0." + "1" * 1001), "v", "range"),
    (Number, Decimal("NaN"), "v", "not_finite"),
    (Number, float("inf"), "v", "not_finite"),
    (Annotated[Number, Field(ge=1)], Decimal("0.5"), "v", "range"),
    (Annotated[float, Field(le=10)], Decimal("10.5"), "v", "range"),
    (str, 5, "v", "type"),
    (str, None, "v", "type"),
    (Annotated[str, Field(max_length=2)], "abc", "v", "range"),
    (Annotated[str, Field(pattern="^a")], "b", "v", "range"),
    (bool, 1, "v", "type"),
    (bool, "true", "v", "type"),
    (Colour, "green", "v", "range"),
    (Colour, "RED", "v", "range"),
    (Level, True, "v", "range"),
    (Literal["a", 1], True, "v", "range"),
    (date, "1700000000", "v", "range"),
    (date, "2026-02-30", "v", "range"),
    (date, 20260731, "v", "type"),
    (datetime, "2026-07-31", "v", "range"),
    (list[int], {"0": 1}, "v", "type"),
    (list[int], [1, "2"], "v.1", "type"),
    (set[str], {"a": 1}, "v", "type"),
    (tuple[int, ...], "12", "v", "type"),
    (dict[str, int], {"a": "b"}, "v.a", "type"),
    (int | None, "x", "v", "type"),
    (Point, {"x": 1, "z": 2}, "v.z", "unknown_field"),
    (Point, {}, "v.x", "missing"),
    (Point, [], "v", "type"),
    (Line, {"points": [{"x": 1}, {"x": "1"}]}, "v.points.1.x", "type"),
    (Options, {"depth": 1, "more": 1}, "v.more", "unknown_field"),
    (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cow"}, "v", "range"),
    (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cat"}, "v.lives", "missing"),
]


@pytest.mark.parametrize(("annotation", "value", "field", "kind"), REFUSED)
def test_refused(annotation: Any, value: Any, field: str, kind: str) -> None:
    with pytest.raises(BadArguments) as raised:
        taking(annotation).validate({"v": value})
    assert [(fault.field, fault.kind) for fault in raised.value.faults] == [(field, kind)]


def test_missing_and_unknown_fields_of_the_whole() -> None:
    with pytest.raises(BadArguments) as raised:
        taking(int).validate({"w": 1})
    assert [(f.field, f.kind, f.message) for f in raised.value.faults] == [
        ("v", "missing", "'v' is missing."),
        ("w", "unknown_field", "There is no field 'w'; there is v."),
    ]


HOSTILE: list[Any] = [
    None,
    [],
    "text",
    {"v": "x" * 100_000},
    {"v": "\x00\u202e\ud800"},
    {"\ud800": 1, "v": 1},
    {1: 2},
    {"v" * 100_000: 1, "v": 1},
    {"v": 10**6000},
    {f"k{index}": index for index in range(2_000)},
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("make", [lambda: taking(int), lambda: written({"v": {"type": "integer"}})])
def test_hostile_data_ends_in_short_printable_faults(make: Callable[[], Tool], data: Any) -> None:
    with pytest.raises(BadArguments) as raised:
        make().validate(data)
    assert 1 <= len(raised.value.faults) <= 10
    for fault in raised.value.faults:
        assert len(fault.message) <= 200
        assert fault.message.isprintable()
        assert len(fault.field) <= 80


def test_a_fault_echoes_forty_characters_at_most() -> None:
    with pytest.raises(BadArguments, match=r"'v' must be a whole number; it was \"x{39}…\"\.") as raised:
        taking(int).validate({"v": "x" * 500})
    assert raised.value.faults[0].message.count("x") == 39


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["red", "a", "x", "y", "kind", "cat", "2026-07-31", "points", 10**1000]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["x", "y", "points", "kind", "z"]) | st.text(max_size=3), inner, max_size=3
        )
    ),
    max_leaves=6,
)
KINDS = [taking(annotation) for annotation, _ in GOLDEN.values()]


def judged(one: Tool, value: Any) -> dict[str, JsonValue] | BadArguments:
    try:
        return one.validate({"v": value})
    except BadArguments as error:
        return error


@settings(deadline=None, database=None, derandomize=True, max_examples=40)
@given(VALUES)
def test_any_value_is_refused_or_has_one_canonical_form(value: Any) -> None:
    schemas = [
        from_schema(schema) for schema in (obj({"v": EITHER}), obj({"v": {"type": "number"}}), obj({"v": {}}))
    ]
    for one in (*KINDS, *schemas):
        outcome = judged(one, value)
        if isinstance(outcome, BadArguments):
            assert all(fault.message.isprintable() for fault in outcome.faults)
        else:
            assert repr(one.validate(outcome)) == repr(outcome)


# --- running ------------------------------------------------------------------------------------


def test_run_hands_over_python_values_and_the_context() -> None:
    seen: list[Any] = []

    @tool(effect="none", permission="p")
    def look(where: Point, colour: Colour, ratio: float, here: ToolContext) -> JsonValue:
        """Look."""
        seen.extend([where, colour, ratio, here.idempotency_key])
        return True

    arguments = look.validate({"where": {"x": 1}, "colour": "red", "ratio": 2})
    assert look.run(arguments, context(key="k-9")) is True
    assert seen == [Point(x=1.0), Colour.RED, 2.0, "k-9"]
    assert isinstance(seen[2], float)


def test_a_function_cannot_change_what_was_recorded() -> None:
    @tool(effect="none", permission="p")
    def spoil(items: list[str], table: dict[str, list[int]]) -> JsonValue:
        """Change what it is given."""
        items.append("more")
        table["a"].append(1)
        return None

    arguments = spoil.validate({"items": ["one"], "table": {"a": []}})
    spoil.run(arguments, context())
    assert arguments == {"items": ["one"], "table": {"a": []}}


def test_a_default_is_not_shared_between_calls() -> None:
    @tool(effect="none", permission="p")
    def grow(items: list[int] = []) -> JsonValue:  # noqa: B006
        """Change its default."""
        items.append(1)
        return len(items)

    assert [grow.run({}, context()) for _ in range(2)] == [1, 1]


def test_run_validates_again() -> None:
    with pytest.raises(BadArguments):
        find_book.run({"title": 5}, context())


def test_a_tool_error_carries_code_message_and_details() -> None:
    error = ToolError("conflict", "It changed.", current=[1])
    assert (error.code, error.message, error.details) == ("conflict", "It changed.", {"current": [1]})
    assert error.code in TOOL_CODES


# --- registration -------------------------------------------------------------------------------

UNSUPPORTED: list[tuple[Any, str]] = [
    (object, "any value"),
    (Any, "any value"),
    (list, "any value"),
    (dict, "any value"),
    (list[Any], "any value"),
    (dict[str, Any], "any value"),
    (dict[int, str], "keys are no text"),
    (Decimal, "Decimal"),
    (bytes, "bytes"),
    (Path, "lax-or-strict|function|kind"),
    (complex, "complex"),
    (Callable[[], int], "callable"),
    (Tree, "contains itself"),
    (Aliased, "aliases"),
    (RootModel[int], "own construction"),
    (type("Own", (), {}), "cannot be a schema"),
    (Enum("Ratio", {"HALF": 0.5}), "a choice among"),
    (Literal[Colour.RED], "a choice among"),
]


@pytest.mark.parametrize(("annotation", "text"), UNSUPPORTED)
def test_a_kind_that_json_cannot_carry_is_refused(annotation: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text) as raised:
        taking(annotation)
    assert str(raised.value).startswith("Parameter 'v' of take ")


@pytest.mark.parametrize(
    ("annotation", "default"), [(int, "x"), (str, None), (list[int], object()), (int, True)]
)
def test_a_default_that_does_not_fit_is_refused(annotation: Any, default: Any) -> None:
    with pytest.raises(TypeError, match="Parameter 'v' of take"):
        taking(annotation, default)


def registered(function: Callable[..., Any], **more: Any) -> Tool:
    chosen: dict[str, Any] = {"effect": "none", "permission": "p", **more}
    return tool(**chosen)(function)


def bare() -> JsonValue:
    """Do a thing."""


def test_faulty_functions_are_refused() -> None:
    def positional(*v: int) -> JsonValue:
        """D."""

    def by_keyword(**v: int) -> JsonValue:
        """D."""

    def only_positional(v: int, /) -> JsonValue:
        """D."""

    def unannotated(v):  # pyright: ignore
        """D."""

    def undocumented(v: int) -> JsonValue:
        return v

    def unresolved(v: "Nowhere") -> JsonValue:  # pyright: ignore  # noqa: F821
        """D."""

    def explains_more(v: int) -> JsonValue:
        """D.

        Args:
            w: Not there.
        """

    async def asynchronous() -> JsonValue:
        """D."""

    faulty: list[tuple[Any, str]] = [
        (positional, "without \\* or /"),
        (by_keyword, "without \\* or /"),
        (only_positional, "without \\* or /"),
        (unannotated, "no annotation"),
        (undocumented, "needs a docstring"),
        (unresolved, "Nowhere"),
        (explains_more, "'w'"),
        (asynchronous, "asynchronous"),
    ]
    for function, text in faulty:
        with pytest.raises((TypeError, ValueError), match=text):
            registered(function)


FAULTY_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"name": "no spaces"}, "no tool name"),
    ({"name": "x" * 65}, "no tool name"),
    ({"name": ""}, "no tool name"),
    ({"effect": "write"}, "needs a preview"),
    ({"effect": "delete"}, "unknown effect"),
    ({"trust": "maybe"}, "unknown effect or trust"),
    ({"permission": ""}, "permission label"),
    ({"phrases": (r"do (?P<it>\w+)",)}, "'it'"),
]


@pytest.mark.parametrize(("settings", "text"), FAULTY_SETTINGS)
def test_faulty_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        registered(bare, **settings)


# --- from a JSON schema -------------------------------------------------------------------------


def identity(arguments: dict[str, JsonValue], _: ToolContext) -> JsonValue:
    return arguments


def from_schema(schema: Any, **more: Any) -> Tool:
    chosen: dict[str, Any] = {"name": "given", "description": "Given.", "function": identity, **more}
    return Tool.from_json_schema(parameters=schema, **chosen)


def obj(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def written(properties: dict[str, Any], *, function: Any = identity, **more: Any) -> Tool:
    return from_schema(obj(properties, **more), function=function)


DRAFT_7 = "http://json-schema.org/draft-07/schema#"
INNER = obj({"z": {"type": "string"}})
EITHER = {
    "oneOf": [
        obj({"k": {"const": "a"}, "x": {"type": "integer"}}, required=["k"]),
        obj({"k": {"const": "b"}, "y": {"type": "integer"}}, required=["k"]),
    ]
}
OPEN_UNIT = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
TREE = {"$defs": {"T": obj({"kids": {"type": "array", "items": {"$ref": "#/$defs/T"}}})}}

SCHEMA_ACCEPTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (obj({"a": {"type": "number", "multipleOf": 0.1}}), {"a": Decimal("0.3")}),
    (obj({"a": {"type": "number", "multipleOf": 0.1}}), {"a": 10**300}),
    (obj({"a": {"type": "number", "maximum": 0.3}}), {"a": Decimal("0.3")}),
    (obj({"a": {"type": "number"}}), {"a": 5}),
    (obj({"a": {"enum": [0.5, 1]}}), {"a": Decimal("0.5")}),
    (obj({"a": {"type": "string", "default": "x"}}), {}),
    (obj({}, additionalProperties=True), {"q": 1}),
    (obj({}, additionalProperties={"type": "integer"}), {"q": 1}),
    (obj({"a": obj({}, additionalProperties=True)}), {"a": {"q": 1}}),
    (obj({"a": {"type": "object"}}), {"a": {"free": 1}}),
    (obj({}, patternProperties={"^x": {}}), {"xy": 1}),
    ({"type": "object", "allOf": [obj({"a": {}}), obj({"b": {}})]}, {"a": 1, "b": 2}),
    ({"type": "object", **EITHER}, {"k": "b", "y": 1}),
    (obj({"a": {"$ref": "#/$defs/I"}}, **{"$defs": {"I": INNER}}), {"a": {"z": "x"}}),
    (obj({"t": {"$ref": "#/$defs/T"}}, **TREE), {"t": {"kids": [{"kids": []}]}}),
    (obj({"$ref": {"type": "string"}, "$id": {"type": "string"}}), {"$ref": "http://x", "$id": "y"}),
    (obj({"a": {"pattern": "^\\p{L}+$"}}), {"a": "né"}),
    (
        obj({"a": {"type": "array", "uniqueItems": True}}),
        {"a": [1, True, "1", [1], {"x": 1}, Decimal("0.5")]},
    ),
    (obj({"pattern": {"type": "string"}}), {"pattern": "("}),
    (obj({"a": {"anyOf": [{"prefixItems": [{}]}], "unevaluatedItems": {"type": "string"}}}), {"a": [1, "x"]}),
    (
        {"type": "object", "unevaluatedProperties": {"type": "integer"}, "allOf": [obj({"a": {}})]},
        {"a": "x", "b": 1},
    ),
    (
        {"type": "object", "if": {"required": ["a"]}, "then": obj({"a": {}}), "else": obj({"b": {}})},
        {"b": 1},
    ),
    ({}, {}),
]


@pytest.mark.parametrize(("schema", "data"), SCHEMA_ACCEPTS)
def test_schema_accepts(schema: dict[str, Any], data: dict[str, JsonValue]) -> None:
    made = from_schema(schema)
    assert made.validate(data) == data
    assert made.validate(made.validate(data)) == data


SCHEMA_REFUSES: list[tuple[dict[str, Any], Any, str, str]] = [
    (obj({"a": {"type": "number", "multipleOf": 0.1}}), {"a": Decimal("0.35")}, "a", "range"),
    (obj({"a": {"type": "number", "maximum": 0.3}}), {"a": Decimal("0.30000000000000004")}, "a", "range"),
    (obj({"a": OPEN_UNIT}), {"a": Decimal("1E-400")}, "a", "range"),
    (obj({"a": OPEN_UNIT}), {"a": Decimal("0.99999999999999999999")}, "a", "range"),
    (obj({"a": {"type": "number"}}), {"a": True}, "a", "type"),
    (obj({"a": {"type": "number"}}), {"a": "1"}, "a", "type"),
    (obj({"a": {"type": "number"}}), {"a": float("nan")}, "a", "not_finite"),
    (obj({"a": {"type": "number"}}), {"a": Decimal(f"1{'0' * 400}.5")}, "a", "not_finite"),
    (obj({"a": {"type": "number"}}), {"a": TOO_LONG}, "a", "range"),
    (obj({"a": {"type": "integer"}}), {"a": Decimal("1.5")}, "a", "type"),
    (obj({"a": {"type": "integer"}}), {"a": False}, "a", "type"),
    (obj({"a": {"type": ["string", "null"]}}), {"a": 1}, "a", "type"),
    (obj({"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}), {"a": "x"}, "a", "type"),
    (obj({"a": {"enum": ["x"]}}), {"a": "y"}, "a", "range"),
    (obj({"a": {"const": 1}}), {"a": True}, "a", "range"),
    (obj({"a": {"type": "string", "pattern": "^x"}}), {"a": "y"}, "a", "range"),
    (obj({"a": {"type": "array", "items": {"type": "integer"}}}), {"a": [1, "2"]}, "a.1", "type"),
    (obj({"a": {}}, required=["a"]), {}, "a", "missing"),
    (obj({}), {"q": 1}, "q", "unknown_field"),
    ({}, {"q": 1}, "q", "unknown_field"),
    (obj({"a": INNER}), {"a": {"q": 1}}, "a.q", "unknown_field"),
    (obj({"a": {"type": "array", "items": INNER}}), {"a": [{"q": 1}]}, "a.0.q", "unknown_field"),
    (obj({"a": {"$ref": "#/$defs/I"}}, **{"$defs": {"I": INNER}}), {"a": {"q": 1}}, "a.q", "unknown_field"),
    (obj({"a": {"anyOf": [INNER, {"type": "null"}]}}), {"a": {"q": 1}}, "a.q", "unknown_field"),
    ({"type": "object", "allOf": [obj({"a": {}}), obj({"b": INNER})]}, {"c": 1}, "c", "unknown_field"),
    (
        {"type": "object", "allOf": [obj({"a": {}}), obj({"b": INNER})]},
        {"b": {"q": 1}},
        "b.q",
        "unknown_field",
    ),
    ({"type": "object", "allOf": [obj({"a": {"type": "integer"}})]}, {"a": "x"}, "a", "type"),
    (obj({"a": {"$schema": DRAFT_7, "allOf": [INNER]}}), {"a": {"q": 1}}, "a.q", "unknown_field"),
    ({"type": "object", **EITHER}, {"k": "b", "x": 1}, "", "unknown_field"),
    (
        obj({"a": {"type": "array", "uniqueItems": True}}),
        {"a": [{"x": 1, "y": 2}, {"y": 2, "x": 1}]},
        "a",
        "range",
    ),
    (obj({"a": {"anyOf": [{"prefixItems": [{}]}], "unevaluatedItems": False}}), {"a": [1, 2]}, "a", "range"),
    (obj({}, patternProperties={"^x": {"type": "integer"}}), {"xy": "1"}, "xy", "type"),
    (
        {"type": "object", "unevaluatedProperties": {"type": "integer"}, "allOf": [obj({"a": {}})]},
        {"a": "x", "b": "1"},
        "b",
        "type",
    ),
    (obj({"t": {"$ref": "#/$defs/T"}}, **TREE), {"t": {"kids": [{"q": 1}]}}, "t.kids.0.q", "unknown_field"),
    (
        {"$schema": DRAFT_7, "allOf": [obj({"a": {}})]},
        {"q": 1},
        "q",
        "unknown_field",
    ),
]


@pytest.mark.parametrize(("schema", "data", "field", "kind"), SCHEMA_REFUSES)
def test_schema_refuses(schema: dict[str, Any], data: Any, field: str, kind: str) -> None:
    with pytest.raises(BadArguments) as raised:
        from_schema(schema).validate(data)
    assert [(fault.field, fault.kind) for fault in raised.value.faults] == [(field, kind)]


FAULTY_SCHEMAS: list[tuple[Any, str]] = [
    (obj({"a": {"$ref": "https://example.org/s.json"}}), "only #/"),
    (obj({"a": {"$ref": "file:///etc/passwd"}}), "only #/"),
    (obj({"a": {"allOf": [{"$ref": "other.json#/x"}]}}), "only #/"),
    (obj({"a": {"$ref": "#/$defs/none"}}), "only #/"),
    (obj({"a": {"$id": "https://example.org/", "type": "string"}}), "second \\$id"),
    (obj({"a": {"type": "colour"}}), "Not a JSON schema"),
    (obj({"a": {"type": "string", "pattern": "("}}), "Not a JSON schema|pattern"),
    (obj({"a": {"pattern": "(?=a)b"}}), "linear time"),
    (obj({"a": {"pattern": "(a)\\1"}}), "linear time"),
    (obj({}, patternProperties={"(?<!a)b": {}}), "linear time"),
    ({"type": "array"}, "of type object"),
    ([1], "one JSON object"),
    ({"enum": {1, 2}}, "one JSON object"),
    ({"maximum": float("nan")}, "one JSON object"),
]


@pytest.mark.parametrize(("schema", "text"), FAULTY_SCHEMAS)
def test_a_faulty_schema_is_refused_at_registration(schema: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        from_schema(schema)


def test_the_schema_of_the_caller_is_neither_changed_nor_shared() -> None:
    schema = obj({"a": obj({"b": {"type": "number", "multipleOf": 0.1}})}, required=["a"])
    before = repr(schema)
    made = from_schema(schema)
    assert repr(schema) == before
    assert made.parameters == schema
    schema["properties"]["a"]["properties"]["evil"] = {"type": "string"}
    schema["required"].clear()
    with pytest.raises(BadArguments):
        made.validate({"a": {"evil": "x"}})
    assert "evil" not in repr(made.schema)
    assert made.has_required


def test_the_function_gets_floats_of_its_own() -> None:
    made = written({"a": {"type": "array"}})
    arguments = made.validate({"a": [Decimal("0.5"), 2]})
    assert arguments == {"a": [Decimal("0.5"), 2]}
    given: Any = made.run(arguments, context())
    assert repr(given) == "{'a': [0.5, 2]}"
    given["a"].append(3)
    assert arguments == {"a": [Decimal("0.5"), 2]}


def test_deep_arguments_are_bad_arguments() -> None:
    made = from_schema(obj({"t": {"$ref": "#/$defs/T"}}, **TREE))
    deep: dict[str, Any] = {}
    for _ in range(50_000):
        deep = {"kids": [deep]}
    with pytest.raises(BadArguments, match="simpler"):
        made.validate({"t": deep})


def test_settings_that_are_derived() -> None:
    reading, computing, writing = (
        written({}).effect,
        *(from_schema({}, effect=e) for e in ("read", "write")),
    )
    assert reading == "none"
    assert (computing.trust, computing.permission) == ("untrusted_content", "given")
    assert (writing.trust, writing.preview) == ("trusted", "Run the tool given.")
    with pytest.raises(ValueError, match="no tool name"):
        from_schema({}, name="a b")


# --- what is shown is what runs -----------------------------------------------------------------

CLOSE_TO_A_FLOAT = ["1E-400", "0.99999999999999999999", "9007199254740993.5", "1E+22", "0.1", "-0.0", "2.50"]


@pytest.mark.parametrize("text", CLOSE_TO_A_FLOAT)
@pytest.mark.parametrize("by_schema", [True, False])
def test_a_number_is_shown_as_the_function_gets_it(text: str, by_schema: bool) -> None:
    seen: list[Any] = []

    @tool(effect="none", permission="p")
    def annotated(v: float) -> JsonValue:
        """Take a float."""
        seen.append(v)
        return None

    def given(arguments: dict[str, JsonValue], _: ToolContext) -> JsonValue:
        seen.append(arguments["v"])
        return None

    one = written({"v": {"type": "number"}}, function=given) if by_schema else annotated
    shown = one.validate({"v": Decimal(text)})["v"]
    one.run({"v": shown}, context())
    assert isinstance(shown, int | Decimal)
    assert shown == (Decimal(repr(seen[0])) if isinstance(seen[0], float) else seen[0])


def test_the_range_of_a_float_holds_for_what_runs() -> None:
    one = taking(Annotated[float, Field(gt=0, lt=1)])
    for text in CLOSE_TO_A_FLOAT[:2]:
        with pytest.raises(BadArguments):
            one.validate({"v": Decimal(text)})


def test_a_check_that_changes_its_own_outcome_is_refused() -> None:
    with pytest.raises(BadArguments, match="'v' cannot be given: the tool changes it"):
        taking(Annotated[str, AfterValidator(lambda text: text + "!")]).validate({"v": "x"})
    assert taking(Annotated[str, AfterValidator(str.upper)]).validate({"v": "x"}) == {"v": "X"}


# --- bounded work -------------------------------------------------------------------------------

NODE = {"$ref": "#/$defs/N"}
SLOW_PATTERN = "^([a-z0-9]+[-.]?)+$"
SLOW_TEXT = "a" * 28 + "!"
MANY: list[JsonValue] = [{"i": number} for number in range(1_600)]


def recursive(keyword: str) -> dict[str, Any]:
    node = obj({"k": NODE}, additionalProperties=False)
    first = {**node, "required": ["z"]}
    parts: Any = (
        {"required": ["k"], "properties": {"k": {"not": NODE}}} if keyword == "not" else [first, node]
    )
    body = {**node, "not": parts} if keyword == "not" else {keyword: parts}
    return obj({"t": NODE}, **{"$defs": {"N": body}})


def nested(depth: int, leaf: Any) -> dict[str, Any]:
    for _ in range(depth):
        leaf = {"k": leaf}
    return {"t": leaf}


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf", "not"])
def test_a_deep_value_of_a_recursive_schema_is_judged_soon(keyword: str) -> None:
    one = from_schema(recursive(keyword))
    started = perf_counter()
    assert one.validate(nested(25, {})) == nested(25, {})
    assert perf_counter() - started < 2


EACH_AGAIN: dict[str, Any] = {"allOf": [{"items": {}}] * 1_500}
LONG_CHOICE = {"items": {"oneOf": [False] * 1_000 + [{"minimum": 0}]}}
BOUNDED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (recursive("anyOf"), nested(25, {"bad": 1})),
    (recursive("oneOf"), nested(25, 5)),
    (obj({"a": EACH_AGAIN}), {"a": [1] * 8_000}),
    (obj({"a": LONG_CHOICE}), {"a": list(range(-1, 8_000))}),
    (obj({"a": {"type": "array", "uniqueItems": True}}), {"a": [*MANY, MANY[0]]}),
    (obj({"a": {"pattern": SLOW_PATTERN}}), {"a": SLOW_TEXT}),
    (obj({}, patternProperties={SLOW_PATTERN: {}}), {SLOW_TEXT: 1}),
    (
        {"type": "object", "allOf": [obj({}, patternProperties={SLOW_PATTERN: {}})]},
        {SLOW_TEXT: 1},
    ),
]


@pytest.mark.parametrize(("schema", "data"), BOUNDED, ids=range(len(BOUNDED)))
def test_no_schema_makes_the_check_long(schema: dict[str, Any], data: dict[str, Any]) -> None:
    one = from_schema(schema)
    started = perf_counter()
    with pytest.raises(BadArguments):
        one.validate(data)
    assert perf_counter() - started < 3


def test_what_is_too_complicated_is_told_in_one_sentence() -> None:
    one, ones = written({"a": EACH_AGAIN}), list[JsonValue]([1] * 8_000)
    with pytest.raises(BadArguments, match="too complicated to check") as raised:
        one.validate({"a": ones})
    assert [(fault.field, fault.kind) for fault in raised.value.faults] == [("", "range")]


def test_many_different_items_are_unique() -> None:
    assert written({"a": {"uniqueItems": True}}).validate({"a": MANY}) == {"a": MANY}


def test_schemas_that_share_parts_many_times_over_are_registered_soon() -> None:
    parts: dict[str, Any] = {f"D{n}": {"allOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 2} for n in range(40)}
    one = written({"a": {"$ref": "#/$defs/D0"}}, **{"$defs": {**parts, "D40": {"type": "integer"}}})
    assert one.validate({"a": 1}) == {"a": 1}


class Pythonic(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    word: Annotated[str, Field(pattern=SLOW_PATTERN)]


class LookingAhead(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    word: Annotated[str, Field(pattern="(?=a)b")]


def test_the_patterns_of_a_function_are_matched_in_linear_time() -> None:
    started = perf_counter()
    with pytest.raises(BadArguments, match=r"v\.word"):
        taking(Pythonic).validate({"v": {"word": SLOW_TEXT}})
    assert perf_counter() - started < 1
    for annotation in (LookingAhead, Annotated[str, Field(pattern="(?=a)b")]):
        with pytest.raises(TypeError, match="linear time"):
            taking(annotation)
    with pytest.raises(TypeError, match="as text"):
        taking(Annotated[str, Field(pattern=re.compile("a"))])


# --- words --------------------------------------------------------------------------------------

WORDS: list[tuple[Tool, Any, str]] = [
    (taking(Annotated[str, Field(min_length=1)]), "", "at least 1 character long"),
    (taking(Annotated[str, Field(min_length=2)]), "", "at least 2 characters long"),
    (taking(Annotated[list[int], Field(max_length=1)]), [1, 2], "at most 1 item long"),
    (written({"v": {"minLength": 1}}), "", "at least 1 character long"),
    (written({"v": {"minItems": 2}}), [], "at least 2 items long"),
    (written({"v": {"maxItems": 1}}), [1, 2], "at most 1 item long"),
]


@pytest.mark.parametrize(("one", "value", "text"), WORDS)
def test_one_is_singular(one: Tool, value: Any, text: str) -> None:
    with pytest.raises(BadArguments, match=f"'v' must be {text};"):
        one.validate({"v": value})


def test_the_decorator_without_brackets_says_how_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"^Write @tool\(effect=\.\.\., permission=\.\.\.\)"):
        tool(bare)


# --- imports ------------------------------------------------------------------------------------


def test_importing_the_contract_loads_no_tool_and_nothing_heavy() -> None:
    code = (
        "import sys, tools.base\n"
        "heavy = {'jsonschema', 'pydantic', 'openai', 'streamlit', 'requests', 'agent'} & set(sys.modules)\n"
        "tools_ = {name for name in sys.modules if name.startswith('tools.')}\n"
        "print(sorted(heavy), sorted(tools_))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    contract = ["tools.base", "tools.json_schema", "tools.values"]
    assert done.stdout.strip() == f"[] {contract}"


def test_a_validator_that_breaks_refuses_the_call() -> None:
    def broken(text: str) -> str:
        raise KeyError("/secret/path")

    @tool(effect="none", permission="text")
    def shout(word: Annotated[str, AfterValidator(broken)]) -> JsonValue:
        """Write a word in capitals."""
        return word.upper()

    with pytest.raises(BadArguments) as caught:
        shout.validate({"word": "a"})
    assert [fault.message for fault in caught.value.faults] == ["The arguments could not be checked."]
