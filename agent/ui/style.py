"""The page's own styles, as one block for `st.html`.

Each colour is a pair, light and dark. `light-dark()` picks one by the `color-scheme` that Streamlit sets
with its theme, so the page follows a switch without a rerun.
"""

from collections.abc import Mapping

PALETTE: Mapping[str, tuple[str, str]] = {
    # grounds
    "page": ("#FBFBFA", "#121716"),
    "surface": ("#FFFFFF", "#181E1D"),
    "soft": ("#F3F4F2", "#202725"),
    "line": ("#DFE3E0", "#323B39"),
    "lane": ("#CBD5D1", "#43504C"),
    # text
    "ink": ("#1C1F1E", "#E9EDEB"),
    "muted": ("#56625E", "#A4B0AC"),
    # what is true now, and how it went
    "primary": ("#0F766E", "#2CB5A4"),
    "on-primary": ("#FFFFFF", "#0B1513"),
    "now-bg": ("#FFF6DF", "#33290F"),
    "now": ("#7A5200", "#F0C66B"),
    "ok-bg": ("#E9F5F0", "#15302A"),
    "ok": ("#0B5B45", "#82D6B9"),
    "no-bg": ("#FDECEA", "#3B1D1B"),
    "no": ("#8E1B12", "#FFAFA6"),
    # the calls
    "call1": ("#2457B2", "#94BBFF"),
    "call2": ("#9A4A06", "#F3B36E"),
    "call3": ("#6D3FC0", "#C6ABFF"),
    "call4": ("#1B6A3C", "#84D8A0"),
    "call5": ("#AE225C", "#FFA3C4"),
    "call6": ("#0B647D", "#79D3EA"),
    "call7": ("#665700", "#DCC75F"),
    "call8": ("#54545F", "#C3C5D3"),
}

COLOURS = "\n".join(f"  --gl-{name}: light-dark({light}, {dark});" for name, (light, dark) in PALETTE.items())
CALLS = "\n".join(f".gl-call{n} {{ --gl-k: var(--gl-call{n}); }}" for n in range(1, 9))

CSS = (
    f"""<style>
:root {{
{COLOURS}
  --gl-mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}}
{CALLS}
"""
    + """
/* shared: a box that its parts can measure, chips, tools, codes */
.gl-box {
  container-type: inline-size; box-sizing: border-box; overflow: hidden;
  color: var(--gl-ink); background: var(--gl-surface);
  border: 1px solid var(--gl-line); border-radius: 10px;
  font-size: 13px; line-height: 1.5;
}
.gl-chip {
  display: inline-block; padding: 0 6px; border-radius: 6px; border: 1px solid;
  color: var(--gl-k, var(--gl-muted)); background: var(--gl-surface);
  font: 600 12px/1.4 var(--gl-mono); white-space: nowrap; vertical-align: baseline;
}
.gl-tool { font: 500 12.5px/1.5 var(--gl-mono); overflow-wrap: anywhere; }
.gl-code, .gl-digest { font: 500 12px/1.5 var(--gl-mono); overflow-wrap: anywhere; }
.gl-digest { white-space: nowrap; }
.gl-quiet, .gl-none { color: var(--gl-muted); }
.gl-none { margin-bottom: 10px; font-size: 13px; line-height: 1.6; }
.gl-loud { color: var(--gl-no); font-weight: 700; }

/* the state of the run */
.gl-states {
  display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; font-size: 12.5px; line-height: 1.5;
}
.gl-step, .gl-end { color: var(--gl-muted); background: var(--gl-surface); padding: 2px 8px; }
.gl-step { position: relative; border: 1px solid var(--gl-line); border-radius: 7px; }
.gl-step::after {
  content: "→"; position: absolute; left: calc(100% + 1px); top: 2px; width: 18px; text-align: center;
  color: var(--gl-muted); font-weight: 400;
}
.gl-ends { display: flex; border: 1px solid var(--gl-line); border-radius: 7px; overflow: hidden; }
.gl-end + .gl-end { border-left: 1px solid var(--gl-line); }
.gl-on { color: var(--gl-on-primary); background: var(--gl-primary); font-weight: 600; }
.gl-step.gl-on { border-color: var(--gl-primary); }
.gl-on.gl-bad { color: var(--gl-no); background: var(--gl-no-bg); }
.gl-why { margin-top: 8px; color: var(--gl-ink); font-size: 13px; line-height: 1.6; }
.gl-why .gl-code { color: var(--gl-no); background: var(--gl-no-bg); padding: 1px 6px; border-radius: 6px; }
.gl-states + .gl-box, .gl-why + .gl-box { margin-top: 10px; }

/* the meters: five in a line, three and two where it is narrow */
.gl-meters {
  display: grid; grid-template-columns: 1fr 1fr 1.15fr 1.5fr 1.1fr; gap: 1px; background: var(--gl-line);
}
.gl-meter { background: var(--gl-surface); padding: 7px 4px 7px 10px; min-width: 0; }
.gl-value {
  font-size: 15px; font-weight: 600; line-height: 1.4; white-space: nowrap;
  font-variant-numeric: tabular-nums;
}
.gl-label { font-size: 12px; line-height: 1.35; color: var(--gl-muted); }
.gl-spent .gl-value { color: var(--gl-now); }
@container (max-width: 569px) {
  .gl-label { min-height: 2.7em; } /* the clock's label takes two lines while it is stopped */
}
@container (max-width: 429px) {
  .gl-meters { grid-template-columns: repeat(6, 1fr); }
  .gl-meter { grid-column: span 2; }
  .gl-meter:nth-child(n + 4) { grid-column: span 3; }
  .gl-label { min-height: 0; }
}

/* the sequence: the lanes stand on the lines between an edge, three ways and an edge */
.gl-seq { padding: 12px 8px 10px; font-size: 12.5px; line-height: 1.4; }
.gl-lanes { display: grid; grid-template-columns: 38px repeat(3, minmax(0, 1fr)) 38px; }
.gl-at0 { grid-column: 2; } .gl-at1 { grid-column: 3; }
.gl-at2 { grid-column: 4; } .gl-at3 { grid-column: 5; }
.gl-head {
  grid-row: 1; justify-self: start; transform: translateX(-50%); padding: 2px 10px; font-weight: 600;
  background: var(--gl-soft); border: 1px solid var(--gl-line); border-radius: 7px; white-space: nowrap;
}
.gl-body { position: relative; padding-bottom: 8px; }
.gl-lines { position: absolute; inset: 0; pointer-events: none; }
.gl-line { grid-row: 1; width: 0; margin-left: -0.5px; border-left: 1px solid var(--gl-lane); }
.gl-row { position: relative; padding: 8px 0 6px; border-radius: 7px; }
.gl-arrow {
  position: relative; min-width: 0; padding: 0 6px 3px; text-align: center;
  border-bottom: 2px solid var(--gl-k, var(--gl-ink));
}
.gl-asks { border-bottom-style: dashed; }
.gl-from0 { grid-column-start: 2; } .gl-from1 { grid-column-start: 3; } .gl-from2 { grid-column-start: 4; }
.gl-to1 { grid-column-end: 3; } .gl-to2 { grid-column-end: 4; } .gl-to3 { grid-column-end: 5; }
.gl-arrow::after { content: ""; position: absolute; bottom: -6px; border: 5px solid transparent; }
.gl-right::after { right: 0; border-left: 8px solid var(--gl-k, var(--gl-ink)); border-right: 0; }
.gl-left::after { left: 0; border-right: 8px solid var(--gl-k, var(--gl-ink)); border-left: 0; }
.gl-what {
  display: inline-block; max-width: 100%; box-sizing: border-box; padding: 0 3px; overflow-wrap: anywhere;
  color: var(--gl-k, var(--gl-ink)); background: var(--gl-surface);
}
.gl-what .gl-chip { margin: 0 1px; }
.gl-name { display: inline-block; max-width: 100%; } /* a name that fits in a line stays whole */
.gl-remark {
  grid-column: 2 / 4; justify-self: center; max-width: 100%; box-sizing: border-box; text-align: center;
  padding: 2px 8px; background: var(--gl-soft); border: 1px solid var(--gl-line); border-radius: 7px;
}
.gl-remark .gl-what { background: none; }
.gl-later {
  position: relative; width: fit-content; margin: 8px auto 0; padding: 0 8px; font-size: 12px;
  color: var(--gl-muted); background: var(--gl-surface);
}
.gl-ahead, .gl-ahead .gl-chip { --gl-k: var(--gl-muted); }
.gl-ahead .gl-arrow { border-bottom-style: dotted; }
.gl-now, .gl-now .gl-what, .gl-now .gl-chip { background: var(--gl-now-bg); }
.gl-now .gl-what { font-weight: 600; }
.gl-legend {
  display: flex; flex-wrap: wrap; gap: 4px 18px; justify-content: center; padding-top: 10px;
  color: var(--gl-muted); font-size: 12px;
}
.gl-key {
  display: inline-block; width: 26px; margin-right: 6px; vertical-align: middle;
  border-bottom: 2px solid var(--gl-muted);
}
.gl-key.gl-asks { border-bottom-style: dashed; }

/* the gates */
.gl-gates {
  display: flex; flex-direction: column; gap: 14px;
  color: var(--gl-ink); font-size: 13px; line-height: 1.5;
}
.gl-who { display: flex; flex-wrap: wrap; gap: 2px 8px; align-items: baseline; margin-bottom: 6px; }
.gl-id { font: 400 12px/1.5 var(--gl-mono); color: var(--gl-muted); overflow-wrap: anywhere; }
.gl-became { margin-left: auto; color: var(--gl-muted); }
.gl-pills { display: flex; flex-wrap: wrap; gap: 5px; }
.gl-pill { padding: 1px 8px; border: 1px solid; border-radius: 999px; font-size: 12px; line-height: 1.5; }
.gl-said { font-weight: 600; margin-left: 5px; overflow-wrap: anywhere; }
.gl-ok { color: var(--gl-ok); background: var(--gl-ok-bg); border-color: transparent; }
.gl-ask { color: var(--gl-now); background: var(--gl-now-bg); }
.gl-no { color: var(--gl-no); background: var(--gl-no-bg); }
.gl-same { color: var(--gl-ink); background: var(--gl-soft); border-color: var(--gl-line); }
.gl-off { color: var(--gl-muted); border-color: var(--gl-line); border-style: dashed; }

/* the ledger */
.gl-ledger { display: grid; grid-template-columns: 1fr 1fr; }
.gl-side { padding: 8px 12px 10px; min-width: 0; }
.gl-side + .gl-side { border-left: 1px solid var(--gl-line); }
.gl-title { font-size: 12px; font-weight: 600; color: var(--gl-muted); margin-bottom: 4px; }
.gl-words, .gl-deed { line-height: 1.6; overflow-wrap: anywhere; }
.gl-deed + .gl-deed { margin-top: 6px; }
.gl-receipt { font-size: 12px; line-height: 1.6; color: var(--gl-muted); }
.gl-receipt.gl-loud { color: var(--gl-no); }
.gl-waits { color: var(--gl-now); font-weight: 600; }
@container (max-width: 429px) {
  .gl-ledger { grid-template-columns: 1fr; }
  .gl-side + .gl-side { border-left: 0; border-top: 1px solid var(--gl-line); }
}

/* a model's answer: its headings are paragraphs, the host of a link stands behind it */
.gl-answer {
  color: var(--gl-ink); font-size: 15px; line-height: 1.6; overflow-wrap: anywhere;
  contain: paint; /* piled up marks cannot paint over what stands beside it */
}
.gl-answer :is(p, ul, ol, pre, blockquote, table) { margin: 0 0 0.7em; }
.gl-answer > :first-child { margin-top: 0; }
.gl-answer > :last-child { margin-bottom: 0; }
.gl-answer .gl-h { margin: 1em 0 0.35em; font-size: 1.05em; font-weight: 650; }
.gl-answer .gl-host { color: var(--gl-muted); font-size: 0.87em; }
.gl-answer :is(ul, ol) { padding-left: 1.5em; }
.gl-answer li { margin: 0.15em 0; font-size: inherit; }
.gl-answer code {
  padding: 0.1em 0.35em; border-radius: 5px; color: inherit; background: var(--gl-soft);
  font: 0.9em/1.5 var(--gl-mono);
}
.gl-answer pre { padding: 10px 12px; background: var(--gl-soft); border-radius: 8px; white-space: pre-wrap; }
.gl-answer pre code { padding: 0; background: none; }
.gl-answer blockquote { padding: 0 0 0 0.9em; border-left: 3px solid var(--gl-line); color: var(--gl-muted); }
.gl-answer table { display: block; overflow-x: auto; border-collapse: collapse; }
.gl-answer :is(th, td) { padding: 4px 10px; border: 1px solid var(--gl-line); text-align: left; }
.gl-answer hr { margin: 1em 0; border: 0; border-top: 1px solid var(--gl-line); }

/* what a model thought: folded, paler than what it says */
.gl-thought { font-size: 13px; line-height: 1.6; color: var(--gl-muted); contain: paint; }
.gl-thought summary { cursor: pointer; }
.gl-thought div {
  padding: 4px 0 4px 12px; border-left: 3px solid var(--gl-line);
  white-space: pre-wrap; overflow-wrap: anywhere;
}

/* the card: the one framed and tinted thing of the page */
[class*="st-key-card_"] {
  border: 1.5px solid var(--gl-now) !important; border-left-width: 5px !important;
  background: var(--gl-surface);
}
.gl-asked { font-size: 15px; font-weight: 650; line-height: 1.6; color: var(--gl-ink); }
.gl-risk {
  margin-left: 8px; padding: 1px 8px; border-radius: 6px; font-size: 12.5px; font-weight: 600;
  color: var(--gl-now); background: var(--gl-now-bg);
}
.gl-time {
  font-size: 13px; line-height: 1.85; text-align: right; white-space: nowrap; color: var(--gl-muted);
  font-variant-numeric: tabular-nums;
}
.gl-preview { font-size: 16px; line-height: 1.6; color: var(--gl-ink); overflow-wrap: anywhere; }
.gl-facts { font-size: 12.5px; line-height: 1.6; color: var(--gl-muted); overflow-wrap: anywhere; }
.gl-fault {
  padding: 6px 10px; border-radius: 8px; font-size: 13px; line-height: 1.6; overflow-wrap: anywhere;
  color: var(--gl-no); background: var(--gl-no-bg);
}

/* under an answer: how a run ended that did not complete, and what the program did */
.gl-ended {
  margin-bottom: 8px; padding: 8px 12px; border-radius: 10px; font-size: 14px; line-height: 1.6;
  color: var(--gl-ink); background: var(--gl-no-bg); overflow-wrap: anywhere;
}
.gl-ended :is(b, .gl-code) { color: var(--gl-no); }
.gl-ended .gl-quiet { color: var(--gl-ink); }
.gl-did { padding: 8px 12px 10px; }

/* the sidebar */
.gl-brand { font-size: 20px; font-weight: 700; line-height: 1.4; color: var(--gl-ink); }
.gl-small, .gl-leaves, .gl-limits {
  font-size: 13px; line-height: 1.6; color: var(--gl-muted); overflow-wrap: anywhere;
}
.gl-leaves .gl-title { color: var(--gl-ink); }
.gl-limits b { color: var(--gl-ink); font-variant-numeric: tabular-nums; }

/* the page: both columns fit the window and scroll by themselves, so a card is always in sight */
.stMainBlockContainer { padding-top: 3.5rem; padding-bottom: 1rem; }
.st-key-conversation, div:has(> .st-key-conversation) { height: auto !important; flex: 0 1 auto !important; }
.st-key-conversation { max-height: 62dvh; padding-bottom: 1rem; } /* where Streamlit's last text hangs over */
.st-key-left:has([class*="st-key-card_"]) .st-key-conversation { max-height: 26dvh; }
@media (min-width: 641px) {
  .st-key-left { flex: 0 0 auto; max-height: calc(100dvh - 12rem); }
  .st-key-left > div { flex: 0 0 auto; }
  .st-key-left > div:has(> .st-key-conversation) {
    display: flex; flex-direction: column; min-height: 6rem;
  }
  .st-key-left.st-key-left .st-key-conversation { min-height: 0; max-height: none; }
  .st-key-cards { max-height: calc(100dvh - 18rem); overflow-y: auto; }
  .st-key-protocol { max-height: calc(100dvh - 12rem); overflow-y: auto; flex-wrap: nowrap; }
}

/* Streamlit's bubble of a person has a colour that no theme option reaches */
[data-testid="stChatMessage"]:has([aria-label="Chat message from user"]) { background: var(--gl-soft); }
/* Streamlit's filled button has white text in both themes, too pale on the primary of the dark one */
[data-testid^="stBaseButton-primary"]:enabled { color: var(--gl-on-primary); }

@media (max-width: 640px) {
  [class*="st-key-decision_"] > *, [class*="st-key-edited_"] > * { flex: 1 1 100% !important; }
  [class*="st-key-decision_"] button, [class*="st-key-edited_"] button { width: 100%; min-height: 44px; }
  .gl-seq { padding-inline: 4px; }
  .gl-lanes { grid-template-columns: 30px repeat(3, minmax(0, 1fr)) 30px; }
  .gl-head { padding-inline: 6px; }
}
@media (prefers-reduced-motion: no-preference) {
  .gl-now { animation: gl-appear 300ms ease-out; }
  @keyframes gl-appear { from { opacity: 0.3; } }
}
</style>"""
)
