"""The tool contract (being written)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldFault:
    field: str
    kind: str
    message: str


class Tool:
    pass
