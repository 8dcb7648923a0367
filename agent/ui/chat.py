"""The chat column: what was said, what came of it, and what is being written now."""

from collections.abc import Sequence
from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from agent.model.quirks import Quirk
from agent.record import Event
from agent.run import Run
from agent.state import RunState, replayed
from agent.timeline import ledger, numbered, rows, visible
from agent.ui import protocol
from agent.ui.markdown import readable, to_html
from agent.ui.session import Session
from agent.ui.texts import Texts
from agent.words import ENDS

MAX_DRAWN_CHARS = 20_000
AVATARS = {"user": ":material/person:", "assistant": ":material/lens_blur:"}


def draw_earlier(session: Session, t: Texts) -> None:
    """The runs before the latest one, as far as they are shown."""
    earlier = session.agent.runs[:-1]
    shown = _last(earlier, session.shown_messages)
    if len(shown) < len(earlier):
        st.button(t.show_earlier, key="show_earlier", type="tertiary", on_click=session.show_earlier)
    for run in shown:
        draw_run(run.events, "", t)


def _last(runs: Sequence[Run], messages: int) -> Sequence[Run]:
    """The last runs, as many as have this number of messages together."""
    first = len(runs)
    while first > 0 and messages > 0:
        first -= 1
        messages -= sum(row.kind in ("message", "says") for row in rows(runs[first].events))
    return runs[first:]


def draw_run(events: Sequence[Event], writing: str, t: Texts) -> None:
    """One run: what was said in it, what is being written now, and under its end what the program did."""
    for row in rows(events):
        if row.kind == "message":
            _bubble("user").text(readable(row.detail))
        elif row.kind == "thinks":
            _draw_reasoning(row.detail, t)
        elif row.kind == "says":
            _draw_words(row.detail, t)
        elif row.kind == "note" and row.detail == Quirk.CALL_AS_TEXT:
            st.caption(t.call_as_text)
    _draw_words(writing, t)
    run = replayed(events)
    if run.ended:
        st.html(_outcome(run, events, t))
    elif run.reply is None and not writing:
        st.html(f'<div class="gl-small" role="status">{escape(visible(_awaited(run, t)))}</div>')


def _awaited(run: RunState, t: Texts) -> str:
    """Why nothing is being said."""
    if run.failed and run.failed.retry_in_s is not None:
        return t.retrying.format(sentence=run.failed.message, seconds=run.failed.retry_in_s)
    return t.waiting


def _outcome(run: RunState, events: Sequence[Event], t: Texts) -> str:
    """How a run ended, and what the program did beside what the model says."""
    deeds = ledger(events)
    marks = numbered(events)
    if any(map(protocol.concerns_a_person, deeds)):
        told = protocol.ledger(run.answer or _last_words(events), deeds, 0, marks, t)
    else:
        told = protocol.did(deeds, marks, t)
    if run.end_code is None:
        return told
    word, sentence = t.states[run.state], ENDS[run.end_code]
    cause = run.failed.message if run.failed and run.limit is None else ""
    return (
        f'<div class="gl-ended" role="status"><b>{escape(word)}</b> '
        f'<span class="gl-code">{escape(run.end_code)}</span> {escape(sentence)}'
        f'<div class="gl-quiet">{escape(visible(cause))}</div></div>{told}'
    )


def _last_words(events: Sequence[Event]) -> str | None:
    """What the model said last, in a run that ended without an answer."""
    words = [row.detail for row in rows(events) if row.kind == "says" and row.detail]
    return words[-1] if words else None


def _draw_words(text: str, t: Texts) -> None:
    """What a model says, as much of it as a page can hold: the record and the wire have it whole."""
    if not text.strip():
        return
    with _bubble("assistant"):
        st.html(to_html(text[:MAX_DRAWN_CHARS]))
        if len(text) > MAX_DRAWN_CHARS:
            st.caption(t.too_long.format(shown=MAX_DRAWN_CHARS, count=len(text)))


def _draw_reasoning(text: str, t: Texts) -> None:
    """What a model thought: folded, as plain text, and apart from what it says."""
    st.html(
        f'<details class="gl-thought"><summary>{escape(t.reasoning)}</summary>'
        f"<div>{escape(visible(text[:MAX_DRAWN_CHARS]))}</div></details>"
    )
    if len(text) > MAX_DRAWN_CHARS:
        st.caption(t.too_long.format(shown=MAX_DRAWN_CHARS, count=len(text)))


def _bubble(name: str) -> DeltaGenerator:
    return st.chat_message(name, avatar=AVATARS[name])


def draw_welcome(session: Session, t: Texts) -> None:
    """An empty conversation: what this is, and four things to try."""
    st.markdown(t.welcome)
    st.caption(t.try_one)
    for number, (hint, message) in enumerate(t.suggestions):
        with st.container(key=f"suggestion_{number}", gap=None):
            st.button(message, key=f"try_{number}", width="stretch", on_click=session.ask, args=(message,))
            st.caption(hint)
