"""A person sends a failed request again: the request, and nothing else."""

import json
from threading import Condition
from typing import Any

import pytest

from agent import Limits, State
from agent.errors import ModelError
from agent.model.scripted import Step
from agent.record import RunRetried
from tests.support import AT_ONCE_S, FakeClock, Setup, asks, call

ONE = {"text": "A"}
DOWN = ModelError("provider_error", "Down.")
LATE = ModelError("provider_timeout", "Late.")


def failed_after_a_note(*steps: Step) -> Setup:
    """A run that wrote a note with a person's consent, and whose next request then failed."""
    setup = Setup(asks(call("w", "note", ONE), call("l", "look", ONE)), DOWN, *steps)
    setup.ask()
    setup.decide()
    assert setup.proceed().end_code == "provider_error"
    return setup


def test_only_the_request_is_repeated() -> None:
    setup = failed_after_a_note("done")
    run = setup.run
    assert setup.agent.can_retry
    again = setup.agent.retry()
    assert again is not None
    assert (again.id, again.state, again.answer) == (run.id, State.COMPLETED, "done")
    assert (setup.note.calls, setup.look.calls) == ([ONE], [ONE])
    assert setup.model.requests[-1] == setup.model.requests[-2]
    assert [message["role"] for message in setup.agent.messages].count("user") == 1
    assert [event.kind for event in again.events[-5:]] == [
        "run_ended",
        "run_retried",
        "request_sent",
        "reply_received",
        "run_ended",
    ]
    setup.model.assert_finished()


def test_deltas_of_the_repeated_request_are_heard() -> None:
    setup = failed_after_a_note("done")
    heard: list[str] = []
    setup.agent.retry(heard.append)
    assert heard == ["done"]


def test_the_time_begins_anew_and_the_counts_go_on() -> None:
    setup = failed_after_a_note(asks(call("m", "look", ONE)), "done")
    setup.clock.advance(1000)
    setup.agent.retry()
    assert setup.run.state == State.COMPLETED
    state = setup.agent.run_state
    assert (state.requests, state.charged) == (4, 3)


@pytest.mark.parametrize("code", ["provider_timeout", "run_timeout"])
def test_a_server_that_took_all_the_time_can_be_asked_again(code: str) -> None:
    setup = Setup(LATE, "done")
    if code == "run_timeout":
        setup.agent.jitter = lambda: (setup.clock.advance(30), 0.5)[1]
    assert setup.ask().end_code == code
    assert setup.agent.retry() is not None
    assert (setup.run.state, setup.run.answer) == (State.COMPLETED, "done")


def test_an_empty_answer_can_be_asked_for_again() -> None:
    setup = Setup(" ", "done")
    assert setup.ask().end_code == "empty_response"
    setup.agent.retry()
    assert setup.run.answer == "done"


def test_it_may_fail_again_until_the_requests_are_spent() -> None:
    setup = Setup(*[DOWN] * 7, limits=Limits(max_requests=4))
    setup.ask()
    setup.agent.retry()
    setup.agent.retry()
    assert (setup.run.end_code, setup.agent.can_retry) == ("provider_error", False)
    assert setup.agent.retry() is not None
    assert len(setup.model.requests) == 3


def test_attempts_are_counted_anew() -> None:
    busy = ModelError("provider_error", "Down.", retry=True)
    setup = Setup(*[busy] * 5, "done")
    setup.clock.patience_s = AT_ONCE_S
    assert setup.ask().end_code == "provider_error"
    assert len(setup.model.requests) == 3
    setup.agent.retry()
    assert setup.run.answer == "done"


UNREPEATED: list[tuple[Step, str | None]] = [
    ("done", None),
    ({"content": "cut", "finish_reason": "length"}, "length"),
    ({"content": None, "refusal": "No."}, "refused"),
    (ModelError("context_overflow", "Too long."), "context_overflow"),
]


@pytest.mark.parametrize(("step", "code"), UNREPEATED)
def test_other_ends_are_not_repeated(step: Step, code: str | None) -> None:
    setup = Setup(step, "never")
    run = setup.ask()
    assert run.end_code == code
    before = setup.agent.events
    assert not setup.agent.can_retry
    assert setup.agent.retry() is not None
    assert setup.agent.events == before


def test_a_limit_is_not_lifted_by_it() -> None:
    calls = asks(call("l", "look", ONE), call("m", "look", {"text": "B"}))
    for limits in (Limits(max_requests=2), Limits(max_tool_calls=1)):
        setup = Setup(calls, DOWN, limits=limits)
        assert setup.ask().end_code in ("max_requests", "max_tool_calls")
        assert not setup.agent.can_retry


def test_spent_tokens_are_not_forgotten_by_it() -> None:
    setup = Setup({"content": "", "usage": {"prompt_tokens": 9, "completion_tokens": 1}}, "never")
    setup.agent.limits = Limits(max_tokens=10)
    assert setup.ask().end_code == "empty_response"
    assert not setup.agent.can_retry


def test_before_the_first_message_and_after_a_stop_there_is_nothing_to_repeat() -> None:
    setup = Setup(asks(call("w", "note", ONE)), "never")
    assert setup.agent.retry() is None
    setup.ask()
    assert not setup.agent.can_retry
    setup.agent.stop()
    assert not setup.agent.can_retry
    assert setup.agent.retry() is not None
    assert len(setup.model.requests) == 1


def test_a_stop_in_the_pause_before_another_attempt_is_an_end() -> None:
    class Stopping(FakeClock):
        def wait(self, condition: Condition, timeout_s: float) -> None:
            setup.agent.stop()

    setup = Setup(ModelError("provider_error", "Down.", retry=True), "never", clock=Stopping())
    assert setup.ask().end_code == "cancelled"
    assert not setup.agent.can_retry


def test_only_the_latest_run_can_be_repeated() -> None:
    setup = Setup(DOWN, "done")
    setup.ask()
    setup.ask("another")
    assert not setup.agent.can_retry


def test_a_denial_still_stands() -> None:
    setup = Setup(asks(call("w", "note", ONE)), DOWN, asks(call("v", "note", ONE)), "sorry")
    setup.ask()
    setup.decide(approve=False)
    setup.proceed()
    setup.agent.retry()
    assert setup.run.answer == "sorry"
    assert setup.codes() == {"w": "denied", "v": "denied_earlier"}
    assert setup.note.calls == []


def test_a_write_that_was_done_is_not_done_again() -> None:
    setup = failed_after_a_note(asks(call("v", "note", ONE)), "done")
    setup.agent.retry()
    assert setup.run.answer == "done"
    assert setup.note.calls == [ONE]


def test_the_next_message_works_where_nobody_repeats() -> None:
    setup = failed_after_a_note("done")
    assert setup.ask("another").state == State.COMPLETED


def test_a_saved_conversation_can_be_taken_up_by_it() -> None:
    setup = failed_after_a_note("done")
    agent = setup.load(json.loads(json.dumps(setup.agent.dump())))
    assert agent.can_retry
    agent.retry()
    assert agent.run is not None
    assert agent.run.answer == "done"
    again = setup.load(json.loads(json.dumps(agent.dump())))
    assert again.messages == agent.messages


@pytest.mark.parametrize("first", ["done", ModelError("context_overflow", "Too long.")])
def test_a_forged_repetition_is_refused(first: Any) -> None:
    setup = Setup(first)
    setup.ask()
    data = setup.agent.dump()
    forged = RunRetried(at=setup.agent.now(), run_id=setup.run.id)
    data["events"].append({"kind": forged.kind, "at": forged.at, "run_id": forged.run_id})
    with pytest.raises(ValueError, match="damaged"):
        setup.load(data)
