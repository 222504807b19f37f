"""A crowd on one store: four writers, two readers, a compactor and a keeper of backups, of which one or two are killed at named points.

After the kill the others go on at once, and none is held up; readers only ever see states that the writers' programs went through;
what was acknowledged is there, whole and once, also in an index built anew; verify finds nothing; and the store takes writes.

Run as a program it plays a round for each line of JSON on stdin, and answers in lines. It never opens a store itself, so each process
that it forks is as good as a new one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ckptstore
from tests.campaigns.crowd_roles import WRITERS, Page, Round, Script, back_up, compact, read, script, write
from tests.crash.programs import Call, Seen, State, opened, run, seen

LENGTH = 120
MORE = 4
"""Calls that each other writer must get through after a kill."""
DEADLINE = 30.0


class Crowded(NamedTuple):
    """What came of a round."""

    killed: bool
    """Whether somebody passed the point, and was killed there."""
    calls: int
    """Acknowledged, by all writers."""
    reads: int
    compactions: int
    backups: int
    problems: list[str]


class Crowd:
    """The processes of a round."""

    def __init__(self, page: Page, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._names: dict[int, str] = {}
        self._killed: list[str] = []
        self.problems: list[str] = []

    def start(self, name: str, task: Callable[[], None]) -> None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                task()
                status = 0
            except BaseException:
                (self._folder / f"{name}.error").write_text(traceback.format_exc())
            finally:
                os._exit(status)
        self._names[pid] = name

    def running(self) -> set[str]:
        """Names of those that still run; those that ended are noted."""
        for pid in list(self._names):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                name = self._names.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                if code == -signal.SIGKILL:
                    self._killed.append(name)
                    # Noted before it is sent. Whoever is killed besides was so by somebody else, such as a system without memory.
                    if len(self._killed) > self._page[Page.STAGE]:
                        self.problems.append(f"killed: {self._killed}, and {self._page[Page.STAGE]} were meant")
                elif code:
                    self.problems.append(f"{name}: {(self._folder / f'{name}.error').read_text()}")
        return set(self._names.values())

    def wait(self, what: str, done: Callable[[set[str]], bool]) -> None:
        """Wait until something is so; too long is a problem, and so is an error in any process."""
        deadline = time.monotonic() + DEADLINE
        while not done(self.running()) and not self.problems:
            if time.monotonic() > deadline:
                self.problems.append(f"{what} took more than {DEADLINE:g} s; still running: {sorted(self._names.values())}")
            time.sleep(0.001)

    def end(self) -> None:
        """No process outlives its round."""
        for pid in self._names:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._names.clear()


def play(round: Round) -> Crowded:
    """Play a round."""
    page, folder = Page(), round.path.parent
    scripts = [script(round.seed, writer, LENGTH) for writer in range(WRITERS)]
    crowd = Crowd(page, folder)
    try:
        for writer in range(WRITERS):
            crowd.start(f"writer {writer}", partial(write, page, round, writer, scripts[writer]))
        for number in range(2):
            crowd.start(f"reader {number}", partial(read, page, round, number, scripts))
        crowd.start("compactor", lambda: compact(page, round))
        crowd.start("keeper", lambda: back_up(page, round))
        _through(crowd, page, round, scripts)
        acknowledged = [page.acknowledged(writer) for writer in range(WRITERS)]
        if not crowd.problems:
            crowd.start("checker", lambda: check(page, round, scripts))
            crowd.wait("the check", lambda running: not running)
    finally:
        crowd.end()
    return Crowded(
        page[Page.STAGE] == len(round.kills),
        sum(acknowledged),
        page[Page.READS],
        page[Page.COMPACTIONS],
        page[Page.BACKUPS],
        crowd.problems,
    )


def _through(crowd: Crowd, page: Page, round: Round, scripts: list[Script]) -> None:
    """Until the kill, then until the others have gone on, then until all have left."""
    closing = round.kills[-1].startswith("close:") or "CLEAN" in round.kills[-1]
    written = [len(item.calls) for item in scripts]
    if not closing:
        everything = [f"writer {writer}" for writer in range(WRITERS)]
        # A point that nobody passes is no problem of the store: such a round counts no kill.
        crowd.wait(
            "the kill",
            lambda running: (
                page[Page.STAGE] == len(round.kills)
                or not any(name in running for name in everything)
                or all(page.acknowledged(writer) == written[writer] for writer in range(WRITERS) if f"writer {writer}" in running)
            ),
        )
    if not round.fail_fsync:
        running = crowd.running()
        goals = {
            f"writer {writer}": (writer, min(page.acknowledged(writer) + MORE, written[writer]))
            for writer in range(WRITERS)
            if f"writer {writer}" in running
        }
        crowd.wait(
            f"{MORE} more calls of each writer",
            lambda running: all(page.acknowledged(writer) >= goal for name, (writer, goal) in goals.items() if name in running),
        )
        before_reads = page[Page.READS]
        crowd.wait(
            "a read", lambda running: page[Page.READS] > before_reads or not any(name.startswith("reader") for name in running)
        )
    page[Page.STOP] = 1
    crowd.wait("leaving", lambda running: running <= {"compactor"})
    page[Page.STOP] = 2
    crowd.wait("leaving last", lambda running: not running)


def check(page: Page, round: Round, scripts: list[Script]) -> None:
    """After the round, in a process of its own."""
    found = _whole(round, round.path, page, scripts, acknowledged=True)
    report = ckptstore.verify(round.path)
    assert report.problems == [], report.problems
    shutil.rmtree(round.path / "index")
    assert _whole(round, round.path, page, scripts, acknowledged=True) == found
    with opened(round.path, round.level) as store:
        run(store, Call("put", "after all", "one", None, "more"))
        assert seen(store) == {**found, "after all": [Seen("one", None, "more", ())]}
    backup, restored = round.path.with_name("backup"), round.path.with_name("restored again")
    if (backup / "BACKUP").exists():
        ckptstore.restore(backup, restored)
        report = ckptstore.verify(restored)
        assert report.problems == [], report.problems
        _whole(round, restored, page, scripts, acknowledged=False)


def _whole(round: Round, path: Path, page: Page, scripts: list[Script], *, acknowledged: bool) -> State:
    """Each writer's threads are in a state it went through; not older than what was acknowledged."""
    with opened(path, round.level) as store:
        found = seen(store)
    for writer, theirs in enumerate(scripts):
        mine: State = {
            thread: kept
            for thread, lane in found.items()
            if (kept := [item for item in lane if thread != "shared" or item.id.endswith(f" {writer}")])
            and (thread == "shared" or thread.startswith(f"{writer} "))
        }
        least, most = (page.acknowledged(writer) if acknowledged else 0), page.begun(writer)
        assert mine in theirs.states[least : most + 1], f"writer {writer}, {least} to {most} calls: {mine}"
    return found


def main() -> None:
    for line in sys.stdin:
        job: Mapping[str, Any] = json.loads(line)
        round = Round(**{**job, "path": Path(job["path"]), "kills": tuple(job["kills"])})
        os.write(1, json.dumps(play(round)._asdict()).encode() + b"\n")


if __name__ == "__main__":
    main()
