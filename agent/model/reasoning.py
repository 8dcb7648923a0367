"""What a model thinks, told apart from what it says.

Servers send reasoning in fields of their own, or leave it in the text between tags. Either way it is
shown folded and apart; it is no part of an answer.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "reasoning_text")
"""Where servers put it, in the order in which they are believed: some send the same in two."""

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)
"""What encloses it where a server does not take it out of the text."""

HOSTS_THAT_KEEP = frozenset({"api.deepseek.com"})
"""Servers that refuse a conversation (400) whose earlier tool calls come back without their reasoning, in
each later turn too. Others want it until the answer is there, or not at all."""

_MOST_BLANKS = 200
"""Before the first tag."""

_TEXTS = ("text", "summary", "thinking", "content")
_DEEPEST = 4


def of_fields(fields: Mapping[str, Any]) -> str:
    """The reasoning in a message's vendor fields; empty where there is none."""
    return next(filter(None, (text_of(fields.get(name)) for name in FIELDS)), "")


def text_of(value: object, depth: int = _DEEPEST) -> str:
    """The text of a reasoning value: a text, an object that holds one, or a list of such."""
    if isinstance(value, str):
        return value
    if depth == 0:
        return ""
    if isinstance(value, list):
        return "".join(text_of(item, depth - 1) for item in cast(list[object], value))
    if isinstance(value, dict):
        fields = cast(dict[str, object], value)
        return next(filter(None, (text_of(fields.get(name), depth - 1) for name in _TEXTS)), "")
    return ""


def split(text: str) -> tuple[str, str]:
    """The reasoning at the head of a whole text, and the rest."""
    thinking = Thinking()
    said = thinking.feed(text) + thinking.finish()
    return (thinking.reasoning, said) if thinking.began else _split_at_orphan(text)


def _split_at_orphan(text: str) -> tuple[str, str]:
    """Split where only the closing tag stands: some templates write the opening one into the prompt.

    It has to begin a line, so that an answer that speaks of tags is left whole.
    """
    for opening, closing in TAGS:
        head, found, tail = ("\n" + text).partition("\n" + closing)
        if found and opening not in head:
            return head.strip(), tail.lstrip()
    return "", text


class Thinking:
    """Takes a text piece by piece and passes on what is said, without the reasoning at its head."""

    __slots__ = ("_closing", "_held", "_state", "_thought")

    def __init__(self) -> None:
        self._state: Literal["beginning", "thinking", "thought", "saying"] = "beginning"
        self._closing = ""
        self._held = ""
        self._thought: list[str] = []

    @property
    def began(self) -> bool:
        """Whether the text began with reasoning."""
        return bool(self._closing)

    @property
    def reasoning(self) -> str:
        return "".join(self._thought).strip()

    def feed(self, text: str) -> str:
        """Take a piece; return what it says."""
        match self._state:
            case "beginning":
                return self._begin(self._held + text)
            case "thinking":
                return self._think(self._held + text)
            case "thought":
                return self._say(text.lstrip())
            case "saying":
                return text

    def finish(self) -> str:
        """What was held back because it could have been the beginning of a tag."""
        if self._state == "thinking":
            self._thought.append(self._held)
        return self._held if self._state == "beginning" else ""

    def _begin(self, text: str) -> str:
        start = text.lstrip()
        if len(text) - len(start) > _MOST_BLANKS:
            return self._say(text)
        for opening, closing in TAGS:
            if start.startswith(opening):
                self._state, self._closing = "thinking", closing
                return self._think(start[len(opening) :])
        if any(opening.startswith(start) for opening, _ in TAGS):
            self._held = text
            return ""
        return self._say(text)

    def _think(self, text: str) -> str:
        thought, closed, said = text.partition(self._closing)
        if closed:
            self._thought.append(thought)
            self._state = "thought"
            return self._say(said.lstrip())
        # The closing tag may come in pieces.
        kept = max(0, len(text) - len(self._closing) + 1)
        self._thought.append(text[:kept])
        self._held = text[kept:]
        return ""

    def _say(self, text: str) -> str:
        if text:
            self._state = "saying"
        return text
