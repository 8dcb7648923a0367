"""The two sides of the comparison: Glassloop, and a hand loop over the openai client."""

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import openai

from agent import Agent
from agent.audit import AuditLog
from agent.model.openai_chat import OpenAIChat
from tests.bench.tools import TOOLS, lookup
from tools.base import JsonValue

OnDelta = Callable[[str], None]
Messages = list[dict[str, Any]]
QUESTION = "How is the weather in these five places?"


class Side(Protocol):
    """One side. Both offer the same tools, and ask the same question after the same history."""

    def prepare(self, model: str, stream: bool, history: Messages) -> Callable[[], object]:
        """All that happens before the turn; the turn itself is what is returned."""
        ...


class Ours:
    """An Agent for each turn, gates and audit on."""

    def __init__(self, client: openai.OpenAI, audit: AuditLog) -> None:
        self._client = client
        self._audit = audit

    def prepare(self, model: str, stream: bool, history: Messages) -> Callable[[], object]:
        chat = OpenAIChat(client=self._client, model=model, stream=stream)
        if not history:
            # A new conversation: making the Agent is part of what it costs.
            return lambda: self._ask(self._agent(chat), stream)
        agent = self._agent(chat)
        agent.restore_messages(history)
        return lambda: self._ask(agent, stream)

    def _agent(self, chat: OpenAIChat) -> Agent:
        return Agent(model=chat, tools=TOOLS, owner_id="o-1", audit=self._audit)

    def _ask(self, agent: Agent, stream: bool) -> None:
        run = agent.ask(QUESTION, on_delta=_seen if stream else None)
        if run.state != "COMPLETED":
            raise RuntimeError(f"{run.state} {run.end_code}")


class Floor:
    """What one writes by hand over `client.chat.completions.create`."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._create: Any = client.chat.completions.create
        self._schemas = [tool.schema for tool in TOOLS]
        self._functions: dict[str, Callable[..., JsonValue]] = {"lookup": lookup}

    def prepare(self, model: str, stream: bool, history: Messages) -> Callable[[], object]:
        messages: list[Any] = [{"role": "system", "content": "You are helpful."}, *history]
        if stream:
            return lambda: self._stream(model, [*messages, {"role": "user", "content": QUESTION}], _seen)
        return lambda: self._loop(model, [*messages, {"role": "user", "content": QUESTION}])

    def _loop(self, model: str, messages: list[Any]) -> str:
        while True:
            reply = self._create(model=model, messages=messages, tools=self._schemas).choices[0].message
            messages.append(reply)
            if not reply.tool_calls:
                return reply.content
            for call in reply.tool_calls:
                arguments = json.loads(call.function.arguments)
                result = json.dumps(self._functions[call.function.name](**arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def _stream(self, model: str, messages: list[Any], on_delta: OnDelta) -> str:
        pieces: list[str] = []
        options = {"include_usage": True}
        for chunk in self._create(
            model=model, messages=messages, tools=self._schemas, stream=True, stream_options=options
        ):
            if chunk.choices and (text := chunk.choices[0].delta.content):
                pieces.append(text)
                on_delta(text)
        return "".join(pieces)


def _seen(text: str) -> None:
    """What a page would do with a piece of text is not measured."""


def history_of(count: int) -> Messages:
    """So many lawful messages: question, call, result, answer, again and again."""
    turns = (_turn(number) for number in range((count + 3) // 4))
    return [message for turn in turns for message in turn][:count]


def _turn(number: int) -> Iterable[dict[str, Any]]:
    arguments = json.dumps({"city": f"City {number}", "day": number})
    call = {"id": f"old_{number}", "type": "function", "function": {"name": "lookup", "arguments": arguments}}
    yield {"role": "user", "content": f"How is the weather in city {number}, and will it rain?"}
    yield {"role": "assistant", "content": None, "tool_calls": [call]}
    yield {"role": "tool", "tool_call_id": f"old_{number}", "content": json.dumps(lookup(f"City {number}"))}
    yield {"role": "assistant", "content": f"It is clear at 21.5 degrees in city {number}, without rain."}


@contextmanager
def both_sides(port: int, folder: Path) -> Generator[tuple[Ours, Floor]]:
    """Each side has a client of its own, so that neither waits for a connection of the other."""
    url = f"http://127.0.0.1:{port}/v1"
    with (
        openai.OpenAI(base_url=url, api_key="none") as one,
        openai.OpenAI(base_url=url, api_key="none") as other,
        closing(AuditLog(folder / "audit.jsonl")) as audit,
    ):
        yield Ours(one, audit), Floor(other)
