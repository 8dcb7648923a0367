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
        self._file = os.fdopen(descriptor, "a", encoding="utf-8")

    def write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")) + "\n"
        with self._lock:
            try:
                self._file.write(text)
                self._file.flush()
            except (OSError, ValueError):
                self.lost += 1

    def keyed(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(errors="surrogatepass"), hashlib.sha256).hex()[:32]

    def close(self) -> None:
        self._file.close()
