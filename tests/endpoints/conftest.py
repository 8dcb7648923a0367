import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path

import openai
import pytest

from agent import Limits
from agent.audit import AuditLog
from agent.limits import Clock
from tests.endpoints.desk import KEY, Desk, MakeDesk
from tests.endpoints.server import Aimock, Endpoint, Llmock, aimock_with, llmock_with
from tests.support import require


@pytest.fixture(scope="session")
def client_of() -> Iterator[Callable[[str], openai.OpenAI]]:
    """One client for each server, because a client is slow to make; no run may close or spoil it."""
    with ExitStack() as clients:

        @cache
        def client(url: str) -> openai.OpenAI:
            return clients.enter_context(openai.OpenAI(base_url=url, api_key=KEY))

        yield client


@pytest.fixture
def make_desk(tmp_path: Path, client_of: Callable[[str], openai.OpenAI]) -> Iterator[MakeDesk]:
    with ExitStack() as open_things:

        def make(
            endpoint: Endpoint, stream: bool, limits: Limits | None = None, clock: Clock | None = None
        ) -> Desk:
            audit = open_things.enter_context(closing(AuditLog(tmp_path / "audit.jsonl")))
            return Desk(client_of(endpoint.base_url), stream, audit, limits, clock)

        yield make


@pytest.fixture(scope="session")
def aimock_command() -> list[str]:
    node = require(shutil.which("node"), "aimock needs node, which is not installed.")
    given = os.environ.get("GLASSLOOP_AIMOCK", "")
    cli = require(
        Path(given) if given and Path(given).is_file() else None,
        "GLASSLOOP_AIMOCK names no file: it must be dist/cli.js of the npm package @copilotkit/aimock.",
    )
    return [node, str(cli)]


@pytest.fixture(scope="session")
def aimock(aimock_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    with aimock_with(aimock_command, tmp_path_factory.mktemp("aimock")) as server:
        yield server


@pytest.fixture(scope="module")
def scripted(aimock_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    """An aimock of its own for tests that put other fixtures on."""
    with aimock_with(aimock_command, tmp_path_factory.mktemp("scripted")) as server:
        yield server


@pytest.fixture(scope="session")
def llmock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llmock]:
    with llmock_with(tmp_path_factory.mktemp("llmock"), "--tool-mode", "off") as server:
        yield server


@pytest.fixture(params=["aimock", "llmock"])
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    """Each of the two servers in turn; neither was written here."""
    return request.getfixturevalue(request.param)
