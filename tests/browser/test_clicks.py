"""Clicks as people and browsers make them: twice, both at once, late, beside a slow run, or never again."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from agent.transcript import check_pairing
from agent.ui.session import LEASE_S
from tests.browser.visits import DESKTOP, PATIENCE_MS, Talks, Visitor, visiting
from tests.endpoint import Completion, says, wants
from tests.support import call
from tests.ui.serving import Served

AT_ONCE_MS = 5_000
"""For what a click brings about by itself, on a machine with other things to do."""

HOLD_S = 60.0
VIEWS = ("Gates", "Wire", "Ledger", "Sequence")

CLICK_ALL = """names => {
  const buttons = names.map(name =>
    [...document.querySelectorAll('button')].find(button => button.innerText.trim().endsWith(name)));
  buttons.forEach(button => button.click());
}"""

KEEP_SOCKETS = """
window.sockets = [];
window.sent = [];
window.WebSocket = class extends WebSocket {
  constructor(...where) { super(...where); window.sockets.push(this); }
  send(data) { window.sent.push(data); super.send(data); }
};
"""


class Held:
    """A step of a model that replies once a test says so."""

    def __init__(self, reply: Completion) -> None:
        self.reached = Event()
        self.let = Event()
        self._reply = reply

    def __call__(self) -> Completion:
        self.reached.set()
        self.let.wait(HOLD_S)
        return self._reply


@pytest.fixture
def guest(browser: Browser, real_site: Served) -> Iterator[Visitor]:
    """Somebody at the page on a model behind `talks`."""
    with visiting(browser, real_site) as one:
        yield one


@pytest.fixture
def holds() -> Iterator[Callable[[Completion], Held]]:
    """Makes held steps, which are let go at the end."""
    made: list[Held] = []

    def hold(reply: Completion) -> Held:
        made.append(Held(reply))
        return made[-1]

    yield hold
    for held in made:
        held.let.set()


@pytest.fixture(scope="module", autouse=True)
def closed_tab(browser: Browser, real_site: Served, talks: Talks, data: Path) -> Iterator[str]:
    """The run of a tab that was closed while its model stalled: before all else, for its lease is long."""
    stalls = Held(says("to nobody"))
    talks.plan["stall"] = [stalls]
    with visiting(browser, real_site) as visitor:
        visitor.write("stall")
        assert stalls.reached.wait(HOLD_S)
        left = latest_run(data)
    yield left
    stalls.let.set()


def asks_for_a_note(text: str) -> Completion:
    return wants(call("c", "write_note", {"text": text}))


def audit_lines(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data / "audit" / "audit.jsonl").read_text().splitlines()]


def latest_run(data: Path) -> str:
    return [line["run_id"] for line in audit_lines(data) if line["event"] == "user_message"][-1]


def events_of(data: Path, run_id: str) -> list[str]:
    return [line["event"] for line in audit_lines(data) if line["run_id"] == run_id]


def has_notes(visitor: Visitor, count: int) -> None:
    """The page, asked for the notes of this person, counts so many."""
    visitor.write("list my notes")
    expect(visitor.page.get_by_text(f"total {count}" if count else "list_notes: nothing")).to_be_visible()


def sees(visitor: Visitor, text: str, timeout_ms: float = PATIENCE_MS) -> None:
    expect(visitor.page.get_by_text(text).first).to_be_visible(timeout=timeout_ms)


# --- twice, and both at once --------------------------------------------------------------------


def test_a_double_click_on_approve_writes_one_note(visitor: Visitor) -> None:
    visitor.write("note that it is double")
    visitor.button("Approve").dblclick()
    sees(visitor, "ran once")
    visitor.idle()
    has_notes(visitor, 1)


def test_ten_clicks_on_approve_in_one_tick_write_one_note(visitor: Visitor, data: Path) -> None:
    visitor.write("note that it is tenfold")
    visitor.button("Approve").wait_for()
    visitor.page.evaluate(CLICK_ALL, ["Approve"] * 10)
    sees(visitor, "ran once")
    visitor.idle()
    assert events_of(data, latest_run(data)).count("decided") == 1
    has_notes(visitor, 1)


@pytest.mark.parametrize("first", ["Approve", "Deny"])
def test_of_approve_and_deny_in_one_tick_the_first_counts(visitor: Visitor, data: Path, first: str) -> None:
    visitor.write("note that it is both")
    visitor.button("Approve").wait_for()
    visitor.page.evaluate(CLICK_ALL, [first, "Deny" if first == "Approve" else "Approve"])
    sees(visitor, "The program did")
    visitor.idle()
    run = events_of(data, latest_run(data))
    assert (run.count("decided"), run.count("call_started")) == (1, first == "Approve")
    has_notes(visitor, int(first == "Approve"))


# --- a card that is dead ------------------------------------------------------------------------


def test_a_click_that_is_sent_again_runs_nothing_again(browser: Browser, site: Served, data: Path) -> None:
    """The page's own message, word for word: once after the card is gone, once in the next card's time."""
    context = browser.new_context(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
    context.add_init_script(KEEP_SOCKETS)
    visitor = Visitor(context, site)
    visitor.write("note that it is replayed")
    visitor.button("Approve").wait_for()
    visitor.idle()
    visitor.page.evaluate("window.sent.length = 0")
    visitor.button("Approve").click()
    sees(visitor, "ran once")
    visitor.idle()
    # A tick of the countdown may have been sent before it.
    visitor.page.evaluate(
        "window.approval = window.sent.find(sent => new TextDecoder().decode(sent).includes('-approve_'))"
    )
    again = "window.sockets.at(-1).send(window.approval)"
    visitor.page.evaluate(again)
    has_notes(visitor, 1)
    visitor.write("note that it is another")
    visitor.button("Approve").wait_for()
    visitor.page.evaluate(again)
    visitor.idle()
    sees(visitor, "The first decision counts.")
    expect(visitor.button("Approve")).to_be_visible()
    assert events_of(data, latest_run(data))[-2:] == ["approval_requested", "decision_ignored"]
    visitor.button("Deny").click()
    sees(visitor, "denied")
    has_notes(visitor, 1)
    assert visitor.complaints == []
    context.close()


def test_approve_in_the_same_tick_as_stop_is_too_late(visitor: Visitor, data: Path) -> None:
    visitor.write("note that it is stopped")
    visitor.button("Approve").wait_for()
    visitor.page.evaluate(CLICK_ALL, ["Stop", "Approve"])
    sees(visitor, "You stopped it.")
    visitor.idle()
    run = events_of(data, latest_run(data))
    assert (run.count("decided"), run.count("call_started"), run[-1]) == (0, 0, "decision_ignored")
    has_notes(visitor, 0)


# --- beside a slow run --------------------------------------------------------------------------


def test_clicks_elsewhere_while_a_run_works_lose_nothing(
    guest: Visitor, talks: Talks, data: Path, holds: Callable[[Completion], Held]
) -> None:
    slow, slower = holds(asks_for_a_note("it is slow")), holds(says("It is written."))
    talks.plan["slow note"] = [slow, slower]
    talks.plan["list"] = [wants(call("l", "list_notes", {})), says("Listed.")]
    guest.write("slow note")
    assert slow.reached.wait(HOLD_S)
    click_elsewhere(guest)
    slow.let.set()
    guest.button("Approve").click()
    assert slower.reached.wait(HOLD_S)
    click_elsewhere(guest)
    slower.let.set()
    sees(guest, "It is written.")
    guest.idle()
    run = events_of(data, latest_run(data))
    assert (run.count("user_message"), run.count("call_started"), run[-1]) == (1, 1, "run_ended")
    expect(guest.page.get_by_text("slow note", exact=True)).to_have_count(1)
    sees(guest, "Completed")
    guest.write("list")
    sees(guest, "Listed.")
    told = json.loads(talks.requests[-1]["messages"][-1]["content"])
    assert [note["text"] for note in told["data"]["notes"]] == ["it is slow"]


def click_elsewhere(visitor: Visitor) -> None:
    """Each view, a tool off and on again, and the limits opened: without waiting for any of it."""
    page = visitor.page
    for view in VIEWS:
        page.get_by_test_id("stButtonGroup").get_by_text(view, exact=True).click()
    for _ in range(2):
        page.get_by_text("list_files", exact=True).first.click()
    page.get_by_text("Limits of a run").click()


def test_stop_ends_a_slow_run_and_the_next_message_works_at_once(
    guest: Visitor, talks: Talks, holds: Callable[[Completion], Held]
) -> None:
    slow = holds(says("too late"))
    talks.plan["never ends"] = [wants(call("f", "list_files", {})), slow]
    talks.plan["and a card"] = [asks_for_a_note("stopped")]
    talks.plan["go on"] = [says("Here I am.")]
    guest.write("never ends")
    assert slow.reached.wait(HOLD_S)
    guest.button("Stop").click(timeout=AT_ONCE_MS)
    sees(guest, "You stopped it.", AT_ONCE_MS)
    guest.write("and a card")
    guest.button("Approve").wait_for()
    guest.button("Stop").click(timeout=AT_ONCE_MS)
    expect(guest.button("Approve")).to_have_count(0)
    guest.write("go on")
    sees(guest, "Here I am.", AT_ONCE_MS)
    messages = talks.requests[-1]["messages"]
    assert check_pairing(messages) == []
    answers = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
    assert [(one["tool"], one["ok"]) for one in answers] == [("list_files", True), ("write_note", False)]
    slow.let.set()
    guest.idle()
    assert "too late" not in guest.text()


# --- nobody there any more ----------------------------------------------------------------------


def test_a_reload_leaves_the_card_behind_and_runs_nothing(visitor: Visitor, data: Path) -> None:
    visitor.write("note that it is left")
    visitor.button("Approve").wait_for()
    left = latest_run(data)
    visitor.page.reload()
    sees(visitor, "Try one of these")
    visitor.idle()
    expect(visitor.button("Approve")).to_have_count(0)
    assert "it is left" not in visitor.text()
    has_notes(visitor, 0)
    assert events_of(data, left) == ["user_message", "request_sent", "reply_received", "approval_requested"]


def test_a_card_counts_down(visitor: Visitor) -> None:
    visitor.write("note that it ticks")
    clock = visitor.page.get_by_role("timer")
    expect(clock).to_contain_text("expires in 4:")
    seen = clock.inner_text()
    expect(clock).not_to_have_text(seen)
    expect(clock).to_contain_text("expires in 4:")
    assert clock.inner_text() < seen


def test_a_closed_tab_ends_its_run_by_the_lease(data: Path, closed_tab: str) -> None:
    """The only test here that takes its time: as long as the lease, less what the others took."""

    def lines(event: str) -> list[dict[str, Any]]:
        return [one for one in audit_lines(data) if (one["run_id"], one["event"]) == (closed_tab, event)]

    ended = until(lambda: lines("run_ended"), LEASE_S + 5)
    assert [line["error_code"] for line in ended] == ["abandoned"]
    times = [datetime.fromisoformat(line["timestamp"]) for line in lines("user_message") + ended]
    assert LEASE_S <= (times[1] - times[0]).total_seconds() < LEASE_S + 10


def until(found: Callable[[], list[Any]], timeout_s: float) -> list[Any]:
    """What is found in the end, looked for again and again; nothing where the time is over."""
    never = Event()
    for _ in range(int(timeout_s / 0.1)):
        if there := found():
            return there
        never.wait(0.1)
    return []
