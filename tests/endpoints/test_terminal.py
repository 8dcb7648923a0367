"""The main job in the terminal, as a process of its own, against a server that nobody here wrote."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.endpoints.server import Endpoint

ROOT = Path(__file__).parent.parent.parent
KEY = "sk-terminal-CANARY-456"
QUESTION = "Please note my flight is at nine, Tokyo time."
NOTE = '{"text":"the flight is at nine"}'
OURS = ("GLASSLOOP_", "OPENAI_")


def ask(endpoint: Endpoint, typed: str, *more: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    environ |= {"GLASSLOOP_BASE_URL": endpoint.base_url, "GLASSLOOP_API_KEY": KEY, "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "agent", "--once", QUESTION, "--model", "gpt-4o", *more]
    return subprocess.run(
        command,
        input=typed,
        capture_output=True,
        encoding="utf-8",
        env={**environ, **settings},
        cwd=ROOT,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("stream", ["true", "false"])
def test_an_approved_note_is_saved_and_the_answer_shown(endpoint: Endpoint, stream: str) -> None:
    endpoint.play("note my flight")
    done = ask(endpoint, "y\n", GLASSLOOP_STREAM=stream)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"  | {NOTE}" in done.stdout
    assert "The program ran get_current_datetime: ok" in done.stdout
    assert "The program ran write_note: ok" in done.stdout
    assert "  | Your flight is noted." in done.stdout
    assert KEY not in done.stdout + done.stderr


def test_a_denied_note_is_not_saved_and_the_model_is_told_why(endpoint: Endpoint) -> None:
    endpoint.play("note my flight")
    done = ask(endpoint, "n not today\n")
    assert done.returncode == 0
    assert "The program ran get_current_datetime: ok" in done.stdout
    assert "The program ran write_note" not in done.stdout
    told = endpoint.bodies()[-1]["messages"][-1]["content"]
    assert '"code":"denied"' in told
    assert '"reason":"not today"' in told


def test_verbose_shows_the_protocol_and_never_the_key(endpoint: Endpoint) -> None:
    endpoint.play("note my flight")
    done = ask(endpoint, "y\n", "--verbose")
    assert done.returncode == 0
    for part in ("model  request", "program  asks", "you  approval", "program  approved", "program  result"):
        assert part in done.stdout
    assert KEY not in done.stdout + done.stderr


def test_end_of_input_at_a_card_cancels_and_saves_nothing(endpoint: Endpoint) -> None:
    endpoint.play("note my flight")
    done = ask(endpoint, "")
    assert done.returncode == 3
    assert "CANCELLED (cancelled)" in done.stdout
    assert "The program ran write_note" not in done.stdout
    assert "Traceback" not in done.stderr
