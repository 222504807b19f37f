"""Short ways to call a `Store` and to compare what it answers: values are JSON, and nothing of the log's numbers is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ckptstore
from ckptstore import ChannelHistory, Consumed, LaneName, Origin, Source, Store, StoredCheckpoint
from ckptstore.codec.records import pack
from ckptstore.errors import CkptStoreError
from ckptstore.lineage.ownership import Edge, by_token
from ckptstore.storage.catalog import CheckpointEntry

LANE = LaneName("t")
SUB = LaneName("t", "sub:1")
OTHER = LaneName("u")


def as_json(channel: str, value: Any) -> tuple[str, bytes]:
    """The serializer of these tests."""
    return "json", json.dumps(value).encode()


def never(channel: str, value: Any) -> tuple[str, bytes]:
    """A serializer that must not be asked."""
    raise AssertionError(f"channel {channel!r} was serialized again")


def of_token(token: bytes, source: Source = Source.LOOP) -> Callable[[Edge], Consumed]:
    """The ownership rule of a writer with a token."""
    return lambda edge: by_token(edge, token, source)


def late_of(token: bytes) -> Callable[[Sequence[CheckpointEntry]], CheckpointEntry | None]:
    """The rule for a batch that may come after the child it made: the newest child of the same writer."""
    return lambda children: next((child for child in reversed(children) if token and child.token == token), None)


def put(store: Store, id: str, parent: str | None = None, values: dict[str, Any] | None = None, **more: Any) -> int:
    """Store a checkpoint. Every channel with a value has a version of this id's own unless `versions` says otherwise."""
    values = values or {}
    lane = more.pop("lane", LANE)
    versions = more.pop("versions", {channel: f"{id}.{channel}" for channel in values})
    given: dict[str, Any] = {
        "skeleton": {"v": 4},
        "metadata": {"id": id},
        "versions": versions,
        "values": values,
        "changed": versions,
        "encode": as_json,
        **more,
    }
    return store.put_checkpoint(lane, id, parent, **given)


def write(store: Store, target: str, *values: Any, task: str = "k", channel: str = "m", **more: Any) -> int | None:
    """Store one batch of writes of one channel."""
    lane = more.pop("lane", LANE)
    entries = [(idx, channel, value) for idx, value in enumerate(values)]
    given: dict[str, Any] = {"task_id": task, "encode": as_json, **more}
    return store.put_writes(lane, target, entries, **given)


def ids(store: Store, thread: str | None = "t", ns: str | None = "", id: str | None = None, **more: Any) -> list[str]:
    """Ids in list order."""
    return [item.id for item in store.list(thread, ns, id, **more)]


def values(store: Store, id: str | None = None, lane: LaneName = LANE) -> dict[str, Any]:
    """Decoded channel values of a stored checkpoint."""
    stored = store.get(lane, id)
    assert stored is not None
    return {channel: json.loads(raw) for channel, (_, raw) in stored.values.items()}


def pending(store: Store, id: str | None = None, lane: LaneName = LANE) -> list[tuple[str, str, Any]]:
    """Pending writes of a stored checkpoint."""
    stored = store.get(lane, id)
    assert stored is not None
    return [(task, channel, json.loads(raw)) for task, channel, (_, raw) in stored.writes]


def history(store: Store, id: str | None, channel: str = "m", lane: LaneName = LANE) -> tuple[Any, list[Any]]:
    """(seed or None, values of the writes) of a channel's past."""
    return _decoded(store.history(lane, id, [channel])[channel])


def _decoded(found: ChannelHistory) -> tuple[Any, list[Any]]:
    seed = None if found.seed is None else json.loads(found.seed[1])
    return seed, [json.loads(write.value[1]) for write in found.writes]


def _shown(store: Store, stored: StoredCheckpoint, channels: Sequence[str]) -> Any:
    try:
        pasts: Any = {
            channel: (past.seed, [(item.task_id, item.value) for item in past.writes])
            for channel, past in store.history(stored.lane, stored.id, channels).items()
        }
    except CkptStoreError as error:
        pasts = type(error).__name__
    return stored, pasts


def everything(store: Store, channels: Sequence[str] = ("m", "n")) -> Any:
    """Every answer a store can give: threads, all lists, all checkpoints, heads, and the past of each."""
    threads = list(store.threads())
    lists: dict[str | None, list[StoredCheckpoint]] = {None: list(store.list())}
    for info in threads:
        lists[info.thread] = list(store.list(info.thread))
    lanes = sorted({item.lane for item in lists[None]})
    return {
        "threads": threads,
        "lists": {thread: [(item.lane, item.id) for item in items] for thread, items in lists.items()},
        "lanes": {lane: [item.id for item in store.list(*lane)] for lane in lanes},
        "heads": {lane: store.get(lane) for lane in lanes},
        "checkpoints": [_shown(store, item, channels) for item in lists[None]],
        "by id": [store.get(item.lane, item.id) == item for item in lists[None]],
    }


def logical_view(store: Store) -> dict[bytes, bytes]:
    """The index as a map, without where frames stand."""
    with store._storage.view() as view:
        return view.logical_view()


def written_bytes(store: Store) -> int:
    """Bytes of all directories and bodies in the log; files may be longer than that."""
    last = store.stats().last_lsn
    with store._storage.view() as view:
        found = [view.frame(lsn).entries for lsn in range(1, last + 1)]
    return sum(len(pack(entries)) + sum(entry[2] for entry in entries) for entries in found)


def dead(store: Store) -> set[int]:
    """LSNs of frames that hold nothing live."""
    with store._storage.view() as view:
        return set(view.dead())


def open_at(path: Path | str, **options: Any) -> Store:
    """Open a store, without an fsync a call: these tests are not about power cuts."""
    return ckptstore.open(path, **{"durability": "process", **options})


__all__ = ["LANE", "OTHER", "SUB", "Origin"]
