"""What people are shown of a record: rows, the gates of each call, the ledger."""

import pytest

from agent.gates import GATES
from agent.state import replayed
from agent.timeline import MAX_MARKS, ahead, judged, ledger, numbered, rows, visible
from tests.support import Setup, asks, call

NOTE = call("p1", "note", {"text": "tea"})
LOOK = call("p2", "look", {"text": "sky"})


def kinds(setup: Setup) -> list[str]:
    return [row.kind for row in rows(setup.run.events)]


def codes(setup: Setup, number: int = 0) -> dict[str, str]:
    """The verdicts of a call by gate: its code, else what the gate said; only the gates it reached."""
    pills = judged(setup.run.events)[number].pills()
    return {gate: verdict.code or verdict.outcome for gate, verdict in pills if verdict}


def test_each_step_is_an_arrow_from_lane_to_lane() -> None:
    setup = Setup(asks(LOOK), "Blue.")
    setup.ask("What colour?")
    assert [(row.kind, row.source, row.target) for row in rows(setup.run.events)] == [
        ("message", "you", "program"),
        ("request", "program", "model"),
        ("asks", "model", "program"),
        ("runs", "program", "tools"),
        ("result", "tools", "program"),
        ("request", "program", "model"),
        ("says", "model", "program"),
        ("ended", "program", "you"),
    ]


def test_a_reply_gives_a_row_for_its_words_and_one_for_each_call() -> None:
    setup = Setup(asks(LOOK, call("p3", "add", {"a": 1, "b": 2}), text="Let me see."), "Done.")
    setup.ask()
    said = [(row.kind, row.tool, row.detail) for row in rows(setup.run.events) if row.source == "model"]
    assert said == [
        ("says", None, "Let me see."),
        ("asks", "look", '{"text": "sky"}'),
        ("asks", "add", '{"a": 1, "b": 2}'),
        ("says", None, "Done."),
    ]


def test_every_row_of_a_call_names_its_tool() -> None:
    setup = Setup(asks(NOTE), "Saved.")
    setup.ask()
    setup.decide()
    setup.proceed()
    assert {row.tool for row in rows(setup.run.events) if row.call_id} == {"note"}


def test_a_wire_note_is_a_row() -> None:
    setup = Setup(asks(call("", "look", {"text": "sky"})), "Blue.")
    setup.ask()
    assert [row.detail for row in rows(setup.run.events) if row.kind == "note"]


def test_what_a_person_decides_is_a_row_with_the_reason() -> None:
    setup = Setup(asks(NOTE), "Not saved.")
    setup.ask()
    setup.decide(approve=False, reason="wrong text")
    setup.proceed()
    assert [(row.kind, row.detail) for row in rows(setup.run.events) if row.source == "you"][1:] == [
        ("denied", "wrong text")
    ]


def test_what_is_ahead_of_a_card_is_told_apart_from_what_happened() -> None:
    setup = Setup(asks(NOTE), "Saved.")
    run = setup.ask()
    assert [row.kind for row in ahead(run.pending, run.events[-1])] == ["approved", "runs"]
    assert kinds(setup)[-1] == "approval"
    setup.decide()
    assert ahead(run.pending, run.events[-1]) == []


class TestGates:
    """Law 1: a carded call has two judgings; what is drawn is their fold."""

    def test_a_call_that_ran_passed_them_all(self) -> None:
        setup = Setup(asks(LOOK), "Blue.")
        setup.ask()
        assert codes(setup) == dict.fromkeys(GATES, "pass")
        assert judged(setup.run.events)[0].code == "ok"

    def test_a_waiting_call_has_not_reached_the_last_two(self) -> None:
        setup = Setup(asks(NOTE), "Saved.")
        setup.ask()
        assert codes(setup)["approval"] == "write"
        assert [gate for gate, verdict in judged(setup.run.events)[0].pills() if verdict is None] == [
            "execute",
            "record",
        ]

    def test_an_approved_call_passed_the_approval(self) -> None:
        setup = Setup(asks(NOTE), "Saved.")
        setup.ask()
        setup.decide()
        setup.proceed()
        assert codes(setup) == dict.fromkeys(GATES, "pass")

    def test_a_denied_one_did_not(self) -> None:
        setup = Setup(asks(NOTE), "Not saved.")
        setup.ask()
        setup.decide(approve=False)
        setup.proceed()
        assert codes(setup)["approval"] == "denied"
        assert judged(setup.run.events)[0].code == "denied"

    @pytest.mark.parametrize(
        ("asked", "gate", "code"),
        [
            (call("p", "gone", {}), "known", "tool_not_allowed"),
            (call("p", "look", "{"), "parse", "bad_json"),
            (call("p", "look", {}), "validate", "bad_arguments"),
        ],
    )
    def test_a_refused_one_stops_at_its_gate(self, asked: dict[str, object], gate: str, code: str) -> None:
        setup = Setup(asks(asked), "Well.")
        setup.ask()
        reached = codes(setup)
        assert list(reached)[-1] == gate
        assert reached[gate] == code

    def test_a_stop_closes_the_card(self) -> None:
        setup = Setup(asks(NOTE), "Saved.")
        setup.ask()
        setup.agent.stop()
        assert codes(setup)["approval"] == "cancelled"

    def test_a_gate_that_refuses_after_the_approval_is_seen(self) -> None:
        setup = Setup(asks(NOTE), "Not saved.")
        setup.ask()
        setup.decide()
        setup.agent.switch("note", on=False)
        setup.proceed()
        assert (codes(setup)["approval"], codes(setup)["known"]) == ("pass", "tool_not_allowed")


class TestLedger:
    def test_a_write_shows_both_digests(self) -> None:
        setup = Setup(asks(NOTE), "Saved.")
        card = setup.ask().pending[0]
        setup.decide()
        setup.proceed()
        (deed,) = ledger(setup.run.events)
        assert (deed.effect, deed.approved, deed.executed) == ("write", card.digest, card.digest)
        assert deed.ran
        assert deed.as_approved is True

    def test_what_nobody_approved_has_no_receipt(self) -> None:
        setup = Setup(asks(LOOK, NOTE), "No.")
        setup.ask()
        setup.decide(approve=False)
        setup.proceed()
        look, note = ledger(setup.run.events)
        assert (look.effect, look.ran, look.as_approved) == ("read", True, None)
        assert (note.effect, note.ran, note.code, note.as_approved) == ("write", False, "denied", None)


def test_calls_are_numbered_through_the_run() -> None:
    setup = Setup(asks(LOOK, NOTE), asks(call("p9", "add", {"a": 1, "b": 2})), "Done.")
    setup.ask()
    setup.decide()
    setup.proceed()
    assert list(numbered(setup.run.events).values()) == [1, 2, 3]


def test_a_run_replayed_from_its_events_is_the_run() -> None:
    setup = Setup("Hello.", asks(NOTE), "Saved.")
    setup.ask()
    setup.ask()
    setup.clock.advance(7)
    setup.decide()
    setup.proceed()
    again = replayed(setup.run.events)
    assert again == setup.agent.state.run
    assert [run.answer for run in setup.agent.runs] == ["Hello.", "Saved."]


def test_the_clock_of_a_run_stands_when_it_has_ended() -> None:
    setup = Setup("Hello.")
    setup.ask()
    then = replayed(setup.run.events).elapsed_s(setup.clock.steady_s())
    setup.clock.advance(100)
    assert replayed(setup.run.events).elapsed_s(setup.clock.steady_s()) == then


def test_the_tools_of_a_request_are_those_that_were_on() -> None:
    setup = Setup("One.", "Two.")
    setup.ask()
    setup.agent.switch("note", on=False)
    setup.ask()
    first, second = (event for event in setup.agent.events if event.kind == "request_sent")
    names = [[tool.name for tool in setup.agent.request_tools(event)] for event in (first, second)]  # pyright: ignore[reportArgumentType]
    assert names == [["note", "look", "add"], ["look", "add"]]


def test_marks_do_not_pile_up() -> None:
    piled = "a" + "\u0300" * 70
    assert visible(piled) == "a" + "\u0300" * MAX_MARKS + "\\u0300" * (70 - MAX_MARKS)
    assert visible("ở ấ נִּ ที่") == "ở ấ נִּ ที่"


def test_hidden_characters_are_seen() -> None:
    assert visible("a\u202eb\u200bc") == "a\\u202eb\\u200bc"
