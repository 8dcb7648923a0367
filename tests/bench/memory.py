"""What 1,000 live agents of 20 messages hold, measured in a fresh process.

`python -m tests.bench.memory answers|calls traced|resident` prints bytes. `answers` are 10 runs of
user and answer each, `calls` are 5 runs of user, call, result and answer. The model, the tools and the
audit are shared and there before; what a model says is a new text each time.
"""

import gc
import sys
import tempfile
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

from agent import Agent
from agent.audit import AuditLog
from agent.limits import Deadline
from agent.model import Message, OnDelta, Reply, Usage, WireCall
from tests.bench.tools import TOOLS
from tools.base import Tool

AGENTS = 1_000
MESSAGES = 20
PAGE_BYTES = 4096


class Canned:
    """Answers at once; with `calls` it asks for one tool call first."""

    name = "canned"

    def __init__(self, calls: bool) -> None:
        self._calls = calls
        self._numbers = count()

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        deadline: Deadline,
        on_delta: OnDelta | None = None,
    ) -> Reply:
        number, usage = next(self._numbers), Usage(200, 20)
        if self._calls and messages[-1]["role"] == "user":
            call = WireCall(f"call_{number:032d}", "lookup", f'{{"city":"City {number}","day":1}}')
            return Reply(calls=(call,), usage=usage, finish_reason="tool_calls")
        text = f"Answer {number}: it is mild there, and it stays dry until the evening."
        return Reply(text=text, usage=usage, finish_reason="stop")


def grown(model: Canned, audit: AuditLog, number: int) -> Agent:
    """An agent that has had its conversation."""
    agent = Agent(model=model, tools=TOOLS, owner_id=f"o-{number}", audit=audit)
    runs = 0
    while len(agent.messages) <= MESSAGES:
        run = agent.ask(f"How is the weather in city {number}, and will it rain in hour {runs}?")
        runs += 1
        if run.state != "COMPLETED":
            raise RuntimeError(f"{run.state} {run.end_code}")
    return agent


def held(calls: bool, traced: bool) -> int:
    with tempfile.TemporaryDirectory() as folder, closing(AuditLog(Path(folder) / "audit.jsonl")) as audit:
        model = Canned(calls)
        grown(model, audit, AGENTS)  # what is made once, by the first
        gc.collect()
        if traced:
            tracemalloc.start()
        before = _now(traced)
        agents = [grown(model, audit, number) for number in range(AGENTS)]
        gc.collect()
        after = _now(traced)
        if any(len(agent.messages) != MESSAGES + 1 for agent in agents):
            raise RuntimeError("An agent does not hold as many messages as it should.")
        return after - before


def _now(traced: bool) -> int:
    if traced:
        return tracemalloc.get_traced_memory()[0]
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES


if __name__ == "__main__":
    print(held(sys.argv[1] == "calls", sys.argv[2] == "traced"))
