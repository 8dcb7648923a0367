"""A loopback server that plays scripted bytes, one answer a request, and records what it was asked."""

import json
import socket
import struct
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

_LONGEST_S = 5.0
KEY = "sk-test-CANARY/Key+1234567890"


@dataclass(frozen=True)
class Answer:
    """Raw bytes of one answer, in pieces; `pause_s` lies before each piece but the first.

    `hold` keeps the connection open and silent afterwards, until the client leaves; `close` ends it,
    and `reset` breaks it off.
    """

    pieces: Iterable[bytes]
    pause_s: float = 0.0
    hold: bool = False
    close: bool = False
    reset: bool = False


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: Any
    at_s: float
    """When it was read, on the monotonic clock."""


def head(status: int = 200, content_type: str = "application/json", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", f"Content-Type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(
    body: bytes | object, status: int = 200, content_type: str = "application/json", **headers: str
) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer([head(status, content_type, Content_Length=str(len(data)), **headers) + data])


def chunked(pieces: Sequence[bytes], pause_s: float = 0.0, content_type: str = "text/event-stream") -> Answer:
    start = head(content_type=content_type, Transfer_Encoding="chunked")
    parts = [f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces if piece]
    return Answer([start, *parts, b"0\r\n\r\n"], pause_s)


def events(chunks: Sequence[object], done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join(lines + ["data: [DONE]\n\n"] * done).encode()


class Loopback:
    """Plays `answers` in order; a connection stays open for the next request unless the answer ends it."""

    def __init__(self, listener: socket.socket) -> None:
        self.answers: list[Answer] = []
        self.requests: list[Request] = []
        self.connections: list[socket.socket] = []
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._stopped = Event()
        self._threads = [Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    def stop(self) -> None:
        self._stopped.set()
        for end in (self._listener, *self.connections):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_LONGEST_S)

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(_LONGEST_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.append(connection)
            self._threads.append(Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader, suppress(OSError):
            while (request := _read(reader)) is not None:
                self.requests.append(request)
                answer = self.answers.pop(0)
                self._play(answer, connection)
                if answer.hold:
                    reader.read(1)
                if answer.reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if answer.close or answer.hold or answer.reset:
                    return

    def _play(self, answer: Answer, connection: socket.socket) -> None:
        for number, piece in enumerate(answer.pieces):
            if number and answer.pause_s and self._stopped.wait(answer.pause_s):
                return
            connection.sendall(piece)


def _read(reader: Any) -> Request | None:
    start = reader.readline().decode()
    if not start:
        return None
    headers: dict[str, str] = {}
    while line := reader.readline().decode().strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = json.loads(reader.read(int(headers["content-length"])))
    return Request(start.split()[1], headers, body, time.monotonic())


@contextmanager
def loopback() -> Generator[Loopback]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Loopback(listener)
        try:
            yield server
        finally:
            server.stop()
