"""What storing and reading a value costs beside serializing and decoding it, in one run.

    python bench/cost.py          prints the table; a quarter of a minute

Medians over the last 16 versions of a history, 9 times each, everything in turns. `dumps` and `loads`: LangGraph's serde. `encode`: the
checksum, the comparison with earlier versions and compression (`Values.encode`), with the earlier bytes in the cache, as while a thread
runs. `cold`: reading the value from the log through its patches (`Values.raw`) with nothing cached by the store, but by the system.
`warm`: the same out of the store's cache.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import ckptstore
from ckptstore import LaneName
from ckptstore.activity import Activity
from ckptstore.codec.records import Kind
from ckptstore.lineage.values import Choice, Values
from ckptstore.model import Ref

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bytes import WORDS

LAST = 16
REPEATS = 9
LANE = LaneName("t")
SERDE = JsonPlusSerializer()


def message(rng: random.Random, number: int, size: int) -> HumanMessage:
    words = " ".join(rng.choice(WORDS) + (str(rng.randrange(100)) if rng.random() < 0.2 else "") for _ in range(size // 3))
    return HumanMessage(words[:size], id=f"m{number}")


def appended(count: int, size: int) -> list[Any]:
    rng = random.Random(1)
    messages = [message(rng, number, size) for number in range(count)]
    return [messages[: number + 1] for number in range(count)]


def replaced(count: int, size: int) -> list[Any]:
    rng = random.Random(2)
    return [[message(rng, number, size) for number in range(count)] for _ in range(2 * LAST)]


def one_changed(count: int, size: int) -> list[Any]:
    rng = random.Random(3)
    messages = [message(rng, number, size) for number in range(count)]
    versions = []
    for _ in range(2 * LAST):
        at = rng.randrange(count)
        messages = [*messages[:at], message(rng, at, size), *messages[at + 1 :]]
        versions.append(messages)
    return versions


def noise(wrap: Callable[[bytes], Any]) -> list[Any]:
    rng = random.Random(4)
    return [wrap(rng.randbytes(1_000_000)) for _ in range(LAST + 1)]


CASES: dict[str, Callable[[], list[Any]]] = {
    "100 messages of 128 B, one more": lambda: appended(100, 128),
    "400 messages of 128 B, one more": lambda: appended(400, 128),
    "100 messages of 1 KB, one more": lambda: appended(100, 1024),
    "400 messages of 1 KB, one more": lambda: appended(400, 1024),
    "400 messages of 128 B, one changed": lambda: one_changed(400, 128),
    "100 messages of 128 B, all new": lambda: replaced(100, 128),
    "100 messages of 1 KB, all new": lambda: replaced(100, 1024),
    "1 MB of random bytes": lambda: noise(lambda raw: raw),
    "1 MB of random bytes in a map": lambda: noise(lambda raw: {"file": raw}),
}


class Costs(NamedTuple):
    """Medians, in us."""

    size: int
    dumps: float
    encode: float
    loads: float
    cold: float
    warm: float
    frames: float


def timed(call: Callable[[], Any], into: list[float]) -> Any:
    started = time.perf_counter()
    result = call()
    into.append((time.perf_counter() - started) * 1e6)
    return result


def measure(versions: list[Any], folder: Path) -> Costs:
    times: dict[str, list[float]] = {name: [] for name in ("dumps", "encode", "loads", "cold", "warm")}
    refs: list[Ref] = []
    with ckptstore.open(folder, durability="process", cache_bytes=1 << 30) as store:
        for number, value in enumerate(versions):
            lsn = store.put_checkpoint(
                LANE,
                f"c{number}",
                f"c{number - 1}" if number else None,
                skeleton={},
                metadata={},
                versions={"messages": number + 1},
                values={"messages": value},
                changed={"messages"},
                encode=lambda channel, value: SERDE.dumps_typed(value),
            )
            with store._storage.view() as view:
                ordinals = [at for at, entry in enumerate(view.entries(lsn)) if entry[0] == Kind.VALUE]
            # Nothing to store where the value stands in the table itself: the first versions are that small.
            refs += [Ref(lsn, ordinal) for ordinal in ordinals]
        for _ in range(REPEATS):
            for back in range(1, LAST + 1):
                value, near, ref = versions[-back], refs[-back - 1], refs[-back]
                typed = timed(lambda value=value: SERDE.dumps_typed(value), times["dumps"])
                with store._storage.view() as view:
                    timed(
                        lambda view=view, typed=typed, near=near: store._values.encode(view, typed, crc32(typed[1]), Choice(near)),
                        times["encode"],
                    )
                    timed(lambda view=view, ref=ref: store._values.raw(view, ref), times["warm"])
                timed(lambda typed=typed: SERDE.loads_typed(typed), times["loads"])
    activity = Activity()
    with ckptstore.open(folder, cache_bytes=0, read_only=True) as store:
        for _ in range(REPEATS):
            for ref in refs[-LAST:]:
                values = Values(0, lambda: activity)
                with store._storage.view() as view:
                    timed(lambda values=values, view=view, ref=ref: values.raw(view, ref), times["cold"])
    medians = {name: statistics.median(found) for name, found in times.items()}
    size = len(SERDE.dumps_typed(versions[-1])[1])
    return Costs(size=size, frames=activity.value_frames / activity.value_reads, **medians)


def main() -> None:
    print("| value | bytes | dumps us | encode us | ratio | loads us | cold us | ratio | frames | warm us |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, versions in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            cost = measure(versions(), Path(folder) / "s")
        print(
            f"| {name} | {cost.size:,} | {cost.dumps:,.1f} | {cost.encode:,.1f} | {cost.encode / cost.dumps:.2f} | "
            f"{cost.loads:,.1f} | {cost.cold:,.1f} | {cost.cold / cost.loads:.2f} | {cost.frames:.1f} | {cost.warm:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
