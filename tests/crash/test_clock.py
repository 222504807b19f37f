"""A wall clock that jumps by years, forth and back, at any reading: nothing that a store keeps goes by it, and what does says so."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

import ckptstore
from ckptstore import LaneName, StoreOptions, channels
from ckptstore.errors import LockTimeoutError, ThreadDeletedError
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.testing.clock import JumpingClock
from tests.contract.calls import ids, open_at, put, write
from tests.crash.cutting import Recorder, checked
from tests.crash.programs import LEVELS, Level, opened, program, run, seen, states

DAY = 86400.0


@pytest.mark.parametrize("level", LEVELS)
def test_power_cuts_under_a_clock_that_jumps(tmp_path: Path, level: Level) -> None:
    """Programs with rotations, deletions, prunes and a compaction; their images are recovered by other times."""
    calls = program(81, 30)
    with JumpingClock(random.Random(1)) as clock:
        recorder = Recorder(tmp_path / "store", 4, lambda rng: rng.random() < 0.05)
        recorder.run(calls, level, sync_at=(10, 20), compact=True)
        for cut in recorder.cuts:
            checked(cut, tmp_path, states(calls))
    assert clock.jumps > 10


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_native_threads_do_not_go_by_the_time_in_their_ids(tmp_path: Path, seed: int) -> None:
    """Heads, branches and histories are what was stepped, whatever time it seemed to be."""
    rng = random.Random(seed)
    with JumpingClock(rng) as clock, ckptstore.open(tmp_path / "store") as store:
        thread = store.thread("t", schema={"log": channels.append()}, snapshot_frequency=3)
        paths: dict[str, list[int]] = {}
        path: list[int] = []
        for number in range(40):
            if paths and rng.random() < 0.2:
                id, path = rng.choice(sorted(paths.items()))
                thread = thread.at(id).fork()
            path = [*path, number]
            last = thread.step({"log": [number]})
            paths[last.id] = path
        for id, expected in paths.items():
            assert thread.at(id).state() == {"log": expected}
        head = store.thread("t").head()
        assert head is not None
        assert head.id == last.id
        assert [item.id for item in store.list("t", "")] == list(paths)[::-1]
        assert clock.jumps > 10


def test_a_late_call_is_refused_while_the_clock_is_behind(tmp_path: Path) -> None:
    """A deletion of the future is not long ago. Of a clock that is ahead by more than the window the memory goes."""
    with JumpingClock(random.Random(1), chance=0) as clock, open_at(tmp_path / "store") as store:
        put(store, "1", None, {"m": 1})
        store.delete("t")
        clock.ahead = -400 * DAY
        with pytest.raises(ThreadDeletedError):
            write(store, "1", "late")
        store.compact()
        with pytest.raises(ThreadDeletedError):
            write(store, "1", "late")
        clock.ahead = 8 * DAY
        write(store, "1", "late")
        assert ids(store) == []


def test_a_lock_times_out_by_a_clock_that_does_not_jump(tmp_path: Path) -> None:
    """Under a clock that is set back by a year while a commit holds the lock."""
    options = StoreOptions(lock_timeout=0.2)
    storage = LocalStorage(tmp_path / "store", options)
    holding, go_on = threading.Event(), threading.Event()

    def resolve(view: object) -> list[object]:
        holding.set()
        assert go_on.wait(20)
        return []

    with JumpingClock(random.Random(1), chance=0) as clock, opened(tmp_path / "store", lock_timeout=0.2) as store:
        holder = threading.Thread(target=storage.commit, args=(resolve,))
        holder.start()
        assert holding.wait(20)
        clock.ahead = -365 * DAY
        with pytest.raises(LockTimeoutError, match=r"has held it for 0\.0 s"):
            run(store, program(1, 1)[0])
        go_on.set()
        holder.join()
        run(store, program(1, 1)[0])
        assert seen(store) == states(program(1, 1))[-1]
        assert store.get(LaneName("a")) or store.get(LaneName("b"))
    storage.close()
