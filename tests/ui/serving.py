"""Starts a Streamlit script as a server of its own on loopback, and ends it by its id."""

import os
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from typing import Literal

from tests.endpoints.server import free_port, running

How = Literal["streamlit", "uvicorn"]
_ROOT = Path(__file__).resolve().parent.parent.parent
_OURS = ("GLASSLOOP_", "OPENAI_", "STREAMLIT_")
_ANSWER_S = 30.0
_FLAGS = ("--server.address=127.0.0.1", "--server.headless=true", "--server.fileWatcherType=none")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Served:
    """A running server. Its log, stdout and stderr, is a file until it ends."""

    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()


@contextmanager
def serve(
    script: Path, *, how: How = "streamlit", env: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> Generator[Served]:
    """Serve the script's `app` until the block ends; it starts once Streamlit says that it can serve.

    `flags` are flags of the program that is started. Options of Streamlit that hold for uvicorn too have
    their place in .streamlit/config.toml beside the script. Of this process's environment, nothing that
    sets up Glassloop, a model or Streamlit is passed on.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        served = Served(port, Path(folder, "log"))
        with running(command(script, port, how, flags), port, served.log, environ(env)):
            health = served.get("/_stcore/health")
            assert (health.status, health.body) == (200, b"ok"), served.log.read_text()
            yield served


def command(script: Path, port: int, how: How, flags: Sequence[str] = ()) -> list[str]:
    if how == "uvicorn":
        place = ["--host", "127.0.0.1", "--port", str(port), "--app-dir", str(script.parent)]
        return [sys.executable, "-m", "uvicorn", *place, *flags, f"{script.stem}:app"]
    return [sys.executable, "-m", "streamlit", "run", *_FLAGS, f"--server.port={port}", *flags, str(script)]


def environ(env: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "PYTHONPATH": str(_ROOT), "PYTHONUTF8": "1", **(env or {})}
