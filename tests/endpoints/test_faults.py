"""Every fault that two model servers, which nobody here wrote, can put on: what becomes of a run.

The fault begins with the tool, so that it strikes the request after it: whatever happens then, the
tool has run once, and nothing of what it did is lost.
"""

import inspect
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from llmock import cli, scenarios, verdict

from agent import Limits, Run, State
from agent.model.quirks import Quirk
from agent.record import ReplyReceived
from agent.state import END_STATES
from agent.transcript import check_pairing
from tests.endpoints.desk import Desk, HurriedClock, MakeDesk
from tests.endpoints.server import Aimock, Endpoint, Llmock, llmock_with

QUESTION = "Please look it up."
ANSWER = "It leaves at nine."
PATIENT = Limits(run_s=10.0)
SHORT = Limits(run_s=1.0)
TOO_LONG_S = 2.2
SLACK_S = 1.1
"""Silence is cut up to one second late; the rest is for a slow machine, and ends before the silence does."""
TOO_LATE_S = 12
"""A wait that a server asks for, and that no patience lasts for."""
MAX_ATTEMPTS = 3
MANY_RUNS = 60
NOT_AGAIN = (None, "context_overflow", "length", "refused")
"""Ends that Retry does not offer to repeat."""

streams = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])


def whole_and_streamed(both: Iterable[str], only_streamed: Iterable[str]) -> pytest.MarkDecorator:
    """Each fault on a whole answer and on a stream, or only on a stream where it is one of streams."""
    cases = [(name, stream) for name in both for stream in (False, True)]
    cases += [(name, True) for name in only_streamed]
    ids = [f"{name}-{'sse' if stream else 'json'}" for name, stream in cases]
    return pytest.mark.parametrize(("name", "stream"), cases, ids=ids)


@dataclass(frozen=True)
class Outcome:
    """How a run ends: its code, None where it completes, and the requests after the tool ran.

    `finding` is what llmock holds against a client that gives up: it cannot see that the run failed.
    """

    code: str | None = None
    requests: int = 1
    limits: Limits = PATIENT
    finding: str | None = None
    cut: str | None = None
    """What is shown of an answer that is not whole."""


DONE = Outcome()
ONCE_MORE = Outcome(requests=2)
DOWN = Outcome("provider_error", 3)
REFUSED = Outcome("provider_error", 1)
BUSY = Outcome("provider_rate_limited", 3)
GARBLED = Outcome("provider_protocol", 1)
SILENT = Outcome("run_timeout", 1, SHORT)
NO_WAIT = Outcome("provider_rate_limited", 1)


def look_up(desk: Desk, fault: Callable[[], object], outcome: Outcome) -> Run:
    """A run whose tool puts the fault on, and what must hold of it."""
    desk.on_look = fault
    started_s = time.monotonic()
    run = desk.ask(QUESTION)
    assert time.monotonic() - started_s < outcome.limits.run_s + SLACK_S
    ends(desk, run, outcome)
    assert desk.requests() == 1 + outcome.requests
    assert (desk.look.calls, desk.note.calls) == ([{"text": "departure"}], [])
    return run


def ends(desk: Desk, run: Run, outcome: Outcome) -> None:
    assert run.state == (State.FAILED if outcome.code else State.COMPLETED)
    assert (run.end_code, run.answer) == (outcome.code, outcome.cut if outcome.code else ANSWER)
    assert desk.agent.can_retry == (outcome.code not in NOT_AGAIN)
    assert (run.pending, desk.is_lawful()) == ([], True)


def goes_on(desk: Desk, endpoint: Endpoint) -> None:
    """The fault is off: a run that failed can be taken up, and the next message works."""
    if desk.agent.can_retry:
        run = desk.agent.retry()
        assert run is not None
        assert (run.state, run.answer) == (State.COMPLETED, ANSWER)
    done = (desk.look.calls.copy(), desk.note.calls.copy())
    assert desk.ask("and now?").state == State.COMPLETED
    assert (desk.look.calls, desk.note.calls) == done
    assert len(desk.look.calls) + len(desk.note.calls) <= 1
    assert desk.is_lawful()
    assert all(check_pairing(body["messages"]) == [] for body in endpoint.bodies())


def sent_again_in_bounds(replies: Sequence[str | None], run: Run) -> None:
    """A run goes on after a failure that may pass, twice in a row; it ends with the third, or another."""
    in_a_row = 0
    for code in replies[:-1]:
        in_a_row = in_a_row + 1 if code else 0
        assert code != "provider_protocol"
        assert in_a_row < MAX_ATTEMPTS
    assert run.end_code == replies[-1]
    assert run.state == (State.FAILED if replies[-1] else State.COMPLETED)
    if replies[-1] not in (None, "provider_protocol"):
        assert in_a_row + 1 == MAX_ATTEMPTS


# --- aimock: rates of --chaos-…, which can be set while it runs ---

CHAOS: dict[str, tuple[dict[str, float], Outcome]] = {
    "drop": ({"dropRate": 1}, DOWN),
    "malformed": ({"malformedRate": 1}, GARBLED),
    "disconnect": ({"disconnectRate": 1}, DOWN),
    "ratelimit": ({"rateLimitRate": 1}, BUSY),
    "latency": ({"latencyMs": 200}, DONE),
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
    desk = make_desk(calm, stream, outcome.limits, HurriedClock())
    look_up(desk, lambda: calm.rage(chaos), outcome)
    if flag == "ratelimit":
        # What its Retry-After says.
        assert desk.waits() == [1, 1, None]
    calm.calm_down()
    goes_on(desk, calm)
    # What is still held back at the end has not been counted.
    assert len(calm.bodies()) + (outcome is SILENT) == desk.requests()


CODES: dict[str | None, str | None] = {
    None: None,
    "drop": "provider_error",
    "disconnect": "provider_error",
    "rateLimit": "provider_rate_limited",
    "malformed": "provider_protocol",
}
"""What the record says of a request, by the chaos that the server says it put on it."""
RATES = {
    "half of all drop": {"dropRate": 0.5},
    "half of all disconnect": {"disconnectRate": 0.5},
    "everything at once": {
        "dropRate": 0.1, "malformedRate": 0.05, "rateLimitRate": 0.1, "disconnectRate": 0.1, "latencyMs": 2,
    },
}  # fmt: skip


@streams
@pytest.mark.parametrize("rates", RATES)
def test_aimock_at_rates_below_one(calm: Aimock, make_desk: MakeDesk, rates: str, stream: bool) -> None:
    calm.rage(RATES[rates])
    states = [one_of_many(calm, make_desk(calm, stream, PATIENT, HurriedClock())) for _ in range(8)]
    assert State.COMPLETED in states


def one_of_many(server: Aimock, desk: Desk) -> State:
    server.play("")
    run = desk.ask(QUESTION)
    assert desk.replies() == [CODES[fault] for fault in server.faults()]
    assert desk.requests() == len(server.bodies())
    sent_again_in_bounds(desk.replies(), run)
    assert len(desk.look.calls) == (None in desk.replies())
    assert desk.is_lawful()
    return run.state


# --- aimock: what a fixture says of its own answer ---

LOOKS: dict[str, Any] = {"toolCalls": [{"id": "call_up", "name": "look", "arguments": {"text": "departure"}}]}
ANSWERS: dict[str, Any] = {"content": ANSWER}
AND_NOW = {"match": {"userMessage": "and now"}, "response": {"content": "All is well."}}

OPTIONS: dict[str, tuple[dict[str, Any], Outcome]] = {
    "latency": ({"latency": 20}, DONE),
    "latency too long": ({"latency": 500}, SILENT),
    "chunkSize": ({"chunkSize": 1}, DONE),
    "truncateAfterChunks": ({"truncateAfterChunks": 3}, DOWN),
    "disconnectAfterMs": ({"latency": 40, "disconnectAfterMs": 100}, DOWN),
    "streamingProfile": ({"streamingProfile": {"ttft": 200, "tps": 200, "jitter": 0.5}}, DONE),
    "streamingProfile too slow": ({"streamingProfile": {"ttft": 1000 * TOO_LONG_S}}, SILENT),
    "recordedTimings": (
        {"recordedTimings": {"ttftMs": 100, "interChunkDelaysMs": [20], "totalDurationMs": 300}},
        DONE,
    ),
    "replaySpeed": (
        {
            "recordedTimings": {"ttftMs": 20_000, "interChunkDelaysMs": [], "totalDurationMs": 20_000},
            "replaySpeed": 100,
        },
        DONE,
    ),
}
"""Options of a fixture that say how a stream comes; a whole answer stays as it is."""
CHAOS_OPTIONS: dict[str, tuple[dict[str, Any], Outcome]] = {
    "chaos drop": ({"chaos": {"dropRate": 1}}, DOWN),
    "chaos malformed": ({"chaos": {"malformedRate": 1}}, GARBLED),
}
NO_FAULT = {"match", "response", "metadata", "openRouterProcessing"}


def refuses(status: int | None, retry_after: float | None = None, **error: str) -> dict[str, Any]:
    more = {"status": status, "retryAfter": retry_after}
    known = {name: value for name, value in more.items() if value is not None}
    return {"error": {"message": "No.", **error}, **known}


RESPONSES: dict[str, tuple[dict[str, Any], Outcome]] = {
    "error without status": (refuses(None), DOWN),
    **{f"error {status}": (refuses(status), REFUSED) for status in (400, 404)},
    **{f"error {status}": (refuses(status), Outcome("provider_auth")) for status in (401, 403)},
    "error 503": (refuses(503), DOWN),
    "error 408": (refuses(408), BUSY),
    "error 429 at once": (refuses(429, 0), BUSY),
    "error 429 in a second": (refuses(429, 1), BUSY),
    "error 429 after its time": (refuses(429, TOO_LATE_S), NO_WAIT),
    "error 429 no quota": (refuses(429, 0, code="insufficient_quota"), NO_WAIT),
    "error 400 too long": (refuses(400, code="context_length_exceeded"), Outcome("context_overflow")),
    "finishReason length": ({"content": "It", "finishReason": "length"}, Outcome("length", cut="It")),
    "finishReason filter": (
        {"content": "It", "finishReason": "content_filter"},
        Outcome("refused", cut="It"),
    ),
    "finishReason of no kind": ({**ANSWERS, "finishReason": "tool_calls"}, DONE),
    "no text": ({"content": " "}, Outcome("empty_response")),
    "another kind": ({"embedding": [0.5]}, DOWN),
}


def fixture(turn: int, response: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"match": {"userMessage": "look it up", "turnIndex": turn}, "response": response, **more}


def test_every_option_of_a_fixture_has_its_row(aimock_command: list[str]) -> None:
    types = Path(aimock_command[-1]).with_name("types.d.ts").read_text(encoding="utf-8")
    body = re.search(r"^interface FixtureFileEntry \{$(.*?)^\}$", types, re.DOTALL | re.MULTILINE)
    assert body
    fields = set(re.findall(r"^  (\w+)\??:", body[1], re.MULTILINE))
    assert fields == NO_FAULT | {name.split()[0] for name in (*OPTIONS, *CHAOS_OPTIONS)}


@whole_and_streamed([*CHAOS_OPTIONS, *RESPONSES], OPTIONS)
def test_an_answer_of_aimock_at_fault(scripted: Aimock, make_desk: MakeDesk, name: str, stream: bool) -> None:
    if name in RESPONSES:
        response, outcome = RESPONSES[name]
        faulty = fixture(1, response)
    else:
        options, outcome = {**OPTIONS, **CHAOS_OPTIONS}[name]
        faulty = fixture(1, ANSWERS, **options)
    scripted.play("")
    scripted.script(fixture(0, LOOKS), faulty)
    desk = make_desk(scripted, stream, outcome.limits, HurriedClock())
    look_up(desk, lambda: None, outcome)
    scripted.script(fixture(1, ANSWERS), AND_NOW)
    goes_on(desk, scripted)
    assert len(scripted.bodies()) == desk.requests()


@streams
@pytest.mark.parametrize(("status", "outcome"), [(400, REFUSED), (404, REFUSED), (500, ONCE_MORE)])
def test_one_error_that_aimock_puts_before_all_fixtures(
    scripted: Aimock, make_desk: MakeDesk, status: int, outcome: Outcome, stream: bool
) -> None:
    scripted.play("")
    scripted.script(fixture(0, LOOKS), fixture(1, ANSWERS), AND_NOW)
    desk = make_desk(scripted, stream, PATIENT, HurriedClock())
    look_up(desk, lambda: scripted.control("POST", "/__aimock/error", {"status": status}), outcome)
    goes_on(desk, scripted)


def wants(arguments: Any, name: str = "look", **more: str) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, **more}


CALLS: dict[str, tuple[list[dict[str, Any]], list[str], int]] = {
    "an array": ([wants([1])], ["bad_json"], 0),
    "one field twice": ([wants('{"text": "A", "text": "B"}')], ["bad_json"], 0),
    "a field missing": ([wants({})], ["bad_arguments"], 0),
    "a field too many": ([wants({"text": "A", "more": 1})], ["bad_arguments"], 0),
    "another type": ([wants({"text": 1})], ["bad_arguments"], 0),
    "no such tool": ([wants({"text": "A"}, "Look")], ["tool_not_allowed"], 0),
    "no id": ([wants({"text": "A"})], ["ok"], 1),
    "one id for two": (
        [wants({"text": "A"}, id="c"), wants({"text": "B"}, id="c")],
        ["ok", "id_conflict"],
        1,
    ),
    "one call twice": ([wants({"text": "A"}, id="c"), wants({"text": "A"}, id="c")], ["ok", "ok"], 1),
    "one fault and one good": ([wants({}), wants({"text": "A"})], ["bad_arguments", "ok"], 1),
}
"""Calls, how each is answered, and how often the tool runs."""


@streams
@pytest.mark.parametrize("name", CALLS)
def test_a_broken_call_of_aimock_is_answered(
    scripted: Aimock, make_desk: MakeDesk, name: str, stream: bool
) -> None:
    calls, codes, ran = CALLS[name]
    scripted.play("")
    scripted.script(fixture(0, {"toolCalls": calls}), fixture(1, ANSWERS))
    desk = make_desk(scripted, stream)
    run = desk.ask(QUESTION)
    assert (run.state, run.answer, desk.codes()) == (State.COMPLETED, ANSWER, codes)
    assert (len(desk.look.calls), desk.requests(), desk.is_lawful()) == (ran, 2, True)
    assert [check_pairing(body["messages"]) for body in scripted.bodies()] == [[], []]


def test_aimock_cuts_a_call_at_every_chunk(scripted: Aimock, make_desk: MakeDesk) -> None:
    note = {"toolCalls": [wants({"text": "departure"}), wants({"text": "nine"}, "note")]}
    failed: list[bool] = []
    for chunks in range(1, 14):
        scripted.play("")
        scripted.script(fixture(0, note, truncateAfterChunks=chunks, chunkSize=8))
        desk = make_desk(scripted, True, PATIENT, HurriedClock())
        run = desk.ask(QUESTION)
        failed.append(run.state == State.FAILED)
        nothing_half_done(desk, run)
        assert len(scripted.bodies()) == desk.requests() == (3 if failed[-1] else 1)
    assert failed[:8] == [True] * 8


def nothing_half_done(desk: Desk, run: Run) -> None:
    """Of a reply that did not come whole no call is made; of a whole one the note waits for a person."""
    whole = run.state == State.WAITING_APPROVAL
    assert whole or run.pending == []
    assert (len(desk.look.calls), desk.note.calls) == (int(whole), [])
    assert desk.is_lawful()


# --- llmock: behaviours that are put on while it runs ---

FOREVER: dict[str, Any] = {"times": None}


def fail(status: int, **more: Any) -> dict[str, Any]:
    return {"type": "fail", "status": status, **more}


def breaks(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "stream_fault", "kind": kind, "after_chunks": 2, **more}


FAILING = (409, 500, 502, 503, 504, 529)
PASSING = (408, 429, 503)

BEHAVIORS: dict[str, tuple[dict[str, Any], Outcome]] = {
    **{f"fail {status} once": (fail(status, retry_after=0.05), ONCE_MORE) for status in PASSING},
    **{f"fail {status}": (fail(status, **FOREVER, retry_after=0.05), DOWN) for status in FAILING},
    **{f"fail {status}": (fail(status, **FOREVER, retry_after=0.05), BUSY) for status in (408, 429)},
    "fail 500, no word of a wait": (fail(500, **FOREVER), DOWN),
    **{f"fail {status}": (fail(status, **FOREVER), REFUSED) for status in (400, 402, 404, 422)},
    **{f"fail {status}": (fail(status), Outcome("provider_auth")) for status in (401, 403)},
    "fail 413": (fail(413), Outcome("context_overflow")),
    "fail 429, wait a while": (fail(429, retry_after=0.5), ONCE_MORE),
    "fail 429, wait past the end": (
        fail(429, retry_after=TOO_LATE_S),
        Outcome("provider_rate_limited", finding="gave_up"),
    ),
    "delay": ({"type": "delay", "seconds": 0.2}, DONE),
    "delay too long": ({"type": "delay", "seconds": TOO_LONG_S}, SILENT),
}
STREAM_BEHAVIORS: dict[str, tuple[dict[str, Any], Outcome]] = {
    "slow_first_token": ({"type": "slow_first_token", "seconds": 0.2}, DONE),
    "slow_first_token too long": ({"type": "slow_first_token", "seconds": TOO_LONG_S}, SILENT),
    "disconnect once": (breaks("disconnect"), ONCE_MORE),
    "disconnect": (breaks("disconnect", **FOREVER), DOWN),
    "truncate": (breaks("truncate"), replace(GARBLED, finding="truncated_stream_accepted")),
    "malformed": (breaks("malformed"), replace(GARBLED, finding="malformed_chunk_ignored")),
    "stall": (breaks("stall", stall_seconds=0.2), DONE),
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


def test_what_is_sent_again_is_what_the_judge_of_llmock_wants() -> None:
    rows = [(row["status"], outcome) for row, outcome in BEHAVIORS.values() if "status" in row]
    assert {status for status, outcome in rows if outcome.requests > 1} == verdict.RETRYABLE
    assert {status for status, outcome in rows if outcome.requests == 1} > verdict.NON_RETRYABLE


@whole_and_streamed(BEHAVIORS, STREAM_BEHAVIORS)
def test_llmock_at_fault(llmock: Llmock, make_desk: MakeDesk, name: str, stream: bool) -> None:
    behavior, outcome = {**BEHAVIORS, **STREAM_BEHAVIORS}[name]
    llmock.play("look it up")
    desk = make_desk(llmock, stream, outcome.limits)
    run = look_up(desk, lambda: llmock.behave(behavior), outcome)
    if "past the end" in name:
        assert f"{TOO_LATE_S} s" in desk.sentences()[-1]
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


LASTING = ("fail 500", "fail 400", "fail 401", "fail 413")
BROKEN = ("disconnect", "truncate", "malformed")


@pytest.mark.parametrize("approve", [True, False], ids=["allowed", "denied"])
@whole_and_streamed(LASTING, [*BROKEN, "stall too long"])
def test_what_a_person_decided_stands(
    llmock: Llmock, make_desk: MakeDesk, name: str, approve: bool, stream: bool
) -> None:
    behavior, outcome = {**BEHAVIORS, **STREAM_BEHAVIORS}[name]
    llmock.play("keep it")
    desk = make_desk(llmock, stream, outcome.limits, HurriedClock())
    assert desk.ask("Please keep it.").state == State.WAITING_APPROVAL
    assert desk.note.calls == []
    llmock.behave(behavior)
    desk.decide("departure", approve=approve)
    run = desk.proceed()
    ends(desk, run, outcome)
    assert desk.codes() == ["ok" if approve else "denied"]
    llmock.calm_down(ANSWER if run.state == State.FAILED else None)
    goes_on(desk, llmock)
    assert desk.note.calls == ([{"text": "departure"}] if approve else [])


@pytest.mark.parametrize("kind", BROKEN)
def test_llmock_breaks_a_call_at_every_chunk(llmock: Llmock, make_desk: MakeDesk, kind: str) -> None:
    code = STREAM_BEHAVIORS[kind][1].code
    struck = [broken_at(llmock, make_desk(llmock, True, PATIENT, HurriedClock()), kind, n) for n in range(12)]
    assert set(struck) == {code, None}
    assert struck[:4] == [code] * 4


def broken_at(server: Llmock, desk: Desk, kind: str, after_chunks: int) -> str | None:
    """The failure where a reply with two calls breaks after so many chunks, None where it came whole."""
    server.play("both")
    server.behave(breaks(kind, after_chunks=after_chunks))
    run = desk.ask("Please do both.")
    nothing_half_done(desk, run)
    assert all(check_pairing(body["messages"]) == [] for body in server.bodies())
    return desk.replies()[0]


# --- llmock: rates and limits that it is started with ---

ERRATIC = (
    *("--error-rate", "502=0.1", "--error-rate-429", "0.1"),
    *("--error-rate-500", "0.15", "--error-rate-503", "0.1"),
    *("--stream-fault", "disconnect=0.15", "--stream-fault", "truncate=0.1"),
    *("--stream-fault", "malformed=0.1", "--stream-fault", "stall=0.1", "--stream-stall-seconds", "0.05"),
    *("--latency-ms", "2", "--stream-chunk-delay-ms", "1"),
)
NARROW = ("--rpm", "1", "--tpm", "1200", "--context-window", "1400", "--tool-mode", "off")
NO_FAULTS = {"--config", "--host", "--port", "--reload", "--log-level", "--response-style", "--report"}

STRUCK: dict[str | None, set[str | None]] = {
    None: {None},
    "chaos:429": {"provider_rate_limited"},
    **{f"chaos:{status}": {"provider_error"} for status in (500, 502, 503)},
    "stream:stall": {None},
    # Where the finish_reason has come, the reply is whole, whatever follows.
    "stream:truncate": {"provider_protocol", None},
    "stream:malformed": {"provider_protocol", None},
    "stream:disconnect": {"provider_error", None},
}
"""What the record may say of a request, by the fault that the server says it put on it."""


def test_every_flag_of_llmock_is_used() -> None:
    options = [
        parameter.default.param_decls for parameter in inspect.signature(cli.serve).parameters.values()
    ]
    flags = {name for names in options for name in names if name.startswith("--")}
    assert flags == NO_FAULTS | {name for name in (*ERRATIC, *NARROW) if name.startswith("--")}


@pytest.fixture(scope="module")
def erratic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llmock]:
    """llmock with every rate above zero, and tools that it calls by itself."""
    with llmock_with(tmp_path_factory.mktemp("erratic"), *ERRATIC) as server:
        yield server


@streams
def test_llmock_that_fails_at_random(erratic: Llmock, make_desk: MakeDesk, stream: bool) -> None:
    missing = {fault for fault in STRUCK if fault and (stream or fault.startswith("chaos"))}
    states: set[State] = set()
    for number in range(MANY_RUNS):
        if not missing and number >= 8:
            break
        desk = make_desk(erratic, stream, PATIENT, HurriedClock())
        states.add(random_run(erratic, desk, f"{('Look', 'Note')[number % 2]} {number}"))
        missing -= set(erratic.faults())
    assert missing == set()
    assert State.COMPLETED in states


def random_run(server: Llmock, desk: Desk, question: str) -> State:
    """It calls the tool that the question names: a note waits for a person, who denies it."""
    server.control("POST", "/_llmock/reset")
    run = desk.ask(question)
    for card in run.pending:
        assert desk.agent.decide(card.id, card.digest, approve=False)
    desk.proceed()
    assert run.state in END_STATES
    replies, faults = desk.replies(), server.faults()
    assert all(code in STRUCK[fault] for code, fault in zip(replies, faults, strict=True))
    assert desk.requests() == len(faults)
    sent_again_in_bounds(replies, run)
    assert (len(desk.look.calls) <= 1, desk.note.calls, desk.is_lawful()) == (True, [], True)
    assert all(check_pairing(body["messages"]) == [] for body in server.bodies())
    assert not server.findings() & {"retried_non_retryable", "retry_storm", "gave_up"}
    return run.state


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llmock]:
    with llmock_with(tmp_path_factory.mktemp("narrow"), *NARROW) as server:
        yield server


def test_llmock_with_little_room_and_few_requests(narrow: Llmock, make_desk: MakeDesk) -> None:
    texts = ("so " * 2500, "so " * 1500, "hello", "hello")
    runs = [make_desk(narrow, False, PATIENT).ask(text) for text in texts]
    assert narrow.faults() == ["context_window", "ratelimit:tokens", None, "ratelimit:requests"]
    busy = "provider_rate_limited"
    assert [run.end_code for run in runs] == ["context_overflow", busy, None, busy]
