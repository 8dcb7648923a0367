"""The audit: one line an event, no words of anybody, and a full disk that ends no run."""

import json
import stat
from pathlib import Path

from agent import State
from agent.audit import AuditLog
from tests.support import Counter, Setup, asks, call, make_tool


def audited(path: Path) -> tuple[Setup, list[dict[str, object]]]:
    log = AuditLog(path)
    setup = Setup(asks(call("w", "note", {"text": "CANARY"})), "CANARY answer", audit=log)
    setup.ask("CANARY question")
    card = setup.run.pending[0]
    setup.decide()
    setup.agent.decide(card.id, card.digest, approve=False, reason="CANARY")
    setup.proceed()
    log.close()
    return setup, [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_event_is_a_line_and_a_late_decision_one_more(tmp_path: Path) -> None:
    setup, lines = audited(tmp_path / "log" / "audit.jsonl")
    kinds = [event.kind for event in setup.agent.events]
    assert [line["event"] for line in lines if line["event"] != "decision_ignored"] == kinds
    assert [line["event"] for line in lines].count("decision_ignored") == 1
    assert {line["run_id"] for line in lines} == {setup.run.id}
    assert [line.get("decision") for line in lines if line.get("decision")] == ["requested", "approved"]


def test_no_word_of_anybody_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    setup, lines = audited(path)
    text = path.read_text(encoding="utf-8")
    assert "CANARY" not in text
    assert "o-1" not in text
    # Digests are keyed: nobody finds the arguments by hashing a guess.
    assert setup.run.events[3].digest not in text  # type: ignore[attr-defined]
    assert all(line["user_id_hash"] == lines[0]["user_id_hash"] for line in lines)


def test_only_its_owner_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log" / "audit.jsonl"
    audited(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_full_disk_is_counted_and_ends_nothing() -> None:
    log = AuditLog("/dev/full")
    setup = Setup("hello", audit=log)
    assert setup.ask().state == State.COMPLETED
    log.close()
    assert log.lost == len(setup.agent.events)


def test_what_comes_back_too_late_is_a_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    setup = Setup(asks(call("l", "stopper", {"text": "A"})), "never", audit=log)
    setup.rebuild(make_tool("stopper", Counter(lambda _: setup.agent.stop()), "read"))
    setup.ask()
    log.close()
    events = [json.loads(line)["event"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert events[-2:] == ["run_ended", "late_result_dropped"]


def test_a_name_that_a_model_made_up_is_not_in_it(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    setup = Setup(
        asks(*(call(str(n), f"the password is hunter{n}", {}) for n in range(9))), "done", audit=log
    )
    setup.ask()
    log.close()
    assert "hunter" not in (tmp_path / "audit.jsonl").read_text()
