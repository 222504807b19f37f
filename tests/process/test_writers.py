"""Several processes writing one store: nothing lost, nothing doubled, everything seen at once; and the lock that orders them."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptstore import StoreOptions
from ckptstore.errors import CkptStoreError, LockTimeoutError
from ckptstore.storage import View
from ckptstore.storage.local.handle import LocalStorage
from tests.crash.programs import opened, seen
from tests.process.child import ids, put

Spawn = Callable[..., Any]


@pytest.mark.parametrize(
    ("processes", "threads", "level"), [(2, 1, "commit"), (4, 1, "process"), (4, 8, "commit"), (2, 8, "interval")]
)
def test_many_writers_lose_and_double_nothing(tmp_path: Path, spawn: Spawn, processes: int, threads: int, level: str) -> None:
    """Each writes a chain of checkpoints, and writes on each; segments rotate under their hands."""
    count = 40
    writers = [spawn("write", tmp_path / "store", f"p{number}", count, threads, level) for number in range(processes)]
    for child in writers:
        assert child.hear() == "open"
    for child in writers:
        child.say("go")
    for child in writers:
        assert child.hear() == "done"
        child.finish()
    with opened(tmp_path / "store") as store:
        found = seen(store)
        assert store.stats().segments > 1
    everything = [checkpoint for lane in found.values() for checkpoint in lane]
    expected = {f"p{number}-{at:03}" for number in range(processes) for at in range(count)}
    assert sorted(checkpoint.id for checkpoint in everything) == sorted(expected)
    for lane in found.values():
        for writer in range(processes):
            chain = [checkpoint for checkpoint in lane if checkpoint.id.startswith(f"p{writer}-")]
            assert [checkpoint.id for checkpoint in chain] == sorted(checkpoint.id for checkpoint in chain)
            assert [checkpoint.parent for checkpoint in chain] == [None, *(checkpoint.id for checkpoint in chain[:-1])]
    for checkpoint in everything:
        name, _, number = checkpoint.id.partition("-")
        assert checkpoint.writes == ((f"0{number}", f"0{number} by {name}"),)
    shutil.rmtree(tmp_path / "store" / "index")
    with opened(tmp_path / "store") as store:
        assert seen(store) == found


def test_commits_are_seen_by_the_others_at_once(tmp_path: Path, spawn: Spawn) -> None:
    """What was stored before a line went through the pipe is read after it, in both directions."""
    with opened(tmp_path / "store") as store:
        child = spawn("neighbour", tmp_path / "store")
        assert child.hear() == "open"
        expected: list[str] = []
        for number in range(25):
            put(store, "t", f"parent-{number}")
            child.say("read")
            expected.append(f"parent-{number}")
            assert child.hear().split() == expected
            child.say(f"put child-{number}")
            assert child.hear() == "stored"
            expected.append(f"child-{number}")
            assert ids(store, "t") == expected
        child.finish()


def test_others_go_on_when_a_writer_found_no_space_in_a_new_segment(tmp_path: Path, spawn: Spawn) -> None:
    with opened(tmp_path / "store") as store:
        child = spawn("full_disk", tmp_path / "store")
        word, _, count = child.hear().partition(" ")
        assert word == "NoSpaceError"
        put(store, "t", "parent", None, "value of parent " + "x" * 100 + os.urandom(500).hex())
        child.say("read")
        expected = [*(f"child-{number}" for number in range(int(count))), "parent", "child-last"]
        assert child.hear().split() == expected
        child.finish()
        assert ids(store, "t") == expected
    with opened(tmp_path / "store") as store:
        assert ids(store, "t") == expected


def test_sync_covers_what_other_processes_committed(tmp_path: Path, spawn: Spawn) -> None:
    """The last commit is the other process's; this one makes it durable."""
    with opened(tmp_path / "store", "process") as store:
        put(store, "t", "mine")
        child = spawn("write", tmp_path / "store", "p", 3, 1, "process")
        assert child.hear() == "open"
        child.say("go")
        assert child.hear() == "done"
        store.sync()
        stats = store.stats()
        assert stats.durable_lsn == stats.last_lsn


# -- the commit lock ---------------------------------------------------------------------------------------------------------


def test_a_lock_timeout_names_the_holder_and_readers_go_on(tmp_path: Path, spawn: Spawn) -> None:
    with opened(tmp_path / "store", lock_timeout=0.3) as store:
        put(store, "t", "first")
        child = spawn("hold_lock", tmp_path / "store")
        assert child.hear() == "holding"
        with pytest.raises(LockTimeoutError, match=rf"not free within 0.3 s: process {child.pid} has held it for \d+\.\d s"):
            put(store, "t", "second")
        assert ids(store, "t") == ["first"]
        child.say("go on")
        assert child.hear() == "free"
        child.finish()
        put(store, "t", "second")
        assert ids(store, "t") == ["first", "second"]


def test_a_killed_holder_frees_the_lock(tmp_path: Path, spawn: Spawn) -> None:
    with opened(tmp_path / "store") as store:
        put(store, "t", "first")
        child = spawn("hold_lock", tmp_path / "store")
        assert child.hear() == "holding"
        stored = threading.Thread(target=put, args=(store, "t", "second"))
        stored.start()
        os.kill(child.pid, signal.SIGKILL)
        child.process.wait()
        stored.join(20)
        assert not stored.is_alive()
        assert ids(store, "t") == ["first", "second"]


def test_a_lock_timeout_within_one_process_says_so(tmp_path: Path) -> None:
    options = StoreOptions(lock_timeout=0.2)
    storage = LocalStorage(tmp_path / "store", options)
    holding, go_on = threading.Event(), threading.Event()

    def resolve(view: View) -> list[Any]:
        holding.set()
        assert go_on.wait(20)
        return []

    holder = threading.Thread(target=storage.commit, args=(resolve,))
    holder.start()
    assert holding.wait(20)
    with opened(tmp_path / "store", lock_timeout=0.2) as store:
        with pytest.raises(LockTimeoutError, match=rf"process {os.getpid()} \(this process\)"):
            put(store, "t", "first")
        go_on.set()
        holder.join()
        put(store, "t", "first")
    storage.close()


# -- opening -------------------------------------------------------------------------------------------------------------


def test_a_store_that_another_process_makes_in_that_moment(tmp_path: Path, spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not there when the folder was looked at first, and is when its files are."""
    (tmp_path / "store").mkdir()
    listdir = os.listdir

    def meanwhile(path: Path) -> list[str]:
        monkeypatch.undo()
        child = spawn("come_and_go", path, "p", 1)
        assert child.hear() == "done"
        child.finish()
        return listdir(path)

    monkeypatch.setattr(os, "listdir", meanwhile)
    with opened(tmp_path / "store") as store:
        assert ids(store, "t") == ["p-0"]


def test_opening_while_another_process_recovers(tmp_path: Path, spawn: Spawn) -> None:
    """Who comes meanwhile waits, and is told for whom when it takes too long."""
    with opened(tmp_path / "live") as store:
        put(store, "t", "first")
        put(store, "t", "second")
        shutil.copytree(tmp_path / "live", tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    with (tmp_path / "store" / "segments" / f"{1:020}.seg").open("r+b") as segment:
        data = segment.read().rstrip(b"\0")
        segment.truncate(len(data) - 1)
    child = spawn("recover", tmp_path / "store")
    assert child.hear() == "recovering"
    with (
        pytest.raises(LockTimeoutError, match=rf"being opened or recovered by process {child.pid} for more than 0.2 s"),
        opened(tmp_path / "store", lock_timeout=0.2),
    ):
        pass
    found: list[list[str]] = []

    def wait_and_read() -> None:
        with opened(tmp_path / "store", lock_timeout=30) as store:
            found.append(ids(store, "t"))

    waiting = threading.Thread(target=wait_and_read)
    waiting.start()
    child.say("go on")
    assert child.hear() == "first"
    child.finish()
    waiting.join(30)
    assert found == [["first"]]


def test_a_recovery_that_is_killed_is_taken_over(tmp_path: Path, spawn: Spawn) -> None:
    with opened(tmp_path / "live") as store:
        put(store, "t", "first")
        shutil.copytree(tmp_path / "live", tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    with (tmp_path / "store" / "segments" / f"{1:020}.seg").open("r+b") as segment:
        data = segment.read().rstrip(b"\0")
        segment.truncate(len(data))
        segment.seek(len(data))
        segment.write(b"\x17" * 9)
    child = spawn("recover", tmp_path / "store")
    assert child.hear() == "recovering"
    found: list[list[str]] = []

    def wait_and_read() -> None:
        with opened(tmp_path / "store") as store:
            found.append(ids(store, "t"))

    waiting = threading.Thread(target=wait_and_read)
    waiting.start()
    os.kill(child.pid, signal.SIGKILL)
    waiting.join(30)
    assert found == [["first"]]


def test_a_store_killed_while_open_opens_beside_those_who_live(tmp_path: Path, spawn: Spawn) -> None:
    """R50: B opens and works, with A killed and with A alive."""
    first, second = spawn("neighbour", tmp_path / "store"), spawn("neighbour", tmp_path / "store")
    for child in (first, second):
        assert child.hear() == "open"
    first.say("put one")
    assert first.hear() == "stored"
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    with opened(tmp_path / "store") as store:
        put(store, "t", "two")
        second.say("read")
        assert second.hear().split() == ["one", "two"]
    os.kill(second.pid, signal.SIGKILL)
    second.process.wait()
    with opened(tmp_path / "store") as store:
        put(store, "t", "three")
        assert ids(store, "t") == ["one", "two", "three"]


def test_processes_that_come_and_go(tmp_path: Path, spawn: Spawn) -> None:
    """Processes that open, write and close over and over: each is now the first one in, now the last one out."""
    children = [spawn("come_and_go", tmp_path / "store", f"p{number}", 12) for number in range(3)]
    for child in children:
        assert child.hear() == "done"
        child.finish()
    with opened(tmp_path / "store") as store:
        assert sorted(ids(store, "t")) == sorted(f"p{name}-{number}" for name in range(3) for number in range(12))


def test_opens_and_closes_in_a_crowd(tmp_path: Path) -> None:
    """Threads that open, write and close the same folder over and over: the last one out and the next one in do not meet badly."""
    problems: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(12):
                with opened(tmp_path / "store") as store:
                    put(store, "t", f"{name}-{number}")
        except CkptStoreError as error:
            problems.append(error)

    workers = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert problems == []
    with opened(tmp_path / "store") as store:
        assert sorted(ids(store, "t")) == sorted(f"w{worker}-{number}" for worker in range(4) for number in range(12))
