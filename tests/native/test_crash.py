"""Native threads after kills, power cuts and failing disks: every acknowledged step is there, whole, on its branch, and none in part.

A kill is not a power cut: after the first everything written is there, after the second only what was synced.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ckptstore.errors import DurabilityUnknownError, NoSpaceError, StorePoisonedError
from ckptstore.testing.crashfs import CrashVfs, Image, write_image
from tests.crash.programs import LEVELS, Level, opened
from tests.model.lanes import seen
from tests.native.calls import FOLDERS, GIVEN_AGAIN, SCHEMA, Kind
from tests.native.programs import count_of, program, run, views

ROOT = Path(__file__).resolve().parents[2]
LENGTH = 30


class Died(NamedTuple):
    """What is known of a child that is gone."""

    acknowledged: int
    status: int


class Killer:
    """Starts children that die, and reads what they said."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kill_child.py")), "server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )

    def run(
        self,
        store: Path,
        index: Kind,
        level: Level,
        seed: int,
        *,
        point: str | None = None,
        nth: int = 1,
        first: int = 0,
        after: int | None = None,
    ) -> Died:
        """Run a child until it is gone.

        Args:
            point: name of the point at which it kills itself, the `nth` time.
            first: calls of the program that are made already.
            after: kill it from outside, as soon as this many more calls are acknowledged.
        """
        job: dict[str, Any] = {"store": str(store), "index": index, "level": level, "seed": seed, "length": LENGTH}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        job |= {"point": point, "nth": nth, "first": first, "linger": after is not None}
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        acknowledged, pid = first, 0
        for line in self._server.stdout:
            word, _, value = line.strip().partition(" ")
            if word == "pid":
                pid = int(value)
            elif word == "ack":
                acknowledged = int(value)
                if after is not None and acknowledged == first + after:
                    os.kill(pid, signal.SIGKILL)  # not reaped before `end`, so the pid is still its own
            elif word == "end":
                return Died(acknowledged, int(value))
        raise AssertionError("the child server is gone")

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(10)
        self._server.stdout.close()


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    killer = Killer()
    yield killer
    killer.close()


def _goes_on(folder: Path, seed: int, died: Died) -> None:
    """What was acknowledged is there, the same when opened again, and the rest of the program can be run on it."""
    expected, calls = views(seed, LENGTH), program(seed, LENGTH)
    with opened(folder) as store:
        count = count_of(seen(store), expected, died.acknowledged, min(died.acknowledged + 1, LENGTH))
    with opened(folder) as store:
        assert seen(store) == expected[count]
        for call in calls[count:]:
            run(store, call)
    with opened(folder) as store:
        assert seen(store) == expected[-1]


POINTS = ["commit:resolved", "commit:appended", "commit:indexed", "commit:published", "fsync:before", "rotate:sealed"]


@pytest.mark.parametrize("index", FOLDERS)
@pytest.mark.parametrize("point", POINTS)
def test_killed_in_the_middle_of_a_step(tmp_path: Path, killer: Killer, point: str, index: Kind) -> None:
    """Three kills in a row at one point, each in a store that the one before left."""
    died = Died(0, 0)
    for nth in (4, 2, 3):
        died = killer.run(
            tmp_path / "s", index, "commit", 5, point=point, nth=1 if "rotate" in point else nth, first=died.acknowledged
        )
        assert died.status == -signal.SIGKILL
        with opened(tmp_path / "s") as store:
            most = min(died.acknowledged + 1, LENGTH)
            died = Died(count_of(seen(store), views(5, LENGTH), died.acknowledged, most), 0)
    _goes_on(tmp_path / "s", 5, died)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("after", [1, 9, 17, 26])
def test_killed_at_any_moment_at_every_level(tmp_path: Path, killer: Killer, level: Level, after: int) -> None:
    died = killer.run(tmp_path / "s", "lmdb" if after % 2 else "sqlite", level, 6 + after, after=after)
    assert died.status == -signal.SIGKILL
    assert died.acknowledged >= after
    _goes_on(tmp_path / "s", 6 + after, died)


@pytest.mark.parametrize("index", FOLDERS)
def test_a_cursor_goes_on_when_another_process_was_killed(tmp_path: Path, killer: Killer, index: Kind) -> None:
    """This process has the store open all the time, and opens nothing anew."""
    calls, expected = program(9, LENGTH), views(9, LENGTH)
    with opened(tmp_path / "s", index=index) as store:
        for call in calls[:3]:
            run(store, call)
        mine = store.thread("mine", schema=SCHEMA)
        mine.step({"log": ["a"]})
        died = killer.run(tmp_path / "s", index, "commit", 9, point="commit:appended", nth=6, first=3)
        assert died.status == -signal.SIGKILL
        mine.step({"log": ["b"]})
        found = seen(store)
        assert found.pop("mine") == (1, [(None, 0, {"log": ["a"]}), (0, 1, {"log": ["a", "b"]})])
        assert found == expected[count_of(found, expected, died.acknowledged, died.acknowledged + 1)]


# -- power cuts ------------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A power cut in the middle of a program."""

    image: Image
    least: int
    most: int


def _recorded(folder: Path, seed: int, level: Level, share: float, sync_at: tuple[int, ...] = ()) -> list[Cut]:
    """Run a program, and cut the power at some of the calls of the seam: a share of them, at least the first of each call."""
    fs, rng = CrashVfs(folder), random.Random(seed)
    cuts: list[Cut] = []
    least = most = 0

    def before(call: str, name: str) -> None:
        if rng.random() < share:
            cuts.append(Cut(fs.image(rng), least, most))

    fs.watch = before
    with opened(folder, level, fs, sync_interval=60) as store:
        for number, call in enumerate(program(seed, LENGTH), 1):
            most = number
            run(store, call)
            if level == "commit":
                least = number
            elif number in sync_at:
                store.sync()
                least = number
    cuts.append(Cut(fs.image(rng, "lost"), LENGTH, LENGTH))
    return cuts


def _survives(cut: Cut, folder: Path, seed: int, *, garbage_index: bool, index: Kind) -> int:
    write_image(cut.image, folder, garbage_index=garbage_index)
    expected = views(seed, LENGTH)
    with opened(folder, vfs=CrashVfs(folder), index=index) as store:
        found = seen(store)
        count = count_of(found, expected, cut.least, cut.most)
        for call in program(seed, LENGTH)[count:]:
            run(store, call)
        assert seen(store) == expected[-1]
    return count


@pytest.mark.parametrize("index", FOLDERS)
def test_a_power_cut_takes_no_acknowledged_step(tmp_path: Path, index: Kind) -> None:
    cuts = _recorded(tmp_path / "s", 21, "commit", 0.15)
    counts = [_survives(cut, tmp_path / f"{n}", 21, garbage_index=n % 3 == 0, index=index) for n, cut in enumerate(cuts)]
    # Both happened: steps that were begun and not acknowledged may be there or not.
    assert any(count < cut.most for count, cut in zip(counts, cuts, strict=True))
    assert any(count == cut.most > cut.least for count, cut in zip(counts, cuts, strict=True))


@pytest.mark.parametrize("level", ["interval", "process"])
def test_other_levels_keep_a_first_part_and_what_was_synced(tmp_path: Path, level: Level) -> None:
    cuts = _recorded(tmp_path / "s", 22, level, 0.2, sync_at=(10, 20))
    counts = [_survives(cut, tmp_path / f"{n}", 22, garbage_index=False, index="lmdb") for n, cut in enumerate(cuts)]
    assert any(count < cut.most - 1 for count, cut in zip(counts, cuts, strict=True))


# -- failing disks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", FOLDERS)
def test_a_full_disk_keeps_nothing_of_the_step_and_the_cursor_goes_on(tmp_path: Path, index: Kind) -> None:
    fs = CrashVfs(tmp_path / "s")
    with opened(tmp_path / "s", vfs=fs, index=index) as store:
        cursor = store.thread("t", schema=SCHEMA)
        first = cursor.step({"log": ["a"], "title": "t"})
        fs.fail("pwrite", ENOSPC, path="segments/*", times=1000)
        for writes in ({"log": ["b"]}, {"title": "u" * 10_000}):
            with pytest.raises(NoSpaceError):
                cursor.step(writes)
            assert (cursor.tip, cursor.state()) == (first.id, {"log": ["a"], "title": "t"})
            assert cursor.lineage() is not None
        fs.heal()
        assert cursor.step({"log": ["c"]}).parent == first.id
        assert cursor.state() == {"log": ["a", "c"], "title": "t"}
    with opened(tmp_path / "s") as store:
        assert store.thread("t").state() == {"log": ["a", "c"], "title": "t"}


def test_a_failed_fsync_is_said_and_stops_all_steps(tmp_path: Path) -> None:
    """The step that failed may be there later, and then whole."""
    fs = CrashVfs(tmp_path / "s")
    with opened(tmp_path / "s", vfs=fs) as store:
        cursor = store.thread("t", schema=SCHEMA)
        first = cursor.step({"log": ["a"], "total": 1})
        fs.fail("fdatasync", EIO, path="segments/*")
        with pytest.raises(DurabilityUnknownError):
            cursor.step({"log": ["b"], "total": 1})
        assert cursor.tip == first.id
        with pytest.raises(StorePoisonedError):
            cursor.step({"log": ["c"]})
        assert cursor.state() == {"log": ["a"], "total": 1}
    with opened(tmp_path / "s") as store:
        cursor = store.thread("t", schema=GIVEN_AGAIN)
        assert cursor.state() in ({"log": ["a"], "total": 1}, {"log": ["a", "b"], "total": 2})
        assert cursor.at(first).step({"log": ["d"]}).parent == first.id


def test_a_waiting_reader_may_ask_for_durability(tmp_path: Path) -> None:
    """`sync` at the level `process`: what came before it survives the power cut."""
    fs = CrashVfs(tmp_path / "s")
    with opened(tmp_path / "s", "process", fs) as store:
        cursor = store.thread("t", schema=SCHEMA)
        cursor.step({"log": ["a"]})
        store.sync()
        cursor.step({"log": ["b"]})
        image = fs.image(random.Random(1), "lost")
    write_image(image, tmp_path / "cut")
    with opened(tmp_path / "cut", vfs=CrashVfs(tmp_path / "cut")) as store:
        assert store.thread("t").state() == {"log": ["a"]}


# -- several processes -----------------------------------------------------------------------------------------------------


class Child:
    """A process that runs a task of kill_child.py and talks in lines."""

    def __init__(self, task: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kill_child.py")), task, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    """Starts children; those still there at the end of the test are killed."""
    children: list[Child] = []

    def start(task: str, *arguments: object) -> Child:
        children.append(Child(task, *arguments))
        return children[-1]

    yield start
    for child in children:
        child.process.kill()
        child.process.wait()
        for stream in (child.process.stdin, child.process.stdout):
            assert stream is not None
            stream.close()


@pytest.mark.parametrize("index", FOLDERS)
def test_of_two_processes_that_expect_the_head_exactly_one_wins(tmp_path: Path, spawn: Callable[..., Child], index: Kind) -> None:
    with opened(tmp_path / "s", "process", index=index) as store:
        store.thread("t", schema=SCHEMA).step({"log": ["start"]})
        rivals = [spawn("race", tmp_path / "s", index, name) for name in "xy"]
        assert [child.hear() for child in rivals] == ["open", "open"]
        expected = ["start"]
        for number in range(1, 13):
            for child in rivals:
                child.say(str(number))
            answers = [child.hear() for child in rivals]
            assert sorted(answers) == ["lost", "won"]
            expected.append(f"{'xy'[answers.index('won')]}.{number}")
            assert store.thread("t", schema=GIVEN_AGAIN).state() == {"log": expected}
            for child in rivals:
                child.say()
            assert [child.hear() for child in rivals] == ["ready", "ready"]
        for child in rivals:
            child.finish()
        assert len(list(store.thread("t", schema=GIVEN_AGAIN).lineage())) == 13


@pytest.mark.parametrize("index", FOLDERS)
def test_two_processes_step_one_thread_and_nothing_is_lost(tmp_path: Path, spawn: Callable[..., Child], index: Kind) -> None:
    """As branches of one checkpoint, and one after the other at the head; the store rotates its segments meanwhile."""
    count = 25
    with opened(tmp_path / "s", "process", index=index) as store:
        for id in ("branches", "line"):
            store.thread(id, schema=SCHEMA).step({"log": ["start"], "total": 1})
        writers = [spawn("write", tmp_path / "s", index, name, count) for name in "xy"]
        assert [child.hear() for child in writers] == ["open", "open"]
        for child in writers:
            child.say()
        tips = [child.hear().partition(" ")[2] for child in writers]
        for child in writers:
            child.finish()
    for _ in range(2):
        with opened(tmp_path / "s", "process", index=index) as store:
            branches = store.thread("branches", schema=GIVEN_AGAIN)
            for name, tip in zip("xy", tips, strict=True):
                own = ["start", *(f"{name}.{number}" for number in range(count))]
                assert branches.at(tip).state() == {"log": own, "total": count + 1}
                assert len(list(branches.at(tip).lineage())) == count + 1
            assert len(list(store.list("branches", ""))) == 2 * count + 1
            line = store.thread("line", schema=GIVEN_AGAIN).state()
            assert line["total"] == 2 * count + 1
            assert sorted(line["log"][1:]) == sorted(f"{name}.{number}" for name in "xy" for number in range(count))
            for name in "xy":
                assert [item for item in line["log"] if item.startswith(name)] == [f"{name}.{number}" for number in range(count)]


@pytest.mark.parametrize("index", FOLDERS)
def test_a_process_killed_in_the_middle_of_its_steps_leaves_whole_ones(
    tmp_path: Path, spawn: Callable[..., Child], index: Kind
) -> None:
    with opened(tmp_path / "s", "process", index=index) as store:
        for id in ("branches", "line"):
            store.thread(id, schema=SCHEMA).step({"log": ["start"], "total": 1})
        child = spawn("write", tmp_path / "s", index, "x", 100_000)
        assert child.hear() == "open"
        child.say()
        deadline = time.monotonic() + 20
        while len(list(store.list("line", ""))) < 20:
            assert time.monotonic() < deadline
        child.process.kill()
        child.process.wait()
        for id in ("branches", "line"):
            cursor = store.thread(id, schema=GIVEN_AGAIN)
            state = cursor.state()
            assert state["log"] == ["start", *(f"x.{number}" for number in range(state["total"] - 1))]
            assert len(list(cursor.lineage())) == len(state["log"]) >= 20
            cursor.step({"log": ["after"]}, expect_head=True)
            assert store.thread(id, schema=GIVEN_AGAIN).state()["log"] == [*state["log"], "after"]
