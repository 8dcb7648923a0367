"""The record as JSON values and back. It keeps what happened; nothing that is loaded can run by itself."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from agent import record
from agent.arguments import json_text
from agent.record import Event, ToolResult

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMAT = "glassloop/1"
NOT_KEPT = frozenset({"reasoning", "extra", "extra_lasts"})
DAMAGED = "This saved conversation is damaged."


def dump(owner_id: str, events: Iterable[Event]) -> dict[str, Any]:
    """JSON values of a record. Vendor fields and reasoning stay out."""
    lines = [{"kind": event.kind, **_fields(event)} for event in events]
    return {"format": FORMAT, "owner_id": owner_id, "events": json.loads(json_text(lines))}


def load(owner_id: str, data: Mapping[str, Any]) -> list[Event]:
    """The events of a dump; ValueError, in one sentence, where it is not one of this owner."""
    if data.get("format") != FORMAT:
        raise ValueError("This is not a saved conversation.")
    if data.get("owner_id") != owner_id:
        raise ValueError("This conversation belongs to another owner.")
    try:
        return [_event(line) for line in data["events"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(DAMAGED) from None


def result_to_json(result: ToolResult) -> str:
    return json_text(asdict(result))


def result_from_json(text: str) -> ToolResult:
    return cast(ToolResult, _adapter(ToolResult).validate_python(json.loads(text, parse_float=Decimal)))


def _fields(event: Event) -> dict[str, Any]:
    return {name: value for name, value in asdict(event).items() if name not in NOT_KEPT}


def _event(line: Mapping[str, Any]) -> Event:
    fields = dict(line)
    return cast(Event, _adapter(_kinds()[fields.pop("kind")]).validate_python(fields))


@cache
def _kinds() -> Mapping[str, type[Event]]:
    found = (cls for cls in vars(record).values() if isinstance(cls, type) and issubclass(cls, Event))
    return {cls.kind: cls for cls in found if hasattr(cls, "kind")}


@cache
def _adapter(kind: type) -> "TypeAdapter[Any]":
    # Here, not above: an engine that loads nothing needs no pydantic.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
