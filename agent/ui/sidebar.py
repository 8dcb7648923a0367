"""The sidebar: which model answers, what leaves the machine, the tools with their switches, the limits."""

from html import escape

import streamlit as st

from agent.limits import Limits
from agent.model import Model
from agent.model.scripted import Scripted
from agent.settings import SettingsError
from agent.timeline import visible
from agent.ui.services import endpoint
from agent.ui.session import Session
from agent.ui.texts import Texts
from tools.base import Tool


def first_model() -> Model:
    """The model that a new session begins with: the endpoint's where one is set, else the script."""
    try:
        return endpoint() or Scripted()
    except SettingsError:
        return Scripted()


def draw_sidebar(session: Session, t: Texts) -> None:
    with st.sidebar:
        st.html(
            f'<div class="gl-brand">{escape(t.title)}</div><div class="gl-small">{escape(t.tagline)}</div>'
        )
        _draw_model(session, t)
        st.button(
            t.new_conversation,
            key="new_conversation",
            icon=":material/add:",
            width="stretch",
            on_click=_begin,
            args=(session, session.model),
        )
        st.html(_leaves(session, t))
        with st.expander(t.tools, expanded=True, key="tools"):
            _draw_tools(session, t)
        with st.expander(t.limits, key="limits"):
            st.html(_limits(session.agent.limits, t))


def _begin(session: Session, model: Model) -> None:
    st.session_state["session"] = session.anew(model)


# --- the model ----------------------------------------------------------------------------------


def _draw_model(session: Session, t: Texts) -> None:
    """Who answers, and the choice where there is one."""
    try:
        real = endpoint()
    except SettingsError as fault:
        real = None
        st.warning(escape(t.settings_fault.format(sentence=fault)))
    choices = [t.scripted] if real is None else [t.model_named, t.scripted]
    st.selectbox(
        t.model_choice,
        choices,
        index=choices.index(t.scripted) if session.model is not real else 0,
        key=f"model_{session.id}",
        on_change=_choose,
        args=(session, real, t),
        disabled=len(choices) == 1,
    )
    hint = f" {escape(t.begins_anew)}" if len(choices) > 1 else ""
    st.html(f'<div class="gl-small">{_who(session.model, t)}{hint}</div>')


def _choose(session: Session, real: Model | None, t: Texts) -> None:
    scripted = st.session_state[f"model_{session.id}"] == t.scripted
    _begin(session, Scripted() if scripted or real is None else real)


def _who(model: Model, t: Texts) -> str:
    host = _host(model)
    if host is None:
        return escape(t.model_scripted)
    return escape(t.model_real.format(name=visible(model.name), host=visible(host)))


def _host(model: Model) -> str | None:
    """Where the conversation goes; None for the script, which has no endpoint."""
    return getattr(model, "host", None)


def _leaves(session: Session, t: Texts) -> str:
    """What leaves this machine, and to whom: the model's endpoint, and each tool that reaches out."""
    host = _host(session.model)
    lines = [t.leaves_model.format(host=host)] if host else []
    lines += [t.leaves_tool.format(tool=one.name, host=one.host) for one in session.tools if one.host]
    said = "".join(f"<div>{escape(visible(line))}</div>" for line in lines or [t.leaves_nothing])
    return f'<div class="gl-leaves"><div class="gl-title">{escape(t.leaves)}</div>{said}</div>'


# --- tools and limits ---------------------------------------------------------------------------


def _draw_tools(session: Session, t: Texts) -> None:
    st.caption(t.tools_hint)
    for tool in session.tools:
        key = f"tool_{session.id}_{tool.name}"
        with st.container(key=f"switch_{tool.name}", gap=None):
            st.toggle(tool.name, value=True, key=key, on_change=_switch, args=(session, tool, key))
            st.html(f'<div class="gl-small">{escape(_effect(tool, t))}</div>')


def _switch(session: Session, tool: Tool, key: str) -> None:
    session.agent.switch(tool.name, on=st.session_state[key])


def _effect(tool: Tool, t: Texts) -> str:
    effect = {"none": t.effect_none, "read": t.effect_read, "write": t.effect_write}[tool.effect]
    return f"{effect} · {t.goes_to.format(host=visible(tool.host)) if tool.host else t.stays_here}"


def _limits(limits: Limits, t: Texts) -> str:
    rows = (f"<div><b>{getattr(limits, name):,g}</b> {escape(said)}</div>" for name, said in t.limit_rows)
    return f'<div class="gl-limits">{"".join(rows)}</div>'
