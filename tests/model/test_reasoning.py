"""What is taken for reasoning, and what stays a part of the answer."""

from typing import Any

import pytest

from agent.model.reasoning import TAGS, Thinking, of_fields, split

SPLITS = [
    ("Hello", "", "Hello"),
    ("", "", ""),
    ("<think>hm</think>Hello", "hm", "Hello"),
    ("\n <think>\nhm\n</think>\n\nHello", "hm", "Hello"),
    ("<think></think>Hello", "", "Hello"),
    ("<think>hm</think>", "hm", ""),
    ("<think>hm", "hm", ""),
    ("<think>a <b> </thin </think>Hello <think>x</think>", "a <b> </thin", "Hello <think>x</think>"),
    ("The tag <think> is one.", "", "The tag <think> is one."),
    ("<thin>Hello", "", "<thin>Hello"),
    ("<", "", "<"),
    (" ", "", " "),
    ("  Hello", "", "  Hello"),
    (" " * 200 + "<think>hm</think>", "hm", ""),
    (" " * 201 + "<think>hm</think>", "", " " * 201 + "<think>hm</think>"),
    *[(f"{opening}hm{closing}\nHello", "hm", "Hello") for opening, closing in TAGS],
]

ORPHANS = [
    ("hm\n</think>\n\nHello", "hm", "Hello"),
    ("</think>\n\nHello", "", "Hello"),
    ("hm </think> Hello", "", "hm </think> Hello"),
    ("Write <think> and\n</think>.", "", "Write <think> and\n</think>."),
]


@pytest.mark.parametrize(("text", "reasoning", "said"), SPLITS + ORPHANS)
def test_a_whole_text_is_split(text: str, reasoning: str, said: str) -> None:
    assert split(text) == (reasoning, said)


@pytest.mark.parametrize(("text", "reasoning", "said"), SPLITS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_text_in_pieces_says_the_same(text: str, reasoning: str, said: str, size: int) -> None:
    thinking = Thinking()
    heard = "".join(thinking.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert heard + thinking.finish() == said
    assert thinking.reasoning == reasoning


def test_a_plain_text_is_not_held_back() -> None:
    thinking = Thinking()
    assert [thinking.feed(piece) for piece in ("H", "el", "lo <think>")] == ["H", "el", "lo <think>"]


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning_content": "hm"}, "hm"),
        ({"reasoning": "hm", "reasoning_content": "hm"}, "hm"),
        ({"reasoning": {"summary": [{"type": "summary_text", "text": "hm"}]}}, "hm"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "h"}, {"text": "m"}]}, "hm"),
        ({"reasoning": None, "thinking": "hm"}, "hm"),
        ({"reasoning": 5, "reasoning_details": [None, 5, {"data": "…"}]}, ""),
        ({"other": "hm"}, ""),
        ({"reasoning": [[[[[["hm"]]]]]]}, ""),
    ],
)
def test_reasoning_has_many_fields(fields: dict[str, Any], reasoning: str) -> None:
    assert of_fields(fields) == reasoning
