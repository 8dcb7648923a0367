"""What servers get wrong, each over a real socket, both ways: ids, finish reasons, empty answers, errors.

The cases are data: those of the table in `tests.stage`, further answers and streams beside them, and
answers of the protocol that come byte by byte. Where a case allows a range, the table here holds the one
outcome that is ours.
"""

import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from threading import Condition
from typing import Any

import pytest

from agent import Limits, Run, State
from agent.limits import SystemClock
from agent.model.quirks import Quirk
from agent.record import (
    CallAnswered,
    CallFinished,
    CallStarted,
    Event,
    ReplyReceived,
    RequestFailed,
    UserMessage,
)
from agent.transcript import check_pairing
from agent.words import ENDS
from tests.endpoint import Completion, chunks, completion, says, wants
from tests.model.server import Answer, chunked, events, head, whole
from tests.stage import (
    CASES,
    DONE,
    FAULTS,
    LONGEST_S,
    OF_THE_SERVER,
    A,
    Codes,
    Open,
    Stage,
    Tally,
    cancelled,
    changed,
    completed,
    failed,
    numbers,
    served,
    stages,
    waiting,
)
from tests.support import START_S, FakeClock, call, make_tool

stage = stages

UTC = {"tz": "UTC"}
GET_TIME = wants(call("call_a", "get_time", UTC))
SAVE = wants(call("call_a", "save_note", A))


class PausingClock(FakeClock):
    """A pause before a request passes at once; whoever waits for a tool waits until it comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: Condition | None = None
        self.in_pause: Callable[[], None] = lambda: None

    def wait(self, condition: Condition, timeout_s: float) -> None:
        if condition is self.pauses:
            self.in_pause()
            self.at_s += timeout_s
        else:
            assert condition.wait(LONGEST_S), "nothing came"


def pausing(stage: Open, *replies: Completion, **settings: Any) -> Stage:
    clock = PausingClock()
    one = stage(*replies, clock=clock, **settings)
    clock.pauses = one.agent.changed
    return one


def of_kind(run: Run, kind: type[Event]) -> Iterator[Any]:
    return (event for event in run.events if isinstance(event, kind))


def notes(run: Run) -> list[set[str]]:
    """The wire notes of each reply of a run."""
    return [set(event.notes) for event in of_kind(run, ReplyReceived)]


def failures(run: Run) -> list[tuple[str, float | None]]:
    return [(event.code, event.retry_in_s) for event in of_kind(run, RequestFailed)]


def ids(one: Stage, request: int = -1) -> list[str]:
    messages = one.bodies[request]["messages"]
    return [made["id"] for message in messages for made in message.get("tool_calls") or ()]


def names(one: Stage, request: int = -1) -> list[str]:
    messages = one.bodies[request]["messages"]
    return [made["function"]["name"] for message in messages for made in message.get("tool_calls") or ()]


def with_message(n: int, **fields: Any) -> Completion:
    """The first reply of a case, with other fields in its message."""
    reply = served(n)[0]
    reply["choices"][0]["message"].update(fields)
    return reply


def test_every_case_has_its_test() -> None:
    assert numbers(globals()) == OF_THE_SERVER
    assert set(CASES) > OF_THE_SERVER


# --- 23: the same id in a later round -----------------------------------------------------------


def test_23_other_arguments_are_a_new_call(stage: Open) -> None:
    one = stage(*served(23))
    run = one.ask()
    assert completed(run)
    assert len(one.bodies) == 3
    assert one.get_time.calls == [UTC, {"tz": "Asia/Tokyo"}]
    both = [("get_time:0", "ok"), ("get_time:0-2", "ok")]
    assert one.codes() == both
    assert ids(one) == ["get_time:0", "get_time:0-2"]
    assert [envelope["data"]["tz"] for envelope in one.envelopes()] == ["UTC", "Asia/Tokyo"]
    assert notes(run) == [set(), {Quirk.ID_TAKEN}, set()]
    asked = [made for event in of_kind(run, ReplyReceived) for made in event.calls]
    assert [made.provider_id for made in asked] == ["get_time:0"] * 2
    assert one.next_turn() == both


def test_23_a_read_with_the_same_arguments_is_a_new_call(stage: Open) -> None:
    first, _, done = served(23)
    one = stage(first, first, first, done)
    assert failed(one.ask(), "repeated_call", "done")
    assert one.get_time.calls == [UTC, UTC]
    codes = [("get_time:0", "ok"), ("get_time:0-2", "ok"), ("get_time:0-3", "repeat_limit")]
    assert one.codes() == codes
    assert ids(one) == [call_id for call_id, _ in codes]
    assert len(one.bodies) == 4
    assert one.next_turn() == codes


def test_23_a_calculation_with_the_same_arguments_is_replayed(stage: Open) -> None:
    first = wants(call("add:0", "add", {"a": 1, "b": 2}))
    one = stage(first, first, first, first, DONE)
    assert completed(one.ask())
    assert one.add.calls == [{"a": 1, "b": 2}]
    codes = [("add:0", "ok"), ("add:0-2", "ok"), ("add:0-3", "ok"), ("add:0-4", "ok")]
    assert one.codes() == codes
    assert [envelope["data"] for envelope in one.envelopes()] == [{"result": 3}] * 4
    assert len(one.bodies) == 5
    assert one.next_turn() == codes


def test_23_a_side_effect_with_the_same_arguments_is_replayed(stage: Open) -> None:
    first = wants(call("save_note:0", "save_note", A))
    one = stage(first, first, DONE)
    assert waiting(one.ask(), "save_note:0")
    assert one.decide("save_note:0")
    assert completed(one.proceed())
    assert one.saved == ["A"]
    assert one.audited(event="approval_requested") == 1
    codes = [("save_note:0", "ok"), ("save_note:0-2", "ok")]
    assert one.codes() == codes
    assert [envelope["data"] for envelope in one.envelopes()] == [{"saved": "A"}] * 2
    assert len(one.bodies) == 3
    assert one.next_turn() == codes


def test_23_other_arguments_of_a_side_effect_get_a_card_of_their_own(stage: Open) -> None:
    first = wants(call("save_note:0", "save_note", A))
    one = stage(first, changed(first, arguments='{"text":"B"}'), DONE)
    assert waiting(one.ask(), "save_note:0")
    assert one.decide("save_note:0")
    assert waiting(one.proceed(), "save_note:0-2")
    assert one.decide("save_note:0-2", approve=False)
    assert completed(one.proceed())
    assert one.saved == ["A"]
    assert one.codes() == [("save_note:0", "ok"), ("save_note:0-2", "denied")]
    assert one.next_turn() == [("save_note:0", "ok"), ("save_note:0-2", "denied")]


def test_23_an_id_of_an_earlier_run_stands_for_nothing_any_more(stage: Open) -> None:
    first = wants(call("save_note:0", "save_note", A))
    one = stage(first, DONE, first)
    assert waiting(one.ask(), "save_note:0")
    assert one.decide("save_note:0")
    assert completed(one.proceed())
    assert waiting(one.ask("the same again"), "save_note:0-2")
    assert one.decide("save_note:0-2")
    one.serve(DONE)
    assert completed(one.proceed())
    assert one.saved == ["A", "A"]
    assert len(one.bodies) == 4
    assert one.next_turn() == [("save_note:0", "ok"), ("save_note:0-2", "ok")]


# --- 25: no id, no name -------------------------------------------------------------------------

GONE = object()


def with_id(value: object, made: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in {**made, "id": value}.items() if part is not GONE}


@pytest.mark.parametrize("given", ["", None, "   ", GONE], ids=["empty", "null", "blank", "gone"])
def test_25_an_id_is_made_up(stage: Open, given: object) -> None:
    first, done = served(25)
    made = first["choices"][0]["message"]["tool_calls"][0]
    twice = [with_id(given, made), with_id(given, call("", "get_time", {"tz": "Asia/Tokyo"}))]
    one = stage(with_message(25, tool_calls=twice), first, done)
    run = one.ask()
    assert completed(run)
    codes = [(f"call-{number:03d}", "ok") for number in (1, 2, 3)]
    assert one.codes() == codes
    assert ids(one) == [call_id for call_id, _ in codes]
    assert one.get_time.calls == [UTC, {"tz": "Asia/Tokyo"}, UTC]
    assert notes(run) == [{Quirk.ID_MISSING}, {Quirk.ID_MISSING}, set()]
    assert ids(one, 1) == ids(one)[:2]
    assert len(one.bodies) == 3
    assert one.next_turn() == codes


@pytest.mark.parametrize("given", ["", None, "  ", GONE], ids=["empty", "null", "blank", "gone"])
def test_25_a_call_without_a_name_is_answered(stage: Open, given: object) -> None:
    reply, done = wants(call("call_a", "", UTC)), DONE
    function = reply["choices"][0]["message"]["tool_calls"][0]["function"]
    function["name"] = given
    if given is GONE:
        del function["name"]
    one = stage(reply, done)
    run = one.ask()
    assert completed(run)
    assert one.codes() == [("call_a", "tool_not_allowed")]
    assert names(one) == ["invalid_tool"]
    assert one.envelopes()[0]["tool"] == "invalid_tool"
    assert notes(run) == [{Quirk.NAME_MISSING}, set()]
    assert one.get_time.calls == []
    assert len(one.bodies) == 2
    assert one.next_turn() == [("call_a", "tool_not_allowed")]


def pieces(*deltas: dict[str, Any]) -> Completion:
    """A stream in which each of these is one delta of a call."""
    each: list[tuple[dict[str, Any], str | None]] = [({"tool_calls": [delta]}, None) for delta in deltas]
    choices = [
        [{"index": 0, "delta": delta, "finish_reason": reason}]
        for delta, reason in [*each, ({}, "tool_calls")]
    ]
    return {"_sse": [{"object": "chat.completion.chunk", "choices": choice} for choice in choices]}


def piece(arguments: str, **fields: Any) -> dict[str, Any]:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    return {"index": 0, **fields, "function": {**name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("deltas", "call_id", "noted"),
    [
        ([piece('{"tz":', name="get_time"), piece('"UTC"}')], "call-001", {Quirk.ID_MISSING}),
        ([piece('{"tz":', id="", name="get_time"), piece('"UTC"}', id="")], "call-001", {Quirk.ID_MISSING}),
        (
            [piece('{"tz":', id="call_a", name="get_time"), piece('"UTC"}', id="", name="")],
            "call_a",
            set[str](),
        ),
        (
            [piece('{"tz":', id="call_a", name="get_time"), piece('"UTC"}', id=None, name=None)],
            "call_a",
            set[str](),
        ),
        (
            [piece("", id="", name="get_time"), piece('{"tz":"UTC"}', id="call_a", name="")],
            "call_a",
            set[str](),
        ),
    ],
    ids=["no-id", "empty-id", "empty-id-and-name-later", "null-id-and-name-later", "id-later"],
)
def test_25_streamed_pieces_without_id_and_name(
    stage: Open, deltas: list[dict[str, Any]], call_id: str, noted: set[str]
) -> None:
    one = stage(pieces(*deltas), DONE)
    run = one.ask()
    assert completed(run)
    assert one.get_time.calls == [UTC]
    assert one.codes() == [(call_id, "ok")]
    assert (ids(one), names(one)) == ([call_id], ["get_time"])
    assert notes(run) == [{Quirk.USAGE_MISSING} | noted, set()]
    assert len(one.bodies) == 2
    assert one.next_turn() == [(call_id, "ok")]


# --- 27, 29: the finish_reason ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "noted"),
    [
        ("stop", {Quirk.FINISH_MISMATCH}),
        (None, {Quirk.FINISH_MISMATCH, Quirk.FINISH_MISSING}),
        ("", {Quirk.FINISH_MISMATCH, Quirk.FINISH_MISSING}),
        ("function_call", set[str]()),
    ],
)
def test_27_calls_are_run_whatever_the_finish_reason_says(
    stage: Open, reason: str | None, noted: set[str]
) -> None:
    first, done = served(27)
    first["choices"][0]["finish_reason"] = reason
    one = stage(first, done)
    run = one.ask()
    assert completed(run)
    assert one.get_time.calls == [UTC]
    assert one.codes() == [("call_a", "ok")]
    assert one.bodies[1]["messages"][2]["content"] == "Let me check."
    assert notes(run) == [noted, set()]
    assert len(one.bodies) == 2
    assert one.next_turn() == [("call_a", "ok")]


def test_27_a_side_effect_waits_for_a_person_just_the_same(stage: Open) -> None:
    first, done = served(27)
    one = stage(changed(first, name="save_note", arguments='{"text":"A"}'), done)
    assert waiting(one.ask(), "call_a")
    assert one.decide("call_a", approve=False)
    assert completed(one.proceed())
    assert one.saved == []
    assert one.next_turn() == [("call_a", "denied")]


def test_27_tool_calls_said_and_none_sent(stage: Open) -> None:
    one = stage(completion({"role": "assistant", "content": "done"}, "tool_calls"))
    run = one.ask()
    assert completed(run)
    assert notes(run) == [{Quirk.FINISH_WITHOUT_CALLS}]
    assert one.next_turn() == []


@pytest.mark.parametrize("text", [None, "I will"])
@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("save_note", '{"text":"first half"}'), ("save_note", '{"text":"first'), ("get_time", '{"tz":"UTC"}')],
    ids=["whole-write", "cut-write", "whole-read"],
)
def test_29_a_call_of_a_cut_reply_is_not_looked_at(
    stage: Open, name: str, arguments: str, reason: str, text: str | None
) -> None:
    first = changed(with_message(29, content=text), name=name, arguments=arguments)
    first["choices"][0]["finish_reason"] = reason
    one = stage(first)
    run = one.ask()
    assert failed(run, "length" if reason == "length" else "refused", text)
    assert (one.saved, one.get_time.calls, one.cards) == ([], [], [])
    assert one.audited(event="approval_requested") == 0
    (reply,) = of_kind(run, ReplyReceived)
    assert [(made.name, made.arguments) for made in reply.calls] == [(name, arguments)]
    assert Quirk.CALLS_CUT in reply.notes
    assert len(one.bodies) == 1
    assert [message.get("tool_calls") for message in one.agent.messages] == [None] * (2 + bool(text))
    assert one.next_turn() == []
    assert one.roles() == ["system", "user", *["assistant"] * bool(text), "user"]


def test_29_a_cut_text_is_the_answer_and_labelled(stage: Open) -> None:
    one = stage(completion({"role": "assistant", "content": "I will check"}, "length"))
    run = one.ask()
    assert failed(run, "length", "I will check")
    assert "cut off" in ENDS["length"]
    assert notes(run) == [set()]
    assert len(one.bodies) == 1
    assert one.agent.retry() is not None
    assert failed(run, "length", "I will check")
    assert one.next_turn() == []
    assert one.bodies[-1]["messages"][2] == {"role": "assistant", "content": "I will check"}


def test_29_the_results_before_it_stay(stage: Open) -> None:
    one = stage(GET_TIME, served(29)[0])
    run = one.ask()
    assert failed(run, "length")
    assert run.evidence == ["tool:get_time:call_a"]
    assert (one.saved, len(one.bodies)) == ([], 2)
    assert one.next_turn() == [("call_a", "ok")]


# --- 30: a call that is only text ---------------------------------------------------------------

WRITTEN = {
    "tag": CASES[30]["serve"][0]["choices"][0]["message"]["content"],
    "tag-behind-words": 'I will save it. <tool_call>{"name": "save_note", "arguments": {"text": "x"}}',
    "mistral": '[TOOL_CALLS][{"name": "save_note", "arguments": {"text": "x"}}]',
    "llama": '<|python_tag|>{"name": "save_note", "parameters": {"text": "x"}}',
    "function": '<function=save_note>{"text": "x"}</function>',
    "json": '{"name": "save_note", "arguments": {"text": "x"}}',
    "fenced": '```json\n{"name": "save_note", "arguments": {"text": "x"}}\n```',
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_30_a_call_written_as_text_is_never_run(stage: Open, text: str) -> None:
    one = stage(with_message(30, content=text))
    run = one.ask()
    assert completed(run, text)
    assert notes(run) == [{Quirk.CALL_AS_TEXT}]
    assert (one.saved, one.cards, len(one.bodies)) == ([], [], 1)
    assert one.audited(event="approval_requested") == 0
    assert not any(of_kind(run, CallStarted))
    assert one.next_turn() == []
    assert one.bodies[-1]["messages"][2] == {"role": "assistant", "content": text}


@pytest.mark.parametrize("text", ["Use the tool_call field.", '{"a": 1}', "A <tool> is called by its name."])
def test_30_words_about_tools_are_no_call(stage: Open, text: str) -> None:
    one = stage(says(text))
    run = one.ask()
    assert completed(run, text)
    assert notes(run) == [set()]
    assert one.next_turn() == []


# --- 33: an answer that is none -----------------------------------------------------------------

PAGE: Completion = FAULTS["more_responses"]["html_200"][0]
NO_CHOICES: Completion = FAULTS["more_responses"]["choices_empty_200"][0]
NULL_CHOICES: Completion = {**served(33)[0], "error": {"message": "upstream rate limit"}}
NULL_MESSAGE = completion({}, "stop")
NULL_MESSAGE["choices"][0]["message"] = None
NO_ANSWERS = {
    "choices-null": (NULL_CHOICES, "provider_error", "provider_error"),
    "choices-empty": (NO_CHOICES, "provider_protocol", "provider_protocol"),
    "message-null": (NULL_MESSAGE, "provider_protocol", "empty_response"),
    "page": (PAGE, "provider_protocol", "provider_protocol"),
    "refused": ({**PAGE, "_status": 400}, "provider_error", "provider_error"),
    "silent": (
        completion({"role": "assistant", "content": None}, "stop"),
        "empty_response",
        "empty_response",
    ),
}
NO_ANSWER = pytest.mark.parametrize(("reply", "as_json", "as_sse"), NO_ANSWERS.values(), ids=NO_ANSWERS)


@NO_ANSWER
def test_33_no_answer_ends_the_run_and_can_be_retried(
    stage: Open, reply: Completion, as_json: str, as_sse: str
) -> None:
    one = stage(reply)
    run = one.ask()
    code = as_sse if one.stream else as_json
    assert failed(run, code)
    assert len(one.bodies) == 1
    before = one.agent.messages
    assert [message["role"] for message in before] == ["system", "user"]
    assert all(retry_in_s is None for _, retry_in_s in failures(run))
    assert no_words_of_the_server(one, run, "gateway", "upstream")

    one.serve(DONE)
    again = one.agent.retry()
    assert again is not None
    assert again.id == run.id
    assert completed(again)
    assert completed(run)
    assert len(one.bodies) == 2
    assert one.bodies[1] == one.bodies[0]
    assert one.bodies[1]["messages"] == before
    assert len(list(of_kind(run, UserMessage))) == 1
    assert one.next_turn() == []
    assert one.roles() == ["system", "user", "assistant", "user"]


@NO_ANSWER
def test_33_a_retry_runs_no_tool_again(stage: Open, reply: Completion, as_json: str, as_sse: str) -> None:
    one = stage(wants(call("call_a", "save_note", A), call("call_b", "get_time", UTC)), reply)
    one.ask()
    assert one.decide("call_a")
    run = one.proceed()
    assert failed(run, as_sse if one.stream else as_json)
    assert run.evidence == ["tool:get_time:call_b", "tool:save_note:call_a"]
    one.serve(DONE)
    assert one.agent.retry() is not None
    assert completed(run)
    assert one.bodies[2] == one.bodies[1]
    assert (one.saved, one.get_time.calls) == (["A"], [UTC])
    assert one.audited(event="approval_requested") == 1
    both = [("call_a", "ok"), ("call_b", "ok")]
    assert one.codes() == both
    assert one.next_turn() == both
    assert one.saved == ["A"]


def no_words_of_the_server(one: Stage, run: Run, *words: str) -> bool:
    """None of them stands where a person, the model or the log could meet it."""
    seen = "\n".join(
        [
            json.dumps(one.agent.dump()),
            json.dumps(one.agent.messages),
            json.dumps(one.bodies),
            repr(one.agent.events),
            run.answer or "",
            *(event.message for event in of_kind(run, RequestFailed)),
            one.audit_path.read_text(),
        ]
    )
    return not any(word in seen for word in words)


def test_33_a_rate_limit_inside_an_answer_is_waited_for(stage: Open) -> None:
    one = pausing(stage, *served(33))
    run = one.ask()
    assert completed(run)
    assert failures(run) == [("provider_rate_limited", 0.5)]
    assert one.clock.at_s == START_S + 0.5
    assert len(one.bodies) == 2
    assert one.bodies[1] == one.bodies[0]
    assert no_words_of_the_server(one, run, "upstream")
    assert one.next_turn() == []


def test_33_a_rate_limit_that_stays_can_be_retried(stage: Open) -> None:
    limited, done = served(33)
    one = pausing(stage, limited, limited, limited)
    run = one.ask()
    assert failed(run, "provider_rate_limited")
    assert failures(run) == [(run.end_code, 0.5), (run.end_code, 1.0), (run.end_code, None)]
    one.serve(limited, done)
    assert one.agent.retry() is not None
    assert completed(run)
    assert len(one.bodies) == 5
    assert failures(run)[3:] == [("provider_rate_limited", 0.5)]
    assert all(body == one.bodies[0] for body in one.bodies)
    assert one.next_turn() == []


def test_33_retries_stay_inside_the_requests_of_the_run(stage: Open) -> None:
    one = stage(PAGE)
    run = one.ask()
    for _ in range(6):
        one.serve(PAGE)
        assert one.agent.retry() is not None
        assert failed(run, "provider_protocol")
    assert len(one.bodies) == 7
    assert one.agent.can_retry is False
    assert one.agent.retry() is not None
    assert len(one.bodies) == 7
    assert one.next_turn() == []


def test_33_a_retry_after_a_reload(stage: Open) -> None:
    old = stage(GET_TIME, PAGE)
    assert failed(old.ask(), "provider_protocol")
    new = old.reload()
    new.serve(DONE)
    run = new.agent.retry()
    assert run is not None
    assert completed(run)
    assert new.bodies[2] == new.bodies[1]
    assert new.get_time.calls == [UTC]
    again = new.reload()
    assert completed(again.proceed())
    assert again.agent.can_retry is False
    assert again.next_turn() == [("call_a", "ok")]


def test_33_a_retry_goes_on_with_tools(stage: Open) -> None:
    one = stage(PAGE)
    run = one.ask()
    one.serve(SAVE)
    assert one.agent.retry() is not None
    assert waiting(run, "call_a")
    assert one.agent.can_retry is False
    assert one.decide("call_a")
    one.serve(DONE)
    assert completed(one.proceed())
    assert (one.saved, len(one.bodies)) == (["A"], 3)
    assert one.next_turn() == [("call_a", "ok")]


def test_33_nothing_else_can_be_retried(stage: Open) -> None:
    one = stage()
    assert one.agent.retry() is None
    one.serve(DONE)
    run = one.ask()
    one.agent.retry()
    assert completed(run)
    one.serve(SAVE)
    run = one.ask()
    one.agent.retry()
    assert waiting(run, "call_a")
    one.agent.stop()
    one.agent.retry()
    assert run.end_code == "cancelled"
    one.serve(with_message(34, refusal="no"))
    run = one.ask()
    one.agent.retry()
    assert failed(run, "refused", "no")
    assert len(one.bodies) == 3
    assert one.next_turn() == [("call_a", "cancelled")]


# --- 34: the last content -----------------------------------------------------------------------

LEGACY = {"name": "save_note", "arguments": '{"text":"A"}'}
TEXT_PART = {"type": "text", "text": "hi"}


@dataclass(frozen=True)
class Said:
    """What a last message says, and the end that it makes."""

    fields: dict[str, Any]
    code: str | None = None
    answer: str | None = None
    noted: set[Quirk] = field(default_factory=set[Quirk])
    kept: str | None = None


LAST = {
    "null": Said({"content": None}, "empty_response"),
    "empty": Said({"content": ""}, "empty_response"),
    "blanks": Said({"content": " \n\t"}, "empty_response"),
    "no-parts": Said(
        {"content": [{"type": "text", "text": ""}]}, "empty_response", None, {Quirk.CONTENT_PARTS}
    ),
    "a-part": Said({"content": [TEXT_PART]}, None, "hi", {Quirk.CONTENT_PARTS}, "hi"),
    "parts": Said({"content": [TEXT_PART, TEXT_PART]}, None, "hihi", {Quirk.CONTENT_PARTS}, "hihi"),
    "refusal": Said({"content": None, "refusal": "I refuse."}, "refused", "I refuse."),
    "refusal-part": Said(
        {"content": [{"type": "refusal", "refusal": "I refuse."}]},
        "refused",
        "I refuse.",
        {Quirk.CONTENT_PARTS},
    ),
    "no-refusal": Said({"content": "hi", "refusal": ""}, None, "hi", kept="hi"),
    "only-reasoning": Said(
        {"content": None, "reasoning_content": "Hm."}, "empty_response", None, {Quirk.VENDOR_FIELDS}
    ),
    "reasoning-in-text": Said(
        {"content": "<think>Hm.</think>\n\nhi"}, None, "hi", {Quirk.THINKING_IN_TEXT}, "hi"
    ),
    "legacy": Said({"content": None, "function_call": LEGACY}, "empty_response", None, {Quirk.LEGACY_CALL}),
    "legacy-and-text": Said(
        {"content": "I save it.", "function_call": LEGACY},
        None,
        "I save it.",
        {Quirk.LEGACY_CALL},
        "I save it.",
    ),
}


@pytest.mark.parametrize("said", LAST.values(), ids=LAST)
@pytest.mark.parametrize("after_a_tool", [False, True])
def test_34_the_last_content(stage: Open, said: Said, after_a_tool: bool) -> None:
    one = stage(*[GET_TIME] * after_a_tool, with_message(34, **said.fields))
    run = one.ask()
    assert (run.state, run.end_code, run.answer) == (
        State.FAILED if said.code else State.COMPLETED,
        said.code,
        said.answer,
    )
    assert run.answer or ENDS[run.end_code or ""]
    assert notes(run)[-1] == said.noted
    assert run.evidence == ["tool:get_time:call_a"] * after_a_tool
    assert one.saved == []
    assert len(one.bodies) == 1 + after_a_tool
    assert one.next_turn() == [("call_a", "ok")] * after_a_tool
    kept = [message["content"] for message in one.bodies[-1]["messages"] if message["role"] == "assistant"]
    assert kept == [None] * after_a_tool + [said.kept] * (said.kept is not None)


# --- further answers, by name -------------------------------------------------------------------


@dataclass(frozen=True)
class Right:
    """The one outcome of an answer: how the run ends, what runs, what is sent, what is noted."""

    code: str | None = None
    answer: str | None = "done"
    requests: int = 2
    codes: Codes = field(default_factory=list[tuple[str, str]])
    ran: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    noted: tuple[set[str], ...] = (set(), set())
    failures: tuple[tuple[str, float | None], ...] = ()
    call_note: str | None = None


def ran(call_id: str = "call_a", noted: str | None = None, **tools: list[dict[str, Any]]) -> Right:
    """One call, which ran."""
    first = {noted} if noted else set[str]()
    return Right(codes=[(call_id, "ok")], ran=tools, noted=(first, set()))


def answered(code: str, noted: str | None = None) -> Right:
    """One call, which did not run and was answered with this code."""
    return Right(codes=[("call_a", code)], noted=({noted} if noted else set[str](), set()))


def ended(code: str, answer: str | None = None, *noted: str, failed_so: bool = False) -> Right:
    """The run ended with the first answer."""
    if failed_so:
        return Right(code, answer, 1, noted=(), failures=((code, None),))
    return Right(code, answer, 1, noted=({*noted},))


SHANGHAI = [{"tz": "Asia/Shanghai"}]
RESPONSES = {
    "ok_single": ran(get_time=SHANGHAI),
    "args_invalid": answered("bad_json", Quirk.ARGUMENTS_NO_OBJECT),
    "args_empty": replace(
        ran(noted=Quirk.ARGUMENTS_NO_OBJECT, list_notes=[{}]), call_note="empty arguments count as {}"
    ),
    "args_null_json": answered("bad_json", Quirk.ARGUMENTS_NO_OBJECT),
    "args_none": replace(
        ran(noted=Quirk.ARGUMENTS_NULL, list_notes=[{}]), call_note="empty arguments count as {}"
    ),
    "args_list": answered("bad_json", Quirk.ARGUMENTS_NO_OBJECT),
    "args_object": ran(noted=Quirk.ARGUMENTS_OBJECT, get_time=SHANGHAI),
    "args_nan": answered("bad_json"),
    "args_dupkey": answered("bad_json"),
    "args_double_encoded": answered("bad_json", Quirk.ARGUMENTS_NO_OBJECT),
    "unknown_tool": answered("tool_not_allowed"),
    "id_empty": ran("call-001", Quirk.ID_MISSING, get_time=[UTC]),
    "id_null": ran("call-001", Quirk.ID_MISSING, get_time=[UTC]),
    "id_dup_next_round": Right(
        requests=3,
        codes=[("get_time:0", "ok"), ("get_time:0-2", "ok")],
        ran={"get_time": [UTC, {"tz": "Asia/Tokyo"}]},
        noted=(set(), {Quirk.ID_TAKEN}, set()),
    ),
    "two_rounds": Right(
        requests=3,
        codes=[("call_a", "ok"), ("call_b", "ok")],
        ran={"get_time": [UTC], "add": [{"a": 1, "b": 2}]},
        noted=(set(), set(), set()),
    ),
    "fr_stop_with_calls": ran(noted=Quirk.FINISH_MISMATCH, get_time=[UTC]),
    "fr_length_truncated": ended("length", None, Quirk.CALLS_CUT),
    "content_null_final": ended("empty_response"),
    "refusal": ended("refused", "I can't help."),
    "leak_tool_call_tag": replace(ended("", WRITTEN["tag"], Quirk.CALL_AS_TEXT), code=None),
    "choices_null_200": Right(noted=(set(),), failures=(("provider_rate_limited", 0.5),)),
    "choices_empty_200": ended("provider_protocol", failed_so=True),
    "usage_null": Right(requests=1, noted=({Quirk.USAGE_MISSING},)),
    "html_200": ended("provider_protocol", failed_so=True),
    "http_429": Right(noted=(set(),), failures=(("provider_rate_limited", 1.0),)),
}
STREAMS = {
    "s_normal": ran(get_time=[UTC]),
    "s_no_index": ran(noted=Quirk.INDEX_MISSING, get_time=[UTC]),
    "s_no_id": ran("call-001", Quirk.ID_MISSING, get_time=[UTC]),
    "s_args_object": ran(noted=Quirk.ARGUMENTS_OBJECT, get_time=[UTC]),
    "s_cut": ended("provider_protocol", failed_so=True),
}


def test_no_answer_and_no_stream_is_left_out() -> None:
    assert RESPONSES.keys() == FAULTS["more_responses"].keys()
    assert STREAMS.keys() == FAULTS["more_streams"].keys()


def check(one: Stage, run: Run, right: Right) -> None:
    state = State.FAILED if right.code else State.COMPLETED
    assert (run.state, run.end_code, run.answer) == (state, right.code, right.answer)
    assert run.pending == []
    assert run.answer or ENDS[run.end_code or ""]
    assert len(one.bodies) == right.requests
    assert notes(run) == list(right.noted)
    assert tuple(failures(run)) == right.failures
    tallies = {"get_time": one.get_time, "add": one.add, "list_notes": one.list_notes}
    assert {name: tally.calls for name, tally in tallies.items() if tally.calls} == right.ran
    assert one.saved == []
    assert one.audited(event="approval_requested") == 0
    call_notes = [event.note for kind in (CallStarted, CallAnswered) for event in of_kind(run, kind)]
    assert right.call_note is None or call_notes == [right.call_note]
    assert one.next_turn() == right.codes


@pytest.mark.parametrize("name", RESPONSES)
def test_a_further_answer(stage: Open, name: str) -> None:
    right = RESPONSES[name]
    one = pausing(stage, *copy.deepcopy(FAULTS["more_responses"][name])[: right.requests])
    check(one, one.ask(), right)


@pytest.mark.parametrize("name", STREAMS)
def test_a_further_stream_also_where_none_was_asked_for(stage: Open, name: str) -> None:
    right = STREAMS[name]
    noted = tuple(found | {Quirk.USAGE_MISSING} if n == 0 else found for n, found in enumerate(right.noted))
    one = stage(copy.deepcopy(FAULTS["more_streams"][name]), *[DONE] * (right.requests - 1))
    check(one, one.ask(), replace(right, noted=noted))


# --- the protocol, byte by byte -----------------------------------------------------------------

PROTOCOL: dict[str, Any] = json.loads((Path(__file__).parent / "cases" / "protocol_faults.json").read_text())
HANGING_RUN_S = 2.0
"""Of the stream that goes quiet. A socket is asked in whole seconds for what is left, so silence is cut
up to one second late; the rest is for a slow machine."""


@dataclass(frozen=True)
class Ours:
    """What a case comes to here, where its range may be wider."""

    code: str | None = None
    answer: str | None = "done"
    runs: tuple[int, ...] = ()
    requests: int = 2
    codes: Codes = field(default_factory=list[tuple[str, str]])
    noted: frozenset[str] = frozenset()
    failures: tuple[str, ...] = ()


def one_run(call_id: str, *noted: str) -> Ours:
    return Ours(runs=(1,), codes=[(call_id, "ok")], noted=frozenset(noted))


def no_run(code: str, *noted: str) -> Ours:
    return Ours(codes=[("call_1", code)], noted=frozenset(noted))


def no_reply(code: str) -> Ours:
    return Ours(code, None, requests=1, failures=(code,))


OURS = {
    "empty_id": one_run("call-001", Quirk.ID_MISSING),
    "id_reused_later_round": Ours(
        runs=(1, 2),
        requests=3,
        codes=[("call_1", "ok"), ("call_1-2", "ok")],
        noted=frozenset({Quirk.ID_TAKEN}),
    ),
    "args_empty_string": no_run("bad_json", Quirk.ARGUMENTS_NO_OBJECT),
    "args_array": no_run("bad_json", Quirk.ARGUMENTS_NO_OBJECT),
    "args_trailing_text": no_run("bad_json", Quirk.ARGUMENTS_NO_OBJECT),
    "args_deep_10000": no_run("bad_json"),
    "name_null": no_run("tool_not_allowed", Quirk.NAME_MISSING),
    "function_missing": no_run(
        "tool_not_allowed", Quirk.FUNCTION_MISSING, Quirk.NAME_MISSING, Quirk.ARGUMENTS_NULL
    ),
    "sse_index_out_of_order": Ours(
        runs=(1, 2),
        codes=[("call_a", "ok"), ("call_b", "ok")],
        noted=frozenset({Quirk.INDEX_ORDER, Quirk.USAGE_MISSING}),
    ),
    "sse_id_in_every_delta": one_run("call_1", Quirk.USAGE_MISSING),
    "finish_stop_with_calls": one_run("call_1", Quirk.FINISH_MISMATCH),
    "refusal": Ours("refused", "I cannot help with that.", requests=1),
    "length_mid_arguments": Ours(
        "length", None, requests=1, noted=frozenset({Quirk.ARGUMENTS_NO_OBJECT, Quirk.CALLS_CUT})
    ),
    "choices_empty": no_reply("provider_protocol"),
    "error_object_in_200": no_reply("provider_error"),
    "sse_done_missing": Ours(requests=1, noted=frozenset({Quirk.DONE_MISSING, Quirk.USAGE_MISSING})),
    "http_429_retry_after": replace(one_run("call_1"), requests=3, failures=("provider_rate_limited",)),
    "http_401": no_reply("provider_auth"),
    "sse_hang_mid_stream": replace(no_reply("run_timeout"), failures=("provider_timeout",)),
    "invalid_utf8": no_reply("provider_protocol"),
}
ERROR_CLASSES = {
    "none": set[str](),
    "protocol": {"provider_protocol", "noted"},
    "bad_arguments": {"bad_json", "bad_arguments"},
    "refused": {"refused"},
    "length": {"length"},
    "server": {"provider_error"},
    "rate_limit": {"provider_rate_limited"},
    "auth": {"provider_auth"},
    "timeout": {"provider_timeout"},
}
SERVED = [
    pytest.param(stream, case, id=f"{case['id']}-{'sse' if stream else 'json'}")
    for case in PROTOCOL["cases"]
    for stream in ((False, True) if case["mode"] == "any" else (case["mode"] == "sse",))
]


def dripped(body: bytes, stream: bool, status: int, content_type: str, **headers: str) -> Answer:
    """An answer whose body goes out one byte at a time."""
    drops = [bytes([byte]) for byte in body]
    if stream:
        return chunked(drops)
    return Answer([head(status, content_type, Content_Length=str(len(body)), **headers), *drops])


def protocol_answer(step: dict[str, Any], stream: bool) -> Answer:
    status, headers = step.get("status", 200), step.get("headers", {})
    if "hex" in step:
        return dripped(bytes.fromhex(step["hex"]), False, status, step["ctype"])
    if "sse" in step:
        answer = dripped(events(step["sse"], done=step.get("done", "hang_after" not in step)), True, 200, "")
        return replace(answer, pieces=[*answer.pieces][:-1], hold=True) if "hang_after" in step else answer
    reply = generated(step["json"])
    if stream and status == 200:
        return dripped(events(list(chunks(reply))), True, 200, "")
    return dripped(json.dumps(reply).encode(), False, status, "application/json", **headers)


def generated(reply: Completion) -> Completion:
    """The same with the arguments that a case describes and does not hold."""
    reply = copy.deepcopy(reply)
    for choice in reply.get("choices") or ():
        for made in choice["message"].get("tool_calls") or ():
            arguments = made.get("function", {}).get("arguments")
            if isinstance(arguments, dict):
                assert arguments["gen"] == "deep"
                made["function"]["arguments"] = '{"a": ' + "[" * arguments["n"] + "]" * arguments["n"] + "}"
    return reply


def protocol_stage(stage: Open, case: dict[str, Any]) -> tuple[Stage, dict[str, Tally]]:
    tallies = {name: Tally(lambda arguments, _: {"echo": arguments["a"]}) for name in PROTOCOL["tools"]}
    tools = [
        make_tool(name, tallies[name], "write" if given["side_effect"] else "none", given["schema"])
        for name, given in PROTOCOL["tools"].items()
    ]
    hangs = any("hang_after" in step for step in case["steps"])
    limits = Limits(run_s=HANGING_RUN_S) if hangs else Limits()
    one = stage(tools=tools, clock=SystemClock(), limits=limits)
    steps = [*case["steps"], *[{"json": DONE}] * OURS[case["id"]].requests]
    for step in steps[: OURS[case["id"]].requests]:
        one.endpoint.script(protocol_answer(step, one.stream))
    return one, tallies


def seen_classes(run: Run) -> set[str]:
    """Every code that the run met, and `noted` where the wire was not as it should be."""
    calls = [event.result.code for kind in (CallAnswered, CallFinished) for event in of_kind(run, kind)]
    codes = {run.end_code, *(code for code, _ in failures(run)), *calls} - {None}
    return {str(code) for code in codes} | ({"noted"} if any(notes(run)) else set())


def gaps_s(one: Stage) -> list[float]:
    asked = [request.at_s for request in one.endpoint.requests]
    return [later - earlier for earlier, later in pairwise(asked)]


@pytest.mark.parametrize("stage", [True], ids=["sse"], indirect=True)
def test_a_stop_hangs_up_on_a_model_that_goes_on(stage: Open) -> None:
    one = stage()
    started_s = time.monotonic()
    begin = events([{"choices": [{"index": 0, "delta": {"content": "Once"}}]}], done=False)
    one.endpoint.script(chunked([begin, *[b": ping\n\n"] * 100], pause_s=0.05))
    run = one.agent.ask("tell", lambda _: one.agent.stop())
    assert cancelled(run, "cancelled")
    assert time.monotonic() - started_s < 2.0
    assert one.next_turn() == []


def test_every_case_of_the_protocol_has_its_outcome() -> None:
    assert OURS.keys() == {case["id"] for case in PROTOCOL["cases"]}
    assert {case["expect"]["error_class"] for case in PROTOCOL["cases"]} <= ERROR_CLASSES.keys()


@pytest.mark.parametrize(("stage", "case"), SERVED, indirect=["stage"])
def test_the_protocol_byte_by_byte(stage: Open, case: dict[str, Any]) -> None:
    one, tallies = protocol_stage(stage, case)
    started_s = time.monotonic()
    run = one.ask()
    took_s = time.monotonic() - started_s
    check_ours(one, run, OURS[case["id"]], tallies)
    check_range(one, run, case["expect"], tallies, took_s)
    if one.settings["limits"].run_s == HANGING_RUN_S:
        assert HANGING_RUN_S <= took_s < HANGING_RUN_S + 2
    assert check_pairing(one.agent.messages) == []
    assert one.next_turn() == OURS[case["id"]].codes
    assert tallies["danger"].calls == []
    assert no_words_of_the_server(one, run, *case["expect"].get("text_not", ()))


def check_ours(one: Stage, run: Run, ours: Ours, tallies: dict[str, Tally]) -> None:
    state = State.FAILED if ours.code else State.COMPLETED
    assert (run.state, run.end_code, run.answer) == (state, ours.code, ours.answer)
    assert run.pending == []
    assert tallies["probe"].calls == [{"a": number} for number in ours.runs]
    assert len(one.bodies) == ours.requests
    assert set[str]().union(*notes(run)) == ours.noted
    assert tuple(code for code, _ in failures(run)) == ours.failures


def check_range(
    one: Stage, run: Run, expect: dict[str, Any], tallies: dict[str, Tally], took_s: float
) -> None:
    """What the case itself allows."""
    assert run.state in expect["final"]
    counted = {"probe_runs": tallies["probe"].calls, "danger_runs": tallies["danger"].calls}
    for what, found in {**counted, "requests": one.bodies}.items():
        least, most = expect[what]
        assert least <= len(found) <= most, what
    assert took_s <= expect["max_seconds"]
    expected = ERROR_CLASSES[expect["error_class"]]
    assert seen_classes(run) & expected if expected else seen_classes(run) <= {"noted"}
    assert tallies["probe"].calls == expect.get("runs_with", tallies["probe"].calls)
    if expect.get("no_cached_answer"):
        assert [envelope["data"] for envelope in one.envelopes()] == [
            {"echo": arguments["a"]} for arguments in tallies["probe"].calls
        ]
    assert run.answer or ENDS[run.end_code or ""], "nothing to read for a person"
    assert "min_gap_s" not in expect or gaps_s(one)[0] >= expect["min_gap_s"]


# --- a request that is sent again, or not -------------------------------------------------------

RESET = Answer([], reset=True)
CLOSED = Answer([], close=True)


def refusing(status: int) -> Answer:
    return whole({"error": {"message": "SECRET-BODY"}}, status)


def half(one: Stage) -> Answer:
    """The beginning of an answer, and then the connection breaks off."""
    if one.stream:
        answer = chunked([events(list(chunks(DONE)), done=False)[:150]])
        return Answer([*answer.pieces][:-1], reset=True)
    return Answer([head(Content_Length="200") + json.dumps(DONE).encode()[:100]], reset=True)


TEMPORARY: dict[str, tuple[Callable[[Stage], Answer], str]] = {
    "408": (lambda _: refusing(408), "provider_rate_limited"),
    "409": (lambda _: refusing(409), "provider_error"),
    "429": (lambda _: refusing(429), "provider_rate_limited"),
    "502": (lambda _: refusing(502), "provider_error"),
    "503": (lambda _: refusing(503), "provider_error"),
    "504": (lambda _: refusing(504), "provider_error"),
    "529": (lambda _: refusing(529), "provider_error"),
    "reset": (lambda _: RESET, "provider_error"),
    "closed": (lambda _: CLOSED, "provider_error"),
    "half": (half, "provider_error"),
}


@pytest.mark.parametrize(("make", "code"), TEMPORARY.values(), ids=TEMPORARY)
def test_a_temporary_failure_repeats_the_request_and_no_tool(
    stage: Open, make: Callable[[Stage], Answer], code: str
) -> None:
    one = pausing(stage, wants(call("call_a", "save_note", A), call("call_b", "get_time", UTC)))
    run = one.ask()
    one.endpoint.script(make(one), make(one))
    one.serve(DONE)
    assert one.decide("call_a")
    assert completed(one.proceed())
    assert failures(run) == [(code, 0.5), (code, 1.0)]
    assert one.clock.at_s == START_S + 1.5
    assert one.bodies[1:] == [one.bodies[1]] * 3
    assert (one.saved, one.get_time.calls) == (["A"], [UTC])
    assert one.audited(event="approval_requested") == 1
    assert no_words_of_the_server(one, run, "SECRET-BODY")
    both = [("call_a", "ok"), ("call_b", "ok")]
    assert one.codes() == both
    assert one.next_turn() == both
    assert one.saved == ["A"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "provider_error"),
        (401, "provider_auth"),
        (403, "provider_auth"),
        (404, "provider_error"),
        (413, "context_overflow"),
        (422, "provider_error"),
    ],
)
def test_a_refused_request_is_sent_once(stage: Open, status: int, code: str) -> None:
    one = stage(wants(call("call_a", "save_note", A), call("call_b", "get_time", UTC)))
    run = one.ask()
    one.endpoint.script(refusing(status))
    assert one.decide("call_a")
    assert failed(one.proceed(), code)
    assert failures(run) == [(code, None)]
    assert one.clock.at_s == START_S
    assert len(one.bodies) == 2
    assert (one.saved, one.get_time.calls) == (["A"], [UTC])
    both = [("call_a", "ok"), ("call_b", "ok")]
    assert one.next_turn() == both
    assert one.saved == ["A"]


def test_a_stop_in_the_pause_ends_the_run_and_sends_nothing(stage: Open) -> None:
    one = pausing(stage, GET_TIME)
    one.endpoint.script(refusing(503))
    assert isinstance(one.clock, PausingClock)
    one.clock.in_pause = one.agent.stop
    run = one.ask()
    assert cancelled(run, "cancelled")
    assert failures(run) == [("provider_error", 0.5)]
    assert len(one.bodies) == 2
    assert one.agent.can_retry is False
    assert one.next_turn() == [("call_a", "ok")]
    assert one.get_time.calls == [UTC]
