"""Writes the golden stores of the present format: small stores with every kind of record, and what must be read of them for ever.

    python tests/golden/make.py

A released format's stores are never written again: a new format gets a new folder. Only what is the truth is kept: STORE and segments/.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import msgpack

import ckptstore
from ckptstore import LaneName, Source, Store
from ckptstore.errors import CkptStoreError
from ckptstore.storage.local.format import MAJOR

FOLDER = Path(__file__).resolve().parent / f"format-{MAJOR}"
WRITTEN, COMPACTED = "written", "compacted"
ODD = LaneName("\udcff\n\x1b[31m", "ns|x:1")


def encode(channel: str, value: Any) -> tuple[str, bytes]:
    """Tags of all forms: known ones, which stand as a number, and one of the caller's own."""
    if isinstance(value, bytes):
        return "bytes", value
    if value is None:
        return "null", b""
    return ("my-own-tag" if channel == "own" else "msgpack"), msgpack.packb(value)


def put(
    store: Store, lane: LaneName, id: str, parent: str | None, values: dict[str, Any], absent: tuple[str, ...] = (), **more: Any
) -> None:
    """A checkpoint in which every channel's version is new."""
    versions = {channel: f"{id}.{channel}" for channel in (*values, *absent)}
    given: dict[str, Any] = {
        "metadata": {"step": len(id), "source": "loop"},
        "versions": versions,
        "changed": set(versions),
        **more,
    }
    store.put_checkpoint(lane, id, parent, skeleton={"v": 4, "ts": "2026-12-01"}, values=values, encode=encode, **given)


def write(store: Store, lane: LaneName, target: str, task: str, *values: Any, channel: str = "log", **more: Any) -> None:
    entries = [(number, channel, value) for number, value in enumerate(values)]
    store.put_writes(lane, target, entries, task_id=task, task_path=f"~{task}", encode=encode, **more)


def text(rng: random.Random, size: int) -> str:
    words = "a store keeps what an agent said and did at each step of a run so that it can go on".split()  # noqa: SIM905
    return " ".join(rng.choice(words) + (str(rng.randrange(1000)) if rng.random() < 0.3 else "") for _ in range(size // 4))[:size]


def fill(store: Store) -> None:
    rng = random.Random(1)
    _conversation(store, rng)
    _snapshots(store, rng)
    _removals(store, rng)
    _odd_names(store, rng)


def _conversation(store: Store, rng: random.Random) -> None:
    """A list that grows, a branch, values that move, change and come back; a head that was moved."""
    chat = LaneName("chat")
    said: list[str] = []
    for number in range(24):
        said = [*said, text(rng, 120)]
        if number % 7 == 6:
            said[rng.randrange(len(said))] = text(rng, 120)
        more = {"title": f"chat {number}", "own": number, "nothing": None}
        put(store, chat, f"c{number:02}", f"c{number - 1:02}" if number else None, {"messages": said, **more}, run="run 1")
    put(store, chat, "moved", "c23", {"messages": [], "archive": {"messages": said}})
    put(store, chat, "shuffled", "moved", {"messages": rng.sample(said, len(said)), "archive": {"messages": said}})
    put(store, chat, "branch", "c10", {"messages": [*said[:11], "another answer"]}, source=Source.FORK)
    blob, long = rng.randbytes(1500), text(rng, 10_000)
    put(store, chat, "large", "branch", {"messages": ["see the file"], "file": blob, "long": long})
    write(store, chat, "large", "reads", blob, channel="file")
    write(store, chat, "large", "says", "short", text(rng, 1200), channel="messages")
    put(store, chat, "c05", "c04", {"messages": ["put again"]})
    store.set_head(chat, "c20")


def _snapshots(store: Store, rng: random.Random) -> None:
    """A channel made of writes: a value, writes behind it, and forks whose snapshots repeat them."""
    delta = LaneName("delta", "inner:1")
    log = [text(rng, 100) for _ in range(6)]
    put(store, delta, "d00", None, {"log": log})
    for number in range(8):
        added = [text(rng, 90) for _ in range(2)]
        log = [*log, *added]
        write(store, delta, f"d{number:02}", f"task {number}", added)
        write(store, delta, f"d{number:02}", f"task {number}", "interrupted", channel="__interrupt__")
        put(store, delta, f"d{number + 1:02}", f"d{number:02}", {}, ("log",))
    put(store, delta, "forked", "d07", {"log": log[:-2]}, source=Source.FORK)
    put(store, delta, "forked again", "d07", {"log": [*log[:-2], "and one more"]}, source=Source.UPDATE)
    write(store, delta, "d08", "late", ["after the end"])


def _removals(store: Store, rng: random.Random) -> None:
    for thread in ("pruned", "origin", "gone", "of a run"):
        for number in range(4):
            lane = LaneName(thread)
            values = {"log": [text(rng, 60)]} if number == 0 else {}
            run = "run 2" if thread == "of a run" and number == 2 else None
            metadata = {} if run is None else {"run_id": run}
            absent = () if values else ("log",)
            put(store, lane, f"{number}", f"{number - 1}" if number else None, values, absent, run=run, metadata=metadata)
            write(store, lane, f"{number}", f"task {number}", [f"{thread} {number}"])
    store.prune("pruned")
    store.copy("origin", "copy")
    put(store, LaneName("copy"), "4", "3", {}, ("log",))
    store.delete("origin")
    store.delete("gone")
    put(store, LaneName("gone"), "back", None, {"log": ["a new start"]})
    store.delete_for_runs(["run 2"])


def _odd_names(store: Store, rng: random.Random) -> None:
    first = str(uuid.UUID(bytes=rng.randbytes(16), version=4))
    for id, parent in (
        (first, None),
        (first.upper(), first),
        ("caf\u00e9 \u4e2d\udc80", first.upper()),
        ("x" * 300, "never stored"),
    ):
        put(store, ODD, id, parent, {"log": [len(id)] * 50}, versions={"log": len(id)})
    write(store, ODD, "only written to", str(uuid.UUID(bytes=rng.randbytes(16), version=4)), ["orphan"])
    put(
        store,
        ODD,
        "floats",
        "x" * 300,
        {"log": b"\0" * 40},
        versions={"log": 1.5},
        metadata={"deep": {"list": [1, None, True, "x"]}},
    )


# -- what is read ----------------------------------------------------------------------------------------------------------


def answers(store: Store) -> Any:
    """Everything a store answers, as JSON."""
    threads = list(store.threads())
    lanes = sorted({item.lane for item in store.list()})
    with store._storage.view() as view:
        late = {thread: view.late(thread, "", "1") for thread in ("origin", "gone")}
        mode = view.meta("mode")
    return {
        "mode": mode,
        "threads": [list(info) for info in threads],
        "late": late,
        "lanes": [
            {"lane": list(lane), "head": _head(store, lane), "checkpoints": list(_checkpoints(store, lane))} for lane in lanes
        ],
    }


def _head(store: Store, lane: LaneName) -> str | None:
    head = store.get(lane)
    return None if head is None else head.id


def _checkpoints(store: Store, lane: LaneName) -> Iterator[Any]:
    for item in store.list(lane.thread, lane.ns):
        channels = sorted(item.versions.keys() - item.values.keys())
        yield {
            "id": item.id,
            "parent": item.parent,
            "skeleton": item.skeleton,
            "metadata": item.metadata,
            "versions": item.versions,
            "values": {channel: _shown(typed) for channel, typed in item.values.items()},
            "pending": [[write.task_id, write.channel, _shown(write.value)] for write in item.writes],
            "history": _history(store, lane, item.id, channels),
        }


def _history(store: Store, lane: LaneName, id: str, channels: list[str]) -> Any:
    try:
        found = store.history(lane, id, channels)
    except CkptStoreError as error:
        return type(error).__name__
    return {
        channel: [None if past.seed is None else _shown(past.seed), [[item.task_id, _shown(item.value)] for item in past.writes]]
        for channel, past in found.items()
    }


def _shown(typed: tuple[str, bytes]) -> list[Any]:
    """Tag and bytes; of many bytes their number and a hash."""
    tag, raw = typed
    return [tag, raw.hex()] if len(raw) <= 24 else [tag, len(raw), blake2b(raw, digest_size=12).hexdigest()]


def make(folder: Path) -> None:
    """Write both stores and their expected answers into a folder that does not exist."""
    for name in (WRITTEN, COMPACTED):
        with tempfile.TemporaryDirectory() as root:
            path = Path(root) / "s"
            with ckptstore.open(path, segment_bytes=8192, mode="full") as store:
                fill(store)
                if name == COMPACTED:
                    store.compact()
                    put(store, LaneName("chat"), "after", "large", {"messages": ["after compaction"]})
            with ckptstore.open(path, segment_bytes=8192) as store:
                expected = answers(store)
            (folder / name / "segments").mkdir(parents=True)
            shutil.copy(path / "STORE", folder / name)
            for file in sorted((path / "segments").iterdir()):
                shutil.copy(file, folder / name / "segments")
            # One line a lane: the file is for machines, but a change in it should be seen where it is.
            lanes = ",\n".join(json.dumps(lane) for lane in expected.pop("lanes"))
            (folder / f"{name}.json").write_text(f'{json.dumps(expected)[:-1]},\n"lanes": [\n{lanes}\n]}}\n')


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    make(FOLDER)
