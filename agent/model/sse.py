"""Server-sent events, cut out of bytes that may be split anywhere."""


class Events:
    """Feed bytes, get `(event name, data)` of each whole event. Comments, ids and retries are dropped."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._after_cr = False
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        if not data:
            return []
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            self._rest.append(tail)
            return []
        if self._rest:
            head = b"".join((*self._rest, head))
        self._rest = [tail] if tail else []
        return self._read(head.split(b"\n"))

    def finish(self) -> list[tuple[bytes, bytes]]:
        """The last event, of a server that leaves out the closing empty line."""
        lines = [b"".join(self._rest), b""]
        self._rest = []
        return self._read(lines)

    def _read(self, lines: list[bytes]) -> list[tuple[bytes, bytes]]:
        events: list[tuple[bytes, bytes]] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif line:
                self._field(line)
            else:
                if self._data:
                    events.append((self._name, b"\n".join(self._data)))
                    self._data = []
                self._name = b""
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"event":
            self._name = value.strip()
        elif line == b"data":
            self._data.append(b"")
