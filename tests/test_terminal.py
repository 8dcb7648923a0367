"""The terminal, as a person uses it: a process, its input, its output and its exit code."""

import os
import subprocess
import sys
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
        ('e\n{"text": "at ten"}\n', 0, "at ten", "not done"),
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
        "request_sent",
        '"role":"user"',
        "approval:write",
        "decided",
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
