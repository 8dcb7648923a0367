# ruff: noqa: E501 (texts and scripts that a line break would change)
"""Hostile text in every shape known, a server that counts who follows it, and what it became on a page."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from playwright.sync_api import Page

from tests.browser.visits import Talks
from tests.endpoint import Completion, answer, chunks, completion
from tests.model.server import chunked, events

HOLD_S = 20.0
MARK = "glprobe"
"""In every address of a probe, so that it is found in any request."""

# --- the server that nobody may ask -------------------------------------------------------------


@dataclass
class Trap:
    """A loopback server. It answers everything with a picture, and keeps what it was asked for."""

    port: int = 0
    asked: list[str] = field(default_factory=list[str])

    def url(self, tag: str) -> str:
        return f"http://127.0.0.1:{self.port}/{MARK}/{tag}"


@contextmanager
def trapping() -> Generator[Trap]:
    trap = Trap()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            trap.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "image/svg+xml")
            self.end_headers()
            self.wfile.write(b'<svg xmlns="http://www.w3.org/2000/svg"/>')

        do_GET = do_HEAD = do_POST = do_OPTIONS = _answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with _listening(Handler) as port:
        trap.port = port
        yield trap


# --- the model behind the page ------------------------------------------------------------------


def refuses(text: str) -> Completion:
    return completion({"role": "assistant", "content": None, "refusal": text}, "stop")


def fails(message: str) -> Completion:
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error"}})
    return {"_status": 400, "_headers": {}, "_body": body}


def held(reply: Completion, until: Event) -> Completion:
    """A reply that is streamed up to its end, which comes when `until` is set."""
    return {**reply, "_until": until}


@contextmanager
def telling() -> Generator[Talks]:
    """A model's endpoint that can refuse, and hold a stream open."""
    talks = Talks()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = talks.reply(body)
            if "_until" in reply:
                whole = list(chunks(reply))
                start, said, *rest = chunked([events(whole[:-2], done=False), events(whole[-2:])]).pieces
                self.wfile.write(start + said)
                self.wfile.flush()
                reply["_until"].wait(HOLD_S)
                self.wfile.write(b"".join(rest))
                return
            stream = "_status" not in reply and not reply["choices"][0]["message"].get("refusal")
            self.wfile.write(b"".join(answer(reply, stream=stream).pieces))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with _listening(Handler) as port:
        talks.port = port
        yield talks


@contextmanager
def _listening(handler: type[BaseHTTPRequestHandler]) -> Generator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


# --- hostile text -------------------------------------------------------------------------------

BIDI = "\u202etxet neddih\u202c \u2066isolated\u2069 \u200fmarks\u200e \u061cletter"
TAGS = "".join(chr(0xE0000 + ord(letter)) for letter in "approve")
HIDDEN = f"{BIDI} zero\u200bwidth \u2060joined \ufeffbom soft\u00adhyphen tags{TAGS} line\u2028para\u2029end"
CONTROLS = "\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link bell\x07 back\x08 del\x7f c1\x9b"
LONG_WORD = "W" * 10_000


def pictures(url: str) -> str:
    """What was seen to load without a click, or to become a link, in Streamlit's own markdown."""
    bare = url.removeprefix("http:")
    return f"""
![picture]({url}1.png) ![titled]({url}2.png "title") ![by name][probe] [![linked]({url}3.png)]({url}4)
![no scheme]({bare}5.png) ![same site](/{MARK}/6.png) ![data](data:image/svg+xml,{MARK})
[link]({url}7 "title") [script](javascript:alert({MARK})) [data](data:text/html,{MARK}) <{url}8> {url}9
www.{MARK}.example someone@{MARK}.example [by name][probe] [probe]

[probe]: {url}10.png "title"

```
code
```
![after a fence]({url}11.png)
````mermaid
graph TD; A[{MARK}] --> B; click A "{url}12"
```
![in a longer fence]({url}13.png)
````
| ![cell]({url}14.png) | b |
|---|---|
| :material/check_circle: | :red[**red**] |

:material/check_circle: :green-badge[:material/check: Completed] :red-background[x] :small[x] :streamlit:
$\\href{{{url}15}}{{link}}$ $$\\includegraphics{{{url}16.png}}$$ $\\color{{white}}hidden$ $\\huge H$
:red[a]{{background:url({url}17.png)}} :smile: :warning: :heavy_check_mark: <!-- comment --> -> ~~struck~~
"""


def tags(url: str) -> str:
    """Raw HTML, each tag that loads, runs, asks or only looks like a part of the page."""
    return f"""
<img src="{url}20.png" srcset="{url}21.png 2x" onerror="fetch('{url}22')"><img src=x onerror=fetch('{url}23')>
<script src="{url}24.js"></script><script>fetch('{url}25')</script><svg onload="fetch('{url}26')"><image \
href="{url}27.png"/><use href="{url}28.svg#x"/></svg><iframe src="{url}29" srcdoc="<img src='{url}30'>"></iframe>
<style>@import "{url}31.css"; body {{ background: url({url}32.png) }} .gl-card {{ display: none }}</style>
<link rel="stylesheet" href="{url}33.css"><link rel=prefetch href="{url}34"><link rel=dns-prefetch href="{url}35">
<meta http-equiv="refresh" content="0;url={url}36"><base href="{url}37/"><form action="{url}38"><input \
type=image src="{url}39.png"><button formaction="{url}40" autofocus>Approve</button></form>
<details open ontoggle="fetch('{url}41')"><summary>Tools</summary>x</details><dialog open>Approve</dialog>
<video poster="{url}42.png" src="{url}43"><source src="{url}44"><track src="{url}45"></video><audio src="{url}46">
<object data="{url}47"></object><embed src="{url}48"><a href="{url}49" ping="{url}50">Approve</a><marquee>x
<div style="position:fixed;inset:0;background:url({url}51.png)">over it all</div><table background="{url}52.png">
<math><mtext><table><mglyph><style><img src="{url}53.png"></style></mglyph></table></mtext></math>
<noscript><img title="</noscript><img src={url}54.png>"></noscript><template><img src="{url}55.png"></template>
</p></div></section></body></html><img src="{url}56.png"> &lt;img src="{url}57.png"&gt; &#60;img src={url}58&#62;
"""


def costumes(url: str) -> str:
    """What would pass for the program's own words, if it could be drawn as they are."""
    return f"""
<div class="st-key-card_x stVerticalBlock"><div class="gl-card"><div class="gl-card-top"><strong>Waiting for \
you</strong><span class="gl-risk">changes data</span><span class="gl-chip gl-call1">c1</span></div></div></div>
**Waiting for you** `changes data` `c1`

Save one note to your notes.

    text: "harmless"

[Approve]({url}60) [Deny]({url}61) [Edit]({url}62) <div role="button" tabindex="0">Approve</div>
<div class="gl-outcome" role="status"><span class="gl-outcome-state">Completed</span></div>
<div class="gl-on" role="listitem" aria-current="step">Completed</div> <span class="gl-ledger">ran once</span>
<span style="color:green">✓ approved aaaa bbbb · ran aaaa bbbb · the same</span> ✅ **Completed** 🔍 [ Approve ]

| The model says | The program did |
|---|---|
| “x” | c1 write_note ran once |

{{"type": "button", "label": "Approve", "delta": {{"newElement": {{"markdown": {{"body": "![x]({url}63.png)"}}}}}}}}
{{"lone": "\\ud800", "pair": "\\ud83d\\ude00", "zero": "\\u0000"}} %s {{0}} {{text}} ${{x}} {{{{x}}}} \\u003cimg src=x\\u003e
"""


def nested(url: str) -> str:
    """Blocks in blocks, deeper than any parser follows."""
    return f"{'> ' * 60}![deep]({url}70.png)\n\n{'- ' * 60}<img src={url}71.png>\n\n{'[' * 200}{'*_' * 200}"


def everything(url: str) -> str:
    return f"{pictures(url)}\n{tags(url)}\n{costumes(url)}\n{HIDDEN} {CONTROLS}"


def in_brief(url: str) -> str:
    """A picture, a tag, an address and an icon in some 120 characters."""
    bare = url.removeprefix("http:")
    return f"![]({bare}a)<img src={bare}b>{url}c :material/check::red[x]$x$`"


# --- what became of it --------------------------------------------------------------------------

_CENSUS = """() => {
  const INERT = '.gl-answer, [data-testid=stText], [data-testid=stCode] code, textarea';
  const classes = (e) => [...e.classList].filter((c) => /^(gl|st-key)-/.test(c))
    .map((c) => c.replace(/^(st-key-[a-z]+)_.*/, '$1'));
  const named = (e) => [e.localName, e.getAttribute('role') ?? '', e.dataset.testid ?? '', ...classes(e)].join(' ');
  const bones = [], inside = [];
  const walk = (e, depth) => {
    if (e.localName === 'wbr') return;
    bones.push(`${depth} ${named(e)}`);
    if (e.matches(INERT)) {
      for (const inner of e.querySelectorAll('*')) {
        const attributes = [...inner.attributes].map((a) => `${a.name}=${a.value}`);
        inside.push([e.matches('.gl-answer') ? 'answer' : e.localName, inner.localName, attributes]);
      }
    } else if (e.localName !== 'svg') {
      for (const child of e.children) walk(child, depth + 1);
    }
  };
  for (const root of document.querySelectorAll('[data-testid=stSidebar], [data-testid=stMain]')) walk(root, 0);
  const texts = [];
  const read = (n) => {
    if (n.nodeType === 3) texts.push(n.data);
    else if (n.nodeType === 1 && !['TEXTAREA', 'STYLE', 'SCRIPT'].includes(n.tagName.toUpperCase())) {
      for (const a of n.attributes) texts.push(a.value);
      n.childNodes.forEach(read);
    }
  };
  read(document.body);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const astray = (selector, home) => all(selector).filter((e) => !e.parentElement.closest(home)).map(named);
  const guests = (selector) => all(selector).filter((e) => e.closest('[data-testid=stChatMessage]')).map(named);
  return {
    bones, inside, text: texts.join('\\n'),
    alive: [...document.body.querySelectorAll('a:not([data-testid=stSkipToContent]), area, img, picture, iframe, form, video, audio, object, embed, ' +
      'base, link, meta, dialog, marquee, math, canvas, [ping], [background], [srcdoc]')].map(named),
    astray: [
      ...guests('[class*="gl-"]:not(.gl-answer, .gl-answer *), [class*="st-key-"]'),
      ...guests('button, input, textarea, [role]:not([data-testid=stChatMessageContent])'),
      ...astray('[class*="st-key-decision_"], [class*="st-key-edited_"]', '[class*="st-key-card_"]'),
      ...astray('.gl-states, .gl-meters, .gl-seq, .gl-gates', '.st-key-protocol'),
      ...astray('.gl-ended, .gl-ledger, .gl-did', '.st-key-protocol, .st-key-conversation'),
      ...astray('.gl-answer, [data-testid=stText]', '[data-testid=stChatMessage]'),
    ],
  };
}"""

_WIDTHS = """() => {
  const main = document.querySelector('[data-testid=stMain]');
  const wide = [...document.querySelectorAll('[class*="st-key-card_"] button, [class*="st-key-card_"], .gl-box')]
    .map((e) => [e, e.getBoundingClientRect()])
    .filter(([, box]) => box.width > 0 && (box.left < 0 || box.right > innerWidth + 0.5))
    .map(([e, box]) => `${e.className} ${box.left} ${box.right}`);
  return [document.documentElement.scrollWidth - innerWidth, main.scrollWidth - main.clientWidth, wide];
}"""

Inside = tuple[str, str, list[str]]


@dataclass(frozen=True)
class Census:
    """A page, as far as text could have changed it.

    `bones` are its elements in order, but for those inside of what holds a stranger's text; `inside` are
    these. `text` is all text and all attributes; `alive` is what loads or leads away, wherever it stands;
    `astray` what looks like the program's and stands where the program puts none.
    """

    bones: list[str]
    inside: list[Inside]
    text: str
    alive: list[str]
    astray: list[str]


def census(page: Page) -> Census:
    return Census(**page.evaluate(_CENSUS))


def widths(page: Page) -> tuple[int, int, list[str]]:
    """By how much the document and its scrolled part are too wide, and what stands out at the sides."""
    return tuple(page.evaluate(_WIDTHS))
