from collections.abc import Iterator

import openai
import pytest

from agent.limits import Deadline, SystemClock
from tests.model.server import KEY, Loopback, loopback


@pytest.fixture
def server() -> Iterator[Loopback]:
    with loopback() as running:
        yield running


@pytest.fixture
def client(server: Loopback) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key=KEY) as shared:
        yield shared


@pytest.fixture
def soon() -> Deadline:
    clock = SystemClock()
    return Deadline(clock, clock.steady_s() + 5.0)
