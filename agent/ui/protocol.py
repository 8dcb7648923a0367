"""The protocol column, drawn: each function returns the HTML of one part, for `st.html`.

A stranger's text enters through `_text` alone, which makes it inert. Class names come from this file, so
no colour, size or place depends on what a model, a tool or a person wrote.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from agent.limits import Limits
from agent.record import Decided, Event, RequestFailed, RequestSent, State, Verdict
from agent.state import END_STATES, RunState
from agent.timeline import Deed, Judged, Lane, Row, visible
from agent.ui.texts import Texts
from agent.words import ENDS

LANES: tuple[Lane, ...] = ("you", "program", "model", "tools")
WAY = (State.RECEIVED, State.PLANNING, State.WAITING_APPROVAL, State.WAITING_TOOL, State.OBSERVING)
ENDINGS = (State.COMPLETED, State.FAILED, State.CANCELLED)
ASKED_BY_MODEL = ("thinks", "asks", "says", "request_failed")
ASKED_A_PERSON = ("denied", "denied_earlier", "expired", "superseded")
COLOURS = 8
MAX_WORDS = 280
MAX_DETAIL = 90
MAX_NAME = 26


def chip(call_id: str, marks: Mapping[str, int], t: Texts) -> str:
    """The badge of a call: its number in the run, in the colour that it has everywhere."""
    number = marks.get(call_id)
    if number is None:
        return f'<span class="gl-chip" title="{_text(call_id)}">{escape(t.call_unknown)}</span>'
    title = _fill(t.call_title, number=str(number), call_id=_text(call_id))
    mark = _fill(t.call_mark, number=str(number))
    return f'<span class="gl-chip {_colour(number)}" title="{title}">{mark}</span>'


# --- the state and the meters -------------------------------------------------------------------


def state_row(run: RunState, t: Texts) -> str:
    """Each state a run can be in, its three ends as alternatives; the present one is lit."""
    way = "".join(_state(state, run, t, "gl-step") for state in WAY)
    ends = "".join(_state(state, run, t, "gl-end") for state in ENDINGS)
    steps = f'{way}<div class="gl-ends" role="presentation">{ends}</div>'
    row = f'<div class="gl-states" role="list" aria-label="{escape(t.state_row)}">{steps}</div>'
    return row + (_end(run.end_code) if run.end_code else "")


def _state(state: State, run: RunState, t: Texts, kind: str) -> str:
    present = ' aria-current="step"' if state == run.state else ""
    lit = " gl-on" if state == run.state else ""
    failed = " gl-bad" if lit and state in END_STATES and state != State.COMPLETED else ""
    title = escape(f"{state}: {t.state_hints[state]}")
    classes = f"{kind}{lit}{failed}"
    return f'<div class="{classes}" role="listitem" title="{title}"{present}>{escape(t.states[state])}</div>'


def _end(code: str) -> str:
    sentence = escape(ENDS.get(code, ""))
    return f'<div class="gl-why"><span class="gl-code">{_text(code)}</span> {sentence}</div>'


def meters(run: RunState, limits: Limits, now: float, t: Texts) -> str:
    """What the run has used of what it may use."""
    stopped = run.state == State.WAITING_APPROVAL
    seconds = max(0.0, run.elapsed_s(now))
    errors = run.bad_in_a_row()
    tokens = f"{run.usage.total_tokens:,}"
    about = _fill(t.meter_about, used=tokens) if run.usage.estimated else tokens
    clock = _fill(t.meter_seconds, used=f"{seconds:.1f}", limit=f"{limits.run_s:g}")
    hint = t.meter_tokens_hint.format(limit=f"{limits.max_tokens:,}")
    cells = (
        _count(t.meter_calls, run.charged, limits.max_tool_calls, t),
        _count(t.meter_requests, run.requests, limits.max_requests, t),
        _count(t.meter_errors, errors, limits.max_bad_arguments, t, t.meter_errors_hint),
        _meter(t.meter_stopped if stopped else t.meter_clock, clock, seconds >= limits.run_s),
        _meter(t.meter_tokens, about, run.usage.total_tokens > limits.max_tokens, hint),
    )
    grid = f'<div class="gl-meters" role="list" aria-label="{escape(t.meters)}">{"".join(cells)}</div>'
    return f'<div class="gl-box">{grid}</div>'


def _count(label: str, used: int, limit: int, t: Texts, hint: str = "") -> str:
    return _meter(label, _fill(t.meter_of, used=str(used), limit=str(limit)), used >= limit, hint)


def _meter(label: str, value: str, spent: bool, hint: str = "") -> str:
    classes = "gl-meter gl-spent" if spent else "gl-meter"
    title = f' title="{escape(hint)}"' if hint else ""
    return (
        f'<div class="{classes}" role="listitem"{title}>'
        f'<div class="gl-value">{value}</div><div class="gl-label">{escape(label)}</div></div>'
    )


# --- the sequence -------------------------------------------------------------------------------


def sequence(
    rows: Iterable[Row],
    ahead: Iterable[Row],
    marks: Mapping[str, int],
    t: Texts,
    requests: Mapping[int, int],
    *,
    lit: bool = False,
) -> str:
    """The rows as arrows between four lanes: dashed where the model asks, solid where the program does.

    `requests` holds the number of messages of each request. `lit` marks the last row as the present one;
    the rows `ahead` are drawn as not yet true.
    """
    real, planned = list(rows), list(ahead)
    last = len(real) - 1
    drawn = [
        _row(row, marks, t, requests, "gl-now" if lit and n == last else "") for n, row in enumerate(real)
    ]
    if planned:
        drawn.append(f'<div class="gl-later" aria-hidden="true">{escape(t.not_yet)}</div>')
        drawn += [_row(row, marks, t, requests, "gl-ahead") for row in planned]
    heads = "".join(
        f'<div class="gl-head gl-at{n}">{escape(t.lanes[lane])}</div>' for n, lane in enumerate(LANES)
    )
    lines = "".join(f'<div class="gl-line gl-at{n}"></div>' for n in range(len(LANES)))
    return (
        '<div class="gl-box"><div class="gl-seq">'
        f'<div class="gl-lanes" aria-hidden="true">{heads}</div>'
        f'<div class="gl-body"><div class="gl-lanes gl-lines" aria-hidden="true">{lines}</div>'
        f'<div role="list" aria-label="{escape(t.sequence)}">{"".join(drawn)}</div></div>'
        f"{_legend(t)}</div></div>"
    )


def _legend(t: Texts) -> str:
    dashed = f'<span class="gl-key gl-asks"></span>{escape(t.legend_asks)}'
    solid = f'<span class="gl-key"></span>{escape(t.legend_does)}'
    return f'<div class="gl-legend" aria-hidden="true"><span>{dashed}</span><span>{solid}</span></div>'


def _row(row: Row, marks: Mapping[str, int], t: Texts, requests: Mapping[int, int], mode: str) -> str:
    label = _label(row, marks, t, requests)
    present = ' aria-current="step"' if mode == "gl-now" else ""
    spoken = (
        _fill(t.row_not_yet, row=_spoken(row, label, t)) if mode == "gl-ahead" else _spoken(row, label, t)
    )
    colour = _colour(marks.get(row.call_id or "", 0))
    return (
        f'<div class="gl-lanes gl-row {mode} {colour}" role="listitem" aria-label="{spoken}"{present}>'
        f'<div class="{_shape(row)}"{_title(row)}><span class="gl-what">{label}</span></div></div>'
    )


def _shape(row: Row) -> str:
    """An arrow from lane to lane, or a remark on the program's lane."""
    source, target = LANES.index(row.source), LANES.index(row.target)
    if source == target:
        return "gl-remark"
    way = "gl-right" if source < target else "gl-left"
    asks = " gl-asks" if row.kind in ASKED_BY_MODEL else ""
    return f"gl-arrow gl-from{min(source, target)} gl-to{max(source, target)} {way}{asks}"


def _title(row: Row) -> str:
    return f' title="{_text(row.detail, MAX_WORDS)}"' if row.detail and row.kind != "ended" else ""


def _spoken(row: Row, label: str, t: Texts) -> str:
    """The row as a sentence: its label without the elements that this file put into it."""
    template = t.row_spoken_alone if row.source == row.target else t.row_spoken
    what = re.sub(r"<[^>]*>", "", label)
    return _fill(template, source=escape(t.lanes[row.source]), target=escape(t.lanes[row.target]), what=what)


def _label(row: Row, marks: Mapping[str, int], t: Texts, requests: Mapping[int, int]) -> str:
    if isinstance(row.event, RequestSent) and row.kind == "request":
        return _request(row.event, t, requests)
    return _fill(
        _phrase(row, t),
        call=chip(row.call_id, marks, t) if row.call_id else "",
        leader=chip(row.detail, marks, t),
        tool=f'<span class="gl-name">{_name(row.tool or "")}</span>',
        code=_code(row.code or ""),
        seconds=f"{again_s:.1f}" if (again_s := _again_s(row.event)) is not None else "",
        detail=_text(row.detail, MAX_DETAIL),
        state=escape(t.states.get(State(row.detail), "")) if row.kind == "ended" else "",
    )


def _phrase(row: Row, t: Texts) -> str:
    match row.kind:
        case "answered" if row.code is None:
            return t.row_same
        case "runs" if row.effect == "write":
            return t.row_writes
        case "request_failed" if _again_s(row.event) is not None:
            return t.row_again
        case "result" if row.code:
            return t.row_failed
        case "result" if row.trust == "untrusted_content":
            return t.row_untrusted
        case "approved" if _is_edited(row.event):
            return t.row_edited
        case "ended" if row.code:
            return t.row_ends
        case kind:
            return t.rows[kind]


def _again_s(event: Event) -> float | None:
    return event.retry_in_s if isinstance(event, RequestFailed) else None


def _is_edited(event: Event) -> bool:
    return isinstance(event, Decided) and event.arguments is not None


def _request(event: RequestSent, t: Texts, requests: Mapping[int, int]) -> str:
    count = requests.get(event.number)
    template = t.rows["request"] if count is None else t.row_request_one if count == 1 else t.row_request
    said = _fill(template, number=str(event.number), count=str(count))
    return _fill(t.row_last, request=said) if event.last_for else said


# --- the gates ----------------------------------------------------------------------------------


def gates(judged: Sequence[Judged], marks: Mapping[str, int], t: Texts) -> str:
    """Each call with the ten gates in their order, and how far it came."""
    if not judged:
        return f'<div class="gl-none">{escape(t.no_calls)}</div>'
    calls = "".join(_call(one, marks, t) for one in judged)
    return f'<div class="gl-gates" role="list" aria-label="{escape(t.gates)}">{calls}</div>'


def _call(one: Judged, marks: Mapping[str, int], t: Texts) -> str:
    pills = "".join(_pill(gate, verdict, t) for gate, verdict in one.pills())
    outcome = {None: escape(t.call_open), "ok": escape(t.call_ok)}.get(one.code) or _code(one.code or "")
    return (
        f'<div role="listitem"><div class="gl-who">{chip(one.call.id, marks, t)} '
        f'<span class="gl-tool" title="{_text(one.call.name)}">{_name(one.call.name)}</span> '
        f'<span class="gl-id" title="{_text(one.call.id)}">{_text(one.call.id, MAX_NAME)}</span> '
        f'<span class="gl-became">{outcome}</span></div>'
        f'<div class="gl-pills" role="list">{pills}</div></div>'
    )


def _pill(gate: str, verdict: Verdict | None, t: Texts) -> str:
    classes, mark, says, outcome = _outcome(verdict, t)
    title = escape(t.gate_title.format(question=t.gate_questions[gate], outcome=outcome))
    word = f'<span class="gl-said">{says}</span>' if says else ""
    name = escape(t.gate_names[gate])
    return (
        f'<span class="gl-pill {classes}" role="listitem" title="{title}">'
        f'<span aria-hidden="true">{mark}</span> {name}{word}</span>'
    )


def _outcome(verdict: Verdict | None, t: Texts) -> tuple[str, str, str, str]:
    """How a pill looks, its mark, what stands in it behind its name, and what it says at length."""
    if verdict is None:
        return "gl-off", "·", "", t.gate_unreached
    match verdict.outcome:
        case "pass":
            return "gl-ok", "✓", "", t.gate_passed
        case "ask":
            return "gl-ask", "?", escape(t.pill_asks), t.gate_asks
        case "wait":
            return "gl-ask", "…", escape(t.pill_waits), t.gate_waits
        case "answer":
            return _answered(verdict.code, t)


def _answered(code: str | None, t: Texts) -> tuple[str, str, str, str]:
    if code is None:
        return "gl-same", "=", escape(t.pill_same), t.gate_same
    return "gl-no", "✕", _code(code), t.gate_refused.format(code=visible(code))


# --- the ledger ---------------------------------------------------------------------------------


def did(deeds: Sequence[Deed], marks: Mapping[str, int], t: Texts) -> str:
    """What the program did, alone: for an answer that rests on calls without effect, or on none."""
    lines = "".join(_did(deeds, 0, marks, t))
    return f'<div class="gl-box gl-did"><div class="gl-title">{escape(t.program_did)}</div>{lines}</div>'


def ledger(says: str | None, deeds: Sequence[Deed], waiting: int, marks: Mapping[str, int], t: Texts) -> str:
    """What the model says beside what the program did."""
    words = _fill(t.quoted, words=_text(says, MAX_WORDS)) if says else escape(t.said_nothing)
    quiet = "" if says else " gl-quiet"
    did = "".join(_did(deeds, waiting, marks, t))
    return (
        '<div class="gl-box"><div class="gl-ledger">'
        f'<div class="gl-side"><div class="gl-title">{escape(t.model_says)}</div>'
        f'<div class="gl-words{quiet}">{words}</div></div>'
        f'<div class="gl-side"><div class="gl-title">{escape(t.program_did)}</div>{did}</div></div></div>'
    )


def _did(deeds: Sequence[Deed], waiting: int, marks: Mapping[str, int], t: Texts) -> Iterable[str]:
    yield from (_deed(deed, marks, t) for deed in deeds)
    if waiting:
        says = t.deed_waits if waiting == 1 else _fill(t.deeds_wait, count=str(waiting))
        yield f'<div class="gl-deed gl-waits">{says}</div>'
    if not deeds and not waiting:
        yield f'<div class="gl-deed gl-quiet">{escape(t.did_nothing)}</div>'


def concerns_a_person(deed: Deed) -> bool:
    """A write, or a call to a third party that a person was asked about."""
    return deed.effect == "write" or deed.approved is not None or deed.code in ASKED_A_PERSON


def _deed(deed: Deed, marks: Mapping[str, int], t: Texts) -> str:
    return (
        f'<div class="gl-deed">{chip(deed.call_id, marks, t)} '
        f'<span class="gl-tool" title="{_text(deed.tool)}">{_name(deed.tool)}</span> '
        f"{_what_happened(deed, t)}{_receipt(deed, t)}</div>"
    )


def _what_happened(deed: Deed, t: Texts) -> str:
    code = _code(deed.code or "")
    if deed.code == "outcome_unknown":
        return f'<span class="gl-loud">{escape(t.deed_unknown)}</span>'
    if deed.ran and deed.code:
        return _fill(t.deed_failed, code=code)
    if deed.ran:
        return escape(t.deed_ran if concerns_a_person(deed) else t.deed_harmless)
    return _fill(t.deed_refused, code=code) if deed.code else escape(t.deed_same)


def _receipt(deed: Deed, t: Texts) -> str:
    if deed.as_approved is None:
        return ""
    verdict = escape(t.receipt_same if deed.as_approved else t.receipt_other)
    classes = "gl-receipt" if deed.as_approved else "gl-receipt gl-loud"
    line = _fill(t.receipt, approved=_digest(deed.approved), executed=_digest(deed.executed), verdict=verdict)
    return f'<div class="{classes}">{line}</div>'


def _digest(digest: str | None) -> str:
    """The first eight signs of a digest, as a person compares them."""
    start = (digest or "")[:8]
    return f'<span class="gl-digest">{_text(start[:4])} {_text(start[4:])}</span>'


# --- text ---------------------------------------------------------------------------------------


def _text(text: str, limit: int | None = None) -> str:
    """The one door for a stranger's text: nothing hidden, nothing alive, and cut where a limit is given."""
    shown = visible(text)
    if limit is not None and len(shown) > limit:
        shown = shown[: limit - 1].rstrip() + "…"
    return escape(shown, quote=True)


def _name(tool: str) -> str:
    """A tool's name, which may break behind its underscores; a long one keeps both its ends."""
    half = MAX_NAME // 2
    short = tool if len(tool) <= MAX_NAME else f"{tool[:half]}…{tool[-half:]}"
    return _text(short).replace("_", "_<wbr>")


def _code(code: str) -> str:
    return f'<span class="gl-code">{_text(code).replace("_", "_<wbr>")}</span>' if code else ""


def _fill(template: str, **pieces: str) -> str:
    """A phrase of the catalogue with pieces of HTML in its places."""
    return escape(template).format(**pieces)


def _colour(number: int) -> str:
    """The class of a call's colour; none for what belongs to no call."""
    return f"gl-call{(number - 1) % COLOURS + 1}" if number else ""
