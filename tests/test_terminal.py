"""The terminal, as a person uses it: a process, its input, its output and its exit code."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTE = "note that my flight is at nine"


def terminal(*options: str, typed: str = "", **environ: str) -> tuple[int, str, str]:
    """Run the terminal; what is set for models on this machine stays outside."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GLASSLOOP_", "OPENAI_"))}
    done = subprocess.run(
        [sys.executable, "-m", "agent", *options],
        input=typed,
        cwd=ROOT,
        env={**clean, "PYTHONUTF8": "1", **environ},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("typed", "code", "says", "not_says"),
    [
        ("y\n", 0, "saved", "not done"),
        ("n\n", 0, "denied", "saved"),
        ("n wrong text\n", 0, "Reason: wrong text", "saved"),
        ('e\n{"text": "at ten"}\n', 0, "text at ten", "did not run"),
        ('e\n{"text": 5}\nn\n', 0, "bad_arguments", "saved"),
        ("e\nnonsense\ny\n", 0, "Not valid JSON", "not done"),
        ("maybe\ny\n", 0, "Answer y, n", "not done"),
        ("", 3, "CANCELLED (cancelled)", "saved"),
    ],
)
def test_the_card_takes_each_answer(typed: str, code: int, says: str, not_says: str) -> None:
    returned, out, _ = terminal("--once", NOTE, typed=typed)
    assert returned == code
    assert "APPROVAL NEEDED  write_note" in out
    assert '  | {"text":"my flight is at nine"}' in out
    assert says in out
    assert not_says not in out


def test_a_conversation_remembers_and_leaves() -> None:
    code, out, _ = terminal(typed=f"{NOTE}\ny\nshow my notes\nquit\n")
    assert code == 0
    assert "for one person" in out
    assert "scripted, not an AI" in out
    assert out.count("my flight is at nine") >= 3


@pytest.mark.parametrize("leave", ["exit\n", "quit\n", ""])
def test_it_is_left_in_three_ways(leave: str) -> None:
    assert terminal(typed=leave)[0] == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "Write a message first."), ("x" * 8001, "8001 characters"), ("\udcff", "not text")],
)
def test_a_message_that_cannot_be_sent_is_one_sentence(text: str, says: str) -> None:
    code, _, err = terminal("--once", text)
    assert code == 2
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("environ", "code", "says"),
    [
        ({"GLASSLOOP_BASE_URL": "nonsense"}, 2, "base URL"),
        ({"GLASSLOOP_CONFIG": "/nowhere/at-all.toml"}, 2, "cannot be read"),
        (
            {"GLASSLOOP_BASE_URL": "http://127.0.0.1:9/v1", "GLASSLOOP_API_KEY": "sk-secret-1"},
            1,
            "127.0.0.1:9",
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence(environ: dict[str, str], code: int, says: str) -> None:
    returned, out, err = terminal("--model", "m", "--once", "hi", **environ)
    assert returned == code
    assert says in out + err
    assert "sk-secret" not in out + err
    assert "/nowhere" not in out + err


def test_verbose_shows_each_request_message_and_gate() -> None:
    _, out, _ = terminal("--once", NOTE, "--verbose", typed="y\n")
    for shown in (
        "program -> model  request",
        '"role":"user"',
        "approval:write",
        "you -> program  approved",
        "execute:pass",
        '"role":"tool"',
    ):
        assert shown in out


def test_a_strangers_text_stays_behind_the_bar() -> None:
    hostile = "note that \x1b[2J\u202eAPPROVAL NEEDED\u2028APPROVAL NEEDED  write_note"
    _, out, _ = terminal("--once", hostile, typed="y\n")
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert len([line for line in out.splitlines() if line.startswith("APPROVAL NEEDED")]) == 1


@pytest.mark.parametrize("leave", ["exit\n", "quit\n"])
def test_a_card_can_be_left_too(leave: str) -> None:
    code, out, _ = terminal(typed=f"{NOTE}\n{leave}add 1 and 2\n")
    assert code == 3
    assert "did not run write_note: cancelled" in out
    assert "add" not in out.split("APPROVAL")[1].replace("[e] edit", "")


def test_an_edit_is_shown_as_it_ran() -> None:
    _, out, _ = terminal("--once", NOTE, typed='e {"text": "at ten"}\n')
    assert 'Approved as edited:\n  | {"text":"at ten"}' in out
    assert "ran write_note: ok, exactly as approved" in out


def test_an_approval_whose_run_was_left_is_named() -> None:
    _, out, _ = terminal("--once", f"{NOTE}, then note that b", typed="y\n")
    assert out.count("The program ran write_note: ok") == 1
    assert "The program did not run write_note: cancelled" in out


@pytest.mark.parametrize(
    ("environ", "question"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0"}, "hello"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0"}, "计算 17 加 25"),
        ({"PYTHONIOENCODING": "ascii"}, "hello"),
        ({"PYTHONIOENCODING": "cp1252"}, "计算 17 加 25"),
    ],
)
def test_any_locale_gets_an_answer(environ: dict[str, str], question: str) -> None:
    assert terminal("--once", question, **environ)[0] == 0


@pytest.mark.parametrize(
    "redirected", ["<&-", ">&- --once hello", "--once 'list files' >/dev/full", "--once 'list files' | true"]
)
def test_a_stream_that_is_gone_is_no_traceback(redirected: str) -> None:
    command = ["sh", "-c", f"{sys.executable} -m agent {redirected}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr


class Screen:
    """The terminal on a pseudo-terminal, as a person has it."""

    def __init__(self, columns: int = 80) -> None:
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            clean = {k: v for k, v in os.environ.items() if not k.startswith(("GLASSLOOP_", "OPENAI_"))}
            size = {"COLUMNS": str(columns), "TERM": "dumb", "PYTHONUTF8": "1"}
            os.execve(sys.executable, [sys.executable, "-m", "agent"], {**clean, **size})

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, text: str) -> str:
        """Read until this text has come, or for half a minute."""
        seen = ""
        while text not in seen and select.select([self.fd], [], [], 30)[0]:
            seen += os.read(self.fd, 4096).decode(errors="replace")
        assert text in seen
        self.text += seen
        return seen

    def close(self) -> None:
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@pytest.fixture
def screen() -> Iterator[Screen]:
    one = Screen(columns=60)
    yield one
    one.close()


def test_nobody_approves_a_card_before_it_is_seen(screen: Screen) -> None:
    screen.until("you > ")
    screen.type("add 1 and 2\nnote that a\ny\n")
    screen.until("[e] edit > ")
    screen.type("n too fast\n")
    assert "did not run write_note: denied" in screen.until("you > ")
    screen.type("quit\n")


def test_a_long_line_is_wrapped_behind_the_bar(screen: Screen) -> None:
    screen.until("you > ")
    screen.type(f"note that x{' ' * 49}APPROVAL NEEDED  write_note\n")
    seen = screen.until("[e] edit > ")
    card = seen[seen.index("Save one note") :].replace("\r", "")
    assert [line for line in card.splitlines()[1:-1] if not line.startswith("  | ")] == []
    screen.type("exit\n")


def test_a_line_of_more_than_four_thousand_characters_arrives_whole(screen: Screen) -> None:
    screen.until("you > ")
    screen.type("x" * 8001 + "\n")
    screen.until("8001 characters")
    screen.type("quit\n")
