"""Whole runs against two model servers that nobody here wrote."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import openai
import pytest

from agent import Agent, Run, State
from agent.audit import AuditLog
from agent.model.openai_chat import OpenAIChat
from agent.record import RequestFailed
from agent.transcript import check_pairing
from tests.endpoints.server import Endpoint, Llmock
from tests.support import SUM, Counter, make_tool

KEY = "sk-endpoint-CANARY-123"
ANSWER = "Noted the flight at nine. The second note was not saved. The sum is 5.5."

streams = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])


class Desk:
    """An agent with counting tools in front of a real client; audited, on the machine's clock."""

    def __init__(self, client: openai.OpenAI, stream: bool, audit: AuditLog) -> None:
        self.note = Counter(lambda arguments: {"saved": arguments["text"]})
        self.look = Counter(lambda arguments: {"seen": arguments["text"]})
        self.add = Counter(lambda arguments: {"result": arguments["a"] + arguments["b"]})
        self.deltas: list[str] = []
        self.agent = Agent(
            model=OpenAIChat(client=client, model="gpt-4o", stream=stream),
            tools=[
                make_tool("note", self.note, "write"),
                make_tool("look", self.look, "read"),
                make_tool("add", self.add, "none", SUM),
            ],
            owner_id="o-1",
            audit=audit,
            jitter=lambda: 0.0,
        )

    def ask(self, text: str) -> Run:
        return self.agent.ask(text, on_delta=self.deltas.append)

    def decide(self, text: str, approve: bool, **more: Any) -> bool:
        run = self.agent.run
        assert run is not None
        card = next(card for card in run.pending if card.arguments == {"text": text})
        return self.agent.decide(card.id, card.digest, approve=approve, **more)

    def proceed(self) -> Run:
        run = self.agent.proceed(on_delta=self.deltas.append)
        assert run is not None
        return run

    def results(self) -> list[dict[str, Any]]:
        """The envelopes in the transcript, in order."""
        return [json.loads(m["content"]) for m in self.agent.messages if m["role"] == "tool"]

    def codes(self) -> list[str]:
        return ["ok" if one["ok"] else one["error"]["code"] for one in self.results()]


MakeDesk = Callable[[Endpoint, bool], Desk]


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[MakeDesk]:
    with ExitStack() as open_things:

        def make(endpoint: Endpoint, stream: bool) -> Desk:
            client = open_things.enter_context(openai.OpenAI(base_url=endpoint.base_url, api_key=KEY))
            audit = open_things.enter_context(closing(AuditLog(tmp_path / "audit.jsonl")))
            return Desk(client, stream, audit)

        yield make


@streams
def test_a_whole_run_with_parallel_calls_an_approval_and_a_denial(
    endpoint: Endpoint, make_desk: MakeDesk, stream: bool
) -> None:
    endpoint.play("plan the flight")
    desk = make_desk(endpoint, stream)
    run = desk.ask("Please plan the flight.")

    # The reads of the first reply have run, and what needs nobody in the second; the notes wait.
    assert run.state == State.WAITING_APPROVAL
    assert [card.arguments for card in run.pending] == [
        {"text": "the flight is at nine"},
        {"text": "the card number"},
    ]
    assert desk.note.calls == []
    assert len(endpoint.bodies()) == 2

    assert desk.decide("the card number", approve=False, reason="too private")
    assert desk.decide("the flight is at nine", approve=True)
    run = desk.proceed()

    assert (run.state, run.end_code, run.answer) == (State.COMPLETED, None, ANSWER)
    assert desk.look.calls == [{"text": "departure"}]
    assert desk.add.calls == [{"a": 2, "b": 3}, {"a": 5, "b": 0.5}]
    assert desk.note.calls == [{"text": "the flight is at nine"}]
    assert desk.codes() == ["ok", "ok", "ok", "denied", "ok"]
    assert [one["tool"] for one in desk.results()] == ["add", "look", "note", "note", "add"]
    assert [one.get("data") for one in desk.results()] == [
        {"result": 5},
        {"seen": "departure"},
        {"saved": "the flight is at nine"},
        None,
        {"result": 5.5},
    ]
    assert desk.results()[3]["error"]["reason"] == "too private"
    assert check_pairing(desk.agent.messages) == []
    assert run.usage.prompt_tokens > 0
    assert run.usage.completion_tokens > 0
    assert not run.usage.estimated
    assert "".join(desk.deltas) == ANSWER
    assert (len(desk.deltas) > 3) is stream


@streams
def test_the_server_got_lawful_requests_that_only_grow(
    endpoint: Endpoint, make_desk: MakeDesk, stream: bool
) -> None:
    endpoint.play("plan the flight")
    desk = make_desk(endpoint, stream)
    desk.ask("Please plan the flight.")
    desk.decide("the flight is at nine", approve=True)
    desk.decide("the card number", approve=False)
    desk.proceed()

    bodies = endpoint.bodies()
    asked = [body["messages"] for body in bodies]
    assert [check_pairing(messages) for messages in asked] == [[], [], []]
    assert [len(messages) for messages in asked] == [2, 5, 9]
    assert asked[2][: len(asked[1])] == asked[1]
    assert asked[2] == desk.agent.messages[:-1]
    assert [bool(body.get("stream")) for body in bodies] == [stream] * 3
    assert [len(body["tools"]) for body in bodies] == [3] * 3


@streams
def test_the_key_stays_out_of_record_transcript_and_audit(
    endpoint: Endpoint, make_desk: MakeDesk, stream: bool, tmp_path: Path
) -> None:
    endpoint.play("plan the flight")
    desk = make_desk(endpoint, stream)
    run = desk.ask("Please plan the flight.")
    kept = json.dumps(desk.agent.dump()) + json.dumps(desk.agent.messages) + repr(run.events)
    assert KEY not in kept + (tmp_path / "audit.jsonl").read_text(encoding="utf-8")


@streams
def test_an_unreadable_call_and_an_unknown_tool_are_answered(
    llmock: Llmock, make_desk: MakeDesk, stream: bool
) -> None:
    llmock.play("broken calls")
    desk = make_desk(llmock, stream)
    run = desk.ask("Please look.")
    assert (run.state, run.answer) == (State.COMPLETED, "Neither call could be made.")
    assert desk.codes() == ["bad_json", "tool_not_allowed"]
    assert desk.look.calls == []
    assert [check_pairing(body["messages"]) for body in llmock.bodies()] == [[], [], []]


@streams
def test_a_server_that_is_busy_once_is_asked_again(llmock: Llmock, make_desk: MakeDesk, stream: bool) -> None:
    llmock.play("busy once")
    run = make_desk(llmock, stream).ask("Are you there?")
    assert (run.state, run.answer) == (State.COMPLETED, "Here again.")
    failures = [event for event in run.events if isinstance(event, RequestFailed)]
    assert [event.code for event in failures] == ["provider_error"]
    first, second = llmock.bodies()
    assert first == second


def test_a_stream_that_ends_early_is_not_an_answer(llmock: Llmock, make_desk: MakeDesk) -> None:
    llmock.play("cut stream")
    desk = make_desk(llmock, True)
    run = desk.ask("When does it leave?")
    assert (run.state, run.end_code, run.answer) == (State.FAILED, "provider_protocol", None)
    assert "".join(desk.deltas).startswith("A flight")
    assert check_pairing(desk.agent.messages) == []
