"""What tests share: a clock that tests move, tools that only count, and short ways to script a model."""

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from threading import Condition
from typing import Any, TypeVar

import pytest

from agent import Agent, Limits, Run
from agent.model.scripted import Scripted, Step
from agent.store.memory import MemoryStore
from tools.base import JsonValue, Tool, ToolContext

START_S = 1_790_000_000.0
PATIENCE_S = 5.0
AT_ONCE_S = 0.05


T = TypeVar("T")


def require(found: T | None, what: str) -> T:
    """What a test cannot do without: it is skipped where that is missing, and fails with CI=true."""
    if found:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must not skip: {what}", pytrace=False)
    pytest.skip(what)


class FakeClock:
    """A clock that stands still. A wait that nobody ends for `patience_s` moves it to that wait's end.

    The patience is in real seconds: long where a thread works and will come back, however slow the
    machine; `AT_ONCE_S` where a test knows that nobody comes.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.at_s = START_S
        self.patience_s = patience_s

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)

    def steady_s(self) -> float:
        return self.at_s

    def wait(self, condition: Condition, timeout_s: float) -> None:
        if not condition.wait(self.patience_s):
            self.at_s += timeout_s

    def advance(self, seconds: float) -> None:
        self.at_s += seconds


class Counter:
    """A tool's function that counts its runs and keeps what it was handed."""

    def __init__(self, then: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self._then = then

    def __call__(self, arguments: dict[str, Any], ctx: ToolContext) -> JsonValue:
        self.calls.append(arguments)
        return self._then(arguments) if self._then else {"done": True}


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SUM = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}


def make_tool(name: str, function: Any, effect: Any = "none", parameters: Any = None, **more: Any) -> Tool:
    return Tool.from_json_schema(
        name=name,
        description=f"{name}, for tests.",
        parameters=parameters or TEXT,
        function=function,
        effect=effect,
        **more,
    )


def call(call_id: str | None, name: str, arguments: Any) -> dict[str, Any]:
    """A tool call as a server writes it; arguments that are no text are written as JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def asks(*calls: Mapping[str, Any], text: str | None = None) -> dict[str, Any]:
    """A reply that asks for tools."""
    return {"role": "assistant", "content": text, "tool_calls": list(calls)}


class Setup:
    """An agent over a script, with counting tools: note (write), look (read), add (none)."""

    def __init__(self, *steps: Step, **settings: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.note = Counter(lambda arguments: {"saved": arguments["text"]})
        self.look = Counter(lambda arguments: {"seen": arguments["text"]})
        self.add = Counter(lambda arguments: {"result": arguments["a"] + arguments["b"]})
        self.tools = [
            make_tool("note", self.note, "write"),
            make_tool("look", self.look, "read"),
            make_tool("add", self.add, "none", SUM),
            *settings.pop("more_tools", ()),
        ]
        self.model = Scripted(steps)
        self.settings: dict[str, Any] = {
            "model": self.model,
            "tools": self.tools,
            "owner_id": "o-1",
            "limits": Limits(),
            "clock": self.clock,
            "store": self.store,
            "jitter": lambda: 0.5,
            **settings,
        }
        self.agent = Agent(**self.settings)

    def rebuild(self, *more_tools: Tool, **changes: Any) -> None:
        """The same again with further tools or other settings: for tools that must know the agent."""
        self.settings |= {"tools": [*self.tools, *more_tools], **changes}
        self.agent = Agent(**self.settings)

    def load(self, data: Mapping[str, Any], **changes: Any) -> Agent:
        settings: dict[str, Any] = {**self.settings, **changes}
        return Agent.load(data, **settings)

    @property
    def run(self) -> Run:
        run = self.agent.run
        assert run is not None
        return run

    def ask(self, text: str = "go") -> Run:
        return self.agent.ask(text)

    def decide(self, index: int = 0, approve: bool = True, **more: Any) -> bool:
        card = self.run.pending[index]
        return self.agent.decide(card.id, card.digest, approve=approve, **more)

    def proceed(self) -> Run:
        self.agent.proceed()
        return self.run

    def results(self) -> dict[str, dict[str, Any]]:
        """The envelopes in the transcript, by call id."""
        tools = [message for message in self.agent.messages if message["role"] == "tool"]
        return {message["tool_call_id"]: json.loads(message["content"]) for message in tools}

    def codes(self) -> dict[str, str]:
        """What each call was answered, by call id: ok, or its code."""
        return {
            call_id: "ok" if envelope["ok"] else envelope["error"]["code"]
            for call_id, envelope in self.results().items()
        }
