"""What a tool is given, in its smallest form."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools.base import Note, ToolContext

NOON = datetime(2026, 7, 15, 12, 0, tzinfo=UTC)


class FixedClock:
    def __init__(self, at: datetime = NOON) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at


class ListedNotes:
    def __init__(self) -> None:
        self.by_key: dict[str, Note] = {}

    def add(self, text: str, key: str) -> Note:
        return self.by_key.setdefault(key, Note(f"note-{len(self.by_key) + 1}", text, NOON.isoformat()))

    def list(self) -> Sequence[Note]:
        return list(self.by_key.values())


def context(knowledge: Path = Path("nowhere"), *, at: datetime = NOON, key: str = "k-1") -> ToolContext:
    return ToolContext(clock=FixedClock(at), notes=ListedNotes(), idempotency_key=key, knowledge=knowledge)
