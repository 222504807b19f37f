"""Appending to the log: whether zeros ahead of the frames make an fsync cheaper, and how many at a time.

    python bench/prefill.py FOLDER     FOLDER on the disk in question; about ten seconds

Writes frames of 300 bytes, each followed by fdatasync, into files that differ in how far they are extended ahead: not at all, and by 16, 64
and 256 KiB of zeros at a time. The ways take turns, so that a busy machine slows all of them. The zeros are part of what is measured.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

FRAME = 300
ROUNDS = 1500
AHEAD = (0, 16 << 10, 64 << 10, 256 << 10)


class Log:
    """A file that is appended to."""

    def __init__(self, path: Path, ahead: int) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.ahead = ahead
        self.tail = self.size = 0
        self.times: list[float] = []

    def append(self, frame: bytes) -> None:
        started = time.perf_counter()
        if self.ahead and self.tail + len(frame) > self.size:
            step = b"\0" * (self.tail + len(frame) - self.size + self.ahead)
            self.size += os.pwrite(self.fd, step, self.size)
        self.tail += os.pwrite(self.fd, frame, self.tail)
        os.fdatasync(self.fd)
        self.times.append(time.perf_counter() - started)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        logs = [Log(Path(inside) / str(ahead), ahead) for ahead in AHEAD]
        for _ in range(ROUNDS):
            for log in logs:
                log.append(os.urandom(FRAME))
        for log in logs:
            os.close(log.fd)
    print("| zeros ahead | median us | mean us | slowest of 100, us |")
    print("|---:|---:|---:|---:|")
    for log in logs:
        times = sorted(value * 1e6 for value in log.times)
        print(
            f"| {log.ahead >> 10} KiB | {statistics.median(times):.0f} | {statistics.mean(times):.0f} | "
            f"{times[len(times) * 99 // 100]:.0f} |"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
