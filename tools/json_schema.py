"""Validation by a JSON schema that somebody else wrote (draft 2020-12), for `Tool.from_json_schema`.

The package `jsonschema` is imported only when such a tool is made. Nothing is ever fetched: the
registry of references is empty, and a reference that leaves the schema is refused at registration.
"""

import copy
import decimal
import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
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
    dotted,
    exact,
    is_number,
    missing,
    unfit,
    unknown_field,
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

    Raises ValueError where the schema is none, is not for an object, or refers to something outside.
    """
    from jsonschema.exceptions import SchemaError

    if schema.get("type") != "object":
        raise ValueError("A tool's schema must be of type object.")
    kind = _kind_of_validator()
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"Not a JSON schema (draft 2020-12): {clip(error.message, 120)}") from None
    _check_nodes(schema)
    validator = kind(_closed(schema), registry=_no_documents())
    return lambda data: _validate(validator, data)


def _kind_of_validator() -> Any:
    """Draft 2020-12 with JSON's numbers: true is none, a Decimal is one. The package is untyped."""
    import jsonschema.validators as package

    draft: Any = package.Draft202012Validator
    extend: Any = package.extend  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    checker = draft.TYPE_CHECKER.redefine_many({"integer": _is_integer, "number": _is_number})
    return extend(draft, type_checker=checker)


def _no_documents() -> Any:
    """A registry that holds nothing and fetches nothing."""
    import referencing

    make: Any = referencing.Registry
    return make()


def _is_integer(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: object, value: object) -> bool:
    return is_number(value)


# --- the schema, made strict --------------------------------------------------------------------


def _check_nodes(schema: Schema) -> None:
    for node in _nodes(schema):
        for target in (node.get(keyword) for keyword in _REFERENCES):
            if isinstance(target, str) and _pointed(schema, target) is None:
                raise ValueError(f"The schema refers to {target[:80]!r}; only #/... inside it is followed.")
        if node is not schema and isinstance(node.get("$id"), str):
            raise ValueError("The schema holds a second $id; only one document is supported.")
        _check_pattern(node.get("pattern"))
        for pattern in cast(Schema, node.get("patternProperties") or {}):
            _check_pattern(pattern)


def _check_pattern(pattern: Any) -> None:
    try:
        re.compile(pattern if isinstance(pattern, str) else "")
    except re.error:
        raise ValueError(f"The schema holds a pattern that cannot be read: {pattern[:80]!r}.") from None


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


def _values(value: Any) -> list[Any]:
    return list(cast(Schema, value).values()) if isinstance(value, dict) else []


def named_fields(schema: Schema, root: Schema, seen: tuple[int, ...] = ()) -> dict[str, None]:
    """The names of fields that a schema mentions for the value it judges, in order."""
    if id(schema) in seen:
        return {}
    names: dict[str, None] = dict.fromkeys(cast(Schema, schema.get("properties", {})))
    targets = [
        _pointed(root, schema[keyword]) for keyword in _REFERENCES if isinstance(schema.get(keyword), str)
    ]
    for part in (*_parts(schema), *filter(None, targets), *_tests(schema)):
        names |= named_fields(part, root, (*seen, id(schema)))
    return names


def _tests(schema: Schema) -> list[Schema]:
    return [cast(Schema, schema["if"])] if isinstance(schema.get("if"), dict) else []


# --- judging arguments --------------------------------------------------------------------------


def _validate(validator: Any, data: Mapping[str, JsonValue]) -> Arguments:
    """Whatever the arguments hold, the outcome is their canonical form or `BadArguments`."""
    faults: list[FieldFault] = []
    try:
        value = _normal(data, (), faults)
        if not faults:
            with decimal.localcontext(prec=_PRECISION, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
                faults = _faults(list(islice(validator.iter_errors(value), MAX_FAULTS)), validator.schema)
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
    try:
        number = exact(value)
        if isinstance(number, Decimal) and float(number) in (float("inf"), float("-inf")):
            raise BadNumber("not_finite", "a finite number")
        return number
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
    return _WANTED.get(keyword, "what the schema says under " + str(keyword)).format(value)


def _types(value: Any) -> str:
    names = cast(list[str], value) if isinstance(value, list) else [value]
    return " or ".join(_TYPES.get(str(name), str(name)) for name in names)
