"""Random edit histories of a store, and a plain model of what each checkpoint must read as."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgpack

from ckptstore import LaneName, Store
from ckptstore.activity import Activity
from ckptstore.codec.records import Kind, ValueFacts, value_facts
from ckptstore.lineage.values import Values
from ckptstore.model import Ref
from ckptstore.storage import Frame, Storage, View

CHANNELS = ("a", "b", "deep")
DELTA = "log"
"""A channel without a value at most checkpoints: its writes are what there is of it."""


def encode(channel: str, value: Any) -> tuple[str, bytes]:
    return "msgpack", msgpack.packb(value)


class Edit(NamedTuple):
    """One call. Which checkpoint and which text it is about comes out of `seed`, so that any list of these is a program."""

    kind: str
    seed: int


class Kept(NamedTuple):
    """What the model knows of a checkpoint."""

    parent: str | None
    versions: dict[str, str]
    values: dict[str, Any]
    log: list[str]
    """What the delta channel holds: kept here, whether or not the checkpoint stores it."""


class History:
    """Runs edits on a store and on the model. The store may be exchanged for another that holds the same."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.kept: dict[LaneName, dict[str, Kept]] = {}
        self.heads: dict[LaneName, str] = {}
        self.writes: Counter[tuple[LaneName, str]] = Counter()
        self.pending: dict[tuple[LaneName, str], list[tuple[str, str, Any]]] = {}
        self._ids = 0

    # -- edits ----------------------------------------------------------------------------------------------------------

    def run(self, edit: Edit) -> None:
        rng = random.Random(f"{edit.kind} {edit.seed} {self._ids}")
        lane = LaneName("t", rng.choice(("", "", "", "sub:1")))
        lanes = self.kept.setdefault(lane, {})
        parent = self.heads.get(lane)
        if edit.kind == "fork" and lanes:
            parent = rng.choice(sorted(lanes))
        if edit.kind == "write" and parent is not None:
            self._write(lane, parent, rng)
        elif edit.kind == "put again" and parent is not None:
            self._put(lane, parent, lanes[parent].parent, rng, "any")
        elif edit.kind == "prune":
            self._prune()
        elif edit.kind == "new thread of the same name" and rng.random() < 0.3:
            self.store.delete("t")
            self.kept, self.heads, self.pending = {}, {}, {}
        else:
            self._ids += 1
            self._put(lane, f"c{self._ids:05}", parent, rng, edit.kind)

    def _put(self, lane: LaneName, id: str, parent: str | None, rng: random.Random, kind: str) -> None:
        lanes = self.kept[lane]
        before = lanes[parent] if parent in lanes else Kept(None, {}, {}, [])
        values = {channel: self._changed(before.values, channel, rng, kind) for channel in CHANNELS}
        changed = {channel for channel in CHANNELS if values[channel] != before.values.get(channel) or rng.random() < 0.1}
        log = list(before.log)
        for _, channel, value in self.pending.get((lane, parent or ""), ()):
            if channel == DELTA:
                log += value
        version = f"{id}.{rng.random()}"
        versions = {channel: version if channel in changed else before.versions[channel] for channel in CHANNELS}
        versions[DELTA] = version
        if kind in ("snapshot", "fork") and log:
            values[DELTA] = log
        self.store.put_checkpoint(
            lane,
            id,
            parent,
            skeleton={},
            metadata={},
            versions=versions,
            values=values,
            changed={*changed, DELTA},
            encode=encode,
        )
        if id not in lanes:
            self.heads[lane] = id
        lanes[id] = Kept(parent, versions, values, log)

    def _changed(self, before: dict[str, Any], channel: str, rng: random.Random, kind: str) -> Any:
        value = list(before.get(channel, ()))
        edit = rng.choice(("grow", "grow", "grow", "same", "middle", "shrink", "reorder", "replace", "move", "large", "blob"))
        if kind == "grow":
            edit = "grow"
        if edit == "grow" or (not value and edit != "same"):
            value += [text(rng) for _ in range(rng.randint(1, 3))]
        elif edit == "middle" and value:
            value[rng.randrange(len(value))] = text(rng)
        elif edit == "shrink":
            value = value[: rng.randint(0, len(value))]
        elif edit == "reorder":
            rng.shuffle(value)
        elif edit == "replace":
            value = [text(rng) for _ in range(rng.randint(1, 12))]
        elif edit == "move":
            # What another channel holds, in a container around it.
            value = [list(before.get(rng.choice(CHANNELS), ()))]
        elif edit == "large":
            value = [text(random.Random(rng.randrange(4)), 6000)]
        elif edit == "blob":
            value = [*value[:3], random.Random(rng.randrange(3)).randbytes(3000)]
        while len(encode(channel, value)[1]) > 40_000:
            value = value[len(value) // 2 + 1 :]
        return value

    def _write(self, lane: LaneName, target: str, rng: random.Random) -> None:
        self._ids += 1
        task = f"task {self._ids:05}"
        channel = rng.choice((DELTA, DELTA, "a"))
        value = [text(rng, rng.choice((20, 200, 2000))) for _ in range(rng.randint(1, 2))]
        if rng.random() < 0.2:
            # A large value that stands in a channel already, or will.
            value = [text(random.Random(rng.randrange(4)), 6000)]
        self.store.put_writes(lane, target, [(0, channel, value)], task_id=task, encode=encode)
        self.pending.setdefault((lane, target), []).append((task, channel, value))

    def _prune(self) -> None:
        self.store.prune("t")
        for lane, head in self.heads.items():
            self.kept[lane] = {head: self.kept[lane][head]}
            for at in [at for at in self.pending if at[0] == lane and at[1] != head]:
                del self.pending[at]

    # -- the oracle -----------------------------------------------------------------------------------------------------

    def check(self, store: Store | None = None) -> None:
        """Every version of every branch reads as the model says."""
        store = store or self.store
        for lane, lanes in self.kept.items():
            assert {item.id for item in store.list(lane.thread, lane.ns)} == lanes.keys()
            for id, kept in lanes.items():
                found = store.get(lane, id)
                assert found is not None
                assert {channel: msgpack.unpackb(raw) for channel, (_, raw) in found.values.items()} == kept.values
                pending = [(write.task_id, write.channel, msgpack.unpackb(write.value[1])) for write in found.writes]
                assert pending == self.pending.get((lane, id), [])


def text(rng: random.Random, size: int = 90) -> str:
    words = (rng.choice(("red", "green", "blue", "black", "white")) + str(rng.randrange(500)) for _ in range(size // 6))
    return " ".join(words)


# -- frames ----------------------------------------------------------------------------------------------------------------


class Counting:
    """A view that notes which frames are asked for."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.touched: set[int] = set()

    def frame(self, lsn: int) -> Frame:
        self.touched.add(lsn)
        return self._view.frame(lsn)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


class Read(NamedTuple):
    """One value, read with nothing cached."""

    ref: Ref
    facts: ValueFacts
    touched: set[int]


def read_every_value(storage: Storage) -> Iterator[Read]:
    """All VALUE records of a log, dead ones included."""
    for lsn in range(1, storage.stats().last_lsn + 1):
        with storage.view() as view:
            for ordinal, entry in enumerate(view.entries(lsn)):
                if entry[0] == Kind.VALUE:
                    counting: Any = Counting(view)
                    Values(0, Activity).raw(counting, Ref(lsn, ordinal))
                    yield Read(Ref(lsn, ordinal), value_facts(lsn, entry), counting.touched)


@contextmanager
def closing(store: Store) -> Iterator[Store]:
    try:
        yield store
    finally:
        store.close()
