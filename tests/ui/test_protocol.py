"""The protocol column: what is drawn says what the record says, and a stranger's text stays text."""

import re
import string
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest

from agent import Limits, State
from agent.gates import GATES
from agent.model import Usage
from agent.model.scripted import Step
from agent.record import RequestFailed, RequestSent
from agent.state import RunState, replayed
from agent.timeline import Deed, Judged, Lane, RowKind, ahead, judged, ledger, rows, visible
from agent.ui import protocol
from agent.ui.style import CSS, PALETTE
from agent.ui.texts import ENGLISH
from agent.words import ENDS
from tests.support import Counter, Setup, asks, call, make_tool
from tools.base import ToolError

ROOT = Path(__file__).parents[2]
EVIL = "<img src=x onerror=alert(1)>\"'><b style=color:red>{t}{0} &amp; \u202e\u200b\x07"
TAGS = {"div", "span", "wbr"}
ATTRIBUTES = {"class", "title", "role", "aria-label", "aria-current", "aria-hidden"}


class Drawn(HTMLParser):
    """Parsed HTML: the elements with their attributes, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag != "wbr":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def classes(self) -> set[str]:
        return {name for _, attributes in self.elements for name in attributes.get("class", "").split()}

    def all(self, name: str) -> list[dict[str, str]]:
        """The attributes of each element of this class."""
        return [a for _, a in self.elements if name in a.get("class", "").split()]


def late(arguments: dict[str, Any]) -> Any:
    raise ToolError("upstream", "The other side failed.")


def approved() -> Setup:
    s = Setup(asks(call("w", "note", {"text": "a"}), text="I save it."), "I saved it.")
    s.ask()
    s.decide()
    s.proceed()
    return s


def edited() -> Setup:
    s = Setup(asks(call("w", "note", {"text": "a"})), "I saved it.")
    s.ask()
    s.decide(arguments={"text": "b"})
    s.proceed()
    return s


def denied() -> Setup:
    s = Setup(asks(call("w", "note", {"text": "a"})), "I saved it.")
    s.ask()
    s.decide(approve=False, reason=EVIL)
    s.proceed()
    return s


def waiting() -> Setup:
    two = asks(call("w", "note", {"text": "a"}), call("v", "note", {"text": "a"}))
    s = Setup(asks(call("r", "look", {"text": "x"})), two)
    s.ask()
    return s


def expired() -> Setup:
    s = waiting()
    s.clock.advance(s.agent.limits.approval_s + 1)
    s.proceed()
    return s


def bad_json() -> Setup:
    s = Setup(asks(call("1", "add", "{")), asks(call("2", "add", "[")), "Sorry.")
    s.ask()
    return s


def failing() -> Setup:
    s = Setup(asks(call("1", "fails", {"text": "x"}), call("2", "add", {"a": 1, "b": 2})), "It failed.")
    s.rebuild(make_tool("fails", Counter(late), "write"))
    s.ask()
    s.decide()
    s.proceed()
    return s


def many() -> Setup:
    calls = [call(f"n{n}", "add", {"a": n, "b": 1}) for n in range(9)]
    s = Setup(asks(*calls), "done")
    s.ask()
    return s


def no_model() -> Setup:
    s = Setup(ConnectionError(EVIL), limits=Limits(max_requests=1))
    s.ask()
    return s


def third_party() -> Setup:
    s = Setup(asks(call("h", "far", {"text": "x"})), "done")
    s.rebuild(replace(make_tool("far", Counter(), "read"), host="example.org"))
    s.ask()
    s.decide()
    s.proceed()
    return s


def hostile() -> Setup:
    name = "x" * 20 + EVIL
    steps: list[Step] = [
        asks(call(EVIL, EVIL, {"text": EVIL}), call("<b>", name, EVIL), text=EVIL),
        asks(call('"><i>', "note", {"text": EVIL}), call("ok", "look", {"text": EVIL})),
        EVIL * 20,
    ]
    s = Setup(*steps)
    s.ask(EVIL)
    s.decide(reason=EVIL)
    s.proceed()
    return s


SCENES: tuple[Callable[[], Setup], ...] = (
    approved,
    edited,
    denied,
    waiting,
    expired,
    bad_json,
    failing,
    many,
    no_model,
    third_party,
    hostile,
)


def marks_of(run: RunState) -> Mapping[str, int]:
    return {call_id: number for number, call_id in enumerate(run.calls, 1)}


def sequence_of(s: Setup, lit: bool = True) -> str:
    events = s.run.events
    sizes = {e.number: len(s.agent.request_messages(e)) for e in events if isinstance(e, RequestSent)}
    coming = ahead(s.run.pending, events[-1])
    return protocol.sequence(rows(events), coming, marks_of(replayed(events)), ENGLISH, sizes, lit=lit)


def parts(s: Setup) -> dict[str, str]:
    """All that is drawn of a run."""
    events, t = s.run.events, ENGLISH
    run = replayed(events)
    marks = marks_of(run)
    return {
        "chips": "".join(protocol.chip(call_id, marks, t) for call_id in (*marks, EVIL)),
        "state": protocol.state_row(run, t),
        "meters": protocol.meters(run, s.agent.limits, s.clock.steady_s(), t),
        "sequence": sequence_of(s),
        "gates": protocol.gates(judged(events), marks, t),
        "ledger": protocol.ledger(EVIL if run.answer else None, ledger(events), len(run.pending), marks, t),
    }


# --- a stranger's text stays text ---------------------------------------------------------------


@pytest.mark.parametrize("scene", SCENES)
def test_only_our_own_elements_and_attributes_are_drawn(scene: Callable[[], Setup]) -> None:
    for part in parts(scene()).values():
        for tag, attributes in Drawn(part).elements:
            assert tag in TAGS
            assert set(attributes) <= ATTRIBUTES


def test_no_class_depends_on_a_strangers_text() -> None:
    for part in parts(hostile()).values():
        assert all(re.fullmatch(r"gl-[a-z]+\d?", name) for name in Drawn(part).classes)


def test_hostile_names_ids_reasons_and_words_are_there_to_read_with_nothing_hidden() -> None:
    drawn = {name: Drawn(part) for name, part in parts(hostile()).items()}
    for part in drawn.values():
        said = part.text + "".join(value for _, attributes in part.elements for value in attributes.values())
        assert visible(said) == said
    assert visible(EVIL)[:60] in drawn["ledger"].text
    assert any(visible(EVIL) in a["title"] for a in drawn["chips"].all("gl-chip"))
    assert any(visible(EVIL) in a.get("title", "") for a in drawn["sequence"].all("gl-arrow"))


def test_a_tool_name_that_looks_like_a_template_is_not_filled_in() -> None:
    one = Judged(judged(bad_json().run.events)[0].call)
    one.call = replace(one.call, name="{tool}{0}", id="{call}")
    assert "{tool}{0}" in Drawn(protocol.gates([one], {}, ENGLISH)).text


def test_long_words_are_cut_and_a_long_name_keeps_both_its_ends() -> None:
    cut = Drawn(protocol.ledger("word " * 200, [], 0, {}, ENGLISH)).text
    assert "…”" in cut
    assert len(cut) < protocol.MAX_WORDS + 80
    deed = Deed("w", "begins_" + "x" * 80 + "_ends", "write", None)
    drawn = Drawn(protocol.ledger(None, [deed], 0, {}, ENGLISH))
    assert re.search(r"begins_x+…x+_ends", drawn.text)
    assert drawn.all("gl-tool")[0]["title"] == deed.tool


# --- it says what the record says ---------------------------------------------------------------


def test_a_chip_names_the_call_by_number_and_keeps_its_colour_after_eight() -> None:
    marks = {f"id-{n}": n for n in range(1, 18)}
    drawn = [Drawn(protocol.chip(call_id, marks, ENGLISH)) for call_id in marks]
    assert [one.text for one in drawn] == [f"c{n}" for n in marks.values()]
    assert drawn[0].classes == drawn[8].classes == drawn[16].classes != drawn[1].classes
    assert "id-3" in drawn[2].elements[0][1]["title"]


@pytest.mark.parametrize("state", list(State))
def test_the_present_state_alone_is_lit_and_every_state_has_its_place(state: State) -> None:
    run = RunState("r", 0.0, state=state)
    drawn = Drawn(protocol.state_row(run, ENGLISH))
    places = drawn.all("gl-step") + drawn.all("gl-end")
    assert [a["title"].split(":")[0] for a in places] == list(State)
    lit = [a["title"].split(":")[0] for a in places if a.get("aria-current") == "step"]
    assert lit == [state] == [a["title"].split(":")[0] for a in drawn.all("gl-on")]


@pytest.mark.parametrize("code", ENDS)
def test_an_end_with_a_code_says_the_code_and_its_sentence(code: str) -> None:
    run = RunState("r", 0.0, state=State.FAILED, end_code=code)
    text = Drawn(protocol.state_row(run, ENGLISH)).text
    assert code in text
    assert ENDS[code] in text


@pytest.mark.parametrize("scene", SCENES)
def test_the_meters_equal_the_fold(scene: Callable[[], Setup]) -> None:
    s = scene()
    run, limits, now = replayed(s.run.events), s.agent.limits, s.clock.steady_s()
    text = Drawn(protocol.meters(run, limits, now, ENGLISH)).text
    assert f"{run.charged} / {limits.max_tool_calls}tool calls" in text
    assert f"{run.requests} / {limits.max_requests}requests" in text
    assert f"{run.bad_in_a_row()} / {limits.max_bad_arguments}errors in a row" in text
    assert f"{run.elapsed_s(now):.1f} / {limits.run_s:g} sclock" in text
    assert ("stopped for you" in text) == (run.state == State.WAITING_APPROVAL)


def test_the_clock_stands_while_a_person_decides_and_after_the_end() -> None:
    for s in (waiting(), approved()):
        before = parts(s)["meters"]
        s.clock.advance(60)
        assert parts(s)["meters"] == before


def test_tokens_are_grouped_and_an_estimate_says_so() -> None:
    run = RunState("r", 0.0, usage=Usage(1200, 34))
    assert "1,234tokens" in Drawn(protocol.meters(run, Limits(), 0.0, ENGLISH)).text
    run.usage = replace(run.usage, estimated=True)
    assert "≈ 1,234tokens" in Drawn(protocol.meters(run, Limits(), 0.0, ENGLISH)).text


@pytest.mark.parametrize("scene", SCENES)
def test_the_sequence_has_one_readable_item_for_each_row(scene: Callable[[], Setup]) -> None:
    s = scene()
    events = s.run.events
    real, coming = list(rows(events)), ahead(s.run.pending, events[-1])
    items = Drawn(sequence_of(s)).all("gl-row")
    assert len(items) == len(real) + len(coming)
    for row, item in zip((*real, *coming), items, strict=True):
        assert item["role"] == "listitem"
        assert item["aria-label"].startswith(ENGLISH.lanes[row.source])
    assert [n for n, item in enumerate(items) if item.get("aria-current") == "step"] == [len(real) - 1]
    assert [("gl-ahead" in item["class"]) for item in items].count(True) == len(coming)


def test_a_row_reads_as_a_sentence() -> None:
    said = [a["aria-label"] for a in Drawn(sequence_of(waiting())).all("gl-row")]
    assert said == [
        "You to Program: message",
        "Program to Model: request 1 · 2\u00a0messages",
        "Model to Program: asks c1 look",
        "Program to Tools: runs c1",
        "Tools to Program: result c1 · untrusted text",
        "Program to Model: request 2 · 4\u00a0messages",
        "Model to Program: asks c2 note",
        "Model to Program: asks c3 note",
        "Program to You: may c2 run?",
        "Program: c3 waits for c2",
        "You to Program: approves c2 (not yet)",
        "Program to Tools: runs c2, once (not yet)",
    ]


def test_dashed_is_what_the_model_does_and_remarks_stay_on_the_lane_of_the_program() -> None:
    for scene in SCENES:
        s = scene()
        arrows = Drawn(sequence_of(s)).all("gl-arrow")
        real = [*rows(s.run.events), *ahead(s.run.pending, s.run.events[-1])]
        crossing = [row for row in real if row.source != row.target]
        assert ["gl-asks" in a["class"] for a in arrows] == [row.source == "model" for row in crossing]
        assert len(Drawn(sequence_of(s)).all("gl-remark")) == len(real) - len(crossing)


def test_nothing_is_lit_unless_it_is_told_to() -> None:
    assert "gl-now" not in sequence_of(waiting(), lit=False)


@pytest.mark.parametrize("scene", SCENES)
def test_the_pills_equal_the_verdicts(scene: Callable[[], Setup]) -> None:
    calls = judged(scene().run.events)
    drawn = Drawn(protocol.gates(calls, {}, ENGLISH)).all("gl-pill")
    looks = {"pass": "gl-ok", "ask": "gl-ask", "wait": "gl-ask"}
    for (gate, verdict), pill in zip((p for one in calls for p in one.pills()), drawn, strict=True):
        assert pill["title"].startswith(ENGLISH.gate_questions[gate])
        refused = "gl-no" if verdict and verdict.code else "gl-same"
        assert pill["class"].split()[1] == (looks.get(verdict.outcome, refused) if verdict else "gl-off")
        if verdict and verdict.outcome == "answer" and verdict.code:
            assert verdict.code in pill["title"]


def test_without_calls_the_gates_say_so() -> None:
    assert ENGLISH.no_calls in Drawn(protocol.gates([], {}, ENGLISH)).text


# --- the ledger ---------------------------------------------------------------------------------


def did(s: Setup) -> str:
    return Drawn(parts(s)["ledger"]).text.split(ENGLISH.program_did)[1]


def test_the_ledger_gives_a_receipt_for_what_ran() -> None:
    digest = next(d.executed for d in ledger(approved().run.events) if d.executed)
    short = f"{digest[:4]} {digest[4:8]}"
    assert did(approved()) == f"c1 note ran onceapproved {short} · ran {short} · the same"
    assert did(edited()).endswith("the same")
    assert did(third_party()).startswith("c1 far ran once")


def test_the_ledger_tells_what_did_not_run() -> None:
    assert did(denied()) == "c1 note did not run: denied"
    assert "did not run: bad_json" in did(bad_json())
    assert did(waiting()) == "c1 look ran, and changed nothing1 call waits for you"
    assert "did not run: expired" in did(expired())
    assert "c1 fails ran, and ended with upstream" in did(failing())


def deed_drawn(**changes: Any) -> Drawn:
    deed = replace(Deed("w", "note", "write", None, "a" * 64, "a" * 64), **changes)
    return Drawn(protocol.ledger(None, [deed], 0, {"w": 1}, ENGLISH))


def test_another_digest_and_an_unknown_outcome_are_loud() -> None:
    other = deed_drawn(executed="b" * 64)
    assert "approved aaaa aaaa · ran bbbb bbbb · NOT THE SAME" in other.text
    assert other.all("gl-loud")
    unknown = deed_drawn(code="outcome_unknown", executed=None)
    assert unknown.text.endswith("note outcome unknown")
    assert unknown.all("gl-loud")
    assert not deed_drawn().all("gl-loud")


def test_a_ledger_of_nothing_says_nothing_on_both_sides() -> None:
    text = Drawn(protocol.ledger(None, [], 0, {}, ENGLISH)).text
    assert text == "The model saysnothingThe program didNothing."


# --- the catalogue is complete ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry_in_s", "label"),
    [(None, "failed: provider_error"), (0.25, "failed: provider_error, again in 0.2 s")],
)
def test_a_failed_request_says_when_it_goes_out_again(retry_in_s: float | None, label: str) -> None:
    failed = RequestFailed(at=0.0, run_id="r", code="provider_error", message="Down.", retry_in_s=retry_in_s)
    drawn = Drawn(protocol.sequence(rows([failed]), [], {}, ENGLISH, {}))
    assert label in drawn.text
    assert ("again" in drawn.text) == (retry_in_s is not None)


def test_every_kind_lane_state_and_gate_has_its_text() -> None:
    assert set(ENGLISH.rows) == set(get_args(RowKind))
    assert set(ENGLISH.lanes) == set(get_args(Lane)) == set(protocol.LANES)
    assert set(ENGLISH.states) == set(ENGLISH.state_hints) == set(State)
    assert (*protocol.WAY, *protocol.ENDINGS) == tuple(State)
    assert set(ENGLISH.gate_names) == set(ENGLISH.gate_questions) == set(GATES)


def test_every_phrase_of_the_sequence_asks_only_for_what_a_row_has() -> None:
    known = {"call", "leader", "tool", "code", "detail", "state", "number", "count", "request", "seconds"}
    for phrase in (
        *ENGLISH.rows.values(),
        ENGLISH.row_ends,
        ENGLISH.row_request,
        ENGLISH.row_failed,
        ENGLISH.row_again,
    ):
        assert {name for _, name, _, _ in string.Formatter().parse(phrase) if name} <= known


# --- the styles ---------------------------------------------------------------------------------

GROUNDS = {
    "ink": ("page", "surface", "soft", "now-bg", "no-bg"),
    "muted": ("page", "surface", "soft"),
    "primary": ("page", "surface", "soft"),
    "on-primary": ("primary",),
    "now": ("page", "surface", "now-bg"),
    "ok": ("ok-bg",),
    "no": ("page", "surface", "no-bg"),
    **{f"call{n}": ("surface", "soft", "now-bg") for n in range(1, protocol.COLOURS + 1)},
}


def luminance(colour: str) -> float:
    channels = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("text", GROUNDS)
def test_every_text_is_legible_on_its_grounds(text: str, theme: int) -> None:
    for ground in GROUNDS[text]:
        assert contrast(PALETTE[text][theme], PALETTE[ground][theme]) >= 4.5, ground


def test_every_colour_is_a_text_or_a_ground_or_a_line() -> None:
    grounds = {ground for of in GROUNDS.values() for ground in of}
    assert set(PALETTE) == set(GROUNDS) | grounds | {"line", "lane"}
    assert set(re.findall(r"var\(--gl-([a-z-]+\d?)", CSS)) - {"k", "mono"} == set(PALETTE) - {"page"}


def styled() -> set[str]:
    rules = re.sub(r"/\*.*?\*/", "", CSS, flags=re.DOTALL)
    selectors = re.sub(r"\{[^{}]*\}", "{}", rules)
    return set(re.findall(r"\.(gl-[a-z0-9-]+)", selectors))


def drawn_classes(setups: Iterable[Setup]) -> set[str]:
    return {name for s in setups for part in parts(s).values() for name in Drawn(part).classes}


def test_every_class_that_is_drawn_has_a_style_and_no_style_is_left_over() -> None:
    drawn = drawn_classes(scene() for scene in SCENES)
    assert drawn <= styled()
    pages = "".join(p.read_text() for p in (ROOT / "agent" / "ui").glob("*.py") if p.name != "style.py")
    assert {
        name for name in styled() if not re.search(rf"{name.rstrip('012345678')}\b|{name}", pages)
    } == set()


def test_type_is_twelve_pixels_and_up_without_letter_spacing_and_rest_is_respected() -> None:
    assert all(float(size) >= 12 for size in re.findall(r"font(?:-size)?:[^;]*?([\d.]+)px", CSS))
    assert "letter-spacing" not in CSS
    assert "prefers-reduced-motion" in CSS
    assert "url(" not in CSS


def test_the_theme_of_the_page_has_the_same_colours() -> None:
    theme = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["theme"]
    for n, name in enumerate(("light", "dark")):
        own = theme[name]
        assert own["primaryColor"] == PALETTE["primary"][n]
        assert own["backgroundColor"] == PALETTE["page"][n]
        assert own["secondaryBackgroundColor"] == PALETTE["soft"][n]
        assert own["textColor"] == PALETTE["ink"][n]
        assert own["borderColor"] == PALETTE["line"][n]


def test_every_text_of_the_catalogue_is_drawn_somewhere() -> None:
    code = "".join(p.read_text() for p in (ROOT / "agent" / "ui").glob("*.py") if p.name != "texts.py")
    drawn = set(re.findall(r"\b(?:t|ENGLISH)\.([a-z_]+)", code))
    assert {field.name for field in fields(ENGLISH)} - drawn == set()
