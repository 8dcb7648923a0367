"""Threads for tools: a bounded number, and a deadline for each call."""

from collections.abc import Callable
from threading import Condition, Lock, Thread
from typing import TypeVar

from agent.limits import Deadline

T = TypeVar("T")


class ToolTimeout(Exception):
    """A tool did not come back before its deadline. Its thread goes on, and is counted."""


class ToolThreads:
    """A bounded number of threads for tools. A thread that was given up counts until it ends."""

    def __init__(self, most: int = 32) -> None:
        self._lock = Lock()
        self._free = most

    def take(self) -> "Slot | None":
        """A place for one thread, None where all are taken."""
        with self._lock:
            if self._free == 0:
                return None
            self._free -= 1
            return Slot(self)

    def give_back(self) -> None:
        with self._lock:
            self._free += 1


class Slot:
    """A place for one thread at a time, held until `leave`, and beyond it by a thread that still runs."""

    def __init__(self, threads: ToolThreads) -> None:
        self._threads = threads
        self._changed = Condition()
        self._busy = False
        self._left = False

    def run(self, work: Callable[[], T], deadline: Deadline) -> T:
        """Run `work` on a daemon thread and return what it returns, or raise `ToolTimeout`."""
        outcome: list[T] = []
        failure: list[BaseException] = []

        def body() -> None:
            try:
                outcome.append(work())
            except BaseException as error:  # noqa: BLE001  (carried over to the thread that waits)
                failure.append(error)
            with self._changed:
                self._busy = False
                self._changed.notify()
                if self._left:
                    self._threads.give_back()

        self._busy = True
        Thread(target=body, name="glassloop-tool", daemon=True).start()
        with self._changed:
            while self._busy and (left := deadline.left_s()) > 0:
                deadline.clock.wait(self._changed, left)
            if self._busy:
                raise ToolTimeout
        if failure:
            raise failure[0]
        return outcome[0]

    def leave(self) -> None:
        with self._changed:
            self._left = True
            if not self._busy:
                self._threads.give_back()
