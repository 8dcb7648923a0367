"""Who visits the page, and whom it talks to: a person in Chromium, and a model's endpoint."""

import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Playwright, expect

from tests.endpoint import Completion, answer
from tests.ui.serving import Served

PATIENCE_MS = 15_000
DESKTOP = (1440, 900)
PHONE = (390, 844)

PAGE = Path(__file__).resolve().parent.parent.parent / "web_demo.py"

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

expect.set_options(timeout=PATIENCE_MS)


def chromium() -> str | None:
    """Where Chromium is: what GLASSLOOP_CHROMIUM names, else the first on the path."""
    return os.environ.get("GLASSLOOP_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


def launch(playwright: Playwright, path: str) -> Browser:
    return playwright.chromium.launch(executable_path=path, args=list(_FLAGS))


class Visitor:
    """One person at a browser of their own. At the end the console must be clean."""

    def __init__(self, context: BrowserContext, site: Served) -> None:
        self.context = context
        self.site = site
        self.complaints: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(site.url)
        self.page.get_by_test_id("stChatInputTextArea").wait_for()
        self.idle()

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def idle(self) -> None:
        """Wait until the page has been drawn to its end."""
        self.page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")

    def write(self, text: str) -> None:
        """Write a message and send it; does not wait for anything that comes of it."""
        box = self.page.get_by_test_id("stChatInputTextArea")
        expect(box).to_be_enabled()
        box.fill(text)
        box.press("Enter")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def text(self) -> str:
        """All that can be read on the page."""
        return self.page.inner_text("body")


@contextmanager
def visiting(
    browser: Browser, site: Served, size: tuple[int, int] = DESKTOP, **options: Any
) -> Generator[Visitor]:
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, **options)  # pyright: ignore[reportArgumentType]
    try:
        visitor = Visitor(context, site)
        yield visitor
        assert visitor.complaints == []
    finally:
        context.close()


Step = Completion | Callable[[], Completion]


@dataclass
class Talks:
    """A model's endpoint on loopback: for each user message the replies of its run, one a request.

    A step that is a function is called for its reply, and may wait. What was asked is kept.
    """

    plan: dict[str, Sequence[Step]] = field(default_factory=dict[str, Sequence[Step]])
    requests: list[Any] = field(default_factory=list[Any])
    port: int = 0
    gone: Event = field(default_factory=Event)

    def reply(self, body: Mapping[str, Any]) -> Completion:
        messages: list[Any] = body["messages"]
        last = max(n for n, message in enumerate(messages) if message["role"] == "user")
        number = sum(message["role"] == "assistant" for message in messages[last:])
        step = self.plan[messages[last]["content"]][number]
        return step() if callable(step) else step


@contextmanager
def talking() -> Generator[Talks]:
    talks = Talks()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            talks.requests.append(body)
            for piece in answer(talks.reply(body), stream=bool(body.get("stream"))).pieces:
                self.wfile.write(piece)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        talks.port = server.server_address[1]
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield talks
        finally:
            talks.gone.set()
            server.shutdown()
            thread.join()
