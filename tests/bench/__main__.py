"""What Glassloop costs: `python -m tests.bench`. A report, not a test: a missed target does not fail it.

CPU is `time.process_time` of this process, threads included; the server is another process. Both
sides are measured in turn, each pair gives one ratio, and the table shows medians. Where the machine
is busy, "of least" is steadier: the cheapest sample of ours over the cheapest of the floor's. The
floor's client makes a new connection after each stream, ours keeps its own; the cost of a delta
leaves that out.
"""

import gc
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.memory import AGENTS, MESSAGES
from tests.bench.sides import Side, both_sides, history_of

ROOT = Path(__file__).parent.parent.parent
MANY, FEW = 2_000, 20
IMPORTS = 21
BARRED = ("openai", "sqlalchemy", "requests", "streamlit")
ROW = "{:<44} {:>12} {:>12}   {:<24} {:>8} {:>7}  {}"


@dataclass(frozen=True)
class Turn:
    """One comparison: what is asked, how often in one sample, how many pairs of samples, and the target."""

    name: str
    model: str
    target: float | None
    stream: bool = False
    messages: int = 0
    batch: int = 5
    pairs: int = 25


TURNS = (
    Turn("6 rounds (5 calls and the answer)", "rounds-5", 0.50),
    Turn("1 round (the answer at once)", "rounds-0", 0.75, batch=20),
    Turn("1 turn after 200 messages", "rounds-0", 0.10, messages=200, batch=3, pairs=20),
    Turn("1 turn after 500 messages", "rounds-0", 0.05, messages=500, batch=2, pairs=15),
    Turn("1 round, streamed", "rounds-0", None, stream=True, batch=20),
)
DELTAS = (
    ("a delta, each in a chunk of its own", "deltas", 0.35),
    ("a delta, all in one chunk", "packed", None),
)


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} processors\n")
    print(ROW.format("CPU of one", "ours", "floor", "ratio (least to most)", "of least", "target", ""))
    with tempfile.TemporaryDirectory() as folder, server() as port, both_sides(port, Path(folder)) as sides:
        for turn in TURNS:
            compare(turn, *sides)
        for name, kind, target in DELTAS:
            compare_deltas(name, kind, target, *sides)
    print()
    report_memory()
    print()
    report_import()


@contextmanager
def server() -> Generator[int]:
    """The loopback server, as a process of its own, until the block ends."""
    command = [sys.executable, "-m", "tests.bench.server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("The server has no pipes.")
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


def compare(turn: Turn, ours: Side, floor: Side) -> None:
    pairs = [(cpu_s(ours, turn), cpu_s(floor, turn)) for _ in range(turn.pairs + 1)][1:]
    show(turn.name, pairs, turn.target)


def compare_deltas(name: str, kind: str, target: float | None, ours: Side, floor: Side) -> None:
    """The cost of one delta: a long answer less a short one."""

    def one(side: Side) -> float:
        many, few = (Turn("", f"{kind}-{count}", None, stream=True, batch=1) for count in (MANY, FEW))
        return (cpu_s(side, many) - cpu_s(side, few)) / (MANY - FEW)

    show(name, [(one(ours), one(floor)) for _ in range(16)][1:], target)


def cpu_s(side: Side, turn: Turn) -> float:
    """CPU seconds of one turn, over a batch of them; what is prepared for it does not count."""
    history = history_of(turn.messages)
    batch: list[Callable[[], object]] = [
        side.prepare(turn.model, turn.stream, history) for _ in range(turn.batch)
    ]
    gc.collect()
    start = time.process_time()
    for run in batch:
        run()
    return (time.process_time() - start) / turn.batch


def show(name: str, pairs: Sequence[tuple[float, float]], target: float | None) -> None:
    ratios = [ours / floor for ours, floor in pairs]
    ratio = median(ratios)
    spread = f"{ratio:.3f}x ({min(ratios):.3f} to {max(ratios):.3f})"
    all_ours, all_floor = zip(*pairs, strict=True)
    least = f"{min(all_ours) / min(all_floor):.3f}x"
    ours, floor = (f"{median(side) * 1e6:,.1f} us" for side in (all_ours, all_floor))
    wanted = f"{target:.2f}x" if target else ""
    print(ROW.format(name, ours, floor, spread, least, wanted, verdict(ratio, target)), flush=True)


def verdict(value: float, target: float | None) -> str:
    if target is None:
        return ""
    return "met" if value <= target else "NOT MET"


def report_memory() -> None:
    print(f"Memory of {AGENTS:,} live agents of {MESSAGES} messages (MB = 1,000,000 bytes), fresh processes")
    ways = ["traced", "resident"] if Path("/proc/self/statm").exists() else ["traced"]
    for what, words in (
        ("answers", "10 runs of user, answer"),
        ("calls", "5 runs of user, call, result, answer"),
    ):
        for way in ways:
            used = int(_output("-m", "tests.bench.memory", what, way)) / 1e6
            target = 13.0 if what == "answers" else None
            wanted = "13 MB" if target else ""
            print(
                ROW.format(f"{words}: {way}", f"{used:.2f} MB", "", "", "", wanted, verdict(used, target)),
                flush=True,
            )


def report_import() -> None:
    print(f"CPU of a fresh interpreter with compiled modules, median of {IMPORTS}")
    with tempfile.TemporaryDirectory() as folder:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ["PYTHONPYCACHEPREFIX"] = folder  # the first pair compiles, and is left out
        samples = range(IMPORTS + 1)
        pairs = [(_child_cpu_s("import agent", environ), _child_cpu_s("pass", environ)) for _ in samples][1:]
    whole, bare = (median(side) * 1000 for side in zip(*pairs, strict=True))
    only = median(one - other for one, other in pairs) * 1000
    met = verdict(whole, 150)
    print(ROW.format("import agent", f"{whole:.0f} ms", f"{bare:.0f} ms", "(floor: bare)", "", "150 ms", met))
    print(ROW.format("import agent, less the bare interpreter", f"{only:.0f} ms", "", "", "", "", ""))
    seen = _output("-c", f"import agent, sys; print(*[m for m in {BARRED} if m in sys.modules])").strip()
    print(f"of {', '.join(BARRED)} it loads: {seen or 'none'}")


def _child_cpu_s(code: str, environ: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _output("-c", code, environ=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _output(*arguments: str, environ: Mapping[str, str] | None = None) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, check=True, stdout=subprocess.PIPE, encoding="utf-8"
    )
    return done.stdout


if __name__ == "__main__":
    main()
