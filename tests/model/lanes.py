"""What native threads mean, in plain Python: a tree of snapshots for each thread. Nothing of the engine's folding is used here."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ckptstore import Store, channels
from tests.native.calls import GIVEN_AGAIN, UNSET, Overwrite

State = dict[str, Any]

GONE = "gone"
"""Stands for a parent that was pruned."""

View = dict[str, tuple[int, list[tuple[Any, int, State]]]]
"""Thread -> (position of the head, (position of the parent, distance from the first, state) of each checkpoint, oldest first)."""


class Snapshot(NamedTuple):
    """A checkpoint, with its whole state."""

    parent: int | None
    step: int
    state: State


@dataclass
class Lane:
    """A thread's checkpoints, oldest first."""

    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    head: int = -1


class Model:
    """Threads by name. Checkpoints are named by numbers, never given twice; a copy has those of its source."""

    def __init__(self) -> None:
        self.threads: dict[str, Lane] = {}
        self._next = 0

    def step(self, thread: str, at: int | None, writes: dict[str, Any]) -> int:
        """Step from a checkpoint, or from nothing; the new one becomes the head."""
        lane = self.threads.setdefault(thread, Lane())
        before = Snapshot(None, -1, {}) if at is None else lane.snapshots[at]
        state = dict(before.state)
        for name, write in writes.items():
            value = written(name, state.get(name, UNSET), write)
            state.pop(name, None)
            if value is not UNSET:
                state[name] = value
        number, self._next = self._next, self._next + 1
        lane.snapshots[number] = Snapshot(at, before.step + 1, state)
        lane.head = number
        return number

    def prune(self, thread: str) -> int:
        """Keep the head; how many went."""
        lane = self.threads.get(thread)
        if lane is None:
            return 0
        removed = len(lane.snapshots) - 1
        lane.snapshots = {lane.head: lane.snapshots[lane.head]}
        return removed

    def copy(self, source: str, destination: str) -> int:
        """How many were copied."""
        lane = self.threads.get(source)
        if lane is None:
            return 0
        self.threads[destination] = Lane(dict(lane.snapshots), lane.head)
        return len(lane.snapshots)

    def delete(self, thread: str) -> bool:
        return self.threads.pop(thread, None) is not None

    def view(self) -> View:
        """Everything a reader sees."""
        found: View = {}
        for thread, lane in self.threads.items():
            position: dict[int | None, Any] = {number: at for at, number in enumerate(lane.snapshots)}
            position[None] = None
            seen = [(position.get(item.parent, GONE), item.step, copy.deepcopy(item.state)) for item in lane.snapshots.values()]
            found[thread] = (position[lane.head], seen)
        return found


def written(name: str, value: Any, write: Any) -> Any:
    """A channel's value after one write, by the name it has in the tests' schema."""
    if write is UNSET:
        return UNSET
    if isinstance(write, Overwrite):
        return write.value
    if name == "title":
        return write
    if value is UNSET:
        value = {"log": [], "facts": {}, "chat": [], "total": 0}[name]
    if name == "log":
        return value + write
    if name == "facts":
        return {**value, **write}
    if name == "total":
        return value + write
    items = list(value)
    for item in write:
        if "__remove__" in item:
            items = [known for known in items if known["id"] != item["__remove__"]]
        elif any(known["id"] == item["id"] for known in items):
            items = [item if known["id"] == item["id"] else known for known in items]
        else:
            items.append(item)
    return items


def remove(key: Any) -> Any:
    return channels.remove(key)


def seen(store: Store) -> View:
    """Everything a reader sees of a store, by fresh cursors."""
    found: View = {}
    for info in store.threads():
        ids = [item.id for item in store.list(info.thread, "")][::-1]
        position: dict[str | None, Any] = {id: at for at, id in enumerate(ids)}
        position[None] = None
        head = store.thread(info.thread, schema=GIVEN_AGAIN)
        shown = []
        for id in ids:
            cursor = head.at(id)
            checkpoint = cursor.checkpoint()
            assert checkpoint is not None
            shown.append((position.get(checkpoint.parent, GONE), checkpoint.step, cursor.state()))
        assert info.head == head.tip
        found[info.thread] = (position[head.tip], shown)
    return found
