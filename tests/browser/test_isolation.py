"""Two people at once, each with words of their own: nothing of one is found with the other."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from playwright.sync_api import Browser, WebSocket, expect

from agent.transcript import check_pairing
from tests.browser.visits import DESKTOP, PATIENCE_MS, Talks, Visitor
from tests.endpoint import Completion, says, wants
from tests.support import call
from tests.ui.serving import Served

KEY = "sk-planted-secret"
ONE, TWO = "turmeric", "fuchsia"
VIEWS = ("Sequence", "Gates", "Wire", "Ledger")


@dataclass
class Guest:
    """One of two people: a browser of their own, one word, and all that the server sent to them."""

    word: str
    visitor: Visitor
    received: list[bytes] = field(default_factory=list[bytes])
    read: list[str] = field(default_factory=list[str])

    def look(self) -> None:
        """Read the page, as it stands and as it is marked up."""
        self.visitor.idle()
        self.read += [self.visitor.text(), self.visitor.page.content()]

    def sees(self, text: str) -> None:
        expect(self.visitor.page.get_by_text(text).first).to_be_visible()
        self.look()


def listen(received: list[bytes]) -> Callable[[WebSocket], None]:
    def heard(frame: str | bytes) -> None:
        received.append(frame.encode() if isinstance(frame, str) else frame)

    return lambda socket: socket.on("framereceived", heard)


@pytest.fixture
def guests(browser: Browser, real_site: Served) -> Iterator[tuple[Guest, Guest]]:
    with ExitStack() as stack:
        made: list[Guest] = []
        for word in (ONE, TWO):
            context = browser.new_context(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
            stack.callback(context.close)
            received: list[bytes] = []
            # Before the page is asked for: what the server says first is heard as well.
            context.on("page", lambda page, to=received: page.on("websocket", listen(to)))
            made.append(Guest(word, Visitor(context, real_site), received))
        yield made[0], made[1]
        assert [guest.visitor.complaints for guest in made] == [[], []]


def both_at_once(*replies: Completion) -> list[Callable[[], Completion]]:
    """Steps that come to neither before both have asked: the two runs are at the same place."""
    barrier = Barrier(len(replies))

    def step(reply: Completion) -> Callable[[], Completion]:
        def wait() -> Completion:
            barrier.wait(PATIENCE_MS / 1000)
            return reply

        return wait

    return list(map(step, replies))


def fails(message: str) -> Completion:
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error"}})
    return {"_status": 400, "_headers": {}, "_body": body}


def plan(talks: Talks) -> None:
    """The same for both, each with the own word: a note, an edit, a denial, a look, and a failure."""
    words = (ONE, TWO)
    asked = both_at_once(*(wants(call("c", "write_note", {"text": f"{word} noted"})) for word in words))
    answered = both_at_once(*(says(f"The note about {word} is there.") for word in words))
    for number, word in enumerate(words):
        talks.plan |= {
            f"note {word}": [asked[number], answered[number]],
            f"edit {word}": [
                wants(call("c", "write_note", {"text": f"{word} asked"})),
                says(f"{word} edited"),
            ],
            f"deny {word}": [wants(call("c", "write_note", {"text": f"{word} refused"})), says(f"no {word}")],
            f"list {word}": [wants(call("c", "list_notes", {})), says(f"{word} listed")],
            f"fail {word}": [fails(f"Nothing is known of {word}, and the key {KEY} is wrong.")],
        }


def converse(guests: tuple[Guest, Guest]) -> None:
    """Each step for both, before the next one for either."""
    steps: tuple[Callable[[Guest], None], ...] = (
        lambda guest: guest.visitor.write(f"note {guest.word}"),
        lambda guest: guest.sees(f'text: "{guest.word} noted"'),
        lambda guest: guest.visitor.button("Approve").click(),
        lambda guest: guest.sees(f"The note about {guest.word} is there."),
        lambda guest: guest.visitor.write(f"edit {guest.word}"),
        lambda guest: guest.visitor.button("Edit").click(),
        lambda guest: guest.visitor.page.get_by_label("text", exact=True).fill(f"{guest.word} in its place"),
        lambda guest: guest.visitor.button("Approve as edited").click(),
        lambda guest: guest.sees(f"{guest.word} edited"),
        lambda guest: guest.visitor.write(f"deny {guest.word}"),
        lambda guest: guest.visitor.page.get_by_label("Reason for a denial").fill(f"{guest.word} it is not"),
        lambda guest: guest.visitor.button("Deny").click(),
        lambda guest: guest.sees(f"no {guest.word}"),
        lambda guest: guest.visitor.write(f"list {guest.word}"),
        lambda guest: guest.sees(f"{guest.word} listed"),
        lambda guest: guest.visitor.write(f"fail {guest.word}"),
        lambda guest: guest.sees("provider_error"),
    )
    for step in steps:
        for guest in guests:
            step(guest)


def look_around(guest: Guest) -> None:
    """All views, the whole wire of the run that listed the notes included."""
    page = guest.visitor.page
    for view in VIEWS:
        page.get_by_test_id("stButtonGroup").get_by_text(view, exact=True).click()
        guest.look()
    page.get_by_test_id("stButtonGroup").get_by_text("Wire", exact=True).click()
    page.get_by_text("Show all of it").click()
    guest.look()


def notes_told(body: Any) -> list[str]:
    """The texts of the notes that a request brings to the model."""
    told = [json.loads(message["content"]) for message in body["messages"] if message["role"] == "tool"]
    return [note["text"] for one in told if one["tool"] == "list_notes" for note in one["data"]["notes"]]


def test_two_people_at_once_share_no_word(
    guests: tuple[Guest, Guest], talks: Talks, data: Path, real_site: Served
) -> None:
    plan(talks)
    converse(guests)
    for guest, other in zip(guests, (TWO, ONE), strict=True):
        look_around(guest)
        assert all(guest.word in text for text in guest.read)
        assert [text for text in guest.read if other in text or KEY in text] == []
        received = b"".join(guest.received)
        assert guest.word.encode() in received
        assert other.encode() not in received
        assert KEY.encode() not in received
        bodies = [body for body in talks.requests if guest.word in json.dumps(body)]
        assert len(bodies) == 9
        assert [body for body in bodies if other in json.dumps(body)] == []
        assert [faults for body in bodies if (faults := check_pairing(body["messages"]))] == []
        listed = next(told for body in bodies if (told := notes_told(body)))
        assert listed == [f"{guest.word} in its place", f"{guest.word} noted"]
    assert KEY not in json.dumps(talks.requests)
    audit = (data / "audit" / "audit.jsonl").read_text()
    assert audit.count('"event":"run_ended"') == 10
    assert len({json.loads(line)["user_id_hash"] for line in audit.splitlines()}) == 2
    for said in (audit, real_site.log.read_text()):
        assert [word for word in (ONE, TWO, KEY) if word in said] == []
