"""What one browser session owns: its agent, and the work that goes on for it.

The page's script threads may be killed at any Streamlit call, so nothing of a run happens in them. A
click does one atomic step here and hands the rest to a worker; the page only observes.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from agent.agent import Agent
from agent.errors import InvalidEdit, InvalidMessage
from agent.model import Model
from agent.record import Approval
from agent.state import END_STATES, RunState
from agent.ui.services import Services
from tools.base import FieldFault, JsonValue, Tool

LEASE_S = 20.0
"""How long a run works on unwatched. A lost connection is back within 6 s, so it costs no run."""

WAITING_LEASE_S = 120.0
"""The same while a person is asked: browsers let a hidden tab look only once a minute."""


MAX_AT_WORK = 3
"""Workers that one conversation may hold: one that was stopped in a call stays there until its deadline."""

SHOWN_MESSAGES = 30
"""Drawn at once, and more with each "show earlier". The browser is the limit: 500 cost 2 s a click."""


@dataclass(frozen=True, slots=True)
class Sight:
    """How much there is to see: events, characters of a reply that is arriving, whether work goes on."""

    events: int
    said: int
    working: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell the person. `sentence` is the engine's own, where it has one."""

    kind: Literal["refused", "busy", "card_closed", "going_down"]
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class EditFault:
    """Why the edit of a card was refused; the card stays."""

    card_id: str
    message: str
    fields: tuple[FieldFault, ...] = ()


class Session:
    """One conversation of a browser session. All methods may be called from any thread."""

    def __init__(
        self, services: Services, model: Model, tools: tuple[Tool, ...], owner_id: str | None = None
    ) -> None:
        self.id = secrets.token_hex(8)
        self.model = model
        self.tools = tools
        self.agent = Agent(
            model=model,
            tools=tools,
            owner_id=owner_id or f"o-{secrets.token_hex(16)}",
            store=services.store,
            audit=services.audit,
            clock=services.clock,
            threads=services.threads,
        )
        self.notice: Notice | None = None
        self.draft: str | None = None
        self.editing: str | None = None
        self.edit_fault: EditFault | None = None
        self.shown_messages = SHOWN_MESSAGES
        self._services = services
        self._jobs: set[object] = set()
        self._at_work = 0
        self._said: tuple[RunState | None, int, str] = (None, 0, "")
        self._seen_at = services.clock.steady_s()

    def anew(self, model: Model) -> "Session":
        """A new conversation of the same owner; the run at hand ends."""
        self.stop()
        return Session(self._services, model, self.tools, self.agent.owner_id)

    # --- what a click does ---

    def ask(self, text: str) -> None:
        """Begin a run with this message. What cannot be sent comes back as a draft, with a notice."""
        self.notice = self.draft = None
        try:
            self.agent.check(text)
        except InvalidMessage as refused:
            self.notice, self.draft = Notice("refused", str(refused)), text
            return
        if not self._submit(lambda: self.agent.ask(text, self._say), only_idle=True):
            self.draft = text

    def decide(
        self,
        card: Approval,
        *,
        approve: bool,
        reason: str | None = None,
        arguments: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Decide a card; the first decision counts. The run goes on once nothing is pending."""
        self.notice = self.edit_fault = None
        try:
            decided = self.agent.decide(
                card.id, card.digest, approve=approve, reason=reason, arguments=arguments
            )
        except InvalidEdit as refused:
            self.edit_fault = EditFault(card.id, refused.message, refused.fields)
            return
        self.editing = None
        if not decided:
            self.notice = Notice("card_closed")
        self.go_on()

    def go_on(self) -> None:
        """Let the run go on, where nothing is pending any more; record what has expired."""
        self._submit(lambda: self.agent.proceed(self._say))

    def retry(self) -> None:
        """Send the request again that ended the run."""
        self.notice = None
        self._submit(lambda: self.agent.retry(self._say))

    def edit(self, card: Approval | None) -> None:
        """Begin to edit a card, or leave it as it is."""
        self.editing = card.id if card else None
        self.edit_fault = None

    def stop(self) -> None:
        """End the run; every open call is answered, and nothing more of it runs."""
        self.notice = self.editing = None
        self._drop(self.agent.stop)

    def show_earlier(self) -> None:
        self.shown_messages += SHOWN_MESSAGES

    # --- what the page sees ---

    @property
    def working(self) -> bool:
        return bool(self._jobs)

    @property
    def said(self) -> str:
        """What has arrived of the reply that the model is writing now."""
        with self.agent.lock:
            run, (of, number, text) = self.agent.state.run, self._said
            writing = run and run is of and not run.ended and run.reply is None and run.requests == number
            return text if writing else ""

    def seconds_left(self, card: Approval) -> float:
        """What is left to decide a card; not above zero where it has expired."""
        return card.expires_at - self.agent.now()

    def seen(self) -> None:
        """Somebody looks at this session: its run may go on."""
        self._seen_at = self._services.clock.steady_s()

    def sight(self) -> Sight:
        with self.agent.lock:
            return Sight(len(self.agent.events), len(self.said), self.working)

    def wait(self, after: Sight | None, timeout_s: float) -> Sight:
        """Wait until there is more to see than `after`, or the time is over."""
        with self.agent.lock:
            self.agent.changed.wait_for(lambda: self.sight() != after, timeout_s)
            return self.sight()

    def settle(self, timeout_s: float) -> None:
        """Wait a moment for work that is over at once."""
        with self.agent.lock:
            self.agent.changed.wait_for(lambda: not self.working, timeout_s)

    # --- what the leases see ---

    def open(self) -> bool:
        run = self.agent.run
        return self.working or (run is not None and run.state not in END_STATES)

    def lapsed(self, now: float) -> bool:
        lease_s = WAITING_LEASE_S if not self.working else LEASE_S
        return now - self._seen_at > lease_s

    def abandon(self) -> None:
        self._drop(self.agent.abandon)

    # --- inside ---

    def _submit(self, work: Callable[[], object], *, only_idle: bool = False) -> bool:
        """Hand work to a worker. With `only_idle` it is refused while the run at hand goes on or waits."""
        self.seen()
        job = object()
        with self.agent.lock:
            if only_idle and (self.open() or self._at_work >= MAX_AT_WORK):
                self.notice = Notice("busy")
                return False
            self._jobs.add(job)
            self._at_work += 1
        self._services.leases.watch(self)
        try:
            self._services.workers.submit(self._work, job, work)
        except RuntimeError:  # the pool is shut down
            self._done(job)
            self.notice = Notice("going_down")
            return False
        return True

    def _work(self, job: object, work: Callable[[], object]) -> None:
        """Do what was handed over, unless it was dropped before a worker was free."""
        try:
            if job in self._jobs:
                work()
        finally:
            self._done(job)

    def _done(self, job: object) -> None:
        with self.agent.lock:
            self._jobs.discard(job)
            self._at_work -= 1
            self.agent.changed.notify_all()

    def _drop(self, end: Callable[[], None]) -> None:
        """End the run, and wait for no worker: one that is in a call still has nothing more to bring."""
        with self.agent.lock:
            self._jobs.clear()
            end()
            self.agent.changed.notify_all()

    def _say(self, text: str) -> None:
        """Take what the model writes while it writes it; each request begins anew."""
        with self.agent.lock:
            run = self.agent.run_state
            of, number, said = self._said
            goes_on = run is of and run.requests == number
            self._said = (run, run.requests, said + text if goes_on else text)
            self.agent.changed.notify_all()
