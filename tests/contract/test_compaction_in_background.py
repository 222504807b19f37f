"""Compaction that nobody asks for: begins when much is dead, opt-out, never in the way of a close."""

from __future__ import annotations

import os
from pathlib import Path

import ckptstore
from ckptstore import channels

SCHEMA = {"data": channels.last_value()}


def _full(path: Path, **options: bool) -> ckptstore.Store:
    store = ckptstore.open(path, durability="process", **options)
    for name, steps in (("kept", 6), ("gone", 12)):
        thread = store.thread(name, schema=SCHEMA)
        for _ in range(steps):
            thread.step({"data": os.urandom(1 << 20)})
    return store


def _wait(store: ckptstore.Store) -> None:
    thread = store._background._thread
    assert thread is not None
    thread.join()


def test_space_comes_back_by_itself_when_half_of_the_log_is_dead(tmp_path: Path) -> None:
    with _full(tmp_path / "s") as store:
        before = store.stats().log_bytes
        state = store.thread("kept").state()
        store.delete("gone")
        _wait(store)
        stats = store.stats()
        assert stats.log_bytes < before * 0.6
        assert stats.dead_bytes == 0
        assert stats.last_compaction_ms is not None
        assert store.thread("kept").state() == state
    with ckptstore.open(tmp_path / "s") as store:
        assert store.thread("kept").state() == state


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    with _full(tmp_path / "s", auto_compact=False) as store:
        store.delete("gone")
        assert store._background._thread is None
        assert store.stats().dead_bytes > 12 << 20


def test_little_is_left_alone(tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        store.thread("t", schema=SCHEMA).step({"data": b"x" * 1000})
        store.delete("t")
        assert store._background._thread is None


def test_a_close_in_the_middle_leaves_a_whole_store(tmp_path: Path) -> None:
    with _full(tmp_path / "s") as store:
        state = store.thread("kept").state()
        store.delete("gone")
    with ckptstore.open(tmp_path / "s") as store:
        assert store.thread("kept").state() == state
        store.compact()
        assert store.thread("kept").state() == state
        assert store.stats().dead_bytes == 0
