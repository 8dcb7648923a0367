"""The terminal chat: one question, or a conversation, with the whole protocol behind --verbose.

Exit codes: 0 completed, 1 the last run failed, 2 wrong usage or settings, or output that cannot be written,
3 the last run was cancelled.
"""

import argparse
import importlib
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from io import TextIOWrapper

from agent.agent import Agent
from agent.arguments import BadJson, json_text, parse
from agent.errors import InvalidEdit, InvalidMessage
from agent.model import Model
from agent.model.scripted import Scripted
from agent.record import Approval, RequestSent, State
from agent.run import Run
from agent.settings import Settings, SettingsError, build_model, load_settings
from agent.timeline import Row, ledger, rows, visible
from agent.words import ENDS
from tools.catalog import ALL_TOOLS

EXIT = {State.COMPLETED: 0, State.FAILED: 1, State.CANCELLED: 3}
USAGE_ERROR = 2
MAX_INLINE_CHARS = 64
LEAVE = ("exit", "quit")
GUTTER = "  | "
"""Stands before every line of a model, a tool or a document, so that none can pass for the program's."""

BANNER = """\
Glassloop in the terminal, for one person: whoever types here also approves.
Model: {model}. Leave with exit, quit or the end of input; Ctrl-C stops a run.
Try: add 2 and 3, then note that the sum is five"""

NO_MODEL = "An endpoint is set but no model (GLASSLOOP_MODEL or --model), so the script plays."
RECEIPTS = {None: "", True: ", exactly as approved", False: ", NOT as approved"}
ASK = "[y] approve  [n] deny  [n REASON] deny with a reason  [e] edit > "


class Leave(Exception):
    """The person leaves."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    _speak_any_language()
    try:
        model = _model(options.model)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    chat = Chat(Agent(model=model, tools=ALL_TOOLS), options.verbose)
    if options.once is not None:
        with suppress(Leave):
            chat.ask(_as_typed(options.once))
        return chat.exit_code
    print(BANNER.format(model=visible(model.name)))
    chat.converse()
    return chat.exit_code


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
    model = build_model(replace(settings, model=name) if name else settings)
    if model is None and settings.base_url != Settings().base_url:
        print(NO_MODEL, file=sys.stderr)
    return model or Scripted()


class Chat:
    """One person at a terminal: reads lines, shows what comes, decides cards."""

    def __init__(self, agent: Agent, verbose: bool) -> None:
        self._agent = agent
        self._verbose = verbose
        self._said = ""
        self._quote = Quote()
        self.exit_code = 0

    def converse(self) -> None:
        while True:
            try:
                text = _read("you > ")
                if text.strip().lower() in LEAVE:
                    return
                self.ask(text)
            except (Leave, KeyboardInterrupt):
                print()
                return

    def ask(self, text: str) -> None:
        """Ask, decide what has to be decided, and show how it ended. Raises `Leave` if the person left."""
        self._said = ""
        shown, left = 0, False
        try:
            run = self._working(lambda: self._agent.ask(text, self._say))
            while run.pending:
                shown = self._show_rows(run, shown)
                try:
                    self._decide(run.pending)
                except (Leave, KeyboardInterrupt) as event:
                    left = isinstance(event, Leave)
                    self._agent.stop()
                self._said = ""
                run = self._working(lambda: self._agent.proceed(self._say))
        except InvalidMessage as error:
            print(error, file=sys.stderr)
            self.exit_code = USAGE_ERROR
            return
        self._show_rows(run, shown)
        self._show_end(run)
        self.exit_code = EXIT[run.state]
        if left:
            raise Leave

    def _working(self, work: Callable[[], Run | None]) -> Run:
        """Let the agent work; Ctrl-C ends the run, and the agent answers what was open."""
        try:
            run = work()
        except KeyboardInterrupt:
            run = self._agent.run
        print(self._quote.end(), end="")
        if run is None:
            raise KeyboardInterrupt
        return run

    def _say(self, text: str) -> None:
        """Print what a model writes while it writes it."""
        self._said += text
        print(self._quote.take(text), end="", flush=True)

    def _decide(self, cards: Sequence[Approval]) -> None:
        """Draw the first card and take one decision; an unreadable answer or a refused edit asks again."""
        card = cards[0]
        count = f", the first of {len(cards)} cards" if len(cards) > 1 else ""
        print(f"\nAPPROVAL NEEDED  {card.tool}{count}  (risk: {card.risk}, digest {card.digest[:12]})")
        print(card.preview)
        print(_quoted(card.canonical))
        decided = None
        while decided is None:
            word, _, rest = _read(ASK, fresh=True).strip().partition(" ")
            decided = self._answered(card, word.lower(), rest.strip())
        if not decided:
            print("This card is no longer open; nothing was done.")

    def _answered(self, card: Approval, word: str, rest: str) -> bool | None:
        """Take an answer to a card: whether it decided it, None where it must be asked again."""
        if word in LEAVE and not rest:
            raise Leave
        if word in ("y", "yes") and not rest:
            return self._agent.decide(card.id, card.digest, approve=True)
        if word in ("n", "no"):
            return self._agent.decide(card.id, card.digest, approve=False, reason=rest)
        if word == "e":
            return self._edited(card, rest or _read("new arguments as JSON > "))
        print("Answer y, n, n with a reason, or e.")
        return None

    def _edited(self, card: Approval, text: str) -> bool | None:
        """Approve the card with other arguments; None where they were refused and the card stays."""
        if text.strip().lower() in LEAVE:
            raise Leave
        try:
            arguments = parse(text, self._agent.limits)
            decided = self._agent.decide(card.id, card.digest, approve=True, arguments=arguments)
        except BadJson as error:
            print(f"Not changed: {visible(str(error))}")
            return None
        except InvalidEdit as error:
            print(f"Not changed ({error.code}): {visible(error.message)}")
            return None
        print("Approved as edited:")
        print(_quoted(json_text(arguments)))
        return decided

    def _show_rows(self, run: Run, shown: int) -> int:
        """The timeline from the event with this number on; under a request, the messages new in it."""
        events = run.events
        sent = 0
        for number, event in enumerate(events if self._verbose else ()):
            messages = self._agent.request_messages(event) if isinstance(event, RequestSent) else []
            new, sent = messages[sent:], max(sent, len(messages))
            if number >= shown:
                for row in rows([event]):
                    _show_row(row, list(map(json_text, new)))
        return len(events)

    def _show_end(self, run: Run) -> None:
        """What was not streamed of the answer, what the program did, and what the end means."""
        if run.answer and run.answer not in self._said:
            print(_quoted(run.answer))
        for deed in ledger(run.events):
            tool = _inline(deed.tool)
            if deed.ran:
                print(f"The program ran {tool}: {deed.code or 'ok'}{RECEIPTS[deed.as_approved]}.")
            elif deed.code:
                print(f"The program did not run {tool}: {deed.code}.")
        if run.state != State.COMPLETED and run.end_code:
            print(f"{run.state} ({run.end_code}). {ENDS[run.end_code]}")
            if cause := _cause(run):
                print(_quoted(cause))


def _show_row(row: Row, messages: Sequence[str]) -> None:
    gates = " ".join(f"{v.gate}:{v.code or v.outcome}" for v in row.verdicts)
    parts = [row.kind, row.call_id, row.tool, row.code]
    words = [f"{row.source} -> {row.target}", *(_inline(part) for part in parts if part), gates]
    print("  ".join(filter(None, words)))
    for text in messages or filter(None, [row.detail]):
        print(_quoted(text))


def _cause(run: Run) -> str:
    """The sentence of the failed request that ended the run, where one did."""
    failures = [row.detail for row in rows(run.events) if row.code == run.end_code and row.source == "model"]
    return failures[-1] if failures and str(run.end_code).startswith("provider") else ""


class Quote:
    """A stranger's words behind the gutter, wrapped before the terminal would wrap them to the margin."""

    def __init__(self) -> None:
        self._column = 0
        self._word = ""

    def take(self, text: str) -> str:
        """What can be printed of this text: whole words, and whatever ends them."""
        placed = ""
        for character in visible(text).replace("\t", "    "):
            self._word += character
            if character in " \n":
                placed += self._flushed()
        return placed

    def end(self) -> str:
        """The rest, and what ends the last line where one was begun."""
        rest = self._flushed()
        ended, self._column = ("\n" if self._column else ""), 0
        return rest + ended

    def _flushed(self) -> str:
        word, self._word = self._word, ""
        columns = shutil.get_terminal_size().columns if _is_terminal() else sys.maxsize
        breaks = self._column > len(GUTTER) and self._column + _width(word.rstrip()) >= columns
        placed, self._column = ("\n", 0) if breaks else ("", self._column)
        for character in word:
            placed += self._placed(character, columns)
        return placed

    def _placed(self, character: str, columns: int) -> str:
        if character == "\n":
            begun, self._column = self._column, 0
            return "\n" if begun else GUTTER + "\n"
        lead = "" if self._column else GUTTER
        if self._column + _width(character) >= columns:
            lead = "\n" + GUTTER
        self._column = (len(GUTTER) if lead else self._column) + _width(character)
        return lead + character


def _width(text: str) -> int:
    """Columns that a text takes: ambiguous ones counted wide, so that a line ends early and not late."""
    return sum(2 if unicodedata.east_asian_width(character) in "WFA" else 1 for character in text)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # pyright: ignore[reportUnnecessaryComparison]


def _quoted(text: str) -> str:
    quote = Quote()
    return (quote.take(text) + quote.end()).removesuffix("\n") or GUTTER.rstrip()


def _inline(text: str) -> str:
    """A stranger's word in a line of the program's: inert, in one piece, and short."""
    shown = " ".join(visible(text).split())
    return shown if len(shown) <= MAX_INLINE_CHARS else shown[: MAX_INLINE_CHARS - 1] + "…"


def _read(prompt: str, *, fresh: bool = False) -> str:
    """Read a line. A `fresh` one was typed after the prompt: nobody approves a card before it is seen."""
    if fresh:
        _forget_typed()
    try:
        return input(prompt)
    except (EOFError, RuntimeError):  # the end of input, or no input at all
        raise Leave from None


def _as_typed(text: str) -> str:
    """An argument as it was typed: under a locale without UTF-8, Python hands over its bytes in disguise."""
    with suppress(UnicodeError):
        return os.fsencode(text).decode()
    return text


def _forget_typed() -> None:
    if not sys.stdin or not sys.stdin.isatty():
        return
    try:
        import termios
    except ImportError:  # Windows has its own console
        return
    with suppress(termios.error):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _speak_any_language() -> None:
    """Long lines and history where there is readline; any text in any locale, escaped where it must be."""
    with suppress(ImportError):
        importlib.import_module("readline")  # input uses it once it is loaded
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            encoding = "utf-8" if stream.encoding.lower() in ("ascii", "us-ascii", "ansi_x3.4-1968") else None
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _guarded() -> int:
    """The program as a process: a reader that went away, or a full disk, is no traceback."""
    try:
        code = main()
        print(end="", flush=True)
    except KeyboardInterrupt:
        return EXIT[State.CANCELLED]
    except OSError:
        # What is still buffered cannot be written either; without this the interpreter would try.
        print("The output cannot be written.", file=sys.stderr)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return USAGE_ERROR
    return code


if __name__ == "__main__":
    sys.exit(_guarded())
