"""The contract on a folder, with both kinds of index, with one segment and with many; and what a reopened store answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptstore import Store
from ckptstore.errors import ThreadDeletedError
from tests.contract.calls import LANE, OTHER, SUB, dead, everything, history, ids, logical_view, open_at, put, write
from tests.contract.mixins import StorageContract


@pytest.fixture
def options() -> dict[str, Any]:
    return {}


@pytest.fixture
def make_store(tmp_path: Path, options: dict[str, Any]) -> Iterator[Callable[..., Store]]:
    made: list[Store] = []

    def make(**more: Any) -> Store:
        made.append(open_at(tmp_path / str(len(made)), **options, **more))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    return make_store()


class TestLocal(StorageContract):
    """Every test of the contract."""


class TestLocalInSmallSegments(StorageContract):
    """The same with a new segment every 4 KiB, and without a cache of frames."""

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"segment_bytes": 4096, "cache_bytes": 0}


class TestLocalWithSqlite(StorageContract):
    """The same with the other index."""

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"index": "sqlite"}


def _busy(store: Store) -> None:
    """A bit of everything."""
    put(store, "0", None, {"m": ["seed"] * 30, "n": 1})
    for number in range(1, 30):
        write(store, str(number - 1), number, channel="m", task=f"k{number % 3}")
        put(store, str(number), str(number - 1), {"n": [number] * 40}, run=f"r{number % 4}", metadata={"step": number})
        put(store, str(number), lane=SUB, values={"m": number})
    write(store, "orphan", "of a put still to come")
    put(store, "branch", "7", {"m": ["branch"]})
    store.copy("t", "u")
    store.delete_for_runs(["r2"])
    put(store, "9", "8", {"m": ["put again"]})
    store.prune("u")
    put(store, "after", None, lane=OTHER)
    store.set_head(LANE, "5")
    put(store, "1", lane=OTHER._replace(thread="gone"))
    store.delete("gone")


@pytest.mark.parametrize(("segment_bytes", "index"), [(4096, "lmdb"), (1 << 20, "lmdb"), (4096, "sqlite")])
@pytest.mark.parametrize("forget_index", [False, True], ids=["with-index", "index-deleted"])
def test_a_reopened_store_gives_the_same_answers(tmp_path: Path, segment_bytes: int, index: str, forget_index: bool) -> None:
    """With its index, and with an index built anew from the log: both equal, as a whole and key by key."""
    path = tmp_path / "s"
    with open_at(path, segment_bytes=segment_bytes, index=index) as store:
        _busy(store)
        answers, keys, gone = everything(store), logical_view(store), dead(store)
    for _ in range(2):
        if forget_index:
            shutil.rmtree(path / "index")
        with open_at(path, segment_bytes=segment_bytes, index=index) as store:
            assert everything(store) == answers
            assert logical_view(store) == keys
            assert dead(store) == gone
            with pytest.raises(ThreadDeletedError):
                write(store, "1", 1, lane=OTHER._replace(thread="gone"))


def test_deleting_the_index_of_small_segments_uses_their_hints(tmp_path: Path) -> None:
    """Hints are written behind the commits and may be missing: the answers are the same with all, some and none of them."""
    path = tmp_path / "s"
    with open_at(path, segment_bytes=4096) as store:
        _busy(store)
        answers, index = everything(store), logical_view(store)
    for keep in (lambda number: True, lambda number: number % 2, lambda number: False):
        for number, hint in enumerate(sorted((path / "segments").glob("*.hint"))):
            if not keep(number):
                hint.unlink()
        shutil.rmtree(path / "index")
        with open_at(path, segment_bytes=4096) as store:
            assert everything(store) == answers
            assert logical_view(store) == index


def test_two_handles_see_each_others_commits_at_once(tmp_path: Path) -> None:
    with open_at(tmp_path / "s") as one, open_at(tmp_path / "s") as two:
        for number in range(20):
            put(one if number % 2 else two, str(number), str(number - 1) if number else None, {"m": number})
            assert ids(one) == ids(two) == [str(known) for known in reversed(range(number + 1))]
        one.prune("t")
        assert ids(two) == ["19"]
    with open_at(tmp_path / "s") as store:
        assert ids(store) == ["19"]


def test_numbers_go_on_after_a_reopen(tmp_path: Path) -> None:
    """Lanes, ids and positions begun before are never given again."""
    path = tmp_path / "s"
    last = 0
    for round in range(5):
        with open_at(path) as store:
            lsn = put(store, str(round), str(round - 1) if round else None, {"m": [round] * 50}, lane=LANE)
            assert lsn > last
            last = lsn
            put(store, "x", lane=LANE._replace(ns=f"ns:{round}"), values={"m": round})
        if round % 2:
            shutil.rmtree(path / "index")
    with open_at(path) as store:
        assert ids(store) == ["4", "3", "2", "1", "0"]
        assert history(store, "4") == ([3] * 50, [])
        assert len(ids(store, "t", None)) == 10


@pytest.mark.parametrize("forget_index", [False, True], ids=["with-index", "index-deleted"])
def test_a_number_is_never_given_again(tmp_path: Path, forget_index: bool) -> None:
    """Not when the thread that had it was deleted, nor when compaction took the last record away that speaks of it."""
    path = tmp_path / "s"
    given: list[int | None] = []
    for round in range(3):
        with open_at(path, auto_compact=False) as store:
            put(store, f"{round}", None, {"m": round})
            with store._storage.view() as view:
                given += [view.thread("t"), view.lane("t", "")]
            store.delete("t")
            store.compact()
            store.compact()
        if forget_index:
            shutil.rmtree(path / "index")
    assert given == [1, 1, 2, 2, 3, 3]
