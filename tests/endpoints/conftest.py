import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.endpoints.server import AIMOCK_SCRIPT, Aimock, Endpoint, Llmock, free_port, running
from tests.support import require


@pytest.fixture(scope="session")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    node = require(shutil.which("node"), "aimock needs node, which is not installed.")
    given = os.environ.get("GLASSLOOP_AIMOCK", "")
    cli = require(
        Path(given) if given and Path(given).is_file() else None,
        "GLASSLOOP_AIMOCK names no file: it must be dist/cli.js of the npm package @copilotkit/aimock.",
    )
    port = free_port()
    command = [node, str(cli), "--port", str(port), "--fixtures", str(AIMOCK_SCRIPT)]
    command += ["--strict", "--validate-on-load", "--chunk-size", "5", "--log-level", "warn"]
    environ = {**os.environ, "AIMOCK_STRICT_TURN_INDEX": "1"}
    with running(command, port, tmp_path_factory.mktemp("aimock") / "log", environ):
        yield Aimock(port)


@pytest.fixture(scope="session")
def llmock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llmock]:
    require(importlib.util.find_spec("llmock"), "The package llmock is not installed.")
    port = free_port()
    start = "from llmock.cli import app; app()"
    command = [sys.executable, "-c", start, "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--log-level", "warning", "--tool-mode", "off"]
    with running(command, port, tmp_path_factory.mktemp("llmock") / "log", os.environ):
        yield Llmock(port)


@pytest.fixture(params=["aimock", "llmock"])
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    """Each of the two servers in turn; neither was written here."""
    return request.getfixturevalue(request.param)
