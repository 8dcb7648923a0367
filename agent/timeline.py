"""Projections of the record for people: rows, the gates of each call, and the ledger.

A page and a terminal draw what stands here, in words of their own. What a model, a tool or a person
wrote is in `detail`, `tool` and `reason`, to be shown as text.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agent import record
from agent.gates import GATES, PASSED
from agent.record import Event, Verdict
from tools.base import Effect, Trust

Lane = Literal["you", "program", "model", "tools"]
RowKind = Literal[
    "message",
    "request",
    "request_failed",
    "retried",
    "thinks",
    "says",
    "asks",
    "note",
    "answered",
    "deferred",
    "approval",
    "runs",
    "result",
    "approved",
    "denied",
    "expired",
    "ended",
    "switched",
    "restored",
]


@dataclass(frozen=True, slots=True)
class Row:
    """One arrow of a timeline, from lane to lane; an event of the record has one or more.

    `tool` is the name as the model wrote it, `code` an error, finish or end code.
    """

    event: Event
    kind: RowKind
    source: Lane
    target: Lane
    call_id: str | None = None
    tool: str | None = None
    detail: str = ""
    code: str | None = None
    verdicts: tuple[Verdict, ...] = ()
    effect: Effect | None = None
    trust: Trust | None = None


def rows(events: Iterable[Event]) -> Iterator[Row]:
    """The timeline of these events, in their order."""
    names: dict[str, str] = {}
    for event in events:
        for row in _rows(event):
            if row.kind == "asks" and row.call_id and row.tool:
                names[row.call_id] = row.tool
            yield replace(row, tool=names.get(row.call_id)) if row.call_id and not row.tool else row


def _rows(event: Event) -> Iterator[Row]:
    match event:
        case record.UserMessage():
            yield Row(event, "message", "you", "program", detail=event.text)
        case record.RequestSent():
            yield Row(event, "request", "program", "model", code=event.last_for)
        case record.RequestFailed():
            yield Row(event, "request_failed", "model", "program", detail=event.message, code=event.code)
        case record.RunRetried():
            yield Row(event, "retried", "you", "program")
        case record.ReplyReceived():
            yield from _of_reply(event)
        case record.Judging():
            yield _of_judging(event)
        case record.CallFinished(result=result):
            said = result.error.message if result.error else result.data or ""
            yield Row(
                event,
                "result",
                "tools",
                "program",
                event.call_id,
                result.tool_name,
                said,
                result.code,
                event.verdicts,
                trust=result.trust,
            )
        case record.Decided():
            detail = event.reason or event.arguments or ""
            kind = "approved" if event.approve else "denied"
            yield Row(event, kind, "you", "program", event.call_id, detail=detail)
        case record.ApprovalExpired():
            yield Row(event, "expired", "program", "program", event.call_id, code="expired")
        case record.RunEnded():
            yield Row(event, "ended", "program", "you", detail=event.state, code=event.code)
        case record.ToolSwitched():
            yield Row(event, "switched", "you", "program", tool=event.tool, code="on" if event.on else "off")
        case _:
            yield Row(event, "restored", "you", "program")


def _of_reply(event: record.ReplyReceived) -> Iterator[Row]:
    """What the model said, what it asked for, and how its reply deviated from the protocol."""
    if event.reasoning:
        yield Row(event, "thinks", "model", "program", detail=event.reasoning)
    said = event.refusal or event.text or ""
    if said or not event.calls:
        yield Row(event, "says", "model", "program", detail=said, code=event.finish_reason)
    for call in event.calls:
        yield Row(event, "asks", "model", "program", call.id, call.name, call.arguments or "")
    for note in event.notes:
        yield Row(event, "note", "program", "program", detail=note)


def _of_judging(event: record.Judging) -> Row:
    own = Row(event, "runs", "program", "tools", event.call_id, verdicts=event.verdicts, effect=event.effect)
    match event:
        case record.CallAnswered(result=result):
            said = result.error.message if result.error else result.data or ""
            return replace(own, kind="answered", target="program", detail=said, code=result.code)
        case record.CallDeferred():
            return replace(own, kind="deferred", target="program", detail=event.leader)
        case record.ApprovalRequested(approval=card):
            return replace(own, kind="approval", target="you", detail=f"{card.preview} {card.canonical}")
        case _:
            return replace(own, detail=event.arguments or "")


def ahead(pending: Sequence[record.Approval], last: Event) -> list[Row]:
    """What comes next where a person is asked: not yet true, to be drawn as such."""
    return [
        row
        for card in pending
        for row in (
            Row(last, "approved", "you", "program", card.call_id, card.tool),
            Row(last, "runs", "program", "tools", card.call_id, card.tool, effect="write"),
        )
    ]


# --- the gates of each call ---------------------------------------------------------------------


@dataclass(slots=True)
class Judged:
    """One call before the gates: the verdict of each gate that it reached, in all its judgings.

    `code` is what the call was answered in the end, ok where its tool succeeded, None before.
    """

    call: record.ToolCall
    verdicts: dict[str, Verdict] = field(default_factory=dict[str, Verdict])
    code: str | None = None

    def pills(self) -> list[tuple[str, Verdict | None]]:
        """Each gate in order, with its verdict; None where the call did not get there."""
        return [(gate, self.verdicts.get(gate)) for gate in GATES]


def judged(events: Iterable[Event]) -> list[Judged]:
    """The calls of these events with the fold of their verdicts, in the order of the calls."""
    calls: dict[str, Judged] = {}
    for event in events:
        match event:
            case record.ReplyReceived():
                calls.update((call.id, Judged(call)) for call in event.calls)
            case record.Judging() | record.CallFinished():
                calls[event.call_id].verdicts.update((v.gate, v) for v in event.verdicts)
            case record.Decided(approve=True):
                calls[event.call_id].verdicts["approval"] = PASSED["approval"]
            case _:
                pass
        for call_id, result in _answers(event):
            _close(calls[call_id], result.code)
    return list(calls.values())


def numbered(events: Iterable[Event]) -> dict[str, int]:
    """The number of each call in these events, from 1: shorter to say than its id."""
    replies = (event for event in events if isinstance(event, record.ReplyReceived))
    return {call.id: number for number, call in enumerate((c for r in replies for c in r.calls), 1)}


def _close(one: Judged, code: str | None) -> None:
    """A call is answered: a gate that was still waiting for a person now says with what."""
    one.code = code or "ok"
    asked = one.verdicts.get("approval")
    if asked and asked.outcome == "ask":
        one.verdicts["approval"] = Verdict("approval", "answer", code)


# --- the ledger ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deed:
    """What the program did about one call: the ledger that stands beside what a model says.

    `code` is None where the result is ok. `approved` is the digest of the form that a person approved,
    `executed` of what the tool was handed; None where nobody was asked, or nothing ran.
    """

    call_id: str
    tool: str
    effect: Effect | None
    code: str | None
    approved: str | None = None
    executed: str | None = None

    @property
    def ran(self) -> bool:
        return self.executed is not None

    @property
    def as_approved(self) -> bool | None:
        """Whether what ran is what a person approved; None where there is nothing to compare."""
        return None if None in (self.approved, self.executed) else self.approved == self.executed


def ledger(events: Iterable[Event]) -> list[Deed]:
    """One deed a call that was answered, in the order of the answers."""
    deeds: list[Deed] = []
    approved: dict[str, str] = {}
    effects: dict[str, Effect | None] = {}
    for event in events:
        executed = event.executed_digest if isinstance(event, record.CallFinished) else None
        if isinstance(event, record.Judging):
            effects[event.call_id] = event.effect
        if isinstance(event, record.Decided) and event.approve:
            approved[event.call_id] = event.digest
        deeds += [
            Deed(
                call_id, answer.tool_name, effects.get(call_id), answer.code, approved.get(call_id), executed
            )
            for call_id, answer in _answers(event)
        ]
    return deeds


def _answers(event: Event) -> Sequence[tuple[str, record.ToolResult]]:
    match event:
        case record.CallFinished() | record.CallAnswered() | record.ApprovalExpired():
            return [(event.call_id, event.result)]
        case record.Decided(result=result) if result:
            return [(event.call_id, result)]
        case record.RunEnded():
            return event.answers
        case _:
            return []


# --- inert text ---------------------------------------------------------------------------------

# Characters that draw nothing although their category says otherwise (fillers, joiners, selectors).
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


# More marks than any script puts on one letter; piled up higher they paint over what stands around them.
MAX_MARKS = 4


def visible(text: str) -> str:
    """A stranger's text made inert for a terminal or a card: hidden and control characters as escapes."""
    return "".join(_shown(text))


def _shown(text: str) -> Iterator[str]:
    marks = 0
    for character in text:
        if character in "\n\t" or (character.isascii() and character.isprintable()):
            marks = 0
            yield character
            continue
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        hidden = category in _HIDDEN or _UNSEEN.match(character) is not None
        yield escaped(character) if hidden or marks > MAX_MARKS else character


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
