"""A store in memory: the default. It lives as long as the object."""

from collections.abc import Sequence
from threading import Lock

from agent.limits import Clock, SystemClock
from agent.store import Execution, IntentKey
from tools.base import Note, Notes


class MemoryStore:
    """Executions and notes in dicts behind one lock."""

    __slots__ = ("_clock", "_executions", "_lock", "_notes")

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._executions: dict[IntentKey, Execution] = {}
        self._notes: dict[str, dict[str, Note]] = {}

    def claim(self, key: IntentKey) -> Execution | None:
        with self._lock:
            standing = self._executions.get(key)
            if standing is None:
                self._executions[key] = Execution(key, None)
            return standing

    def record(self, key: IntentKey, result: str) -> None:
        with self._lock:
            self._executions[key] = Execution(key, result)

    def look_up(self, key: IntentKey) -> Execution | None:
        with self._lock:
            return self._executions.get(key)

    @property
    def executions(self) -> list[Execution]:
        """All side effects that were claimed, in the order of their claims."""
        with self._lock:
            return list(self._executions.values())

    def notes(self, owner_id: str) -> Notes:
        return _OwnedNotes(self, owner_id)

    def add_note(self, owner_id: str, text: str, key: str) -> Note:
        with self._lock:
            kept = self._notes.setdefault(owner_id, {})
            at = self._clock.now().isoformat(timespec="seconds")
            return kept.setdefault(key, Note(f"note-{len(kept) + 1}", text, at))

    def list_notes(self, owner_id: str) -> list[Note]:
        with self._lock:
            return list(self._notes.get(owner_id, {}).values())


class _OwnedNotes:
    """The notes of one owner: what a tool gets, so that it never names an owner."""

    def __init__(self, store: MemoryStore, owner_id: str) -> None:
        self._store = store
        self._owner_id = owner_id

    def add(self, text: str, key: str) -> Note:
        return self._store.add_note(self._owner_id, text, key)

    def list(self) -> Sequence[Note]:
        return self._store.list_notes(self._owner_id)
