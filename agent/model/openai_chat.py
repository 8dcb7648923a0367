"""Any OpenAI-compatible endpoint, behind the Model protocol. The only module that imports openai.

One raw-response path serves JSON and SSE: the client sends the request and hands back the unread
response, and the body is read here under the deadline and a size cap. Retries belong to the caller.
"""

import json
import math
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import httpx2
import openai
from openai import APIResponse

from agent.errors import ModelError
from agent.limits import Deadline
from agent.model import Message, OnDelta, Reply
from agent.model.failures import answered_error, protocol_error, retry_after_s, status_error
from agent.model.sse import Events
from agent.model.wire import Stream, read_message
from tools.base import Tool

MAX_BODY_BYTES = 8_000_000
_OWN_FIELDS = frozenset({"model", "messages", "tools", "tool_choice", "stream", "stream_options"})
_LONGEST_WAIT_S = 86_400.0
_HEADERS = {
    "X-Stainless-Raw-Response": "stream",
    # The client would write the read timeout here; ours is not a number that stands still.
    "X-Stainless-Read-Timeout": openai.Omit(),
}


class OpenAIChat:
    """A model behind an injected `openai.OpenAI` client, which is shared and never closed here.

    `params` go into every request body; they cannot replace the model, the messages, the tools or
    the way of streaming. Redirects are not followed: the key and the conversation stay with one host.
    """

    def __init__(
        self,
        client: openai.OpenAI,
        model: str,
        stream: bool = False,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self._client = client
        self._model = model
        self._stream = stream
        self._fields: dict[str, Any] = {
            name: value for name, value in (params or {}).items() if name not in _OWN_FIELDS
        }
        self._fields["model"] = model
        if stream:
            self._fields.update(stream=True, stream_options={"include_usage": True})

    @property
    def name(self) -> str:
        return self._model

    @property
    def host(self) -> str:
        """Where requests go, as `host` or `host:port`, for display."""
        return self._client.base_url.netloc.decode("ascii", "replace")

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        deadline: Deadline,
        on_delta: OnDelta | None = None,
    ) -> Reply:
        body = self._body(messages, tools)
        wait = _Wait(deadline)
        wait.check()
        response = self._post(body, wait)
        try:
            return _read(response, wait, on_delta)
        except httpx2.RequestError as error:
            raise _transport_error(error) from None
        finally:
            response.close()

    def _body(self, messages: Sequence[Message], tools: Sequence[Tool]) -> bytes:
        fields = {**self._fields, "messages": list(messages)}
        if tools:
            fields["tools"] = [tool.schema for tool in tools]
        text = json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")

    def _post(self, body: bytes, wait: "_Wait") -> httpx2.Response:
        """Send the request; return the response with its body unread."""
        try:
            return self._client.post(
                "/chat/completions",
                cast_to=cast(type[APIResponse[object]], object),
                content=body,
                options={
                    "headers": _HEADERS,
                    "max_retries": 0,
                    "timeout": _timeouts(wait),
                    "follow_redirects": False,
                },
            ).http_response
        except (openai.OpenAIError, httpx2.RequestError) as error:
            raise self._post_error(error, wait) from None
        except UnicodeError:
            raise _unsendable() from None

    def _post_error(self, error: Exception, wait: "_Wait") -> ModelError:
        if isinstance(error, openai.APIStatusError):
            wait_s = retry_after_s(error.response.headers, wait.deadline.clock.now())
            return status_error(error.status_code, error.body, wait_s, self._client.api_key)
        cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
        if isinstance(cause, httpx2.ConnectError | ssl.SSLError):
            sentence = f"The model's server at {self.host} could not be reached."
            return ModelError("provider_error", sentence, retry=True)
        return _transport_error(cause)


class _Wait:
    """The time left, as a socket timeout that shrinks: the socket asks for it anew before each read.

    A plain number is the pause allowed between two bytes, so dripped headers stretch it without end.
    Sockets take a float by value and ask anything else for its `__index__`, in whole seconds: a
    server that drips is cut in time, one that falls silent up to one second late.
    """

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.no_longer = False
        """From now on only take what has already arrived."""

    def __index__(self) -> int:
        left_s = self.deadline.left_s()
        if left_s <= 0:
            raise httpx2.ReadTimeout("The deadline has passed.")
        return 0 if self.no_longer else math.ceil(min(left_s, _LONGEST_WAIT_S))

    def check(self) -> None:
        if self.deadline.left_s() <= 0:
            raise _timeout()


def _timeouts(wait: _Wait) -> httpx2.Timeout:
    left_s = min(wait.deadline.left_s(), _LONGEST_WAIT_S)
    shrinking = cast(float, wait)
    return httpx2.Timeout(connect=left_s, read=shrinking, write=shrinking, pool=left_s)


def _timeout() -> ModelError:
    return ModelError("provider_timeout", "The model's server did not answer in time.")


def _unsendable() -> ModelError:
    return ModelError(
        "provider_auth", "The key or the address of the model's server cannot be sent as it is."
    )


def _transport_error(error: object) -> ModelError:
    if isinstance(error, httpx2.TimeoutException | openai.APITimeoutError):
        return _timeout()
    if isinstance(error, httpx2.DecodingError):
        return protocol_error("an answer whose compression is broken")
    if isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.LocalProtocolError):
        return ModelError("provider_error", "The connection to the model's server broke off.", retry=True)
    return _unsendable()


def _read(response: httpx2.Response, wait: _Wait, on_delta: OnDelta | None) -> Reply:
    chunks = _bounded(response, wait)
    if response.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream":
        return _read_stream(chunks, wait, on_delta)
    reply = read_message(_decoded(b"".join(chunks)))
    if on_delta is not None and reply.text:
        on_delta(reply.text)
    return reply


def _bounded(response: httpx2.Response, wait: _Wait) -> Iterator[bytes]:
    """The decoded body, cut at the deadline and at the size cap."""
    size = 0
    for chunk in response.iter_bytes():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise protocol_error("an answer that is too large")
        wait.check()
        yield chunk


def _decoded(data: bytes) -> object:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        page = data.lstrip().startswith(b"<")
        what = "a web page in place of an answer" if page else "an answer that is not readable JSON"
        raise protocol_error(what) from None


def _read_stream(chunks: Iterator[bytes], wait: _Wait, on_delta: OnDelta | None) -> Reply:
    stream, events = Stream(), Events()
    for chunk in chunks:
        if _feed(stream, events.feed(chunk), wait, on_delta):
            _drain(chunks, wait)
            return stream.finish(done=True)
    return stream.finish(done=_feed(stream, events.finish(), wait, on_delta))


def _drain(chunks: Iterator[bytes], wait: _Wait) -> None:
    """Take what has already arrived behind [DONE], so that the connection can be used again."""
    wait.no_longer = True
    with suppress(httpx2.RequestError, ModelError):
        for _ in chunks:
            pass


def _feed(stream: Stream, events: list[tuple[bytes, bytes]], wait: _Wait, on_delta: OnDelta | None) -> bool:
    """Feed a batch of events; True when [DONE] was among them."""
    for name, data in events:
        if data.startswith(b"[DONE]"):
            return True
        wait.check()
        chunk = _decoded(data)
        if name == b"error":
            raise answered_error(chunk)
        text = stream.feed(chunk)
        if text and on_delta is not None:
            on_delta(text)
    return False
