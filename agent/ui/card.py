"""The approval card: what will run, whole, and the person's decision.

All on it is the program's: words of the catalogue, and the canonical arguments as code. It stands in a
frame of its own under the conversation, where no text of a model is drawn.
"""

import re
from collections.abc import Mapping
from html import escape
from typing import Any
from unicodedata import bidirectional

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from agent.agent import MAX_REASON_CHARS
from agent.arguments import BadJson, json_text, parse
from agent.record import Approval
from agent.timeline import escaped, numbered, visible
from agent.ui import protocol
from agent.ui.session import EditFault, Session
from agent.ui.texts import Texts
from tools.base import FieldFault, JsonValue

_PLAIN_NAME = re.compile(r"[A-Za-z]\w{0,60}", re.ASCII)


def draw_cards(session: Session, place: DeltaGenerator, t: Texts) -> None:
    """One card for each call that waits, in call order; where none does, the place is empty at once."""
    run = session.agent.run
    if run is None or not run.pending:
        place.empty()
        return
    cards, marks = run.pending, numbered(run.events)
    with place.container(key="cards"):
        if len(cards) > 1:
            st.caption(t.cards.format(count=len(cards)))
        for card in cards:
            with st.container(border=True, key=f"card_{card.id}"):
                _draw(session, card, marks, t)


def _draw(session: Session, card: Approval, marks: Mapping[str, int], t: Texts) -> None:
    with st.container(horizontal=True, key=f"head_{card.id}"):
        st.html(_head(card, marks, t))
        _countdown(session, card, t)
    st.html(_asked(card, marks, t))
    if session.editing == card.id:
        _draw_edit(session, card, t)
    else:
        _draw_decision(session, card, t)


def lines(arguments: Mapping[str, JsonValue]) -> str:
    """Arguments for a card: one a line, each value as the JSON that runs, hidden characters as escapes."""
    return visible("\n".join(f"{name}: {json_text(value)}" for name, value in arguments.items()))


def _in_order(text: str) -> str:
    """The same with right-to-left letters as escapes: beside them, numbers are drawn in another order."""
    return "".join(escaped(c) if bidirectional(c) in ("R", "AL", "AN") else c for c in text)


@st.fragment(run_every=1.0)
def _countdown(session: Session, card: Approval, t: Texts) -> None:
    """The time that is left. Its ticking tells the program that somebody looks.

    Where the card has expired, or its run was ended meanwhile, the page is drawn anew.
    """
    session.seen()
    left, run = session.seconds_left(card), session.agent.run
    st.html(_time_left(left, t), width="content")
    if left <= 0 or run is None or card not in run.pending:
        session.go_on()
        st.rerun()


def _head(card: Approval, marks: Mapping[str, int], t: Texts) -> str:
    """That a person is asked, by which call, and what is at risk."""
    risk = t.risk_third_party if card.risk == "third_party" else t.risk_write
    return (
        f'<div class="gl-asked">{escape(t.card)} {protocol.chip(card.call_id, marks, t)}'
        f'<span class="gl-risk">{escape(risk)}</span></div>'
    )


def _asked(card: Approval, marks: Mapping[str, int], t: Texts) -> str:
    """What will happen, in a sentence of the program, and which call with which digest it is."""
    digest = f"{card.digest[:4]} {card.digest[4:8]}"
    facts = t.card_facts.format(number=marks.get(card.call_id, "?"), tool=visible(card.tool), digest=digest)
    return (
        f'<div class="gl-preview">{escape(visible(card.preview))}</div>'
        f'<div class="gl-facts">{escape(facts)}</div>'
    )


def _time_left(left_s: float, t: Texts) -> str:
    minutes, seconds = divmod(max(0, int(left_s)), 60)
    text = t.expires_in.format(minutes=minutes, seconds=seconds) if left_s > 0 else t.expired
    return f'<div class="gl-time" role="timer">{escape(text)}</div>'


def _fault(sentence: str) -> str:
    return f'<div class="gl-fault" role="alert">{escape(visible(sentence))}</div>'


def _draw_decision(session: Session, card: Approval, t: Texts) -> None:
    st.caption(t.runs_exactly)
    runs = lines(card.arguments)
    st.code(runs, language=None, wrap_lines=True)
    if (in_order := _in_order(runs)) != runs:
        st.caption(t.right_to_left)
        st.code(in_order, language=None, wrap_lines=True)
    reason = f"reason_{card.id}"
    with st.container(horizontal=True, key=f"decision_{card.id}"):
        st.button(
            t.approve,
            key=f"approve_{card.id}",
            type="primary",
            icon=":material/check:",
            on_click=session.decide,
            args=(card,),
            kwargs={"approve": True},
        )
        st.button(
            t.deny,
            key=f"deny_{card.id}",
            icon=":material/block:",
            on_click=_deny,
            args=(session, card, reason),
        )
        st.button(t.edit, key=f"edit_{card.id}", icon=":material/edit:", on_click=session.edit, args=(card,))
    st.text_input(t.reason, key=reason, max_chars=MAX_REASON_CHARS)


def _deny(session: Session, card: Approval, reason: str) -> None:
    session.decide(card, approve=False, reason=st.session_state.get(reason))


# --- editing ------------------------------------------------------------------------------------


def _draw_edit(session: Session, card: Approval, t: Texts) -> None:
    """A box for each argument, with what a gate had against it underneath."""
    st.caption(t.edit_title)
    fault = session.edit_fault if session.edit_fault and session.edit_fault.card_id == card.id else None
    boxes = _boxes(session, card)
    for name, value in boxes.items():
        key = f"edit_{card.id}_{name}"
        text = st.text_area(name or t.whole_arguments, value=value, key=key) or ""
        if visible(text) != text:
            st.code(visible(text), language=None, wrap_lines=True)
        for problem in fault.fields if fault else ():
            if problem.field.split(".")[0] == name:
                st.html(_fault(problem.message))
    if fault and not any(problem.field.split(".")[0] in boxes for problem in fault.fields):
        st.html(_fault(t.not_changed.format(sentence=fault.message)))
    with st.container(horizontal=True, key=f"edited_{card.id}"):
        st.button(
            t.approve_edited,
            key=f"approve_edited_{card.id}",
            type="primary",
            icon=":material/check:",
            on_click=_approve_edited,
            args=(session, card, t),
        )
        st.button(t.cancel_edit, key=f"leave_{card.id}", on_click=session.edit, args=(None,))


def _boxes(session: Session, card: Approval) -> dict[str, str]:
    """What stands in the boxes at first, by argument; one box for all where a name is no plain word."""
    properties = session.agent.tools[card.tool].parameters.get("properties", {})
    if not properties or not all(_PLAIN_NAME.fullmatch(name) for name in properties):
        return {"": json_text(card.arguments)}
    return {
        name: _shown(card.arguments[name], schema) if name in card.arguments else ""
        for name, schema in properties.items()
    }


def _is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string"


def _shown(value: JsonValue, schema: Mapping[str, Any]) -> str:
    return value if isinstance(value, str) and _is_text(schema) else json_text(value)


def _approve_edited(session: Session, card: Approval, t: Texts) -> None:
    """Read the boxes and approve what they hold; what cannot be read is said at its box."""
    texts = {name: st.session_state.get(f"edit_{card.id}_{name}", "") for name in _boxes(session, card)}
    properties = session.agent.tools[card.tool].parameters.get("properties", {})
    arguments: dict[str, JsonValue] = {}
    faults: list[FieldFault] = []
    for name, text in texts.items():
        if not text.strip() and name and name not in card.arguments:
            continue
        try:
            arguments |= _read(name, text, _is_text(properties.get(name, {})))
        except BadJson as error:
            faults.append(FieldFault(name, "type", t.unreadable.format(sentence=error)))
    if faults:
        session.edit_fault = EditFault(card.id, faults[0].message, tuple(faults))
    else:
        session.decide(card, approve=True, arguments=arguments)


def _read(name: str, text: str, is_text: bool) -> dict[str, JsonValue]:
    """What a box holds: a text as it is, other values as JSON; `BadJson` where it is none."""
    if is_text:
        return {name: text}
    if not name:
        return parse(text)
    read = parse(f"{{{json_text(name)}:{text}}}")
    if list(read) != [name]:
        raise BadJson("There is more than one value.")
    return read
