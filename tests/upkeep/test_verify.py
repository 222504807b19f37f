"""Verify: it finds nothing in sound stores, whatever happened to them, and names what was done to damaged ones."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import msgpack
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings

import ckptstore
from ckptstore import LaneName, VerifyReport
from ckptstore.errors import CkptStoreError, FormatVersionError, InvalidArgumentError, NotAStoreError, StoreMissingError
from ckptstore.storage.local.index.lmdb import LmdbIndex
from ckptstore.storage.local.vfs import Vfs
from tests.contract.calls import LANE, open_at, put, write
from tests.crash.programs import SEGMENT, UNSYNCED, opened
from tests.helpers import FrameAt, flip, frames, overwrite
from tests.upkeep.lives import Move, lived, moves, opened_life

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def fill(path: Path, count: int = 10, **options: object) -> None:
    """A thread of checkpoints with writes between them, in a store that is closed again: two frames a checkpoint."""
    with open_at(path, **options) as store:
        for number in range(count):
            put(
                store,
                f"{number:02}",
                f"{number - 1:02}" if number else None,
                {"m": ["word " * 90 + str(at) for at in range(number + 1)]},
            )
            write(store, f"{number:02}", f"write {number}")


def frame_of(path: Path, lsn: int) -> FrameAt:
    return next(frame for frame in frames(path) if frame.lsn == lsn)


def bytes_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def texts(report: VerifyReport) -> str:
    return "\n".join(map(str, report.problems))


# -- sound stores ---------------------------------------------------------------------------------------------------------


@FEW
@given(moves)
def test_every_life_is_sound(given: Sequence[Move]) -> None:
    """Open, closed, and with an index built anew."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        life = lived(opened_life(path), given)
        report = life.store.verify()
        assert (report.problems, report.index_state) == ([], "agrees")
        life.store.close()
        report = ckptstore.verify(path)
        assert (report.problems, report.index_state) == ([], "agrees")


def test_the_counts_are_those_of_the_store(tmp_path: Path) -> None:
    fill(tmp_path / "store", 7)
    with open_at(tmp_path / "store") as store:
        write(store, "never stored", 1)
        put(store, "1", None, {"m": 1}, lane=LaneName("u", "sub"))
    report = ckptstore.verify(tmp_path / "store")
    assert report.ok
    assert (report.threads, report.namespaces, report.checkpoints, report.batches, report.orphans) == (2, 2, 8, 8, 1)
    # One more frame for each orderly close.
    assert (report.segments, report.frames) == (1, 18)
    assert report.log_bytes == sum(frame.size for frame in frames(tmp_path / "store"))
    assert any("not stored" in remark for remark in report.remarks)


@pytest.mark.parametrize("index", ["lmdb", "sqlite"])
def test_nothing_is_written(tmp_path: Path, index: str) -> None:
    fill(tmp_path / "store", index=index, segment_bytes=SEGMENT)
    before = bytes_of(tmp_path / "store")
    assert ckptstore.verify(tmp_path / "store").index_state == "agrees"
    assert bytes_of(tmp_path / "store") == before
    flip(frame_of(tmp_path / "store", 5).path, frame_of(tmp_path / "store", 5).offset)
    before = bytes_of(tmp_path / "store")
    assert not ckptstore.verify(tmp_path / "store").ok
    assert bytes_of(tmp_path / "store") == before


def test_a_store_in_memory() -> None:
    with ckptstore.open(":memory:") as store:
        put(store, "1", None, {"m": "word " * 200})
        write(store, "1", "w")
        report = store.verify()
        assert report.ok
        assert (report.checkpoints, report.batches, report.values) == (1, 1, 1)


def test_a_torn_tail_is_a_remark(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "index")
    newest = max((tmp_path / "store" / "segments").glob("*.seg"))
    with newest.open("ab") as file:
        file.write(b"\x17" * 7)
    report = ckptstore.verify(tmp_path / "store")
    assert report.ok
    assert [remark for remark in report.remarks if "torn tail of 7 bytes" in remark]


def test_a_store_that_another_process_writes_to(tmp_path: Path) -> None:
    """The writer rotates, prunes and compacts on small segments meanwhile; each verify sees one moment."""
    program = (
        "import sys, itertools\n"
        "from tests.contract.calls import open_at, put, write\n"
        "store = open_at(sys.argv[1], segment_bytes=4096, auto_compact=False)\n"
        "for n in itertools.count():\n"
        "    put(store, f'{n:06}', f'{n - 1:06}' if n else None, {'m': ['some words'] * (n % 50)})\n"
        "    write(store, f'{n:06}', 'more words ' * 9)\n"
        "    if n % 40 == 39: store.prune('t'); store.compact()\n"
        "    if n == 5: print('going', flush=True)\n"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "going\n"
        reports = [ckptstore.verify(tmp_path / "store") for _ in range(8)]
        assert child.poll() is None
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert [texts(report) for report in reports if not report.ok] == []
    # A compaction may have come in between at each try of one of them.
    assert "agrees" in {report.index_state for report in reports}
    assert {report.index_state for report in reports} <= {"agrees", "the store was being compacted all the time"}
    # What the kill left behind is no problem either.
    assert ckptstore.verify(tmp_path / "store").problems == []


def test_a_frame_that_is_not_published_yet_is_not_read(tmp_path: Path) -> None:
    """The store is checked in the middle of a commit, when its frame stands in the file and the index does not name it."""
    path = tmp_path / "store"
    reports: list[VerifyReport] = []

    class Meanwhile(Vfs):
        def point(self, name: str) -> None:
            if name == "commit:appended" and due:
                due.clear()
                checking = threading.Thread(target=lambda: reports.append(ckptstore.verify(path)))
                checking.start()
                checking.join(20)

    due: list[bool] = []
    with opened(path, "process", Meanwhile()) as store:
        put(store, "1", None, {"m": 1})
        due.append(True)
        put(store, "2", "1", {"m": 2})
    assert [(report.problems, report.index_state, report.checkpoints) for report in reports] == [([], "agrees", 1)]


# -- damage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost_index", [False, True])
@pytest.mark.parametrize("place", ["header", "directory", "bodies"])
def test_a_flipped_bit_is_named(tmp_path: Path, place: str, lost_index: bool) -> None:
    """R45: of ten puts one byte in record 5 is wrong. Segment, offset and LSN are named, and who is hit where anything still says it."""
    fill(tmp_path / "store")
    frame = frame_of(tmp_path / "store", 9)
    flip(frame.path, frame.offset + {"header": 10, "directory": 50, "bodies": frame.size - 5}[place])
    if lost_index:
        shutil.rmtree(tmp_path / "store" / "index")
    report = ckptstore.verify(tmp_path / "store")
    assert not report.ok
    first = report.problems[0]
    assert (first.segment, first.offset, first.lsn) == (1, frame.offset, 9)
    if place == "bodies" or not lost_index:
        assert (first.thread, first.checkpoint) == ("t", "04")
    # Everything else was read all the same.
    assert (report.checkpoints, report.frames) == (9 if lost_index else 10, 20)


def test_an_emptied_segment(tmp_path: Path) -> None:
    """R45: the newest segment is cut to nothing. That is no empty store."""
    fill(tmp_path / "store", segment_bytes=SEGMENT)
    newest = max((tmp_path / "store" / "segments").glob("*.seg"))
    os.truncate(newest, 0)
    report = ckptstore.verify(tmp_path / "store")
    assert [problem.segment for problem in report.problems if problem.offset == 0] == [int(newest.stem)]
    assert "are known to have been stored" in texts(report)
    with pytest.raises(CkptStoreError):
        open_at(tmp_path / "store")


def test_a_missing_segment(tmp_path: Path) -> None:
    fill(tmp_path / "store", 60, segment_bytes=SEGMENT)
    paths = sorted((tmp_path / "store" / "segments").glob("*.seg"))
    assert len(paths) > 2
    lost = [frame.lsn for frame in frames(tmp_path / "store") if frame.path == paths[1]]
    paths[1].unlink()
    report = ckptstore.verify(tmp_path / "store")
    assert report.problems[0].lsn == lost[0]
    assert "a segment is missing" in report.problems[0].text


@pytest.mark.parametrize("what", ["renamed", "foreign"])
def test_a_segment_that_does_not_belong_here(tmp_path: Path, what: str) -> None:
    fill(tmp_path / "store")
    fill(tmp_path / "other")
    segments = tmp_path / "store" / "segments"
    source = segments if what == "renamed" else tmp_path / "other" / "segments"
    shutil.copy(source / f"{1:020d}.seg", segments / f"{7:020d}.seg")
    if what == "foreign":
        os.rename(segments / f"{7:020d}.seg", segments / f"{1:020d}.seg")
    report = ckptstore.verify(tmp_path / "store")
    assert ("it was renamed" if what == "renamed" else "it belongs to store") in texts(report)


def test_a_frame_out_of_its_chain(tmp_path: Path) -> None:
    """A frame of an older life at the very place, good in itself, with the LSN that is due there."""
    fill(tmp_path / "store", 3)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with open_at(tmp_path / "store") as store:
        put(store, "a", "02", {"m": "one"})
    with open_at(tmp_path / "copy") as store:
        put(store, "b", "02", {"m": "two"})
        put(store, "c", "b", {"m": "more"})
    at, other = frame_of(tmp_path / "store", 8), frame_of(tmp_path / "copy", 9)
    data = other.path.read_bytes()[other.offset : other.offset + other.size]
    overwrite(at.path, frame_of(tmp_path / "store", 9).offset, data)
    report = ckptstore.verify(tmp_path / "store")
    assert "does not follow the one before it" in texts(report)


def test_lost_bases_are_told_by_those_who_need_them(tmp_path: Path) -> None:
    """A value that is a patch: whoever needs the damaged base is named too."""
    fill(tmp_path / "store", 20)
    needy: dict[int, set[str | None]] = {}
    for lsn in (29, 31, 33, 35):
        frame = frame_of(tmp_path / "store", lsn)
        flip(frame.path, frame.offset + frame.size - 3)
        needy[lsn] = set()
        with open_at(tmp_path / "store", read_only=True) as store:
            for number in range(20):
                try:
                    store.get(LANE, f"{number:02}")
                except CkptStoreError:
                    needy[lsn].add(f"{number:02}")
        assert {problem.checkpoint for problem in ckptstore.verify(tmp_path / "store").problems} == needy[lsn]
        flip(frame.path, frame.offset + frame.size - 3)
    assert max(map(len, needy.values())) > 2


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        (b"W", "other writes on a checkpoint"),
        (b"C", "does not know this checkpoint"),
        (b"K", "something else of this checkpoint"),
        (b"O", "in another order"),
        (b"F", "does not say that this frame stands where it stands"),
        (b"T", "by its name"),
        (b"I", "something else of this checkpoint"),
        (b"L", "namespaces"),
        (b"V", "the run of a checkpoint"),
        (b"s", "another head"),
    ],
)
def test_an_index_that_lies(tmp_path: Path, prefix: bytes, text: str) -> None:
    """Checksums do not protect the index; what it says is compared with the log."""
    fill(tmp_path / "store")
    with open_at(tmp_path / "store") as store:
        put(store, "run", "09", {"m": 1}, run="r")
    epoch = next(path for path in (tmp_path / "store" / "index").iterdir() if path.name.isdigit())
    index = LmdbIndex(epoch)
    with index.write() as kv:
        key = [key for key, _ in kv.scan(prefix)][-1]
        kv.delete(key)
    index.close()
    report = ckptstore.verify(tmp_path / "store")
    assert report.index_state == "differs"
    assert text in texts(report)


def test_a_hint_that_lies(tmp_path: Path) -> None:
    """A rebuild believes a hint whose checksum and salt are right."""
    fill(tmp_path / "store", 60, segment_bytes=SEGMENT)
    hint = min((tmp_path / "store" / "segments").glob("*.hint"))
    salt, items = msgpack.unpackb(zstandard.decompress(hint.read_bytes()[12:]), strict_map_key=False)
    items[0][1] += 1
    packed = zstandard.compress(msgpack.packb([salt, items]))
    hint.write_bytes(hint.read_bytes()[:8] + crc32(packed).to_bytes(4, "little") + packed)
    report = ckptstore.verify(tmp_path / "store")
    assert [problem.lsn for problem in report.problems] == [items[0][0]]
    assert "the hint of segment" in texts(report)


# -- what is no store -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda path: None, StoreMissingError),
        (lambda path: path.mkdir(), NotAStoreError),
        (lambda path: path.write_text("a file"), NotAStoreError),
    ],
)
def test_what_is_no_store(tmp_path: Path, made: Callable[[Path], object], error: type[Exception]) -> None:
    made(tmp_path / "store")
    with pytest.raises(error):
        ckptstore.verify(tmp_path / "store")


@pytest.mark.parametrize("wrong", ["", 7, None, "a\0b"])
def test_a_wrong_argument(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match="store="):
        ckptstore.verify(wrong)  # type: ignore[arg-type]


def test_a_newer_format(tmp_path: Path) -> None:
    fill(tmp_path / "store", 1)
    text = (tmp_path / "store" / "STORE").read_text()
    (tmp_path / "store" / "STORE").write_text(text.replace('"ckptstore": 1', '"ckptstore": 2'))
    with pytest.raises(FormatVersionError, match="upgrade"):
        ckptstore.verify(tmp_path / "store")


def test_a_lost_identity_is_damage(tmp_path: Path) -> None:
    """The STORE file is gone: its segments are read all the same."""
    fill(tmp_path / "store")
    (tmp_path / "store" / "STORE").unlink()
    report = ckptstore.verify(tmp_path / "store")
    assert "STORE" in report.problems[0].text
    assert report.checkpoints == 10


def test_a_store_without_its_lock(tmp_path: Path) -> None:
    """A copy that somebody made of the segments alone."""
    with opened(tmp_path / "store", vfs=UNSYNCED) as store:
        put(store, "1", None, {"m": 1})
    (tmp_path / "store" / "LOCK").unlink()
    report = ckptstore.verify(tmp_path / "store")
    assert (report.ok, report.checkpoints) == (True, 1)
    assert "LOCK" in report.index_state


def test_a_store_that_may_only_be_read(tmp_path: Path) -> None:
    """As on a medium that cannot be written: LOCK and segments are opened for reading."""
    fill(tmp_path / "store")
    opened_for_writing = []
    real = os.open

    def watching(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path / "store")):
            opened_for_writing.append(path)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, flags, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watching)
        report = ckptstore.verify(tmp_path / "store")
    assert (report.ok, report.index_state) == (True, "agrees")
    # It was tried for LOCK alone, which tells who waits from whom.
    assert {Path(path).name for path in opened_for_writing} == {"LOCK"}


def test_a_segment_that_ends_before_the_end_that_is_known(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    os.truncate(tmp_path / "store" / "segments" / f"{1:020d}.seg", 200)
    report = ckptstore.verify(tmp_path / "store")
    assert "are known to have been stored" in texts(report)
