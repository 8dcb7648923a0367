"""Limits of a run, and the clock they are measured with."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from threading import Condition
from typing import Protocol


class Clock(Protocol):
    """Time, injected. Tests pass a fake; nothing else in the engine asks the machine for the time."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        ...

    def steady_s(self) -> float:
        """Seconds since the epoch that never go back: what events and deadlines are stamped with."""
        ...

    def wait(self, condition: Condition, timeout_s: float) -> None:
        """Wait on a held condition until it is notified or the time is over."""
        ...


class SystemClock:
    """The machine's clock. `steady_s` is the wall clock at creation plus the monotonic clock since."""

    __slots__ = ("_offset_s",)

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def steady_s(self) -> float:
        return self._offset_s + time.monotonic()

    def wait(self, condition: Condition, timeout_s: float) -> None:
        condition.wait(timeout_s)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time of one clock, or earlier where what it is for is `over`."""

    clock: Clock
    at_s: float
    over: Callable[[], bool] = lambda: False

    def left_s(self) -> float:
        """Seconds left, never below zero."""
        return 0.0 if self.over() else max(0.0, self.at_s - self.clock.steady_s())


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may spend. Code, never prompt text."""

    max_tool_calls: int = 6
    max_requests: int = 8
    max_identical_calls: int = 2
    max_bad_arguments: int = 2
    tool_s: float = 3.0
    run_s: float = 30.0
    approval_s: float = 300.0
    max_tokens: int = 60_000
    max_message_chars: int = 8_000
    max_arguments_chars: int = 20_000
    max_arguments_depth: int = 20
    max_result_chars: int = 12_000
    max_context_chars: int = 240_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{field.name} must be a finite number above 0, not {value!r}.")
            if field.type is int and not isinstance(value, int):
                raise ValueError(f"{field.name} must be a whole number, not {value!r}.")
