"""Salvage: everything that is whole is in the new store and reads as before, what is lost is named, and reads of it are errors."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ckptstore
from ckptstore import LaneName, SalvageReport, Store, StoreExistsError, channels
from ckptstore.errors import (
    CheckpointLineageIntegrityError,
    CkptStoreError,
    CorruptionError,
    InvalidArgumentError,
    NotAStoreError,
    StoreMissingError,
    ThreadDeletedError,
)
from ckptstore.storage.local import format as fmt
from tests.contract.calls import LANE, history, ids, open_at, pending, put, values, write
from tests.crash.programs import SEGMENT
from tests.helpers import flip, frames
from tests.upkeep.lives import CHANNELS, Move, lived, moves, opened_life, told

FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def salvaged(path: Path) -> tuple[Path, SalvageReport]:
    """Salvage beside the store; check that the store stays as it is, and that nothing is wrong with the new one."""
    before = contents(path)
    new = path.with_name(f"{path.name} salvaged")
    shutil.rmtree(new, ignore_errors=True)
    report = ckptstore.salvage(path, new)
    assert contents(path) == before
    verified = ckptstore.verify(new)
    assert (verified.problems, verified.index_state) == ([], "agrees")
    assert verified.checkpoints == report.checkpoints
    return new, report


def each(store: Store) -> dict[tuple[LaneName, str], Any]:
    """Each checkpoint that can be read, with the past of the channels that need one."""
    found: dict[tuple[LaneName, str], Any] = {}
    listed = store.list()
    while True:
        try:
            stored = next(listed)
        except StopIteration:
            return found
        except CkptStoreError:
            continue
        try:
            past: Any = {
                channel: (past.seed, [(item.task_id, item.value) for item in past.writes])
                for channel, past in store.history(
                    stored.lane, stored.id, [name for name in CHANNELS if name in stored.versions and name not in stored.values]
                ).items()
            }
        except CkptStoreError:
            past = "lost"
        found[stored.lane, stored.id] = (stored, past)


def answers(store: Store) -> Any:
    """All answers, but for the order of equal ids in lists over several namespaces, which says nothing."""
    found = told(store)
    return {name: found[name] for name in ("threads", "lanes", "heads")}, each(store)


@FEW
@given(moves)
def test_a_sound_store_is_saved_whole(given: Sequence[Move]) -> None:
    """All answers are the same: lists, order, heads, values, writes, and the past of each channel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        life = lived(opened_life(path), given)
        before = answers(life.store)
        life.store.close()
        new, report = salvaged(path)
        assert (report.damage, report.lost) == ([], [])
        with open_at(new) as store:
            assert answers(store) == before


@FEW
@given(moves, st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 1 << 16)), min_size=1, max_size=4), st.booleans())
def test_all_that_can_be_read_of_a_damaged_store_is_saved(
    given: Sequence[Move], flips: Sequence[tuple[int, int]], lost_index: bool
) -> None:
    """Bytes of frames are flipped. With its index, the damaged store still says what can be read of it: that is what is saved."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        # An id that was stored again comes back as it was before, where the later put is lost and the index too.
        life = lived(opened_life(path), [move for move in given if not lost_index or move[0] != "again"])
        whole = each(life.store)
        life.store.close()
        places = list(frames(path))
        assume(places)
        for frame, offset in flips:
            at = places[frame % len(places)]
            flip(at.path, at.offset + offset % at.size)
        if lost_index:
            shutil.rmtree(path / "index")
            new, _ = salvaged(path)
            with open_at(new) as store:
                saved = each(store)
            # A thread whose name is lost has another; where a removal is lost, what it removed is back.
            for key, (stored, past) in saved.items():
                if key in whole:
                    assert stored._replace(writes=[]) == whole[key][0]._replace(writes=[])
                    assert whole[key][1] == "lost" or past in (whole[key][1], "lost")
        else:
            try:
                with open_at(path, read_only=True) as store:
                    readable = each(store)
            except CorruptionError:
                return  # also what the index is based on is damaged: the other case
            new, _ = salvaged(path)
            with open_at(new) as store:
                saved = each(store)
            # A thread whose name is lost has another.
            named = {key: answer for key, answer in readable.items() if key[0] in {lane for lane, _ in saved}}
            assert {key: saved[key] for key in named} == named
            # Of one whose writes are damaged the store itself says nothing.
            for key in saved.keys() & whole.keys() - readable.keys():
                assert saved[key][0]._replace(writes=[]) == whole[key][0]._replace(writes=[])


def chain(path: Path, count: int = 10, **options: Any) -> None:
    """A thread whose channel `m` is rebuilt from writes, but for every fourth checkpoint; `n` has a value in each."""
    with open_at(path, **options) as store:
        for number in range(count):
            before = f"{number - 1:02}" if number else None
            if before is not None:
                write(store, before, f"made {number}")
            given = {"n": f"{number} " * 40, **({"m": [f"all before {number}"]} if number % 4 == 0 else {})}
            put(store, f"{number:02}", before, given, versions={"m": f"{number}", "n": f"{number}"})


def test_r45_a_flipped_byte(tmp_path: Path) -> None:
    """R45: of ten puts record 5 is damaged and the index is lost. Opening is refused; the other nine are saved."""
    with open_at(tmp_path / "store") as store:
        for number in range(10):
            put(store, f"{number}", None, {"m": f"value {number}"})
    frame = list(frames(tmp_path / "store"))[4]
    flip(frame.path, frame.offset + frame.size - 2)
    shutil.rmtree(tmp_path / "store" / "index")
    with pytest.raises(CorruptionError, match="salvage"):
        open_at(tmp_path / "store")
    new, report = salvaged(tmp_path / "store")
    assert (report.checkpoints, report.threads) == (9, 1)
    assert [(problem.lsn, problem.offset, problem.checkpoint) for problem in report.damage] == [(5, frame.offset, "4")]
    with open_at(new) as store:
        assert ids(store) == ["9", "8", "7", "6", "5", "3", "2", "1", "0"]
        assert values(store, "6") == {"m": "value 6"}


@pytest.mark.parametrize("lost", [4, 5])
def test_a_lost_ancestor_is_an_error_and_not_an_empty_past(tmp_path: Path, lost: int) -> None:
    """Unless what lies behind it can be told without it: 04 holds a value, 05 only says which writes made it."""
    chain(tmp_path / "store")
    # LSN of the put of checkpoint n is 2 n + 1.
    frame = next(frame for frame in frames(tmp_path / "store") if frame.lsn == 2 * lost + 1)
    flip(frame.path, frame.offset + frame.size - 2)
    new, report = salvaged(tmp_path / "store")
    named = [(problem.thread, problem.checkpoint) for problem in report.lost if problem.text.startswith("a checkpoint")]
    assert named == [("t", f"{lost:02}")]
    with open_at(new) as store:
        assert ids(store) == [f"{number:02}" for number in range(9, -1, -1) if number != lost]
        assert history(store, "03") == (["all before 0"], ["made 1", "made 2", "made 3"])
        for id in ("06", "07"):
            if lost == 5:
                assert history(store, id) == (["all before 4"], [f"made {number}" for number in range(5, int(id) + 1)])
            else:
                with pytest.raises(CheckpointLineageIntegrityError):
                    history(store, id)
        assert history(store, "09") == (["all before 8"], ["made 9"])
        assert store.is_pruned(LANE, f"{lost:02}")


def test_lost_writes_are_an_error_where_they_are_needed(tmp_path: Path) -> None:
    chain(tmp_path / "store")
    frame = next(frame for frame in frames(tmp_path / "store") if frame.lsn == 2 * 6)
    flip(frame.path, frame.offset + frame.size - 2)
    new, report = salvaged(tmp_path / "store")
    assert {problem.checkpoint for problem in report.lost} == {"05", "06"}
    with open_at(new) as store:
        assert len(ids(store)) == 10
        assert history(store, "05") == (["all before 4"], ["made 5"])
        with pytest.raises(CheckpointLineageIntegrityError):
            history(store, "06")
        with pytest.raises(CheckpointLineageIntegrityError):
            history(store, "07")
        assert values(store, "06") == {"n": "6 " * 40}
        assert history(store, "09") == (["all before 8"], ["made 9"])


def test_what_was_removed_stays_removed(tmp_path: Path) -> None:
    """Pruned histories, deleted threads, moved heads, copies, orphans; and what they keep is kept."""
    with open_at(tmp_path / "store", auto_compact=False) as store:
        put(store, "gone", None, {"m": 1}, lane=LaneName("deleted"))
        store.delete("deleted")
        chain_into(store)
        store.copy("t", "copied")
        store.prune("t")
        put(store, "x", None, {"m": 2}, lane=LaneName("heads"))
        put(store, "y", "x", {"m": 3}, lane=LaneName("heads"))
        store.set_head(LaneName("heads"), "x")
        write(store, "never stored", "orphan", lane=LaneName("heads"))
        before = answers(store)
    new, report = salvaged(tmp_path / "store")
    assert report.histories == 1
    with open_at(new) as store:
        assert answers(store) == before
        assert history(store, "07") == (["all before 4"], ["made 5", "made 6", "made 7"])
        with pytest.raises(ThreadDeletedError):
            write(store, "gone", "late", lane=LaneName("deleted"))
        put(store, "never stored", None, {"m": 1}, lane=LaneName("heads"))
        assert pending(store, "never stored", LaneName("heads")) == [("k", "m", "orphan")]


def test_a_removal_that_is_lost_with_the_index_did_not_happen(tmp_path: Path) -> None:
    """Nothing else says that anything was removed. With the index, which does, it stays removed."""
    path = tmp_path / "store"
    with open_at(path, auto_compact=False) as store:
        put(store, "kept", None, {"m": 1})
        put(store, "removed", "kept", {"m": 2}, run="r")
        store.delete_for_runs(["r"])
    tombstone = next(frame for frame in frames(path) if frame.lsn == 3)
    flip(tombstone.path, tombstone.offset + tombstone.size - 1)
    with open_at(salvaged(path)[0]) as store:
        assert ids(store) == ["kept"]
    shutil.rmtree(path / "index")
    with open_at(salvaged(path)[0]) as store:
        assert ids(store) == ["removed", "kept"]


def chain_into(store: Store) -> None:
    for number in range(8):
        before = f"{number - 1:02}" if number else None
        if before is not None:
            write(store, before, f"made {number}")
        given = {"m": [f"all before {number}"]} if number % 4 == 0 else {}
        put(store, f"{number:02}", before, given, versions={"m": f"{number}"})


def test_names_that_are_lost(tmp_path: Path) -> None:
    """The first frame names the thread. Without it and without an index its checkpoints are found under a number."""
    chain(tmp_path / "store", 5)
    frame = next(frames(tmp_path / "store"))
    flip(frame.path, frame.offset + 10)
    shutil.rmtree(tmp_path / "store" / "index")
    new, report = salvaged(tmp_path / "store")
    with open_at(new) as store:
        assert [info.thread for info in store.threads()] == ["found 1"]
        assert ids(store, "found 1") == ["04", "03", "02", "01"]
        with pytest.raises(CheckpointLineageIntegrityError):
            history(store, "02", lane=LaneName("found 1"))
    assert report.damage[0].lsn == 1


@pytest.mark.parametrize("damage", ["emptied", "missing", "headless", "no STORE"])
def test_whole_files(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store"
    chain(path, 60, segment_bytes=SEGMENT)
    segments = sorted((path / "segments").glob("*.seg"))
    assert len(segments) > 3
    lost = {frame.lsn for frame in frames(path) if frame.path == segments[1]}
    happen: dict[str, Callable[[], object]] = {
        "emptied": lambda: os.truncate(segments[1], 0),
        "missing": segments[1].unlink,
        "headless": lambda: flip(segments[1], 20),
        "no STORE": (path / "STORE").unlink,
    }
    happen[damage]()
    shutil.rmtree(path / "index")
    for hint in (path / "segments").glob("*.hint"):
        hint.unlink()
    new, report = salvaged(path)
    kept = [number for number in range(60) if damage in ("headless", "no STORE") or 2 * number + 1 not in lost]
    with open_at(new) as store:
        assert ids(store)[::-1] == [f"{number:02}" for number in kept]
        assert history(store, "59") == (["all before 56"], ["made 57", "made 58", "made 59"])
    assert report.damage


def test_native_threads(tmp_path: Path) -> None:
    with open_at(tmp_path / "store") as store:
        thread = store.thread("t", schema={"log": channels.append(), "title": channels.last_value()}, snapshot_frequency=4)
        for number in range(14):
            thread.step({"log": [number], "title": f"{number}"})
        thread.at(ids(store)[6]).fork().step({"log": ["branch"]})
        states = {id: store.thread("t").at(id).state() for id in ids(store)}
    new, _ = salvaged(tmp_path / "store")
    with open_at(new) as store:
        assert {id: store.thread("t").at(id).state() for id in ids(store)} == states
        store.thread("t").step({"log": ["goes on"]})
        assert store.thread("t").state()["log"][-2:] == ["branch", "goes on"]


def test_a_store_with_a_torn_tail(tmp_path: Path) -> None:
    chain(tmp_path / "store", 5)
    newest = max((tmp_path / "store" / "segments").glob("*.seg"))
    with newest.open("ab") as file:
        file.write(fmt.MARK + b"\x17" * 70)
    new, report = salvaged(tmp_path / "store")
    assert (report.checkpoints, report.lost) == (5, [])
    with open_at(new) as store:
        assert ids(store)[0] == "04"


def test_wrong_calls(tmp_path: Path) -> None:
    chain(tmp_path / "store", 2)
    with pytest.raises(StoreMissingError):
        ckptstore.salvage(tmp_path / "nothing", tmp_path / "new")
    with pytest.raises(NotAStoreError):
        ckptstore.salvage(tmp_path, tmp_path.with_name("new"))
    with pytest.raises(StoreExistsError):
        ckptstore.salvage(tmp_path / "store", tmp_path)
    with pytest.raises(InvalidArgumentError, match="outside the store"):
        ckptstore.salvage(tmp_path / "store", tmp_path / "store" / "new")
    with pytest.raises(InvalidArgumentError, match="destination="):
        ckptstore.salvage(tmp_path / "store", "")
    assert sorted(os.listdir(tmp_path)) == ["store"]
