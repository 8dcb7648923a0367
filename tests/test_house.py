"""The house itself: format, lint, types and import contracts, and what the README claims."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("agent", "tools", "tests")
TOP_LEVEL = {
    ".ci",
    ".gitignore",
    ".streamlit",
    "LICENSE",
    "README.md",
    "agent",
    "knowledge",
    "pyproject.toml",
    "tests",
    "tools",
    "web_demo.py",
}


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "format", "--check", *CODE),
        ("ruff", "check", *CODE),
        ("pyright", "--pythonpath", sys.executable),
        ("lint-imports",),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_the_code_is_in_order(command: tuple[str, ...]) -> None:
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_top_level_is_what_was_agreed() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {path.split("/")[0] for path in tracked.stdout.split()} <= TOP_LEVEL
