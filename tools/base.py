"""The tool contract: what a tool is, what it is given, and the two ways in which it may fail.

A tool is a function with annotations and a docstring under `@tool`, or a JSON schema and a function
under `Tool.from_json_schema`. A tool knows nothing of the agent. It gets its arguments validated,
and a context with objects that are already bound to their owner.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from tools.json_schema import make_validator, own_copy
from tools.values import BadArguments, FaultKind, FieldFault, JsonValue, Number, canonical, with_floats

__all__ = [
    "TOOL_CODES",
    "BadArguments",
    "Clock",
    "Effect",
    "FaultKind",
    "FieldFault",
    "JsonValue",
    "Note",
    "Notes",
    "Number",
    "Precondition",
    "Tool",
    "ToolContext",
    "ToolError",
    "Trust",
    "canonical",
    "tool",
]

Effect = Literal["none", "read", "write"]
Trust = Literal["trusted", "untrusted_content"]

TOOL_CODES = frozenset(
    {
        "bad_arguments",
        "file_not_found",
        "no_data",
        "ambiguous",
        "division_by_zero",
        "not_finite",
        "too_large",
        "unsupported",
        "rate_limited",
        "upstream",
        "bad_response",
        "configuration",
        "conflict",
    }
)


class ToolError(Exception):
    """Give up on this call: a code of `TOOL_CODES`, a sentence for the model, details as JSON values."""

    def __init__(self, code: str, message: str, **details: JsonValue) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


# --- what a tool may use ------------------------------------------------------------------------


class Clock(Protocol):
    """The time, injected: a tool never asks the machine."""

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        ...


@dataclass(frozen=True, slots=True)
class Note:
    """One note. `created_at` is ISO 8601 in UTC."""

    id: str
    text: str
    created_at: str


class Notes(Protocol):
    """The notes of one owner, who was bound outside: a tool cannot name another."""

    def add(self, text: str, key: str) -> Note:
        """Save a note. A second call under the same idempotency key returns the note of the first."""
        ...

    def list(self) -> Sequence[Note]:
        """All notes, the oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What one call may use. `idempotency_key` is the same when the same intent runs again."""

    clock: Clock
    notes: Notes
    idempotency_key: str
    knowledge: Path


# --- the tool -----------------------------------------------------------------------------------

Precondition = Callable[[dict[str, JsonValue], ToolContext], None]
Validate = Callable[[Mapping[str, JsonValue]], dict[str, JsonValue]]
Call = Callable[[dict[str, JsonValue], ToolContext], JsonValue]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """One tool, as it is offered, judged and run. Made by `@tool` or `Tool.from_json_schema`.

    `permission` is the label that an owner must hold. `source` is a fixed phrase for the result.
    `host` is the third party that a call talks to. `preview` says on the approval card what will
    happen, in words of the program only. `precondition` may raise `ToolError("conflict", ...,
    current=...)` before anything runs. `phrases` are patterns with the argument names as groups,
    from which the scripted model serves plain requests. `has_required` says that {} is refused.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    effect: Effect
    permission: str
    trust: Trust
    source: str
    host: str | None = None
    preview: str = ""
    precondition: Precondition | None = None
    phrases: tuple[str, ...] = ()
    validator: Validate = field(repr=False)
    caller: Call = field(repr=False)
    schema: dict[str, Any] = field(init=False, repr=False)
    has_required: bool = field(init=False)

    def __post_init__(self) -> None:
        _check(self)
        wire = {"name": self.name, "description": self.description, "parameters": self.parameters}
        object.__setattr__(self, "schema", {"type": "function", "function": wire})
        object.__setattr__(self, "has_required", not _accepts_nothing(self))

    def validate(self, data: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The arguments in canonical form, defaults filled in; numbers are int or Decimal.

        Validating the outcome again changes nothing. Raises `BadArguments`, whatever the data.
        """
        return self.validator(data)

    def run(self, arguments: dict[str, JsonValue], ctx: ToolContext) -> JsonValue:
        """Call the function with values of its own: it cannot change what was recorded."""
        return self.caller(arguments, ctx)

    @classmethod
    def from_json_schema(
        cls,
        *,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        function: Call,
        effect: Effect = "none",
        permission: str | None = None,
        trust: Trust | None = None,
        source: str = "",
        host: str | None = None,
        preview: str | None = None,
        precondition: Precondition | None = None,
    ) -> "Tool":
        """A tool from a JSON schema (draft 2020-12) and function(arguments, ctx) -> JSON value.

        An object takes no other fields than it names, unless its schema says additionalProperties
        true or a schema. Defaults are not filled in. The function gets numbers as int or float.
        A reading tool is untrusted unless said otherwise. Raises TypeError or ValueError for a bad schema.
        """
        own = own_copy(parameters)
        validate = make_validator(own)
        return cls(
            name=name,
            description=description,
            parameters=own,
            effect=effect,
            permission=name if permission is None else permission,
            trust=trust or ("untrusted_content" if effect == "read" else "trusted"),
            source=source,
            host=host,
            preview=f"Run the tool {name}." if preview is None else preview,
            precondition=precondition,
            validator=validate,
            caller=lambda arguments, ctx: function(_plain(validate(arguments)), ctx),
        )


def tool(
    *bare: object,
    effect: Effect | None = None,
    permission: str | None = None,
    trust: Trust = "trusted",
    source: str = "",
    preview: str = "",
    host: str | None = None,
    precondition: Precondition | None = None,
    phrases: Sequence[str] = (),
    name: str | None = None,
) -> Callable[[Callable[..., JsonValue]], Tool]:
    """Make a function a tool: the docstring is its description, the annotations are its schema.

    The Args section and Annotated[..., Field(...)] explain the parameters. A parameter annotated
    `ToolContext` is filled in and not in the schema. What cannot be told to a model, or could not
    be checked, is refused here with TypeError or ValueError.
    """

    if bare or effect is None or permission is None:
        raise TypeError("Write @tool(effect=..., permission=...) above the function, with both named.")

    # Here, not above: pydantic costs as much CPU as the rest of the engine, and only this needs it.
    from tools.signature import read_signature

    def make(function: Callable[..., JsonValue]) -> Tool:
        signature = read_signature(function, ToolContext)

        def call(arguments: dict[str, JsonValue], ctx: ToolContext) -> JsonValue:
            return function(**signature.values(arguments), **dict.fromkeys(signature.injected, ctx))

        return Tool(
            name=function.__name__ if name is None else name,
            description=signature.description,
            parameters=signature.parameters,
            effect=effect,
            permission=permission,
            trust=trust,
            source=source,
            host=host,
            preview=preview,
            precondition=precondition,
            phrases=tuple(phrases),
            validator=signature.canonical,
            caller=call,
        )

    return make


def _plain(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: with_floats(value) for name, value in arguments.items()}


def _accepts_nothing(one: Tool) -> bool:
    try:
        one.validate({})
    except BadArguments:
        return False
    return True


def _check(one: Tool) -> None:
    if not _NAME.fullmatch(one.name):
        raise ValueError(f"{one.name!r} is no tool name: 1 to 64 letters, digits, _ or -.")
    if not one.description.strip():
        raise ValueError(f"{one.name} needs a description: it tells the model what the tool is for.")
    if one.effect not in get_args(Effect) or one.trust not in get_args(Trust):
        raise ValueError(f"{one.name} has an unknown effect or trust: {one.effect!r}, {one.trust!r}.")
    if not one.permission:
        raise ValueError(f"{one.name} needs a permission label.")
    if one.effect == "write" and not one.preview:
        raise ValueError(f"{one.name} writes, so it needs a preview for the approval card.")
    _check_phrases(one)


def _check_phrases(one: Tool) -> None:
    for phrase in one.phrases:
        groups = re.compile(phrase).groupindex
        if unknown := groups.keys() - one.parameters.get("properties", {}).keys():
            raise ValueError(
                f"A phrase of {one.name} captures {sorted(unknown)[0]!r}, which is no parameter."
            )
