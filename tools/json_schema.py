"""Validation by a JSON schema that somebody else wrote (draft 2020-12), for `Tool.from_json_schema`.

The package `jsonschema` is imported only when such a tool is made. Nothing is ever fetched: the
registry of references is empty, and a reference that leaves the schema is refused at registration.
Whatever the schema and the arguments, the work is bounded: keywords are counted, patterns are linear.
"""

import copy
import decimal
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any, cast

from tools.values import (
    MAX_DIGITS,
    MAX_FAULTS,
    BadArguments,
    BadNumber,
    FaultKind,
    FieldFault,
    JsonValue,
    clip,
    counted,
    dotted,
    exact,
    is_number,
    missing,
    unfit,
    unknown_field,
    with_floats,
)

Schema = dict[str, Any]
Arguments = dict[str, JsonValue]

_PLACES = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "contains")
_MAPS_OF_PLACES = ("properties", "patternProperties")
_IN_PLACE = ("then", "else")
_LISTS_IN_PLACE = ("allOf", "anyOf", "oneOf")
_COMBINING = (*_IN_PLACE, *_LISTS_IN_PLACE, "dependentSchemas", "$ref", "$dynamicRef", "if")
_REFERENCES = ("$ref", "$dynamicRef")


def own_copy(schema: Mapping[str, Any]) -> Schema:
    """A copy that shares nothing with the caller's, checked to be JSON. Raises TypeError or ValueError."""
    try:
        return {"type": "object", **json.loads(json.dumps(schema, allow_nan=False))}
    except (TypeError, ValueError, RecursionError):
        raise TypeError("A tool's schema must be one JSON object.") from None


def make_validator(schema: Schema) -> Callable[[Mapping[str, JsonValue]], Arguments]:
    """A function from arguments to their canonical form, which raises `BadArguments` and nothing else.

    Raises ValueError where the schema is none, is not for an object, refers to something outside, or
    holds a pattern that cannot be matched in linear time.
    """
    import jsonschema.validators as package
    import referencing
    from jsonschema.exceptions import SchemaError

    if schema.get("type") != "object":
        raise ValueError("A tool's schema must be of type object.")
    draft: Any = package.Draft202012Validator  # the package is untyped
    try:
        draft.check_schema(schema, format_checker=None)
    except SchemaError as error:
        raise ValueError(f"Not a JSON schema (draft 2020-12): {clip(error.message, 120)}") from None
    _check_references(schema)
    strict = _closed(schema)
    sizes: dict[int, int] = {}
    _measure(strict, sizes)
    patterns = {text: _linear(text) for text in _patterns(schema)}
    kind, nothing = _bounded(draft), cast(Any, referencing.Registry)()

    def validate(data: Mapping[str, JsonValue]) -> Arguments:
        budget = _Budget(strict, patterns, sizes)
        return _validate(kind(strict, registry=nothing, format_checker=budget), data)

    return validate


# --- the schema, made strict --------------------------------------------------------------------


def _check_references(schema: Schema) -> None:
    for node in _nodes(schema):
        for target in (node.get(keyword) for keyword in _REFERENCES):
            if isinstance(target, str) and _pointed(schema, target) is None:
                raise ValueError(f"The schema refers to {target[:80]!r}; only #/... inside it is followed.")
        if node is not schema and isinstance(node.get("$id"), str):
            raise ValueError("The schema holds a second $id; only one document is supported.")


def _patterns(schema: Schema) -> Iterator[str]:
    for node in _nodes(schema):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        yield from _object(node.get("patternProperties"))


def _linear(pattern: str) -> Any:
    """A pattern as pydantic's Rust engine reads it, whose time grows only with the text."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        message = f"The schema holds a pattern that cannot be checked in linear time: {pattern[:80]!r}."
        raise ValueError(f"{message} Look-around and references back are not supported.") from None


def _nodes(value: Any) -> Iterator[Schema]:
    """Every object in the schema, also where no schema stands: a reference may point anywhere."""
    if isinstance(value, dict):
        yield cast(Schema, value)
    if isinstance(value, dict | list):
        for item in cast(Any, value.values() if isinstance(value, dict) else value):  # pyright: ignore[reportUnknownMemberType]
            yield from _nodes(item)


def _pointed(schema: Schema, target: str) -> Schema | None:
    """What a reference such as #/$defs/name points at, if it points inside."""
    if target != "#" and not target.startswith("#/"):
        return None
    node: Any = schema
    for part in target.split("/")[1:]:
        node = _step(node, part.replace("~1", "/").replace("~0", "~"))
    return cast(Schema, node) if isinstance(node, dict) else None


def _step(node: Any, part: str) -> Any:
    if isinstance(node, list):
        items = cast(list[Any], node)
        return items[int(part)] if part.isdecimal() and int(part) < len(items) else None
    return cast(Schema, node).get(part) if isinstance(node, dict) else None


def _closed(schema: Schema) -> Schema:
    """The schema with exact numbers, in which an object takes no fields but those it names.

    `additionalProperties` sees only the fields named beside it. Where an object is put together from
    several schemas, `unevaluatedProperties` is set on the whole instead, and its parts stay open.
    """
    strict = _exact(copy.deepcopy(schema))
    for node in _nodes(strict):  # the package would change to that draft, and lose what is set here
        if isinstance(node.get("$schema"), str):
            del node["$schema"]
    _close_place(strict, strict, is_root=True)
    return strict


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in cast(Schema, value).items()}
    if isinstance(value, list):
        return [_exact(item) for item in cast(list[Any], value)]
    return Decimal(repr(value)) if isinstance(value, float) else value


def _close_place(node: Any, root: Schema, *, is_root: bool = False) -> None:
    """Close a schema that stands for a value of its own: the root, a property, an item."""
    if not isinstance(node, dict):
        return
    schema = cast(Schema, node)
    _close_inside(schema, root)
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return
    if is_root or named_fields(schema, root):
        combined = any(keyword in schema for keyword in _COMBINING)
        schema["unevaluatedProperties" if combined else "additionalProperties"] = False


def _close_inside(schema: Schema, root: Schema) -> None:
    for keyword in _PLACES:
        _close_place(schema.get(keyword), root)
    for keyword in _MAPS_OF_PLACES:
        for node in _values(schema.get(keyword)):
            _close_place(node, root)
    for node in _items(schema.get("prefixItems")):
        _close_place(node, root)
    for node in _parts(schema):
        _close_inside(node, root)
    for keyword in ("$defs", "definitions"):
        for node in _values(schema.get(keyword)):
            if isinstance(node, dict):
                _close_inside(cast(Schema, node), root)


def _parts(schema: Schema) -> Iterator[Schema]:
    """The schemas that judge the same value as this one. `if` and `not` stay as they were written."""
    nodes = [schema.get(keyword) for keyword in _IN_PLACE]
    for keyword in _LISTS_IN_PLACE:
        nodes += _items(schema.get(keyword))
    nodes += _values(schema.get("dependentSchemas"))
    yield from (cast(Schema, node) for node in nodes if isinstance(node, dict))


def _items(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _object(value: Any) -> Schema:
    return cast(Schema, value) if isinstance(value, dict) else {}


def _values(value: Any) -> list[Any]:
    return list(_object(value).values())


def named_fields(schema: Schema, root: Schema, seen: set[int] | None = None) -> dict[str, None]:
    """The names of fields that a schema mentions for the value it judges, in order."""
    seen = set() if seen is None else seen
    if id(schema) in seen:
        return {}
    seen.add(id(schema))
    names: dict[str, None] = dict.fromkeys(_object(schema.get("properties")))
    targets = [
        _pointed(root, schema[keyword]) for keyword in _REFERENCES if isinstance(schema.get(keyword), str)
    ]
    for part in (*_parts(schema), *filter(None, targets), *_tests(schema)):
        names |= named_fields(part, root, seen)
    return names


def _tests(schema: Schema) -> list[Schema]:
    return [cast(Schema, schema["if"])] if isinstance(schema.get("if"), dict) else []


# --- the package's keywords, bounded ------------------------------------------------------------

MAX_STEPS = 50_000
_CHARS_A_STEP = 500

# What visits each item of a value, or each of its own parts, also where nothing is said of them.
_EACH_ITEM = ("uniqueItems", "propertyNames", *_PLACES)
_OPEN_FIELDS = ("additionalProperties", "unevaluatedProperties")
_OPEN_ITEMS = ("items", "contains", "unevaluatedItems")
_EACH_PART = (
    "properties",
    "required",
    "prefixItems",
    "dependentSchemas",
    "dependentRequired",
    *_LISTS_IN_PLACE,
)

TOO_COMPLICATED = "The arguments are too complicated to check; send fewer or simpler ones."


class _TooComplicated(Exception):
    pass


@dataclass(slots=True)
class _Budget:
    """What is left for one validation: a schema may ask for exponential work on a small value.

    What a keyword found good once is not judged again, so a valid tree of any depth costs little. It
    travels in the validator's field for a format checker, the one that nothing else needs here.
    """

    root: Schema
    patterns: Mapping[str, Any]
    sizes: Mapping[int, int]
    value_sizes: dict[int, int] = field(default_factory=dict[int, int])
    good: set[tuple[str, int, int]] = field(default_factory=set[tuple[str, int, int]])
    left: int = MAX_STEPS

    def visit(self, keyword: str, rule: Any, value: Any) -> None:
        chars = self.sizes.get(id(rule), 0)
        chars += len(value) if isinstance(value, str) else self.value_sizes.get(id(value), 0)
        parts = len(rule) if keyword in _EACH_PART else 0
        parts += len(value) if keyword in _EACH_ITEM and isinstance(value, list | dict) else 0  # pyright: ignore[reportUnknownArgumentType]
        self.spend(1 + parts + chars // _CHARS_A_STEP)

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _TooComplicated

    def matches(self, pattern: str, text: str) -> bool:
        self.spend(1 + len(text) // _CHARS_A_STEP)
        return self.patterns[pattern].isinstance_python(text)


def _measure(value: Any, sizes: dict[int, int]) -> int:
    """About how many characters a value takes in a message of the package; lists and objects are kept."""
    if not isinstance(value, list | dict):
        return len(value) if isinstance(value, str) else 8
    names = sum(map(len, _object(value)))
    total = names + sum(2 + _measure(item, sizes) for item in _items(value) or _values(value))
    sizes[id(cast(object, value))] = total
    return total


def _bounded(draft: Any) -> Any:
    """Draft 2020-12 in which each keyword counts, and numbers are JSON's: true is none, a Decimal is one."""
    import jsonschema.validators as package

    own: dict[str, Any] = {
        "pattern": _judge_pattern,
        "patternProperties": _judge_pattern_properties,
        "additionalProperties": _judge_additional,
        "unevaluatedProperties": partial(_judge_unevaluated, dict),
        "unevaluatedItems": partial(_judge_unevaluated, list),
        "uniqueItems": _judge_unique,
        "format": _judge_nothing,
    }
    judges = {keyword: _counted(keyword, judge) for keyword, judge in {**draft.VALIDATORS, **own}.items()}
    checker = draft.TYPE_CHECKER.redefine_many({"integer": _is_integer, "number": _is_number})
    extend: Any = package.extend  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return extend(draft, validators=judges, type_checker=checker)


def _is_integer(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: object, value: object) -> bool:
    return is_number(value)


def _counted(keyword: str, judge: Any) -> Any:
    def visit(validator: Any, rule: Any, value: Any, schema: Schema) -> Iterator[Any]:
        budget = validator.format_checker
        budget.visit(keyword, rule, value)
        place = (keyword, id(schema), id(value))
        if place in budget.good:
            return
        found = False
        for error in judge(validator, rule, value, schema) or ():
            found = True
            yield error
        if not found:
            budget.good.add(place)

    return visit


def _error() -> Any:
    """A fault of the keyword at work: the package adds which, and `_told` finds the words."""
    from jsonschema.exceptions import ValidationError

    return ValidationError("")


def _judge_nothing(*_: object) -> tuple[()]:
    return ()


def _judge_pattern(validator: Any, pattern: str, value: Any, _: Schema) -> Iterator[Any]:
    if isinstance(value, str) and not validator.format_checker.matches(pattern, value):
        yield _error()


def _judge_pattern_properties(validator: Any, rules: Schema, value: Any, _: Schema) -> Iterator[Any]:
    for name, item in _object(value).items():
        for pattern, rule in rules.items():
            if validator.format_checker.matches(pattern, name):
                yield from validator.descend(item, rule, path=name)


def _judge_additional(validator: Any, rule: Any, value: Any, schema: Schema) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from _judge_rest(validator, rule, value, _named(validator, cast(Schema, value), schema))


def _judge_unevaluated(kind: type, validator: Any, rule: Any, value: Any, schema: Schema) -> Iterator[Any]:
    if isinstance(value, kind):
        yield from _judge_rest(validator, rule, value, _evaluated(validator, value, schema))


def _judge_rest(validator: Any, rule: Any, value: Any, seen: set[Any]) -> Iterator[Any]:
    rest = [(place, item) for place, item in _pairs(value) if place not in seen]
    if rule is False:
        yield from [_error()] if rest else []
        return
    for place, item in rest:
        yield from validator.descend(item, rule, path=place)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    return _object(value).items() if isinstance(value, dict) else enumerate(_items(value))


def _named(validator: Any, value: Schema, schema: Schema) -> set[Any]:
    """The fields that `properties` and `patternProperties` of this very schema speak of."""
    patterns = _object(schema.get("patternProperties"))
    matches = validator.format_checker.matches
    named = _object(schema.get("properties"))
    return {name for name in value if name in named or any(matches(pattern, name) for pattern in patterns)}


def _evaluated(validator: Any, value: Any, schema: Any) -> set[Any]:
    """The fields or indexes that a schema has judged, together with those parts of it that hold."""
    if not isinstance(schema, dict):
        return set()
    rules = cast(Schema, schema)
    is_object = isinstance(value, dict)
    first = range(len(_items(rules.get("prefixItems"))))
    seen = _named(validator, _object(value), rules) if is_object else set(first)
    for keyword in _OPEN_FIELDS if is_object else _OPEN_ITEMS:
        if keyword in rules:
            seen |= {place for place, item in _pairs(value) if _holds(validator, item, rules[keyword])}
    for part in _holding(validator, value, rules):
        seen |= _evaluated(validator, value, part)
    return seen


def _holding(validator: Any, value: Any, schema: Schema) -> Iterator[Any]:
    """The parts of a schema that judge the same value and find it good."""
    validator.format_checker.spend(1)
    for keyword in _REFERENCES:
        if keyword in schema:
            yield _pointed(validator.format_checker.root, schema[keyword])
    for keyword in _LISTS_IN_PLACE:
        yield from (part for part in _items(schema.get(keyword)) if _holds(validator, value, part))
    if isinstance(value, dict):
        dependent = _object(schema.get("dependentSchemas"))
        yield from (part for name, part in dependent.items() if name in value)
    if "if" in schema and _holds(validator, value, schema["if"]):
        yield from (schema["if"], schema.get("then"))
    elif "if" in schema:
        yield schema.get("else")


def _holds(validator: Any, value: Any, schema: Any) -> bool:
    return next(validator.descend(value, schema), None) is None


def _judge_unique(_: Any, rule: bool, value: Any, __: Schema) -> Iterator[Any]:
    if rule and isinstance(value, list):
        texts = [json.dumps(with_floats(item), sort_keys=True) for item in cast(list[JsonValue], value)]
        if len(set(texts)) < len(texts):
            yield _error()


# --- judging arguments --------------------------------------------------------------------------


def _validate(validator: Any, data: Mapping[str, JsonValue]) -> Arguments:
    """Whatever the arguments hold, the outcome is their canonical form or `BadArguments`."""
    faults: list[FieldFault] = []
    try:
        value = _normal(data, (), faults)
        if not faults:
            _measure(value, validator.format_checker.value_sizes)
            with decimal.localcontext(prec=_PRECISION, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
                faults = _faults(list(islice(validator.iter_errors(value), MAX_FAULTS)), validator.schema)
    except _TooComplicated:
        raise BadArguments([FieldFault("", "range", TOO_COMPLICATED)]) from None
    except (RecursionError, ArithmeticError, ValueError, TypeError, LookupError):
        raise BadArguments([unfit("", "range", "simpler: these cannot be judged", data)]) from None
    if faults:
        raise BadArguments(faults[:MAX_FAULTS])
    return cast(Arguments, value)


# A remainder is exact only with room for every digit that a number may have before and after the point.
_PRECISION = 3 * MAX_DIGITS


def _normal(value: Any, path: tuple[Any, ...], faults: list[FieldFault]) -> JsonValue:
    """A copy with canonical numbers; what is no JSON is noted as a fault."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float | Decimal):
        return _normal_number(value, path, faults)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        return {str(key): _normal(item, (*path, key), faults) for key, item in pairs}
    if isinstance(value, list | tuple):
        items = cast(list[Any], value)
        return [_normal(item, (*path, index), faults) for index, item in enumerate(items)]
    faults.append(unfit(dotted(path), "type", "a JSON value", value))
    return None


def _normal_number(
    value: int | float | Decimal, path: tuple[Any, ...], faults: list[FieldFault]
) -> JsonValue:
    """The function gets a float for what is no integer, so that float is what is judged and shown."""
    try:
        number = exact(value)
        return exact(float(number)) if isinstance(number, Decimal) else number
    except BadNumber as error:
        faults.append(unfit(dotted(path), error.kind, error.want, value))
        return None


def _faults(errors: list[Any], root: Schema) -> list[FieldFault]:
    """Faults by field. An object counts as closed by its parts only when they all hold, so what
    `unevaluatedProperties` says beside another fault is mostly an echo of it."""
    plain = [error for error in errors if error.validator != "unevaluatedProperties"]
    found = [fault for error in plain or errors for fault in _told(error, root)]
    return list({(fault.field, fault.kind): fault for fault in found}.values())


def _told(error: Any, root: Schema) -> list[FieldFault]:
    path, value = tuple(error.absolute_path), error.instance
    match error.validator:
        case "required":
            return [missing(dotted((*path, name))) for name in error.validator_value if name not in value]
        case "additionalProperties" | "unevaluatedProperties":
            known = list(named_fields(error.schema, root))
            unknown = [name for name in value if name not in known][:MAX_FAULTS]
            return [unknown_field(dotted((*path, name)), known) for name in unknown] or [
                unfit(dotted(path), "unknown_field", "an object with the fields of one form only", value)
            ]
        case _:
            return [unfit(dotted(path), _kind(error), _want(error), value)]


def _kind(error: Any) -> FaultKind:
    """Alternatives that all failed on the type of this very value are one fault of type."""
    parts: list[Any] = error.context or []
    if error.validator == "anyOf" and parts and all(p.validator == "type" and not p.path for p in parts):
        return "type"
    return "type" if error.validator == "type" else "range"


_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_WANTED = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "greater than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters long",
    "maxLength": "at most {} characters long",
    "minItems": "at least {} items long",
    "maxItems": "at most {} items long",
    "pattern": "text that matches {}",
    "uniqueItems": "a list without repetitions",
    "anyOf": "one of the forms in the schema",
    "oneOf": "exactly one of the forms in the schema",
}


def _want(error: Any) -> str:
    keyword, value = error.validator, error.validator_value
    if keyword == "type":
        return _types(value)
    if _kind(error) == "type":
        return " or ".join(dict.fromkeys(_types(part.validator_value) for part in error.context))
    if keyword in ("enum", "const"):
        values = cast(list[Any], value) if keyword == "enum" else [value]
        return ("one of " if len(values) > 1 else "") + ", ".join(str(one) for one in values)
    return counted(_WANTED.get(keyword, "what the schema says under " + str(keyword)), value).format(value)


def _types(value: Any) -> str:
    names = cast(list[str], value) if isinstance(value, list) else [value]
    return " or ".join(_TYPES.get(str(name), str(name)) for name in names)
