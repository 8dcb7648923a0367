"""A question from the first click to its end, in a real browser."""

from threading import Event

from playwright.sync_api import Browser, expect

from tests.browser.visits import Talks, Visitor, visiting
from tests.endpoint import Completion, says, wants
from tests.support import call
from tests.ui.serving import Served

DOWN: Completion = {"_status": 400, "_headers": {}, "_body": '{"error": {"message": "no such luck"}}'}


def test_a_note_is_approved_and_written_once(visitor: Visitor) -> None:
    visitor.page.get_by_text("Note that my flight is at nine").click()
    expect(visitor.page.get_by_text('text: "my flight is at nine"')).to_be_visible()
    visitor.button("Approve").click()
    expect(visitor.page.get_by_text("ran once")).to_be_visible()
    visitor.idle()
    visitor.write("list my notes")
    expect(visitor.page.get_by_text("total 1")).to_be_visible()


def test_a_denial_is_told_with_its_reason(visitor: Visitor) -> None:
    visitor.write("note that the door is open")
    visitor.page.get_by_label("Reason for a denial").fill("wrong door")
    visitor.button("Deny").click()
    expect(visitor.page.get_by_text("Reason: wrong door").first).to_be_visible()


def test_a_failed_request_is_sent_again_and_nothing_else(
    browser: Browser, real_site: Served, talks: Talks
) -> None:
    until = Event()
    attempts: list[int] = []

    def reply() -> Completion:
        attempts.append(len(attempts))
        assert attempts == [0] or until.wait(10)
        return DOWN if attempts == [0] else says("Noted, at last.")

    talks.plan["remember the door"] = [wants(call("w", "write_note", {"text": "the door"})), reply]
    with visiting(browser, real_site) as visitor:
        visitor.write("remember the door")
        visitor.button("Approve").click()
        expect(visitor.page.get_by_text("no such luck").first).to_be_visible()
        visitor.button("Retry").click()
        expect(visitor.page.get_by_text("Waiting for the model")).to_be_visible()
        expect(visitor.button("Retry")).to_have_count(0)
        expect(visitor.page.locator(".gl-ended")).to_have_count(0)
        until.set()
        expect(visitor.page.get_by_text("Noted, at last.").first).to_be_visible()
        expect(visitor.page.get_by_text("ran once")).to_have_count(1)
        expect(visitor.button("Retry")).to_have_count(0)
    failed, again = talks.requests[-2:]
    assert failed == again


def test_what_a_model_thinks_is_folded_until_somebody_looks(
    browser: Browser, real_site: Served, talks: Talks
) -> None:
    talks.plan["think"] = [says("<think>A long thought.\nAnd its end.</think>\n\nThe answer.")]
    with visiting(browser, real_site) as visitor:
        visitor.write("think")
        expect(visitor.page.get_by_text("The answer.", exact=True).first).to_be_visible()
        visitor.idle()
        assert "think>" not in visitor.text()
        thought = visitor.page.get_by_text("A long thought.")
        expect(thought).to_be_hidden()
        visitor.page.get_by_text("Reasoning", exact=True).click()
        expect(thought).to_be_visible()
