"""`ckpt inspect`: the figures, that they add up, and that it reads no more than it says."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import ckptstore
from ckptstore import Consumed, LaneName, Source
from ckptstore.codec.compression import compress
from ckptstore.codec.names import name_hash
from ckptstore.codec.records import CheckpointBody, Kind, encode_checkpoint, encode_lane, encode_thread, encode_value, pack
from ckptstore.inspect import stats
from ckptstore.model import Ref
from ckptstore.storage import Frame
from tests.cli.stores import encode, put
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
        figures = store.stats()
    found = facts(ckpt, folder)
    assert list(found) == KEYS
    assert found["path"] == str(folder.resolve())
    stored = json.loads((folder / "STORE").read_text())
    assert (found["uuid"], found["timeline"], found["format"]) == (stored["uuid"], stored["timelines"][-1], stored["ckptstore"])
    assert found["log_bytes"] == sum(path.stat().st_size for path in (folder / "segments").glob("*.seg")) == figures.log_bytes
    assert found["live_bytes"] + found["dead_bytes"] == found["log_bytes"]
    assert found["dead_bytes"] == figures.dead_bytes > 0
    assert (found["frames"], found["last_lsn"], found["durable_lsn"]) == (figures.frames, figures.last_lsn, figures.durable_lsn)
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


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Kinds of the records whose bodies were decoded."""
    read: set[int] = set()
    raw = Frame.raw

    def watched(self: Frame, ordinal: int) -> bytes:
        read.add(self.entries[ordinal][0])
        return raw(self, ordinal)

    monkeypatch.setattr(Frame, "raw", watched)
    return read


def test_no_body_is_decoded(ckpt: Callable[..., Any], folder: Path, decoded: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the tables of checkpoints, where channels are shown: by default only in stores that are not large."""
    assert facts(ckpt, folder, "--no-channels")["breakdown"]["channels"] is None
    monkeypatch.setattr(stats, "CHANNELS_UP_TO", 5)
    assert facts(ckpt, folder)["breakdown"]["channels"] is None
    assert decoded == set()
    assert facts(ckpt, folder, "--channels")["breakdown"]["channels"]
    monkeypatch.setattr(stats, "CHANNELS_UP_TO", 50)
    assert facts(ckpt, folder)["breakdown"]["channels"]
    assert decoded == {Kind.CHECKPOINT}


def test_only_the_table_of_a_checkpoint_is_unpacked(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    """Skeleton and metadata are skipped: here they are what msgpack refuses to unpack, but can step over."""
    with ckptstore.open(tmp_path / "s") as store:
        raw = b"\x93" + 2 * b"\x81\xc4\x01k\xd6\xff\xff\xff\xff\xff" + pack({"messages": ["1", 0]})
        codec, body = compress(raw)
        value = b"x" * 100
        records = [
            encode_thread(1, name_hash("t"), "t"),
            encode_lane(1, name_hash(""), 1, ""),
            encode_value(("text", value), crc32(value), *compress(value)),
            encode_checkpoint(
                CheckpointBody(body, codec, len(raw)),
                lane=1,
                id="c1",
                parent=None,
                token=b"",
                source=Source.LOOP,
                mask=0,
                consumed=Consumed(),
                run=None,
                place=0,
                refs=[Ref(0, 2)],
            ),
        ]
        store._storage.commit(lambda view: records)
    [channel] = facts(ckpt, tmp_path / "s")["breakdown"]["channels"]
    assert (channel["channel"], channel["records"], channel["raw_bytes"]) == ("messages", 1, 100)


def texts(count: int) -> list[str]:
    return [f"line {number} of {number * number}, said at {number * 7919}" for number in range(count)]


def test_how_the_values_of_each_channel_are_stored(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "s"
    noise = random.Random(1).randbytes(2000).hex()
    with ckptstore.open(path) as store:
        for number in range(40):
            values = {"log": "\n".join(texts(20 + number)), "small": str(number), "fixed": "f" * 500}
            store.put_checkpoint(
                LaneName("t"),
                f"c{number}",
                f"c{number - 1}" if number else None,
                skeleton={},
                metadata={},
                versions={"log": number, "small": number, "fixed": 1},
                values=values,
                changed={"log", "small"},
                encode=encode,
            )
        store.put_writes(LaneName("t"), "c39", [(0, "log", noise)], task_id="task", encode=encode)
    breakdown = facts(ckpt, path)["breakdown"]
    channels = {item["channel"]: item for item in breakdown["channels"]}
    assert channels.keys() == {"log", "fixed", None}
    assert [item["bytes"] for item in breakdown["channels"]] == sorted((item["bytes"] for item in channels.values()), reverse=True)
    kinds = {item["kind"]: item for item in breakdown["kinds"]}
    assert sum(item["bytes"] for item in channels.values()) == kinds["values"]["bytes"]
    assert sum(item["records"] for item in channels.values()) == kinds["values"]["records"]
    log = channels["log"]
    assert (log["records"], log["whole"], log["patched"]) == (40, 1, 39)
    assert log["raw_bytes"] == sum(len("\n".join(texts(20 + number))) for number in range(40))
    assert log["ratio"] == round(log["raw_bytes"] / log["bytes"], 2) > 5
    assert 3 < log["most_frames"] <= 16
    assert (channels["fixed"]["records"], channels["fixed"]["whole"], channels["fixed"]["most_frames"]) == (1, 1, 1)
    assert (channels[None]["records"], channels[None]["raw_bytes"]) == (1, len(noise))
    text = ckpt("inspect", path).out
    for figure in (log["bytes"], log["raw_bytes"], channels[None]["bytes"]):
        assert f"{figure:,}" in text
    assert "(no channel)" in text


def test_a_channel_that_several_hold_counts_once(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        for number, name in enumerate(("\x1b[31mfirst", "second")):
            store.put_checkpoint(
                LaneName("t"),
                f"c{number}",
                None if number == 0 else "c0",
                skeleton={},
                metadata={},
                versions={name: number},
                values={name: "the same text " * 100},
                changed={name},
                encode=encode,
            )
    [channel] = facts(ckpt, tmp_path / "s")["breakdown"]["channels"]
    assert (channel["channel"], channel["records"]) == ("\x1b[31mfirst", 1)
    assert ckpt("inspect", tmp_path / "s").out.replace("\n", "").isprintable()


def test_a_store_that_was_compacted(ckpt: Callable[..., Any], folder: Path) -> None:
    """Frames that are gone are no damage, and the figures add up."""
    with ckptstore.open(folder) as store:
        put(store, "small", "s2", "s1", "head")
        store.prune("small")
        store.compact()
    found = facts(ckpt, folder)
    by_kind = sum(item["bytes"] for item in found["breakdown"]["kinds"])
    assert by_kind + found["breakdown"]["headers"] + found["dead_bytes"] == found["log_bytes"]
    by_thread = sum(item["bytes"] for item in found["breakdown"]["threads"])
    assert by_thread + found["breakdown"]["other_threads"] + found["breakdown"]["no_thread"] == by_kind


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
