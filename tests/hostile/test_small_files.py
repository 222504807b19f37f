"""The small files beside the log, and the names of files: whatever they say, an error of ours or a store that opens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import ckptstore
from ckptstore import CkptStoreError, channels
from ckptstore.errors import CorruptionError
from ckptstore.storage.local.backup import MANIFEST
from tests.hostile.stores import attempt

DEEP = b"[" * 100_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store."""
    with ckptstore.open(tmp_path / "store", durability="process") as opened:
        opened.thread("t", schema={"m": channels.append()}).step({"m": [1]})
    return tmp_path / "store"


def assert_in_order(path: Path) -> None:
    with ckptstore.open(path) as opened:
        assert opened.thread("t").state() == {"m": [1]}


@pytest.mark.parametrize("data", [b"", DEEP, b"[]", b"\xff\xfe{\0}\0", b'"' + b"9" * 10_000, b"9" * 10_000, b'{"ckptstore": 1}'])
def test_an_identity_that_is_none_is_damage(store: Path, data: bytes) -> None:
    (store / "STORE").write_bytes(data)
    with pytest.raises(CorruptionError, match="does not read as the identity"):
        ckptstore.open(store)


@pytest.mark.parametrize(
    "facts",
    [
        {"uuid": 5},
        {"uuid": "00"},
        {"timelines": []},
        {"timelines": ["00"]},
        {"features": []},
        {"features": {"incompatible": 5}},
        {"features": {"incompatible": [["x"], {}]}},
        {"created_ms": float("inf")},
        {"ckptstore": None},
    ],
    ids=repr,
)
@pytest.mark.parametrize("options", [{}, {"read_only": True}], ids=["writing", "read only"])
def test_an_identity_with_other_facts_is_refused(store: Path, facts: dict[str, Any], options: dict[str, Any]) -> None:
    known = json.loads((store / "STORE").read_bytes())
    (store / "STORE").write_text(json.dumps({**known, **facts}))
    with pytest.raises(CkptStoreError):
        ckptstore.open(store, **options)
    found = attempt(lambda: ckptstore.verify(store))
    assert isinstance(found, CkptStoreError) or found.problems


@pytest.mark.parametrize("name", ["OWNER", "CLEAN"])
@pytest.mark.parametrize(
    "change",
    [
        lambda facts: DEEP,
        lambda facts: b"[]",
        lambda facts: {**facts, "epoch": "1"},
        lambda facts: {**facts, "epoch": -1},
        lambda facts: {**facts, "epoch": 10**400},
        lambda facts: {**facts, "kind": ["lmdb"]},
        lambda facts: {**facts, "packed": None},
        lambda facts: {**facts, "end": 5},
        lambda facts: {**facts, "end": [1, 2]},
        lambda facts: {**facts, "end": ["a", None, 1, 2]},
    ],
)
def test_evidence_that_does_not_read_is_none(store: Path, name: str, change: Callable[[Any], Any]) -> None:
    path = store / "index" / name
    changed = change(json.loads(path.read_bytes()))
    path.write_bytes(changed if isinstance(changed, bytes) else json.dumps(changed).encode())
    assert not ckptstore.verify(store).problems
    assert_in_order(store)


@pytest.mark.parametrize(
    "name", ["2.seg", "\u00b2.seg", "\u0663.seg", "x.seg", ".seg", "-0000000000000000001.seg", "1" * 200 + ".seg", "2.hint", "a"]
)
def test_files_that_are_no_segments_are_left_alone(store: Path, name: str) -> None:
    (store / "segments" / name).write_bytes(b"not a segment")
    (store / "index" / name.split(".")[0]).mkdir(exist_ok=True)
    assert not ckptstore.verify(store).problems
    assert_in_order(store)
    assert (store / "segments" / name).read_bytes() == b"not a segment"


# -- backups ---------------------------------------------------------------------------------------------------------------


def manifest_with(backup: Path, **changed: Any) -> None:
    facts = json.loads((backup / MANIFEST).read_bytes())
    del facts["crc"]
    facts |= changed
    crc = crc32(json.dumps(facts, sort_keys=True).encode())
    (backup / MANIFEST).write_text(json.dumps({**facts, "crc": crc}))


def test_a_backup_names_no_file_outside_its_folder(store: Path, tmp_path: Path) -> None:
    """What a restore copies would be readable for whoever may read the store."""
    ckptstore.backup(store, tmp_path / "backup")
    [(segment, file, size, crc, sealed)] = json.loads((tmp_path / "backup" / MANIFEST).read_bytes())["segments"]
    outside = tmp_path / "outside.seg"
    os.rename(tmp_path / "backup" / "segments" / file, outside)
    for name in ("../../outside.seg", str(outside)):
        manifest_with(tmp_path / "backup", segments=[[segment, name, size, crc, sealed]])
        with pytest.raises(CorruptionError, match="names what no backup holds"):
            ckptstore.restore(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"store": 5},
        {"store": "{}"},
        {"store": "\udcff"},
        {"store": "[" * 100_000},
        {"index": ["lmdb"]},
        {"index": "other"},
        {"end": [1, 2]},
        {"end": [1, 2, -3, 4]},
        {"end": [1, 2, 1 << 62, 4]},
        {"taken_ms": "now"},
        {"segments": []},
        {"segments": [[1, 2]]},
        {"segments": [["1", "1.seg", 1, 1, True]]},
        {"segments": [[1, "1.seg", -1, 1, True]]},
        {"segments": [[1 << 70, "1.seg", 1, 1, True]]},
    ],
    ids=lambda changed: repr(changed)[:40],
)
def test_a_backup_that_is_none_restores_nothing(store: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    ckptstore.backup(store, tmp_path / "backup")
    manifest_with(tmp_path / "backup", **changed)
    with pytest.raises(CorruptionError):
        ckptstore.restore(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_list_of_files_without_an_end_is_damage(store: Path, tmp_path: Path) -> None:
    ckptstore.backup(store, tmp_path / "backup")
    (tmp_path / "backup" / MANIFEST).write_bytes(DEEP)
    with pytest.raises(CorruptionError):
        ckptstore.restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(CorruptionError):
        ckptstore.backup(store, tmp_path / "backup")
