"""Reading many frames at once gives what reading each alone gives, errors included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ckptstore
from ckptstore import Store
from ckptstore.codec.records import pack
from ckptstore.errors import CkptStoreError, CorruptionError, StaleIndexError
from ckptstore.storage.local.bulk import WholeFrame
from ckptstore.storage.local.frames import get_location, put_location
from ckptstore.storage.local.handle import LocalStorage
from tests.contract.calls import OTHER, SUB, put, write
from tests.helpers import flip, frames


@pytest.fixture(params=["lmdb", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with ckptstore.open(
        tmp_path / "s", durability="process", auto_compact=False, segment_bytes=16384, index=request.param
    ) as opened:
        yield opened


def fill(store: Store) -> None:
    """Frames of one record and of many, directories and bodies larger than what is read at a time; some of them dead."""
    for at in range(40):
        put(store, f"{at}", f"{at - 1}" if at else None, {"m": f"{at} " * 30})
        write(store, f"{at}", at)
    put(store, "many", None, {f"channel {at}": f"{at} " * 20 for at in range(20)}, lane=OTHER)
    put(store, "large", "many", {"m": str(list(range(300_000)))}, lane=OTHER)
    put(store, "sub" * 300, None, lane=SUB)
    store.delete("u")
    put(store, "again", None, {"m": "again " * 20}, lane=OTHER)


def read(store: Store, without: tuple[int, ...] = ()) -> dict[int, WholeFrame | CkptStoreError]:
    """All frames, by LSN."""
    storage = store._storage
    assert isinstance(storage, LocalStorage)
    found = {}
    with storage.view() as view:
        last = storage.stats().last_lsn
        for first in range(1, last + 1, 7):
            for item in storage.frames_between(view, first, min(first + 7, last + 1), without):
                lsn = item.lsn if isinstance(item, WholeFrame) else int(str(item).split("LSN ")[1].split(" ")[0].strip(":"))
                assert lsn not in found
                found[lsn] = item
        return found


def check(store: Store, found: dict[int, WholeFrame | CkptStoreError]) -> None:
    with store._storage.view() as view:
        for lsn, item in found.items():
            assert isinstance(item, WholeFrame)
            alone = view.frame(lsn)
            assert (item.entries, item.directory) == (alone.entries, len(pack(alone.entries)))
            assert bytes(item.bodies) == b"".join(alone.stored(at) for at in range(len(alone.entries)))
            assert [item.frame().stored(at) for at in range(len(alone.entries))] == [
                alone.stored(at) for at in range(len(alone.entries))
            ]


def test_many_frames_are_what_each_of_them_is(store: Store) -> None:
    fill(store)
    found = read(store)
    assert sorted(found) == list(range(1, store.stats().last_lsn + 1))
    check(store, found)
    assert sorted(read(store, without=(2, 5))) == [lsn for lsn in sorted(found) if lsn not in (2, 5)]
    with store._storage.view() as view:
        alone = {lsn: view.entries(lsn) for lsn in found}
        assert dict(view.directories(alone)) == alone
        assert dict(view.directories([1, 80])) == {1: alone[1], 80: alone[80]}


def test_after_a_compaction(store: Store) -> None:
    fill(store)
    count = len(read(store))
    with store._storage.view() as before:
        store.compact()
        # A view from before knows the old places only.
        storage = store._storage
        assert isinstance(storage, LocalStorage)
        old = {item.lsn: item for item in storage.frames_between(before, 1, count + 1) if isinstance(item, WholeFrame)}
    found = read(store)
    assert 0 < len(found) < count
    check(store, found)
    assert {lsn for lsn in found if lsn <= count} <= old.keys()


def test_damage_is_said_as_when_the_frame_is_read_alone(tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as made:
        fill(made)
    places = {frame.lsn: frame for frame in frames(tmp_path / "s")}
    flip(places[3].path, places[3].offset + 10)
    flip(places[4].path, places[4].offset + 50)
    flip(places[7].path, places[7].offset + places[7].size - 1)
    with ckptstore.open(tmp_path / "s", read_only=True) as store:
        found = read(store)
        assert {lsn for lsn, item in found.items() if not isinstance(item, WholeFrame)} == {3, 4, 7}
        check(store, {lsn: item for lsn, item in found.items() if lsn not in (3, 4, 7)})
        with store._storage.view() as view:
            for lsn in (3, 4, 7):
                with pytest.raises(CorruptionError) as alone:
                    view.frame(lsn)
                assert str(found[lsn]) == str(alone.value)
            with pytest.raises(CorruptionError, match="LSN 4"):
                dict(view.directories([2, 4, 5]))
            assert dict(view.directories([2, 7])).keys() == {2, 7}


def test_an_index_that_lies_gives_no_frame_of_another(tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        fill(store)
        storage = store._storage
        assert isinstance(storage, LocalStorage)
        with storage._engine._index.write() as kv:
            other = get_location(kv, 6)
            assert other is not None
            put_location(kv, 5, other)
    # Opened anew: the cache still knew the right one.
    with ckptstore.open(tmp_path / "s") as store:
        storage = store._storage
        assert isinstance(storage, LocalStorage)
        with storage.view() as view:
            found = list(storage.frames_between(view, 5, 7))
            assert sorted(item.lsn for item in found if isinstance(item, WholeFrame)) == [6]
            assert [type(item) for item in found if not isinstance(item, WholeFrame)] == [StaleIndexError]
            with pytest.raises(StaleIndexError):
                dict(view.directories([5]))
