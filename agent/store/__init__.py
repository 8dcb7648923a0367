"""What the engine asks of a store: executions that happen once, and what tools keep for an owner."""

from dataclasses import dataclass
from typing import Protocol

from tools.base import Notes


@dataclass(frozen=True, slots=True)
class IntentKey:
    """One side effect that somebody wanted: the idempotency key.

    Two calls with the same key are the same wish, whatever ids they carry. `digest` is of the tool's
    name and the canonical arguments; `attempt` rises where the call before ended in a conflict.
    """

    owner_id: str
    run_id: str
    digest: str
    attempt: int = 1

    def __str__(self) -> str:
        return f"{self.run_id}:{self.digest}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class Execution:
    """A claimed side effect. `result` is the JSON text of its result, None while nobody knows."""

    key: IntentKey
    result: str | None


class Store(Protocol):
    """Each method is atomic, and filtered by the owner inside the store."""

    def claim(self, key: IntentKey) -> Execution | None:
        """Claim a side effect: None where this call claimed it, else the execution that stands there."""
        ...

    def record(self, key: IntentKey, result: str) -> None:
        """Record what a claimed side effect brought."""
        ...

    def look_up(self, key: IntentKey) -> Execution | None: ...

    def notes(self, owner_id: str) -> Notes:
        """The notes of one owner, and of nobody else."""
        ...
