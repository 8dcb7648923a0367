"""The house itself: format, lint, types and import contracts, and what the README claims."""

import itertools
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from agent.gates import GATES
from agent.limits import Limits
from agent.settings import Settings
from agent.words import ENDS
from tools.catalog import ALL_TOOLS

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


README = (ROOT / "README.md").read_text(encoding="utf-8")


def table(head: str) -> list[list[str]]:
    """The rows of the README's table that begins with this head."""
    lines = README[README.index(head) :].splitlines()[2:]
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.replace("`", "").strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_readme_names_the_limits() -> None:
    assert table("| limit |") == [[f.name, str(f.default)] for f in fields(Limits)]


def test_the_readme_names_the_tools() -> None:
    assert table("| tool |") == [[t.name, t.effect, t.permission] for t in ALL_TOOLS]


def test_the_readme_names_the_gates() -> None:
    assert [row[1] for row in table("| # | gate |")] == list(GATES)


def test_the_readme_names_every_end_and_each_has_its_sentence() -> None:
    ends = README[README.index("A run ends as COMPLETED") : README.index("Whatever ends it")]
    assert set(re.findall(r"`(\w+)`", ends)) == set(ENDS)


def test_the_article_about_limits_is_true() -> None:
    article = (ROOT / "knowledge" / "limits.md").read_text(encoding="utf-8")
    limits = Limits()
    assert f"at most {limits.max_tool_calls} tool calls and {limits.max_requests} requests" in article
    assert f"Each tool has {limits.tool_s:g} seconds, the whole run has {limits.run_s:g};" in article
    assert limits.max_identical_calls == limits.max_bad_arguments == 2
    assert "twice, not a third time. Two calls in a row" in article


def test_the_readme_names_the_settings() -> None:
    named = {row[0] for row in table("| setting |")} - {"GLASSLOOP_CONFIG"}
    assert named == {f"GLASSLOOP_{f.name.upper()}" for f in fields(Settings)}


def test_the_readme_names_the_files_that_exist() -> None:
    named = re.findall(r"`((?:agent|tools|tests|knowledge)/[\w./]*)`", README)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_readme_names_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = {re.split(r"[\[<>=]", line)[0] for line in project["dependencies"]}
    assert packages == {row[0] for row in table("| package |")} - {"pytest and the extra test"}


@pytest.mark.parametrize("block", re.findall(r"```python\n(.+?)```", README, re.DOTALL))
def test_the_examples_run(block: str) -> None:
    subprocess.run([sys.executable, "-c", block], cwd=ROOT, check=True)


def test_the_lesson_is_short() -> None:
    assert len((ROOT / "agent/loop.py").read_text(encoding="utf-8").splitlines()) <= 160


def test_importing_the_engine_loads_nothing_heavy() -> None:
    heavy = ("openai", "sqlalchemy", "requests", "streamlit", "pydantic", "jsonschema")
    code = f"import sys, agent; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
