"""A loopback model server with canned replies, in a process of its own so that its CPU does not count.

What it plays stands in the model's name: `rounds-5` asks for five tool calls, one a reply, and then
answers; `deltas-2000` answers in so many pieces, `packed-2000` sends the same pieces in one go.
Started as `python -m tests.bench.server`; it prints its port and ends with its standard input.
"""

import json
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

ANSWER = "It is mild in all of these places, and it stays dry until the evening."
USAGE = {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220}
PIECE = " word"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind, _, count = body["model"].partition("-")
        deltas = _deltas(kind, int(count), body["messages"])
        if body.get("stream"):
            self._stream([_event(chunk) for chunk in _chunks(deltas)], packed=kind == "packed")
        else:
            self._whole(json.dumps(_completion(deltas)).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _whole(self, data: bytes) -> None:
        self._head("application/json", "Content-Length", str(len(data)))
        self.wfile.write(data)

    def _stream(self, events: Sequence[bytes], packed: bool) -> None:
        self._head("text/event-stream", "Transfer-Encoding", "chunked")
        events = [*events, b"data: [DONE]\n\n"]
        for piece in [b"".join(events)] if packed else events:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _head(self, content_type: str, name: str, value: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header(name, value)
        self.end_headers()


def _deltas(kind: str, count: int, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if kind in ("deltas", "packed"):
        return [{"content": PIECE} for _ in range(count)]
    last_user = max(n for n, message in enumerate(messages) if message["role"] == "user")
    done = sum(message["role"] == "tool" for message in messages[last_user:])
    if done == count:
        return [{"content": ANSWER}]
    function = {"name": "lookup", "arguments": json.dumps({"city": f"City {done}", "day": done})}
    return [{"tool_calls": [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}]}]


def _completion(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    content = "".join(delta.get("content", "") for delta in deltas) or None
    message = {**deltas[0], "role": "assistant", "content": content, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(deltas)}
    return {**_frame("chat.completion"), "choices": [choice], "usage": USAGE}


def _chunks(deltas: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    yield _chunk({"role": "assistant", "content": ""})
    for delta in deltas:
        calls = [{**call, "index": n} for n, call in enumerate(delta.get("tool_calls", ()))]
        yield _chunk({**delta, "tool_calls": calls} if calls else delta)
    yield _chunk({}, _finish(deltas))
    yield {**_frame("chat.completion.chunk"), "choices": [], "usage": USAGE}


def _chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**_frame("chat.completion.chunk"), "choices": [choice], "usage": None}


def _finish(deltas: Sequence[Mapping[str, Any]]) -> str:
    return "tool_calls" if "tool_calls" in deltas[0] else "stop"


def _frame(kind: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-9f3b7c2a41d84e6f",
        "object": kind,
        "created": 1_790_000_000,
        "model": "canned",
        "system_fingerprint": "fp_1c2d3e4f",
    }


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves in the middle is no fault: openai's does so after each stream."""


def main() -> None:
    server = Server(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
