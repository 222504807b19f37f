"""What a failing disk does to a running store: fsync errors, a full disk, short writes, read errors, through the filesystem seam."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ckptstore import CkptStoreError, LaneName, Store
from ckptstore.errors import DurabilityUnknownError, NoSpaceError, StorageIOError, StorePoisonedError
from ckptstore.testing.crashfs import CrashVfs, write_image
from tests.crash.programs import LEVELS, Call, Level, State, after, assert_prefix, opened, program, run, seen, states

CALLS = program(1, 6)
EXPECTED = states(CALLS)
MORE = Call("put", "more", "more", None, "more")


class Running(NamedTuple):
    """A store with the program run, on a disk that can be made to fail."""

    path: Path
    fs: CrashVfs
    store: Store


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    fs = CrashVfs(tmp_path / "store")
    with opened(tmp_path / "store", vfs=fs) as store:
        for call in CALLS:
            run(store, call)
        yield Running(tmp_path / "store", fs, store)


def _records(path: Path) -> dict[str, bytes]:
    """The segments without the zeros that may follow the last record."""
    return {name.name: name.read_bytes().rstrip(b"\0") for name in (path / "segments").glob("*.seg")}


def _reopened(path: Path) -> State:
    with opened(path, vfs=CrashVfs(path)) as store:
        return seen(store)


# -- fsync -------------------------------------------------------------------------------------------------------------


def test_a_failed_fsync_is_said_and_stops_all_writing(running: Running) -> None:
    """The call may be seen and may be lost; nobody writes on; readers go on; the next open recovers all that can be read."""
    path, fs, store = running
    with opened(path, "process") as other:
        fs.fail("fdatasync", EIO, path="segments/*")
        with pytest.raises(DurabilityUnknownError, match=r"may not survive a power loss .*[Ii]nput/output error"):
            run(store, MORE)
        assert (path / "POISON").read_text().startswith("fsync of segment")
        for handle in (store, other):
            with pytest.raises(StorePoisonedError, match="an fsync failed earlier"):
                run(handle, Call("put", "no", "no", None, "no"))
            assert seen(handle) == after(EXPECTED[-1], MORE)
        with pytest.raises(DurabilityUnknownError):
            other.sync()
    store.close()
    with opened(path, vfs=fs) as again:
        assert not (path / "POISON").exists()
        assert seen(again) == after(EXPECTED[-1], MORE)
        run(again, Call("put", "yes", "yes", None, "yes"))
    assert "yes" in _reopened(path)


def test_a_new_handle_opened_while_poisoned_may_read_and_not_write(running: Running) -> None:
    path, fs, store = running
    fs.fail("fdatasync", EIO, path="segments/*")
    with pytest.raises(DurabilityUnknownError):
        run(store, MORE)
    with opened(path) as late:
        assert seen(late) == after(EXPECTED[-1], MORE)
        with pytest.raises(StorePoisonedError):
            run(late, Call("put", "no", "no", None, "no"))


def test_recovery_after_a_failed_fsync_does_not_trust_the_old_file(running: Running, tmp_path: Path) -> None:
    """The model never makes the old file durable after its fsync failed, so what survives a later power cut was copied."""
    path, fs, store = running
    fs.fail("fdatasync", EIO, path="segments/*")
    with pytest.raises(DurabilityUnknownError):
        run(store, MORE)
    store.close()
    with opened(path, vfs=fs) as again:
        found = seen(again)
        assert found == after(EXPECTED[-1], MORE)
        image = fs.image(random.Random(1), "lost")
    assert _reopened(write_image(image, tmp_path / "cut")) == found


def test_a_power_cut_after_a_failed_fsync_keeps_what_was_acknowledged(running: Running, tmp_path: Path) -> None:
    _, fs, store = running
    fs.fail("fdatasync", EIO, path="segments/*")
    with pytest.raises(DurabilityUnknownError):
        run(store, MORE)
    store.close()
    rng = random.Random(2)
    for number in range(20):
        found = _reopened(write_image(fs.image(rng), tmp_path / f"cut{number}"))
        assert found in (EXPECTED[-1], after(EXPECTED[-1], MORE))


def test_what_recovery_from_a_failed_fsync_leaves_behind_is_kept(running: Running) -> None:
    """A torn tail behind the segment that is written anew."""
    path, fs, store = running
    fs.fail("fdatasync", EIO, path="segments/*")
    with pytest.raises(DurabilityUnknownError):
        run(store, MORE)
    store.close()
    segment = path / "segments" / f"{1:020}.seg"
    tail = segment.read_bytes().rstrip(b"\0")
    segment.write_bytes(tail + b"torn")
    assert _reopened(path) == after(EXPECTED[-1], MORE)
    assert [kept.read_bytes() for kept in (path / "torn").iterdir()] == [b"torn"]


@pytest.mark.parametrize("call", ["open", "fdatasync"])
def test_a_failed_fsync_where_the_poison_file_cannot_be_made_durable(running: Running, call: str) -> None:
    """It is needed as long as the page cache lives, and written without an fsync then."""
    path, fs, store = running
    fs.fail("fdatasync", EIO, path="segments/*")
    fs.fail(call, EIO, path="POISON.tmp")
    with pytest.raises(DurabilityUnknownError):
        run(store, MORE)
    assert (path / "POISON").read_text().startswith("fsync of segment")
    with pytest.raises(StorePoisonedError):
        run(store, Call("put", "no", "no", None, "no"))
    store.close()
    assert _reopened(path) == after(EXPECTED[-1], MORE)


def test_a_failed_fsync_in_the_background_stops_writing_too(tmp_path: Path) -> None:
    fs = CrashVfs(tmp_path / "store")
    with opened(tmp_path / "store", "interval", fs, sync_interval=60) as store:
        run(store, CALLS[0])
        fs.fail("fdatasync", EIO, path="segments/*")
        with pytest.raises(DurabilityUnknownError):
            store.sync()
        with pytest.raises(StorePoisonedError):
            run(store, CALLS[1])
        assert seen(store) == EXPECTED[1]
    assert _reopened(tmp_path / "store") == EXPECTED[1]


def test_a_failed_fsync_at_close_is_recovered_from(running: Running) -> None:
    path, fs, store = running
    fs.fail("fdatasync", EIO, path="segments/*")
    store.close()
    assert (path / "POISON").exists()
    assert not (path / "index" / "CLEAN").exists()
    assert _reopened(path) == EXPECTED[-1]
    assert not (path / "POISON").exists()


@pytest.mark.parametrize("call", ["fdatasync", "rename", "sync_folder"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_rotation_that_fails_loses_nothing(tmp_path: Path, call: str, level: Level) -> None:
    """The full segment is synced and the new one created inside a commit: what fails there fails that commit, and leaves a store."""
    fs = CrashVfs(tmp_path / "store")
    calls = program(3, 30, only=())
    with opened(tmp_path / "store", level, fs, sync_interval=60) as store:
        fs.watch = lambda what, name: fs.fail(call, EIO, path="segments*") if (what, name) == ("point", "rotate:sealed") else None
        acknowledged = _until_it_fails(store, calls)
        fs.watch = None
        assert 0 < acknowledged < len(calls)
        assert seen(store) == states(calls)[acknowledged]
    assert _reopened(tmp_path / "store") == states(calls)[acknowledged]


def _until_it_fails(store: Store, calls: list[Call]) -> int:
    """Run calls until one raises; return how many did not."""
    for number, call in enumerate(calls):
        try:
            run(store, call)
        except (CkptStoreError, OSError):
            return number
    return len(calls)


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ENOSPC, EDQUOT, EFBIG])
@pytest.mark.parametrize("short", [0, 1, 39, 40, 41, 100])
def test_no_space_keeps_nothing_of_the_call_and_everything_else(running: Running, error: int, short: int) -> None:
    path, fs, store = running
    before = _records(path)
    fs.fail("pwrite", error, path="segments/*", short=short)
    with pytest.raises(NoSpaceError, match=r"nothing of this call was kept"):
        run(store, MORE)
    assert _records(path) == before
    assert seen(store) == EXPECTED[-1]
    run(store, MORE)
    assert seen(store) == after(EXPECTED[-1], MORE)
    store.close()
    assert _reopened(path) == after(EXPECTED[-1], MORE)


@pytest.mark.parametrize("call", ["pwrite", "open", "fdatasync"])
def test_no_space_for_a_new_segment(tmp_path: Path, call: str) -> None:
    """The disk fills at a rotation. Once there is space again the same store goes on, and nothing is missing at the next open."""
    fs = CrashVfs(tmp_path / "store")
    calls = program(3, 30, only=())
    with opened(tmp_path / "store", vfs=fs) as store:
        failed = 0
        fs.fail(call, ENOSPC, path="segments/*2.seg.tmp")
        for item in calls:
            try:
                run(store, item)
            except NoSpaceError:
                failed += 1
                run(store, item)
        assert failed == 1
        assert seen(store) == states(calls)[-1]
    assert _reopened(tmp_path / "store") == states(calls)[-1]


@pytest.mark.parametrize("short", [0, 50])
def test_no_space_for_the_first_frame_of_a_new_segment(tmp_path: Path, short: int) -> None:
    """The new segment is there and its first frame does not fit. The call is repeated in the same store."""
    fs = CrashVfs(tmp_path / "store")
    calls = program(3, 30, only=())
    with opened(tmp_path / "store", vfs=fs) as store:
        failed = 0
        fs.fail("pwrite", ENOSPC, path="segments/*2.seg", short=short)
        for item in calls:
            try:
                run(store, item)
            except NoSpaceError:
                failed += 1
                run(store, item)
        assert failed == 1
        assert seen(store) == states(calls)[-1]
    assert _reopened(tmp_path / "store") == states(calls)[-1]


@pytest.mark.parametrize("point", ["commit:appended", "commit:indexed"])
def test_a_call_that_fails_after_its_bytes_went_out_is_cut(running: Running, point: str) -> None:
    path, fs, store = running
    before = _records(path)
    fs.fail("point", ENOSPC, path=point)
    with pytest.raises(NoSpaceError):
        run(store, MORE)
    assert _records(path) == before
    assert seen(store) == EXPECTED[-1]
    store.close()
    assert _reopened(path) == EXPECTED[-1]


def test_a_call_that_was_cut_does_not_come_back_after_a_power_cut(running: Running, tmp_path: Path) -> None:
    """Its whole frame went out. The kernel may have written it before it was cut, so the cut itself has to be durable."""
    _, fs, store = running
    fs.fail("point", ENOSPC, path="commit:indexed")
    with pytest.raises(NoSpaceError):
        run(store, MORE)
    rng = random.Random(3)
    images = [fs.image(rng) for _ in range(30)]
    found = [_reopened(write_image(image, tmp_path / f"cut{number}")) for number, image in enumerate(images)]
    assert [state for state in found if state != EXPECTED[-1]] == []


def test_a_cut_that_fails_stops_all_writing(running: Running) -> None:
    path, fs, store = running
    fs.fail("pwrite", ENOSPC, path="segments/*", short=70)
    fs.fail("truncate", EIO, path="segments/*")
    with pytest.raises(CkptStoreError):
        run(store, MORE)
    assert "could not be cut" in (path / "POISON").read_text()
    with pytest.raises(StorePoisonedError):
        run(store, MORE)
    assert seen(store) == EXPECTED[-1]
    store.close()
    assert _reopened(path) == EXPECTED[-1]


@pytest.mark.parametrize("short", [1, 40, 100])
def test_a_short_write_is_continued(running: Running, monkeypatch: pytest.MonkeyPatch, short: int) -> None:
    """The system may write less than it was asked to without an error."""
    path, _, store = running
    real, calls = os.pwrite, []

    def pwrite(fd: int, data: Any, offset: int) -> int:
        calls.append(len(data))
        return real(fd, bytes(data)[:short], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    run(store, MORE)
    monkeypatch.undo()
    assert len(calls) > 1
    store.close()
    assert _reopened(path) == after(EXPECTED[-1], MORE)


def test_a_short_read_is_continued(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may read less than it was asked to, and the rest when it is asked again."""
    path, _, store = running
    store.close()
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 7), offset))
    assert _reopened(path) == EXPECTED[-1]
    shutil.rmtree(path / "index")
    assert _reopened(path) == EXPECTED[-1]


def test_a_disk_that_fills_again_and_again(tmp_path: Path) -> None:
    """Every third write to a segment fails somewhere; what was acknowledged stays, what was refused never appears."""
    fs = CrashVfs(tmp_path / "store")
    calls = program(5, 40, only=("writes",))
    state: State = {}
    rng = random.Random(5)
    refused = 0
    with opened(tmp_path / "store", vfs=fs) as store:
        for call in calls:
            if rng.random() < 0.3:
                fs.fail("pwrite", ENOSPC, path="segments/*", short=rng.choice([0, 30, 60, 300]))
            try:
                run(store, call)
            except NoSpaceError:
                refused += 1
                fs.heal()
                run(store, call)
            state = after(state, call)
            assert seen(store) == state
    assert refused
    assert _reopened(tmp_path / "store") == state


# -- errors of the disk ------------------------------------------------------------------------------------------------


def test_a_write_error_fails_the_call_and_keeps_the_store(running: Running) -> None:
    path, fs, store = running
    fs.fail("pwrite", EIO, path="segments/*", short=20)
    assert _until_it_fails(store, [MORE]) == 0
    assert seen(store) == EXPECTED[-1]
    run(store, MORE)
    store.close()
    assert _reopened(path) == after(EXPECTED[-1], MORE)


def test_a_write_error_is_an_error_of_ours(running: Running) -> None:
    _, fs, store = running
    fs.fail("pwrite", EIO, path="segments/*", short=20)
    with pytest.raises(CkptStoreError, match="nothing of this call was kept"):
        run(store, MORE)


def test_a_read_error_is_not_remembered(running: Running) -> None:
    path, fs, store = running
    store.close()
    with opened(path, vfs=fs, cache_bytes=0) as again:
        fs.fail("pread", EIO, path="segments/*")
        with pytest.raises(StorageIOError):
            again.get(LaneName("a"))
        assert seen(again) == EXPECTED[-1]
        run(again, MORE)


def test_a_read_error_names_segment_and_offset(running: Running) -> None:
    path, fs, store = running
    store.close()
    with opened(path, vfs=fs, cache_bytes=0) as again:
        fs.fail("pread", EIO, path="segments/*")
        with pytest.raises(CkptStoreError, match=r"segment 1, offset \d+"):
            again.get(LaneName("a"))


def test_an_open_that_fails_leaves_the_store_as_it_was(running: Running) -> None:
    """Each call that changes something at an open fails in turn; the open after it works."""
    path, fs, store = running
    store.close()
    for call in ("open", "pread", "read_file", "fdatasync"):
        fs.fail(call, EIO)
        with pytest.raises(StorageIOError, match="could not be opened"), opened(path, vfs=fs):
            pass
        fs.heal()
        assert _reopened(path) == EXPECTED[-1]


# How many calls to let through from one fault to the next.
STEPS = {
    "pread": 61,
    "pwrite": 7,
    "open": 5,
    "read_file": 2,
    "fdatasync": 2,
    "truncate": 1,
    "rename": 1,
    "unlink": 2,
    "sync_folder": 2,
}


@pytest.mark.parametrize("call", STEPS)
@pytest.mark.parametrize("index", ["kept", "lost"])
def test_an_error_anywhere_in_an_open_a_read_or_a_compaction_is_one_of_ours(tmp_path: Path, call: str, index: str) -> None:
    """And costs nothing: once the disk works again everything is there."""
    calls = program(9, 40)
    with opened(tmp_path / "store") as store:
        for item in calls:
            run(store, item)
    hit = 0
    while True:
        path = tmp_path / f"copy {hit}"
        shutil.copytree(tmp_path / "store", path, ignore=shutil.ignore_patterns("index") if index == "lost" else None)
        fs = CrashVfs(path)
        fs.fail(call, EIO, after=hit * STEPS[call])
        with suppress(CkptStoreError), opened(path, vfs=fs, cache_bytes=0) as store:
            assert seen(store) == states(calls)[-1]
            store.compact()
            run(store, MORE)
        if not fs.failed:
            break
        hit += 1
        fs.heal()
        found = _reopened(path)
        found.pop(MORE.thread, None)
        assert found == states(calls)[-1]
    assert hit


@pytest.mark.parametrize("level", LEVELS)
def test_faults_at_every_call_of_a_program(tmp_path: Path, level: Level) -> None:
    """One fault a run, at each changing call of a program that rotates: what readers see stays what was acknowledged."""
    calls = program(6, 10, only=("writes",))
    counted: list[str] = []
    fs = CrashVfs(tmp_path / "counting")
    fs.watch = lambda call, name: counted.append(call) if call != "point" and not name.startswith("index") else None
    with opened(tmp_path / "counting", level, fs, sync_interval=60) as store:
        begun = len(counted)
        for call in calls:
            run(store, call)
        ended = len(counted)
    expected = states(calls)
    for number in range(begun, ended):
        fs = CrashVfs(tmp_path / f"fault{number}")
        passed = iter(range(ended * 2))

        def watch(call: str, name: str, fs: CrashVfs = fs, passed: Iterator[int] = passed, number: int = number) -> None:
            if call != "point" and not name.startswith("index") and next(passed) == number:
                fs.fail(call, EIO)

        fs.watch = watch
        with opened(fs.root, level, fs, sync_interval=60) as store:
            acknowledged = _until_it_fails(store, calls)
            found = seen(store)
            assert_prefix(found, expected, acknowledged, min(acknowledged + 1, len(calls)))
        assert _reopened(fs.root) == found


# -- after the end ------------------------------------------------------------------------------------------------------


class _SlowHints(CrashVfs):
    """Hints take until they are told to go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reached, self.go_on = threading.Event(), threading.Event()

    def point(self, name: str) -> None:
        if name.endswith(".hint.tmp"):
            self.reached.set()
            assert self.go_on.wait(20)


def test_nothing_touches_the_folder_after_close(tmp_path: Path) -> None:
    fs = _SlowHints(tmp_path / "store")
    with opened(tmp_path / "store", vfs=fs) as store:
        for call in program(3, 30, only=()):
            run(store, call)
        assert fs.reached.wait(20)
        threading.Timer(0.2, fs.go_on.set).start()
    still = [thread for thread in threading.enumerate() if thread.name == "ckptstore-hint"]
    fs.go_on.set()
    for thread in still:
        thread.join()
    assert still == []
