"""Policy: what an owner may do. Permissions and argument rules; effects decide what is asked."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from tools.base import JsonValue, Tool


@dataclass(frozen=True, slots=True)
class Between:
    """A range of numbers, both ends included."""

    low: int | float | Decimal
    high: int | float | Decimal

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            return False
        return bool(self.low <= value <= self.high)


@dataclass(frozen=True, slots=True)
class Rule:
    """For `tool`, the argument `field` must be one of `allowed` (values, a `range` or a `Between`).

    Rules for one field are alternatives; each field that rules name must match. A missing or null
    argument matches nothing.
    """

    tool: str
    field: str
    allowed: Collection[JsonValue] | range | Between

    def __post_init__(self) -> None:
        given = cast(object, self.allowed)
        if isinstance(given, str) or not isinstance(given, Collection | Between):
            raise ValueError(f"The rule for {self.tool}.{self.field} needs a collection or a range.")

    def matches(self, value: JsonValue) -> bool:
        if isinstance(self.allowed, Between | range):
            return not isinstance(value, bool) and value in self.allowed
        return any(_same(value, one) for one in self.allowed)


def _same(value: JsonValue, allowed: JsonValue) -> bool:
    """Equal as JSON: 1 is 1.0, 0.5 is Decimal("0.5"), true is not 1."""
    if isinstance(value, bool) or isinstance(allowed, bool):
        return value is allowed
    if isinstance(value, float | Decimal) and isinstance(allowed, float | Decimal):
        return Decimal(str(value)) == Decimal(str(allowed))
    return value == allowed


@dataclass(frozen=True, slots=True)
class Policy:
    """What an owner may do.

    `permissions` holds the labels of the tools that may run; None stands for the labels of all tools
    given. A tool that a rule names needs a match, else it is denied. What is left goes by its
    effect: a write asks a person. `allowed_hosts` need no consent of the person before the first
    call; `disabled` tools are off in this deployment.
    """

    permissions: Collection[str] | None = None
    rules: tuple[Rule, ...] = ()
    allowed_hosts: Collection[str] = ()
    disabled: Collection[str] = ()

    def check(self, tools: Iterable[Tool]) -> None:
        """Raise ValueError where the policy would deny or allow by accident: a rule about nothing, a text."""
        if isinstance(self.permissions, str):
            raise ValueError("permissions must be a collection of labels, not one text.")
        known = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
        for rule in self.rules:
            if rule.field not in known.get(rule.tool, ()):
                raise ValueError(f"A rule names {rule.tool}.{rule.field}, which no tool has.")

    def refusal(self, tool: Tool, arguments: dict[str, JsonValue]) -> str | None:
        """Why this call is denied, in one sentence; None where it is not."""
        if self.permissions is not None and tool.permission not in self.permissions:
            return f"This owner has no permission {tool.permission!r}."
        rules = [rule for rule in self.rules if rule.tool == tool.name]
        for field in dict.fromkeys(rule.field for rule in rules):
            if not any(r.matches(arguments.get(field)) for r in rules if r.field == field):
                return f"The policy does not allow this value of {field!r}."
        return None
