"""Any OpenAI-compatible endpoint, behind the Model protocol. The only module that imports openai.

One raw-response path serves JSON and SSE: the client sends the request and hands back the unread
response, and the body, of an answer or of an error, is read here under the deadline and a size cap.
The client's own key is taken out of all that a server says. Retries belong to the caller.
"""

import json
import math
import re
import ssl
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import httpx2
import openai
from openai import APIResponse

from agent.errors import ModelError
from agent.limits import Deadline
from agent.model import Message, OnDelta, Reply, WireCall
from agent.model.failures import REMOVED, Unreadable, answered_error, retry_after_s, status_error, unreadable
from agent.model.reasoning import HOSTS_THAT_KEEP
from agent.model.sse import Events
from agent.model.wire import Stream, read_message
from tools.base import Tool

MAX_BODY_BYTES = 8_000_000
MAX_ERROR_BYTES = 64_000
MIN_KEY_CHARS = 8
"""A shorter key is no secret, and would be found inside ordinary words."""
_DONE = b"[DONE]"
_PIECE_BYTES = 64_000
_OWN_FIELDS = frozenset({"model", "messages", "tools", "tool_choice", "stream", "stream_options"})
_LONGEST_WAIT_S = 86_400.0
_HEADERS = {
    "X-Stainless-Raw-Response": "stream",
    "Accept-Encoding": "gzip",
    # The client would write the read timeout here; ours is not a number that stands still.
    "X-Stainless-Read-Timeout": openai.Omit(),
}


class OpenAIChat:
    """A model behind an injected `openai.OpenAI` client, which is shared and never closed here.

    `params` go into every request body; they cannot replace the model, the messages, the tools or
    the way of streaming. Redirects are not followed: the key and the conversation stay with one host.
    `keep_reasoning` sends the vendor fields of replies that asked for tools back in later runs too, as
    the hosts of a table want it anyway.
    """

    def __init__(
        self,
        client: openai.OpenAI,
        model: str,
        stream: bool = False,
        params: Mapping[str, Any] | None = None,
        keep_reasoning: bool = False,
    ) -> None:
        self._client = client
        self._sender = _Sender(client)
        self._copy: tuple[object, openai.OpenAI] | None = None
        self._model = model
        self._stream = stream
        self._keep_reasoning = keep_reasoning
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
        client = self._sending_client()
        response = self._post(client, body, wait)
        try:
            if not response.is_success:
                raise _status_error(response, wait, client.api_key)
            reply = _read(response, wait, _Secret(client.api_key), on_delta)
            return replace(reply, extra_lasts=self._extra_lasts(reply))
        except httpx2.RequestError as error:
            raise _transport_error(error) from None
        finally:
            response.close()

    def _extra_lasts(self, reply: Reply) -> bool:
        wanted = self._keep_reasoning or self._client.base_url.host in HOSTS_THAT_KEEP
        return wanted and bool(reply.calls)

    def _sending_client(self) -> openai.OpenAI:
        """A copy of the client that sends through `_Sender`; a new one after a change of key or address."""
        basis = (self._client.api_key, self._client.base_url)
        if self._copy is None or self._copy[0] != basis:
            self._copy = (basis, self._client.copy(http_client=self._sender))
        return self._copy[1]

    def _body(self, messages: Sequence[Message], tools: Sequence[Tool]) -> bytes:
        fields = {**self._fields, "messages": list(messages)}
        if tools:
            fields["tools"] = [tool.schema for tool in tools]
        text = json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")

    def _post(self, client: openai.OpenAI, body: bytes, wait: "_Wait") -> httpx2.Response:
        """Send the request; return the response, whatever its status, with its body unread."""
        try:
            return client.post(
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
            raise self._post_error(error) from None
        except UnicodeError:
            raise _unsendable() from None

    def _post_error(self, error: Exception) -> ModelError:
        cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
        if isinstance(cause, httpx2.ConnectError | ssl.SSLError):
            sentence = f"The model's server at {self.host} could not be reached."
            return ModelError("provider_error", sentence, retry=True)
        return _transport_error(cause)


class _Unjudged(httpx2.Response):
    def raise_for_status(self) -> "_Unjudged":
        return self


class _Sender(httpx2.Client):
    """The client's own HTTP client, with responses that the openai client does not judge by status.

    The openai client reads the body of every error to its end before it raises: without a bound, so
    that an endless or a bomb of a body fills the memory. No option of a request turns that off, event
    hooks would be set on a client that others share, and sending past `post` would lose its
    authentication. So a copy of the client sends through this, at the price of one private name.
    """

    def __init__(self, client: openai.OpenAI) -> None:
        # A transport that is never used: the default one would load the certificates again.
        super().__init__(transport=httpx2.BaseTransport(), trust_env=False)
        self._inner: httpx2.Client = client._client  # pyright: ignore[reportPrivateUsage]

    def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
        return self._inner.build_request(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> httpx2.Response:
        response = self._inner.send(*args, **kwargs)
        response.__class__ = _Unjudged
        return response


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
        return unreadable(Unreadable.COMPRESSION_BROKEN)
    if isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.LocalProtocolError):
        return ModelError("provider_error", "The connection to the model's server broke off.", retry=True)
    return _unsendable()


def _status_error(response: httpx2.Response, wait: _Wait, key: str) -> ModelError:
    error = _error_body(response, wait)
    wait_s = retry_after_s(response.headers, wait.deadline.clock.now())
    return status_error(response.status_code, error, wait_s, key)


def _error_body(response: httpx2.Response, wait: _Wait) -> object:
    """The decoded body of an error, or its text; nothing where it is too large to be one."""
    data = b""
    for piece in _pieces(response):
        wait.check()
        data += piece
        if len(data) > MAX_ERROR_BYTES:
            return ""
    text = data.decode("utf-8-sig", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read(response: httpx2.Response, wait: _Wait, secret: "_Secret", on_delta: OnDelta | None) -> Reply:
    chunks = _bounded(response, wait)
    if response.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream":
        return _read_events(chunks, wait, secret, on_delta)
    reply = secret.without(read_message(_decoded(b"".join(chunks))))
    if on_delta is not None and reply.text:
        on_delta(reply.text)
    return reply


def _read_events(chunks: Iterator[bytes], wait: _Wait, secret: "_Secret", on_delta: OnDelta | None) -> Reply:
    if on_delta is None or not secret.key:
        return secret.without(_read_stream(chunks, wait, on_delta))
    deltas = _Deltas(secret.key, on_delta)
    reply = secret.without(_read_stream(chunks, wait, deltas.feed))
    deltas.finish()
    return reply


def _bounded(response: httpx2.Response, wait: _Wait) -> Iterator[bytes]:
    """The decoded body, cut at the deadline and at the size cap."""
    size = 0
    for chunk in _pieces(response):
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise unreadable(Unreadable.TOO_LARGE)
        wait.check()
        yield chunk


def _pieces(response: httpx2.Response) -> Iterator[bytes]:
    """The body, decompressed here: httpx2 inflates what has arrived in one go, however large it becomes."""
    if response.is_stream_consumed:
        # Whoever injected the client has read it.
        return iter((response.content,))
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return response.iter_raw()
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _inflated(response.iter_raw())
    raise unreadable(Unreadable.COMPRESSION_UNASKED)


def _inflated(chunks: Iterator[bytes]) -> Iterator[bytes]:
    # 32 more than the window size: gzip or zlib, by its first bytes.
    inflate = zlib.decompressobj(zlib.MAX_WBITS + 32)
    try:
        for chunk in chunks:
            if inflate.eof:
                raise zlib.error("more behind the end")
            while chunk:
                yield inflate.decompress(chunk, _PIECE_BYTES)
                chunk = inflate.unconsumed_tail
        yield inflate.flush()
    except zlib.error:
        raise unreadable(Unreadable.COMPRESSION_BROKEN) from None


def _decoded(data: bytes) -> object:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        page = data.lstrip().startswith(b"<")
        raise unreadable(Unreadable.WEB_PAGE if page else Unreadable.NOT_JSON) from None


def _read_stream(chunks: Iterator[bytes], wait: _Wait, on_delta: OnDelta | None) -> Reply:
    stream, events = Stream(), Events()
    for chunk in chunks:
        if _feed(stream, events.feed(chunk), wait, on_delta):
            _drain(chunks, wait)
            return _finished(stream, on_delta, done=True)
    # What is left without its closing line is the last event, or the beginning of one that was cut.
    rest = [event for event in events.finish() if _is_whole(event[1])]
    return _finished(stream, on_delta, done=_feed(stream, rest, wait, on_delta))


def _is_whole(data: bytes) -> bool:
    try:
        _decoded(data)
    except ModelError:
        return data.startswith(_DONE)
    return True


def _finished(stream: Stream, on_delta: OnDelta | None, *, done: bool) -> Reply:
    reply = stream.finish(done=done)
    if on_delta is not None and (rest := stream.rest()):
        on_delta(rest)
    return reply


def _drain(chunks: Iterator[bytes], wait: _Wait) -> None:
    """Take what has already arrived behind [DONE], so that the connection can be used again."""
    wait.no_longer = True
    with suppress(httpx2.RequestError, ModelError):
        for _ in chunks:
            pass


def _feed(stream: Stream, events: list[tuple[bytes, bytes]], wait: _Wait, on_delta: OnDelta | None) -> bool:
    """Feed a batch of events; True when [DONE] was among them."""
    for name, data in events:
        if data.startswith(_DONE):
            return True
        wait.check()
        chunk = _decoded(data)
        if name == b"error":
            raise answered_error(chunk)
        text = stream.feed(chunk)
        if text and on_delta is not None:
            on_delta(text)
    return False


class _Secret:
    """The client's own key, to be taken out of a reply: a server can echo it wherever it likes."""

    def __init__(self, key: str) -> None:
        # A placeholder such as lm-studio is a word that answers may hold; a real key has digits.
        is_key = len(key) >= MIN_KEY_CHARS and any(character.isdigit() for character in key)
        self.key = key if is_key else ""

    def without(self, reply: Reply) -> Reply:
        if not self.key:
            return reply
        return replace(
            reply,
            text=self._value(reply.text),
            refusal=self._value(reply.refusal),
            reasoning=self._value(reply.reasoning),
            finish_reason=self._value(reply.finish_reason),
            calls=tuple(self._call(call) for call in reply.calls),
            extra=self._value(reply.extra),
        )

    def _call(self, call: WireCall) -> WireCall:
        provider_id, name = self._value(call.provider_id), self._value(call.name)
        arguments = call.arguments
        if isinstance(arguments, str) or self._is_in(arguments):
            arguments = self._value(arguments)
        return WireCall(provider_id, name, arguments, self._value(call.extra))

    def _is_in(self, arguments: object) -> bool:
        try:
            text = json.dumps(arguments, ensure_ascii=False)
            return self._text(text) != text
        except RecursionError:
            raise unreadable(Unreadable.NOT_JSON) from None

    def _value(self, value: Any) -> Any:
        """The same value without the key in any of its texts."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self._value(item) for item in cast(list[object], value)]
        if isinstance(value, dict):
            fields = cast(dict[str, object], value)
            return {self._text(name): self._value(item) for name, item in fields.items()}
        return value

    def _text(self, text: str) -> str:
        if self.key in text:
            text = text.replace(self.key, REMOVED)
        # In a text that is itself JSON, as arguments are, the key can be written with escapes.
        if "\\" in text and ("\\u00" in text or self.key in text.replace("\\", "")):
            return self._escaped().sub(REMOVED, text)
        return text

    def _escaped(self) -> re.Pattern[str]:
        chars = [rf"\\{{0,4}}(?:{re.escape(char)}|(?<=\\)(?i:u{ord(char):04x}))" for char in self.key]
        return re.compile("".join(chars))


class _Deltas:
    """Hands on text while it arrives, but for a tail that could be the beginning of the key."""

    def __init__(self, key: str, on_delta: OnDelta) -> None:
        self._key = key
        self._on_delta = on_delta
        self._held = ""

    def feed(self, text: str) -> None:
        if self._held or self._may_end_in_key(text) or self._key in text:
            text = (self._held + text).replace(self._key, REMOVED)
            at = self._start_of_key(text)
            text, self._held = text[:at], text[at:]
        if text:
            self._on_delta(text)

    def finish(self) -> None:
        if self._held:
            self._on_delta(self._held)

    def _may_end_in_key(self, text: str) -> bool:
        """Whether a tail can begin the key, by its last two characters: nearly always not."""
        return text[-2:] in self._key or text[-1] == self._key[0]

    def _start_of_key(self, text: str) -> int:
        at = max(0, len(text) - len(self._key) + 1)
        while not self._key.startswith(text[at:]):
            at += 1
        return at
