"""What stands around the page: the guard before it, its readiness, and the end of the process."""

import asyncio
import logging
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import streamlit as st
from google.protobuf.message import DecodeError
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config, runtime
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.runtime import RuntimeState
from streamlit.web.server.starlette.starlette_websocket import is_host_allowed

from agent.settings import SettingsError, load_settings

AGENT_API_REFUSED = (
    "Glassloop does not start while server.enableAgentApi is on, for a program could then press Approve."
)

# The page's runs, its stops and its signs of life. It has no uploads and no deferred downloads.
_ALLOWED_MESSAGES = frozenset({"rerun_script", "stop_script", "app_heartbeat"})
# A run's message holds the values of all widgets of the page, which are short texts.
_MAX_MESSAGE_BYTES = 1_000_000
# What the page fetches from Streamlit's own API, which has uploads, counters and the agent API as well.
_ALLOWED_API = frozenset({"health", "host-config"})
_API = "/_stcore/"
_LOGIN = ("/auth/login", "/auth/logout", "/oauth2callback")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

# Styles are inline everywhere. Pictures come from here or not at all: a text of a model or a tool could send
# away what it knows by naming one.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'",
    "script-src 'self'{hashes}",
    "style-src 'self' 'unsafe-inline'",
    "img-src 'self' data: blob:",
    "font-src 'self' data:",
    "connect-src 'self'",
    "worker-src 'none'",
    "object-src 'none'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'none'",
)
_FEATURES_OFF = ("camera", "display-capture", "geolocation", "microphone", "midi", "payment", "serial", "usb")


@cache
def security_headers() -> Mapping[str, str]:
    """The headers of each answer. Of inline scripts, those of Streamlit's own index.html may run."""
    hashes = "".join(f" 'sha256-{digest}'" for digest in _script_digests())
    return {
        "Content-Security-Policy": "; ".join(_CONTENT_SECURITY_POLICY).format(hashes=hashes),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Permissions-Policy": ", ".join(f"{feature}=()" for feature in _FEATURES_OFF),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }


def _script_digests() -> list[str]:
    index = Path(st.__file__).parent / "static" / "index.html"
    scripts = re.findall(r"<script>(.*?)</script>", index.read_text(encoding="utf-8"), re.DOTALL)
    return [b64encode(sha256(script.encode()).digest()).decode() for script in scripts]


class Guard:
    """Lets through what the page needs, and no more: Streamlit itself obeys any client.

    A socket that another site's page opens is refused before Streamlit sees it, which would first ask the
    internet for this machine's address.

    What is not let through is dropped without an answer, and the connection stays: a browser would meet a
    closed one by connecting and sending again. Where the agent API is on, the process does not start.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            app = _NOT_FOUND if _is_closed(scope["path"]) else self._app
            await app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket" and _is_foreign(scope):
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "websocket":
            await self._app(scope, _only_allowed(receive), send)
        elif config.get_option("server.enableAgentApi"):
            await _refuse(receive, send)
        else:
            await self._app(scope, receive, send)


def middleware() -> list[Middleware]:
    return [Middleware(Guard)]


def routes(check: Callable[[], object] = load_settings) -> list[Route]:
    """`/readyz`: 200 where Streamlit's runtime runs and `check` raises no `SettingsError`, else 503."""

    def readyz(_: Request) -> JSONResponse:
        ready = _runtime_runs() and _passes(check)
        return JSONResponse({"ready": ready}, 200 if ready else 503, {"Cache-Control": "no-store"})

    return [Route("/readyz", readyz)]


def lifespan(close: Callable[[], None]) -> Callable[[st.App], AbstractAsyncContextManager[None]]:
    """Calls `close` once, in a thread, when the server shuts down; it may block. AppTest has no lifespan."""

    @asynccontextmanager
    async def until_shutdown(_: st.App) -> AsyncGenerator[None]:
        logging.getLogger("streamlit.error_util").addFilter(_never)
        try:
            yield
        finally:
            await asyncio.to_thread(close)

    return until_shutdown


def _never(_: logging.LogRecord) -> bool:
    """Streamlit logs whole tracebacks, with paths and values; the page has logged its own line by then."""
    return False


_NOT_FOUND = PlainTextResponse("Not Found", 404)


def _is_closed(path: str) -> bool:
    _, found, name = path.partition(_API)
    return (bool(found) and name not in _ALLOWED_API) or path.endswith(_LOGIN)


def _is_foreign(scope: Scope) -> bool:
    """Whether a page of another site opens this socket; one without an Origin is opened by no page.

    The Origin must be the Host, or a name that the configuration allows: a proxy may change the Host.
    """
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return True
    if parts.netloc == headers.get("host"):
        return False
    allowed = config.get_option("server.allowedHosts") and is_host_allowed(parts.netloc)
    return not allowed or name in _LOOPBACK


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(security_headers())
        await send(message)

    return send_with_headers


def _only_allowed(receive: Receive) -> Receive:
    async def receive_allowed() -> Message:
        while True:
            message = await receive()
            if message["type"] != "websocket.receive" or _is_allowed(message.get("bytes")):
                return message

    return receive_allowed


def _is_allowed(data: bytes | None) -> bool:
    """Whether this is a message that the page sends; a text frame (None) is none."""
    if data is None or len(data) > _MAX_MESSAGE_BYTES:
        return False
    try:
        return BackMsg.FromString(data).WhichOneof("type") in _ALLOWED_MESSAGES
    except DecodeError:
        return False


async def _refuse(receive: Receive, send: Send) -> None:
    # An exception in a lifespan would be logged with its traceback; this is the sentence alone.
    await receive()
    await send({"type": "lifespan.startup.failed", "message": AGENT_API_REFUSED})


def _runtime_runs() -> bool:
    running = (RuntimeState.NO_SESSIONS_CONNECTED, RuntimeState.ONE_OR_MORE_SESSIONS_CONNECTED)
    return runtime.exists() and runtime.get_instance().state in running


def _passes(check: Callable[[], object]) -> bool:
    try:
        check()
    except SettingsError:
        return False
    return True
