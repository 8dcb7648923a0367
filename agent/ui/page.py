"""The page: draws what there is, then follows the run while it works. It decides nothing."""

import logging
import traceback
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from agent.record import RunRetried
from agent.ui import card, chat, inspector
from agent.ui.inspector import Choice
from agent.ui.services import services
from agent.ui.session import Notice, Session, Sight
from agent.ui.sidebar import draw_sidebar, first_model
from agent.ui.style import CSS
from agent.ui.texts import ENGLISH, Texts
from tools.catalog import ALL_TOOLS

_LOG = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often the clock is drawn anew while nothing happens."""

FRAME_S = 0.05
"""Between two drawings at least: a model may write faster than anybody reads."""

CONVERSATION_PX = 600
"""Where the style sheet does not fit it to the window."""

SETTLE_S = 0.05
"""A run that is over at once is drawn once, and not first as one that works."""


def draw() -> None:
    """Draw the page for the browser session of this script run; a fault of our own is one sentence."""
    try:
        _draw(ENGLISH)
    except Exception as fault:  # noqa: BLE001
        draw_failure(fault)


def draw_failure(fault: Exception) -> bool:
    """Say that the page could not be drawn. True: nothing of the exception itself is shown or logged."""
    place = traceback.extract_tb(fault.__traceback__)[-1]
    _LOG.error("%s in %s, line %s", type(fault).__name__, Path(place.filename).name, place.lineno)
    st.error(ENGLISH.failed_draw)
    return True


def _draw(t: Texts) -> None:
    st.set_page_config(page_title=t.title, page_icon="🔍", layout="wide")
    st.html(CSS)
    session = _session()
    session.seen()
    session.settle(SETTLE_S)
    drawn = session.sight()
    left, right = st.columns([11, 10], gap="large")
    with left, st.container(key="left"):
        # It scrolls by itself, so that a card under it is in sight, and no model's text is beside it.
        conversation = st.container(key="conversation", height=CONVERSATION_PX, border=False, autoscroll=True)
        # What a click changes comes first: a decided card goes at once, and not with the end of the script.
        card.draw_cards(session, st.empty(), t)
        _draw_notice(session, st.empty(), t)
        _draw_retry(session, st.empty(), t)
    with st.bottom:
        _draw_input(session, t)
    with conversation:
        earlier = st.container()
        live = _place_of_latest(session, st.empty(), st.empty())
        _draw_live(session, live, t)
    with right, st.container(key="protocol"):
        choice = inspector.draw_choice(session, t)
        shown = st.empty()
        if choice:
            with shown.container():
                inspector.draw_run(session, choice, t)
    with earlier:
        chat.draw_earlier(session, t)
    draw_sidebar(session, t)
    if drawn.working or drawn != session.sight():
        # What is drawn is of a run at work, though it may be over by now.
        _follow(session, live, shown, choice, t)


def _session() -> Session:
    """The session that this browser session owns; made at its first script run."""
    if "session" not in st.session_state:
        st.session_state["session"] = Session(services(), first_model(), ALL_TOOLS)
    session: Session = st.session_state["session"]
    return session


def _place_of_latest(session: Session, odd: DeltaGenerator, even: DeltaGenerator) -> DeltaGenerator:
    """Where the latest run is drawn, in turn: what is drawn over keeps its rest until the script ends."""
    events = session.agent.run.events if session.agent.run else []
    begun = len(session.agent.runs) + sum(isinstance(event, RunRetried) for event in events)
    place, other = (odd, even) if begun % 2 else (even, odd)
    other.empty()
    return place


def _draw_live(session: Session, live: DeltaGenerator, t: Texts) -> None:
    """The latest run, or what can be asked at first."""
    with live.container():
        run = session.agent.run
        if run is None and not session.working:
            chat.draw_welcome(session, t)
        elif run:
            chat.draw_run(run.events, session.said, t)


def _draw_notice(session: Session, place: DeltaGenerator, t: Texts) -> None:
    if session.notice:
        place.warning(_told(session.notice, t))


def _draw_retry(session: Session, place: DeltaGenerator, t: Texts) -> None:
    """Where the model's server failed, the way to ask it once more."""
    run = session.agent.state.run
    if session.working or run is None or not run.can_retry:
        place.empty()
    elif not session.agent.can_retry:
        place.caption(t.retry_spent)
    else:
        with place.container(horizontal=True, vertical_alignment="center", key="retrying"):
            st.button(t.retry, key="retry", icon=":material/replay:", on_click=session.retry)
            st.caption(t.retry_hint)


def _told(notice: Notice, t: Texts) -> str:
    match notice.kind:
        case "refused":
            return t.refused.format(sentence=notice.sentence)
        case "busy":
            return t.busy
        case "card_closed":
            return t.card_closed
        case "going_down":
            return t.going_down


def _draw_input(session: Session, t: Texts) -> None:
    """The message box, disabled with its reason while a run is open, and then the way to stop it."""
    key = f"message_{session.id}"
    if session.draft is not None:
        st.session_state[key], session.draft = session.draft, None
    is_open = session.open()
    placeholder = (t.input_working if session.working else t.input_waiting) if is_open else t.ask_here
    with st.container(horizontal=True, vertical_alignment="center", key="input"):
        st.chat_input(placeholder, key=key, disabled=is_open, on_submit=_ask, args=(session, key))
        if is_open:
            st.button(t.stop, key="stop", icon=":material/stop_circle:", on_click=session.stop)


def _ask(session: Session, key: str) -> None:
    text = st.session_state[key]
    if text:
        session.ask(text)


def _follow(
    session: Session,
    live: DeltaGenerator,
    shown: DeltaGenerator,
    choice: Choice | None,
    t: Texts,
) -> None:
    """Draw what changes while a worker is at the run, and all of it anew after that.

    Ending this at any call loses nothing.
    """
    sight: Sight | None = None
    while session.working:
        session.seen()
        before, sight = sight, session.wait(sight, LOOK_S)
        _draw_live(session, live, t)
        if choice and (before is None or before.events != sight.events or before == sight):
            with shown.container():
                inspector.draw_run(session, choice, t)
        session.settle(FRAME_S)
    st.rerun()
