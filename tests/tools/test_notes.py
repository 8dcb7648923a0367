"""Notes, over an owner-bound fake."""

from typing import Any

import pytest

from tests.tools.fakes import NOON, context
from tools.base import BadArguments
from tools.notes import list_notes, write_note


def test_a_note_is_saved_once_under_one_key() -> None:
    ctx = context(key="intent-1")
    arguments = write_note.validate({"text": "  flight at nine  "})
    assert arguments == {"text": "flight at nine"}
    saved = {"saved": {"id": "note-1", "text": "flight at nine", "created_at": NOON.isoformat()}}
    assert write_note.run(arguments, ctx) == saved
    assert write_note.run(arguments, ctx) == saved
    assert len(ctx.notes.list()) == 1


def test_notes_are_listed_the_newest_first_and_bounded() -> None:
    ctx = context()
    for number in range(60):
        ctx.notes.add(f"n{number}", f"k{number}")
    found: Any = list_notes.run({}, ctx)
    assert found["total"] == 60
    assert [note["text"] for note in found["notes"]][:2] == ["n59", "n58"]
    assert len(found["notes"]) == 50


def test_no_notes() -> None:
    assert list_notes.run({}, context()) == {"notes": [], "total": 0}


@pytest.mark.parametrize("text", ["", " \n\t", "x" * 301, 5, None])
def test_a_text_that_is_no_note_is_refused(text: Any) -> None:
    with pytest.raises(BadArguments):
        write_note.validate({"text": text})


def test_a_tool_never_names_an_owner() -> None:
    with pytest.raises(BadArguments):
        write_note.validate({"text": "x", "owner_id": "o-2"})
