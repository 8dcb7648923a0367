"""Make the screenshots of the page: `python -m tests.browser.screenshots FOLDER`."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import expect, sync_playwright

from tests.browser.visits import DESKTOP, PAGE, PHONE, Visitor, chromium, launch, visiting
from tests.ui.serving import serve

LOOKS: Mapping[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "desktop": (DESKTOP, {}),
    "dark": (DESKTOP, {"color_scheme": "dark"}),
    "phone": (PHONE, {"is_mobile": True, "has_touch": True}),
}


def _empty(_: Visitor) -> None:
    pass


def _card(visitor: Visitor) -> None:
    visitor.page.get_by_text("Note that my flight is at nine").click()
    expect(visitor.button("Approve")).to_be_visible()


def _edit(visitor: Visitor) -> None:
    _card(visitor)
    visitor.button("Edit").click()
    visitor.page.get_by_label("text").fill("")
    visitor.button("Approve as edited").click()
    expect(visitor.page.get_by_role("alert").first).to_be_visible()


def _done(visitor: Visitor) -> None:
    _card(visitor)
    visitor.button("Approve").click()
    expect(visitor.page.get_by_text("ran once")).to_be_visible()


def _view(name: str) -> Callable[[Visitor], None]:
    def show(visitor: Visitor) -> None:
        visitor.page.get_by_text("Search for refund").click()
        visitor.idle()
        visitor.page.get_by_text(name, exact=True).click()
        visitor.idle()

    return show


def _stopped(visitor: Visitor) -> None:
    _card(visitor)
    visitor.button("Stop").click()
    expect(visitor.page.get_by_text("You stopped it.").first).to_be_visible()


SCENES: Mapping[str, Callable[[Visitor], None]] = {
    "empty": _empty,
    "card": _card,
    "edit": _edit,
    "done": _done,
    "gates": _view("Gates"),
    "wire": _view("Wire"),
    "ledger": _view("Ledger"),
    "stopped": _stopped,
}


def main(folder: Path) -> None:
    path = chromium()
    if path is None:
        raise SystemExit("Chromium is not installed.")
    folder.mkdir(parents=True, exist_ok=True)
    with serve(PAGE, env={"GLASSLOOP_DATA": str(folder / "data")}) as site, sync_playwright() as playwright:
        browser = launch(playwright, path)
        for look, (size, options) in LOOKS.items():
            for scene, prepare in SCENES.items():
                with visiting(browser, site, size, **options) as visitor:
                    prepare(visitor)
                    visitor.idle()
                    visitor.page.screenshot(path=folder / f"{scene}-{look}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data/screenshots"))
