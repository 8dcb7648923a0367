"""The terminal chat: one question, or a conversation, with the whole protocol behind --verbose.

Exit codes: 0 completed, 1 the last run failed, 2 wrong usage or settings, 3 the last run was cancelled.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from agent.agent import Agent
from agent.arguments import BadJson, canonical, parse
from agent.errors import InvalidEdit, InvalidMessage
from agent.model import Model
from agent.model.scripted import Scripted
from agent.record import Approval, CallFinished, RequestSent, State
from agent.run import Run
from agent.settings import SettingsError, build_model, load_settings
from agent.transcript import rows, visible
from tools.catalog import ALL_TOOLS

EXIT = {State.COMPLETED: 0, State.FAILED: 1, State.CANCELLED: 3}
USAGE_ERROR = 2
GUTTER = "  | "
"""Stands before every line of a model, a tool or a document, so that none can pass for the program's."""

BANNER = """\
Glassloop in the terminal, for one person: whoever types here also approves.
Model: {model}. Leave with exit, quit or the end of input."""

ASK = "[y] approve  [n] deny  [n REASON] deny with a reason  [e] edit > "


class Leave(Exception):
    """The person leaves."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        model = _model(options.model)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    agent = Agent(model=model, tools=ALL_TOOLS)
    if options.once is not None:
        return _one(agent, options.once, options.verbose)
    print(BANNER.format(model=visible(model.name)))
    return _chat(agent, options.verbose)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agent", description="Chat with a guarded agent. For one person."
    )
    parser.add_argument("--model", help="the model's name at the endpoint of the settings, or: scripted")
    parser.add_argument("--once", metavar="QUESTION", help="ask one question and leave")
    parser.add_argument(
        "--verbose", action="store_true", help="show each request, gate, decision and message"
    )
    return parser


def _model(name: str | None) -> Model:
    if name == "scripted":
        return Scripted()
    settings = load_settings()
    return build_model(replace(settings, model=name) if name else settings) or Scripted()


def _chat(agent: Agent, verbose: bool) -> int:
    code = 0
    while True:
        try:
            text = _read("you > ")
            if text.strip().lower() in ("exit", "quit"):
                return code
            code = _one(agent, text, verbose)
        except (Leave, KeyboardInterrupt):
            agent.stop()
            print()
            return code


def _one(agent: Agent, text: str, verbose: bool) -> int:
    """Ask, decide what has to be decided, and show how it ended."""
    try:
        run = agent.ask(text)
    except InvalidMessage as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        run = _latest(agent)
    shown = 0
    while run.pending:
        shown = _show_rows(agent, run, shown) if verbose else 0
        try:
            _decide(agent, run.pending[0])
            run = agent.proceed() or run
        except (Leave, KeyboardInterrupt):
            agent.stop()
    if verbose:
        _show_rows(agent, run, shown)
    _show_end(run)
    return EXIT[run.state]


def _latest(agent: Agent) -> Run:
    run = agent.run
    if run is None:
        raise KeyboardInterrupt
    return run


def _decide(agent: Agent, card: Approval) -> None:
    """Draw the card and take one decision; an unreadable answer or a refused edit asks again."""
    print(f"\nAPPROVAL NEEDED  {card.tool}  (risk: {card.risk}, digest {card.digest[:12]})")
    print(card.preview)
    print(_quoted(card.canonical))
    while True:
        answer = _read(ASK).strip()
        word, _, reason = answer.partition(" ")
        if word.lower() in ("y", "yes") and not reason:
            decided = agent.decide(card.id, card.digest, approve=True)
        elif word.lower() in ("n", "no"):
            decided = agent.decide(card.id, card.digest, approve=False, reason=reason)
        elif word.lower() == "e" and not reason:
            if not _edit(agent, card):
                continue
            decided = True
        else:
            print("Answer y, n, n with a reason, or e.")
            continue
        if not decided:
            print("This card is no longer open; nothing was done.")
        return


def _edit(agent: Agent, card: Approval) -> bool:
    """Take new arguments, approve them, and say so; False where they were refused and the card stays."""
    text = _read("new arguments as JSON > ")
    try:
        return agent.decide(card.id, card.digest, approve=True, arguments=parse(text, agent.limits))
    except BadJson as error:
        print(error)
    except InvalidEdit as error:
        print(f"Not changed ({error.code}): {visible(error.message)}")
    return False


def _show_rows(agent: Agent, run: Run, shown: int) -> int:
    """The timeline from the event with this number on; under a request, the messages new in it."""
    events = run.events
    sent = 0
    for number, (event, row) in enumerate(zip(events, rows(events), strict=True)):
        messages = agent.request_messages(event) if isinstance(event, RequestSent) else []
        new, sent = messages[sent:], max(sent, len(messages))
        if number < shown:
            continue
        gates = " ".join(f"{v.gate}:{v.code or v.outcome}" for v in row.verdicts)
        parts = [f"{row.source} -> {row.target}", row.kind, row.call_id, row.code, gates]
        print("  ".join(visible(part) for part in parts if part))
        for text in [row.detail] if row.detail and not new else map(canonical, new):
            print(_quoted(text))
    return len(events)


def _show_end(run: Run) -> None:
    """The answer, what the program did, and the name of the end."""
    if run.answer:
        print(_quoted(run.answer))
    for event in run.events:
        if isinstance(event, CallFinished):
            outcome = "ok" if event.result.ok else event.result.code
            print(f"The program ran {event.result.tool_name}: {outcome} ({event.executed_digest[:12]}).")
    if run.state != State.COMPLETED:
        print(f"{run.state} ({run.end_code})." + (" " + _cause(run) if _cause(run) else ""))


def _cause(run: Run) -> str:
    """The sentence of the last failed request, where that is what ended the run."""
    failures = [row.detail for row in rows(run.events) if row.code == run.end_code and row.source == "model"]
    return visible(failures[-1]) if failures and str(run.end_code).startswith("provider") else ""


def _quoted(text: str) -> str:
    return "\n".join(GUTTER + visible(line) for line in text.splitlines() or [""])


def _read(prompt: str) -> str:
    try:
        return input(prompt)
    except EOFError:
        raise Leave from None


if __name__ == "__main__":
    sys.exit(main())
