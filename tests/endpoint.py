"""A chat-completions endpoint on loopback: one reply a request, whole or as a stream of chunks."""

from collections.abc import Iterator
from typing import Any

from tests.model.server import Answer, chunked, events, whole
from tests.support import asks

Completion = dict[str, Any]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def completion(message: dict[str, Any], finish_reason: str) -> Completion:
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": USAGE}


def says(text: str) -> Completion:
    return completion({"role": "assistant", "content": text}, "stop")


def wants(*calls: dict[str, Any]) -> Completion:
    return completion(asks(*calls), "tool_calls")


def answer(reply: Completion, stream: bool) -> Answer:
    """What goes over the wire for a reply of the case table, either way for a `_status` or an `_sse`."""
    if "_status" in reply:
        headers = {name.replace("-", "_"): value for name, value in reply["_headers"].items()}
        content_type = headers.pop("Content_Type", "application/json")
        return whole(reply["_body"].encode(), reply["_status"], content_type, **headers)
    if not stream and "_sse" not in reply:
        return whole(reply)
    raw = events(reply.get("_sse") or list(chunks(reply)), done="_nodone" not in reply)
    size = max(61, len(raw) // 50)  # so that the pieces of the body do not end where events do
    return chunked([raw[start : start + size] for start in range(0, len(raw), size)])


def chunks(reply: Completion) -> Iterator[Completion]:
    """A completion as chunks: id and name first, arguments in several deltas, finish_reason, usage."""
    if "error" in reply:
        yield reply
    if not reply.get("choices"):
        return
    choice = reply["choices"][0]
    for delta in _deltas(choice["message"]):
        yield _chunk(reply, delta)
    yield _chunk(reply, {}, choice["finish_reason"])
    yield {**_chunk(reply, {}), "choices": [], "usage": reply["usage"]}


def _deltas(message: dict[str, Any] | None) -> Iterator[dict[str, Any] | None]:
    if message is None:
        yield None
        return
    yield {"role": "assistant", "content": None if message.get("tool_calls") else ""}
    for field, value in message.items():
        if field not in ("role", "content", "tool_calls"):
            yield {field: value}
    yield from ({"content": part} for part in _parts(message.get("content") or ""))
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield from ({"tool_calls": [{"index": index, **delta}]} for delta in _call_deltas(call))


def _call_deltas(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    function: dict[str, Any] = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        yield {**call, "function": {**function, "arguments": ""}}
        yield from ({"function": {"arguments": part}} for part in _parts(arguments))
    else:  # an object, another value, null or nothing at all cannot be cut
        yield call


def _chunk(reply: Completion, delta: dict[str, Any] | None, finish_reason: str | None = None) -> Completion:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": reply["id"], "object": "chat.completion.chunk", "choices": [choice]}


def _parts(text: str, number: int = 3) -> list[str]:
    size = max(1, -(-len(text) // number))
    return [text[start : start + size] for start in range(0, len(text), size)]
