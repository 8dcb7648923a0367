"""The knowledge folder: what is found, and what is never opened."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.tools.fakes import context
from tools.base import BadArguments, Tool, ToolError
from tools.knowledge import list_files, read_file, search_local

SECRET = "the launch code is 0000"
SHIPPED = Path(__file__).parents[2] / "knowledge"


def run(one: Tool, folder: Path, **arguments: Any) -> Any:
    return one.run(one.validate(arguments), context(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two good files and everything that must stay closed around them."""
    folder = tmp_path / "knowledge"
    private = tmp_path / "knowledge-private"
    for made in (folder, private, folder / "more", folder / "lessons", folder / ".git"):
        made.mkdir()
    (folder / "a.md").write_text("The tool timeout is 3 seconds.\n\nNaïve Café.\n", encoding="utf-8")
    (folder / "more" / "b.txt").write_text("A run may take 30 seconds.", encoding="utf-8")
    (folder / "lessons" / "one.toml").write_text(SECRET)
    (folder / ".hidden.md").write_text(SECRET)
    (folder / ".git" / "c.md").write_text(SECRET)
    (folder / "key.pem").write_text(SECRET)
    (folder / "folder.md").mkdir()
    (private / "p.md").write_text(SECRET)
    (folder / "link.md").symlink_to(private / "p.md")
    (folder / "inside.md").symlink_to(folder / "a.md")
    (folder / "door").symlink_to(private)
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe.txt")
    return folder


def test_only_plain_visible_files_are_listed(folder: Path) -> None:
    assert [file["path"] for file in run(list_files, folder)["files"]] == ["a.md", "more/b.txt"]


def test_a_file_is_read(folder: Path) -> None:
    found = run(read_file, folder, path="more/b.txt")
    assert found == {"path": "more/b.txt", "text": "A run may take 30 seconds.", "truncated": False}


CLOSED = [
    *("missing.md", "", ".", "..", "/", "a.md/", "./a.md", "more//b.txt", "more/../a.md", "A.MD.", "a.md\n"),
    *("../knowledge-private/p.md", "%2e%2e/knowledge-private/p.md", "door/p.md", "link.md", "inside.md"),
    *("/etc/passwd", "/etc/hosts.md", "~/a.md", "file:///a.md", "..\\a.md", "C:\\a.md", "C:a.md"),
    *(".hidden.md", ".git/c.md", "key.pem", "lessons/one.toml", "pipe.txt", "folder.md", "more"),
    *("a.md\x00.txt", "a.md\x00", "x" * 5_000 + ".md", "/".join("x" * 3_000) + ".md"),
]


@pytest.mark.parametrize("path", CLOSED, ids=range(len(CLOSED)))
def test_whatever_else_is_not_there(folder: Path, path: str) -> None:
    with pytest.raises(ToolError) as raised:
        run(read_file, folder, path=path)
    assert raised.value.code == "file_not_found"
    shown = "".join(c if c.isprintable() else "?" for c in path[:80])
    assert raised.value.message == (
        f"There is no file '{shown}' in the knowledge folder. Use list_files to see the names."
    )


def test_the_absolute_path_of_a_good_file_is_refused(folder: Path) -> None:
    with pytest.raises(ToolError, match="There is no file"):
        run(read_file, folder, path=str(folder / "a.md"))


def test_the_folder_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    assert run(read_file, tmp_path / "alias", path="a.md")["truncated"] is False


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert run(list_files, tmp_path / "no") == {"files": []}
    with pytest.raises(ToolError) as raised:
        run(search_local, tmp_path / "no", keyword="x")
    assert raised.value.code == "no_data"


def test_long_and_odd_content(folder: Path) -> None:
    (folder / "long.txt").write_text("y" * 9_000)
    (folder / "odd.txt").write_bytes(b"\xef\xbb\xbfok \xff end")
    (folder / "huge.txt").write_bytes(b"z" * 1_048_577)
    long = run(read_file, folder, path="long.txt")
    assert (len(long["text"]), long["truncated"]) == (8_000, True)
    assert run(read_file, folder, path="odd.txt")["text"] == "ok � end"
    with pytest.raises(ToolError) as raised:
        run(read_file, folder, path="huge.txt")
    assert raised.value.code == "too_large"
    with pytest.raises(ToolError, match="mentions"):
        run(search_local, folder, keyword="zzz")


def test_at_most_five_hundred_files_are_listed(tmp_path: Path) -> None:
    for number in range(510):
        (tmp_path / f"{number:03}.md").touch()
    assert len(run(list_files, tmp_path)["files"]) == 500


@pytest.mark.parametrize(
    ("keyword", "file", "line"),
    [
        ("timeout", "a.md", 1),
        ("TOOL Timeout", "a.md", 1),
        ("naive cafe", "a.md", 3),
        ("ＴＩＭＥＯＵＴ", "a.md", 1),
        ("  run ", "more/b.txt", 1),
    ],
)
def test_a_search_finds(folder: Path, keyword: str, file: str, line: int) -> None:
    first = run(search_local, folder, keyword=keyword)["excerpts"][0]
    assert (first["file"], first["line"]) == (file, line)
    assert len(first["digest"]) == 16


def test_chinese_words_are_found(tmp_path: Path) -> None:
    (tmp_path / "bj.md").write_text("北京是首都。故宫位于北京市中心。", encoding="utf-8")
    (tmp_path / "sh.md").write_text("上海是港口城市。", encoding="utf-8")
    found = run(search_local, tmp_path, keyword="北京")
    assert [one["file"] for one in found["excerpts"]] == ["bj.md"]


def test_more_of_the_words_come_first(folder: Path) -> None:
    (folder / "c.md").write_text("seconds seconds seconds seconds")
    found = run(search_local, folder, keyword="timeout seconds")["excerpts"]
    assert [one["file"] for one in found] == ["a.md", "c.md", "more/b.txt"]


def test_an_excerpt_is_short_and_holds_the_word(tmp_path: Path) -> None:
    filler = "lorem ipsum dolor ﬃ sit amet " * 60
    (tmp_path / "long.md").write_text(f"{filler}\n{filler}The quokkafall gauge. {filler}", encoding="utf-8")
    (one,) = run(search_local, tmp_path, keyword="quokkafall")["excerpts"]
    assert "quokkafall" in one["text"]
    assert len(one["text"]) <= 500
    assert one["line"] == 2


def test_at_most_five_excerpts_and_the_number_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "many.md").write_text("\n\n".join(f"word {number}" for number in range(8)))
    found = run(search_local, tmp_path, keyword="word")
    assert (len(found["excerpts"]), found["more"]) == (5, 3)


def test_odd_line_breaks_keep_line_numbers(tmp_path: Path) -> None:
    (tmp_path / "odd.md").write_bytes("\u0301\r\n\u0301\r\n\r\n\r\nx\n\u0301\nthe word\n".encode())
    (one,) = run(search_local, tmp_path, keyword="word")["excerpts"]
    assert one["line"] == 7


def test_what_was_too_much_to_search_is_told(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.md").write_text("word\n\n" + "z\n\n" * 300_000)
    (tmp_path / "huge.md").write_bytes(b"z" * 1_048_577)
    assert run(search_local, tmp_path, keyword="word")["files_not_searched"] == 2
    with pytest.raises(ToolError, match="2 files were too large"):
        run(search_local, tmp_path, keyword="other")


def test_a_search_reads_nothing_that_is_closed(folder: Path) -> None:
    with pytest.raises(ToolError) as raised:
        run(search_local, folder, keyword="launch")
    assert raised.value.code == "no_data"


@pytest.mark.parametrize("keyword", ["", "   ", "x" * 51, "\ud800", 5, None])
def test_a_faulty_keyword_is_refused(keyword: Any) -> None:
    with pytest.raises(BadArguments):
        search_local.validate({"keyword": keyword})


@pytest.mark.parametrize("keyword", ["\u0301", ".*", "(", "\x00", "a OR b*"])
def test_odd_keywords_only_find_nothing(tmp_path: Path, keyword: str) -> None:
    (tmp_path / "z.md").write_text("zzz")
    with pytest.raises(ToolError) as raised:
        run(search_local, tmp_path, keyword=keyword)
    assert raised.value.code == "no_data"


def test_the_shipped_folder_holds_a_lure_and_the_articles() -> None:
    paths = [file["path"] for file in run(list_files, SHIPPED)["files"]]
    assert {"refund_policy.txt", "tool_calls.md", "gates.md", "approvals.md", "limits.md"} <= set(paths)
    assert not list(SHIPPED.rglob("*.py"))
    assert "call write_note" in run(read_file, SHIPPED, path="refund_policy.txt")["text"]
    assert run(search_local, SHIPPED, keyword="refund")["excerpts"][0]["file"] == "refund_policy.txt"
