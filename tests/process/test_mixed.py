"""Situations of servers: stopped and killed holders of the lock, readers beside writing processes, threads beside loops, prefork."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.ckptstore import CkptSaver

from ckptstore.errors import LockTimeoutError
from tests.crash.programs import opened, seen
from tests.helpers import checkpoint, config
from tests.process.child import ids, put

Spawn = Callable[..., Any]


@pytest.fixture(params=["lmdb", "sqlite"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A closed store that keeps its kind of index."""
    with opened(tmp_path / "store", index=request.param):
        pass
    return tmp_path / "store"


@pytest.fixture
def saver(path: Path) -> Iterator[CkptSaver]:
    with CkptSaver(path, durability="process") as saver:
        yield saver


# -- the holder of the lock --------------------------------------------------------------------------------------------------


def test_a_stopped_holder_is_named_and_both_go_on_when_it_continues(path: Path, spawn: Spawn) -> None:
    with opened(path, lock_timeout=0.3) as store:
        put(store, "t", "first")
        child = spawn("hold_lock", path)
        assert child.hear() == "holding"
        os.kill(child.pid, signal.SIGSTOP)
        try:
            for _ in range(2):
                with pytest.raises(LockTimeoutError, match=rf"process {child.pid} has held it"):
                    put(store, "t", "second")
            assert ids(store, "t") == ["first"]
        finally:
            os.kill(child.pid, signal.SIGCONT)
        child.say("go on")
        assert child.hear() == "free"
        child.finish()
        put(store, "t", "second")
        assert ids(store, "t") == ["first", "second"]


def test_a_holder_killed_while_stopped_frees_the_lock(path: Path, spawn: Spawn) -> None:
    with opened(path, lock_timeout=30) as store:
        put(store, "t", "first")
        child = spawn("hold_lock", path)
        assert child.hear() == "holding"
        os.kill(child.pid, signal.SIGSTOP)
        waiting = threading.Thread(target=put, args=(store, "t", "second"), daemon=True)
        waiting.start()
        os.kill(child.pid, signal.SIGKILL)
        child.process.wait(30)
        waiting.join(60)
        assert not waiting.is_alive()
        assert ids(store, "t") == ["first", "second"]


# -- readers beside writers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 4], ids=["one thread", "many threads"])
def test_readers_see_whole_commits_while_processes_write(path: Path, spawn: Spawn, threads: int) -> None:
    """Each writer's chain has no gap and no half at any moment: a checkpoint has its value, and writes its own text or none yet."""
    count, writers = 30, 3
    children = [spawn("write", path, f"p{number}", count, threads, "process") for number in range(writers)]
    for child in children:
        assert child.hear() == "open"
    with opened(path) as store:
        problems: list[BaseException] = []
        looks = [0, 0]
        done = threading.Event()

        def read(reader: int) -> None:
            try:
                while not done.is_set():
                    _assert_whole(seen(store), writers, threads)
                    looks[reader] += 1
            except BaseException as error:
                problems.append(error)

        readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(2)]
        for reader in readers:
            reader.start()
        for child in children:
            child.say("go")
        for child in children:
            assert child.hear() == "done"
            child.finish()
        done.set()
        for reader in readers:
            reader.join(60)
            assert not reader.is_alive()
        assert problems == []
        assert all(looks)
        found = seen(store)
    everything = sorted(item.id for lane in found.values() for item in lane)
    assert everything == sorted(f"p{writer}-{number:03}" for writer in range(writers) for number in range(count))
    assert all(len(item.writes) == 1 for lane in found.values() for item in lane)


def _assert_whole(found: dict[str, Any], writers: int, threads: int) -> None:
    for name, lane in found.items():
        for writer in range(writers):
            chain = [item for item in lane if item.id.startswith(f"p{writer}-")]
            first = int(name[1:])
            assert [item.id for item in chain] == [f"p{writer}-{first + at * threads:03}" for at in range(len(chain))]
            for item in chain:
                number = item.id.partition("-")[2]
                assert item.value == f"value of {item.id}"
                assert item.writes in ((), ((f"0{number}", f"0{number} by p{writer}"),))


# -- threads and loops -------------------------------------------------------------------------------------------------------


def _given(id: str, thread: str) -> tuple[Any, Any, Any, Any]:
    return config(thread=thread), checkpoint(id, {"log": id}, {"log": 1}), {}, {"log": 1}


def _assert_each_its_own(saver: CkptSaver, thread: str, expected: set[str]) -> None:
    found = list(saver.list(config(thread=thread)))
    assert sorted(item.checkpoint["id"] for item in found) == sorted(expected)
    for item in found:
        assert item.checkpoint["channel_values"] == {"log": item.checkpoint["id"]}


def test_threads_and_a_loop_at_once(saver: CkptSaver) -> None:
    """Sync calls in threads and async calls in a loop, on one conversation and on their own, through one saver."""
    problems: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(20):
                for thread in ("shared", name):
                    saver.put(*_given(f"{name}-{number}", thread))
                found = saver.get_tuple(config(f"{name}-{number}", thread=name))
                assert found is not None
                assert found.checkpoint["channel_values"] == {"log": f"{name}-{number}"}
        except BaseException as error:
            problems.append(error)

    async def call(name: str) -> None:
        for number in range(20):
            for thread in ("shared", name):
                await saver.aput(*_given(f"{name}-{number}", thread))
            found = await saver.aget_tuple(config(f"{name}-{number}", thread=name))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"log": f"{name}-{number}"}

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*(call(f"async {number}") for number in range(3))), 120)

    workers = [threading.Thread(target=work, args=(f"sync {number}",), daemon=True) for number in range(3)]
    for worker in workers:
        worker.start()
    asyncio.run(main())
    for worker in workers:
        worker.join(120)
        assert not worker.is_alive()
    assert problems == []
    names = [f"{kind} {number}" for kind in ("sync", "async") for number in range(3)]
    for name in names:
        _assert_each_its_own(saver, name, {f"{name}-{number}" for number in range(20)})
    _assert_each_its_own(saver, "shared", {f"{name}-{number}" for name in names for number in range(20)})


def test_awaits_that_time_out(saver: CkptSaver) -> None:
    """What was given up is there whole or not at all, what returned is there, and no thread is left behind."""
    before = set(threading.enumerate())
    returned: set[str] = set()

    async def one(number: int) -> None:
        id = f"{number:03}"
        try:
            await asyncio.wait_for(saver.aput(*_given(id, "t")), number % 10 * 0.0005)
            await asyncio.wait_for(saver.aput_writes(config(id), [("w", id), ("x", id)], "task"), number % 7 * 0.0005)
        except TimeoutError:
            return
        returned.add(id)

    async def main() -> None:
        for first in range(0, 120, 8):
            await asyncio.gather(*(one(number) for number in range(first, first + 8)))
        await saver.aput(*_given("last", "t"))
        returned.add("last")

    asyncio.run(main())
    assert set(threading.enumerate()) <= before
    found = list(saver.list(config()))
    assert {item.checkpoint["id"] for item in found} >= returned
    assert len({item.checkpoint["id"] for item in found}) == len(found)
    for item in found:
        id = item.checkpoint["id"]
        assert item.checkpoint["channel_values"] == {"log": id}
        assert item.pending_writes in ([], [("task", "w", id), ("task", "x", id)])
        assert item.pending_writes or id not in returned or id == "last"


# -- servers -----------------------------------------------------------------------------------------------------------------


def test_a_prefork_server_whose_workers_use_the_saver_they_inherited(path: Path, spawn: Spawn) -> None:
    """Each in a loop of its own, on one conversation and on its own, while the parent writes too."""
    child = spawn("prefork_saver", path, 3)
    assert child.hear() == "done"
    child.finish()
    names = ["parent", "w0", "w1", "w2"]
    with CkptSaver(path) as saver:
        for name in names:
            _assert_each_its_own(saver, name, {f"{name}-{number}" for number in range(10)})
        _assert_each_its_own(saver, "shared", {"before"} | {f"{name}-{number}" for name in names for number in range(10)})
