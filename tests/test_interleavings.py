"""Ask, decide, stop, expire, proceed and retry, at every event boundary and in every pair of boundaries.

The clock is asked for the time before each event. There, outside the lock, the test acts as another
thread would: each action runs to its end between two steps of the working thread.
"""

from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Any

import pytest

from agent import Agent, State
from agent.errors import ModelError, RunActive
from agent.record import CallStarted, RunEnded, RunRetried
from agent.state import Conversation, fold
from agent.transcript import check_pairing
from tests.support import FakeClock, Setup, asks, call

ACTIONS = ("ask", "approve", "deny", "stop", "expire", "proceed")
BOUNDARIES = 16
RETRY_BOUNDARIES = 10
DOWN = ModelError("provider_error", "Down.")


class Meddler(FakeClock):
    """A clock that acts once at each of the given event counts."""

    def __init__(self) -> None:
        super().__init__()
        self.agent: Agent | None = None
        self.plan: list[tuple[int, Callable[[], object]]] = []

    def steady_s(self) -> float:
        agent = self.agent
        if agent and self.plan and not agent.lock._is_owned():  # type: ignore[attr-defined]
            boundary, action = self.plan[0]
            if len(agent.events) >= boundary:
                self.plan.pop(0)
                with suppress(RunActive):
                    action()
        return self.at_s


class Scene:
    """One agent, a script that reads, writes, repeats itself and goes on, and what people do to it."""

    def __init__(self, plan: list[tuple[int, str]], failing: bool = False) -> None:
        calls = (
            call("w", "note", {"text": "A"}),
            call("l", "look", {"text": "A"}),
            call("w2", "note", {"text": "A"}),
            call("v", "note", {"text": "B"}),
        )
        steps = [asks(*calls), asks(call("m", "look", {"text": "B"})), *["done"] * 8]
        if failing:
            steps = [DOWN, asks(*calls[:2]), DOWN, DOWN, *["done"] * 8]
        self.clock = Meddler()
        self.setup = Setup(*steps, clock=self.clock)
        self.agent = self.setup.agent
        self.clock.agent = self.agent
        self.clock.plan = [(at, getattr(self, name)) for at, name in plan]
        self.approved: list[tuple[str, str]] = []

    def ask(self) -> None:
        self.agent.ask("another thing")

    def stop(self) -> None:
        self.agent.stop()

    def proceed(self) -> None:
        self.agent.proceed()

    def retry(self) -> None:
        self.agent.retry()

    def expire(self) -> None:
        self.clock.advance(301)
        self.agent.proceed()

    def approve(self) -> None:
        self._decide(True)

    def deny(self) -> None:
        self._decide(False)

    def _decide(self, approve: bool) -> None:
        run = self.agent.run
        for card in run.pending[:1] if run else ():
            if self.agent.decide(card.id, card.digest, approve=approve) and approve:
                self.approved.append((run.id if run else "", str(card.arguments["text"])))

    def play(self) -> None:
        with suppress(RunActive):
            self.agent.ask("first")
        self.approve_all()
        self.clock.plan = []
        self.agent.stop()
        last = self.agent.ask("last")
        self.approve_all()
        while self.agent.can_retry:
            self.agent.retry()
            self.approve_all()
        assert last.state == State.COMPLETED

    def meddle(self, at: int, action: Callable[[], object]) -> "MeddlingLock":
        lock: Any = MeddlingLock(at, action)
        self.agent.lock = lock
        return lock

    def approve_all(self) -> None:
        for _ in range(8):
            self.approve()
            self.agent.proceed()

    def check_effects(self) -> None:
        """Two runs may each be allowed the same note; no run may write one twice, or unapproved."""
        written = [arguments["text"] for arguments in self.setup.note.calls]
        allowed = [text for _, text in self.approved]
        assert len(self.approved) == len(set(self.approved))
        assert all(written.count(text) <= allowed.count(text) for text in written)
        started = [e for e in self.agent.events if isinstance(e, CallStarted) and e.effect == "write"]
        assert len(self.setup.store.executions) == len(started)

    def check(self) -> None:
        events = self.agent.events
        assert check_pairing(self.agent.messages) == []
        assert all(check_pairing(request) == [] for request in self.setup.model.requests)
        self.check_effects()
        begun = [event.run_id for event in events if event.kind == "user_message"]
        ended = [event.run_id for event in events if isinstance(event, RunEnded)]
        retried = [event.run_id for event in events if isinstance(event, RunRetried)]
        assert sorted(begun + retried) == sorted(ended)
        assert len(set(begun)) == len(begun)
        folded = Conversation()
        for event in events:
            fold(folded, event)
        assert folded == self.agent.state


def play(plan: list[tuple[int, str]]) -> Scene:
    scene = Scene(plan)
    scene.play()
    scene.check()
    return scene


def test_the_scene_itself_reaches_every_boundary() -> None:
    scene = play([])
    assert scene.setup.note.calls == [{"text": "A"}, {"text": "B"}]
    assert len(scene.agent.events) >= BOUNDARIES


@pytest.mark.parametrize("first", ACTIONS)
@pytest.mark.parametrize("second", ACTIONS)
def test_every_pair_of_actions_at_every_pair_of_boundaries(first: str, second: str) -> None:
    for early in range(BOUNDARIES):
        for late in range(early, BOUNDARIES):
            play([(early, first), (late, second)])


@pytest.mark.parametrize("first", ["retry", *ACTIONS])
def test_a_retry_and_any_other_action_at_every_pair_of_boundaries(first: str) -> None:
    for early in range(RETRY_BOUNDARIES):
        for late in range(RETRY_BOUNDARIES):
            scene = Scene([(min(early, late), first), (max(early, late), "retry")], failing=True)
            scene.agent.ask("at first")
            scene.retry()
            scene.play()
            scene.check()


class MeddlingLock:
    """An agent's lock that acts once, just before it is taken for the nth time."""

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self.at = at
        self.action = action
        self.taken = 0
        self.lock = RLock()

    def __enter__(self) -> bool:
        if not self.lock._is_owned():  # type: ignore[attr-defined]
            self.taken += 1
            if self.taken == self.at:
                self.action()
        return self.lock.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.lock.__exit__(*raised)


@pytest.mark.parametrize("at", range(1, 16))
def test_a_decision_is_seen_by_the_working_thread_or_left_to_proceed(at: int) -> None:
    """Nobody calls `proceed` again: wherever the decisions fall, one of the two takes them up."""
    scene = Scene([])

    def decide_and_proceed() -> None:
        run = scene.agent.run
        if run and len(run.pending) == 2:
            acted.append(True)
            scene.approve()
            scene.approve()
            scene.agent.proceed()

    acted: list[bool] = []
    lock = scene.meddle(at, decide_and_proceed)
    run = scene.agent.ask("first")
    assert lock.taken >= at
    assert run.state == (State.COMPLETED if acted else State.WAITING_APPROVAL)
    scene.check_effects()


@pytest.mark.parametrize("at", range(1, 23))
def test_a_stop_before_any_step_leaves_no_claim_without_a_start(at: int) -> None:
    scene = Scene([])
    scene.agent.ask("first")
    scene.approve()
    scene.approve()
    lock = scene.meddle(at, scene.agent.stop)
    scene.agent.proceed()
    assert lock.taken >= at
    scene.check_effects()
    assert check_pairing(scene.agent.messages) == []


def test_a_retry_waits_for_the_thread_that_still_has_the_run() -> None:
    """The run has failed, and its thread has not let go of it yet: only after that can it be repeated."""
    repeated: list[bool] = []
    for at in range(1, 60):
        scene = Scene([], failing=True)
        lock = scene.meddle(at, scene.retry)
        scene.agent.ask("first")
        if lock.taken < at:
            break
        repeated.append(any(isinstance(event, RunRetried) for event in scene.agent.events))
    assert repeated == [False] * (len(repeated) - 1) + [True]


@pytest.mark.parametrize("at", range(1, 3))
def test_of_two_decisions_at_once_one_decides(at: int) -> None:
    scene = Scene([])
    card = scene.agent.ask("first").pending[0]
    decided: list[bool] = []

    def deny() -> None:
        decided.append(scene.agent.decide(card.id, card.digest, approve=False))

    scene.meddle(at, deny)
    decided.append(scene.agent.decide(card.id, card.digest, approve=True))
    scene.agent.stop()
    assert sorted(decided) == [False, True]
