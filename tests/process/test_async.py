"""Event loops: nothing blocks them, cancelled calls are whole or absent, and one saver serves several of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from langgraph.checkpoint.ckptstore import CkptSaver

from ckptstore import Store, StoreOptions
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.vfs import Vfs
from tests.helpers import checkpoint, config


class SlowDisk(Vfs):
    """A disk whose fsync of a segment takes until it is told to go on, once `slow` is set."""

    def __init__(self) -> None:
        self.slow = False
        self.waiting = threading.Event()
        self.go_on = threading.Event()

    def fdatasync(self, fd: int) -> None:
        if self.slow:
            self.waiting.set()
            assert self.go_on.wait(20)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def saver(tmp_path: Path, disk: SlowDisk) -> Iterator[CkptSaver]:
    options = StoreOptions()
    saver = CkptSaver.from_store(Store(LocalStorage(tmp_path / "store", options, disk), options))
    yield saver
    disk.go_on.set()
    saver.close()


async def _aput(saver: CkptSaver, id: str) -> None:
    await saver.aput(config(), checkpoint(id, {"log": id}, {"log": 1}), {}, {"log": 1})


def _ids(saver: CkptSaver) -> list[str]:
    return [item.checkpoint["id"] for item in saver.list(config())][::-1]


def test_a_slow_fsync_does_not_stop_the_loop(saver: CkptSaver, disk: SlowDisk) -> None:
    """The loop itself lets the fsync go on: were it blocked, this would never end."""

    async def main() -> None:
        disk.slow = True
        stored = asyncio.create_task(_aput(saver, "one"))
        while not disk.waiting.is_set():
            await asyncio.sleep(0.001)
        # Readers go on too, and see what was published.
        assert [item.checkpoint["id"] async for item in saver.alist(config())] == ["one"]
        assert not stored.done()
        disk.go_on.set()
        await stored

    asyncio.run(main())
    assert _ids(saver) == ["one"]


def test_a_cancelled_put_is_stored_whole_or_not_at_all(saver: CkptSaver, disk: SlowDisk) -> None:
    async def main() -> None:
        await _aput(saver, "one")
        disk.slow = True
        stored = asyncio.create_task(_aput(saver, "two"))
        while not disk.waiting.is_set():
            await asyncio.sleep(0.001)
        stored.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stored
        disk.go_on.set()
        disk.slow = False
        await _aput(saver, "three")

    asyncio.run(main())
    assert _ids(saver) == ["one", "two", "three"]
    found = saver.get_tuple(config("two"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"log": "two"}


def test_calls_cancelled_at_any_moment(saver: CkptSaver) -> None:
    """Each call is cancelled after another number of turns of the loop; what is there is whole, and the saver goes on."""

    async def main() -> None:
        for turns in range(30):
            calls = [asyncio.create_task(_aput(saver, f"{turns}-{number}")) for number in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        await _aput(saver, "last")

    asyncio.run(main())
    found = _ids(saver)
    assert "last" in found
    assert len(set(found)) == len(found)
    for item in saver.list(config()):
        assert item.checkpoint["channel_values"] == {"log": item.checkpoint["id"]}


def test_one_saver_in_one_loop_after_another(saver: CkptSaver) -> None:
    for id in ("one", "two", "three"):
        asyncio.run(_aput(saver, id))
    assert _ids(saver) == ["one", "two", "three"]


def test_one_saver_in_two_loops_at_once(saver: CkptSaver) -> None:
    """Two threads, each with its own loop, writing through one saver and reading what the other wrote."""
    meeting = threading.Barrier(2, timeout=20)
    problems: list[BaseException] = []

    async def main(mine: str, other: str) -> None:
        for number in range(15):
            await asyncio.gather(
                _aput(saver, f"{mine}-{number}"), saver.aput_writes(config(f"{mine}-{number}"), [("w", number)], "t")
            )
            await asyncio.to_thread(meeting.wait)
            found = await saver.aget_tuple(config(f"{other}-{number}"))
            assert found is not None
            assert found.pending_writes == [("t", "w", number)]

    def work(mine: str, other: str) -> None:
        try:
            asyncio.run(main(mine, other))
        except BaseException as error:
            problems.append(error)
            meeting.abort()

    workers = [threading.Thread(target=work, args=names) for names in (("a", "b"), ("b", "a"))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert problems == []
    assert sorted(_ids(saver)) == sorted(f"{name}-{number}" for name in "ab" for number in range(15))


def test_sync_calls_inside_a_running_loop(saver: CkptSaver) -> None:
    async def main() -> None:
        saver.put(config(), checkpoint("one", {"log": 1}, {"log": 1}), {}, {"log": 1})
        saver.put_writes(config("one"), [("log", 2)], "task")
        found = saver.get_tuple(config())
        assert found is not None
        assert found.pending_writes == [("task", "log", 2)]
        assert [item.checkpoint["id"] for item in saver.list(config())] == ["one"]
        saver.delete_thread("t")
        assert saver.get_tuple(config()) is None

    asyncio.run(main())


def test_closing_while_calls_wait_for_the_disk(saver: CkptSaver, disk: SlowDisk) -> None:
    """A close waits for nothing it does not have to: the call that is going on ends, well or with an error of ours."""

    async def main() -> None:
        disk.slow = True
        stored = asyncio.create_task(_aput(saver, "one"))
        while not disk.waiting.is_set():
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(asyncio.to_thread(saver.close))
        await asyncio.sleep(0.01)
        disk.go_on.set()
        await closing
        await stored

    asyncio.run(main())
