"""An agent on a loopback endpoint, both ways, with tools that count: what tests of reported faults share.

A test file takes the fixture by `stage = stages`.
"""

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Condition
from typing import Any

import openai
import pytest

from agent import Agent, Limits, Run, State
from agent.audit import AuditLog
from agent.model.openai_chat import OpenAIChat
from agent.store.memory import MemoryStore
from agent.transcript import check_pairing
from tests.endpoint import Completion, answer, says
from tests.model.server import Loopback, loopback
from tests.support import SUM, FakeClock, make_tool
from tools.base import JsonValue, ToolContext

FAULTS: dict[str, Any] = json.loads((Path(__file__).parent / "cases" / "reported_faults.json").read_text())
CASES: dict[int, dict[str, Any]] = {case["n"]: case for case in FAULTS["cases"]}
OF_THE_SERVER = frozenset({23, 25, 27, 29, 30, 33, 34})
A, B = {"text": "A"}, {"text": "B"}
LONGEST_S = 10.0
ZONE = {"type": "object", "properties": {"tz": {"type": "string"}}, "required": ["tz"]}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = ["get_time", "save_note", "add", "list_notes"]
DONE = says("done")
Codes = list[tuple[str, str]]
Then = Callable[[dict[str, Any], ToolContext], JsonValue]


def served(n: int) -> list[Completion]:
    return copy.deepcopy(CASES[n]["serve"])


class StillClock(FakeClock):
    """Time stands still while a tool works, however long the machine takes."""

    def wait(self, condition: Condition, timeout_s: float) -> None:
        assert condition.wait(LONGEST_S), "nothing came"


class Tally:
    """A tool's function that counts its runs, and does what a test wants of it."""

    def __init__(self, then: Then) -> None:
        self.calls: list[dict[str, Any]] = []
        self.then = then

    def __call__(self, arguments: dict[str, Any], ctx: ToolContext) -> JsonValue:
        self.calls.append(copy.deepcopy(arguments))
        return self.then(arguments, ctx)


def save(arguments: dict[str, Any], ctx: ToolContext) -> JsonValue:
    return {"saved": ctx.notes.add(arguments["text"], ctx.idempotency_key).text}


class Stage:
    """An agent on an endpoint that serves the replies of a case, with tools that count."""

    def __init__(
        self, endpoint: Loopback, client: openai.OpenAI, stream: bool, audit: Path, **settings: Any
    ) -> None:
        self.endpoint = endpoint
        self.client = client
        self.stream = stream
        self.audit_path = audit
        self.audit = AuditLog(audit)
        self.clock: FakeClock = settings.pop("clock", None) or StillClock()
        self.store = MemoryStore(self.clock)
        self.get_time = Tally(lambda arguments, _: {"time": "09:00", "tz": arguments["tz"]})
        self.save_note = Tally(save)
        self.add = Tally(lambda arguments, _: {"result": arguments["a"] + arguments["b"]})
        self.list_notes = Tally(lambda _, ctx: [note.text for note in ctx.notes.list()])
        self.before_save: Callable[[dict[str, Any]], None] = lambda arguments: None
        self.settings: dict[str, Any] = {
            "model": OpenAIChat(client=client, model="fake", stream=stream),
            "tools": [
                make_tool("get_time", self.get_time, "read", ZONE),
                make_tool("save_note", self.save_note, "write", precondition=self.check_save),
                make_tool("add", self.add, "none", SUM),
                make_tool("list_notes", self.list_notes, "read", NOTHING),
                *settings.pop("more_tools", ()),
            ],
            "owner_id": "o-1",
            "limits": Limits(),
            "clock": self.clock,
            "store": self.store,
            "audit": self.audit,
            "jitter": lambda: 0.5,
            **settings,
        }
        self.agent = Agent(**self.settings)

    def check_save(self, arguments: dict[str, JsonValue], ctx: ToolContext) -> None:
        self.before_save(arguments)

    # --- what the person does ---

    def ask(self, text: str = "go") -> Run:
        return self.agent.ask(text)

    def decide(self, call_id: str, approve: bool = True, reason: str | None = None) -> bool:
        card = next(card for card in self.pending if card.call_id == call_id)
        return self.agent.decide(card.id, card.digest, approve=approve, reason=reason)

    def proceed(self) -> Run:
        run = self.agent.proceed()
        assert run is not None
        return run

    def reload(self, dumped: str | None = None) -> "Stage":
        """The same stage with the agent of a new session, from what was kept of the old one."""
        other = copy.copy(self)
        data = json.loads(dumped or json.dumps(self.agent.dump()))
        other.agent = Agent.load(data, **self.settings)
        return other

    def beside(self, owner_id: str) -> "Stage":
        """The same stage with the agent of somebody else: one model, one client, one store, one audit."""
        other = copy.copy(self)
        settings: dict[str, Any] = {**self.settings, "owner_id": owner_id}
        other.agent = Agent(**settings)
        return other

    def next_turn(self) -> Codes:
        """The next message works; returns what the calls so far were answered, as the endpoint is told."""
        self.serve(DONE)
        before = len(self.bodies)
        run = self.ask("and now?")
        assert (run.state, run.end_code, run.answer) == (State.COMPLETED, None, "done")
        assert len(self.bodies) == before + 1
        assert self.bodies[-1]["messages"][-1] == {"role": "user", "content": "and now?"}
        return self.codes()

    # --- what came of it ---

    def serve(self, *replies: Completion) -> None:
        self.endpoint.script(*(answer(reply, self.stream) for reply in replies))

    @property
    def pending(self) -> list[Any]:
        return self.agent.run.pending if self.agent.run else []

    @property
    def cards(self) -> list[str]:
        return [card.call_id for card in self.pending]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.endpoint.requests]

    @property
    def saved(self) -> list[str]:
        """The notes that there are, and as many as the tool ran."""
        notes = [note.text for note in self.store.notes("o-1").list()]
        assert [given["text"] for given in self.save_note.calls] == notes
        return notes

    def envelopes(self, request: int = -1) -> list[dict[str, Any]]:
        tools = [message for message in self.bodies[request]["messages"] if message["role"] == "tool"]
        found = [json.loads(message["content"]) for message in tools]
        assert [one["call_id"] for one in found] == [message["tool_call_id"] for message in tools]
        return found

    def codes(self, request: int = -1) -> Codes:
        """What each call was answered, in the order of the messages of a request: ok, or its code."""
        return [
            (one["call_id"], "ok" if one["ok"] else one["error"]["code"]) for one in self.envelopes(request)
        ]

    def sent_arguments(self, request: int = -1) -> list[str]:
        """The arguments of each call, as they stand in the history of a request."""
        messages = self.bodies[request]["messages"]
        return [c["function"]["arguments"] for m in messages for c in m.get("tool_calls") or ()]

    def roles(self, request: int = -1) -> list[str]:
        return [message["role"] for message in self.bodies[request]["messages"]]

    def audited(self, **fields: Any) -> int:
        """How many audit lines have these fields."""
        lines = [json.loads(line) for line in self.audit_path.read_text().splitlines()]
        return sum(fields.items() <= line.items() for line in lines)


def check_requests(stage: Stage) -> None:
    """What holds of each request, whatever happened: a strict server would take it."""
    assert stage.endpoint.answers == [], "replies that nobody asked for"
    for body in stage.bodies:
        assert check_pairing(body["messages"]) == []
        assert body.get("stream", False) is stage.stream
        assert body.get("tools") != []
        for message in body["messages"]:
            assert message["content"] is not None or message.get("tool_calls")
            for one in message.get("tool_calls") or ():
                assert isinstance(json.loads(one["function"]["arguments"]), dict)
                assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one["function"]["name"])


Open = Callable[..., Stage]


@pytest.fixture(params=[False, True], ids=["json", "sse"])
def stages(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    opened: list[Stage] = []
    with ExitStack() as stack:

        def open_one(*replies: Completion, **settings: Any) -> Stage:
            endpoint = stack.enter_context(loopback())
            # Reading the certificates, which nothing here needs, would be half of a test's time.
            bare = openai.DefaultHttpxClient(verify=False)
            client = openai.OpenAI(base_url=endpoint.base_url, api_key="k", max_retries=0, http_client=bare)
            stack.enter_context(client)
            audit = tmp_path / f"audit-{len(opened)}.jsonl"
            made = Stage(endpoint, client, request.param, audit, **settings)
            stack.callback(made.audit.close)
            made.serve(*replies)
            opened.append(made)
            return made

        yield open_one
        for made in opened:
            check_requests(made)


def completed(run: Run, text: str = "done") -> bool:
    return (run.state, run.end_code, run.answer) == (State.COMPLETED, None, text) and run.pending == []


def failed(run: Run, code: str, text: str | None = None) -> bool:
    return (run.state, run.end_code, run.answer) == (State.FAILED, code, text) and run.pending == []


def cancelled(run: Run, code: str) -> bool:
    return (run.state, run.end_code, run.answer) == (State.CANCELLED, code, None) and run.pending == []


def waiting(run: Run, *call_ids: str) -> bool:
    ids = [card.call_id for card in run.pending]
    return run.state == State.WAITING_APPROVAL and ids == list(call_ids)


def changed(reply: Completion, **function: Any) -> Completion:
    """A reply whose first call has another name or other arguments; `call_id` is its id."""
    other = copy.deepcopy(reply)
    first = other["choices"][0]["message"]["tool_calls"][0]
    first["id"] = function.pop("call_id", first["id"])
    first["function"].update(function)
    return other


def numbers(tests: Iterable[str]) -> set[int]:
    """The cases that tests of these names, such as test_01_denied_call, are of."""
    return {int(name[5:7]) for name in tests if re.match(r"test_\d\d_", name)}
