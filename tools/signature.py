"""From a function's signature and docstring to a strict validator and a JSON schema.

Pydantic's strict mode for Python objects is what is wanted for str, int and bool ("1" is no number,
true is no 1), but it refuses a Decimal where a float stands and text where a date or an enum stands,
which is all that JSON can send. So the core schema that pydantic derives is rewritten: kinds that
are known get the strictness of JSON, and every other kind is refused when the tool is registered.
"""

import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import (
    CoreSchema,
    PydanticCustomError,
    SchemaError,
    SchemaValidator,
    ValidationError,
    core_schema,
)

from tools.values import (
    ECHO_CHARS,
    MAX_FAULTS,
    BadArguments,
    BadNumber,
    FaultKind,
    FieldFault,
    JsonValue,
    canonical,
    clip,
    counted,
    dotted,
    echo,
    exact,
    is_number,
    missing,
    unfit,
    unknown_field,
    with_floats,
)

Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a tool is called with: `parameters` is the JSON schema, `injected` names the context."""

    description: str
    parameters: dict[str, Any]
    injected: tuple[str, ...]
    validator: SchemaValidator

    def values(self, data: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Python values, newly made, defaults filled in. Raises `BadArguments`."""
        try:
            return self.validator.validate_python(data)
        except ValidationError as error:
            raise BadArguments(_faults(error, data, tuple(self.parameters["properties"]))) from None
        except Exception:  # noqa: BLE001
            # A validator among the annotations is its author's code: whatever it raises, the call is refused.
            raise BadArguments([FieldFault("", "range", "The arguments could not be checked.")]) from None

    def canonical(self, data: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The same as JSON values, such that validating them again, as the run does, changes nothing.

        A function among the annotations may change its own outcome; then nothing could be shown for
        approval that is also what runs, and each call is refused.
        """
        once = _canonical(self.values(data))
        again = _canonical(self.values(once))
        if changed := [name for name in once if repr(once[name]) != repr(again[name])]:
            raise BadArguments([_unsteady(name) for name in changed[:MAX_FAULTS]])
        return once


def _canonical(values: Mapping[str, Any]) -> dict[str, JsonValue]:
    return {name: canonical(value) for name, value in values.items()}


def _unsteady(name: str) -> FieldFault:
    told = f"'{clip(name, ECHO_CHARS)}' cannot be given: the tool changes it each time it is checked."
    return FieldFault(dotted([name]), "range", told)


def read_signature(function: Callable[..., Any], context: type) -> Signature:
    """Read a function. A parameter annotated with `context` is injected. Raises TypeError or ValueError."""
    name = getattr(function, "__name__", "the function")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} is asynchronous; a tool is a plain function.")
    description, documented = _docstring(function)
    if not description:
        raise TypeError(f"{name} needs a docstring: it tells the model what the tool is for.")
    hints = _hints(function, name)
    parameters = [_checked(p, hints, name) for p in inspect.signature(function).parameters.values()]
    injected = tuple(p.name for p in parameters if hints[p.name] is context)
    told = [p for p in parameters if p.name not in injected]
    if unknown := documented.keys() - {p.name for p in parameters}:
        raise ValueError(f"The docstring of {name} explains {sorted(unknown)[0]!r}, which is no parameter.")
    fields = {p.name: _field(p, hints[p.name], documented.get(p.name), name) for p in told}
    return Signature(
        description=description,
        parameters=_object(fields),
        injected=injected,
        validator=SchemaValidator(cast(CoreSchema, _typed_dict({n: f.node for n, f in fields.items()}))),
    )


@dataclass(frozen=True, slots=True)
class _Field:
    node: Node
    schema: dict[str, Any]

    @property
    def required(self) -> bool:
        return self.node["type"] != "default"


def _object(fields: Mapping[str, _Field]) -> dict[str, Any]:
    properties = {name: field.schema for name, field in fields.items()}
    required = [name for name, field in fields.items() if field.required]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


# --- what stands in the source ------------------------------------------------------------------

_SECTION = re.compile(r"^[A-Z][A-Za-z ]*:$")
_ENTRY = re.compile(r"^(?P<name>\*{0,2}\w+)(?: ?\([^)]*\))?:\s*(?P<text>.*)$")


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The docstring without its Args section, and what that section says of each parameter."""
    kept: list[str] = []
    entries: list[str] = []
    inside = False
    for line in (inspect.getdoc(function) or "").splitlines():
        if _SECTION.match(line):
            inside = line == "Args:"
        elif inside and line and not line.startswith(" "):
            inside = False
        if not inside:
            kept.append(line)
        elif line != "Args:":
            entries.append(line)
    return _unwrapped("\n".join(kept)), _entries(entries)


def _unwrapped(text: str) -> str:
    """Paragraphs on one line each: the line breaks of the source mean nothing to a model."""
    return re.sub(r"(?<!\n)\n(?=[^\s\-*\d])", " ", re.sub(r"\n{3,}", "\n\n", text)).strip()


def _entries(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    name = ""
    for line in filter(str.strip, lines):
        entry = _ENTRY.match(line[indent:])
        if entry:
            name = entry["name"]
            found[name] = entry["text"]
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"{name} has an annotation that names nothing: {error.name}.") from None


def _checked(parameter: inspect.Parameter, hints: Mapping[str, Any], name: str) -> inspect.Parameter:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise TypeError(f"{name} takes {parameter}; a tool's parameters are each named, without * or /.")
    if parameter.name not in hints:
        raise TypeError(f"Parameter {parameter.name!r} of {name} has no annotation.")
    return parameter


def _field(parameter: inspect.Parameter, hint: Any, text: str | None, name: str) -> _Field:
    """One parameter: its strict core schema and what the model is told of it."""
    where = f"Parameter {parameter.name!r} of {name}"
    try:
        adapter = _adapter(hint)
        node = _Rewrite()(cast(Node, adapter.core_schema))
        schema = _tidy(adapter.json_schema(schema_generator=_PlainSchema))
        if parameter.default is not parameter.empty:
            node, schema = _with_default(node, schema, parameter.default)
        _check_node(node)
        json.dumps(schema, allow_nan=False)
    except Unsupported as error:
        raise TypeError(f"{where} {error}.") from None
    except SchemaError:
        message = "has a pattern that cannot be checked in linear time: no look-around, no references back"
        raise TypeError(f"{where} {message}.") from None
    except (PydanticUserError, TypeError, ValueError) as error:
        raise TypeError(f"{where} has an annotation that cannot be a schema: {_first_line(error)}.") from None
    if not schema.keys() - {"description", "default"}:
        raise TypeError(f"{where} {Unsupported('any value')}.")
    return _Field(node, {**({"description": text} if text else {}), **schema})


def _adapter(hint: Any) -> TypeAdapter[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TypeAdapter(hint)


def _first_line(error: Exception) -> str:
    return clip(str(error).strip().split("\n")[0].rstrip("."), 120)


def _with_default(node: Node, schema: dict[str, Any], default: Any) -> tuple[Node, dict[str, Any]]:
    """A default is kept in canonical form, so that it is validated like what a model sends."""
    inner = node["schema"] if node["type"] == "default" else node
    value = canonical(default)
    told = {**schema, "default": with_floats(value)}
    return {"type": "default", "schema": inner, "default": value, "validate_default": True}, told


def _check_node(node: Node) -> None:
    validator = SchemaValidator(cast(CoreSchema, node))
    try:
        validator.get_default_value()
    except ValidationError:
        raise Unsupported("has a default that does not fit its annotation", whole=True) from None


# --- the JSON schema ----------------------------------------------------------------------------

_MAPS = ("properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "propertyNames")
# What pydantic leaves under its own names on a type that it does not know, such as `Number`.
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}


class _PlainSchema(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        return with_floats(canonical(dft))


def _tidy(schema: dict[str, Any], definitions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The schema without titles, with references put in place and every object closed.

    Small servers and chat templates know no $ref; types that contain themselves were refused before.
    """
    known: Mapping[str, Any] = schema.get("$defs") or definitions or {}
    if "$ref" in schema:
        target = known[schema["$ref"].rpartition("/")[2]]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    kept = {
        _BOUNDS.get(key, key): _tidied(key, value, known)
        for key, value in schema.items()
        if key not in ("title", "$defs", "discriminator")
    }
    return {**kept, "additionalProperties": False} if "properties" in kept else kept


def _tidied(key: str, value: Any, definitions: Mapping[str, Any]) -> Any:
    if key in _MAPS:
        return {name: _tidy(schema, definitions) for name, schema in value.items()}
    if key in _LISTS:
        return [_tidy(schema, definitions) for schema in value]
    if key in _SCHEMAS and isinstance(value, dict):
        return _tidy(cast(dict[str, Any], value), definitions)
    return float(value) if isinstance(value, Decimal) else value


# --- the strict validator -----------------------------------------------------------------------


class Unsupported(TypeError):
    """A kind of annotation that no tool may have. The text goes on after the name of the parameter."""

    def __init__(self, what: str, *, whole: bool = False) -> None:
        wanted = "str, int, float, bool, Number, Literal, Enum, date, list[...], dict[str, ...], a model"
        super().__init__(what if whole else f"stands for {what}; use {wanted} or unions of these")


_NAMES = {
    "any": "any value",
    "decimal": "a Decimal",
    "callable": "a callable",
    "is-instance": "an instance of a class",
}


class _Rewrite:
    """Rewrites one core schema. New nodes are made; pydantic shares the old ones between types."""

    def __init__(self) -> None:
        self._definitions: dict[str, Node] = {}
        self._inside: list[str] = []

    def __call__(self, node: Node) -> Node:
        node = {key: value for key, value in node.items() if key not in ("ref", "serialization")}
        match node["type"]:
            case "str":
                return self._text(node)
            case "bool" | "none":
                return {**node, "strict": True}
            case "int":
                return _before(_bounded_int, {**node, "strict": True})
            case "float":
                return _before(_as_float, {**node, "strict": True, "allow_inf_nan": False})
            case "date" | "datetime" | "time":
                return _before(_date_reader(node["type"]), {**node, "strict": True})
            case "literal":
                return _plain(_one_of(node["expected"], node["expected"]))
            case "enum":
                return _plain(_one_of(node["members"], [member.value for member in node["members"]]))
            case "function-plain":
                return node
            case _:
                return self._container(node)

    def _text(self, node: Node) -> Node:
        """Patterns are matched by the Rust engine, in linear time; a compiled one would be Python's."""
        if not isinstance(node.get("pattern", ""), str):
            raise Unsupported("has a compiled pattern; give the pattern as text", whole=True)
        return {**node, "strict": True, "regex_engine": "rust-regex"}

    def _container(self, node: Node) -> Node:
        match node["type"]:
            case "list":
                return {**node, "items_schema": self(node["items_schema"]), "strict": True}
            case "set" | "frozenset":
                return _before(
                    _only_list, {**node, "items_schema": self(node["items_schema"]), "strict": False}
                )
            case "tuple":
                items = [self(item) for item in node["items_schema"]]
                return _before(_only_list, {**node, "items_schema": items, "strict": False})
            case "dict":
                return self._dict(node)
            case "union":
                return {**node, "choices": [self(_unlabelled(choice)) for choice in node["choices"]]}
            case "tagged-union":
                return {**node, "choices": {tag: self(choice) for tag, choice in node["choices"].items()}}
            case "nullable" | "function-before" | "function-after" | "function-wrap":
                return {**node, "schema": self(node["schema"])}
            case _:
                return self._named(node)

    def _named(self, node: Node) -> Node:
        match node["type"]:
            case "default":
                return self._default(node)
            case "model":
                return self._model(node)
            case "model-fields" | "typed-dict":
                return self._fields(node)
            case "definitions":
                self._definitions.update({one["ref"]: one for one in node["definitions"]})
                return self(node["schema"])
            case "definition-ref":
                return self._reference(node["schema_ref"])
            case kind:
                raise Unsupported(_NAMES.get(kind, f"a kind that JSON does not have ({kind})"))

    def _reference(self, name: str) -> Node:
        if name in self._inside:
            raise Unsupported("contains itself, which a tool's schema may not", whole=True)
        self._inside.append(name)
        node = self(self._definitions[name])
        self._inside.pop()
        return node

    def _dict(self, node: Node) -> Node:
        keys = self(node.get("keys_schema", {"type": "any"}))
        if keys["type"] != "str":
            raise Unsupported("an object whose keys are no text")
        values = self(node.get("values_schema", {"type": "any"}))
        return {**node, "keys_schema": keys, "values_schema": values, "strict": True}

    def _default(self, node: Node) -> Node:
        kept = {**node, "schema": self(node["schema"]), "validate_default": True}
        if "default" in node:
            return {**kept, "default": canonical(node["default"])}
        if node.get("default_factory_takes_data"):
            raise Unsupported("has a default that depends on other fields", whole=True)
        factory = node["default_factory"]
        return {**kept, "default_factory": lambda: canonical(factory())}

    def _model(self, node: Node) -> Node:
        """A model's fields are checked as an object, then it is built: a strict model refuses a dict."""
        if node.get("root_model") or node.get("custom_init"):
            raise Unsupported("a model with its own construction")
        fields = self(node["schema"])
        if fields["type"] == "typed-dict":  # text settings of the model, such as str_strip_whitespace
            fields["config"] = {k: v for k, v in node.get("config", {}).items() if k.startswith("str_")}
        return _after(_builder(node["cls"]), fields)

    def _fields(self, node: Node) -> Node:
        total = node.get("total", True)
        nodes: dict[str, Node] = {}
        optional: set[str] = set()
        for name, field in node["fields"].items():
            if "validation_alias" in field:
                raise Unsupported("a model with aliases")
            nodes[name] = self(field["schema"])
            if not field.get("required", total):
                optional.add(name)
        return _typed_dict(nodes, optional)


def _typed_dict(nodes: Mapping[str, Node], optional: Iterable[str] = ()) -> Node:
    fields = {
        name: {
            "type": "typed-dict-field",
            "schema": node,
            "required": node["type"] != "default" and name not in optional,
        }
        for name, node in nodes.items()
    }
    return {"type": "typed-dict", "fields": fields, "strict": True, "extra_behavior": "forbid"}


def _before(function: Callable[[Any], Any], node: Node) -> Node:
    return {"type": "function-before", "function": {"type": "no-info", "function": function}, "schema": node}


def _after(function: Callable[[Any], Any], node: Node) -> Node:
    return {"type": "function-after", "function": {"type": "no-info", "function": function}, "schema": node}


def _builder(model: type[BaseModel]) -> Callable[[dict[str, Any]], BaseModel]:
    def build(values: dict[str, Any]) -> BaseModel:
        return model.model_construct(**values)

    return build


def _plain(function: Callable[[Any], Any]) -> Node:
    return {"type": "function-plain", "function": {"type": "no-info", "function": function}}


def _unlabelled(choice: Any) -> Node:
    return cast(Node, choice[0] if isinstance(choice, tuple) else choice)


def _as_float(value: object) -> object:
    """Both forms in which the strict reader hands over a number, as a float; what is too large is inf."""
    if not is_number(value):
        return value
    try:
        return float(cast(Decimal, value))
    except OverflowError:
        return float("inf")


def _bounded_int(value: object) -> object:
    return _number(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _number(value: object) -> int | Decimal:
    if not is_number(value):
        raise PydanticCustomError("type", "a number")
    try:
        return exact(cast(Decimal, value))
    except BadNumber as error:
        raise PydanticCustomError(error.kind, "{want}", {"want": error.want}) from None


def _only_list(value: object) -> object:
    """Lax mode would take the keys of an object for a set; JSON has lists only."""
    if not isinstance(value, list | tuple | set | frozenset):
        raise PydanticCustomError("type", "a list")
    return cast(object, value)


def _one_of(choices: Sequence[object], forms: Sequence[object]) -> Callable[[Any], object]:
    """Reads a choice from its JSON form. Pydantic's own literal takes true for 1."""
    if any(type(form) not in (str, int, bool, type(None)) for form in forms):
        raise Unsupported("a choice among values that are neither text, integers, true, false nor null")
    wanted = ("one of " if len(forms) > 1 else "") + ", ".join(map(echo, forms))

    def read(value: object) -> object:
        for choice, form in zip(choices, forms, strict=True):
            if value is choice or (type(value) is type(form) and value == form):
                return choice
        raise PydanticCustomError("range", "{want}", {"want": wanted})

    return read


_ISO_START = {"date": r"\d{4}-\d\d-\d\d$", "datetime": r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d", "time": r"\d\d:\d\d"}


def _date_reader(kind: str) -> Callable[[Any], Any]:
    """Reads ISO text. Pydantic alone would also take a number in text for seconds since 1970."""
    iso = re.compile(_ISO_START[kind])
    inner = SchemaValidator(cast(CoreSchema, {"type": kind}))

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return inner.validate_strings(cast(Any, value)) if iso.match(value) else _no_date(kind)
        except ValidationError:
            return _no_date(kind)

    return read


def _no_date(kind: str) -> object:
    raise PydanticCustomError("range", "{want}", {"want": _WANTED_DATES[kind]})


_WANTED_DATES = {
    "date": "a date such as 2026-07-31",
    "datetime": "a date and time such as 2026-07-31T09:00:00Z",
    "time": "a time such as 09:00:00",
}


def number_schema() -> CoreSchema:
    """How `Number` is read: exact, and a plain number in the JSON schema."""
    told = core_schema.float_schema()
    return core_schema.no_info_plain_validator_function(_number, json_schema_input_schema=told)


# --- pydantic's errors as faults ----------------------------------------------------------------

# What is wanted, by pydantic's name of the error; {…} comes from the error's own context.
_WANTED: Mapping[str, tuple[FaultKind, str]] = {
    "string_type": ("type", "text"),
    "string_unicode": ("range", "text without half of a surrogate pair"),
    "int_type": ("type", "a whole number"),
    "float_type": ("type", "a number"),
    "bool_type": ("type", "true or false"),
    "none_required": ("type", "null"),
    "list_type": ("type", "a list"),
    "dict_type": ("type", "an object"),
    "model_attributes_type": ("type", "an object"),
    "date_type": ("type", _WANTED_DATES["date"]),
    "datetime_type": ("type", _WANTED_DATES["datetime"]),
    "time_type": ("type", _WANTED_DATES["time"]),
    "finite_number": ("not_finite", "a finite number"),
    "greater_than": ("range", "greater than {gt}"),
    "greater_than_equal": ("range", "at least {ge}"),
    "less_than": ("range", "less than {lt}"),
    "less_than_equal": ("range", "at most {le}"),
    "multiple_of": ("range", "a multiple of {multiple_of}"),
    "string_too_short": ("range", "at least {min_length} characters long"),
    "string_too_long": ("range", "at most {max_length} characters long"),
    "string_pattern_mismatch": ("range", "text that matches {pattern}"),
    "too_short": ("range", "at least {min_length} items long"),
    "too_long": ("range", "at most {max_length} items long"),
    "union_tag_invalid": ("range", "of a known kind ({expected_tags})"),
    "union_tag_not_found": ("missing", ""),
}
_OWN_KINDS = ("type", "range", "not_finite")


@dataclass(frozen=True, slots=True)
class _Problem:
    field: str
    kind: FaultKind
    want: str
    value: object


def _faults(error: ValidationError, data: object, known: Sequence[str]) -> list[FieldFault]:
    by_field: dict[str, list[_Problem]] = {}
    for one in error.errors(include_url=False):
        problem = _problem(cast(dict[str, Any], one), data)
        by_field.setdefault(problem.field, []).append(problem)
    return [_fault(problems, known) for problems in list(by_field.values())[:MAX_FAULTS]]


def _fault(problems: Sequence[_Problem], known: Sequence[str]) -> FieldFault:
    """One fault for all that was said of one field: a union says something for each of its parts."""
    first = next((p for p in problems if p.kind != "type"), problems[0])
    if first.kind == "missing":
        return missing(first.field)
    if first.kind == "unknown_field":
        return unknown_field(first.field, () if "." in first.field else known)
    wanted = dict.fromkeys(p.want for p in problems if p.kind == first.kind)
    return unfit(first.field, first.kind, " or ".join(wanted), first.value)


def _problem(error: Mapping[str, Any], data: object) -> _Problem:
    kind, want = _kind(error)
    path, value = _follow(error["loc"], data, to_the_end=kind in ("missing", "unknown_field"))
    return _Problem(dotted(path), kind, want, value)


def _kind(error: Mapping[str, Any]) -> tuple[FaultKind, str]:
    name: str = error["type"]
    if name == "missing":
        return "missing", ""
    if name in ("extra_forbidden", "invalid_key"):
        return "unknown_field", ""
    if name in _OWN_KINDS:
        return cast(FaultKind, name), str(error["msg"])
    kind, want = _WANTED.get(name, ("range", "valid"))
    if not want:
        return kind, want
    context = error.get("ctx", {})
    limit = context.get("min_length", context.get("max_length"))
    told = "valid: {msg}" if want == "valid" else counted(want, limit)
    return kind, told.format_map({"msg": error["msg"], **context})


def _follow(
    location: Sequence[str | int], data: object, *, to_the_end: bool
) -> tuple[list[str | int], object]:
    """The part of an error's location that is a path in the data, and what stands there.

    The rest of a location names branches of unions and the like.
    """
    path: list[str | int] = []
    here: Any = data
    for index, part in enumerate(location):
        last = to_the_end and index == len(location) - 1
        if isinstance(here, dict) and (part in here or last):
            path.append(part)
            here = cast(dict[Any, Any], here).get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(cast(list[Any], here)):
            path.append(part)
            here = cast(list[Any], here)[part]
    return path, cast(object, here)
