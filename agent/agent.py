"""An Agent: what one session owns. Its record, its limits, its policy; ask, decide, proceed, stop."""

import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Condition, RLock
from typing import Any, Self

from agent import gates, gateway, resume, saved
from agent.arguments import BadJson, json_text, sendable
from agent.audit import Audit, audited
from agent.errors import InvalidEdit, InvalidMessage, RunActive
from agent.limits import Clock, Limits, SystemClock
from agent.loop import advance, end
from agent.model import Message, Model, OnDelta
from agent.policy import Policy
from agent.prompt import system_prompt
from agent.record import (
    INVALID_TOOL,
    ApprovalExpired,
    Decided,
    Event,
    MessagesRestored,
    RequestSent,
    RunRetried,
    State,
    ToolResult,
    ToolSwitched,
    UserMessage,
)
from agent.run import Run
from agent.state import CallState, Conversation, RunState, fold
from agent.store import Store
from agent.store.memory import MemoryStore
from agent.threads import ToolThreads
from agent.transcript import Window, check_pairing, lawful_messages, wire_messages
from tools.base import JsonValue, Tool

KNOWLEDGE = Path(__file__).resolve().parent.parent / "knowledge"
MAX_REASON_CHARS = 500
DEFAULT_LIMITS = Limits()
DEFAULT_POLICY = Policy()


class RunGone(Exception):
    """A thread brought something for a run that is over. What it brought is dropped."""


class Agent:
    """A guarded agent. All methods may be called from any thread; one thread works on a run at a time.

    `tools` is the whole list of what a model may ask for. `store` and `audit` may be shared between
    agents: the first filters by `owner_id`, the second hashes it. `knowledge` is the folder that
    knowledge tools read. `jitter` (0 to 1) and `new_uid` are injected for tests.
    """

    __slots__ = (
        "_changed",
        "_events",
        "_owner_hash",
        "_starts",
        "_worker",
        "audit",
        "clock",
        "fixed_chars",
        "jitter",
        "knowledge",
        "limits",
        "lock",
        "model",
        "new_uid",
        "owner_id",
        "policy",
        "prompt",
        "state",
        "store",
        "threads",
        "tools",
    )

    def __init__(
        self,
        *,
        model: Model,
        tools: Iterable[Tool],
        owner_id: str = "local",
        instructions: str | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        store: Store | None = None,
        audit: Audit | None = None,
        clock: Clock | None = None,
        knowledge: Path | None = None,
        threads: ToolThreads | None = None,
        jitter: Callable[[], float] = random.random,
        new_uid: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        if not owner_id:
            raise ValueError("An agent needs an owner_id.")
        given = tuple(tools)
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in given}
        if len(self.tools) != len(given):
            raise ValueError("Two tools have the same name.")
        if INVALID_TOOL in self.tools:
            raise ValueError(f"No tool may be called {INVALID_TOOL}: it stands for a call without a name.")
        self.policy = policy or DEFAULT_POLICY
        self.policy.check(given)
        self.model = model
        self.owner_id = owner_id
        self.limits = limits or DEFAULT_LIMITS
        self.clock = clock or SystemClock()
        self.store = store or MemoryStore(self.clock)
        self.audit = audit
        self._owner_hash = audit.keyed(owner_id) if audit else None
        self.knowledge = knowledge or KNOWLEDGE
        self.threads = threads or ToolThreads()
        self.jitter = jitter
        self.new_uid = new_uid
        self.prompt = system_prompt(instructions)
        self.fixed_chars = len(self.prompt.text) + sum(len(str(tool.schema)) for tool in given)
        self.lock = RLock()
        self._changed: Condition | None = None
        self.state = Conversation()
        self._events: list[Event] = []
        self._starts: list[int] = []
        self._worker: object | None = None

    # --- what a session does ---

    def ask(self, text: str, on_delta: OnDelta | None = None) -> Run:
        """Begin a run with the user's message and work until it ends or needs a person.

        Raises `InvalidMessage` (nothing recorded) or `RunActive`. A run that still waits is ended as
        superseded, with every open call answered.
        """
        text = self.check(text)
        with self.lock:
            if self._worker is not None:
                raise RunActive
            self.expire()
            if self.state.run and not self.state.run.ended:
                end(self, self.state.run, State.CANCELLED, "superseded", call_code="superseded")
            self._begin(text)
            token = self._worker = object()
        return self._work(token, on_delta)

    def check(self, text: str) -> str:
        """Return the message as `ask` would take it, or raise `InvalidMessage`."""
        if not text.strip():
            raise InvalidMessage("Write a message first.")
        if len(text) > self.limits.max_message_chars:
            raise InvalidMessage(
                f"The message has {len(text)} characters; at most {self.limits.max_message_chars} fit."
            )
        if _surrogates(text):
            raise InvalidMessage("The message holds a character that is not text.")
        return text

    def proceed(self, on_delta: OnDelta | None = None) -> Run | None:
        """Go on with a run once nothing is pending; otherwise change nothing. Returns the latest run."""
        with self.lock:
            self.expire()
            run = self.state.run
            if run is None or run.ended or run.pending or self._worker is not None:
                return self.run
            token = self._worker = object()
        return self._work(token, on_delta)

    def decide(
        self,
        approval_id: str,
        digest: str,
        *,
        approve: bool,
        reason: str | None = None,
        arguments: Mapping[str, JsonValue] | None = None,
    ) -> bool:
        """Record a person's decision on a card; nothing runs here. True if this call decided it.

        `digest` is the card's: what the person saw. `arguments` replace the card's on approval, and
        raise `InvalidEdit` where a gate refuses them; the card stays then.
        """
        if type(approve) is not bool:
            raise TypeError("approve must be True or False.")
        with self.lock:
            self.expire()
            call = self._asked(approval_id, digest)
        if call is None or call.approval is None:
            return self._ignored(approval_id)
        edit = self._judged_edit(call, arguments) if approve and arguments is not None else None
        run = self.run_state
        denied = None if approve else _denied(call, _clean(reason))
        with self.lock:
            if self._asked(approval_id, digest) is not call:
                return self._ignored(approval_id)
            self.append(
                Decided(
                    at=self.now(),
                    run_id=run.id,
                    approval_id=approval_id,
                    call_id=call.id,
                    approve=approve,
                    digest=edit.digest if edit else digest,
                    arguments=edit.text if edit else None,
                    reason=_clean(reason),
                    result=gateway.stamped(self, denied) if denied else None,
                )
            )
            self._end_if_expired(run)
        return True

    @property
    def can_retry(self) -> bool:
        """Whether `retry` would do something: the run failed for want of a reply, and may spend more."""
        with self.lock:
            run = self.state.run
            if run is None or self._worker is not None or not run.can_retry:
                return False
            spent = run.usage.total_tokens >= self.limits.max_tokens
            return run.requests < self.limits.max_requests - 1 and not spent

    def retry(self, on_delta: OnDelta | None = None) -> Run | None:
        """Send the request again that ended the latest run, and go on with that run.

        Only the request is repeated: no message is added, no tool runs again. The run's time begins anew;
        what it spent of requests, calls and tokens stays spent. Does nothing unless `can_retry`; returns
        the latest run.
        """
        with self.lock:
            if not self.can_retry:
                return self.run
            self._take(RunRetried(at=self.now(), run_id=self.run_state.id))
            token = self._worker = object()
        return self._work(token, on_delta)

    def stop(self) -> None:
        """End the run now: every open call is answered, and the next `ask` works at once."""
        self._cancel("cancelled")

    def abandon(self) -> None:
        """End the run as `stop` does, because nobody watches it any more."""
        self._cancel("abandoned")

    def switch(self, tool: str, *, on: bool) -> None:
        """Switch a tool on or off for this session, a call that waits for a person included."""
        if tool not in self.tools:
            raise ValueError(f"There is no tool {tool!r}.")
        with self.lock:
            run_id = self.state.run.id if self.state.run else ""
            self._take(ToolSwitched(at=self.now(), run_id=run_id, tool=tool, on=on))

    # --- what a session sees ---

    @property
    def run(self) -> Run | None:
        """The latest run, None before the first message."""
        with self.lock:
            return Run(self, self.state.run.id, len(self._starts) - 1) if self.state.run else None

    @property
    def runs(self) -> list[Run]:
        """All runs of the record, the oldest first."""
        with self.lock:
            return [Run(self, self._events[start].run_id, n) for n, start in enumerate(self._starts)]

    @property
    def events(self) -> Sequence[Event]:
        """The whole record."""
        with self.lock:
            return tuple(self._events)

    @property
    def messages(self) -> list[Message]:
        """The transcript as wire messages: the system message first, lawful at every moment."""
        with self.lock:
            view = Window(0, len(self.state.transcript), 0)
            return wire_messages(self.prompt.text, self.state.transcript, view, None)

    def request_messages(self, request: RequestSent) -> list[Message]:
        """The messages of a request as it was sent, projected again: the event copies nothing."""
        with self.lock:
            view = Window(request.first, request.upto, request.shrunk)
            return wire_messages(self.prompt.text, self.state.transcript, view, request.run_id)

    def request_tools(self, request: RequestSent) -> list[Tool]:
        """The tools that a request offered, from the switches before it; none with the last of a run."""
        if request.last_for:
            return []
        state = Conversation()
        for event in self.events:
            if event is request:
                break
            if isinstance(event, ToolSwitched):
                fold(state, event)
        return gates.switched_on(self.tools, state, self.policy)

    # --- keeping and bringing back ---

    def dump(self) -> dict[str, Any]:
        """The record as JSON values, for `load`. Reasoning and vendor fields are left out."""
        with self.lock:
            events = list(self._events)
        return saved.dump(self.owner_id, events)

    @classmethod
    def load(cls, data: Mapping[str, Any], **settings: Any) -> Self:
        """An agent with a saved record, under the settings of the constructor; nothing runs.

        A card comes back undecided under a new id, an approved call that had not run too. A run that
        was being worked on is ended as abandoned. Raises ValueError for another owner's record, or
        where the data is no record.
        """
        agent = cls(**settings)
        try:
            for event in saved.load(agent.owner_id, data):
                if not resume.admissible(agent, event):
                    raise ValueError(saved.DAMAGED)
                agent._add(event)
            if check_pairing(agent.messages):
                raise ValueError(saved.DAMAGED)
        except (BadJson, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError):
            raise ValueError(saved.DAMAGED) from None
        resume.take_up(agent)
        return agent

    def restore_messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Begin with a transcript from elsewhere, before the first message.

        A leading system message is replaced by ours. Raises ValueError where the messages are not
        lawful; no approval, run or effect comes with them.
        """
        lawful = json_text(lawful_messages(messages))
        with self.lock:
            if any(not isinstance(event, ToolSwitched) for event in self._events):
                raise ValueError("Messages can be restored once, before the first message.")
            self._take(MessagesRestored(at=self.now(), run_id="", messages=lawful))

    # --- what the run, the loop and the gateway use ---

    @property
    def changed(self) -> Condition:
        """Notified at each event. Made by the first who waits: most of a thousand sessions never do."""
        with self.lock:
            self._changed = self._changed or Condition(self.lock)
            return self._changed

    def events_of(self, number: int) -> list[Event]:
        """The events of the run with this number: from its message to the next run's."""
        with self.lock:
            first, *rest = self._starts[number : number + 2]
            return self._events[first : rest[0] if rest else None]

    def now(self) -> float:
        """Seconds since the epoch that never go back."""
        return self.clock.steady_s()

    def timestamp(self) -> str:
        return self.clock.now().isoformat(timespec="milliseconds")

    def new_id(self, kind: str) -> str:
        return f"{kind}-{self.new_uid()}"

    @property
    def run_state(self) -> RunState:
        if self.state.run is None:
            raise ValueError("There is no run yet.")
        return self.state.run

    def offered_tools(self) -> list[Tool]:
        return gates.switched_on(self.tools, self.state, self.policy)

    def require(self, run: RunState) -> None:
        """Raise `RunGone` unless this run is the one at hand, and goes on. Call it under the lock."""
        if run is not self.state.run or run.ended:
            raise RunGone

    def append(self, event: Event) -> None:
        """Append an event of the run at hand: the only way anything becomes true."""
        with self.lock:
            run = self.state.run
            if run is None or run.id != event.run_id or run.ended:
                raise RunGone
            self._take(event)

    def expire(self) -> None:
        """Append what has expired by now; a run that nobody can decide any more ends. Call it locked."""
        run = self.state.run
        if run is None or run.ended:
            return
        now = self.now()
        for call in list(run.in_phase("asked")):
            if call.approval and call.approval.expires_at <= now:
                result = gates.failed(call.call.name, "expired", "Nobody decided in time. It was not done.")
                self.append(
                    ApprovalExpired(
                        at=now,
                        run_id=run.id,
                        approval_id=call.approval.id,
                        call_id=call.id,
                        result=gateway.stamped(self, result),
                    )
                )
        self._end_if_expired(run)

    def pause(self, run: RunState, seconds: float) -> None:
        """Wait, or until the run ends."""
        until = self.now() + seconds
        with self.lock:
            while not run.ended and (left := until - self.now()) > 0:
                self.clock.wait(self.changed, left)

    def audit_line(self, run: RunState | None, **fields: Any) -> None:
        """Write one line to the audit: who, which run, which model and prompt, and these fields."""
        if self.audit is None:
            return
        self.audit.write(
            {
                "timestamp": self.timestamp(),
                "run_id": run.id if run else None,
                "user_id_hash": self._owner_hash,
                "state": run.state if run else None,
                "model_version": self.model.name,
                "prompt_version": self.prompt.version,
                **fields,
            }
        )

    # --- inside ---

    def _add(self, event: Event) -> None:
        if isinstance(event, UserMessage):
            self._starts.append(len(self._events))
        self._events.append(event)
        fold(self.state, event)

    def _take(self, event: Event) -> None:
        self._add(event)
        if self.audit is not None:
            self.audit_line(self.state.run, **audited(event, self.audit))
        if self._changed:
            self._changed.notify_all()

    def _begin(self, text: str) -> None:
        self._take(UserMessage(at=self.now(), run_id=self.new_id("run"), text=text))

    def _work(self, token: object, on_delta: OnDelta | None) -> Run:
        run, number = self.run_state, len(self._starts) - 1
        try:
            while self._goes_on(token, run, advance(self, run, on_delta)):
                pass
        except RunGone:
            self.audit_line(run, event="late_result_dropped")
        except Exception as fault:  # noqa: BLE001
            # A fault of our own: the run still ends under a name, with every call answered.
            self.audit_line(run, event="internal_error", error_type=type(fault).__name__)
            self._end_if_current(run, State.FAILED, "internal_error")
        except BaseException:
            # Ctrl-C or an exiting interpreter: nothing stays open behind it.
            self._end_if_current(run, State.CANCELLED, "cancelled")
            raise
        finally:
            self._release(token)
        return Run(self, run.id, number)

    def _goes_on(self, token: object, run: RunState, moved: bool) -> bool:
        """Whether the thread keeps the run. It looks for cards and lets go under one hold of the lock:
        a decision is either seen by it, or left to `proceed`."""
        with self.lock:
            if moved or not (run.ended or run.pending):
                return True
            self._release(token)
            return False

    def _release(self, token: object) -> None:
        with self.lock:
            if self._worker is token:
                self._worker = None

    def _end_if_current(self, run: RunState, state: State, code: str) -> None:
        with self.lock:
            if run is self.state.run and not run.ended:
                end(self, run, state, code)

    def _cancel(self, code: str) -> None:
        with self.lock:
            self._worker = None
            if self.state.run:
                self._end_if_current(self.state.run, State.CANCELLED, code)

    def _end_if_expired(self, run: RunState) -> None:
        if run.expired and not run.pending and not run.ended:
            end(self, run, State.FAILED, "approval_expired")

    def _asked(self, approval_id: str, digest: str) -> CallState | None:
        for call in self.state.run.in_phase("asked") if self.state.run else ():
            if call.approval and (call.approval.id, call.approval.digest) == (approval_id, digest):
                return call
        return None

    def _ignored(self, approval_id: str) -> bool:
        self.audit_line(self.state.run, event="decision_ignored", approval_id=_clean(str(approval_id)))
        return False

    def _judged_edit(self, call: CallState, edited: Mapping[str, JsonValue]) -> gates.Reading:
        """Judge the edited form at the gates that look at arguments, at no charge."""
        try:
            text = json_text(dict(edited))
        except (TypeError, ValueError, RecursionError):
            raise InvalidEdit("bad_json", "The edited arguments are not JSON.") from None
        read = gates.read(call.call.name, text, self.tools, self.limits)
        view = gateway.view_of(self, self.run_state, call, read)
        outcome = gates.judge(call.call, view, gates.JUDGED_ON_EDIT).outcome
        if isinstance(outcome, gates.Answer):
            error = outcome.result.error
            code, message = (
                (error.code, error.message) if error else ("repeat_limit", "This was done before.")
            )
            raise InvalidEdit(code, message, read.faults)
        if isinstance(outcome, gates.Wait):
            raise InvalidEdit("repeat_limit", "The same is already waiting on another card.")
        return read


def _denied(call: CallState, reason: str | None) -> ToolResult:
    return gates.failed(
        call.call.name, "denied", "A person denied this call. It was not done.", reason=reason
    )


def _clean(text: str | None) -> str | None:
    """A person's words as they are recorded: bounded, and text in any encoding."""
    if not text or not text.strip():
        return None
    return sendable(text.strip()[:MAX_REASON_CHARS])


def _surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
