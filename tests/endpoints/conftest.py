import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import openai
import pytest

from agent import Limits
from agent.audit import AuditLog
from tests.endpoints.desk import KEY, Desk, MakeDesk
from tests.endpoints.server import AIMOCK_SCRIPT, Aimock, Endpoint, Llmock, free_port, llmock_with, running
from tests.support import require


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[MakeDesk]:
    with ExitStack() as open_things:

        def make(endpoint: Endpoint, stream: bool, limits: Limits | None = None) -> Desk:
            client = open_things.enter_context(openai.OpenAI(base_url=endpoint.base_url, api_key=KEY))
            audit = open_things.enter_context(closing(AuditLog(tmp_path / "audit.jsonl")))
            return Desk(client, stream, audit, limits)

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
    port = free_port()
    command = [*aimock_command, "--port", str(port), "--fixtures", str(AIMOCK_SCRIPT)]
    command += ["--strict", "--validate-on-load", "--chunk-size", "5", "--log-level", "warn"]
    environ = {**os.environ, "AIMOCK_STRICT_TURN_INDEX": "1"}
    with running(command, port, tmp_path_factory.mktemp("aimock") / "log", environ):
        yield Aimock(port)


@pytest.fixture(scope="session")
def llmock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llmock]:
    with llmock_with(tmp_path_factory.mktemp("llmock"), "--tool-mode", "off") as server:
        yield server


@pytest.fixture(params=["aimock", "llmock"])
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    """Each of the two servers in turn; neither was written here."""
    return request.getfixturevalue(request.param)
