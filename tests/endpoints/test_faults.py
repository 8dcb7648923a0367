"""Every fault that two model servers, which nobody here wrote, can put on: what becomes of a run.

The fault begins with the tool, so that it strikes the request after it: whatever happens then, the
tool has run once, and nothing of what it did is lost.
"""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
from llmock import scenarios

from agent import Limits, Run, State
from agent.model.quirks import Quirk
from agent.record import ReplyReceived
from agent.state import END_STATES
from agent.transcript import check_pairing
from tests.endpoints.desk import Desk, MakeDesk
from tests.endpoints.server import Aimock, Endpoint, Llmock, llmock_with

QUESTION = "Please look it up."
ANSWER = "It leaves at nine."
PATIENT = Limits(run_s=10.0)
SHORT = Limits(run_s=1.5)
TOO_LONG_S = 3.5
SLACK_S = 2.0
"""Silence is cut up to one second late; the rest is for a slow machine."""

streams = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])


@dataclass(frozen=True)
class Outcome:
    """How a run ends: its code, None where it completes, and the requests after the tool ran.

    `finding` is what llmock holds against a client that gives up: it cannot see that the run failed.
    """

    code: str | None = None
    requests: int = 1
    limits: Limits = PATIENT
    finding: str | None = None


DONE = Outcome()
ONCE_MORE = Outcome(requests=2)
DOWN = Outcome("provider_error", 3)
REFUSED = Outcome("provider_error", 1)
BUSY = Outcome("provider_rate_limited", 3)
GARBLED = Outcome("provider_protocol", 1)
SILENT = Outcome("run_timeout", 1, SHORT)


def look_up(desk: Desk, fault: Callable[[], object], outcome: Outcome) -> Run:
    """A run whose tool puts the fault on, and what must hold of it."""
    desk.on_look = fault
    started_s = time.monotonic()
    run = desk.ask(QUESTION)
    assert time.monotonic() - started_s < outcome.limits.run_s + SLACK_S
    assert run.state == (State.FAILED if outcome.code else State.COMPLETED)
    assert (run.end_code, run.answer) == (outcome.code, None if outcome.code else ANSWER)
    assert (desk.requests(), len(desk.look.calls)) == (1 + outcome.requests, 1)
    assert desk.agent.can_retry == (outcome.code not in (None, "context_overflow"))
    return run


def goes_on(desk: Desk, endpoint: Endpoint) -> None:
    """The fault is off: a run that failed can be taken up, and the next message works."""
    if desk.agent.can_retry:
        run = desk.agent.retry()
        assert run is not None
        assert (run.state, run.answer) == (State.COMPLETED, ANSWER)
    assert desk.ask("and now?").state == State.COMPLETED
    assert (len(desk.look.calls), desk.note.calls) == (1, [])
    assert desk.is_lawful()
    assert all(check_pairing(body["messages"]) == [] for body in endpoint.bodies())


# --- aimock: rates of --chaos-…, which can be set while it runs ---

CHAOS: dict[str, tuple[dict[str, float], Outcome]] = {
    "drop": ({"dropRate": 1}, DOWN),
    "malformed": ({"malformedRate": 1}, GARBLED),
    "disconnect": ({"disconnectRate": 1}, DOWN),
    "ratelimit": ({"rateLimitRate": 1}, BUSY),
    "latency": ({"latencyMs": 300}, DONE),
    "latency without end": ({"latencyMs": 30_000}, SILENT),
}


def test_every_chaos_flag_has_its_row(aimock_command: list[str]) -> None:
    told = subprocess.run([*aimock_command, "--help"], capture_output=True, text=True, check=True)
    assert set(re.findall(r"--chaos-(\w+)", told.stdout)) == {name.split()[0] for name in CHAOS}


@pytest.fixture
def calm(aimock: Aimock) -> Iterator[Aimock]:
    """aimock without chaos, before and after the test."""
    aimock.play("")
    yield aimock
    aimock.calm_down()


@streams
@pytest.mark.parametrize("flag", CHAOS)
def test_aimock_in_chaos(calm: Aimock, make_desk: MakeDesk, flag: str, stream: bool) -> None:
    chaos, outcome = CHAOS[flag]
    desk = make_desk(calm, stream, outcome.limits)
    look_up(desk, lambda: calm.rage(chaos), outcome)
    calm.calm_down()
    goes_on(desk, calm)
    # What is still held back at the end has not been counted.
    assert len(calm.bodies()) + (outcome is SILENT) == desk.requests()


@streams
def test_aimock_in_every_chaos_at_once(calm: Aimock, make_desk: MakeDesk, stream: bool) -> None:
    calm.rage({"dropRate": 0.3, "malformedRate": 0.1, "disconnectRate": 0.3, "latencyMs": 5})
    ends = [
        run_of_many(make_desk(calm, stream, PATIENT), {"provider_error", "provider_protocol"})
        for _ in range(8)
    ]
    assert State.COMPLETED in ends


def run_of_many(desk: Desk, codes: set[str]) -> State:
    run = desk.ask(QUESTION)
    assert (run.state == State.COMPLETED) == (run.end_code is None)
    assert run.end_code is None or run.end_code in codes
    assert len(desk.look.calls) <= 1
    assert desk.is_lawful()
    return run.state


# --- aimock: what a fixture can say of its own answer ---


@pytest.mark.parametrize(
    ("question", "outcome"),
    [("tell it short", DOWN), ("tell it and go", DOWN), ("tell it slowly", DONE)],
)
def test_an_answer_of_aimock_that_is_cut_or_slow(
    calm: Aimock, make_desk: MakeDesk, question: str, outcome: Outcome
) -> None:
    desk = make_desk(calm, True, PATIENT)
    run = desk.ask(question)
    assert (run.end_code, desk.requests()) == (outcome.code, outcome.requests)
    assert (run.answer is None) == (outcome.code is not None)
    assert desk.is_lawful()
    assert desk.ask("and now?").answer == "All is well."


# --- llmock: behaviours that are put on while it runs ---

FOREVER: dict[str, Any] = {"times": None}


def fail(status: int, **more: Any) -> dict[str, Any]:
    return {"type": "fail", "status": status, **more}


def breaks(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "stream_fault", "kind": kind, "after_chunks": 2, **more}


BEHAVIORS: dict[str, tuple[dict[str, Any], Outcome]] = {
    **{f"fail {status} once": (fail(status), ONCE_MORE) for status in (408, 409, 429, 500, 503)},
    **{f"fail {status}": (fail(status, **FOREVER), DOWN) for status in (500, 529)},
    "fail 429": (fail(429, **FOREVER), BUSY),
    **{f"fail {status}": (fail(status, **FOREVER), REFUSED) for status in (400, 402, 404, 422)},
    **{f"fail {status}": (fail(status), Outcome("provider_auth")) for status in (401, 403)},
    "fail 413": (fail(413), Outcome("context_overflow")),
    "fail 429, wait a second": (fail(429, retry_after=1), ONCE_MORE),
    "fail 429, wait an hour": (
        fail(429, retry_after=3600),
        Outcome("provider_rate_limited", finding="gave_up"),
    ),
    "delay": ({"type": "delay", "seconds": 0.3}, DONE),
    "delay too long": ({"type": "delay", "seconds": TOO_LONG_S}, SILENT),
}
STREAM_BEHAVIORS: dict[str, tuple[dict[str, Any], Outcome]] = {
    "slow_first_token": ({"type": "slow_first_token", "seconds": 0.3}, DONE),
    "slow_first_token too long": ({"type": "slow_first_token", "seconds": TOO_LONG_S}, SILENT),
    "disconnect once": (breaks("disconnect"), ONCE_MORE),
    "disconnect": (breaks("disconnect", **FOREVER), DOWN),
    "truncate": (breaks("truncate"), replace(GARBLED, finding="truncated_stream_accepted")),
    "malformed": (breaks("malformed"), replace(GARBLED, finding="malformed_chunk_ignored")),
    "stall": (breaks("stall", stall_seconds=0.3), DONE),
    "stall too long": (breaks("stall", stall_seconds=TOO_LONG_S), SILENT),
}
TOOL_BEHAVIORS = {"malformed_arguments": "bad_json", "unknown_tool": "tool_not_allowed"}


def test_every_behaviour_of_llmock_has_its_row() -> None:
    rows = [behavior for behavior, _ in (*BEHAVIORS.values(), *STREAM_BEHAVIORS.values())]
    types = {scenarios.behavior_from_dict(row).__class__ for row in rows}
    assert types | {scenarios.Reply, scenarios.ToolFault} == set(get_args(scenarios.Behavior))
    kinds = {row["kind"] for row in rows if "kind" in row}
    assert kinds == set(get_args(scenarios.StreamFaultKind))
    assert TOOL_BEHAVIORS.keys() == set(get_args(scenarios.ToolFaultKind))


@streams
@pytest.mark.parametrize("name", [*BEHAVIORS, *STREAM_BEHAVIORS])
def test_llmock_at_fault(llmock: Llmock, make_desk: MakeDesk, name: str, stream: bool) -> None:
    behavior, outcome = {**BEHAVIORS, **STREAM_BEHAVIORS}[name]
    outcome = outcome if stream or name in BEHAVIORS else DONE
    llmock.play("look it up")
    desk = make_desk(llmock, stream, outcome.limits)
    run = look_up(desk, lambda: llmock.behave(behavior), outcome)
    if "hour" in name:
        assert "3600 s" in desk.sentences()[-1]
    # A person may repeat anything, so the server judges what was repeated before a person does.
    assert llmock.findings() == {outcome.finding} - {None}
    llmock.calm_down(ANSWER if run.state == State.FAILED else None)
    goes_on(desk, llmock)


@streams
@pytest.mark.parametrize("kind", TOOL_BEHAVIORS)
def test_a_broken_call_of_llmock_is_answered(
    llmock: Llmock, make_desk: MakeDesk, kind: str, stream: bool
) -> None:
    llmock.play("look it up")
    llmock.behave({"type": "tool_fault", "kind": kind})
    desk = make_desk(llmock, stream)
    run = desk.ask(QUESTION)
    assert (run.state, run.answer, desk.codes()) == (State.COMPLETED, ANSWER, [TOOL_BEHAVIORS[kind]])
    assert desk.look.calls == []
    noted = {note for event in run.events if isinstance(event, ReplyReceived) for note in event.notes}
    assert (Quirk.ARGUMENTS_NO_OBJECT in noted) == (kind == "malformed_arguments")


# --- llmock: rates and limits that it is started with ---


@pytest.fixture(scope="module")
def erratic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llmock]:
    """llmock with every rate above zero, and tools that it calls by itself."""
    rates = ["--error-rate", "500=0.1", "--error-rate-429", "0.1", "--error-rate-503", "0.1"]
    for kind in get_args(scenarios.StreamFaultKind):
        rates += ["--stream-fault", f"{kind}=0.1"]
    rates += ["--stream-stall-seconds", "0.05", "--latency-ms", "2", "--stream-chunk-delay-ms", "1"]
    with llmock_with(tmp_path_factory.mktemp("erratic"), *rates) as server:
        yield server


@streams
def test_llmock_that_fails_at_random(erratic: Llmock, make_desk: MakeDesk, stream: bool) -> None:
    erratic.control("POST", "/_llmock/reset")
    codes = {"provider_error", "provider_rate_limited", "provider_protocol"}
    ends: list[State] = []
    sent = 0
    for number in range(8):
        desk = make_desk(erratic, stream, PATIENT)
        ends.append(random_run(desk, f"Look up {number}", codes))
        sent += desk.requests()
    assert State.COMPLETED in ends
    bodies = erratic.bodies()
    assert len(bodies) == sent
    assert all(check_pairing(body["messages"]) == [] for body in bodies)
    assert erratic.findings() <= {"truncated_stream_accepted", "malformed_chunk_ignored"}


def random_run(desk: Desk, question: str, codes: set[str]) -> State:
    """It calls each offered tool with what fits: the note waits for a person, who denies it."""
    run = desk.ask(question)
    for card in run.pending:
        desk.agent.decide(card.id, card.digest, approve=False)
    desk.proceed()
    assert run.state in END_STATES
    assert run.end_code is None or run.end_code in codes
    assert desk.note.calls == []
    assert desk.is_lawful()
    return run.state


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llmock]:
    options = ["--rpm", "1", "--context-window", "1000", "--tool-mode", "off"]
    with llmock_with(tmp_path_factory.mktemp("narrow"), *options) as server:
        yield server


def test_llmock_with_little_room_and_few_requests(narrow: Llmock, make_desk: MakeDesk) -> None:
    desk = make_desk(narrow, False)
    assert desk.ask("so " * 2000).end_code == "context_overflow"
    runs = [make_desk(narrow, False).ask("hello") for _ in range(2)]
    assert [run.end_code for run in runs] == [None, "provider_rate_limited"]
