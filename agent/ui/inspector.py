"""The protocol column: one run, seen as a sequence, by its gates, on the wire, and in its ledger."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import streamlit as st

from agent.arguments import json_text
from agent.record import Event, ReplyReceived, RequestFailed, RequestSent
from agent.run import Run
from agent.state import RunState, replayed
from agent.timeline import Lane, Row, RowKind, ahead, judged, ledger, numbered, rows, visible
from agent.ui import protocol
from agent.ui.session import Session
from agent.ui.texts import Texts

MAX_DRAWN_CHARS = 200_000


@dataclass(frozen=True, slots=True)
class Choice:
    """What the person wants to see of which run; `whole` asks for all that went over the wire."""

    run: Run
    view: str
    step: int = 0
    whole: bool = False


def draw_choice(session: Session, t: Texts) -> Choice | None:
    """The widgets of the column, drawn once in a script run; None before the first message."""
    runs = session.agent.runs
    if not runs:
        st.html(f'<div class="gl-none">{escape(t.nothing_yet)}</div>' + _example(t))
        return None
    run = runs[_choose_run(session, len(runs), t) - 1]
    views = [t.view_sequence, t.view_gates, t.view_wire, t.view_ledger]
    view = st.segmented_control(
        t.view, views, default=t.view_sequence, required=True, key="view", label_visibility="collapsed"
    )
    if view != t.view_wire:
        return Choice(run, view or t.view_sequence)
    steps = len(_requests(run.events))
    step = st.selectbox(
        t.step,
        range(1, steps + 1),
        index=steps - 1 if steps else None,
        format_func=lambda number: t.step_named.format(number=number),
        key=f"step_{run.id}_{steps}",
    )
    return Choice(run, view, step or 0, st.toggle(t.show_all, key="whole"))


def _example(t: Texts) -> str:
    """A run with one approval as it could go: an empty page shows who asks whom."""
    request = RequestSent(at=0.0, run_id="", number=1, first=0, upto=1, shrunk=0)
    steps: tuple[tuple[RowKind, Lane, Lane], ...] = (
        ("message", "you", "program"),
        ("request", "program", "model"),
        ("asks", "model", "program"),
        ("approval", "program", "you"),
        ("approved", "you", "program"),
        ("runs", "program", "tools"),
        ("result", "tools", "program"),
        ("says", "model", "program"),
    )
    example = [Row(request, kind, source, target, "c", "write_note") for kind, source, target in steps]
    return protocol.sequence([], example, {"c": 1}, t, {})


def _choose_run(session: Session, count: int, t: Texts) -> int:
    """The number of the run to show: the latest, unless the person looks back."""
    if count == 1:
        return 1
    return st.selectbox(
        t.run_choice,
        range(count, 0, -1),
        format_func=lambda number: t.run_named.format(number=number, count=count),
        key=f"run_{session.id}_{count}",
        label_visibility="collapsed",
    )


def draw_run(session: Session, choice: Choice, t: Texts) -> None:
    """The run as it stands now: its state, what it has spent, and the chosen view."""
    events = choice.run.events
    run = replayed(events)
    st.html(protocol.state_row(run, t) + protocol.meters(run, session.agent.limits, session.agent.now(), t))
    marks = numbered(events)
    if choice.view == t.view_sequence:
        st.html(_sequence(session, run, events, t))
    elif choice.view == t.view_gates:
        st.html(protocol.gates(judged(events), marks, t))
    elif choice.view == t.view_ledger:
        st.html(protocol.ledger(_claims(run), ledger(events), len(run.pending), marks, t))
    else:
        _draw_step(session, events, choice, t)


def _sequence(session: Session, run: RunState, events: Sequence[Event], t: Texts) -> str:
    sizes = {request.number: len(session.agent.request_messages(request)) for request in _requests(events)}
    return protocol.sequence(
        rows(events), ahead(run.pending, events[-1]), numbered(events), t, sizes, lit=not run.ended
    )


def _claims(run: RunState) -> str | None:
    """What the model says, in the end or so far."""
    return run.answer or (run.reply.text if run.reply else None)


# --- the wire -----------------------------------------------------------------------------------


def _requests(events: Iterable[Event]) -> list[RequestSent]:
    return [event for event in events if isinstance(event, RequestSent)]


def _draw_step(session: Session, events: Sequence[Event], choice: Choice, t: Texts) -> None:
    """One request as it was sent, and what came back."""
    request = next((one for one in _requests(events) if one.number == choice.step), None)
    if request is None:
        st.caption(t.nothing_yet)
        return
    st.caption(t.request_sent)
    if request.last_for:
        st.caption(t.final_request.format(code=request.last_for))
    messages = session.agent.request_messages(request)
    tools = session.agent.request_tools(request)
    if choice.whole:
        _draw_json({"messages": messages, "tools": [tool.schema for tool in tools]}, t)
    else:
        news = messages[_known(session, events, request) :]
        st.caption(t.earlier_messages.format(count=len(messages) - len(news)))
        _draw_json({"messages": news, "tools": [tool.name for tool in tools]}, t)
    st.caption(t.reply_received)
    answer = next((event for event in events[events.index(request) :] if _answers(event)), None)
    if answer is None:
        st.caption(t.reply_missing)
    else:
        _draw_json(_reply(answer), t)


def _known(session: Session, events: Sequence[Event], request: RequestSent) -> int:
    """How many messages the model had seen with the request before this one of the same run."""
    before = next((one for one in _requests(events) if one.number == request.number - 1), None)
    if before is None:
        return max(0, len(session.agent.request_messages(request)) - 1)
    return len(session.agent.request_messages(before))


def _answers(event: Event) -> bool:
    return isinstance(event, ReplyReceived | RequestFailed)


def _reply(event: Event) -> dict[str, Any]:
    """A reply as it was read; what a server adds beside the message is not kept."""
    if isinstance(event, RequestFailed):
        return {"error": {"code": event.code, "message": event.message, "retry_in_s": event.retry_in_s}}
    if not isinstance(event, ReplyReceived):
        raise TypeError(f"{event.kind} is no answer to a request.")
    calls = [
        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in event.calls
    ]
    usage = event.usage
    return {
        **({"reasoning": event.reasoning} if event.reasoning else {}),
        "content": event.text,
        **({"tool_calls": calls} if calls else {}),
        **({"refusal": event.refusal} if event.refusal else {}),
        "finish_reason": event.finish_reason,
        "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens},
        **({"wire_notes": list(event.notes)} if event.notes else {}),
    }


def _draw_json(value: Any, t: Texts) -> None:
    """JSON to read: hidden characters as escapes, long lines wrapped, and no more than a page can hold."""
    plain = json.loads(json_text(value, sort_keys=False))
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    st.code(visible(text[:MAX_DRAWN_CHARS]), language="json", wrap_lines=True)
    if len(text) > MAX_DRAWN_CHARS:
        st.caption(t.too_long.format(shown=MAX_DRAWN_CHARS, count=len(text)))
