"""A model's answer as HTML that is inert: it loads nothing, leads nowhere and hides nothing.

CommonMark, less what could act. A tag comes from the closed table below, never from the text, and no
attribute holds anything of the text but the number a list starts with. Drawn as text: raw HTML, and
reference links, for their address would stand elsewhere or nowhere. Left out: the path and title of a
link, and what stands behind the opening of a code fence.
"""

import functools
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

import idna
from markdown_it import MarkdownIt
from markdown_it.token import Token

from agent.timeline import visible

MAX_CHARS = 100_000
MAX_SIGNS = 5_000
MAX_NESTING = 20
"""Deeper blocks the parser would drop without a word. A list in a list costs two."""
MAX_HOST_CHARS = 253
"""No longer name can be looked up."""
NO_ADDRESS = "no web address"

_SIGNS = "\n!&*:<[\\_`"
"""What costs the parser most: the most of them that may be take it about half a second."""

_TAGS: Mapping[str, str] = {
    "paragraph_open": "<p>",
    "paragraph_close": "</p>\n",
    "heading_open": '<p class="gl-h">',  # no h1 to h6: the page's own headings are its outline
    "heading_close": "</p>\n",
    "blockquote_open": "<blockquote>\n",
    "blockquote_close": "</blockquote>\n",
    "bullet_list_open": "<ul>\n",
    "bullet_list_close": "</ul>\n",
    "ordered_list_close": "</ol>\n",
    "list_item_open": "<li>",
    "list_item_close": "</li>\n",
    "hr": "<hr>\n",
    "em_open": "<em>",
    "em_close": "</em>",
    "strong_open": "<strong>",
    "strong_close": "</strong>",
    "softbreak": "\n",
    "hardbreak": "<br>\n",
}

# Where a hidden character belongs to the one before it, so that the reader does see it. No two of
# them ever stand together, and no tag characters: some flags are drawn as escapes.
_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_JOINING = "\u0620-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u17ff\u1820-\u18aa"  # Arabic to Mongolian
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U000323af"
_BELONGING = re.compile(
    f"((?<=[{_EMOJI}])[\ufe0e\ufe0f]|(?<=[0-9#*])\ufe0f(?=\u20e3)|(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])"
    f"|(?<=[{_JOINING}])[\u200c\u200d]|(?<=[\u1820-\u18aa])[\u180b-\u180d]"
    f"|(?<=[{_HAN}])[\U000e0100-\U000e01ef])"
)

# As a browser reads an address: any number of slashes, either way round, and unseen characters skipped.
_AUTHORITY = re.compile(r"(?:https?:[/\\]*|[/\\]{2})([^/\\?#]*)", re.IGNORECASE)
_SKIPPED = re.compile(r"^[\0- ]+|[\t\n\r]")
_PORT = re.compile(r":[0-9]*$")
_HOST = re.compile(r"[a-z0-9._\\-]+|\[[0-9a-f:.]+\]")


class _Parser(MarkdownIt):
    """Takes each link as it was written: none is followed, so the reader is to see every one of them."""

    def validateLink(self, url: str) -> bool:
        return True

    def normalizeLink(self, url: str) -> str:
        return url

    def normalizeLinkText(self, link: str) -> str:
        return link


@functools.cache
def _parser() -> MarkdownIt:
    # One level more than is drawn: where the parser drops what is deeper, it is seen to be too deep.
    parser = _Parser("commonmark", {"html": False, "linkify": False, "maxNesting": MAX_NESTING + 1})
    parser.disable("reference")
    # The parser completes itself at first use, and not safely: another thread would find it half done.
    parser.parse("*warm*")
    return parser


def to_html(text: str) -> str:
    """One `div.gl-answer` for `st.html`, whatever the text is; it can be encoded as UTF-8.

    What is too long, too deep or too full of signs to be parsed at once stands there as it was written.
    Behind a link or an image stands its host in a `span.gl-host`, which no text can make.
    """
    tokens = _tokens(text)
    body = f'<pre tabindex="0">{_escaped(text)}</pre>' if tokens is None else "".join(map(_block, tokens))
    return f'<div class="gl-answer" dir="auto">{body}</div>'


def _tokens(text: str) -> list[Token] | None:
    """None where a bound is hit."""
    if len(text) > MAX_CHARS or sum(map(text.count, _SIGNS)) > MAX_SIGNS:
        return None
    tokens = _parser().parse(text)
    return None if any(token.level >= MAX_NESTING for token in tokens) else tokens


def _block(token: Token) -> str:
    if token.hidden:  # the paragraph in an item of a tight list
        return "\n"
    match token.type:
        case "inline":
            return "".join(_inline(token.children or ()))
        case "fence" | "code_block":
            # A long line makes it scroll, and without a tab stop only for a mouse.
            return f'<pre dir="ltr" tabindex="0"><code>{_escaped(token.content)}</code></pre>\n'
        case "ordered_list_open":
            return f'<ol start="{int(token.attrs.get("start", 1))}">\n'
        case _:
            return _TAGS.get(token.type) or _escaped(token.content)


def _inline(tokens: Sequence[Token]) -> Iterator[str]:
    opened = 0
    for at, token in enumerate(tokens):
        match token.type:
            case "code_inline":
                yield f'<code dir="ltr">{_escaped(token.content)}</code>'
            case "image":
                alt = token.children or ()
                yield from _inline(alt)
                yield _target(str(token.attrGet("src")), alt)
            case "link_open":
                opened = at
            case "link_close":
                yield _target(str(tokens[opened].attrGet("href")), tokens[opened:at])
            case _:
                yield _TAGS.get(token.type) or _escaped(token.content)


def _target(address: str, drawn: Sequence[Token]) -> str:
    """Where a link leads, unless just that is drawn already."""
    shown = "".join(token.content for token in drawn)
    host = host_of(address)
    if shown and (shown == host or (shown == address and _is_plain(address, host))):
        return ""
    # A direction of its own: Hebrew or Arabic beside it must not turn the parts of a host around.
    return f' <span class="gl-host" dir="ltr">({host or NO_ADDRESS})</span>'


def _is_plain(address: str, host: str | None) -> bool:
    """Whether the eye finds the host where it looks for it: no name before it, no other letters."""
    return address.split("/", 3)[2:3] == [host]


def host_of(address: str) -> str | None:
    """The host a browser would ask, in ASCII; None if it is no web address or no browser would.

    Without name, password and port. Letters beyond ASCII become punycode, or escapes where that is
    not defined for them. Never cut: who owns a name stands at its end.
    """
    found = _AUTHORITY.match(_SKIPPED.sub("", address))
    if found is None:
        return None
    name = _PORT.sub("", unquote(found[1].rpartition("@")[2]))
    if len(name) > MAX_HOST_CHARS:
        return None
    host = _ascii(name).lower()
    return host if _HOST.fullmatch(host) else None


def _ascii(name: str) -> str:
    if name.isascii():
        return name
    try:
        return idna.encode(name, uts46=True).decode()
    except UnicodeError:
        return name.encode("ascii", "backslashreplace").decode()


def readable(text: str) -> str:
    """Hidden characters as escapes, but for those that belong to the letter or emoji before them."""
    parts = _BELONGING.split(text)
    return "".join(part if at % 2 else visible(part) for at, part in enumerate(parts))


def _escaped(text: str) -> str:
    return html.escape(readable(text))
