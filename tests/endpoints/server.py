"""Starts somebody else's model server as a process of its own, and ends it by its id."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import require

_START_S = 30.0
_POLL_S = 0.05
_REQUEST_S = 10.0
_HERE = Path(__file__).parent

AIMOCK_SCRIPT = _HERE / "aimock.json"
LLMOCK_SCRIPT = _HERE / "llmock.json"


class Endpoint:
    """A running server: where it is, how a script is put on, and what it was asked."""

    name = ""

    def __init__(self, port: int) -> None:
        self._origin = f"http://127.0.0.1:{port}"
        self.base_url = f"{self._origin}/v1"

    def play(self, script: str) -> None:
        """Put a script on from its start, and forget what was asked before."""
        raise NotImplementedError

    def bodies(self) -> list[dict[str, Any]]:
        """The request bodies as the server took them, in order."""
        raise NotImplementedError

    def control(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._origin + path, data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_REQUEST_S) as answer:
            return json.loads(answer.read())


class Aimock(Endpoint):
    """npm @copilotkit/aimock. Its script is a file of fixtures that match the question and the turn."""

    name = "aimock"

    def play(self, script: str) -> None:
        self.control("POST", "/__aimock/reset/journal")

    def rage(self, chaos: Mapping[str, float]) -> None:
        self.control("POST", "/__aimock/chaos", dict(chaos))

    def calm_down(self) -> None:
        self.control("DELETE", "/__aimock/chaos")

    def script(self, *fixtures: Mapping[str, Any]) -> None:
        """Put these fixtures on in place of all others."""
        self.control("DELETE", "/__aimock/fixtures")
        self.control("POST", "/__aimock/fixtures", {"fixtures": list(fixtures)})

    def bodies(self) -> list[dict[str, Any]]:
        return [entry["body"] for entry in self._journal()]

    def faults(self) -> list[str | None]:
        """The chaos that struck each request, in order."""
        return [entry["response"].get("chaosAction") for entry in self._journal()]

    def _journal(self) -> list[dict[str, Any]]:
        return self.control("GET", "/__aimock/journal?path=/v1/chat/completions")


class Llmock(Endpoint):
    """PyPI llmock. Its script is a queue of behaviours, put on over its control interface."""

    name = "llmock"

    def play(self, script: str) -> None:
        behaviors = json.loads(LLMOCK_SCRIPT.read_text(encoding="utf-8"))[script]
        self.control("POST", "/_llmock/reset")
        self.control("POST", "/_llmock/scenario", {"behaviors": behaviors})

    def behave(self, *behaviors: Mapping[str, Any]) -> None:
        self.control("POST", "/_llmock/scenario", {"behaviors": list(behaviors)})

    def calm_down(self, text: str | None) -> None:
        """Drop what is still put on; say this next."""
        self.control("DELETE", "/_llmock/scenario")
        if text is not None:
            self.behave({"type": "reply", "text": text})

    def findings(self) -> set[str]:
        """What the server found wrong with the way in which its client went on after failures."""
        return {one["code"] for one in self.control("GET", "/_llmock/verdict")["findings"]}

    def bodies(self) -> list[dict[str, Any]]:
        return [record["body"] for record in self._records()]

    def faults(self) -> list[str | None]:
        """The fault that struck each request, in order, without the chunk that it struck."""
        faults = [record["fault"] for record in self._records()]
        return [fault and fault.partition("@")[0] for fault in faults]

    def _records(self) -> list[dict[str, Any]]:
        return self.control("GET", "/_llmock/requests")["requests"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def running(
    command: Sequence[str], port: int, log: Path, environ: Mapping[str, str]
) -> Generator[subprocess.Popen[bytes]]:
    """Run a server until the block ends; it starts once it listens on its port."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=dict(environ)
        )
        try:
            _wait_for(process, port, log)
            yield process
        finally:
            _end(process)


@contextmanager
def aimock_with(cli: Sequence[str], folder: Path) -> Generator[Aimock]:
    """Run aimock with its script; its log goes into the folder."""
    port = free_port()
    command = [*cli, "--port", str(port), "--fixtures", str(AIMOCK_SCRIPT)]
    command += ["--strict", "--validate-on-load", "--chunk-size", "5", "--log-level", "warn"]
    with running(command, port, folder / "log", {**os.environ, "AIMOCK_STRICT_TURN_INDEX": "1"}):
        yield Aimock(port)


@contextmanager
def llmock_with(folder: Path, *options: str) -> Generator[Llmock]:
    """Run llmock with these options of its own."""
    require(importlib.util.find_spec("llmock"), "The package llmock is not installed.")
    port = free_port()
    start = "from llmock.cli import app; app()"
    command = [sys.executable, "-c", start, "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--log-level", "warning", *options]
    with running(command, port, folder / "log", os.environ):
        yield Llmock(port)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            probe.settimeout(_POLL_S)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(_POLL_S)
    raise RuntimeError(f"The server does not listen: {log.read_text(errors='replace')[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
