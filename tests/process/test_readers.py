"""Readers never block writers: a listing that was begun and not ended, in the same thread, another thread, another process, a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.ckptstore import CkptSaver

from tests.crash.programs import opened
from tests.helpers import checkpoint, config
from tests.process.child import ids, put

Spawn = Callable[..., Any]


def _saver(path: Path) -> CkptSaver:
    # A writer that a reader blocks fails after this time instead of hanging the test.
    return CkptSaver(path, lock_timeout=5, durability="process")


def _put(saver: CkptSaver, id: str, parent: str | None = None, thread: str = "t") -> None:
    saver.put(config(parent, thread=thread), checkpoint(id, {"log": id}, {"log": 1}), {}, {"log": 1})


def test_a_paused_list_in_the_same_thread(tmp_path: Path) -> None:
    with _saver(tmp_path / "store") as saver:
        for number in range(5):
            _put(saver, f"{number}")
        listing = saver.list(config())
        assert next(listing).checkpoint["id"] == "4"
        for number in range(5, 30):
            _put(saver, f"{number}")
            saver.put_writes(config(f"{number}"), [("log", number)], "task")
        assert [item.checkpoint["id"] for item in listing] == ["3", "2", "1", "0"]
        assert len(list(saver.list(config()))) == 30


def test_a_paused_list_does_not_keep_the_index_from_growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index grows when no transaction of the process is open: a list that held one would stop every writer for good."""
    monkeypatch.setattr("ckptstore.storage.local.index.lmdb._FIRST_MAP", 128 << 10)
    with _saver(tmp_path / "store") as saver:
        _put(saver, "first")
        _put(saver, "second")
        listing = saver.list(config())
        assert next(listing).checkpoint["id"] == "second"
        for number in range(600):
            _put(saver, f"{number}", thread=f"thread {number}")
        assert max(path.stat().st_size for path in (tmp_path / "store" / "index").rglob("data.mdb")) > 128 << 10
        assert [item.checkpoint["id"] for item in listing] == ["first"]


def test_every_method_inside_a_list_loop(tmp_path: Path) -> None:
    with _saver(tmp_path / "store") as saver:
        for number in range(5):
            _put(saver, f"{number}")
        met = []
        for item in saver.list(config()):
            id = item.checkpoint["id"]
            met.append(id)
            again = saver.get_tuple(config(id))
            assert again is not None
            assert again.checkpoint["id"] == id
            _put(saver, f"child of {id}", id)
            assert [inner.checkpoint["id"] for inner in saver.list(config(), limit=1)] == [f"child of {id}"]
            saver.copy_thread("t", f"copy {id}")
        assert met == ["4", "3", "2", "1", "0"]


def test_a_thread_deleted_while_it_is_listed(tmp_path: Path) -> None:
    with _saver(tmp_path / "store") as saver:
        for number in range(5):
            _put(saver, f"{number}")
        listing = saver.list(config())
        next(listing)
        saver.delete_thread("t")
        assert list(listing) == []


def test_a_paused_list_in_another_thread(tmp_path: Path) -> None:
    with _saver(tmp_path / "store") as saver:
        for number in range(5):
            _put(saver, f"{number}")
        paused, go_on = threading.Event(), threading.Event()
        found: list[str] = []

        def read() -> None:
            for item in saver.list(config()):
                found.append(item.checkpoint["id"])
                paused.set()
                assert go_on.wait(20)

        reader = threading.Thread(target=read)
        reader.start()
        assert paused.wait(20)
        for number in range(5, 20):
            _put(saver, f"{number}")
        go_on.set()
        reader.join()
        assert found == ["4", "3", "2", "1", "0"]


def test_a_paused_list_in_another_process(tmp_path: Path, spawn: Spawn) -> None:
    with opened(tmp_path / "store", lock_timeout=5) as store:
        for number in range(5):
            put(store, "t", f"{number}")
        child = spawn("hold_list", tmp_path / "store")
        assert child.hear() == "4 3"
        for number in range(5, 40):
            put(store, "t", f"{number}")
        assert len(ids(store, "t")) == 40
        child.say("go on")
        assert child.hear() == "2 1 0"
        child.finish()


def test_paused_lists_of_both_kinds_in_one_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with _saver(tmp_path / "store") as saver:
            for number in range(5):
                await saver.aput(config(), checkpoint(f"{number}", {"log": number}, {"log": 1}), {}, {"log": 1})
            listing, other = saver.alist(config()), saver.alist(config())
            assert (await anext(listing)).checkpoint["id"] == "4"
            assert (await anext(other)).checkpoint["id"] == "4"
            for number in range(5, 15):
                await saver.aput(config(), checkpoint(f"{number}", {"log": number}, {"log": 1}), {}, {"log": 1})
                _put(saver, f"sync {number}")  # a sync call inside a running loop
                await saver.aput_writes(config(f"{number}"), [("log", number)], "task")
                found = await saver.aget_tuple(config(f"{number}"))
                assert found is not None
                assert found.pending_writes == [("task", "log", number)]
            assert [item.checkpoint["id"] async for item in listing] == ["3", "2", "1", "0"]
            await other.aclose()  # type: ignore[attr-defined]
            assert len([item async for item in saver.alist(config())]) == 25

    asyncio.run(main())


def test_readers_and_a_writer_at_full_speed(tmp_path: Path) -> None:
    """Each listing is a whole number of commits: no gap, no checkpoint without its value."""
    with opened(tmp_path / "store", "process") as store:
        stop = threading.Event()
        problems: list[BaseException] = []
        listings = 0

        def read() -> None:
            nonlocal listings
            try:
                while not stop.is_set():
                    found = ids(store, "t")
                    assert found == [f"{number:03}" for number in range(len(found))]
                    listings += 1
            except BaseException as error:
                problems.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(120):
            put(store, "t", f"{number:03}", f"{number - 1:03}" if number else None)
        stop.set()
        for reader in readers:
            reader.join()
        assert problems == []
        assert listings
