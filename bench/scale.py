"""How long looking takes in large stores: `inspect`, `threads` and `show`, as whole commands and inside one process.

    python bench/scale.py                       prints the table
    python bench/scale.py --before TREE         the same commands of another checkout in turn, and how many times faster these are
    python bench/scale.py --write               also writes docs/results/scale.json, and the table in docs/benchmarks.md

The stores are built in the folder for temporary files, which takes some minutes, and kept there for the next time:

    records     1,000,000 records in 1,000 threads: checkpoints with a value of their own, a batch of writes on each
    threads     100,000 threads of one checkpoint
    long        one thread of 12,000 checkpoints, made by native steps that append to a list

A command is timed from start to end, the start of Python included; inside a process is what the library takes, with the store closed
before and after. Processor time, the best of three, with the files in the page cache: on an idle machine that is what the clock shows, since
nothing is waited for and one thread works.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import ckptstore
from ckptstore import LaneName, Store, channels

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bytes import ROOT, replace_table

RESULT = ROOT / "docs" / "results" / "scale.json"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- bench/scale.py writes this table -->\n"
STORES = Path(tempfile.gettempdir()) / "ckptstore-scale"
ROUNDS = 3


def encode(channel: str, value: Any) -> tuple[str, bytes]:
    return "text", str(value).encode()


def put(store: Store, thread: str, step: int) -> None:
    """One checkpoint with one value, too long to stand in it."""
    id = f"{step:08x}-1f0a-6b3c-8001"
    store.put_checkpoint(
        LaneName(thread),
        id,
        f"{step - 1:08x}-1f0a-6b3c-8001" if step else None,
        skeleton={"v": 4, "ts": "2026-01-01T00:00:00+00:00"},
        metadata={"step": step, "source": "loop"},
        versions={"messages": step + 1},
        values={"messages": f"{thread}, step {step}: as long as what somebody says in a short message"},
        changed={"messages"},
        encode=encode,
    )


def put_batch(store: Store, thread: str, step: int) -> None:
    id = f"{step:08x}-1f0a-6b3c-8001"
    store.put_writes(LaneName(thread), id, [(0, "messages", f"reply {step}")], task_id=f"{step:08x}-task", encode=encode)


def fill_records(store: Store) -> None:
    # THREAD, LANE and META records come on top of these.
    for at in range(1_000_000 // 3):
        thread, step = f"thread-{at % 1000:04}", at // 1000
        put(store, thread, step)
        put_batch(store, thread, step)


def fill_threads(store: Store) -> None:
    for at in range(100_000):
        put(store, f"thread-{at:06}", 0)


def fill_long(store: Store) -> None:
    thread = store.thread("thread-0", schema={"messages": channels.append()})
    for step in range(12_000):
        thread.step({"messages": [f"step {step}: as long as what somebody says in a short message"]})


FILL: dict[str, Callable[[Store], None]] = {"records": fill_records, "threads": fill_threads, "long": fill_long}


def built(name: str) -> Path:
    """The store of that name, built where it is not there yet."""
    path = STORES / name
    if not path.exists():
        started = time.perf_counter()
        unfinished = STORES / f"{name}.{os.getpid()}"
        with ckptstore.open(unfinished, durability="process", auto_compact=False) as store:
            FILL[name](store)
        unfinished.rename(path)
        print(f"built {path} in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return path


class Measure(NamedTuple):
    """What is timed."""

    what: str
    store: str
    command: list[str]
    """Arguments of `ckpt`, without the store."""
    inside: str
    """The same, as an expression over `path`, `stats`, `threads`, `show` and `Reference`."""
    budget: float
    """Seconds that it may take."""


MEASURES = [
    Measure("inspect, 1,000,000 records", "records", ["inspect"], "stats.store_report(path)", 5.0),
    Measure("threads, 100,000", "threads", ["threads"], "threads.threads_report(path)", 1.0),
    Measure(
        "show, a thread of 12,000 checkpoints",
        "long",
        ["show", "thread-0"],
        "show.checkpoint_view(path, Reference('thread-0'))",
        0.2,
    ),
]
INSIDE = """
import sys, time
from ckptstore.inspect import show, stats, threads
from ckptstore.inspect.refs import Reference
path = sys.argv[1]
started = time.process_time()
{}
print(time.process_time() - started)
"""


def processor_time() -> float:
    """Seconds that the processes started from here took so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds(tree: Path, measure: Measure, path: Path) -> tuple[float, float]:
    """(the whole command, inside a process), with the code of `tree`."""
    # The folder that Python is started in comes first on its path.
    command = [sys.executable, "-m", "ckptstore.cli", measure.command[0], str(path), *measure.command[1:]]
    started = processor_time()
    subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
    whole = processor_time() - started
    inside = [sys.executable, "-c", INSIDE.format(measure.inside), str(path)]
    return whole, float(subprocess.run(inside, cwd=tree, check=True, capture_output=True, text=True).stdout)


def run(before: Path | None) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for measure in MEASURES:
        path = built(measure.store)
        trees = {"now": ROOT} if before is None else {"before": before, "now": ROOT}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
        for _ in range(ROUNDS):
            for name, tree in trees.items():
                times[name].append(seconds(tree, measure, path))
        row: dict[str, Any] = {"budget": measure.budget}
        for name, found in times.items():
            row[name] = {"command": round(min(whole for whole, _ in found), 3), "inside": round(min(at for _, at in found), 3)}
        rows[measure.what] = row
        print(measure.what, row, file=sys.stderr, flush=True)
    return {"python": platform.python_version(), "ckptstore": version("ckptstore"), "rounds": ROUNDS, "seconds": rows}


def table(result: dict[str, Any]) -> str:
    lines = [
        "| command | budget, s | whole command, s | inside a process, s | before, s | share of before |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for what, row in result["seconds"].items():
        now, before = row["now"], row.get("before")
        compared = "| - | - |" if before is None else f"| {before['inside']:.2f} | {now['inside'] / before['inside']:.0%} |"
        lines.append(f"| {what} | {row['budget']:g} | {now['command']:.2f} | {now['inside']:.2f} {compared}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="How long looking takes in large stores.")
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    STORES.mkdir(exist_ok=True)
    result = run(arguments.before)
    print(table(result), end="")
    if arguments.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
        replace_table(PAGE, BEGIN, table(result))


if __name__ == "__main__":
    main()
