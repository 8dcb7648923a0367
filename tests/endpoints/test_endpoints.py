"""Whole runs against two model servers that nobody here wrote."""

import json
from pathlib import Path

import pytest

from agent import State
from agent.transcript import check_pairing
from tests.endpoints.desk import KEY, MakeDesk
from tests.endpoints.server import Endpoint, Llmock

ANSWER = "Noted the flight at nine. The second note was not saved. The sum is 5.5."

streams = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])


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
    desk = make_desk(llmock, stream)
    run = desk.ask("Are you there?")
    assert (run.state, run.answer) == (State.COMPLETED, "Here again.")
    assert desk.failures() == ["provider_error"]
    first, second = llmock.bodies()
    assert first == second


def test_a_stream_that_ends_early_is_not_an_answer(llmock: Llmock, make_desk: MakeDesk) -> None:
    llmock.play("cut stream")
    desk = make_desk(llmock, True)
    run = desk.ask("When does it leave?")
    assert (run.state, run.end_code, run.answer) == (State.FAILED, "provider_protocol", None)
    assert "".join(desk.deltas).startswith("A flight")
    assert check_pairing(desk.agent.messages) == []
