"""Handles on one folder: who shares what, what a look leaves alone, and what closing waits for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

import ckptstore
from ckptstore import LaneName, Store, StoreOptions
from ckptstore.errors import CkptStoreError, CorruptionError, LockTimeoutError, ReadOnlyError, StoreClosedError
from ckptstore.inspect.opened import opened as looked_into
from ckptstore.storage.local.gate import Gate
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.index.lmdb import LmdbIndex
from ckptstore.storage.local.locks import SharedPage
from ckptstore.storage.local.vfs import Vfs
from tests.contract.calls import LANE, ids, open_at, put, values
from tests.helpers import flip, random_text

ROOT = Path(__file__).resolve().parents[2]
INDEXES = ("lmdb", "sqlite")


def _log(path: Path) -> dict[str, bytes]:
    """The bytes of the log, and of what recovery goes by."""
    files = [path / "STORE", path / "POISON", *(path / "segments").glob("*.seg"), *path.glob("torn/*")]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.exists()}


# -- pictures of a damaged log, looks, folders made again ----------------------------------------------------------------------


def _damaged(path: Path, index: str) -> None:
    """A closed store of twenty checkpoints, one byte of which changed in the middle of the log, without an index."""
    with open_at(path, index=index) as store:
        for number in range(20):
            put(store, str(number), str(number - 1) if number else None, {"m": random_text(300)})
    shutil.rmtree(path / "index")
    (segment,) = (path / "segments").glob("*.seg")
    flip(segment, segment.stat().st_size // 2)


@pytest.mark.parametrize("index", INDEXES)
def test_a_picture_of_a_damaged_log_is_not_shared_with_who_wants_to_write(tmp_path: Path, index: str) -> None:
    """Reading what is left is fine; whoever wants to write is refused, and nothing of the log is cut or written."""
    path = tmp_path / "s"
    _damaged(path, index)
    before = _log(path)
    with ckptstore.open(path, read_only=True) as picture:
        head = ids(picture)[0]
        # The picture keeps the folder from being recovered under it.
        with pytest.raises((LockTimeoutError, CorruptionError)):
            open_at(path, lock_timeout=0.2)
        with pytest.raises(ReadOnlyError):
            put(picture, "new")
        assert ids(picture)[0] == head
    with pytest.raises(CorruptionError):
        open_at(path)
    assert _log(path) == before


@pytest.mark.parametrize("index", INDEXES)
def test_looking_alone_deletes_nothing_that_a_kill_left_behind(tmp_path: Path, index: str) -> None:
    """Half of a segment, and a segment that a compaction replaced: both are there afterwards, and the next writer sweeps them."""
    path = tmp_path / "s"
    with open_at(path, index=index, segment_bytes=4096, auto_compact=False) as store:
        for number in range(20):
            put(store, f"{number:02}", None, {"m": "x" * 500})
        old = {file: file.read_bytes() for file in (path / "segments").glob("*.seg")}
        store.prune("t")
        store.compact()
    (path / "segments" / f"{99:020d}.seg.tmp").write_bytes(b"half")
    gone = next(file for file in sorted(old) if not file.exists())
    gone.write_bytes(old[gone])
    before = _log(path)
    with ckptstore.open(path, read_only=True) as store:
        assert ids(store) == ["19"]
    assert _log(path) == before
    assert [file.read_bytes() for file in (path / "segments").glob("*.tmp")] == [b"half"]
    with open_at(path) as store:
        assert ids(store) == ["19"]
        assert not gone.exists()
        assert not list((path / "segments").glob("*.tmp"))


DYING = """
import os, sys
from ckptstore.options import StoreOptions
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.vfs import Vfs
from ckptstore.store import Store
from tests.contract.calls import put

class Dying(Vfs):
    sealed = False

    def point(self, name):
        self.sealed = self.sealed or name == "rotate:sealed"
        if self.sealed and name == sys.argv[2]:
            os._exit(9)

options = StoreOptions(segment_bytes=4096, index=sys.argv[3])
store = Store(LocalStorage(sys.argv[1], options, Dying()), options)
for number in range(100):
    put(store, f"{number:02}", None, {"m": os.urandom(300).hex()})
"""


def _die(path: Path, point: str, index: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    died = subprocess.run([sys.executable, "-c", DYING, str(path), point, index], env=environment, timeout=60)
    assert died.returncode == 9


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("point", ["segment:created", "commit:appended"])
@pytest.mark.parametrize("known", [True, False])
def test_looking_moves_no_segment_that_was_begun_and_not_published(tmp_path: Path, index: str, point: str, known: bool) -> None:
    """Without frames, or with one that the index does not name; with the index that the killed process left, or without one."""
    path = tmp_path / "s"
    _die(path, point, index)
    if not known:
        shutil.rmtree(path / "index")
    before = _log(path)
    assert len(before) == 3
    for _ in range(2):
        with ckptstore.open(path, read_only=True) as store:
            found = ids(store)
            assert len(found) > 3
    assert _log(path) == before
    # Whoever writes does what is left to do, and finds the same.
    with open_at(path) as store:
        assert ids(store) == found
        put(store, "new", found[0])
    with open_at(path) as store:
        assert ids(store) == ["new", *found]


@pytest.mark.parametrize("known", [True, False])
def test_looking_moves_no_segment_that_others_went_on_without(tmp_path: Path, known: bool) -> None:
    path = tmp_path / "s"
    _die(path, "commit:appended", "lmdb")
    second = path / "segments" / f"{2:020d}.seg"
    unpublished = second.read_bytes()
    second.unlink()
    with open_at(path) as store:
        put(store, "went on")
    second.write_bytes(unpublished)
    if not known:
        shutil.rmtree(path / "index")
    before = _log(path)
    with ckptstore.open(path, read_only=True) as store:
        assert ids(store)[0] == "went on"
    assert _log(path) == before
    with open_at(path) as store:
        assert ids(store)[0] == "went on"
    assert not second.exists()
    assert len(list((path / "torn").glob("*.seg"))) == 1


LOOKING = """
import sys
import ckptstore
from tests.contract.calls import ids
with ckptstore.open(sys.argv[1], read_only=True, lock_timeout=5.0) as store:
    print(*ids(store), flush=True)
    sys.stdin.readline()
"""


def test_many_may_look_at_a_damaged_log_at_once(tmp_path: Path) -> None:
    """In one process and in several; when all of them have left, a writer is told of the damage and not of them."""
    path = tmp_path / "s"
    _damaged(path, "lmdb")
    before = _log(path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", LOOKING, str(path)]
    with ckptstore.open(path, read_only=True) as one, ckptstore.open(path, read_only=True, lock_timeout=0.2) as two:
        assert ids(one) == ids(two) != []
        looking = [
            subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        for child in looking:
            assert child.stdout is not None
            assert child.stdout.readline().split() == ids(one)
        with pytest.raises(LockTimeoutError):
            open_at(path, lock_timeout=0.05)
    for child in looking:
        child.communicate("\n", timeout=60)
        assert child.returncode == 0
    with pytest.raises(CorruptionError):
        open_at(path)
    assert _log(path) == before


def test_who_waits_for_a_folder_keeps_nobody_from_leaving_it(tmp_path: Path) -> None:
    """A handle that waits to write, and one of the same process that looks: the first gets its turn when the second has closed."""
    path = tmp_path / "s"
    with open_at(path) as store:
        put(store, "1", None, {"m": "kept"})
    (path / "POISON").write_text("an fsync failed")
    shutil.rmtree(path / "index")
    picture = ckptstore.open(path, read_only=True)
    opened: list[Store] = []
    waiting = _Running(lambda: opened.append(open_at(path, lock_timeout=60.0)))
    other = ckptstore.open(tmp_path / "other")
    picture.close()
    other.close()
    assert waiting.ended() is None
    with opened[0] as store:
        assert ids(store) == ["1"]


@pytest.mark.parametrize("index", INDEXES)
def test_looking_at_a_store_with_a_failed_fsync_leaves_that_to_who_writes(tmp_path: Path, index: str) -> None:
    """Recovery writes the log anew: not the work of a handle that promised to write nothing."""
    path = tmp_path / "s"
    with open_at(path, index=index) as store:
        put(store, "1", None, {"m": "kept"})
    (path / "POISON").write_text("an fsync failed")
    before = _log(path)
    for _ in range(2):
        with ckptstore.open(path, read_only=True) as store:
            assert values(store) == {"m": "kept"}
        with looked_into(path, 5) as found:
            assert ids(found.store) == ["1"]
        assert _log(path) == before
    with open_at(path) as store:
        assert values(store) == {"m": "kept"}
        put(store, "2", "1")
    assert not (path / "POISON").exists()


@pytest.mark.parametrize("index", INDEXES)
def test_a_folder_that_was_removed_and_made_again_is_a_new_store(tmp_path: Path, index: str) -> None:
    """Also while a handle on the one before was never closed."""
    path = tmp_path / "s"
    old = open_at(path, index=index)
    put(old, "old", None, {"m": "old"})
    shutil.rmtree(path)
    with open_at(path, index=index) as new, open_at(path, index=index) as beside:
        assert ids(new) == []
        put(new, "new", None, {"m": "new"})
        assert ids(beside) == ["new"]
        assert ids(old) == ["old"]
        old.close()
        put(beside, "newer", "new", {"m": "newer"})
    with open_at(path) as store:
        assert ids(store) == ["newer", "new"]


# -- closing under calls -----------------------------------------------------------------------------------------------------


class _Stopping(Vfs):
    """Stops the commit that comes to a point, until told to go on."""

    def __init__(self, point: str) -> None:
        self._point = point
        self.reached, self.go_on = threading.Event(), threading.Event()

    def point(self, name: str) -> None:
        if name == self._point and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(20)


class _Running(threading.Thread):
    """A thread that keeps what its work returned or raised."""

    def __init__(self, work: Callable[[], Any], name: str | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.result = error

    def ended(self) -> Any:
        self.join(30)
        assert not self.is_alive()
        return self.result


def _opened(path: Path, vfs: Vfs, **more: Any) -> Store:
    options = StoreOptions(durability="process", **more)
    return Store(LocalStorage(path, options, vfs), options)


class _Visitor:
    """A call in flight."""


def test_a_wait_to_be_alone_that_is_interrupted_leaves_the_gate_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a close or a growing index waits for others: later calls go in as before."""
    gate, inside = Gate(), _Visitor()
    gate.enter(inside)

    def interrupted(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gate._condition, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt), gate.alone():
            pass
    late = threading.Thread(target=gate.enter, args=(_Visitor(),), daemon=True)
    late.start()
    late.join(5)
    assert not late.is_alive()


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("point", ["commit:resolved", "commit:appended", "commit:indexed", "commit:published"])
def test_close_waits_for_a_call_in_flight(tmp_path: Path, index: str, point: str) -> None:
    vfs = _Stopping(point)
    store = _opened(tmp_path / "s", vfs, index=index)
    putting = _Running(lambda: put(store, "1", None, {"m": "in flight"}))
    assert vfs.reached.wait(20)
    closing = _Running(store.close)
    closing.join(0.2)
    waits = closing.is_alive()
    vfs.go_on.set()
    assert waits
    assert isinstance(putting.ended(), int)
    assert closing.ended() is None
    assert (tmp_path / "s" / "index" / "CLEAN").exists()
    with open_at(tmp_path / "s") as store:
        assert values(store) == {"m": "in flight"}


def test_a_call_that_lost_the_race_against_close_is_refused_and_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the commit lock longer than `close` waits, and gets it while the index is packed: too late to be kept."""
    late, packing, done = threading.Event(), threading.Event(), threading.Event()
    acquire, copy = SharedPage.acquire, LmdbIndex.copy_packed

    def slow_acquire(self: SharedPage, timeout: float) -> bool:
        if threading.current_thread().name == "late":
            late.set()
            assert packing.wait(20)
        return acquire(self, timeout)

    def slow_copy(self: LmdbIndex, folder: Path) -> LmdbIndex:
        packed = copy(self, folder)
        packing.set()
        assert done.wait(20)
        return packed

    monkeypatch.setattr(SharedPage, "acquire", slow_acquire)
    monkeypatch.setattr(LmdbIndex, "copy_packed", slow_copy)
    store = open_at(tmp_path / "s", lock_timeout=0.2)
    for number in range(600):
        put(store, str(number), str(number - 1) if number else None)

    def put_late() -> Any:
        try:
            return put(store, "late", "599")
        finally:
            done.set()

    putting = _Running(put_late, "late")
    assert late.wait(20)
    store.close()
    assert packing.is_set()
    assert isinstance(putting.ended(), StoreClosedError)
    with open_at(tmp_path / "s") as store:
        assert ids(store)[0] == "599"
        assert store.get(LANE, "late") is None


@pytest.mark.parametrize("durability", ["process", "commit"])
def test_closing_under_many_writers_keeps_what_returned_and_refuses_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """Writers linger between the first check and the commit lock, so that a close falls between the two."""
    acquire = SharedPage.acquire

    def linger(self: SharedPage, timeout: float) -> bool:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.005)
        return acquire(self, timeout)

    monkeypatch.setattr(SharedPage, "acquire", linger)
    for round in range(3):
        path = tmp_path / str(round)
        store = open_at(path, durability=durability)
        stored: list[list[str]] = [[] for _ in range(8)]
        begun = threading.Barrier(9)

        def work(number: int, store: Store = store, stored: list[list[str]] = stored, begun: threading.Barrier = begun) -> None:
            begun.wait(20)
            while True:
                id = str(len(stored[number]))
                put(store, id, stored[number][-1] if stored[number] else None, lane=LaneName(f"t{number}"))
                stored[number].append(id)

        writers = [_Running(lambda number=number: work(number)) for number in range(8)]  # type: ignore[misc]
        begun.wait(20)
        time.sleep(0.02 * (round + 1))
        store.close()
        ends = [writer.ended() for writer in writers]
        assert all(isinstance(end, StoreClosedError) for end in ends), ends
        with open_at(path) as store:
            assert [ids(store, f"t{number}")[::-1] for number in range(8)] == stored


# -- in the background, and at exit ------------------------------------------------------------------------------------------


def test_syncing_in_the_background_goes_on_after_an_error_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader slot was free for a moment: not a failed fsync, and no reason to never sync again."""
    begin_read = LmdbIndex.begin_read
    failed = threading.Event()

    def full_for_a_moment(self: LmdbIndex, visitor: object) -> Any:
        if threading.current_thread() is not threading.main_thread() and not failed.is_set():
            failed.set()
            raise lmdb.ReadersFullError("no slot")
        return begin_read(self, visitor)

    with ckptstore.open(tmp_path / "s", index="lmdb", durability="interval", sync_interval=0.01) as store:
        put(store, "1")
        monkeypatch.setattr(LmdbIndex, "begin_read", full_for_a_moment)
        assert failed.wait(20)
        lsn = put(store, "2", "1")
        deadline = time.monotonic() + 20
        while store.stats().durable_lsn < lsn:
            assert time.monotonic() < deadline, "nothing is synced any more"
            time.sleep(0.01)


LEAVING = """
import sys
import ckptstore
from tests.contract.calls import put
store = ckptstore.open(sys.argv[1], lock_timeout=60.0)
put(store, "of the child")
print("stored", flush=True)
sys.stdin.readline()
"""


def test_an_exit_does_not_wait_out_the_lock_timeout_for_another_holder(tmp_path: Path) -> None:
    """A process with an unclosed store ends though another one, stopped, holds the commit lock: far below the timeout of 60 s."""
    with open_at(tmp_path / "s") as store:
        child = subprocess.Popen(
            [sys.executable, "-c", LEAVING, str(tmp_path / "s")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        assert child.stdin is not None
        assert child.stdout is not None
        holding, go_on = threading.Event(), threading.Event()

        def hold(view: Any) -> list[Any]:
            holding.set()
            assert go_on.wait(60)
            return []

        try:
            assert child.stdout.readline() == "stored\n"
            holder = _Running(lambda: store._storage.commit(hold))
            assert holding.wait(20)
            child.stdin.close()
            assert child.wait(20) == 0
        finally:
            go_on.set()
            child.kill()
            child.wait()
            child.stdout.close()
        assert not isinstance(holder.ended(), CkptStoreError)
        assert ids(store) == ["of the child"]
