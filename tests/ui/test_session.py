"""A session without a page: each click is one atomic step, and what nobody watches comes to an end."""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Barrier, Event, Thread
from typing import Any, cast

import pytest

from agent import State
from agent.agent import MAX_REASON_CHARS
from agent.errors import ModelError
from agent.limits import Deadline, Limits
from agent.model import Message, Model, OnDelta, Reply, Usage
from agent.model.scripted import Scripted, Step
from agent.record import Approval, CallFinished, Decided, RunEnded, UserMessage
from agent.run import Run
from agent.transcript import check_pairing
from agent.ui.services import Leases, build_services
from agent.ui.session import LEASE_S, MAX_AT_WORK, SHOWN_MESSAGES, WAITING_LEASE_S, Notice, Session, Sight
from tests.support import Counter, FakeClock, asks, call, make_tool
from tests.ui.reach import changeable, reachable
from tools.base import JsonValue, Tool, ToolContext

PATIENCE_S = 30.0
"""For what comes at once, on a machine that is busy with other things."""

A, B = {"text": "A"}, {"text": "B"}
CARD = asks(call("a", "note", A))
TWO_CARDS = asks(call("a", "note", A), call("b", "note", B))


class Door:
    """A place where a worker waits until a test lets it through."""

    def __init__(self) -> None:
        self.reached = Event()
        self.opened = Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)


class Writing:
    """A model that writes each reply in pieces, and waits at its doors on the way."""

    name = "writing"

    def __init__(self, *replies: Sequence[str | Door | Exception]) -> None:
        self._replies = iter(replies)

    def reply(
        self, messages: Sequence[Message], tools: object, deadline: Deadline, on_delta: OnDelta | None = None
    ) -> Reply:
        text = ""
        for piece in next(self._replies):
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, Door):
                piece.pass_through()
            else:
                text += piece
                if on_delta:
                    on_delta(piece)
        return Reply(text=text, finish_reason="stop", usage=Usage())


class Desk:
    """A session over a script, on a clock that stands still: note (write) counts, look (read) waits.

    `door` is passed by each look, `judging` by the judging of a note with the text B.
    """

    def __init__(
        self,
        *steps: Step,
        model: Model | None = None,
        door: Door | None = None,
        judging: Door | None = None,
    ) -> None:
        def look(arguments: dict[str, Any], ctx: ToolContext) -> JsonValue:
            if door:
                door.pass_through()
            return {"seen": arguments["text"]}

        self.clock = FakeClock(PATIENCE_S)
        self.services = build_services(self.clock)
        self.note = Counter()
        note = make_tool("note", self.note, "write")

        def validate(arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
            if judging and arguments == B:
                judging.pass_through()
            return note.validate(arguments)

        tools = (replace(note, validator=validate), make_tool("look", look, "read"))
        self.scripted = Scripted(steps)
        self.session = Session(self.services, model or self.scripted, tools)

    @property
    def run(self) -> Run:
        run = self.session.agent.run
        assert run is not None
        return run

    @property
    def end(self) -> tuple[State, str | None]:
        return self.run.state, self.run.end_code

    @property
    def cards(self) -> list[Approval]:
        return self.run.pending

    def settle(self) -> None:
        """Wait until no work is left."""
        self.session.settle(PATIENCE_S)
        assert not self.session.working

    def ask(self, text: str = "go") -> None:
        self.session.ask(text)
        self.settle()

    def decide(self, card: Approval, *, approve: bool = True, **more: Any) -> None:
        self.session.decide(card, approve=approve, **more)
        self.settle()

    def kinds(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.session.agent.events if isinstance(event, kind)]


Desks = Callable[..., Desk]


@pytest.fixture
def desks() -> Iterator[Desks]:
    """Makes desks, whose workers are gone at the end."""
    made: list[Desk] = []

    def make(*steps: Step, **more: Any) -> Desk:
        made.append(Desk(*steps, **more))
        return made[-1]

    yield make
    for desk in made:
        desk.services.close()
        desk.services.workers.shutdown(wait=True)


def at_once(*deeds: Callable[[], None]) -> None:
    """Do all of it in threads of their own that begin together."""
    barrier = Barrier(len(deeds))

    def do(deed: Callable[[], None]) -> None:
        barrier.wait(PATIENCE_S)
        deed()

    threads = [Thread(target=do, args=(deed,), daemon=True) for deed in deeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


# --- ask ----------------------------------------------------------------------------------------


def test_a_message_is_answered_by_a_worker(desks: Desks) -> None:
    desk = desks("hello")
    desk.ask("hi")
    assert (desk.end, desk.run.answer) == ((State.COMPLETED, None), "hello")
    assert (desk.session.notice, desk.session.draft, desk.session.open()) == (None, None, False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("   ", "Write a message first."),
        ("x" * (Limits().max_message_chars + 1), "has 8001 characters; at most 8000 fit"),
        ("half \ud800", "a character that is not text"),
    ],
)
def test_a_message_that_is_refused_comes_back_and_nothing_is_recorded(
    desks: Desks, text: str, says: str
) -> None:
    desk = desks("never")
    desk.ask(text)
    assert desk.session.notice
    assert (desk.session.notice.kind, desk.session.draft) == ("refused", text)
    assert says in desk.session.notice.sentence
    assert (list(desk.session.agent.events), desk.scripted.requests) == ([], [])
    desk.ask("better")
    assert (desk.session.notice, desk.session.draft) == (None, None)


def test_a_message_while_a_run_works_is_kept_and_not_sent(desks: Desks) -> None:
    door = Door()
    desk = desks(model=Writing(["slow", door], ["next"]))
    desk.session.ask("first")
    assert door.reached.wait(PATIENCE_S)
    desk.session.ask("second")
    assert (desk.session.notice, desk.session.draft) == (Notice("busy"), "second")
    door.opened.set()
    desk.settle()
    assert [event.text for event in desk.kinds(UserMessage)] == ["first"]
    desk.ask("second")
    assert (desk.run.answer, desk.session.notice) == ("next", None)


def test_a_message_while_a_card_waits_is_kept_and_the_card_stays(desks: Desks) -> None:
    desk = desks(CARD, "done")
    desk.ask()
    card = desk.cards[0]
    desk.ask("another thing")
    assert (desk.session.notice, desk.session.draft) == (Notice("busy"), "another thing")
    assert desk.cards == [card]


def test_of_two_messages_at_once_one_is_sent(desks: Desks) -> None:
    for _ in range(20):
        door = Door()
        desk = desks(model=Writing([door, "one"], ["two"]))
        at_once(lambda desk=desk: desk.session.ask("one"), lambda desk=desk: desk.session.ask("two"))
        door.opened.set()
        desk.settle()
        sent = [event.text for event in desk.kinds(UserMessage)]
        assert sorted(map(str, [*sent, desk.session.draft])) == ["one", "two"]


def test_a_message_after_the_end_of_the_server_is_kept(desks: Desks) -> None:
    desk = desks("never")
    desk.services.close()
    desk.ask("too late")
    assert (desk.session.notice, desk.session.draft) == (Notice("going_down"), "too late")
    assert list(desk.session.agent.events) == []
    assert not desk.session.open()


# --- decide -------------------------------------------------------------------------------------


def test_an_approval_runs_once_and_the_run_goes_on(desks: Desks) -> None:
    desk = desks(CARD, "done")
    desk.ask()
    assert (desk.end[0], desk.note.calls) == (State.WAITING_APPROVAL, [])
    desk.decide(desk.cards[0])
    assert (desk.end, desk.note.calls) == ((State.COMPLETED, None), [A])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_the_first_decision_counts_and_the_second_is_told_so(desks: Desks, first: bool, second: bool) -> None:
    """Both in one rerun of the page: the callbacks run one after the other, before anything is drawn."""
    desk = desks(CARD, "done")
    desk.ask()
    card = desk.cards[0]
    desk.session.decide(card, approve=first)
    assert desk.session.notice is None
    desk.session.decide(card, approve=second)
    assert desk.session.notice == Notice("card_closed")
    desk.settle()
    assert desk.note.calls == [A] * first
    assert [event.approve for event in desk.kinds(Decided)] == [first]
    assert desk.end == (State.COMPLETED, None)


def test_of_many_decisions_at_once_one_decides(desks: Desks) -> None:
    for _ in range(20):
        desk = desks(CARD, "done")
        desk.ask()
        card = desk.cards[0]
        deeds = [
            lambda desk=desk, card=card, approve=approve: desk.session.decide(card, approve=approve)
            for approve in (True, False, True, False)
        ]
        at_once(*deeds)
        desk.settle()
        decided = [event.approve for event in desk.kinds(Decided)]
        assert len(decided) == 1
        assert desk.note.calls == [A] * decided[0]
        assert desk.end == (State.COMPLETED, None)


def test_a_decision_while_an_edit_is_being_judged_comes_first(desks: Desks) -> None:
    door = Door()
    desk = desks(CARD, "done", judging=door)
    desk.ask()
    card = desk.cards[0]

    def deny() -> None:
        assert door.reached.wait(PATIENCE_S)
        desk.session.decide(card, approve=False)
        assert desk.session.notice is None
        door.opened.set()

    at_once(lambda: desk.session.decide(card, approve=True, arguments=B), deny)
    desk.settle()
    assert desk.session.notice == Notice("card_closed")
    assert ([event.approve for event in desk.kinds(Decided)], desk.note.calls) == ([False], [])


def test_a_denial_takes_its_reason_along(desks: Desks) -> None:
    desk = desks(CARD, "done")
    desk.ask()
    desk.decide(desk.cards[0], approve=False, reason="wrong text " * 100)
    denied = desk.kinds(Decided)[0]
    assert denied.reason == ("wrong text " * 100)[:MAX_REASON_CHARS].strip()
    assert desk.note.calls == []


def test_each_of_two_cards_is_decided_alone_and_then_both_run_in_order(desks: Desks) -> None:
    desk = desks(TWO_CARDS, "done")
    desk.ask()
    one, two = desk.cards
    desk.decide(two)
    assert (desk.end[0], desk.note.calls) == (State.WAITING_APPROVAL, [])
    desk.decide(one)
    assert (desk.end[0], desk.note.calls) == (State.COMPLETED, [A, B])


def test_an_edit_that_is_refused_says_why_and_the_card_stays(desks: Desks) -> None:
    desk = desks(CARD, "done")
    desk.ask()
    card = desk.cards[0]
    desk.session.edit(card)
    desk.decide(card, arguments={"text": 5})
    fault = desk.session.edit_fault
    assert fault
    assert (fault.card_id, [field.field for field in fault.fields]) == (card.id, ["text"])
    assert (desk.session.editing, desk.cards, desk.note.calls) == (card.id, [card], [])
    desk.decide(card, arguments=B)
    assert (desk.session.editing, desk.session.edit_fault, desk.note.calls) == (None, None, [B])


def test_leaving_an_edit_forgets_what_was_wrong_with_it(desks: Desks) -> None:
    desk = desks(CARD)
    desk.ask()
    desk.session.edit(desk.cards[0])
    desk.decide(desk.cards[0], arguments={"text": 5})
    desk.session.edit(None)
    assert (desk.session.editing, desk.session.edit_fault) == (None, None)


def test_a_card_that_was_stopped_is_dead(desks: Desks) -> None:
    desk = desks(CARD, "next")
    desk.ask()
    card = desk.cards[0]
    desk.session.stop()
    desk.decide(card)
    assert desk.session.notice == Notice("card_closed")
    assert (desk.note.calls, desk.end) == ([], (State.CANCELLED, "cancelled"))


def test_a_card_of_one_session_means_nothing_to_another(desks: Desks) -> None:
    mine, other = desks(CARD, "done"), desks(CARD, "done")
    mine.ask()
    other.ask()
    other.decide(mine.cards[0])
    assert other.session.notice == Notice("card_closed")
    assert (mine.note.calls, other.note.calls, len(other.cards)) == ([], [], 1)


def test_a_decision_while_the_worker_is_still_at_work_is_taken_up_by_it(desks: Desks) -> None:
    door = Door()
    desk = desks(asks(call("a", "note", A), call("b", "look", B)), "done", door=door)
    desk.session.ask("go")
    assert door.reached.wait(PATIENCE_S)
    desk.session.decide(desk.cards[0], approve=True)
    door.opened.set()
    desk.settle()
    assert (desk.end[0], desk.note.calls) == (State.COMPLETED, [A])


def test_a_decision_just_when_the_worker_lets_go_is_taken_up(desks: Desks) -> None:
    for _ in range(100):
        desk = desks(CARD, "done")

        def decide_as_soon_as_it_is_asked(session: Session = desk.session) -> None:
            with session.agent.lock:
                session.agent.changed.wait_for(lambda: session.agent.run and session.agent.run.pending)
                cards = session.agent.run.pending if session.agent.run else []
            session.decide(cards[0], approve=True)

        at_once(decide_as_soon_as_it_is_asked, lambda desk=desk: desk.session.ask("go"))
        desk.settle()
        assert (desk.end[0], desk.note.calls) == (State.COMPLETED, [A])


# --- stop ---------------------------------------------------------------------------------------


def test_stop_ends_a_run_in_a_call_of_a_tool_and_the_next_message_works_at_once(desks: Desks) -> None:
    door = Door()
    calls = asks(call("a", "look", A), call("b", "look", B), call("c", "note", A))
    desk = desks(calls, "next", door=door)
    desk.session.ask("go")
    assert door.reached.wait(PATIENCE_S)
    desk.session.stop()
    stopped = desk.run
    assert (stopped.state, stopped.end_code) == (State.CANCELLED, "cancelled")
    assert check_pairing(desk.session.agent.messages) == []
    assert [message["tool_call_id"] for message in desk.session.agent.messages[3:]] == ["a", "b", "c"]
    assert not desk.session.working
    desk.ask("again")
    assert (desk.end, desk.run.answer) == ((State.COMPLETED, None), "next")
    before = desk.session.agent.events
    door.opened.set()
    desk.services.workers.shutdown(wait=True)
    assert desk.session.agent.events == before
    assert desk.note.calls == []


def test_stop_ends_a_run_in_a_call_of_the_model_and_what_it_brings_is_dropped(desks: Desks) -> None:
    door = Door()
    desk = desks(model=Writing(["too ", door, "late"], ["next"]))
    desk.session.ask("go")
    assert door.reached.wait(PATIENCE_S)
    desk.session.stop()
    assert desk.end == (State.CANCELLED, "cancelled")
    desk.ask("again")
    door.opened.set()
    desk.services.workers.shutdown(wait=True)
    assert [run.answer for run in desk.session.agent.runs] == [None, "next"]
    assert len(desk.kinds(RunEnded)) == 2
    assert check_pairing(desk.session.agent.messages) == []


def test_one_conversation_holds_a_few_workers_at_most(desks: Desks) -> None:
    """A stopped worker may stay in its call until its deadline: that must not take the others' away."""
    doors = [Door() for _ in range(MAX_AT_WORK)]
    desk = desks(model=Writing(*([door, "late"] for door in doors), ["next"]))
    for door in doors:
        desk.session.ask("go")
        assert door.reached.wait(PATIENCE_S)
        desk.session.stop()
    desk.session.ask("one more")
    assert (desk.session.notice, desk.session.draft) == (Notice("busy"), "one more")
    for door in doors:
        door.opened.set()


def test_stop_before_a_worker_was_free_leaves_nothing_that_begins_later(desks: Desks) -> None:
    door = Door()
    desk = desks("never")
    for _ in range(16):
        desk.services.workers.submit(door.pass_through)
    desk.session.ask("go")
    desk.session.stop()
    assert not desk.session.open()
    door.opened.set()
    desk.services.workers.shutdown(wait=True)
    assert (list(desk.session.agent.events), desk.scripted.requests) == ([], [])


def test_stop_while_cards_wait_answers_every_one(desks: Desks) -> None:
    desk = desks(TWO_CARDS, "next")
    desk.ask()
    desk.decide(desk.cards[0])
    desk.session.stop()
    assert (desk.end, desk.cards, desk.note.calls) == ((State.CANCELLED, "cancelled"), [], [])
    assert check_pairing(desk.session.agent.messages) == []
    assert len(desk.session.agent.messages) == 5
    desk.ask("again")
    assert desk.end == (State.COMPLETED, None)


def test_stop_again_and_stop_before_anything_change_nothing(desks: Desks) -> None:
    desk = desks("hello")
    desk.session.stop()
    desk.ask()
    before = desk.session.agent.events
    desk.session.stop()
    assert desk.session.agent.events == before


# --- what is being written ----------------------------------------------------------------------


def test_what_is_being_written_is_seen_until_the_reply_is_there(desks: Desks) -> None:
    door = Door()
    desk = desks(model=Writing(["Hel", "lo", door, "!"]))
    desk.session.ask("go")
    assert door.reached.wait(PATIENCE_S)
    assert (desk.session.said, desk.session.sight().said) == ("Hello", 5)
    door.opened.set()
    desk.settle()
    assert (desk.session.said, desk.run.answer) == ("", "Hello!")


def test_a_request_shows_nothing_of_the_run_before(desks: Desks) -> None:
    door, later = Door(), Door()
    desk = desks(model=Writing(["the first answer"], [door, "new", later]))
    desk.ask("one")
    desk.session.ask("two")
    assert door.reached.wait(PATIENCE_S)
    assert desk.session.said == ""
    door.opened.set()
    assert later.reached.wait(PATIENCE_S)
    assert desk.session.said == "new"
    later.opened.set()


def test_a_request_shows_nothing_of_one_that_failed(desks: Desks) -> None:
    door = Door()
    desk = desks(model=Writing(["half", ModelError("provider_error", "Down.", retry=True)], [door, "whole"]))
    desk.clock.patience_s = 0.01
    desk.session.ask("go")
    assert door.reached.wait(PATIENCE_S)
    assert desk.session.said == ""
    door.opened.set()
    desk.settle()
    assert desk.run.answer == "whole"


def test_nothing_is_being_written_after_a_stop(desks: Desks) -> None:
    first, second = Door(), Door()
    desk = desks(model=Writing(["some", first, " more", second], ["next"]))
    desk.session.ask("go")
    assert first.reached.wait(PATIENCE_S)
    desk.session.stop()
    assert desk.session.said == ""
    first.opened.set()
    assert second.reached.wait(PATIENCE_S)
    assert desk.session.said == ""
    second.opened.set()
    desk.ask("again")
    assert desk.run.answer == "next"


def test_an_observer_wakes_at_each_piece_and_at_the_end(desks: Desks) -> None:
    door, later = Door(), Door()
    desk = desks(model=Writing(["a", door, "b", later]))
    desk.session.ask("go")
    assert door.reached.wait(PATIENCE_S)
    sight = desk.session.sight()
    assert desk.session.wait(sight, 0.0) == sight
    seen: list[Sight] = []
    # Much longer than `at_once` waits: only what wakes it brings it back in time.
    at_once(lambda: seen.append(desk.session.wait(sight, 10 * PATIENCE_S)), door.opened.set)
    (grown,) = seen
    assert (grown.said, grown.working) == (2, True)
    assert later.reached.wait(PATIENCE_S)
    later.opened.set()
    while grown.working:
        grown, before = desk.session.wait(grown, PATIENCE_S), grown
        assert grown != before
    assert desk.end[0] == State.COMPLETED


# --- leases -------------------------------------------------------------------------------------


def test_a_run_that_works_unwatched_lapses_after_its_lease(desks: Desks) -> None:
    door = Door()
    desk = desks(CARD, "done", door=door)
    assert (LEASE_S, WAITING_LEASE_S) == (20.0, 120.0)
    working = desks(model=Writing([door]))
    desk.ask()
    working.session.ask("go")
    for one, lease_s in ((desk, WAITING_LEASE_S), (working, LEASE_S)):
        start = one.clock.steady_s()
        one.session.seen()
        assert not one.session.lapsed(start + lease_s)
        assert one.session.lapsed(start + lease_s + 0.01)
        one.clock.advance(5)
        one.session.seen()
        assert not one.session.lapsed(start + lease_s + 5)
    door.opened.set()


@pytest.mark.parametrize("waits", [True, False])
def test_what_nobody_watches_ends_as_abandoned(desks: Desks, waits: bool) -> None:
    door = Door()
    model = Scripted([TWO_CARDS, "next"]) if waits else Writing([door], ["next"])
    desk = desks(model=model)
    desk.session.ask("go")
    desk.session.settle(PATIENCE_S) if waits else door.reached.wait(PATIENCE_S)
    lease_s = WAITING_LEASE_S if waits else LEASE_S
    desk.clock.advance(lease_s)
    desk.services.leases.sweep()
    assert desk.session.open()
    desk.clock.advance(0.01)
    desk.services.leases.sweep()
    assert desk.end == (State.CANCELLED, "abandoned")
    assert (desk.session.open(), desk.note.calls) == (False, [])
    assert check_pairing(desk.session.agent.messages) == []
    desk.session.seen()
    desk.ask("back again")
    assert desk.end == (State.COMPLETED, None)
    door.opened.set()


def test_whoever_clicks_is_there(desks: Desks) -> None:
    """A hidden tab looks once a minute: a click after that must not find its run abandoned."""
    door = Door()
    desk = desks(asks(call("a", "note", A)), asks(call("b", "look", B)), "done", door=door)
    desk.ask()
    desk.clock.advance(LEASE_S * 3)
    desk.session.decide(desk.cards[0], approve=True)
    assert door.reached.wait(PATIENCE_S)
    desk.services.leases.sweep()
    door.opened.set()
    desk.settle()
    assert desk.end == (State.COMPLETED, None)


class Patient:
    """A session as the leases see it, that counts how often it is looked at."""

    def __init__(self) -> None:
        self.is_open = True
        self.looks = 0

    def open(self) -> bool:
        return self.is_open

    def lapsed(self, now: float) -> bool:
        self.looks += 1
        return False

    def abandon(self) -> None:
        self.is_open = False


def test_the_leases_forget_what_has_ended() -> None:
    leases, one = Leases(FakeClock(PATIENCE_S)), Patient()
    leases.watch(one)
    leases.sweep()
    assert one.looks == 1
    one.is_open = False
    leases.sweep()
    leases.sweep()
    assert one.looks == 2


def test_the_leases_do_not_forget_what_begins_again_meanwhile() -> None:
    """A message that is asked just when a sweep found the run before it ended."""

    class Restless(Patient):
        def open(self) -> bool:
            was, self.is_open = self.is_open, True
            if not was:
                other = Thread(target=leases.watch, args=(self,), daemon=True)
                other.start()
                other.join(0.05)
                others.append(other)
            return was

    others: list[Thread] = []
    leases, one = Leases(FakeClock(PATIENCE_S)), Restless()
    leases.watch(one)
    one.is_open = False
    leases.sweep()
    for other in others:
        other.join(PATIENCE_S)
    looks = one.looks
    leases.sweep()
    assert one.looks > looks


def test_the_leases_keep_nobody_alive(desks: Desks) -> None:
    desk = desks(CARD)
    desk.ask()
    services, gone = desk.services, weakref.ref(desk.session)
    del desk.session
    gc.collect()
    assert gone() is None
    services.leases.sweep()


def test_the_leases_end_by_themselves_what_nobody_watches(desks: Desks) -> None:
    """The thread that sweeps, on the fake clock: nobody waits for it, so that it moves on at once."""
    desk = desks(CARD)
    desk.clock.patience_s = 0.001
    desk.session.ask("go")
    with desk.session.agent.lock:
        assert desk.session.agent.changed.wait_for(lambda: bool(desk.kinds(RunEnded)), PATIENCE_S)
    assert desk.end == (State.CANCELLED, "abandoned")


# --- expiry -------------------------------------------------------------------------------------


def test_a_card_that_expires_ends_the_run_without_a_request(desks: Desks) -> None:
    desk = desks(CARD, "never")
    desk.ask()
    card = desk.cards[0]
    assert desk.session.seconds_left(card) == Limits().approval_s
    desk.clock.advance(Limits().approval_s - 0.5)
    desk.session.go_on()
    desk.settle()
    assert desk.cards == [card]
    desk.clock.advance(0.5)
    assert desk.session.seconds_left(card) <= 0
    desk.session.go_on()
    desk.settle()
    assert desk.end == (State.FAILED, "approval_expired")
    assert (desk.note.calls, len(desk.scripted.requests)) == ([], 1)
    assert check_pairing(desk.session.agent.messages) == []


def test_an_approval_that_comes_too_late_runs_nothing(desks: Desks) -> None:
    desk = desks(CARD, "never")
    desk.ask()
    card = desk.cards[0]
    desk.clock.advance(Limits().approval_s)
    desk.decide(card)
    assert desk.session.notice == Notice("card_closed")
    assert (desk.end, desk.note.calls) == ((State.FAILED, "approval_expired"), [])


# --- a new conversation, and the end ------------------------------------------------------------


def test_a_new_conversation_ends_the_run_and_shares_nothing_that_changes(desks: Desks) -> None:
    desk = desks(CARD, "done")
    desk.ask("CANARY")
    old = desk.session
    old.shown_messages, old.draft, old.editing = 60, "CANARY", desk.cards[0].id
    new = old.anew(Scripted(["hello"]))
    assert desk.end == (State.CANCELLED, "cancelled")
    assert (new.agent.owner_id, new.tools) == (old.agent.owner_id, old.tools)
    assert new.id != old.id
    assert (new.draft, new.editing, new.notice, new.shown_messages) == (None, None, None, SHOWN_MESSAGES)
    one, two = (reachable(session, shared_by(desk)) for session in (old, new))
    assert list(changeable(one[found] for found in one.keys() & two.keys())) == []
    assert any(isinstance(found, str) and "CANARY" in found for found in one.values())
    assert not any(isinstance(found, str) and "CANARY" in found for found in two.values())


def shared_by(desk: Desk) -> Callable[[object], bool]:
    """What sessions of one process may share, and nothing else."""
    services = desk.services
    shared: list[Any] = [services, services.clock, services.store, services.threads, *desk.session.tools]
    known = {id(one) for one in shared}
    return lambda value: id(value) in known


def test_a_new_conversation_ends_what_waits_for_a_worker(desks: Desks) -> None:
    door = Door()
    desk = desks("never")
    for _ in range(16):
        desk.services.workers.submit(door.pass_through)
    desk.session.ask("go")
    desk.session.anew(Scripted([]))
    door.opened.set()
    desk.services.workers.shutdown(wait=True)
    assert desk.scripted.requests == []


def test_the_end_of_the_server_ends_every_open_run(desks: Desks) -> None:
    door = Door()
    waiting = desks(CARD, "never")
    waiting.ask()
    tools: tuple[Tool, ...] = waiting.session.tools
    working = Session(waiting.services, Writing([door]), tools)
    working.ask("go")
    assert door.reached.wait(PATIENCE_S)
    waiting.services.close()
    door.opened.set()
    for session in (waiting.session, working):
        run = cast(Run, session.agent.run)
        assert (run.state, run.end_code) == (State.CANCELLED, "abandoned")
        assert not session.open()
        assert check_pairing(session.agent.messages) == []
    assert waiting.note.calls == []
    assert waiting.kinds(CallFinished) == []
