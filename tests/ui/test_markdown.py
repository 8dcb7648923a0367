"""A model's answer as HTML: what loads or acts is not there, what is said is."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.ui.markdown import MAX_CHARS, MAX_SIGNS, host_of, to_html

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "div": {"class", "dir"},
    "span": {"class", "dir"},
    "p": {"class"},
    "pre": {"dir", "tabindex"},
    "code": {"dir"},
    "ol": {"start"},
    **{tag: set[str]() for tag in ("ul", "li", "blockquote", "em", "strong", "br", "hr")},
}
VALUES = {
    "class": re.compile("gl-(answer|h|host)"),
    "dir": re.compile("auto|ltr"),
    "tabindex": re.compile("0"),
    "start": re.compile("[0-9]{1,9}"),
}
VOID = {"br", "hr"}


class Inert(HTMLParser):
    """Reads HTML, and fails at a tag, an attribute or a value that is not on the list, or not closed."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.hosts: list[str] = []
        self.text = ""
        self.feed(markup)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert self.open or (tag == "div" and self.text == ""), "one element holds it all"
        for name, value in attrs:
            assert name in ALLOWED[tag]
            assert VALUES[name].fullmatch(value or "")
        if tag == "span":
            self.hosts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert self.open
        self.text += data
        if self.open[-1] == "span":
            self.hosts[-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError("a declaration")

    def handle_pi(self, data: str) -> None:
        raise AssertionError("an instruction")


def read(markdown: str) -> Inert:
    markup = to_html(markdown)
    markup.encode("utf-8")
    return Inert(markup)


def text_of(markdown: str) -> str:
    return " ".join(read(markdown).text.split())


def body(markdown: str) -> str:
    markup = to_html(markdown)
    return markup.removeprefix('<div class="gl-answer" dir="auto">').removesuffix("</div>").strip()


def plain(shown: str) -> str:
    return f'<pre tabindex="0">{shown}</pre>'


@pytest.mark.parametrize(
    ("markdown", "markup"),
    [
        ("", ""),
        ("a\nb", "<p>a\nb</p>"),
        ("a  \nb\\\nc", "<p>a<br>\nb<br>\nc</p>"),
        ("**a** _b_ `<c>`", '<p><strong>a</strong> <em>b</em> <code dir="ltr">&lt;c&gt;</code></p>'),
        ("# a\n\nb\n=\n\n###### c", '<p class="gl-h">a</p>\n<p class="gl-h">b</p>\n<p class="gl-h">c</p>'),
        ("- a\n- b", "<ul>\n<li>\na\n</li>\n<li>\nb\n</li>\n</ul>"),
        ("- a\n\n- b", "<ul>\n<li><p>a</p>\n</li>\n<li><p>b</p>\n</li>\n</ul>"),
        ("1. a", '<ol start="1">\n<li>\na\n</li>\n</ol>'),
        ("0) a", '<ol start="0">\n<li>\na\n</li>\n</ol>'),
        ("123456789. a", '<ol start="123456789">\n<li>\na\n</li>\n</ol>'),
        ("1234567890. a", "<p>1234567890. a</p>"),
        ("> a", "<blockquote>\n<p>a</p>\n</blockquote>"),
        ("---", "<hr>"),
        ("    a", '<pre dir="ltr" tabindex="0"><code>a\n</code></pre>'),
        ("```python\na\n```", '<pre dir="ltr" tabindex="0"><code>a\n</code></pre>'),
        ("```x\" onload=a class='b\na", '<pre dir="ltr" tabindex="0"><code>a</code></pre>'),
        ("~~~mermaid\ngraph TD;\n~~~", '<pre dir="ltr" tabindex="0"><code>graph TD;\n</code></pre>'),
        ("&amp;lt; & \" '", "<p>&amp;lt; &amp; &quot; &#x27;</p>"),
        ("[a](http://b.c)", '<p>a <span class="gl-host" dir="ltr">(b.c)</span></p>'),
    ],
)
def test_markup(markdown: str, markup: str) -> None:
    assert body(markdown) == markup


@pytest.mark.parametrize(
    "markdown",
    [
        "<img src=http://h/x.png>",
        "<img src=x onerror=alert(1)>",
        "<script>alert(1)</script>",
        "<svg/onload=alert(1)>",
        "<style>body{display:none}</style>",
        "<div style='position:fixed'>*a*</div>",
        "<div>\n</div></div></div>",
        '<a href="javascript:alert(1)">a</a>',
        "<iframe srcdoc='<script>'>",
        "<!-- a -->",
        "<!DOCTYPE html><?php ?><![CDATA[a]]>",
        "</div></div><form action=//h><input name=q>",
        "&lt;img src=http://h/x.png&gt;",
        "&#60;img src=http://h/x.png&#62;",
        "`<img src=http://h/x.png>`",
        "# <img src=http://h/x.png>",
        '```"><img src=http://h/x.png>\n<img src=http://h/x.png>\n',
        '[a](http://h/"onmouseover="alert(1) "t\\" onclick=\\"b")',
        '![a"onerror="alert(1)](http://h/x.png "t\\" onload=\\"b")',
        "[a](<http://h/><img src=x>)",
        "a</p><p id=stApp class=stButton style=color:red>",
    ],
)
def test_raw_html_is_text(markdown: str) -> None:
    assert not re.search(r"<(img|script|svg|style|a|iframe|form|input|h[1-6])\b|<!|<\?", to_html(markdown))
    read(markdown)


def test_markdown_within_raw_html_is_still_markdown() -> None:
    assert body("<div>*a*</div>") == "<p>&lt;div&gt;<em>a</em>&lt;/div&gt;</p>"


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("![a](http://h.example/x.png?q=secret)", "a (h.example)"),
        ("![](https://h.example/x.png)", "(h.example)"),
        ("![a *b* `c`](//h.example/x.png 'title')", "a b c (h.example)"),
        ("![a\\\nb](http://h.example)", "a b (h.example)"),
        ("![a](/x.png)", "a (no web address)"),
        ("![a](data:image/png;base64,AAAA)", "a (no web address)"),
        ("![http://h.example/x](http://h.example/x)", "http://h.example/x"),
        ("[![a](http://b.example/x)](http://c.example)", "a (b.example) (c.example)"),
        ("![a [b](http://b.example)](http://c.example)", "a b (b.example) (c.example)"),
        ("```\nb\n```\n![a](http://h.example/x.png)\n```", "b a (h.example)"),
        ("![a][r]\n\n[r]: http://h.example/x.png", "![a][r] [r]: http://h.example/x.png"),
        ("![r]\n\n[r]: //h.example/x.png 'title'", "![r] [r]: //h.example/x.png 'title'"),
    ],
)
def test_an_image_is_its_alternative_and_the_host(markdown: str, shown: str) -> None:
    assert text_of(markdown) == shown


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("[a](https://h.example/p?q#f)", "a (h.example)"),
        ("[a](//h.example/p)", "a (h.example)"),
        ("[https://bank.example](http://evil.example)", "https://bank.example (evil.example)"),
        ("[bank.example](http://bank.example@evil.example)", "bank.example (evil.example)"),
        ("[bank.example (bank.example)](http://evil.example)", "bank.example (bank.example) (evil.example)"),
        ("[](http://evil.example)", "(evil.example)"),
        ("[h.example](https://h.example/p)", "h.example"),
        ("[https://h.example/p](https://h.example/p)", "https://h.example/p"),
        ("[h.example h.example](https://h.example)", "h.example h.example (h.example)"),
        ("[**h.example**](https://h.example)", "h.example"),
        ("<https://h.example/p>", "https://h.example/p"),
        ("<http://bank.example@evil.example/>", "http://bank.example@evil.example/ (evil.example)"),
        ("<http://a.bank@a/>", "http://a.bank@a/ (a)"),
        ("<http://р.example/>", "http://р.example/ (xn--p1a.example)"),
        ("<http://xn--e1afmkfd.example/%41>", "http://xn--e1afmkfd.example/%41"),
        ("[https://h.example/é](https://h.example/é)", "https://h.example/é"),
        ("<http:evil.example/>", "http:evil.example/ (evil.example)"),
        ("<a@h.example>", "a@h.example (no web address)"),
        ("<javascript:alert(1)>", "javascript:alert(1) (no web address)"),
        ("[a](javascript:alert(1))", "a (no web address)"),
        ("[a](data:text/html,b)", "a (no web address)"),
        ("[a](mailto:b@h.example)", "a (no web address)"),
        ("[a](/p) [b](p.md) [c](#f) [d]() [e](?q)", " ".join(f"{x} (no web address)" for x in "abcde")),
        ("[a][r] [r]\n\n[r]: http://h.example", "[a][r] [r] [r]: http://h.example"),
        ("https://h.example www.h.example a@h.example", "https://h.example www.h.example a@h.example"),
    ],
)
def test_a_link_is_its_text_and_the_host(markdown: str, shown: str) -> None:
    assert text_of(markdown) == shown


def test_the_host_stands_where_no_text_can_stand() -> None:
    assert read("[bank.example (bank.example)](http://evil.example)").hosts == ["(evil.example)"]
    assert read('<span class="gl-host">(bank.example)</span>').hosts == []


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("HTTP://Evil.Example", "evil.example"),
        ("http://user:pass@evil.example:8080/", "evil.example"),
        ("http://a@b@evil.example", "evil.example"),
        ("http://bank.example\\@evil.example", "bank.example"),
        ("http:\\\\evil.example\\p", "evil.example"),
        ("/\\evil.example", "evil.example"),
        ("https:///evil.example", "evil.example"),
        ("ht\ttp\n://evil.example", "evil.example"),
        ("\x01 http://evil.example", "evil.example"),
        ("http://bank.example?@evil.example", "bank.example"),
        ("http://bank.example#@evil.example", "bank.example"),
        ("http://%65vil.example", "evil.example"),
        ("http://evil%E2%80%8B.example", "evil.example"),
        ("http://раypal.example", "xn--ypal-43d9g.example"),
        ("http://straße.example", "xn--strae-oqa.example"),
        ("http://ｅｖｉｌ。example", "evil.example"),
        ("http://bank.example＠evil.example", "bank.example\\uff20evil.example"),
        ("http://i❤.example", "i\\u2764.example"),
        ("http://\ud800.example", "\\ud800.example"),
        ("http://[::1]:80/", "[::1]"),
        ("http://127.0.0.1:8501", "127.0.0.1"),
        ("http://2130706433", "2130706433"),
        ("http://" + "a." * 126 + "b", "a." * 126 + "b"),
        ("http://" + "a." * 127 + "b", None),
        ("http://", None),
        ("http://@", None),
        ("http://a b", None),
        ("http://a%2fb", None),
        ("http://a<b", None),
        ("ftp://h.example", None),
        ("javascript://h.example/%0aalert(1)", None),
        ("view-source:http://h.example", None),
        ("", None),
        ("h.example", None),
    ],
)
def test_the_host_is_the_one_a_browser_would_ask(address: str, host: str | None) -> None:
    assert host_of(address) == host


@pytest.mark.parametrize(
    "text", [":material/lock:", ":red[a]{b}", ":smile: :shield-badge[a]", "$\\color{white}$", "$$a$$ \\(b\\)"]
)
def test_what_streamlit_would_add_is_text(text: str) -> None:
    assert text_of(text) == text.replace("\\(", "(").replace("\\)", ")")


ESCAPED = (
    "\0\x1b\x7f\x85\xad\u034f\u061c\u200b\u200c\u200d\u200e\u200f\u2028\u202a\u202e\u2060\u2066\u2069\u3164"
    "\ufe00\ufe0f\ufeff\ue000\ud800\udfff\U000e0001\U000e0041\U000e0100\U000f0000"
)
PLACES: list[Callable[[str], str]] = [
    "a{}b".format,
    "`a{}b`".format,
    "    a{}b".format,
    "[a{}b](http://h)".format,
    "![a{}b](http://h)".format,
    ("> " * 30 + "a{}b").format,
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("character", ESCAPED, ids=ascii)
def test_hidden_characters_are_escapes(character: str, place: Callable[[str], str]) -> None:
    drawn = text_of(place(character))
    escape = character.encode("unicode_escape").decode()
    assert f"a{escape}b" in drawn or (character == "\0" and "a\ufffdb" in drawn)


@pytest.mark.parametrize("reference", ["&#x202e;", "&#8238;", "&ZeroWidthSpace;", "&shy;", "&#xe0041;"])
def test_hidden_characters_by_reference_are_escapes(reference: str) -> None:
    assert re.search(r"a\\[xuU][0-9a-f]+b", text_of(f"a{reference}b"))


@pytest.mark.parametrize(
    "text",
    [
        *("👩\u200d💻", "👨🏽\u200d🦰", "🏳\ufe0f\u200d🌈", "❤\ufe0f\u200d🔥", "👨\u200d👩\u200d👧\u200d👦"),
        *("1\ufe0f\u20e3", "#\ufe0f\u20e3", "☺\ufe0e", "©\ufe0f", "🙂\u200d↔\ufe0f", "🇮🇷"),
        *("می\u200cخواهم", "ه\u200d.", "क्\u200dष", "ශ්\u200dරී", "ന്\u200d", "葛\U000e0100城", "ᠠ\u180bᠡ"),
    ],
)
def test_emoji_and_scripts_stay_whole(text: str) -> None:
    assert text_of(text) == text
    assert text_of(f"*{text}* `{text}`") == f"{text} {text}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("می\u200c\u200cخ", "می\u200c\\u200cخ"),
        ("👩\u200da", "👩\\u200da"),
        ("a\ufe0f", "a\\ufe0f"),
        ("😀\ufe0f\ufe0f\U000e0121", "😀\ufe0f\\ufe0f\\U000e0121"),
        ("1\ufe0f2", "1\\ufe0f2"),
        ("葛\U000e0100\U000e0101", "葛\U000e0100\\U000e0101"),
        ("🏴\U000e0067\U000e007f", "🏴\\U000e0067\\U000e007f"),
    ],
)
def test_no_more_than_belongs_there_stays_hidden(text: str, shown: str) -> None:
    assert text_of(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "> " * 20 + "a",
        ">" * 10_000 + "a",
        "\n".join("  " * depth + "- a" for depth in range(10)),
        "[" * 10_000,
        "<b>" * (MAX_SIGNS + 1),
        "a*" * (MAX_SIGNS + 1),
        "a" * (MAX_CHARS + 1),
    ],
    ids=range(7),
)
def test_beyond_a_bound_the_text_stands_as_it_was_written(text: str) -> None:
    assert body(text) == plain(text.replace("<", "&lt;").replace(">", "&gt;"))


def test_up_to_the_bounds_it_is_markdown() -> None:
    assert not body("> " * 18 + "a").startswith("<pre")
    assert not body("a*" * MAX_SIGNS).startswith("<pre")
    assert not body("a" * MAX_CHARS).startswith("<pre")


ROUND = (
    *("[", "![", "*", "_", "> ", ">", "`", "*a _", "![](", "[a](", "<", "&", "\\", "- ", "- a\n", "a\n"),
    *("![*", "[a](<b", "<a:b>", "# a\n", ">a\n- a\n", "](", "[a](http://é.c/", "!", "~~~\n", "\u200b", "a"),
    *("![](![", "\n- {"),
)


@pytest.mark.parametrize("part", ROUND, ids=ascii)
def test_no_text_takes_long(part: str) -> None:
    signs = max(sum(map(part.count, "\n!&*:<[\\_`")), 1)
    for times in (MAX_SIGNS // signs, 10_000, MAX_CHARS // len(part)):
        began = time.process_time()
        to_html((part * times)[:MAX_CHARS])
        assert time.process_time() - began < 2  # a tenth to a third of that was measured


def test_the_first_answers_may_come_at_once() -> None:
    code = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from agent.ui import markdown
sys.setswitchinterval(1e-6)
with ThreadPoolExecutor(4) as pool:
    for _ in range(200):
        markdown._parser.cache_clear()
        markdown._parser()
        gate = threading.Barrier(4)
        def first(number):
            gate.wait()
            return markdown.to_html("*a* `b`")
        assert len(set(pool.map(first, range(4)))) == 1
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


FRAGMENTS = (
    *(
        "*",
        "**",
        "_",
        "`",
        "``",
        "[",
        "]",
        "](http://h.example)",
        "](",
        ")",
        "![",
        "![a](//h.example/x)",
        "!",
    ),
    *(
        "\n",
        "\n\n",
        "    ",
        "- ",
        "1. ",
        "> ",
        "# ",
        "---",
        "===",
        "```",
        "~~~",
        "\\",
        "&lt;",
        "&#x202e;",
        "&",
    ),
    *("<", ">", "<img src=x onerror=a>", "</div>", "<!--", "-->", "<script>", '"', "'", "<http://h.example>"),
    *("javascript:a", "data:b", "[r]: //h.example\n", "[a][r]", ":red[", "$", "\t", "\r", "\0", "\ud800"),
    *("\u202e", "\u200d", "👩", "می", "|", "= style=x href=y", "<a@h.example>", "://", "@", "%41", "é"),
)
pieces = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=40).map("".join)
words = st.from_regex(r"[a-z]{3,9}[0-9]{3}", fullmatch=True)


@settings(max_examples=400, deadline=None)
@given(st.text(st.characters(exclude_categories=())) | pieces)
def test_any_text_is_inert(text: str) -> None:
    read(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces | words, max_size=8))
def test_each_paragraph_that_is_a_word_is_read(blocks: list[str]) -> None:
    shown = read("\n\n".join(blocks)).text
    assert [block for block in blocks if re.fullmatch(r"[a-z]+[0-9]{3}", block) and block not in shown] == []


# A word may be left out only where it is an address, a title or behind a fence.
loud = [part for part in FRAGMENTS if not set(part) & set("(<`~&") and part != "%41"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(loud) | words, max_size=40))
def test_each_word_is_read(parts: list[str]) -> None:
    text = " ".join(parts)
    shown = read(text).text
    assert [word for word in re.findall(r"[a-z]{3,9}[0-9]{3}", text) if word not in shown] == []
