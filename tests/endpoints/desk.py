"""An agent with counting tools in front of a real client."""

import json
from collections.abc import Callable
from threading import Condition
from typing import Any

import openai

from agent import Agent, Limits, Run
from agent.audit import AuditLog
from agent.limits import Clock, SystemClock
from agent.model.openai_chat import OpenAIChat
from agent.record import ReplyReceived, RequestFailed, RequestSent
from agent.transcript import check_pairing
from tests.support import SUM, Counter, make_tool

KEY = "sk-endpoint-CANARY-123"
HURRY = 20.0


class HurriedClock(SystemClock):
    """The machine's clock; a wait that nobody ends takes a twentieth of its time, and counts as the whole."""

    skipped_s = 0.0

    def steady_s(self) -> float:
        return super().steady_s() + self.skipped_s

    def wait(self, condition: Condition, timeout_s: float) -> None:
        if not condition.wait(timeout_s / HURRY):
            self.skipped_s += timeout_s - timeout_s / HURRY


class Desk:
    """An agent on a server that nobody here wrote; audited, on the machine's clock."""

    def __init__(
        self,
        client: openai.OpenAI,
        stream: bool,
        audit: AuditLog,
        limits: Limits | None,
        clock: Clock | None,
    ) -> None:
        self.note = Counter(lambda arguments: {"saved": arguments["text"]})
        self.on_look: Callable[[], object] = lambda: None
        self.look = Counter(self._look)
        self.add = Counter(lambda arguments: {"result": arguments["a"] + arguments["b"]})
        self.deltas: list[str] = []
        self.agent = Agent(
            model=OpenAIChat(client=client, model="gpt-4o", stream=stream),
            tools=[
                make_tool("note", self.note, "write"),
                make_tool("look", self.look, "read"),
                make_tool("add", self.add, "none", SUM),
            ],
            owner_id="o-1",
            audit=audit,
            limits=limits,
            clock=clock,
            jitter=lambda: 0.0,
        )

    def _look(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.on_look()
        return {"seen": arguments["text"]}

    def ask(self, text: str) -> Run:
        return self.agent.ask(text, on_delta=self.deltas.append)

    def decide(self, text: str, approve: bool, **more: Any) -> bool:
        run = self.agent.run
        assert run is not None
        card = next(card for card in run.pending if card.arguments == {"text": text})
        return self.agent.decide(card.id, card.digest, approve=approve, **more)

    def proceed(self) -> Run:
        run = self.agent.proceed(on_delta=self.deltas.append)
        assert run is not None
        return run

    def results(self) -> list[dict[str, Any]]:
        """The envelopes in the transcript, in order."""
        return [json.loads(m["content"]) for m in self.agent.messages if m["role"] == "tool"]

    def codes(self) -> list[str]:
        return ["ok" if one["ok"] else one["error"]["code"] for one in self.results()]

    def requests(self) -> int:
        return sum(isinstance(event, RequestSent) for event in self.agent.events)

    def failures(self) -> list[str]:
        return [event.code for event in self.agent.events if isinstance(event, RequestFailed)]

    def replies(self) -> list[str | None]:
        """What became of each request: None where a reply came, else the code of its failure."""
        events = (event for event in self.agent.events if isinstance(event, RequestFailed | ReplyReceived))
        return [event.code if isinstance(event, RequestFailed) else None for event in events]

    def waits(self) -> list[float | None]:
        """The wait before each request that was sent again; None where it was not."""
        return [event.retry_in_s for event in self.agent.events if isinstance(event, RequestFailed)]

    def sentences(self) -> list[str]:
        return [event.message for event in self.agent.events if isinstance(event, RequestFailed)]

    def is_lawful(self) -> bool:
        return check_pairing(self.agent.messages) == []


MakeDesk = Callable[..., Desk]
"""Makes a desk of an endpoint, whether to stream, limits, and a clock."""
