"""A Run: what a caller sees of one user message, from its beginning to its end."""

from typing import TYPE_CHECKING

from agent.model import Usage
from agent.record import Approval, CallFinished, Event, RunEnded, State
from agent.state import RunState

if TYPE_CHECKING:
    from agent.agent import Agent


class Run:
    """A view of one run: it follows the record, and holds nothing itself."""

    __slots__ = ("_agent", "_number", "id")

    def __init__(self, agent: "Agent", run_id: str, number: int) -> None:
        self._agent = agent
        self._number = number
        self.id = run_id

    @property
    def events(self) -> list[Event]:
        return self._agent.events_of(self._number)

    @property
    def state(self) -> State:
        live = self._live()
        return live.state if live else self._end().state

    @property
    def end_code(self) -> str | None:
        live = self._live()
        return live.end_code if live else self._end().code

    @property
    def answer(self) -> str | None:
        live = self._live()
        return live.answer if live else self._end().answer

    @property
    def usage(self) -> Usage:
        live = self._live()
        return live.usage if live else self._end().usage

    @property
    def pending(self) -> list[Approval]:
        """The cards that wait for a person, in call order."""
        with self._agent.lock:
            live = self._live()
            return live.pending if live and not live.ended else []

    @property
    def evidence(self) -> list[str]:
        """What an answer can rest on: the calls that ran and said ok, such as tool:add:call-001."""
        return [
            f"tool:{event.result.tool_name}:{event.call_id}"
            for event in self.events
            if isinstance(event, CallFinished) and event.result.ok
        ]

    def wait(self, after: int, timeout_s: float = 1.0) -> list[Event]:
        """The run's events past the first `after`; none on timeout, and at once when it has ended."""
        with self._agent.lock:
            self._agent.changed.wait_for(lambda: len(self.events) > after or self._over(), timeout_s)
            return self.events[after:]

    def _live(self) -> RunState | None:
        run = self._agent.state.run
        return run if run and run.id == self.id else None

    def _over(self) -> bool:
        live = self._live()
        return live is None or live.ended

    def _end(self) -> RunEnded:
        return next(event for event in reversed(self.events) if isinstance(event, RunEnded))
