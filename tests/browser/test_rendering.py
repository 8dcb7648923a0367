"""Hostile text from every source, in every view: it loads nothing, leads nowhere, and passes for nothing.

One journey goes through all sources of text. It is made with plain words first: with hostile ones the
page must be of the same elements in the same places.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.probes import (
    CONTROLS,
    HIDDEN,
    LONG_WORD,
    Trap,
    census,
    everything,
    fails,
    held,
    in_brief,
    pictures,
    refuses,
    telling,
    trapping,
    widths,
)
from tests.browser.visits import DESKTOP, PAGE, PHONE, Talks, Visitor, visiting
from tests.endpoint import says, wants
from tests.support import asks, call
from tests.ui.serving import Served, serve

CARD = '[class*="st-key-card_"]'
END = "end of the words"
VIEWS = {
    "Sequence": ("Sequence", ".gl-seq"),
    "Gates": ("Gates", ":is(.gl-gates, .gl-none)"),
    "Ledger": ("Ledger", ".gl-ledger"),
    "Wire": ("Wire", "code"),
    "Whole wire": ("Wire", 'code:has-text("parameters")'),
}

_UNSEEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
_ANSWER_TAGS = frozenset(
    {"p", "ul", "ol", "li", "pre", "code", "blockquote", "strong", "em", "br", "hr", "span"}
)
_ANSWER_ATTRIBUTE = re.compile(r"class=gl-(h|host)|dir=(ltr|auto)|tabindex=0|start=\d+")
_CODE_ATTRIBUTE = re.compile(r"class=[a-z0-9 -]+|style=[a-z :;.\d-]*")


@dataclass(frozen=True)
class Words:
    """What each source of text says on a journey."""

    person: str
    interim: str
    note: str
    call_id: str
    tool: str
    arguments: str
    path: str
    bad_json: str
    edit: str
    reason: str
    thought: str
    answer: str
    stream: str
    refusal: str
    error: str


PLAIN = Words(
    person="a message",
    interim="some words",
    note="a note",
    call_id="call-a",
    tool="frobnicate",
    arguments='{"x": "y"}',
    path="nothing.txt",
    bad_json='{"path": nothing',
    edit="an edit\u200b " * 50,
    reason="a reason",
    thought="A thought.",
    answer="An answer.",
    stream="A stream.",
    refusal="I refuse.",
    error="No such thing.",
)


def hostile(trap: Trap) -> Words:
    def brief(tag: str) -> str:
        return in_brief(trap.url(tag))

    return Words(
        person=f"{everything(trap.url('person'))} end",
        interim=everything(trap.url("interim")),
        note=f"{brief('n')} {HIDDEN} {'W' * 40}"[:300],
        call_id=trap.url("i"),
        tool=f"{brief('t')}{'W' * 100}",
        arguments=json.dumps({brief("x"): everything(trap.url("x")), "long": LONG_WORD}),
        path=brief("p"),
        bad_json=f'{{"path": {everything(trap.url("j"))} "\\ud800"',
        edit=f"{brief('e')} {BAD_EDIT}{LONG_WORD[:400]}",
        reason=f"{brief('r')} {HIDDEN} {'W' * 100}",
        thought=f"{everything(trap.url('thought'))} {HIDDEN} {LONG_WORD}",
        answer=everything(trap.url("answer")),
        stream=f"{pictures(trap.url('stream'))}\n\n{LONG_WORD}\n\n<img src={trap.url('s')}>",
        refusal=f"{everything(trap.url('refusal'))} {LONG_WORD}",
        error=f"{brief('error')} {CONTROLS}",
    )


BAD_EDIT = f"{HIDDEN} "


@dataclass
class Journey:
    """A visitor led past every source of text; `look` is called wherever there is something to see."""

    visitor: Visitor
    talks: Talks
    words: Words
    look: Callable[[str, Page], None]
    cards: int = 0

    @property
    def page(self) -> Page:
        return self.visitor.page

    def all(self) -> None:
        self.decisions()
        self.stream()
        self.refusal()
        self.error()

    def decisions(self) -> None:
        words = self.words
        calls = (
            call(words.call_id, "write_note", {"text": words.note}),
            call("call-b", words.tool, words.arguments),
            call("call-c", "read_file", {"path": words.path}),
            call("call-d", "read_file", words.bad_json),
        )
        first = wants(*calls)
        first["choices"][0]["message"] = asks(*calls, text=words.interim)
        second = wants(
            call("call-e", "list_notes", {}), call("call-f", "write_note", {"text": f"2 {words.note}"})
        )
        self.say(words.person, first, second, says(f"<think>{words.thought}</think>{words.answer}\n\n{END}"))
        self.waits_for_me()
        for view in VIEWS:
            self.view(f"card, {view}", view)
        self.visitor.button("Edit").click()
        self.page.locator(f"{CARD} textarea").fill(words.edit)
        self.visitor.button("Approve as edited").click()
        expect(self.page.get_by_role("alert").first).to_be_visible()
        self.look_at("edit")
        self.visitor.button("Back").click()
        self.waits_for_me()
        self.visitor.button("Approve").click()
        expect(self.page.locator(CARD)).to_contain_text("c6")
        self.waits_for_me()
        self.page.get_by_label("Reason for a denial").fill(words.reason)
        self.visitor.button("Deny").click()
        self.ended(END)
        self.page.locator(".gl-thought summary").last.click()
        for view in ("Sequence", "Ledger", "Gates"):
            self.view(f"answer, {view}", view)

    def stream(self) -> None:
        until = Event()
        self.say(f"{self.words.person} 2", held(says(f"{self.words.stream}\n\n{END} 2"), until))
        expect(self.page.locator(".gl-answer").last).to_contain_text(f"{END} 2")
        self.look("stream", self.page)
        until.set()
        self.ended()
        self.look_at("streamed")

    def refusal(self) -> None:
        self.say(f"{self.words.person} 3", refuses(self.words.refusal))
        self.ended("The model refused to answer.")
        self.view("refusal", "Wire")

    def error(self) -> None:
        self.say(f"{self.words.person} 4", fails(self.words.error))
        self.ended("refused the request (status 400)")
        self.view("error", "Sequence")
        self.view("the whole wire", "Whole wire")

    def say(self, text: str, *replies: Any) -> None:
        self.talks.plan[text] = replies
        self.visitor.write(text)

    def waits_for_me(self) -> None:
        expect(self.visitor.button("Approve")).to_be_visible()
        self.visitor.idle()

    def ended(self, sign: str = "") -> None:
        if sign:
            expect(self.page.locator(".st-key-conversation").get_by_text(sign).last).to_be_visible()
        expect(self.page.get_by_test_id("stChatInputTextArea")).to_be_enabled()
        self.visitor.idle()

    def view(self, where: str, name: str) -> None:
        label, sign = VIEWS[name]
        self.page.locator(".st-key-view").get_by_text(label, exact=True).click()
        if name == "Whole wire":
            self.page.get_by_text("Show all of it").click()
        expect(self.page.locator(f".st-key-protocol {sign}").first).to_be_visible()
        self.look_at(where)

    def look_at(self, where: str) -> None:
        self.visitor.idle()
        self.look(where, self.page)


# --- what is served -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trap() -> Iterator[Trap]:
    with trapping() as server:
        yield server


@pytest.fixture(scope="module")
def model() -> Iterator[Talks]:
    with telling() as endpoint:
        yield endpoint


def environment(model: Talks, data: Path, name: str) -> dict[str, str]:
    return {
        "GLASSLOOP_BASE_URL": f"http://127.0.0.1:{model.port}/v1",
        "GLASSLOOP_API_KEY": "sk-planted-secret",
        "GLASSLOOP_MODEL": name,
        "GLASSLOOP_DATA": str(data),
    }


@pytest.fixture(scope="module")
def plain_site(model: Talks, data: Path) -> Iterator[Served]:
    with serve(PAGE, env=environment(model, data, "plain")) as served:
        yield served


@pytest.fixture(scope="module")
def hostile_site(model: Talks, data: Path, trap: Trap) -> Iterator[Served]:
    """The page on a model whose very name is hostile."""
    with serve(PAGE, env=environment(model, data, f"{in_brief(trap.url('m'))} {BAD_EDIT}")) as served:
        yield served


def shape(browser: Browser, site: Served, model: Talks, size: tuple[int, int]) -> dict[str, list[str]]:
    """The elements of the page at each place of the journey, where all words are plain."""
    seen: dict[str, list[str]] = {}

    def look(where: str, page: Page) -> None:
        seen[where] = census(page).bones

    with visiting(browser, site, size) as visitor:
        Journey(visitor, model, PLAIN, look).all()
    return seen


# --- what became of it --------------------------------------------------------------------------


def faults(where: str, page: Page, bones: list[str]) -> list[str]:
    """What hostile words changed on the page besides its words; and what of them is not inert."""
    seen = census(page)
    found = [f"alive: {one}" for one in seen.alive] + [f"astray: {one}" for one in seen.astray]
    if seen.bones != bones and where != "stream":  # there the page is not at rest yet
        found.append(f"other elements: {sorted(set(seen.bones) ^ set(bones))[:5]}")
    for holder, tag, attributes in seen.inside:
        if holder == "answer":
            lawful = tag in _ANSWER_TAGS and all(map(_ANSWER_ATTRIBUTE.fullmatch, attributes))
        else:
            lawful = tag in ("span", "code") and all(map(_CODE_ATTRIBUTE.fullmatch, attributes))
        if not lawful:
            found.append(f"in {holder}: {tag} {attributes}")
    if hidden := _UNSEEN.findall(seen.text):
        found.append(f"hidden: {sorted(set(hidden))!r}")
    wide, scrolled, out = widths(page)
    if wide > 0 or scrolled > 0 or out:
        found.append(f"too wide: {wide} {scrolled} {out[:3]}")
    return [f"{where}: {one}" for one in found]


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_hostile_words_change_nothing_but_words(
    browser: Browser,
    plain_site: Served,
    hostile_site: Served,
    model: Talks,
    trap: Trap,
    size: tuple[int, int],
) -> None:
    """Without the server's Content-Security-Policy, for that is the second wall; the console stays clean."""
    found: list[str] = []
    plain = shape(browser, plain_site, model, size)

    def look(where: str, page: Page) -> None:
        found.extend(faults(where, page, plain[where]))

    with visiting(browser, hostile_site, size, bypass_csp=size == PHONE) as visitor:
        outside: list[str] = []
        visitor.page.on("request", lambda request: outside.append(request.url))
        Journey(visitor, model, hostile(trap), look).all()
    assert found == []
    assert trap.asked == []
    assert [url for url in outside if not url.startswith((hostile_site.url, "data:", "blob:"))] == []


def test_the_trap_counts_who_follows_a_picture(browser: Browser, trap: Trap) -> None:
    page = browser.new_page()
    page.set_content(f'<img src="{trap.url("control")}">')
    page.wait_for_function("document.images[0].complete")
    page.close()
    assert [path for path in trap.asked if path.endswith("/control")]
