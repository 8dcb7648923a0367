"""The demo page: `streamlit run web_demo.py`, or `uvicorn web_demo:app`. No logic lives here."""

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from agent.ui import page, server
from agent.ui.services import close_services

app = st.App(
    __file__,
    middleware=server.middleware(),
    routes=server.routes(),
    lifespan=server.lifespan(close_services),
    on_script_error=page.draw_failure,
)

if get_script_run_ctx(suppress_warning=True):
    page.draw()
