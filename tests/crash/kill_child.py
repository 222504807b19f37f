"""Run by test_kill.py: forks a child for each job that comes on stdin; the child runs a program and is killed on its way.

One line of JSON a job. Lines on stdout: `pid N` when the child begins, `open` when its store is open, `ack N` when call N returned,
`end STATUS` when the child is gone. The forking process never opens a store, so each child is as good as a new process, and faster.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from errno import EIO
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ckptstore.storage.local import backup
from ckptstore.storage.local.vfs import Vfs
from tests.crash.programs import opened, program, run


class Deadly(Vfs):
    """Kills this process at the nth time it passes a point; may fail an fsync before."""

    def __init__(self, point: str | None, nth: int, fail_fsync: int) -> None:
        self._point = point
        self._left = nth
        self._syncs_left = fail_fsync

    def point(self, name: str) -> None:
        if self._point is not None and fnmatch(name, self._point):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def fdatasync(self, fd: int) -> None:
        self._syncs_left -= 1
        if self._syncs_left == 0:
            raise OSError(EIO, os.strerror(EIO))
        super().fdatasync(fd)


def say(line: str) -> None:
    """One write, so that the parent sees whole lines of children that are killed."""
    os.write(1, line.encode() + b"\n")


def child(job: Mapping[str, Any]) -> None:
    """Run calls `first` to the end of a program, compact, back up or restore if it is to be killed there, and close the store."""
    say(f"pid {os.getpid()}")
    vfs = Deadly(job["point"], job["nth"], job["fail_fsync"])
    with opened(Path(job["store"]), job["level"], vfs, index=job["index"], auto_compact=False) as store:
        say("open")
        for number, call in enumerate(program(job["seed"], job["length"]), 1):
            if number > job["first"]:
                run(store, call)
                say(f"ack {number}")
        if "compact" in (job["point"] or ""):
            store.compact()
        if (job["point"] or "").startswith(("backup:", "written:BACKUP", "renamed:BACKUP")):
            backup.backup(store._storage, Path(job["store"]).with_name("backup"), vfs)  # type: ignore[arg-type]
        if (job["point"] or "").startswith("restore:"):
            backup.restore(Path(job["store"]).with_name("backup"), Path(job["store"]).with_name("restored"), vfs)
        if "hint" in (job["point"] or ""):
            time.sleep(30)  # another thread passes that point, and ends this sleep with the process


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child(json.loads(line))
                status = 0
            except OSError as error:
                say(f"raised {type(error).__name__}")
            finally:
                os._exit(status)
        say(f"end {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


if __name__ == "__main__":
    main()
