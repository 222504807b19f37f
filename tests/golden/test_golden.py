"""Golden stores: folders written once by each version of the format, which every later version must read alike."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import ckptstore
from ckptstore import LaneName, Store
from ckptstore.codec.compression import RAW, ZSTD, ZSTD_SHIPPED_1
from ckptstore.codec.patch import BASED
from ckptstore.codec.records import PATCH, Kind, value_facts
from ckptstore.storage.local import format as fmt
from tests.golden.make import COMPACTED, WRITTEN, answers, make, put
from tests.mini_reader import MiniReader, read_frames
from tests.values.test_patch import parts

HERE = Path(__file__).resolve().parent
GOLDEN = sorted(path.with_suffix("") for path in HERE.glob("format-*/*.json"))


def expected(golden: Path) -> Any:
    return json.loads(golden.with_suffix(".json").read_text())


def copied(golden: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden, tmp_path / golden.name))


def test_there_are_golden_stores_of_every_format() -> None:
    assert {path.relative_to(HERE).as_posix() for path in GOLDEN} >= {f"format-1/{name}" for name in (WRITTEN, COMPACTED)}


@pytest.mark.parametrize("options", [{}, {"read_only": True}, {"index": "sqlite"}], ids=["writing", "read only", "sqlite"])
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_a_golden_store_reads_as_ever(golden: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    path = copied(golden, tmp_path)
    (path / "LOCK").touch()
    for _ in ("without an index", "with one"):
        with ckptstore.open(path, **options) as store:
            assert json.loads(json.dumps(answers(store))) == expected(golden)


def test_the_files_that_are_kept_are_enough_to_read(tmp_path: Path) -> None:
    path = copied(HERE / "format-1" / WRITTEN, tmp_path)
    with ckptstore.open(path, read_only=True) as store:
        assert json.loads(json.dumps(answers(store))) == expected(HERE / "format-1" / WRITTEN)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_without_hints_it_reads_the_same(golden: Path, tmp_path: Path) -> None:
    path = copied(golden, tmp_path)
    hints = list((path / "segments").glob("*.hint"))
    assert hints
    for hint in hints:
        hint.unlink()
    with ckptstore.open(path) as store:
        assert json.loads(json.dumps(answers(store))) == expected(golden)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_it_takes_commits(golden: Path, tmp_path: Path) -> None:
    path = copied(golden, tmp_path)
    with ckptstore.open(path) as store:
        put(store, LaneName("new"), "1", None, {"log": ["hello"]})
    with ckptstore.open(path) as store:
        found = json.loads(json.dumps(answers(store)))
    assert [lane for lane in found["lanes"] if lane["lane"] != ["new", ""]] == expected(golden)["lanes"]
    assert len(found["lanes"]) == len(expected(golden)["lanes"]) + 1


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_a_reader_written_from_the_format_page_agrees(golden: Path) -> None:
    reader = MiniReader(golden)
    lanes = expected(golden)["lanes"]
    assert {thread for thread, _ in reader.names()} == {lane["lane"][0] for lane in lanes}
    for lane in lanes:
        found = reader.lane(*lane["lane"])
        assert found is not None
        assert (found.head, found.newest_first()) == (lane["head"], [item["id"] for item in lane["checkpoints"]])


def held(store: Store) -> tuple[set[int], set[int], set[int], int]:
    """(kinds of records, codecs of bodies, codecs of the new bytes of patches, number of values that repeat writes)."""
    kinds, codecs, patches, folding = set(), set(), set(), 0
    for lsn in range(1, store.stats().last_lsn + 1):
        with store._storage.view() as view:
            frame = view.frame(lsn)
        for ordinal, entry in enumerate(frame.entries):
            kinds.add(entry[0])
            codecs.add(entry[1])
            if entry[1] == PATCH:
                patches.add(parts(frame.stored(ordinal))[0])
                folding += bool(value_facts(lsn, entry).folds)
    return kinds, codecs, patches, folding


def test_they_hold_every_kind_of_record_and_every_codec(tmp_path: Path) -> None:
    with ckptstore.open(copied(HERE / "format-1" / WRITTEN, tmp_path)) as store:
        kinds, codecs, patches, folding = held(store)
        assert store.stats().segments > 2
    assert kinds == set(Kind) - {Kind.VOID}
    assert codecs == {RAW, ZSTD, ZSTD_SHIPPED_1, PATCH}
    assert patches >= {RAW, ZSTD_SHIPPED_1, BASED}
    assert folding


def test_one_of_them_was_compacted() -> None:
    """Segments that replace others, and records left out of frames that stay."""
    golden = HERE / "format-1" / COMPACTED
    assert Kind.VOID in {entry[0] for frame in read_frames(golden) for entry in frame.entries}
    segments = [path.read_bytes() for path in (golden / "segments").glob("*.seg")]
    headers = [fmt.decode_segment_header(data[: fmt.segment_header_length(data)]) for data in segments]
    assert any(header.replaces for header in headers)


def test_making_them_again_gives_stores_that_answer_alike(tmp_path: Path) -> None:
    """The golden stores are those of the present format: what is written now reads as they do, but for the time of deletions."""
    make(tmp_path / "again")
    for name in (WRITTEN, COMPACTED):
        made, golden = expected(tmp_path / "again" / name), expected(HERE / "format-1" / name)
        assert made.pop("late").keys() == golden.pop("late").keys()
        assert made == golden


def test_the_golden_stores_are_small() -> None:
    sizes = [file.stat().st_size for file in HERE.rglob("format-*/**/*") if file.is_file()]
    assert max(sizes) < 64 << 10
    assert not [name for _, names, _ in os.walk(HERE) for name in names if name == "index"]
