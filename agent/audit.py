"""The audit: one JSON line for each event, without the words of anybody.

A line holds names, codes, times and digests. Digests are keyed with a secret of the log, because a
plain hash of "2,3" or of an owner's name can be guessed.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from agent.record import (
    ApprovalExpired,
    ApprovalRequested,
    CallAnswered,
    CallFinished,
    Decided,
    Event,
    Judging,
    ReplyReceived,
    RunEnded,
    ToolResult,
)

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Audit(Protocol):
    """Where audit lines go. `write` takes the fields of one line; it must not raise."""

    def write(self, line: Mapping[str, Any]) -> None: ...

    def keyed(self, text: str) -> str:
        """The keyed digest of a text, in hex."""
        ...


class AuditLog:
    """Append-only JSON lines in a file that only its owner can read.

    `key` makes digests comparable over restarts; without one they compare within this log object. A
    line that cannot be written is counted in `lost`: a full disk must not end a run.
    """

    def __init__(self, path: str | Path, key: bytes | None = None) -> None:
        self.lost = 0
        self._key = key or os.urandom(32)
        self._lock = Lock()
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        # Unbuffered: what a full disk refused must not come back in front of a later line.
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    def write(self, line: Mapping[str, Any]) -> None:
        data = _encode(line).encode() + b"\n"
        with self._lock:
            try:
                self.lost += self._file.write(data) != len(data)
            except (OSError, ValueError):
                self.lost += 1

    def keyed(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(errors="surrogatepass"), hashlib.sha256).hex()[:32]

    def close(self) -> None:
        self._file.close()


def audited(event: Event, audit: Audit) -> dict[str, Any]:
    """The fields of an event's audit line: names, codes and keyed digests, no words of anybody."""
    line: dict[str, Any] = {"event": event.kind}
    match event:
        case Judging():
            line |= {"call_id": event.call_id, "arguments_digest": audit.keyed(event.digest)}
            line["policy_result"] = event.verdicts[-1].outcome if event.verdicts else None
        case CallFinished() | ApprovalExpired():
            line["call_id"] = event.call_id
        case Decided():
            line |= {"call_id": event.call_id, "approval_id": event.approval_id}
            line |= {"decision": "approved" if event.approve else "denied"}
            line["arguments_digest"] = audit.keyed(event.digest)
        case ReplyReceived():
            line["latency_ms"] = event.elapsed_ms
        case RunEnded():
            line["error_code"] = event.code
        case _:
            pass
    if isinstance(event, ApprovalRequested):
        line |= {"approval_id": event.approval.id, "decision": "requested", "tool_name": event.approval.tool}
    if isinstance(event, CallAnswered | CallFinished | ApprovalExpired):
        known = not isinstance(event, CallAnswered) or event.effect is not None
        line |= _audited_result(event.result, event.result.tool_name if known else None, audit)
    return line


def _audited_result(result: ToolResult, tool: str | None, audit: Audit) -> dict[str, Any]:
    return {
        "tool_name": tool,
        "result_digest": audit.keyed(result.data or "") if result.ok else None,
        "latency_ms": result.elapsed_ms,
        "error_code": result.code,
    }
