"""What the page costs in Chromium: `python -m tests.bench.page`.

First paint is from the address to the suggestions, in a browser that has never been here. A click is from
the event in the page to the first change that it makes to be seen. A rerun is from a click on a switch to
the page at rest, at 20 and at 200 messages; the floor is the same click on an empty page.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter

from playwright.sync_api import Browser, sync_playwright

from tests.browser.visits import PAGE, Visitor, chromium, launch, visiting
from tests.ui.serving import Served, serve

ROUNDS = 9

# Resolves with the milliseconds from a click on the element to the moment when `gone` no longer matches.
CLICK_TO_SHOWN = """
([button, gone]) => new Promise(done => {
  const target = document.querySelector(button);
  const began = performance.now();
  const watch = new MutationObserver(() => {
    if (!document.querySelector(gone)) {
      watch.disconnect();
      requestAnimationFrame(() => done(performance.now() - began));
    }
  });
  watch.observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true});
  target.click();
})
"""
# Resolves with the milliseconds from a click on the element to the last change that comes of it.
CLICK_TO_REST = """
(target) => new Promise(done => {
  const began = performance.now();
  let last = began, timer = null;
  const watch = new MutationObserver(() => {
    last = performance.now();
    clearTimeout(timer);
    timer = setTimeout(() => { watch.disconnect(); done(last - began); }, 400);
  });
  watch.observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true});
  document.querySelector(target).click();
})
"""
# Promises the milliseconds from the next Enter to one more message on the page.
ENTER_TO_SHOWN = """
() => {
  const count = () => document.querySelectorAll('[data-testid=stChatMessage]').length;
  const before = count();
  window.shown = new Promise(done => addEventListener('keydown', () => {
    const began = performance.now();
    new MutationObserver((_, watch) => {
      if (count() > before) {
        watch.disconnect();
        requestAnimationFrame(() => done(performance.now() - began));
      }
    }).observe(document.body, {subtree: true, childList: true});
  }, {capture: true, once: true}));
}
"""
SWITCH = ".st-key-switch_add input"
CARD = '[class*="st-key-card_"]'
APPROVE = '[class*="st-key-approve_"] button'


def first_paint(browser: Browser, site: Served) -> float:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    began = perf_counter()
    page.goto(site.url)
    page.wait_for_selector(".st-key-suggestion_3")
    seconds = perf_counter() - began
    context.close()
    return seconds


def approve(visitor: Visitor) -> float:
    """From the click on Approve to the card gone; milliseconds."""
    visitor.write("note that it rains")
    visitor.page.wait_for_selector(APPROVE)
    visitor.idle()
    took: float = visitor.page.evaluate(CLICK_TO_SHOWN, [APPROVE, CARD])
    visitor.idle()
    return took


def send(visitor: Visitor) -> float:
    """From Enter to one's own message on the page; milliseconds."""
    visitor.page.evaluate(ENTER_TO_SHOWN)
    visitor.write("hello")
    took: float = visitor.page.evaluate("() => window.shown")
    visitor.idle()
    return took


def switch(visitor: Visitor) -> float:
    """From a click on a tool's switch to the page at rest; milliseconds."""
    took: float = visitor.page.evaluate(CLICK_TO_REST, SWITCH)
    return took


def fill(visitor: Visitor, messages: int) -> None:
    """Chat until the conversation has this many messages, two a run."""
    for _ in range(messages // 2):
        visitor.write("hello")
        visitor.idle()


def several(measure: Callable[[], float]) -> float:
    return median(measure() for _ in range(ROUNDS))


def main() -> None:
    path = chromium()
    if path is None:
        raise SystemExit("Chromium is not installed.")
    with serve(PAGE) as site, sync_playwright() as playwright:
        browser = launch(playwright, path)
        print(f"first paint          {several(lambda: first_paint(browser, site)):7.2f} s   (under 2)")
        with visiting(browser, site) as visitor:
            floor = several(lambda: switch(visitor))
            print(f"rerun, empty page    {floor:7.0f} ms  (floor)")
            print(f"message to shown     {several(lambda: send(visitor)):7.0f} ms  (under 150)")
            print(f"approve to shown     {several(lambda: approve(visitor)):7.0f} ms  (under 150)")
        with visiting(browser, site) as visitor:
            fill(visitor, 20)
            at_20 = several(lambda: switch(visitor))
            fill(visitor, 180)
            at_200 = several(lambda: switch(visitor))
            print(f"approve, 200 messages{several(lambda: approve(visitor)):7.0f} ms  (under 150)")
            print(f"rerun, 20 messages   {at_20:7.0f} ms  {at_20 / floor:.2f} of the floor")
            print(f"rerun, 200 messages  {at_200:7.0f} ms  {at_200 / at_20:.2f} of 20 messages (flat)")
        browser.close()


if __name__ == "__main__":
    main()
