"""Logs and hints that no writer makes, with every checksum right: refused, or read in a time that their size allows."""

from __future__ import annotations

import copy
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

import ckptstore
from ckptstore import CkptStoreError, LaneName, Store, channels
from ckptstore.codec.records import Kind
from ckptstore.errors import CorruptionError, ForeignSegmentError, StaleIndexError
from ckptstore.inspect.stats import store_report
from ckptstore.options import IndexKind
from ckptstore.storage.local.hints import read_hint
from ckptstore.storage.local.layout import Layout, read_identity
from ckptstore.storage.local.segment import Segments
from ckptstore.storage.local.vfs import OS
from tests.helpers import flip, frames
from tests.hostile.mutating import Tree
from tests.hostile.stores import USES, frame_trees, pack, sealed_hint, store_tree, write_store
from tests.hostile.targets import small_stores

ROOT = Path(__file__).resolve().parents[2]
FAR = (1 << 48) - 10


def a_store(path: Path) -> Tree:
    """One segment with a thread that was written, and another that was deleted."""
    with ckptstore.open(path, durability="process", auto_compact=False) as store:
        for name in ("gone", "t"):
            thread = store.thread(name, schema={"m": channels.append()})
            for number in range(4):
                thread.step({"m": [number]})
        store.delete("gone")
    tree = store_tree(path)
    tree["STORE"] |= {"uuid": bytes(range(16)).hex(), "timelines": [bytes(range(8)).hex()]}
    return tree


def tombstone(tree: Tree) -> list[Any]:
    [found] = [entry for _, _, records in tree["segments"][0][1] for entry, _ in records if entry[0] == Kind.TOMBSTONE]
    return found


def with_a_gap(tree: Tree) -> Tree:
    """The LSNs behind the first frames are far away, as if what was between them had been compacted away."""
    (number, base, _, _), frames, _ = tree["segments"][0]
    moved = [[lsn if at < 3 else FAR - len(frames) + at, 0, records] for at, (lsn, _, records) in enumerate(frames)]
    tree["segments"] = [[[number + 1, base, FAR, [number]], moved, None]]
    return tree


@pytest.mark.parametrize("first", [1, FAR - 20], ids=["from the start", "far away"])
def test_a_tombstone_of_more_frames_than_there_are(tmp_path: Path, first: int) -> None:
    tree = a_store(tmp_path / "made")
    entry = tombstone(tree)
    entry[8] = [first, FAR - first]
    write_store(tree, tmp_path / "store")
    report = ckptstore.verify(tmp_path / "store")
    assert report.frames
    with ckptstore.open(tmp_path / "store") as store:
        assert store.thread("t").state() == {"m": [0, 1, 2, 3]}


USE = """
import sys
from pathlib import Path
from tests.hostile import fuzzing, stores
if sys.platform == "linux":
    fuzzing.limit()  # elsewhere the signal of the time limit ends the process
with fuzzing.in_time():
    getattr(stores, sys.argv[1])(Path(sys.argv[2]))
"""


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_lsns_far_apart(tmp_path: Path, use: Callable[[Path], None]) -> None:
    """Nothing goes through all numbers between two frames: it would take days, or all memory."""
    tree = with_a_gap(a_store(tmp_path / "made"))
    write_store(tree, tmp_path / "store")
    given = [sys.executable, "-c", USE, use.__name__, str(tmp_path / "store")]
    ended = subprocess.run(given, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_inspecting_lsns_far_apart(tmp_path: Path) -> None:
    tree = with_a_gap(a_store(tmp_path / "made"))
    write_store(tree, tmp_path / "store")
    found = store_report(tmp_path / "store")
    assert found.last_lsn >= FAR - 10


@pytest.mark.parametrize(
    "entry",
    [
        [Kind.META, 0, 0, 0, {1: 2}],
        [Kind.META, 0, 0, 0, {"numbers": 5}],
        [Kind.COPY, 0, 0, 0, 7, 8, 0],
        [Kind.LANE, 0, 0, 0, 7, bytes(16), 99, ""],
        [Kind.TOMBSTONE, 0, 0, 0, 2, 1, 0, b"", [], None, []],
    ],
    ids=repr,
)
def test_records_that_do_not_fit_are_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: list[Any]) -> None:
    tree = a_store(tmp_path / "made")
    frames = tree["segments"][0][1]
    frames[-1][2] = [[entry, b""]]
    write_store(tree, tmp_path / "store")
    with pytest.raises(CkptStoreError):
        ckptstore.open(tmp_path / "store")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with pytest.raises(CkptStoreError):
        ckptstore.open(tmp_path / "store", read_only=True)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert ckptstore.verify(tmp_path / "store").problems


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_a_segment_in_the_place_of_the_one_it_replaces(tmp_path: Path, use: Callable[[Path], None]) -> None:
    tree = a_store(tmp_path / "made")
    tree["segments"][0][0] = [7, 1, 0, [1]]
    write_store(tree, tmp_path / "store")
    segments = tmp_path / "store" / "segments"
    (segments / f"{7:020d}.seg").rename(segments / f"{1:020d}.seg")
    with pytest.raises(ForeignSegmentError):
        ckptstore.open(tmp_path / "store")
    use(tmp_path / "store")


# -- hints -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hinted(tmp_path: Path) -> tuple[Layout, Any]:
    """A segment, and what its hint says."""
    with ckptstore.open(tmp_path / "s", durability="process", segment_bytes=4096) as store:
        for number in range(40):
            put(store, f"{number:02}")
    layout = Layout(tmp_path / "s")
    assert layout.hint(1).exists()
    return layout, store_tree(tmp_path / "s")["segments"][0]


def put(store: Store, id: str) -> None:
    store.put_checkpoint(
        LaneName("t"), id, None, skeleton={}, metadata={}, versions={"m": id}, values={"m": id * 90}, changed={"m"}, encode=typed
    )


def typed(channel: str, value: str) -> tuple[str, bytes]:
    return "text", value.encode()


def read(layout: Layout, hint: bytes) -> Any:
    layout.hint(1).write_bytes(hint)
    segments = Segments(OS, layout, read_identity(OS, layout))
    try:
        header = segments.header(1)
    finally:
        segments.close()
    return read_hint(OS, layout, header._replace(salt=7))


def test_a_hint_in_order_is_read(hinted: tuple[Layout, Any]) -> None:
    layout, (_, frames, items) = hinted
    assert [item.lsn for item in read(layout, sealed_hint(items))] == [frame[0] for frame in frames]


@pytest.mark.parametrize(
    "change",
    [
        lambda items: 5,
        lambda items: [5],
        lambda items: [[1, 2, 3]],
        lambda items: [[-1, *items[0][1:]]],
        lambda items: [[items[0][0], 1 << 40, *items[0][2:]]],
        lambda items: [["1", *items[0][1:]]],
        lambda items: [[*items[0][:3], 5]],
        lambda items: [[*items[0][:3], [[Kind.CHECKPOINT, 0, 0, 0]]]],
        lambda items: b"no zstd frame",
        lambda items: zstandard.compress(b"\x91" * 100_000),
        lambda items: zstandard.compress(b"no msgpack"),
    ],
)
def test_a_hint_that_is_none_is_ignored(hinted: tuple[Layout, Any], change: Callable[[Any], Any]) -> None:
    layout, (_, _, items) = hinted
    assert read(layout, sealed_hint(change(items))) is None


@pytest.mark.parametrize("more", [1, 8])
def test_a_hint_of_more_records_than_there_are_is_found_out(tmp_path: Path, more: int) -> None:
    """An index that is built of it names records that are of another kind, or are not there."""
    tree = copy.deepcopy(small_stores()[0])
    for item in tree["segments"][0][2]:
        item[3] = [[Kind.VOID, 0, 0, 0]] * more + item[3]
    write_store(tree, tmp_path / "store")
    with ckptstore.open(tmp_path / "store") as store, pytest.raises(StaleIndexError):
        list(store.threads())


@pytest.mark.parametrize("stated", [1 << 28, 1 << 60])
def test_a_hint_that_states_a_size_beyond_its_segment_takes_no_memory(hinted: tuple[Layout, Any], stated: int) -> None:
    """zstd allocates what the frame states, whatever bound it is given."""
    layout, _ = hinted
    packed = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", stated) + zstandard.compress(pack([7, []]))[6:]
    assert zstandard.frame_content_size(packed) == stated
    assert read(layout, sealed_hint(packed)) is None
    really = zstandard.compress(bytes(64 << 20))
    assert read(layout, sealed_hint(really)) is None


def test_frames_are_found_again(tmp_path: Path) -> None:
    """The trees of these tests are the store: written again, it answers the same."""
    tree = a_store(tmp_path / "made")
    write_store(tree, tmp_path / "store")
    [segment] = (tmp_path / "store" / "segments").glob("*.seg")
    assert frame_trees(segment.read_bytes()) == tree["segments"][0][1]
    with ckptstore.open(tmp_path / "store") as store:
        assert [info.thread for info in store.threads()] == ["t"]


def test_a_log_that_begins_before_its_first_number_is_damage(tmp_path: Path) -> None:
    tree = a_store(tmp_path / "made")
    tree["segments"][0][0][1] = 0
    write_store(tree, tmp_path / "store")
    with pytest.raises(CorruptionError):
        ckptstore.open(tmp_path / "store")


def descriptors() -> list[str]:
    return sorted(os.listdir("/dev/fd"))


@pytest.mark.parametrize("index", ["lmdb", "sqlite"])
def test_an_open_of_a_damaged_log_leaves_nothing_open(tmp_path: Path, index: IndexKind) -> None:
    """Refused, while the error is still held; or, where it was to be read only, once it is closed again."""
    write_store(a_store(tmp_path / "made"), tmp_path / "store")
    third = list(frames(tmp_path / "store"))[2]
    flip(third.path, third.offset + third.size - 1)
    before = descriptors()
    with pytest.raises(CorruptionError) as refused:
        ckptstore.open(tmp_path / "store", index=index)
    assert descriptors() == before, refused
    ckptstore.open(tmp_path / "store", index=index, read_only=True).close()
    assert descriptors() == before, refused
