"""The record: the kinds of event. An agent holds one append-only list of them, and nothing else.

A run is the slice of the record that belongs to one user message. What the events add up to is folded
in `agent.state`; what goes over the wire or on a screen is projected in `agent.transcript`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

from agent.arguments import value_of
from agent.model import Usage
from tools.base import Effect, JsonValue, Trust


class State(StrEnum):
    """Where a run stands. The last three are ends."""

    RECEIVED = "RECEIVED"
    PLANNING = "PLANNING"
    WAITING_APPROVAL = "WAITING_APPROVAL"
    WAITING_TOOL = "WAITING_TOOL"
    OBSERVING = "OBSERVING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


INVALID_TOOL = "invalid_tool"
"""What a call goes by that came without a name. No tool may have it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it, under an id of ours that is unique in the whole record."""

    id: str
    provider_id: str | None
    name: str
    arguments: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call brought no data. `reason` is a person's; `details` is the JSON text of an object with
    facts that the model can plan with, such as choices."""

    code: str
    message: str
    reason: str | None = None
    details: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call.

    `data` is the JSON text of what the tool returned: a text, because nobody can change it later.
    `elapsed_ms` counts the tool alone; `retrieved_at` is ISO 8601, UTC. `edited` holds the canonical
    arguments that were asked for and those that a person put in their place.
    """

    ok: bool
    tool_name: str
    data: str | None = None
    error: Failure | None = None
    elapsed_ms: int = 0
    trust: Trust = "trusted"
    source: str = "program"
    retrieved_at: str = ""
    truncated: bool = False
    edited: tuple[str, str] | None = None

    @property
    def result(self) -> JsonValue:
        """What the tool returned, read anew each time; other than whole numbers as Decimal."""
        return value_of(self.data) if self.data else None

    @property
    def code(self) -> str | None:
        return self.error.code if self.error else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one gate said of one call."""

    gate: str
    outcome: Literal["pass", "answer", "ask", "wait"]
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Approval:
    """A card: exactly what will run, for a person to approve or deny.

    `canonical` is the form that runs, as JSON text; `expires_at` is in seconds since the epoch. `host` is
    set where the person also agrees to the first call to a third party.
    """

    id: str
    call_id: str
    tool: str
    canonical: str
    digest: str
    preview: str
    risk: str
    expires_at: float
    host: str | None = None

    @property
    def arguments(self) -> dict[str, JsonValue]:
        """The arguments that run, read anew each time: changing them changes nothing."""
        return value_of(self.canonical)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. `at` is in seconds since the epoch and never goes back."""

    kind: ClassVar[str]
    at: float
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRestored(Event):
    """A transcript that was brought along, before the first message: the JSON text of its messages."""

    kind = "messages_restored"
    messages: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSwitched(Event):
    """The owner switched a tool on or off for this session."""

    kind = "tool_switched"
    tool: str
    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage(Event):
    """A run begins."""

    kind = "user_message"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSent(Event):
    """A request is about to go out.

    It copies nothing: it holds the transcript's entries `first` to `upto`, tool results shrunk before
    `shrunk`. `last_for` names the limit for which it is the last of the run, sent without tools.
    """

    kind = "request_sent"
    number: int
    first: int
    upto: int
    shrunk: int
    last_for: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed(Event):
    """A request brought no reply. It is sent again after `retry_in_s`, or never where that is None."""

    kind = "request_failed"
    code: str
    message: str
    retry_in_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRetried(Event):
    """A person sends the request again that ended the run: the run goes on, with its time anew."""

    kind = "run_retried"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyReceived(Event):
    """A whole reply.

    `extra` is the JSON text of `{"message": vendor fields, "calls": [vendor fields of each call]}`. It is
    echoed within the run, with `extra_lasts` also after it. Neither it nor `reasoning` is kept anywhere
    but here: no store, audit or dump has them.
    """

    kind = "reply_received"
    text: str | None
    calls: tuple[ToolCall, ...]
    usage: Usage
    finish_reason: str | None
    refusal: str | None
    notes: tuple[str, ...]
    elapsed_ms: int
    reasoning: str | None = None
    extra: str | None = None
    extra_lasts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging(Event):
    """One judging of one call: the verdicts of all gates that it reached.

    `arguments` is the canonical form, None where there is none. `effect` is None for a tool that does
    not exist.
    """

    call_id: str
    verdicts: tuple[Verdict, ...]
    digest: str
    arguments: str | None
    effect: Effect | None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswered(Judging):
    """A gate answered the call; nothing ran. `strikes` is the limit that it hit."""

    kind = "call_answered"
    result: ToolResult
    strikes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDeferred(Judging):
    """The call waits for another one; with `again` it is judged once more then, else it takes its result."""

    kind = "call_deferred"
    leader: str
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested(Judging):
    """A person is asked."""

    kind = "approval_requested"
    approval: Approval


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted(Judging):
    """The call runs now. For a write the claim row stands in the store."""

    kind = "call_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished(Event):
    """A call that ran has its result. `executed_digest` is of what the tool was handed: the receipt."""

    kind = "call_finished"
    call_id: str
    verdicts: tuple[Verdict, ...]
    result: ToolResult
    executed_digest: str
    strikes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(Event):
    """A person decided a card. An edit brings its own canonical `arguments` and `digest`."""

    kind = "decided"
    approval_id: str
    call_id: str
    approve: bool
    digest: str
    arguments: str | None = None
    reason: str | None = None
    result: ToolResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalExpired(Event):
    """A card was not decided in time."""

    kind = "approval_expired"
    approval_id: str
    call_id: str
    result: ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The run is over: its end, its answer, and an answer to each call that was still open."""

    kind = "run_ended"
    state: State
    code: str | None
    answer: str | None
    usage: Usage
    answers: tuple[tuple[str, ToolResult], ...] = ()
