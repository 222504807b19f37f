"""`ckpt inspect`: the figures, that they add up, and that it reads no more than it says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptstore
from ckptstore.storage import Frame
from tests.cli.stores import put
from tests.helpers import flip, frames

WRITES_OF_L1 = 4
"""LSN of a batch of writes in the fixture's store, which no list of threads needs."""

KEYS = [
    "path",
    "format",
    "uuid",
    "timeline",
    "segments",
    "log_bytes",
    "live_bytes",
    "dead_bytes",
    "index_bytes",
    "frames",
    "last_lsn",
    "durable_lsn",
    "threads",
    "namespaces",
    "checkpoints",
    "breakdown",
    "problems",
]


def facts(ckpt: Callable[..., Any], *arguments: object) -> dict[str, Any]:
    ran = ckpt("inspect", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert isinstance(found, dict)
    return found


def test_the_keys_are_the_documented_ones_and_the_figures_those_of_the_store(ckpt: Callable[..., Any], folder: Path) -> None:
    with ckptstore.open(folder, read_only=True) as store:
        stats = store.stats()
    found = facts(ckpt, folder)
    assert list(found) == KEYS
    assert found["path"] == str(folder.resolve())
    stored = json.loads((folder / "STORE").read_text())
    assert (found["uuid"], found["timeline"], found["format"]) == (stored["uuid"], stored["timelines"][-1], stored["ckptstore"])
    assert found["log_bytes"] == sum(path.stat().st_size for path in (folder / "segments").glob("*.seg")) == stats.log_bytes
    assert found["live_bytes"] + found["dead_bytes"] == found["log_bytes"]
    assert found["dead_bytes"] == stats.dead_bytes > 0
    assert (found["frames"], found["last_lsn"], found["durable_lsn"]) == (stats.frames, stats.last_lsn, stats.durable_lsn)
    assert (found["threads"], found["namespaces"], found["checkpoints"]) == (2, 3, 4)
    assert found["problems"] == []


def test_the_breakdown_adds_up_to_the_log(ckpt: Callable[..., Any], folder: Path) -> None:
    found = facts(ckpt, folder)
    breakdown = found["breakdown"]
    kinds = {item["kind"]: item for item in breakdown["kinds"]}
    by_kind = sum(item["bytes"] for item in kinds.values())
    assert by_kind + breakdown["headers"] + found["dead_bytes"] == found["log_bytes"]
    by_thread = sum(item["bytes"] for item in breakdown["threads"])
    assert by_thread + breakdown["other_threads"] + breakdown["no_thread"] == by_kind
    assert kinds["checkpoints"]["records"] == kinds["writes"]["records"] == 4
    assert kinds["tombstones"]["records"] == 1
    # 84 bytes of the segment; 44 of a frame and 1 of its directory, for all but the two of the deleted thread.
    assert breakdown["headers"] == 84 + 45 * (found["frames"] - 2)


def test_top_names_the_largest_threads_and_sums_up_the_others(ckpt: Callable[..., Any], folder: Path) -> None:
    every, one = facts(ckpt, folder)["breakdown"], facts(ckpt, folder, "--top", 1)["breakdown"]
    assert [item["thread"] for item in every["threads"]] == ["large", "small"]
    assert one["threads"] == every["threads"][:1]
    assert one["other_threads"] == every["threads"][1]["bytes"]


def test_without_a_breakdown_the_log_is_not_read(ckpt: Callable[..., Any], folder: Path) -> None:
    frame = next(frame for frame in frames(folder) if frame.lsn == WRITES_OF_L1)
    flip(frame.path, frame.offset + frame.size - 1)
    assert facts(ckpt, folder, "--top", 0)["breakdown"] is None
    damaged = ckpt("inspect", folder, "--json")
    problems = json.loads(damaged.out)["problems"]
    assert damaged.code == 1
    assert len(problems) == 1
    assert f"LSN {WRITES_OF_L1}: segment 1, offset {frame.offset}" in problems[0]
    text = ckpt("inspect", folder)
    assert text.code == 1
    assert "problem: " in text.out


def test_no_body_is_decoded(ckpt: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[int] = set()
    raw = Frame.raw

    def watched(self: Frame, ordinal: int) -> bytes:
        read.add(self.entries[ordinal][0])
        return raw(self, ordinal)

    monkeypatch.setattr(Frame, "raw", watched)
    facts(ckpt, folder)
    assert read == set()


def test_the_text_shows_the_same_figures(ckpt: Callable[..., Any], folder: Path) -> None:
    found = facts(ckpt, folder)
    ran = ckpt("inspect", folder)
    assert (ran.code, ran.err) == (0, "")
    for figure in ("log_bytes", "live_bytes", "dead_bytes", "index_bytes", "frames", "checkpoints"):
        assert f"{found[figure]:,}" in ran.out
    for text in (found["path"], found["uuid"], found["timeline"], "large", "small"):
        assert text in ran.out


def test_a_relative_path_is_shown_absolute(ckpt: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert facts(ckpt, folder.name)["path"] == str(folder.resolve())


def test_looking_changes_nothing_of_the_log(ckpt: Callable[..., Any], folder: Path) -> None:
    def log() -> dict[str, bytes]:
        return {name: (folder / "segments" / name).read_bytes() for name in sorted(os.listdir(folder / "segments"))}

    before = log()
    facts(ckpt, folder)
    assert ckpt("threads", folder).code == 0
    assert log() == before


def test_an_empty_store(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    ckptstore.open(tmp_path / "new").close()
    found = facts(ckpt, tmp_path / "new")
    assert (found["threads"], found["checkpoints"], found["breakdown"]["kinds"]) == (0, 0, [])
    assert ckpt("inspect", tmp_path / "new").code == 0


def test_a_pruned_thread_keeps_its_name(ckpt: Callable[..., Any], folder: Path) -> None:
    with ckptstore.open(folder) as store:
        put(store, "small", "s2", "s1", "head")
        store.prune("small")
        with store._storage.view() as view:
            names = {view.thread_record(number)[0].lsn for number in view.threads()}
            assert names.isdisjoint(view.dead())
    assert "small" in [item["thread"] for item in facts(ckpt, folder)["breakdown"]["threads"]]
