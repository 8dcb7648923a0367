"""What a model's server says when it fails, as a `ModelError` that is safe to show.

Only refusals of the request itself (400, 404, 422 and the like) carry the server's own words, and those
only after `redact`; every other sentence is ours, because servers echo keys, prompts and paths.
"""

import math
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, cast
from urllib.parse import quote

from agent.errors import ModelError

MAX_SENTENCE_CHARS = 300
_MAX_READ_CHARS = 20_000
REMOVED = "[removed]"

_CONTEXT = re.compile(
    r"context[ _-]?(length|window|size)|maximum context|too many tokens"
    r"|(prompt|input|request) is too (long|large)|reduce the length",
    re.IGNORECASE,
)
_NO_TOOLS = re.compile(
    r"(tool|function)s?\b.{0,40}\bnot (be |been |currently |yet )*(support|allow|enabl|implement)"
    r"|(not|n't) (currently |yet )?support.{0,40}\b(tool|function)|tool choice requires",
    re.IGNORECASE | re.DOTALL,
)
_QUOTA = re.compile(r"insufficient_quota|billing_hard_limit|credit_balance", re.IGNORECASE)
_RATE = re.compile(r"rate_?limit|too_many_requests", re.IGNORECASE)

_SECRETS = (
    re.compile(r"\b(?:Bearer|Basic)\s+\S+", re.IGNORECASE),
    re.compile(r"\b(?:sk|pk|rk|gsk|xai|hf|ghp|glpat|nvapi|AIza)[-_]?[\w*.%~+/=-]{8,}"),
    re.compile(r"\bsk-\S+", re.IGNORECASE),
    re.compile(r"\beyJ[\w-]+\.[\w.-]+"),
    re.compile(r"\b(?=\w*\d)\w{32,}"),
)
_AFTER_WORD = re.compile(
    r"(\b(?:\w*key|\w*token|authorization|password|secret|credentials?)\b.{0,30}?[\s:='\"`(])"
    r"((?=[^\s'\"`]*[\d*])[\w*.%~+/=-]{8,}|[\w*.%~+/=-]{24,})",
    re.IGNORECASE,
)
_PATHS = (
    re.compile(r"\bfile:/\S+", re.IGNORECASE),
    re.compile(r"\b[A-Za-z]:[\\/](?!/)[^\s'\"`<>|]+"),
    re.compile(r"\\\\[^\s'\"`<>|]+"),
    re.compile(r"(?<![\w:/.<])(?:~|\.{1,2})?/(?!v\d+\b|api/|chat/)[\w.@+-]+(?:/[\w.@+-]*)*"),
)


class Unreadable(StrEnum):
    """Every answer that cannot be read as a reply, by what a person is told of it.

    They end a run as provider_protocol and are not sent again by themselves: a server that answers so
    once does it again. What is read over instead is in `agent.model.quirks`.
    """

    NOT_JSON = "an answer that is not readable JSON"
    WEB_PAGE = "a web page in place of an answer"
    TOO_LARGE = "an answer that is too large"
    COMPRESSION_BROKEN = "an answer whose compression is broken"
    COMPRESSION_UNASKED = "an answer in a compression that was not asked for"
    CUT_OFF = "an answer that was cut off"
    NO_OBJECT = "an answer that is not a JSON object"
    NO_CHOICES = "an answer without choices"
    NO_CHOICE = "a choice that is not an object"
    NO_MESSAGE = "a choice without a message"
    NO_DELTA = "a delta that is not an object"
    CONTENT = "a content that is not a text"
    REFUSAL = "a refusal that is not a text"
    CALLS = "tool calls that are not a list"
    CALL = "a tool call that is not an object"
    FUNCTION = "a function that is not an object"
    NAME = "a tool name that is not a text"
    CALLS_MANY = "more tool calls than one reply may hold"


def unreadable(what: Unreadable) -> ModelError:
    return ModelError("provider_protocol", f"The model's server sent {what}.")


def answered_error(error: object) -> ModelError:
    """An error object inside a 200 or a stream. Its words are not shown: nothing says whom they are for."""
    names, message = facts(error)
    status = _number(error)
    if status is not None:
        return status_error(status, error)
    if _CONTEXT.search(f"{names} {message}"):
        return _overflow()
    if _RATE.search(names):
        return status_error(429, error)
    return ModelError("provider_error", "The model's server answered with an error.")


def _number(error: object) -> int | None:
    code = cast(dict[str, Any], error).get("code") if isinstance(error, dict) else None
    return code if (type(code) is int and 500 <= code < 600) or code in (401, 403, 408, 429) else None


def status_error(status: int, error: object, wait_s: float | None = None, key: str = "") -> ModelError:
    """The error of an HTTP status; `error` is the decoded body, or its text."""
    names, message = facts(error)
    if status in (401, 403):
        return ModelError("provider_auth", "The model's server did not accept the key.")
    if status == 429 and _QUOTA.search(names):
        return ModelError("provider_rate_limited", "The account at the model's server has no quota left.")
    if status in (408, 429):
        sentence = "The model's server takes no more requests just now."
        return ModelError("provider_rate_limited", sentence, retry=True, retry_after_s=wait_s)
    if status >= 500 or status == 409:
        sentence = f"The model's server failed (status {status})."
        return ModelError("provider_error", sentence, retry=True, retry_after_s=wait_s)
    if 300 <= status < 400:
        sentence = "The model's server redirects to another address, which is not followed."
        return ModelError("provider_error", sentence)
    if status == 413 or _CONTEXT.search(f"{names} {message}"):
        return _overflow()
    return ModelError("provider_error", _refusal(status, message, key))


def _overflow() -> ModelError:
    return ModelError("context_overflow", "The conversation is too long for the model.")


def _refusal(status: int, message: str, key: str) -> str:
    words = "" if message.lstrip().startswith("<") else redact(message, key)
    sentence = f"The model's server refused the request (status {status})"
    sentence += f": {words}" if words else "."
    if not sentence.endswith((".", "!", "?", "…")):
        sentence += "."
    return f"{sentence} This model may not support tools." if _NO_TOOLS.search(message) else sentence


def facts(error: object) -> tuple[str, str]:
    """The machine-readable names and the message of an error body, whatever its shape."""
    if isinstance(error, str):
        return "", error
    if not isinstance(error, dict):
        return "", ""
    fields = cast(dict[str, Any], error)
    if isinstance(fields.get("error"), dict | str):
        return facts(fields["error"])
    names = " ".join(str(fields[name]) for name in ("code", "type") if isinstance(fields.get(name), str))
    texts = (fields.get(name) for name in ("message", "detail", "error"))
    return names, next((text for text in texts if isinstance(text, str)), "")


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """The server's wish in seconds, from retry-after-ms, or Retry-After as seconds or an HTTP date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        seconds = None if value is None else _seconds(value, scale)
        if seconds is not None:
            return seconds
    return _date_s(headers.get("retry-after", ""), now)


def _seconds(value: str, scale: float) -> float | None:
    try:
        seconds = float(value) * scale
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _date_s(value: str, now: datetime) -> float | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds())


def redact(text: str, key: str = "") -> str:
    """One line of at most 300 characters without the key, what looks like a key, or a path."""
    line = _one_line(text[:_MAX_READ_CHARS])
    if key:
        line = _key_pattern(key).sub(REMOVED, line)
    for pattern in _SECRETS:
        line = pattern.sub(REMOVED, line)
    line = _AFTER_WORD.sub(rf"\1{REMOVED}", line)
    for pattern in _PATHS:
        line = pattern.sub("[path]", line)
    return line if len(line) <= MAX_SENTENCE_CHARS else line[: MAX_SENTENCE_CHARS - 1].rstrip() + "…"


def _one_line(text: str) -> str:
    """Whitespace folded; control, invisible and unpaired characters taken out."""
    folded = " ".join(text.split())
    return "".join(char for char in folded if not unicodedata.category(char).startswith("C"))


def _key_pattern(key: str) -> re.Pattern[str]:
    """The key as it is, URL-encoded, or with blanks between its characters."""
    chars = [f"(?:{re.escape(char)}|{_encoded(char)})" for char in key if not char.isspace()]
    body = r"\s*".join(chars)
    # A short key would be found inside ordinary words.
    return re.compile(body if len(chars) >= 8 else rf"(?<!\w)(?:{body})(?!\w)")


def _encoded(char: str) -> str:
    raw = quote(char, safe="") if not char.isascii() else f"%{ord(char):02X}"
    return f"(?i:{re.escape(raw)})"
