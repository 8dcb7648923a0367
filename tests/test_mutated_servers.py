"""Servers that break in any way: every reply is read or refused, and every run ends under a name.

`GLASSLOOP_EXAMPLES=10` looks ten times as long, elsewhere each time.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from threading import Condition
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent import Agent, Limits, Run, State
from agent.errors import ModelError
from agent.limits import Deadline, SystemClock
from agent.model import Reply
from agent.model.openai_chat import OpenAIChat
from agent.model.sse import Events
from agent.model.wire import (
    MAX_CALLS,
    MAX_EXTRA_BYTES,
    MAX_TOKENS,
    MAX_WORD_CHARS,
    Quirk,
    Stream,
    read_message,
)
from agent.record import ApprovalRequested, CallStarted
from agent.replies import name_calls
from agent.transcript import check_pairing
from agent.words import ENDS
from tests.endpoint import answer, says
from tests.model.server import KEY, Loopback, loopback
from tests.mutations import ASKING, BODIES, MESSAGES, SIZES, STREAMS, WIRES, Json, Wire, pieces, values_of
from tests.support import SUM, Counter, make_tool

OF_THE_SERVER = {
    "provider_error",
    "provider_timeout",
    "provider_rate_limited",
    "provider_auth",
    "provider_protocol",
    "context_overflow",
}
CODES = set(ENDS) - {"internal_error"}
FINAL = {State.COMPLETED, State.FAILED, State.CANCELLED}
LATE_S = 2.0

MORE = os.environ.get("GLASSLOOP_EXAMPLES")


def examples(number: int) -> settings:
    return settings(
        max_examples=number * int(MORE or 1),
        derandomize=MORE is None,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# --- one reply, read or refused ---


def outcome(read: Callable[[], Reply]) -> Reply | tuple[str, str]:
    """The reply, or the code and the sentence of the refusal, each as it may be."""
    try:
        reply = read()
    except ModelError as error:
        refusal = error.code, error.message
    else:
        check_reply(reply)
        return reply
    code, sentence = refusal
    assert code in OF_THE_SERVER
    assert sentence
    assert sentence.isprintable()
    return refusal


def check_reply(reply: Reply) -> None:
    calls = reply.calls
    for text in (reply.text, reply.refusal, reply.reasoning, reply.finish_reason):
        assert text is None or (text and text.encode())
    words = [*(call.name for call in calls), *(call.provider_id or "" for call in calls)]
    assert all(len(word) <= MAX_WORD_CHARS and word.isprintable() for word in words)
    "".join(words).encode()
    assert all(call.provider_id is None or call.provider_id.strip() for call in calls)
    assert all(isinstance(call.arguments, str | dict | None) for call in calls)
    assert len(calls) <= MAX_CALLS
    ids = [call.id for call in name_calls(calls, {"n1", "call-001"})]
    assert len({*ids, "n1", "call-001"}) == len(ids) + 2
    extras = [extra for extra in (reply.extra, *(call.extra for call in calls)) if extra]
    assert sum(len(strict(extra)) for extra in extras) <= 2 * MAX_EXTRA_BYTES
    assert set(reply.notes) <= set(Quirk)
    if reply.usage:
        counts = (reply.usage.prompt_tokens, reply.usage.completion_tokens)
        assert all(type(count) is int and 0 <= count <= MAX_TOKENS for count in counts)


def strict(value: object) -> bytes:
    """The JSON text of a value that has one, in UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


@given(MESSAGES)
@examples(1200)
def test_a_message_is_read_or_refused(body: Json) -> None:
    outcome(lambda: read_message(body))


@given(STREAMS, st.booleans())
@examples(1000)
def test_a_stream_is_read_or_refused(chunks: list[Json], done: bool) -> None:
    def read() -> Reply:
        stream = Stream()
        for chunk in chunks:
            (stream.feed(chunk) or "").encode()
        stream.rest().encode()
        return stream.finish(done=done)

    found = outcome(read)
    if not done and not any(values_of("finish_reason", chunks)):
        assert not isinstance(found, Reply), "a stream that was cut is no reply"


@given(BODIES, SIZES)
@examples(1000)
def test_events_are_the_same_however_they_are_split(body: bytes, lengths: list[int]) -> None:
    def read(parts: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        events = Events()
        return [event for part in parts for event in events.feed(part)] + events.finish()

    assert read(pieces(body, lengths)) == read([body])


class Split(httpx2.SyncByteStream):
    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.parts)


class InHand(httpx2.BaseTransport):
    """A network of one answer, which needs no socket."""

    wire: Wire
    lengths: Sequence[int]

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {name.replace("_", "-"): value for name, value in self.wire.headers.items()}
        headers["Content-Type"] = self.wire.content_type
        return httpx2.Response(
            self.wire.status, headers=headers, stream=Split(pieces(self.wire.coded, self.lengths))
        )


@pytest.fixture(scope="module")
def in_hand() -> Iterator[tuple[InHand, openai.OpenAI]]:
    transport = InHand()
    with client_of(httpx2.Client(transport=transport), "http://127.0.0.1/v1") as client:
        yield transport, client


def client_of(http: httpx2.Client, base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, http_client=http)


@given(WIRES, SIZES)
@examples(1000)
def test_an_answer_is_the_same_however_it_is_split(
    in_hand: tuple[InHand, openai.OpenAI], wire: Wire, lengths: list[int]
) -> None:
    transport, client = in_hand
    clock = SystemClock()

    def read(lengths: Sequence[int]) -> tuple[object, str]:
        transport.wire, transport.lengths = wire, lengths
        said: list[str] = []
        model = OpenAIChat(client=client, model="fake")
        found = outcome(lambda: model.reply([], [], Deadline(clock, clock.steady_s() + 60), said.append))
        assert all(text.encode() for text in said)
        return found, "".join(said)

    # Of a broken compression more is read where more came before the break.
    split, whole = read(lengths), read([])
    assert wire.coding in ("cut", "more", "claimed") or repr(split) == repr(whole)


# --- a whole run ---


class Restless(SystemClock):
    """Real time, but for the wait before a request is sent again: that is over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0
        self.backoff: Condition | None = None

    def steady_s(self) -> float:
        return super().steady_s() + self.skipped_s

    def wait(self, condition: Condition, timeout_s: float) -> None:
        if condition is self.backoff:
            self.skipped_s += timeout_s
        else:
            condition.wait(timeout_s)


class Server:
    """One server, one client and one set of counting tools: making them takes longer than a run."""

    def __init__(self, endpoint: Loopback, client: openai.OpenAI) -> None:
        self.endpoint = endpoint
        self.client = client
        self.note = Counter(lambda arguments: {"saved": arguments["text"]})
        self.look = Counter(lambda arguments: {"seen": arguments["text"]})
        self.add = Counter(lambda arguments: {"result": arguments["a"] + arguments["b"]})
        self.tools = [
            make_tool("note", self.note, "write"),
            make_tool("look", self.look, "read"),
            make_tool("add", self.add, "none", SUM),
        ]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    http = openai.DefaultHttpxClient(verify=False)
    with loopback() as endpoint, client_of(http, endpoint.base_url) as client:
        yield Server(endpoint, client)


class Scene:
    """An agent on a server that breaks, and what must hold of it at any time."""

    def __init__(self, server: Server, stream: bool, run_s: float = 5.0) -> None:
        self.endpoint, self.stream = server.endpoint, stream
        self.counters = (server.note, server.look, server.add)
        self.endpoint.requests.clear()
        for counter in self.counters:
            counter.calls.clear()
        clock = Restless()
        self.settings: dict[str, Any] = {
            "model": OpenAIChat(client=server.client, model="fake", stream=stream),
            "tools": server.tools,
            "clock": clock,
            "limits": Limits(run_s=run_s, max_tool_calls=3, max_requests=3),
            "jitter": lambda: 0.0,
        }
        self.agent = Agent(**self.settings)
        clock.backoff = self.agent.changed
        self.said: list[str] = []

    @property
    def written(self) -> list[dict[str, Any]]:
        return self.counters[0].calls

    def serve(self, *answers: Any) -> None:
        """These answers, and then plain ones, as many as a run may want."""
        plain = answer(says("done"), self.stream)
        self.endpoint.answers[:] = [*answers, *[plain] * 20]

    def step(self, act: Callable[[], Run | None]) -> Run:
        started = time.monotonic()
        run = act()
        assert time.monotonic() - started < self.agent.limits.run_s + LATE_S
        assert run is not None
        self.check(run)
        return run

    def begin(self, wires: Sequence[Wire], hold_at: int | None = None) -> Run:
        self.serve(*(wire.answer(hold_at) for wire in wires))
        return self.step(lambda: self.agent.ask("go", self.said.append))

    def check(self, run: Run) -> None:
        if run.state in FINAL:
            assert (run.end_code is None) == (run.state == State.COMPLETED)
            assert run.end_code in CODES | {None}
            assert run.pending == []
        else:
            assert (run.state, run.end_code) == (State.WAITING_APPROVAL, None)
            assert run.pending
        if run.state == State.COMPLETED:
            assert run.answer
            assert run.answer.strip()
        "".join([run.answer or "", *self.said]).encode()
        assert check_pairing(self.agent.messages) == []
        strict(self.agent.messages)
        assert len(self.endpoint.requests) <= self.agent.limits.max_requests
        for request in self.endpoint.requests:
            check_request(request.body)
        let_through = {e.call_id for e in run.events if isinstance(e, CallStarted | ApprovalRequested)}
        assert len(let_through) <= self.agent.limits.max_tool_calls
        assert sum(len(counter.calls) for counter in self.counters) <= len(let_through)
        self.check_kept(run)

    def check_kept(self, run: Run) -> None:
        kept = json.dumps(self.agent.dump(), allow_nan=False)
        loaded = Agent.load(json.loads(kept), **self.settings)
        assert loaded.messages == self.agent.messages
        assert [card.arguments for card in cards(loaded)] == [card.arguments for card in cards(self.agent)]
        assert run.state not in FINAL or json.dumps(loaded.dump()) == kept

    def go_on(self) -> None:
        """Whatever it was, the next message is answered."""
        self.serve()
        self.endpoint.requests.clear()
        for counter in self.counters:
            counter.calls.clear()
        run = self.step(lambda: self.agent.ask("and now?"))
        assert (run.state, run.answer) == (State.COMPLETED, "done")
        assert self.written == []


def check_request(body: Json) -> None:
    """A strict server would take it."""
    strict(body)
    assert check_pairing(body["messages"]) == []
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            function = call["function"]
            assert isinstance(json.loads(function["arguments"]), dict)
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function["name"])


def cards(agent: Agent) -> list[Any]:
    return agent.run.pending if agent.run else []


@given(st.lists(ASKING, min_size=1, max_size=3), st.booleans())
@examples(450)
def test_a_run_ends_under_a_name_and_writes_nothing_unasked(
    server: Server, wires: list[Wire], stream: bool
) -> None:
    scene = Scene(server, stream)
    scene.begin(wires)
    assert scene.written == []
    scene.go_on()
    assert scene.written == []


@given(
    st.lists(ASKING, min_size=1, max_size=3),
    st.booleans(),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1, max_size=5),
)
@examples(200)
def test_a_write_runs_once_for_each_card_that_was_approved(
    server: Server, wires: list[Wire], stream: bool, decisions: list[tuple[bool, int]]
) -> None:
    scene = Scene(server, stream)
    run = scene.begin(wires)
    agent, approved, choices = scene.agent, list[str](), cycle(decisions)
    while run.state == State.WAITING_APPROVAL:
        while run.pending:
            approve, which = next(choices)
            card = run.pending[which % len(run.pending)]
            assert agent.decide(card.id, card.digest, approve=approve)
            assert not agent.decide(card.id, card.digest, approve=not approve)
            approved += [repr(card.arguments)] * approve
        run = scene.step(lambda: agent.proceed(scene.said.append))
        assert sorted(map(repr, scene.written)) == sorted(approved)
    scene.go_on()


@given(st.lists(ASKING, min_size=1, max_size=2), st.booleans(), st.integers(0, 9_999))
@examples(8)
def test_a_server_that_falls_silent_anywhere_is_left_in_time(
    server: Server, wires: list[Wire], stream: bool, hold_at: int
) -> None:
    scene = Scene(server, stream, run_s=1.0)
    scene.begin(wires, hold_at)
    assert scene.written == []
    scene.agent.limits = Limits()
    scene.go_on()
