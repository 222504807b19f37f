"""What a new version of a value is stored against: schemes compared by simulation, without a store.

    python bench/bases.py             prints the table

For generated message histories, packed as LangGraph packs them, this computes for each scheme the bytes of all value records (`diff` and
`compress` of this package, and 16 bytes a record for its entry in the directory), and how many frames a read of each version touches.

- `chain`: against the version before, whole every 10 versions.
- `skip b`: version n against the version whose number in base b has its lowest digit that is not 0 lowered by one. `skip 2` is what the
  package does.
- `extents b`: a version is a list of extents, stored ranges of bytes. It keeps what it still holds of the extents of the version before,
  stores what is between as new ones, and merges b neighbours that have about the same size into a new one. The list of references is
  part of the record.

Histories: a list that grows by one message; one where besides every third version changes a message somewhere; one that is replaced
altogether.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ckptstore.codec.compression import compress
from ckptstore.codec.patch import container_header, diff

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bytes import text

COUNTS = (100, 500, 2000)
ENTRY = 16
REFERENCE = 3
MOST_FRAMES = 16
SHORTEST = 24
"""A shorter part of an extent is not worth its reference."""

SERDE = JsonPlusSerializer()


class Cost(NamedTuple):
    """Of one history under one scheme."""

    size: int
    frames: list[int]


def packed(messages: list[bytes]) -> bytes:
    """A msgpack array of packed messages."""
    count = len(messages)
    header = bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    return header + b"".join(messages)


def message(rng: random.Random, number: int) -> bytes:
    return SERDE.dumps_typed(HumanMessage(text(rng), id=f"m{number}"))[1]


def grows(count: int) -> list[bytes]:
    rng = random.Random(1)
    messages: list[bytes] = []
    versions = []
    for number in range(count):
        messages.append(message(rng, number))
        versions.append(packed(messages))
    return versions


def changes_in_the_middle(count: int) -> list[bytes]:
    rng = random.Random(2)
    messages: list[bytes] = []
    versions = []
    for number in range(count):
        messages.append(message(rng, number))
        if number % 3 == 2:
            at = rng.randrange(len(messages))
            messages[at] = message(rng, at)
        versions.append(packed(messages))
    return versions


def is_replaced(count: int) -> list[bytes]:
    """20 new messages each time."""
    rng = random.Random(3)
    return [packed([message(rng, number) for number in range(20)]) for _ in range(count)]


HISTORIES: dict[str, Callable[[int], list[bytes]]] = {
    "grows": grows,
    "changes in the middle": changes_in_the_middle,
    "is replaced": is_replaced,
}


def against(versions: list[bytes], base_of: Callable[[int], int | None]) -> Cost:
    """Each version as a patch against an earlier one, or whole where that is smaller or none is allowed.

    As the package does, a patch that holds a quarter of the value is compared with one against the version before.
    """
    size = 0
    frames: list[int] = []
    bases: list[int | None] = []
    for number, value in enumerate(versions):
        best = len(compress(value)[1])
        depth = 1
        base = base_of(number)
        while base is not None and frames[base] >= MOST_FRAMES:
            base = bases[base]
        bases.append(base)
        candidates = [] if base is None else [base]
        if base is not None and number - 1 != base and frames[number - 1] <= MOST_FRAMES // 2:
            candidates.append(number - 1)
        for candidate in candidates:
            patch = diff(versions[candidate], value)
            if patch is not None and len(patch) < best:
                best, depth = len(patch), frames[candidate] + 1
            if best * 4 <= len(value):
                break
        size += best + ENTRY
        frames.append(depth)
    return Cost(size, frames)


def chain(versions: list[bytes]) -> Cost:
    return against(versions, lambda number: number - 1 if number % 10 else None)


def skip(radix: int) -> Callable[[list[bytes]], Cost]:
    def base_of(number: int) -> int | None:
        if number == 0:
            return None
        power = 1
        while number % (power * radix) == 0:
            power *= radix
        return number - power

    return lambda versions: against(versions, base_of)


class Extent(NamedTuple):
    """A stored range of bytes, in a frame of its own version."""

    frame: int
    data: bytes


def extents(radix: int) -> Callable[[list[bytes]], Cost]:
    def cost(versions: list[bytes]) -> Cost:
        size = 0
        frames: list[int] = []
        kept: list[Extent] = []
        for number, value in enumerate(versions):
            kept = _fitted(kept, value[container_header(value) :], number)
            kept = _merged(kept, radix, number)
            new = b"".join(extent.data for extent in kept if extent.frame == number)
            size += len(compress(new)[1]) + ENTRY + REFERENCE * len(kept)
            frames.append(len({extent.frame for extent in kept} | {number}))
        return Cost(size, frames)

    return cost


def _fitted(before: list[Extent], body: bytes, number: int) -> list[Extent]:
    """What `body` still holds of the extents, whole or in part, and new ones for what is between."""
    found: list[Extent] = []
    at = 0
    for extent in before:
        for part in _held(extent, body, at):
            hit = body.find(part.data, at)
            if hit < 0:
                continue
            if hit > at:
                found.append(Extent(number, body[at:hit]))
            found.append(part)
            at = hit + len(part.data)
    if at < len(body):
        found.append(Extent(number, body[at:]))
    return found


def _held(extent: Extent, body: bytes, at: int) -> list[Extent]:
    """The extent, or its beginning and its end where it changed in between."""
    if body.find(extent.data, at) >= 0:
        return [extent]
    parts = []
    front = _alike(extent.data, body[at : at + len(extent.data)])
    if front >= SHORTEST:
        parts.append(Extent(extent.frame, extent.data[:front]))
    end = extent.data[-SHORTEST:]
    hit = body.find(end, at + front)
    if hit >= 0:
        stop = hit + len(end)
        back = _alike(extent.data[front:][::-1], body[at + front : stop][::-1])
        if back >= SHORTEST:
            parts.append(Extent(extent.frame, extent.data[len(extent.data) - back :]))
    return parts


def _alike(left: bytes, right: bytes) -> int:
    """Length of the common beginning."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _merged(kept: list[Extent], radix: int, number: int) -> list[Extent]:
    """Merge runs of neighbours of about one size, and then the smallest neighbours until the bound on frames holds."""
    kept = list(kept)
    again = True
    while again:
        again = False
        for start in range(len(kept) - radix, -1, -1):
            run = kept[start : start + radix]
            sizes = [len(extent.data) for extent in run]
            if max(sizes) < radix * min(sizes):
                kept[start : start + radix] = [Extent(number, b"".join(extent.data for extent in run))]
                again = True
                break
    while len({extent.frame for extent in kept} | {number}) > MOST_FRAMES:
        at = min(range(len(kept) - 1), key=lambda index: len(kept[index].data) + len(kept[index + 1].data))
        kept[at : at + 2] = [Extent(number, kept[at].data + kept[at + 1].data)]
    return kept


SCHEMES: dict[str, Callable[[list[bytes]], Cost]] = {
    "chain, whole every 10": chain,
    "skip 2": skip(2),
    "skip 3": skip(3),
    "skip 4": skip(4),
    "extents 2": extents(2),
    "extents 3": extents(3),
    "extents 4": extents(4),
}


def main() -> None:
    print("| history | versions | scheme | bytes | to `skip 2` | frames per read, mean | most |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for name, history in HISTORIES.items():
        for count in COUNTS:
            versions = history(count)
            costs = {scheme: measure(versions) for scheme, measure in SCHEMES.items()}
            for scheme, (size, frames) in costs.items():
                print(
                    f"| {name} | {count:,} | {scheme} | {size:,} | {size / costs['skip 2'].size:.2f} | "
                    f"{statistics.mean(frames):.1f} | {max(frames)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
