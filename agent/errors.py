"""The errors of the engine, by what they ask of the one who meets them.

Exception
├── tools.base.BadArguments    correct your arguments (goes back to the model, bounded)
├── tools.base.ToolError       give up on this call (goes back to the model with a code)
├── ModelError                 end of the run, or a retry (the model's server failed)
├── RunActive                  the caller asked while another thread works on a run
├── InvalidMessage             the caller's message cannot be sent as it is
└── InvalidEdit                the person's edit was refused; the card stays
"""

from collections.abc import Sequence

from tools.base import FieldFault


class ModelError(Exception):
    """A request to the model brought no usable reply.

    `code` is an end code: provider_error, provider_timeout, provider_rate_limited, provider_auth,
    provider_protocol or context_overflow. `message` is one sentence for a person, without key,
    header or path. `retry` says whether sending the same request again can help;
    `retry_after_s` is the server's own wish, in seconds.
    """

    def __init__(
        self, code: str, message: str, *, retry: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry = retry
        self.retry_after_s = retry_after_s


class RunActive(Exception):
    """`ask` was called while another thread works on a run of the same agent."""

    def __init__(self) -> None:
        super().__init__("A run is active. Wait for it to end, or stop it.")


class InvalidMessage(ValueError):
    """A message that was refused before anything was recorded. Its text says what to change."""


class InvalidEdit(Exception):
    """An edited form was refused by one of the gates 4 to 7. Nothing was recorded; the card stays."""

    def __init__(self, code: str, message: str, fields: Sequence[FieldFault] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fields = tuple(fields)
