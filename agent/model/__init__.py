"""What the loop asks of a model: one reply, whole or an error."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.limits import Deadline
from tools.base import Tool

Message = dict[str, Any]
"""One chat-completions message as it goes over the wire."""

OnDelta = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply or one run; `estimated` where the server did not say."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        if self == NOTHING:
            return other
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.estimated or other.estimated,
        )


NOTHING = Usage()


@dataclass(frozen=True, slots=True)
class WireCall:
    """A tool call as the server wrote it: nothing checked, nothing made up.

    `provider_id` is None where it was missing or blank; `arguments` is the server's text, an object
    that the server sent in place of a text, or None. `extra` holds a vendor's fields, for the echo.
    """

    provider_id: str | None
    name: str
    arguments: str | dict[str, Any] | None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply of a model. Wire notes name each deviation that was tolerated, one short phrase each."""

    text: str | None = None
    calls: tuple[WireCall, ...] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    refusal: str | None = None
    notes: tuple[str, ...] = ()
    reasoning: str | None = None
    """What the model thought, to be shown apart from the answer. It is sent back only as it stands in
    `extra`."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Vendor fields of the message, sent back as they came and kept nowhere else."""
    extra_lasts: bool = False
    """Whether the server wants them, and those of the calls, back after the run as well."""


class Model(Protocol):
    """A chat model. `name` is shown and audited."""

    @property
    def name(self) -> str: ...

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        deadline: Deadline,
        on_delta: OnDelta | None = None,
    ) -> Reply:
        """Return a whole reply before `deadline`, or raise `ModelError`.

        `tools` is empty on the last request of a run that met a limit. `on_delta` gets the text
        while it arrives; it is a side channel, the reply holds the whole text again.
        """
        ...
