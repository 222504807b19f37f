"""Erasure: markers that were stored are found before, in decoded frames or in files as they are, and nowhere after."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

import ckptstore
from ckptstore import CopiesRemainError, LaneName, Store
from ckptstore.codec.patch import apply
from ckptstore.codec.records import HEADER, PATCH, Kind, pack, value_facts
from ckptstore.errors import CorruptionError, InvalidArgumentError, ReadOnlyError
from ckptstore.storage import Frame
from ckptstore.storage.local import format as fmt
from tests.contract.calls import ids, open_at, put, values, write
from tests.crash.programs import SEGMENT
from tests.helpers import flip, frames

MARKERS = tuple(
    f"marker-{name}"
    for name in ("thread", "ns", "id", "value", "write", "task", "path", "metadata", "channel", "pruned", "again", "base")
)


def texts(path: Path) -> Iterator[bytes]:
    """Everything a store folder says: each file as it is, and each frame, hint and torn frame decoded."""
    decoded: dict[tuple[int, int], bytes] = {}
    for file in sorted(path.rglob("*")):
        if not file.is_file():
            continue
        data = file.read_bytes()
        yield data
        if file.suffix == ".hint":
            yield zstandard.decompress(data[12:])
        if file.suffix == ".seg" or file.parent.name == "torn":
            at = fmt.segment_header_length(data) if file.suffix == ".seg" else 0
            while (header := fmt.decode_frame_header(data[at : at + fmt.FRAME_HEADER])) is not None:
                _, frame = fmt.decode_frame(data[at : at + header.size])
                yield pack(frame.entries)
                yield from _bodies(frame, decoded)
                at += header.size


def _bodies(frame: Frame, decoded: dict[tuple[int, int], bytes]) -> Iterator[bytes]:
    for ordinal, entry in enumerate(frame.entries):
        if entry[0] == Kind.VALUE and entry[1] == PATCH:
            facts = value_facts(frame.lsn, entry)
            yield frame.stored(ordinal)
            if not facts.folds and all(base in decoded for base in facts.bases):
                decoded[frame.lsn, ordinal] = apply(decoded[facts.bases[0]], frame.stored(ordinal), facts.length)
        else:
            decoded[frame.lsn, ordinal] = frame.raw(ordinal)
        yield decoded.get((frame.lsn, ordinal), b"")


def found(path: Path, markers: tuple[str, ...] = MARKERS) -> set[str]:
    """The markers that any text of the folder holds."""
    left = set(markers)
    for text in texts(path):
        left -= {marker for marker in left if marker.encode() in text}
    return set(markers) - left


def mark(store: Store, thread: str = "marker-thread") -> None:
    """A thread that holds each marker in its place, pruned once, so that some stand in dead records too."""
    lane = LaneName(thread, "marker-ns")
    for number in range(12):
        id = f"marker-id {number}"
        text = ["marker-base " * 60] * (number + 1)
        put(
            store,
            id,
            f"marker-id {number - 1}" if number else None,
            {"marker-channel": text, "m": "marker-value"},
            metadata={"said": "marker-metadata"},
            lane=lane,
        )
        write(store, id, "marker-write", task="marker-task", task_path="marker-path", lane=lane)
        if number == 5:
            put(store, id, None, {"m": "marker-again"}, lane=lane)
        if number == 3:
            put(store, "marker-id fork", "marker-id 1", {"m": "marker-pruned " * 20}, lane=lane)
        if number == 8:
            store.prune(thread)


def others(store: Store) -> None:
    for number in range(10):
        put(store, f"{number}", f"{number - 1}" if number else None, {"m": [f"word {number}"] * 90}, lane=LaneName("other"))


def opened(path: Path) -> Store:
    return open_at(path, segment_bytes=SEGMENT, auto_compact=False)


@pytest.mark.parametrize("still_open", [True, False])
def test_nothing_is_left_in_any_file(tmp_path: Path, still_open: bool) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        others(store)
        mark(store)
        others_before = values(store, lane=LaneName("other"))
        assert found(path) == set(MARKERS)
        assert store.delete("marker-thread", erase=True) is True
        if still_open:
            assert found(path) == set()
        assert values(store, lane=LaneName("other")) == others_before
        assert store.verify().problems == []
    assert found(path) == set()
    with opened(path) as store:
        assert ids(store, "other")[::-1] == [f"{number}" for number in range(10)]
        # Late calls are refused all the same: ids are remembered as hashes.
        with pytest.raises(ckptstore.errors.ThreadDeletedError):
            write(store, "marker-id 11", 1, lane=LaneName("marker-thread", "marker-ns"))


def test_a_thread_that_was_deleted_before(tmp_path: Path) -> None:
    """Deleted without erasing, twice, and a third one lives: the first two are gone from the log as well."""
    with opened(tmp_path / "store") as store:
        for _ in range(2):
            mark(store)
            store.delete("marker-thread")
        assert found(tmp_path / "store") == set(MARKERS)
        assert store.delete("marker-thread", erase=True) is False
        assert found(tmp_path / "store") == set()
        mark(store)
        assert store.delete("marker-thread", erase=True) is True
        assert found(tmp_path / "store") == set()


def test_copies_are_named_and_nothing_is_done(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        mark(store)
        store.copy("marker-thread", "a copy")
        store.copy("a copy", "a copy of it")
        before = store.stats().last_lsn
        with pytest.raises(CopiesRemainError, match="'a copy', 'a copy of it'"):
            store.delete("marker-thread", erase=True)
        assert store.stats().last_lsn == before
        # A copy of a copy names what it was copied from, too.
        with pytest.raises(CopiesRemainError, match="'a copy', 'marker-thread'"):
            store.delete("a copy of it", erase=True)
        # The thread alone goes by a plain delete; its copies still hold the bytes.
        store.delete("marker-thread")
        with pytest.raises(CopiesRemainError, match="'a copy', 'a copy of it'"):
            store.delete("marker-thread", erase=True)
        assert store.delete("a copy", erase=True, with_copies=True) is True
        assert list(store.threads()) == []
        assert found(tmp_path / "store") == set()


@pytest.mark.parametrize("whole", [True, False])
def test_torn_bytes(tmp_path: Path, whole: bool) -> None:
    """What a recovery cut off and kept goes too, unless it is known to be somebody else's."""
    path = tmp_path / "store"
    with opened(path) as store:
        others(store)
        mark(store)
    # What recoveries may have cut off: a frame of the thread, whole or in part, and a whole one of the other thread.
    mine = next(frame for frame in frames(path) if b"marker-id 11" in frame.path.read_bytes()[frame.offset :][: frame.size])
    other = next(frames(path))
    torn = path / "torn"
    torn.mkdir()
    for name, frame, size in (("mine", mine, mine.size if whole else mine.size - 3), ("other", other, other.size)):
        (torn / name).write_bytes(frame.path.read_bytes()[frame.offset : frame.offset + size])
    (path / "segments" / f"{99:020d}.seg.tmp").write_bytes(b"left by a killed compaction: marker-value")
    with open_at(path, read_only=True) as reading, opened(path) as store:
        (path / "segments" / f"{99:020d}.seg.tmp").write_bytes(b"left by a killed compaction: marker-value")
        store.delete("marker-thread", erase=True)
        assert ids(reading, "other")[0] == "9"
    assert found(path) == set()
    assert [file.name for file in torn.iterdir()] == ["other"]


def test_in_memory() -> None:
    with ckptstore.open(":memory:") as store:
        mark(store)
        others(store)
        assert store.delete("marker-thread", erase=True) is True
        held = [text for lsn in store._storage._frames.values() for text in lsn]  # type: ignore[attr-defined]
        assert [marker for marker in MARKERS if any(marker.encode() in text for text in held)] == []
        assert ids(store, "other")[0] == "9"


def test_a_damaged_frame_may_be_anybodys(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        mark(store)
        others(store)
    with opened(tmp_path / "store") as store:
        frame = list(frames(tmp_path / "store"))[-4]
        flip(frame.path, frame.offset + fmt.FRAME_HEADER + HEADER)
        with pytest.raises(CorruptionError):
            store.delete("marker-thread", erase=True)
        assert "marker-thread" in {info.thread for info in store.threads()}


def test_wrong_calls(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        mark(store)
        with pytest.raises(InvalidArgumentError, match="with_copies=True"):
            store.delete("marker-thread", with_copies=True)
        assert store.delete("nobody", erase=True) is False
    with open_at(tmp_path / "store", read_only=True) as store, pytest.raises(ReadOnlyError):
        store.delete("marker-thread", erase=True)


def test_beside_a_writer_of_other_threads(tmp_path: Path) -> None:
    """In the same process, on a second handle, while a list of the erased thread is paused."""
    path = tmp_path / "store"
    with opened(path) as store, opened(path) as second:
        mark(store)
        others(second)
        listed = second.list("marker-thread")
        assert next(listed).id.startswith("marker-id")
        rng = random.Random(1)
        put(second, "more", "9", {"m": rng.randbytes(3000).hex()}, lane=LaneName("other"))
        store.delete("marker-thread", erase=True)
        assert list(listed) == []
        put(second, "still", "more", {"m": 1}, lane=LaneName("other"))
        assert found(path) == set()
    assert os.listdir(path / "segments")
    assert ckptstore.verify(path).problems == []
