"""The list of tools: what each is allowed to claim."""

import json
import re

import pytest

from tools.base import Tool
from tools.catalog import ALL_TOOLS

EXPECTED = {
    "get_current_datetime": ("read", "clock", "trusted"),
    "add": ("none", "math", "trusted"),
    "search_local": ("read", "knowledge", "untrusted_content"),
    "list_files": ("read", "knowledge", "untrusted_content"),
    "read_file": ("read", "knowledge", "untrusted_content"),
    "write_note": ("write", "notes.write", "trusted"),
    "list_notes": ("read", "notes.read", "untrusted_content"),
}

PLAIN_REQUESTS: list[tuple[str, str, dict[str, str]]] = [
    ("what time is it?", "get_current_datetime", {}),
    ("What time is it in Asia/Tokyo?", "get_current_datetime", {"timezone": "Asia/Tokyo"}),
    ("现在几点了", "get_current_datetime", {}),
    ("Asia/Shanghai 现在几点", "get_current_datetime", {"timezone": "Asia/Shanghai"}),
    ("please add 2 and -3.5", "add", {"a": "2", "b": "-3.5"}),
    ("2 加 3 等于几", "add", {"a": "2", "b": "3"}),
    ("search for refund", "search_local", {"keyword": "refund"}),
    ("搜索 退款", "search_local", {"keyword": "退款"}),
    ("list the files", "list_files", {}),
    ("有哪些文件", "list_files", {}),
    ("read gates.md", "read_file", {"path": "gates.md"}),
    ("读取 gates.md", "read_file", {"path": "gates.md"}),
    ("Note that my flight is at nine.", "write_note", {"text": "my flight is at nine"}),
    ("记一下：明天九点开会", "write_note", {"text": "明天九点开会"}),
    ("show my notes", "list_notes", {}),
    ("列出我的笔记", "list_notes", {}),
    ("list notes", "list_notes", {}),
    ("list my notes", "list_notes", {}),
    ("show me all the notes", "list_notes", {}),
    ("what are my notes?", "list_notes", {}),
    ("read notes.md", "read_file", {"path": "notes.md"}),
    ("read file gates.md", "read_file", {"path": "gates.md"}),
    ("read the file gates.md", "read_file", {"path": "gates.md"}),
    ("搜索 refund", "search_local", {"keyword": "refund"}),
    ("把 2 和 3 加起来", "add", {"a": "2", "b": "3"}),
]


def test_the_catalog_is_this_list() -> None:
    assert {one.name: (one.effect, one.permission, one.trust) for one in ALL_TOOLS} == EXPECTED


@pytest.mark.parametrize("one", ALL_TOOLS, ids=lambda one: one.name)
def test_every_tool_says_what_a_model_and_a_person_need(one: Tool) -> None:
    assert one.source
    assert one.host is None
    assert bool(one.preview) == (one.effect == "write")
    assert all(p.get("description") for p in one.parameters["properties"].values())
    assert json.loads(json.dumps(one.schema)) == one.schema


@pytest.mark.parametrize(("text", "name", "arguments"), PLAIN_REQUESTS)
def test_plain_requests_match_one_tool(text: str, name: str, arguments: dict[str, str]) -> None:
    found = {
        (one.name, match[0], tuple(sorted(match.groupdict().items())))
        for one in ALL_TOOLS
        for phrase in one.phrases
        for match in re.finditer(phrase, text, re.IGNORECASE)
    }
    longest = max(found, key=lambda one: len(one[1]))
    assert (longest[0], dict(longest[2])) == (name, arguments)
    assert {one[0] for one in found} == {name}


@pytest.mark.parametrize("text", ["what time is it in Tokyo", "东京现在几点", "add two and three", "noted"])
def test_what_no_phrase_can_serve_matches_none(text: str) -> None:
    assert not any(re.search(p, text, re.IGNORECASE) for one in ALL_TOOLS for p in one.phrases)
