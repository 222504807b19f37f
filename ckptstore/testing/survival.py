"""What of a file and of a folder survives a power cut: the model behind crashfs.py, which says what it allows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class File:
    """A file: its durable bytes, and what was done to it since."""

    durable: bytes = b""
    ops: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Since the last fdatasync: (offset, bytes) of a write, (size, None) of a truncation."""
    failed: bool = False
    """An fdatasync failed, so nothing more becomes durable."""

    def sizes(self) -> list[int]:
        """The durable size, and the size after each op."""
        found = [len(self.durable)]
        for at, data in self.ops:
            found.append(at if data is None else max(found[-1], at + len(data)))
        return found

    def after(self, count: int) -> bytes:
        """The content after the first ops, as a disk that writes in order has it."""
        sizes = self.sizes()
        return _applied(self.durable.ljust(max(sizes), b"\0"), 0, self.ops[:count])[: sizes[count]]

    def live(self) -> bytes:
        """What a reader sees now."""
        return self.after(len(self.ops))

    def survivor(self, rng: random.Random, block: int) -> bytes:
        """What a power cut may leave, in blocks of this many bytes."""
        if rng.random() < 0.3:
            return self.after(rng.randint(0, len(self.ops)))
        sizes = self.sizes()
        size = rng.choice([sizes[0], sizes[-1], rng.choice(sizes), rng.randint(min(sizes), max(sizes))])
        pieces = []
        for start in range(0, size, block):
            end = min(start + block, size)
            touching = [(at, data) for at, data in self.ops if at < end and (data is None or at + len(data) > start)]
            noise = rng.choice([None, None, None, bytes, rng.randbytes])
            before = self.durable[start:end].ljust(end - start, b"\0")
            pieces.append(_applied(before, start, touching[: rng.randint(0, len(touching))], noise))
        return b"".join(pieces)


def _applied(block: bytes, start: int, ops: list[tuple[int, bytes | None]], noise: Callable[[int], bytes] | None = None) -> bytes:
    """The block at `start` after these ops; with noise, what they wrote is replaced by it."""
    result, end = bytearray(block), start + len(block)
    for at, data in ops:
        low, high = max(at, start), end if data is None else min(at + len(data), end)
        if low < high:
            new = bytes(high - low) if data is None else data[low - at : high - at]
            result[low - start : high - start] = new if noise is None else noise(high - low)
    return bytes(result)


@dataclass
class Folder:
    """A folder: its durable entries, and what was done to them since."""

    durable: dict[str, File | Folder] = field(default_factory=dict)
    ops: list[tuple[str | None, str | None, File | Folder | None]] = field(default_factory=list)
    """Since the last sync: (name that goes, name that comes, what it names)."""

    def entries(self, count: int | None = None) -> dict[str, File | Folder]:
        """The entries after the first `count` changes; by default after all of them."""
        found = dict(self.durable)
        for gone, come, node in self.ops[:count]:
            if gone is not None:
                found.pop(gone, None)
            if come is not None and node is not None:
                found[come] = node
        return found
