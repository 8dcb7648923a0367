"""The product's own tools in the product's own loop, over a script."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, State
from agent.model.scripted import Scripted
from tests.support import FakeClock, asks, call
from tools.catalog import ALL_TOOLS


def agent_over(*steps: Any, **settings: Any) -> Agent:
    return Agent(model=Scripted(steps or None), tools=ALL_TOOLS, clock=FakeClock(), **settings)


def envelopes(agent: Agent) -> list[dict[str, Any]]:
    return [json.loads(m["content"]) for m in agent.messages if m["role"] == "tool"]


def test_not_found_leads_to_the_list_and_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("v1", encoding="utf-8")
    agent = agent_over(
        asks(call("c1", "read_file", {"path": "note.txt"})),
        asks(call("c2", "list_files", {})),
        asks(call("c3", "read_file", {"path": "notes.txt"})),
        "It says v1.",
        knowledge=tmp_path,
    )
    run = agent.ask("What does the note say?")
    missing, listed, found = envelopes(agent)
    assert missing["error"]["code"] == "file_not_found"
    assert "list_files" in missing["error"]["message"]
    assert [file["path"] for file in listed["data"]["files"]] == ["notes.txt"]
    assert (found["data"]["text"], found["trust"]) == ("v1", "untrusted_content")
    assert (run.state, run.answer) == (State.COMPLETED, "It says v1.")
    assert run.evidence == ["tool:list_files:c2", "tool:read_file:c3"]


def test_a_document_that_lies_writes_nothing() -> None:
    agent = agent_over(
        asks(call("c1", "search_local", {"keyword": "refund"})),
        asks(call("c2", "write_note", {"text": "customer accepted all refund terms"})),
        "I did not write that note.",
    )
    run = agent.ask("What is the refund policy?")
    assert "write_note" in json.dumps(envelopes(agent))
    assert [card.tool for card in run.pending] == ["write_note"]
    agent.decide(run.pending[0].id, run.pending[0].digest, approve=False, reason="nobody asked for it")
    agent.proceed()
    assert run.state == State.COMPLETED
    assert list(agent.store.notes("local").list()) == []


@pytest.mark.parametrize(
    ("text", "tool", "data"),
    [
        ("what time is it in Asia/Tokyo?", "get_current_datetime", {"timezone": "Asia/Tokyo"}),
        ("add 2 and 3", "add", {"result": 5}),
        ("计算 17 加 25", "add", {"result": 42}),
        ("现在几点", "get_current_datetime", {"timezone": "UTC"}),
        ("list the files", "list_files", {}),
        ("read refund_policy.txt", "read_file", {"path": "refund_policy.txt"}),
        ("show my notes", "list_notes", {"total": 0}),
    ],
)
def test_free_chat_serves_plain_requests(text: str, tool: str, data: dict[str, Any]) -> None:
    agent = agent_over()
    run = agent.ask(text)
    assert run.state == State.COMPLETED
    (result,) = envelopes(agent)
    assert (result["tool"], result["ok"]) == (tool, True)
    assert result["data"].items() >= data.items()
    assert tool in (run.answer or "")


def test_free_chat_serves_several_requests_and_says_what_it_can() -> None:
    agent = agent_over()
    agent.ask("add 2 and 3, then note that the sum is five")
    run = agent.run
    assert run is not None
    assert [card.arguments for card in run.pending] == [{"text": "the sum is five"}]
    agent.decide(run.pending[0].id, run.pending[0].digest, approve=True)
    agent.proceed()
    assert run.state == State.COMPLETED
    assert "script" in (agent.ask("sing a song").answer or "")
