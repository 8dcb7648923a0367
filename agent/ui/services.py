"""The one home of process-wide things. They are built once, and hold no message, run, approval or budget."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Protocol
from weakref import WeakSet

import streamlit as st

from agent.audit import Audit, AuditLog
from agent.limits import Clock, SystemClock
from agent.model import Model
from agent.settings import SettingsError, build_model, load_settings
from agent.store import Store
from agent.store.memory import MemoryStore
from agent.threads import ToolThreads

DATA = Path(__file__).resolve().parent.parent.parent / "data"
MAX_WORKERS = 16
SWEEP_S = 1.0


class Watched(Protocol):
    """A session whose run somebody should be watching."""

    def open(self) -> bool:
        """Whether its run goes on or waits."""
        ...

    def lapsed(self, now: float) -> bool:
        """Whether nobody has looked at it for too long."""
        ...

    def abandon(self) -> None: ...


class Leases:
    """Ends the runs that nobody watches any more: a closed tab tells a server nothing.

    Sessions are held weakly: this keeps none of them, nor what they hold.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = Condition()
        self._watched: WeakSet[Watched] = WeakSet()
        self._thread: Thread | None = None

    def watch(self, session: Watched) -> None:
        """Watch a session until its run has ended."""
        with self._changed:
            self._watched.add(session)
            self._changed.notify()
            if self._thread is None:
                self._thread = Thread(target=self._keep, name="glassloop-leases", daemon=True)
                self._thread.start()

    def sweep(self) -> None:
        """End what has lapsed, and forget what has ended."""
        now = self._clock.steady_s()
        for session in self._sessions():
            if session.lapsed(now):
                session.abandon()
            # Under one hold of the lock: what begins meanwhile is seen here, or watched after it.
            with self._changed:
                if not session.open():
                    self._watched.discard(session)

    def end_all(self) -> None:
        """End every run that is still open: the server goes down."""
        for session in self._sessions():
            session.abandon()

    def _sessions(self) -> list[Watched]:
        with self._changed:
            return list(self._watched)

    def _keep(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._watched) > 0)
                self._clock.wait(self._changed, SWEEP_S)
            self.sweep()


@dataclass(frozen=True, slots=True)
class Services:
    """What all sessions of this process share. The store filters by owner inside."""

    clock: Clock
    store: Store
    threads: ToolThreads
    workers: ThreadPoolExecutor
    leases: Leases
    audit: Audit | None = None

    def close(self) -> None:
        """End the open runs, so that no worker is waited for longer than its call in flight."""
        self.leases.end_all()
        self.workers.shutdown(wait=False, cancel_futures=True)


@st.cache_resource(show_spinner=False)
def endpoint() -> Model | None:
    """The model behind the endpoint of the settings, one client for all sessions; None where none is set.

    Nothing else is cached. Raises `SettingsError` where the settings cannot be used.
    """
    return build_model(load_settings())


def build_services(clock: Clock, audit: Audit | None = None) -> Services:
    return Services(
        clock=clock,
        store=MemoryStore(clock),
        threads=ToolThreads(),
        workers=ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="glassloop-worker"),
        leases=Leases(clock),
        audit=audit,
    )


_BUILDING = Lock()


def services() -> Services:
    """The services of this process."""
    with _BUILDING:  # two sessions may come first at once
        return _services()


def close_services() -> None:
    """End what still runs, where anything was ever built: the server goes down."""
    with _BUILDING:
        if _services.cache_info().currsize:
            _services().close()


@cache
def _services() -> Services:
    return build_services(SystemClock(), _audit())


def _audit() -> Audit | None:
    """The audit log of this process; none where its folder cannot be written: the chat goes on."""
    try:
        return AuditLog(Path(load_settings().data or DATA) / "audit" / "audit.jsonl")
    except (OSError, SettingsError):
        return None
