"""A question from the first click to its end, in a real browser."""

from playwright.sync_api import expect

from tests.browser.visits import Visitor


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
