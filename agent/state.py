"""The state: what the record adds up to, folded from it one event at a time.

Counters, pending cards, the transcript and the state of the run are here and nowhere else. Whoever
folds the same events again gets the same state.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.arguments import BOUNDLESS, DEFAULTS, as_sent, json_text, value_of
from agent.model import NOTHING, Message, Usage
from agent.record import (
    Approval,
    ApprovalExpired,
    ApprovalRequested,
    CallAnswered,
    CallDeferred,
    CallFinished,
    CallStarted,
    Decided,
    Event,
    Judging,
    MessagesRestored,
    ReplyReceived,
    RequestFailed,
    RequestSent,
    RunEnded,
    RunRetried,
    State,
    ToolCall,
    ToolResult,
    ToolSwitched,
    UserMessage,
)
from tools.base import Effect, JsonValue

END_STATES = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
NEVER_REPLAYED = frozenset({"conflict", "tool_busy"})


@dataclass(slots=True)
class CallState:
    """One call, as far as it has come."""

    call: ToolCall
    reply: int
    position: int
    phase: Literal["open", "deferred", "asked", "approved", "running", "answered"] = "open"
    effect: Effect | None = None
    asked_digest: str = ""
    digest: str = ""
    asked_arguments: str | None = None
    arguments: str | None = None
    charged: bool = False
    acted: bool = False
    bad: bool = False
    approval: Approval | None = None
    deferred: CallDeferred | None = None
    result: ToolResult | None = None

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def code(self) -> str | None:
        return self.result.code if self.result else None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A reply that asked for tools, with all its answers: what the transcript holds of it.

    `arguments` and `results` stand in call order, as texts that go over the wire.
    """

    reply: ReplyReceived
    arguments: tuple[str, ...]
    results: tuple[str, ...]


Entry = UserMessage | ReplyReceived | Exchange | Message
"""One entry of the transcript: restored wire messages stand as they are."""


def _no_counts() -> Counter[str]:
    return Counter()


@dataclass(slots=True)
class RunState:
    """What the record says of the latest run."""

    id: str
    started_at: float
    state: State = State.RECEIVED
    end_code: str | None = None
    answer: str | None = None
    calls: dict[str, CallState] = field(default_factory=dict[str, CallState])
    current: list[CallState] = field(default_factory=list[CallState])
    reply: ReplyReceived | None = None
    request: RequestSent | None = None
    failed: RequestFailed | None = None
    failed_in_a_row: int = 0
    replies: int = 0
    requests: int = 0
    charged: int = 0
    bad_before: int = 0
    usage: Usage = NOTHING
    limit: str | None = None
    limit_position: int = -1
    identical: Counter[str] = field(default_factory=_no_counts)
    conflicts: Counter[str] = field(default_factory=_no_counts)
    intents: dict[str, CallState] = field(default_factory=dict[str, CallState])
    barred: frozenset[str] = frozenset()
    refused_hosts: frozenset[str] = frozenset()
    in_transcript: bool = True
    expired: bool = False
    ended_at: float | None = None
    waiting_since: float | None = None
    waited_s: float = 0.0

    @property
    def ended(self) -> bool:
        return self.state in END_STATES

    @property
    def can_retry(self) -> bool:
        """Whether the run failed for want of a reply, so that the same request may bring one."""
        unanswered = self.failed is not None and self.failed.code != "context_overflow"
        silent = self.end_code == "empty_response"
        return self.state == State.FAILED and self.limit is None and (unanswered or silent)

    def in_phase(self, *phases: str) -> Iterator[CallState]:
        return (call for call in self.current if call.phase in phases)

    @property
    def pending(self) -> list[Approval]:
        return [call.approval for call in self.in_phase("asked") if call.approval]

    def elapsed_s(self, now: float) -> float:
        """Seconds that count against the limit: those in which a person was asked do not."""
        now = now if self.ended_at is None else self.ended_at
        waiting = now - self.waiting_since if self.waiting_since is not None else 0.0
        return now - self.started_at - self.waited_s - waiting

    def bad_in_a_row(self, with_bad: CallState | None = None) -> int:
        """Bad arguments in a row, in call order; as if `with_bad` were one, the most from there on.

        A call that ran or was carded, and was not answered so, begins the count anew.
        """
        count, most = self.bad_before, 0
        for call in self.current:
            if call.bad or call is with_bad:
                count += 1
            elif call.acted:
                count = 0
            if with_bad and call.position >= with_bad.position:
                most = max(most, count)
        return most if with_bad else count


@dataclass(slots=True)
class Conversation:
    """What the record says in all: the transcript, the ids in use, and the latest run."""

    transcript: list[Entry] = field(default_factory=list[Entry])
    chars: int = 0
    call_ids: set[str] = field(default_factory=set[str])
    allowed_hosts: frozenset[str] = frozenset()
    switched_off: frozenset[str] = frozenset()
    run: RunState | None = None


def fold(state: Conversation, event: Event) -> Conversation:
    """Take one event into the state, in place: the cost is per event, not per history."""
    _FOLDS[type(event)](state, event)
    if state.run and not isinstance(event, ToolSwitched | MessagesRestored):
        _close_reply(state, state.run)
        _move(state.run, event)
    return state


def replayed(events: Iterable[Event]) -> RunState:
    """The state of one run after these events, which begin with its message: a fold of its own."""
    state = Conversation()
    for event in events:
        fold(state, event)
    return _run(state)


def _messages_restored(state: Conversation, event: MessagesRestored) -> None:
    for message in value_of(event.messages):
        state.call_ids.update(call["id"] for call in message.get("tool_calls") or ())
        _append(state, message)


def _tool_switched(state: Conversation, event: ToolSwitched) -> None:
    one = {event.tool}
    state.switched_off = state.switched_off - one if event.on else state.switched_off | one


def _user_message(state: Conversation, event: UserMessage) -> None:
    state.run = RunState(event.run_id, event.at)
    _append(state, event)


def _request_sent(state: Conversation, event: RequestSent) -> None:
    run = _run(state)
    run.requests += 1
    run.request, run.failed, run.reply = event, None, None
    run.limit = run.limit or event.last_for


def _request_failed(state: Conversation, event: RequestFailed) -> None:
    run = _run(state)
    run.failed = event
    run.failed_in_a_row += 1


def _reply_received(state: Conversation, event: ReplyReceived) -> None:
    run = _run(state)
    run.reply = event
    run.failed_in_a_row = 0
    run.usage += event.usage
    run.bad_before = run.bad_in_a_row()
    state.call_ids.update(call.id for call in event.calls)
    run.current = []
    if event.calls and not is_final(run):
        run.replies += 1
        run.in_transcript = False
        run.current = [CallState(call, run.replies, n) for n, call in enumerate(event.calls)]
        run.calls.update((call.id, call) for call in run.current)
    elif event.text and event.text.strip():
        _append(state, event)


def is_final(run: RunState) -> bool:
    """Whether the reply at hand ends the run: no calls, or calls that must not be looked at."""
    reply = run.reply
    return reply is not None and (
        not reply.calls
        or (run.request is not None and run.request.last_for is not None)
        or reply.finish_reason in ("length", "content_filter")
    )


def _judged(state: Conversation, event: Judging) -> CallState:
    run = _run(state)
    call = run.calls[event.call_id]
    if not call.charged and any(v.gate == "budget" and v.outcome == "pass" for v in event.verdicts):
        call.charged = True
        run.charged += 1
    if call.phase == "open":
        call.asked_digest = call.digest = event.digest
        call.asked_arguments = call.arguments = event.arguments
        call.effect = event.effect
    return call


def _call_answered(state: Conversation, event: CallAnswered) -> None:
    run = _run(state)
    call = _judged(state, event)
    call.bad = any(v.gate in ("parse", "validate") and v.outcome == "answer" for v in event.verdicts)
    _answer(run, call, event.result, event.strikes)
    standing = run.intents.get(event.digest)
    if standing and standing.code == "outcome_unknown" and event.result.code in NEVER_REPLAYED:
        # Its outcome became known late, and it is that nothing happened: gate 6 looked it up.
        _forget(run, event.digest)
    if event.result.code == "permission_denied":
        run.barred |= {call.call.name}


def _call_deferred(state: Conversation, event: CallDeferred) -> None:
    call = _judged(state, event)
    call.phase, call.deferred = "deferred", event


def _approval_requested(state: Conversation, event: ApprovalRequested) -> None:
    call = _judged(state, event)
    call.phase, call.approval, call.acted = "asked", event.approval, True
    call.digest, call.arguments = event.digest, event.arguments
    if call.effect == "write":
        _run(state).intents[call.digest] = call


def _call_started(state: Conversation, event: CallStarted) -> None:
    run = _run(state)
    call = _judged(state, event)
    call.phase, call.acted = "running", True
    if call.approval and call.approval.host:
        # Not when the person agreed: only what was really sent makes the next call no surprise.
        state.allowed_hosts |= {call.approval.host}
    if call.effect == "write":
        run.intents[call.digest] = call
    else:
        run.identical[call.digest] += 1


def _call_finished(state: Conversation, event: CallFinished) -> None:
    run = _run(state)
    call = run.calls[event.call_id]
    call.bad = event.result.code == "bad_arguments"
    _answer(run, call, event.result, event.strikes)


def _decided(state: Conversation, event: Decided) -> None:
    run = _run(state)
    call = run.calls[event.call_id]
    host = call.approval.host if call.approval else None
    if event.approve:
        call.phase, call.digest = "approved", event.digest
        call.arguments = event.arguments or call.arguments
        if call.effect == "write":
            # From now on this is what an equal write finds, also under the form that a person gave it.
            run.intents.setdefault(call.digest, call)
        return
    if host:
        run.refused_hosts |= {host}
    if event.result:
        _answer(run, call, event.result)


def _approval_expired(state: Conversation, event: ApprovalExpired) -> None:
    run = _run(state)
    run.expired = True
    _answer(run, run.calls[event.call_id], event.result)


def _run_ended(state: Conversation, event: RunEnded) -> None:
    run = _run(state)
    for call_id, result in event.answers:
        _answer(run, run.calls[call_id], result)
    run.state, run.end_code, run.answer = event.state, event.code, event.answer
    run.ended_at = event.at


def _run_retried(state: Conversation, event: RunRetried) -> None:
    run = _run(state)
    run.state, run.end_code, run.answer, run.ended_at = State.PLANNING, None, None, None
    run.failed, run.failed_in_a_row, run.reply = None, 0, None
    run.started_at, run.waited_s = event.at, 0.0


def _answer(run: RunState, call: CallState, result: ToolResult, strikes: str | None = None) -> None:
    if result.code in NEVER_REPLAYED:
        # Nothing happened, and the world may have moved on: the same may be asked for again, as a new
        # attempt, whether or not it was edited. What another call stands for is not touched.
        for digest in {call.digest, call.asked_digest}:
            if run.intents.get(digest) is call:
                _forget(run, digest)
    call.phase, call.result = "answered", result
    if strikes and run.limit is None:
        run.limit, run.limit_position = strikes, call.position


def _forget(run: RunState, digest: str) -> None:
    del run.intents[digest]
    run.conflicts[digest] += 1


def _close_reply(state: Conversation, run: RunState) -> None:
    """Once each call of a reply is answered, the exchange enters the transcript, whole."""
    if run.reply is None or run.in_transcript or not all(call.result for call in run.current):
        return
    run.in_transcript = True
    arguments = tuple(map(_sent_back, run.current))
    results = tuple(envelope(call) for call in run.current)
    _append(state, Exchange(run.reply, arguments, results))


def _sent_back(call: CallState) -> str:
    """The arguments of a call in the history: as the model wrote them, where they could be read."""
    if call.asked_digest and call.asked_arguments is None:
        return "{}"
    # What the gates read was within their limits, which may be wider than the usual ones.
    return as_sent(call.call.arguments, BOUNDLESS if call.asked_arguments else DEFAULTS)


def envelope(call: CallState) -> str:
    """The result of a call as it travels to the model: data, labelled by the program."""
    result = call.result
    if result is None:
        raise ValueError(f"Call {call.id} has no result yet.")
    labels: dict[str, JsonValue] = {
        "call_id": call.id,
        "tool": result.tool_name,
        "ok": result.ok,
        "trust": result.trust,
        "source": result.source,
        "retrieved_at": result.retrieved_at,
        "elapsed_ms": result.elapsed_ms,
        "truncated": result.truncated,
    }
    if result.error:
        labels["error"] = {
            **value_of(result.error.details or "{}"),
            "code": result.error.code,
            "message": result.error.message,
            **({"reason": result.error.reason} if result.error.reason else {}),
        }
    if result.edited:
        labels["edited"] = dict(zip(("from", "to"), map(value_of, result.edited), strict=True))
    text = json_text(labels, sort_keys=False)
    return f'{text[:-1]},"data":{result.data or "null"}}}' if result.ok else text


def _append(state: Conversation, entry: Entry) -> None:
    state.transcript.append(entry)
    state.chars += chars_of(entry)


def chars_of(entry: Entry) -> int:
    """What an entry holds at most of what goes over the wire, vendor fields included, in characters."""
    match entry:
        case UserMessage():
            return len(entry.text)
        case ReplyReceived():
            return len(entry.text or "") + len(entry.extra or "")
        case Exchange():
            return chars_of(entry.reply) + sum(map(len, entry.arguments + entry.results))
        case _:
            return len(str(entry))


def _move(run: RunState, event: Event) -> None:
    """Name the state that the run is in now, and stop or start its clock."""
    if not run.ended:
        run.state = _state(run)
    parked = run.state == State.WAITING_APPROVAL
    if parked and run.waiting_since is None:
        run.waiting_since = event.at
    elif run.waiting_since is not None and not isinstance(
        event, Decided | ApprovalExpired | ApprovalRequested
    ):
        # The clock runs again with the first step of the program, not with the person's click.
        run.waited_s += event.at - run.waiting_since
        run.waiting_since = None


def _state(run: RunState) -> State:
    if run.request is None:
        return State.RECEIVED
    if run.reply is None or any(run.in_phase("open")):
        return State.PLANNING
    if any(run.in_phase("running")):
        return State.WAITING_TOOL
    if any(run.in_phase("asked")):
        return State.WAITING_APPROVAL
    if any(run.in_phase("approved", "deferred")):
        return State.WAITING_TOOL
    return State.OBSERVING if run.current else State.PLANNING


def _run(state: Conversation) -> RunState:
    if state.run is None:
        raise ValueError("An event of a run stands before its user message.")
    return state.run


_FOLDS: Mapping[type[Event], Callable[[Conversation, Any], object]] = {
    MessagesRestored: _messages_restored,
    ToolSwitched: _tool_switched,
    UserMessage: _user_message,
    RequestSent: _request_sent,
    RequestFailed: _request_failed,
    ReplyReceived: _reply_received,
    CallAnswered: _call_answered,
    CallDeferred: _call_deferred,
    ApprovalRequested: _approval_requested,
    CallStarted: _call_started,
    CallFinished: _call_finished,
    Decided: _decided,
    ApprovalExpired: _approval_expired,
    RunEnded: _run_ended,
    RunRetried: _run_retried,
}
