"""The embedded model: no key, no network, the same words each time. It is a script, not an AI."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, cast

from agent.errors import ModelError
from agent.limits import Deadline
from agent.model import Message, OnDelta, Reply, Usage, WireCall
from agent.model.wire import read_assistant, read_message
from tools.base import Tool

Step = str | Mapping[str, Any] | Exception
"""A text, an assistant message (or a whole completion) as a server would send it, or an exception."""

_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


class Scripted:
    """A model that plays `steps`, one a request, word for word; without steps it serves free chat.

    Free chat answers plain requests from the phrases that the tools themselves carry. An exception
    in the steps is raised as a `ModelError`: TimeoutError as provider_timeout, others that are not a
    `ModelError` as provider_error.
    """

    def __init__(self, steps: Iterable[Step] | None = None) -> None:
        self.name = "scripted, not an AI"
        self.requests: list[list[Message]] = []
        self._steps = None if steps is None else list(steps)
        self._next = 0
        self._lock = Lock()

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        deadline: Deadline,
        on_delta: OnDelta | None = None,
    ) -> Reply:
        reply = self._scripted(messages) if self._steps is not None else _free_chat(messages, tools)
        if reply.text and on_delta:
            on_delta(reply.text)
        return reply

    def assert_finished(self) -> None:
        """Raise AssertionError unless each step was played, and none was missing."""
        left = len(self._steps or ()) - self._next
        if left:
            raise AssertionError(
                f"{abs(left)} steps of the script {'were not played' if left > 0 else 'are missing'}."
            )

    def _scripted(self, messages: Sequence[Message]) -> Reply:
        with self._lock:
            self.requests.append(list(messages))
            number, self._next = self._next, self._next + 1
        steps = self._steps or []
        if number >= len(steps):
            raise ModelError("provider_error", "The script has no further step.")
        return _play(steps[number])


def _play(step: Step) -> Reply:
    if isinstance(step, ModelError):
        raise step
    if isinstance(step, TimeoutError):
        raise ModelError("provider_timeout", "The scripted model timed out.") from step
    if isinstance(step, Exception):
        raise ModelError("provider_error", "The scripted model failed.") from step
    if isinstance(step, str):
        return Reply(text=step, finish_reason="stop", usage=Usage())
    # A copy through JSON: a script is data, and a run must not change it.
    body: dict[str, Any] = json.loads(json.dumps(step))
    if "choices" in body:
        return read_message(body)
    finish_reason = body.pop("finish_reason", "tool_calls" if body.get("tool_calls") else "stop")
    usage = body.pop("usage", None)
    tokens = Usage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)) if usage else Usage()
    return read_assistant(body, finish_reason, tokens)


# --- free chat ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Request:
    start: int
    end: int
    call: WireCall


def _free_chat(messages: Sequence[Message], tools: Sequence[Tool]) -> Reply:
    """Serve the latest user message: the next request in it, or what came of all of them."""
    last_user = max(n for n, message in enumerate(messages) if message["role"] == "user")
    results = [json.loads(m["content"]) for m in messages[last_user + 1 :] if m["role"] == "tool"]
    wanted = _requests(messages[last_user]["content"], tools)
    if tools and len(results) < len(wanted):
        return Reply(calls=(wanted[len(results)].call,), finish_reason="tool_calls", usage=Usage())
    text = "\n".join(map(_told, results)) if results else _abilities(tools)
    return Reply(text=text, finish_reason="stop", usage=Usage())


def _requests(text: str, tools: Sequence[Tool]) -> list[_Request]:
    """The requests in a text, in its order; where phrases overlap, the longer one holds."""
    found = [
        _Request(match.start(), match.end(), WireCall(None, tool.name, _arguments(tool, match.groupdict())))
        for tool in tools
        for phrase in tool.phrases
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]
    kept: list[_Request] = []
    for one in sorted(found, key=lambda r: r.start - r.end):
        if all(one.end <= other.start or other.end <= one.start for other in kept):
            kept.append(one)
    return sorted(kept, key=lambda r: r.start)


def _arguments(tool: Tool, groups: Mapping[str, str | None]) -> str:
    properties = tool.parameters.get("properties", {})
    given = {name: value.strip() for name, value in groups.items() if value}
    pairs = (f"{json.dumps(name)}:{_value(properties.get(name, {}), value)}" for name, value in given.items())
    return "{" + ",".join(pairs) + "}"


def _value(schema: Mapping[str, Any], text: str) -> str:
    pattern = {"integer": _INTEGER, "number": _NUMBER}.get(str(schema.get("type")))
    return text.lstrip("+") if pattern and pattern.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _told(result: Mapping[str, Any]) -> str:
    """One result in words: what the program says it did, never more."""
    if result.get("ok"):
        return f"{result['tool']}: {_plain(result.get('data'))}"
    error: Mapping[str, Any] = result.get("error") or {}
    reason = f" Reason: {error['reason']}" if error.get("reason") else ""
    return f"{result.get('tool')} ({error.get('code')}): {error.get('message')}{reason}"


def _plain(data: Any) -> str:
    """Data in words: the fields of an object in one line, the entries of a list in a line each."""
    if isinstance(data, Mapping):
        fields = cast(Mapping[str, Any], data)
        if list(fields) == ["result"]:
            return str(fields["result"])
        return ", ".join(f"{key} {_plain(value)}" for key, value in fields.items() if value) or "nothing"
    if isinstance(data, list):
        return "".join(f"\n- {_entry(one)}" for one in cast(list[Any], data)) or "none"
    return str(data)


def _entry(data: Any) -> str:
    values = cast(Mapping[str, Any], data).values() if isinstance(data, Mapping) else (data,)
    return ", ".join(map(_plain, values))


def _abilities(tools: Sequence[Tool]) -> str:
    names = ", ".join(tool.name for tool in tools if tool.phrases)
    return (
        "I am a script, not an AI. I know plain requests, such as “what time is it in Asia/Tokyo?”, "
        "“add 2 and 3”, “search for refund” or “note that my flight is at nine”. "
        f"My tools: {names or 'none'}."
    )
