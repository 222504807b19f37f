"""Bytes cut off, added and changed in the files of a store nobody has open: what is a torn tail, what is damage, and what is said.

Rows R44 and R45 of the public reports, and the evidence that decides whether an index is trusted, rebuilt, or contradicted by the log.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptstore import LaneName, StoreOptions
from ckptstore.errors import CorruptionError, StaleIndexError
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.frames import get_location, put_location
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.index.kinds import KINDS
from ckptstore.storage.local.layout import Layout
from ckptstore.testing.crashfs import CrashVfs
from tests.crash.programs import SEGMENT, Call, State, Unsynced, opened, program, run, seen, states
from tests.helpers import FrameAt, flip, frames, overwrite

LARGE = 1 << 20
"""A segment size that no program here fills."""


def _puts(count: int) -> list[Call]:
    rng = random.Random(7)
    return [
        Call("put", "t", f"{number:02}", f"{number - 1:02}" if number else None, rng.randbytes(40).hex()) for number in range(count)
    ]


TEN = _puts(10)
EXPECTED = states(TEN)


@pytest.fixture
def kind() -> str:
    """The kind of the index of `closed` and `live_copy`; tests of which the index is the matter run with both (`BOTH`)."""
    return "lmdb"


BOTH = pytest.mark.parametrize("kind", sorted(KINDS))


@pytest.fixture
def closed(tmp_path: Path, kind: str) -> Path:
    """A store of ten puts in one segment, closed in order."""
    with opened(tmp_path / "store", segment_bytes=LARGE, index=kind) as store:
        for call in TEN:
            run(store, call)
    return tmp_path / "store"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The same, but as a kill leaves it, on another machine: no index."""
    with opened(tmp_path / "live", segment_bytes=LARGE) as store:
        for call in TEN:
            run(store, call)
        shutil.copytree(tmp_path / "live", tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    return tmp_path / "store"


@pytest.fixture
def segmented(tmp_path: Path) -> Path:
    """A store of several segments, closed in order, with its hints."""
    with opened(tmp_path / "store") as store:
        for call in program(9, 60):
            run(store, call)
        sealed = _segments(tmp_path / "store")[:-1]
        deadline = time.monotonic() + 10
        while not all(path.with_suffix(".hint").exists() for path in sealed):
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert len(_segments(tmp_path / "store")) > 3
    return tmp_path / "store"


SEGMENTED = states(program(9, 60))[-1]


def _segments(store: Path) -> list[Path]:
    return sorted((store / "segments").glob("*.seg"))


def _lose_index(store: Path) -> None:
    shutil.rmtree(store / "index")


def _lose_all_but_clean(store: Path) -> None:
    clean = (store / "index" / "CLEAN").read_bytes()
    shutil.rmtree(store / "index")
    (store / "index").mkdir()
    (store / "index" / "CLEAN").write_bytes(clean)


def _keep_index(store: Path) -> None:
    pass


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _bytes(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store / "segments").iterdir()}


def _read(store: Path) -> State:
    with opened(store) as opened_store:
        return seen(opened_store)


INDEXES = [_keep_index, _lose_index, _lose_all_but_clean]


# -- R44: a torn tail ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize(
    "junk", [b"\x17" * 7, b"\x17", b"\xc4KF\0" + bytes(36), b"\xc4KF\0" * 40, random.Random(1).randbytes(5000)]
)
def test_r44_junk_after_the_last_record_is_cut_kept_and_logged(
    closed: Path, index: Callable[[Path], None], junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    index(closed)
    with _segments(closed)[-1].open("ab") as file:
        file.write(junk)
    with caplog.at_level(logging.WARNING, "ckptstore"), opened(closed, segment_bytes=LARGE) as store:
        assert seen(store) == EXPECTED[-1]
        for call in _puts(12)[10:]:
            run(store, call)
    # Zeros at the end of a segment are room for later records, not a tail.
    cut = junk.rstrip(b"\0")
    assert f"cut {len(cut)} bytes" in caplog.text
    assert [path.read_bytes() for path in (closed / "torn").iterdir()] == [cut]
    assert _read(closed) == states(_puts(12))[-1]


def test_r44_every_cut_of_the_last_record_of_a_killed_store(killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing says that the last record was durable, so what is left of it is a torn tail: nine puts, two more, and eleven."""
    last = list(frames(killed))[-1]
    for length in range(1, last.size + 1):
        store = tmp_path / f"cut{length}"
        shutil.copytree(killed, store)
        path = _segments(store)[-1]
        _cut(path, last.offset + last.size - length)
        rest = path.read_bytes()[last.offset :].rstrip(b"\0")
        caplog.clear()
        with caplog.at_level(logging.WARNING, "ckptstore"), opened(store, segment_bytes=LARGE) as again:
            assert seen(again) == EXPECTED[9]
            run(again, TEN[9])
        if rest:
            assert f"cut {len(rest)} bytes" in caplog.text
            assert [kept.read_bytes() for kept in (store / "torn").iterdir()] == [rest]
        assert _read(store) == EXPECTED[10]


def test_r44_every_cut_of_the_last_record_of_a_closed_store_whose_index_is_lost(closed: Path, tmp_path: Path) -> None:
    """The last record is the empty one that a close writes: the ten puts before it stay, whatever is cut of it."""
    last = list(frames(closed))[-1]
    for length in range(1, last.size + 1):
        store = tmp_path / f"cut{length}"
        shutil.copytree(closed, store, ignore=shutil.ignore_patterns("index"))
        _cut(_segments(store)[-1], last.offset + last.size - length)
        assert _read(store) == EXPECTED[-1]


@pytest.mark.parametrize("index", [_keep_index, _lose_all_but_clean])
def test_every_cut_of_a_record_that_something_vouches_for_is_refused(closed: Path, index: Callable[[Path], None]) -> None:
    """The index, or CLEAN alone, says that the record was there: what is missing was lost, and nothing is changed."""
    index(closed)
    last = list(frames(closed))[-2]
    whole = _segments(closed)[-1].read_bytes()
    for size in range(last.offset, len(whole)):
        _segments(closed)[-1].write_bytes(whole[:size])
        with pytest.raises(CorruptionError, match=r"00001\.seg.*(truncated|Records are missing)"), opened(closed):
            pass
        assert _segments(closed)[-1].read_bytes() == whole[:size]
    _segments(closed)[-1].write_bytes(whole)
    assert _read(closed) == EXPECTED[-1]


# -- R45: damage ---------------------------------------------------------------------------------------------------------


def _each_byte(store: Path, frame: FrameAt) -> Iterator[int]:
    """Flip one byte of a frame at a time; yield its offset while it is flipped."""
    rng = random.Random(frame.lsn)
    for offset in range(frame.offset, frame.offset + frame.size):
        mask = rng.randint(1, 255)
        flip(frame.path, offset, mask)
        yield offset
        flip(frame.path, offset, mask)


def test_r45_every_byte_of_record_5_with_the_index_lost(closed: Path) -> None:
    """The open refuses, naming segment, offset and LSN, and leaves everything as it is."""
    frame = list(frames(closed))[4]
    for offset in _each_byte(closed, frame):
        shutil.rmtree(closed / "index", ignore_errors=True)
        before = _bytes(closed)
        message = rf"{frame.path.name}, offset {frame.offset}: no valid frame for LSN {frame.lsn}"
        with pytest.raises(CorruptionError, match=message), opened(closed):
            pass
        assert _bytes(closed) == before, offset
        assert not (closed / "torn").exists()
    assert _read(closed) == EXPECTED[-1]


def test_r45_every_byte_of_record_5_with_a_trusted_index(closed: Path) -> None:
    """The store opens; the first read of that record raises, naming segment, offset and LSN; the others read."""
    frame = list(frames(closed))[4]
    message = rf"checkpoint .*LSN {frame.lsn}: segment 1, offset {frame.offset}: "
    with opened(closed, cache_bytes=0, segment_bytes=LARGE) as store:
        for _ in _each_byte(closed, frame):
            with pytest.raises(CorruptionError, match=message):
                store.get(LaneName("t"), "04")
            for id in ("03", "05", "09"):
                assert store.get(LaneName("t"), id) is not None
        assert seen(store) == EXPECTED[-1]


def test_r45_a_listing_goes_on_behind_a_damaged_record(closed: Path) -> None:
    frame = list(frames(closed))[4]
    flip(frame.path, frame.offset + frame.size - 1)
    with opened(closed, segment_bytes=LARGE) as store:
        items = store.list("t", "")
        assert [next(items).id for _ in range(5)] == ["09", "08", "07", "06", "05"]
        with pytest.raises(CorruptionError, match=f"segment 1, offset {frame.offset}"):
            next(items)
        assert [item.id for item in items] == ["03", "02", "01", "00"]
        run(store, Call("put", "t", "10", "09", "more"))
        stored = store.get(LaneName("t"))
        assert stored is not None
        assert stored.id == "10"


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("size", [0, 1, 40, 75])
def test_r45_a_newest_segment_without_a_header_is_not_an_empty_store(
    closed: Path, segmented: Path, index: Callable[[Path], None], size: int
) -> None:
    for store in {closed, segmented}:
        index(store)
        _cut(_segments(store)[-1], size)
        for _ in range(2):
            with pytest.raises(CorruptionError, match=r"\.seg.*(damage|truncated)"), opened(store):
                pass
        assert _segments(store)[-1].stat().st_size == size


@pytest.mark.parametrize("index", [_keep_index, _lose_all_but_clean])
def test_r45_a_segment_truncated_to_any_boundary_is_refused(closed: Path, index: Callable[[Path], None]) -> None:
    index(closed)
    whole = _segments(closed)[-1].read_bytes()
    for frame in list(frames(closed)):
        frame.path.write_bytes(whole[: frame.offset])
        with pytest.raises(CorruptionError, match=r"00001\.seg.*(truncated|Records are missing)"), opened(closed):
            pass
    _segments(closed)[-1].write_bytes(whole)
    assert _read(closed) == EXPECTED[-1]


def test_checksums_find_accidents_and_not_forgers(tmp_path: Path) -> None:
    """Whoever can write to the folder can seal a frame anew: here with what another store holds at that place."""
    for name in ("mine", "other"):
        with opened(tmp_path / name, segment_bytes=LARGE) as store:
            run(store, Call("put", "t", "00", None, f"a text of the {name:5} store"))
            run(store, Call("put", "t", "01", "00", "the same in both"))
    mine, other = (next(frames(tmp_path / name)) for name in ("mine", "other"))
    data = other.path.read_bytes()[other.offset : other.offset + other.size]
    header = fmt.decode_frame_header(data)
    assert header is not None
    middle = fmt.FRAME_HEADER + header.directory
    chain = fmt.decode_frame_header(mine.path.read_bytes()[mine.offset :][: mine.size])
    assert chain is not None
    forged, _ = fmt.encode_frame(chain.chain, 1, header.durable, data[fmt.FRAME_HEADER : middle], data[middle:])
    assert len(forged) == mine.size
    overwrite(mine.path, mine.offset, forged)
    assert [item.value for item in _read(tmp_path / "mine")["t"]] == ["a text of the other store", "the same in both"]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_missing_older_segment_with_the_index_lost(segmented: Path, which: int) -> None:
    _lose_index(segmented)
    _segments(segmented)[which].unlink()
    before = _bytes(segmented)
    with pytest.raises(CorruptionError, match="a segment is missing"), opened(segmented):
        pass
    assert _bytes(segmented) == before


def test_a_missing_older_segment_with_a_trusted_index(segmented: Path) -> None:
    """What stood in it raises when it is read; the rest reads."""
    gone = _segments(segmented)[1]
    gone.unlink()
    with opened(segmented, cache_bytes=0) as store:
        messages, read = [], 0
        for thread, lane in SEGMENTED.items():
            for checkpoint in lane:
                try:
                    read += store.get(LaneName(thread), checkpoint.id) is not None
                except CorruptionError as error:
                    messages.append(str(error))
    assert read
    assert messages
    assert [message for message in messages if gone.name not in message] == []


@pytest.mark.parametrize("index", [_keep_index, _lose_all_but_clean])
def test_a_missing_newest_segment(segmented: Path, index: Callable[[Path], None]) -> None:
    index(segmented)
    _segments(segmented)[-1].unlink()
    with pytest.raises(CorruptionError, match=r"\.seg.*(is missing|Records are missing)"), opened(segmented):
        pass


def test_damage_in_a_sealed_segment_is_never_a_torn_tail(segmented: Path) -> None:
    """The last frame of a segment that has a successor was durable before the successor got its name."""
    _lose_index(segmented)
    path = _segments(segmented)[1]
    path.with_suffix(".hint").unlink()
    _cut(path, path.stat().st_size - 3)
    with pytest.raises(CorruptionError, match=rf"{path.name}, offset \d+: .*successor"), opened(segmented):
        pass


@pytest.mark.parametrize("index", [_keep_index, _lose_index])
def test_an_empty_successor_left_by_a_killed_rotation_is_dropped(tmp_path: Path, index: Callable[[Path], None]) -> None:
    fs = CrashVfs(tmp_path / "live")
    calls = program(3, 30, only=())
    acknowledged = 0

    def killed(call: str, name: str) -> None:
        if (call, name) == ("point", "segment:created") and not (tmp_path / "store").exists():
            shutil.copytree(tmp_path / "live", tmp_path / "store")

    with opened(tmp_path / "live", vfs=fs) as store:
        fs.watch = killed
        for call in calls:
            run(store, call)
            if not (tmp_path / "store").exists():
                acknowledged += 1
    index(tmp_path / "store")
    assert [path.name for path in _segments(tmp_path / "store")] == [f"{1:020}.seg", f"{2:020}.seg"]
    with opened(tmp_path / "store") as store:
        assert len(_segments(tmp_path / "store")) == 1
        assert seen(store) == states(calls)[acknowledged]
        for call in calls[acknowledged:]:
            run(store, call)
    assert _read(tmp_path / "store") == states(calls)[-1]


def test_a_store_whose_newest_segment_held_only_a_torn_tail_opens_every_time(tmp_path: Path) -> None:
    calls = program(3, 30, only=())
    fs = CrashVfs(tmp_path / "live")
    acknowledged = 0
    with opened(tmp_path / "live", vfs=fs) as store:
        for call in calls:
            run(store, call)
            acknowledged += 1
            if len(_segments(tmp_path / "live")) == 2:
                break
        shutil.copytree(tmp_path / "live", tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    first = next(frame for frame in frames(tmp_path / "store") if frame.path.name == f"{2:020}.seg")
    _cut(first.path, first.offset + first.size - 1)
    for _ in range(3):
        assert _read(tmp_path / "store") == states(calls)[acknowledged - 1]
    with opened(tmp_path / "store") as store:
        run(store, calls[acknowledged - 1])
    assert _read(tmp_path / "store") == states(calls)[acknowledged]


# -- the index: lost, rebuilt, stale ---------------------------------------------------------------------------------------


class Counting(Unsynced):
    """Counts the bytes read of each file."""

    def __init__(self) -> None:
        self.read: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        fd = super().open(path, create=create, read_only=read_only)
        self._names[fd] = path.name
        return fd

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        data = super().pread(fd, length, offset)
        self.read[self._names[fd]] = self.read.get(self._names[fd], 0) + len(data)
        return data


def _everything(store: Path) -> tuple[State, dict[bytes, bytes]]:
    """What readers see, and the logical view of the index."""
    with opened(store) as opened_store:
        found = seen(opened_store)
        handle = LocalStorage(store, StoreOptions(segment_bytes=SEGMENT))
        with handle.view() as view:
            logical = view.logical_view()
        handle.close()
    return found, logical


def test_a_lost_index_is_rebuilt_equal(segmented: Path) -> None:
    before = _everything(segmented)
    assert before[0] == SEGMENTED
    assert len(before[1]) > 100
    _lose_index(segmented)
    assert _everything(segmented) == before
    for hint in (segmented / "segments").glob("*.hint"):
        hint.unlink()
    _lose_index(segmented)
    assert _everything(segmented) == before


def test_hints_spare_the_reading_of_sealed_segments(segmented: Path) -> None:
    sealed, newest = _segments(segmented)[:-1], _segments(segmented)[-1]
    read = {}
    for name in ("hints", "scan"):
        _lose_index(segmented)
        if name == "scan":
            for path in sealed:
                path.with_suffix(".hint").unlink()
        counting = Counting()
        with opened(segmented, vfs=counting):
            read[name] = dict(counting.read)
    for path in sealed:
        size = path.stat().st_size
        assert read["hints"][path.name] < size // 4
        assert read["scan"][path.name] >= size
    assert read["hints"][newest.name] >= newest.stat().st_size


def test_a_damaged_hint_is_ignored(segmented: Path) -> None:
    before = _everything(segmented)
    hint = _segments(segmented)[0].with_suffix(".hint")
    whole = hint.read_bytes()
    for offset in range(0, len(whole), max(1, len(whole) // 40)):
        flip(hint, offset, 0x41)
        _lose_index(segmented)
        assert _everything(segmented) == before, offset
        hint.write_bytes(whole)
    for bad in (b"", whole[:-1], whole[:11], _segments(segmented)[1].with_suffix(".hint").read_bytes()):
        hint.write_bytes(bad)
        _lose_index(segmented)
        assert _everything(segmented) == before


@BOTH
@pytest.mark.parametrize("wrote", [True, False])
def test_an_index_that_points_at_another_frame_is_found_out_and_rebuilt(
    closed: Path, wrote: bool, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the session that found out had written anything or not."""
    owner = json.loads((closed / "index" / "OWNER").read_text())
    index = KINDS[kind](Layout(closed).epoch(owner["epoch"]))
    with index.write() as kv:
        third, fifth = get_location(kv, 3), get_location(kv, 5)
        assert third is not None
        assert fifth is not None
        put_location(kv, 3, fifth)
        put_location(kv, 5, third)
    index.close()
    with opened(closed, segment_bytes=LARGE) as store:
        if wrote:
            run(store, Call("put", "u", "new", None, "new"))
        with pytest.raises(StaleIndexError, match=r"LSN 3 is at segment 1, offset \d+, but LSN 5 is there"):
            store.get(LaneName("t"), "02")
        assert store.get(LaneName("t"), "01") is not None
    with caplog.at_level(logging.INFO, "ckptstore"):
        assert _read(closed)["t"] == EXPECTED[-1]["t"]
    assert "index rebuilt" in caplog.text


# -- which index may be opened -----------------------------------------------------------------------------------------------


def _opens(store: Path, caplog: pytest.LogCaptureFixture) -> str:
    """How a store opened: "trusted" its index, or "rebuilt" it. What it holds must be right either way."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "ckptstore"):
        assert _read(store) == EXPECTED[-1]
    return "rebuilt" if "index rebuilt" in caplog.text else "trusted"


def _another_boot(store: Path) -> None:
    owner = json.loads((store / "index" / "OWNER").read_text())
    (store / "index" / "OWNER").write_text(json.dumps({**owner, "boot": "another boot"}))


@pytest.fixture
def live_copy(tmp_path: Path, kind: str) -> Path:
    """A copy of a store that was open and written to when it was copied, index and all."""
    with opened(tmp_path / "live", segment_bytes=LARGE, index=kind) as store:
        for call in TEN:
            run(store, call)
        shutil.copytree(tmp_path / "live", tmp_path / "store")
    return tmp_path / "store"


@BOTH
def test_a_closed_store_is_trusted_where_it_is_and_where_it_is_copied_to(
    closed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert (closed / "index" / "CLEAN").exists()
    shutil.copytree(closed, tmp_path / "copy")
    assert _opens(tmp_path / "copy", caplog) == "trusted"
    assert _opens(closed, caplog) == "trusted"


@BOTH
def test_a_closed_store_is_trusted_after_a_reboot(closed: Path, caplog: pytest.LogCaptureFixture) -> None:
    _another_boot(closed)
    assert _opens(closed, caplog) == "trusted"


@BOTH
def test_a_copy_of_an_open_store_is_rebuilt(live_copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not (live_copy / "index" / "CLEAN").exists()
    assert _opens(live_copy, caplog) == "rebuilt"


@BOTH
def test_a_store_that_was_not_closed_is_trusted_on_the_same_boot_only(
    live_copy: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy plays the store of a killed process: OWNER is made to name its own file."""
    owner = json.loads((live_copy / "index" / "OWNER").read_text())
    status = (live_copy / "index" / f"{owner['epoch']:08}" / KINDS[kind].data_name).stat()
    owner["file"] = [status.st_dev, status.st_ino]
    (live_copy / "index" / "OWNER").write_text(json.dumps(owner))
    shutil.copytree(live_copy, live_copy.with_name("other"))
    assert _opens(live_copy, caplog) == "trusted"
    _another_boot(live_copy.with_name("other"))
    assert _opens(live_copy.with_name("other"), caplog) == "rebuilt"


@BOTH
def test_clean_is_gone_before_the_first_write_of_a_session(closed: Path) -> None:
    with opened(closed, segment_bytes=LARGE) as store:
        assert seen(store) == EXPECTED[-1]
        assert (closed / "index" / "CLEAN").exists()  # readers change nothing
        run(store, Call("put", "t", "10", "09", "more"))
        assert not (closed / "index" / "CLEAN").exists()
    assert (closed / "index" / "CLEAN").exists()


@pytest.mark.parametrize("change", ["uuid", "epoch", "end"])
def test_a_clean_that_speaks_of_something_else_is_no_evidence(closed: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    clean = json.loads((closed / "index" / "CLEAN").read_text())
    segment, tail, next_lsn, chain = clean["end"]
    clean |= {"uuid": {"uuid": "00" * 16}, "epoch": {"epoch": 77}, "end": {"end": [segment, tail, next_lsn - 1, chain]}}[change]
    (closed / "index" / "CLEAN").write_text(json.dumps(clean))
    _another_boot(closed)
    assert _opens(closed, caplog) == "rebuilt"


@pytest.mark.parametrize("name", ["OWNER", "CLEAN"])
def test_damaged_evidence_is_no_evidence(closed: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (closed / "index" / name).write_bytes(b"\xff{")
    if name == "CLEAN":
        _another_boot(closed)
    assert _opens(closed, caplog) == "rebuilt"


@BOTH
def test_an_index_full_of_garbage_is_never_opened_without_evidence(
    closed: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Opened, it might abort the interpreter."""
    owner = json.loads((closed / "index" / "OWNER").read_text())
    data = closed / "index" / f"{owner['epoch']:08}" / KINDS[kind].data_name
    overwrite(data, 0, random.Random(3).randbytes(data.stat().st_size))
    (closed / "index" / "CLEAN").unlink()
    _another_boot(closed)
    assert _opens(closed, caplog) == "rebuilt"
