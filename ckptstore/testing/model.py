"""What a checkpoint saver must answer, in plain Python: a specification that can be run.

Lanes are trees of checkpoints. Nothing here is encoded, cached or decided by time: which batches of writes made a checkpoint is told
by the program, which played the run that made it (`Put.made_by`, `PutWrites.late_for`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ckptstore.testing.calls import (
    SPECIAL,
    Compact,
    Copy,
    Delete,
    DeleteForRuns,
    Found,
    Get,
    History,
    Listing,
    Origin,
    Past,
    Prune,
    Put,
    PutWrites,
    Refused,
    Reopen,
    SetHead,
)


class Write(NamedTuple):
    idx: int
    channel: str
    value: Any


class Batch(NamedTuple):
    """One call of `put_writes`."""

    number: int
    task: str
    path: str
    writes: tuple[Write, ...]
    origin: Origin

    @property
    def regular(self) -> bool:
        return any(write.idx >= 0 for write in self.writes)


def batch_of(call: PutWrites) -> Batch:
    writes = (Write(SPECIAL.get(channel, idx), channel, copy.deepcopy(value)) for idx, (channel, value) in enumerate(call.writes))
    return Batch(call.number, call.task, call.path, tuple(writes), call.origin)


@dataclass
class Checkpoint:
    """A stored checkpoint, and what made it."""

    put: Put
    made_by: list[Batch]
    taken: list[Batch]
    kept: dict[str, Past | None] | None = None
    """Once its parent was removed: what lay behind it at that moment, of each channel; None where that was lost before."""


@dataclass
class Lane:
    """One namespace of a thread."""

    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    """By id, in the order of their places: of the first put of each."""
    batches: dict[str, list[Batch]] = field(default_factory=dict)
    """By the id they stand on, stored or not, in the order they came."""
    head: str | None = None
    removed: set[str] = field(default_factory=set)
    """Ids that prune and delete_for_runs took, and nobody stored since."""
    spent: set[int] = field(default_factory=set)
    """Numbers of the batches that made a checkpoint, whether it still is there or not."""

    def children(self, id: str) -> list[Checkpoint]:
        return [child for child in self.checkpoints.values() if child.put.parent == id]


class Model:
    """The state of a store. Every method takes a call and returns what it has to answer, or raises `Refused`."""

    def __init__(self) -> None:
        self.threads: dict[str, dict[str, Lane]] = {}
        self.late: set[tuple[str, str, str]] = set()
        """(thread, namespace, id) that a deletion of the thread took, and nobody stored since."""

    def lane(self, thread: str, ns: str) -> Lane | None:
        return self.threads.get(thread, {}).get(ns)

    def checkpoint(self, thread: str, ns: str, id: str | None) -> Checkpoint | None:
        lane = self.lane(thread, ns)
        wanted = lane.head if lane is not None and id is None else id
        return None if lane is None or wanted is None else lane.checkpoints.get(wanted)

    def _refuse_late(self, thread: str, ns: str, id: str) -> None:
        if (thread, ns, id) in self.late and self.checkpoint(thread, ns, id) is None:
            raise Refused("late")

    # -- writing --------------------------------------------------------------------------------------------------------

    def put(self, call: Put) -> None:
        """A new id becomes the head. An id that is there keeps its place and its writes, and the head stays."""
        if call.parent is not None:
            self._refuse_late(call.thread, call.ns, call.parent)
        lane = self.threads.setdefault(call.thread, {}).setdefault(call.ns, Lane())
        standing = {batch.number: batch for batch in lane.batches.get(call.parent or "", ())}
        new = Checkpoint(
            copy.deepcopy(call), [standing[number] for number in call.made_by], [standing[number] for number in call.taken]
        )
        lane.spent.update(call.made_by, call.taken)
        old = lane.checkpoints.get(call.id)
        if old is None:
            lane.head = call.id
            lane.removed.discard(call.id)
            self.late.discard((call.thread, call.ns, call.id))
            twin = lane.checkpoints.get(call.twin_of or "")
            if twin is not None and call.parent not in lane.checkpoints:
                new.kept = copy.deepcopy(twin.kept)
        elif old.put.parent == call.parent:
            # It was made by what made it first.
            new.made_by, new.taken, new.kept = old.made_by, old.taken, old.kept
        lane.checkpoints[call.id] = new

    def put_writes(self, call: PutWrites) -> None:
        """Never refused for want of a checkpoint, nothing is overwritten, and an empty batch is no call."""
        if not call.writes:
            return
        self._refuse_late(call.thread, call.ns, call.target)
        lane = self.threads.setdefault(call.thread, {}).setdefault(call.ns, Lane())
        batch = batch_of(call)
        lane.batches.setdefault(call.target, []).append(batch)
        if call.late_for is not None:
            lane.checkpoints[call.late_for].made_by.append(batch)
            lane.spent.add(batch.number)

    def set_head(self, call: SetHead) -> None:
        if self.checkpoint(call.thread, call.ns, call.id) is None:
            raise Refused("unknown")
        self.threads[call.thread][call.ns].head = call.id

    # -- reading --------------------------------------------------------------------------------------------------------

    def get(self, call: Get) -> Found | None:
        found = self.checkpoint(call.thread, call.ns, call.id)
        return None if found is None else self._found(call.thread, call.ns, found)

    def _found(self, thread: str, ns: str, checkpoint: Checkpoint) -> Found:
        put = checkpoint.put
        writes = pending(self.threads[thread][ns].batches.get(put.id, ()))
        return copy.deepcopy(Found(thread, ns, put.id, put.parent, put.versions, put.values, put.metadata, put.seen, writes))

    def history(self, call: History) -> Mapping[str, Past]:
        """An id that is not there has an empty past; one that was lost is an error."""
        start = self.checkpoint(call.thread, call.ns, call.id)
        if start is None:
            return {channel: Past() for channel in call.channels}
        lane = self.threads[call.thread][call.ns]
        return {channel: self.past(lane, start, channel) for channel in call.channels}

    def past(self, lane: Lane, start: Checkpoint, channel: str) -> Past:
        """The nearest value behind a checkpoint, and the writes that made the checkpoints since, oldest first.

        The walk goes from parent to parent. It ends at a value, at a root, at an id that was never stored, and where a loop closes.
        """
        later: tuple[tuple[str, Any], ...] = ()
        at, met = start, {start.put.id}
        while True:
            if at.kept is not None:
                kept = at.kept.get(channel, Past())
                # What was behind a value that is there is not kept.
                if kept is None or (at is start and channel in at.put.values):
                    raise Refused("lost")
                return Past(kept.seed, kept.writes + later)
            if at.put.parent is None or at.put.parent in met:
                return Past((), later)
            met.add(at.put.parent)
            if at.put.parent in lane.removed:
                raise Refused("lost")
            parent = lane.checkpoints.get(at.put.parent)
            if parent is None:
                return Past((), later)
            later = tuple(used(at, channel)) + later
            if channel in parent.put.values:
                return Past((parent.put.values[channel],), later)
            at = parent

    def list(self, call: Listing) -> Sequence[Found]:
        lanes = [
            (thread, ns, lane)
            for thread, namespaces in self.threads.items()
            for ns, lane in namespaces.items()
            if call.thread in (None, thread) and call.ns in (None, ns)
        ]
        found: list[Found] = []
        for thread, ns, lane in lanes:
            places = list(lane.checkpoints)
            for place in reversed(range(len(places))):
                item = self._found(thread, ns, lane.checkpoints[places[place]])
                if call.before in lane.checkpoints:
                    inside = place < places.index(call.before)
                else:
                    inside = call.before is None or item.id < call.before
                if (
                    inside
                    and call.id in (None, item.id)
                    and all(item.metadata.get(key) == wanted for key, wanted in call.filter.items())
                ):
                    found.append(item)
        if len(lanes) > 1:
            found.sort(key=lambda item: item.id, reverse=True)
        return found if call.limit is None else found[: max(call.limit, 0)]

    # -- removing -------------------------------------------------------------------------------------------------------

    def prune(self, call: Prune) -> int:
        lanes = self.threads.get(call.thread, {}).values()
        return sum(self._remove(lane, lane.checkpoints.keys() - {lane.head}) for lane in lanes)

    def delete_for_runs(self, call: DeleteForRuns) -> int:
        lanes = [lane for namespaces in self.threads.values() for lane in namespaces.values()]
        return sum(
            self._remove(lane, {id for id, found in lane.checkpoints.items() if found.put.metadata.get("run_id") in call.runs})
            for lane in lanes
        )

    def _remove(self, lane: Lane, gone: Iterable[str]) -> int:
        """Take checkpoints and their writes away. What stays reads as before: each that loses its parent keeps what lay behind it."""
        gone = set(gone)
        channels = {channel for found in lane.checkpoints.values() for channel in found.put.versions}
        orphaned = [
            found for id, found in lane.checkpoints.items() if id not in gone and found.put.parent in gone and found.kept is None
        ]
        kept = [{channel: self._past_or_lost(lane, found, channel) for channel in channels} for found in orphaned]
        for found, past in zip(orphaned, kept, strict=True):
            found.kept = past
        for id in gone:
            del lane.checkpoints[id]
            lane.batches.pop(id, None)
        lane.removed |= gone
        if lane.head in gone:
            lane.head = next(reversed(lane.checkpoints), None)
        return len(gone)

    def _past_or_lost(self, lane: Lane, checkpoint: Checkpoint, channel: str) -> Past | None:
        try:
            return self.past(lane, checkpoint, channel)
        except Refused:
            return None

    def delete(self, call: Delete) -> bool:
        """All of a thread. Late calls that name what was in it are refused."""
        lanes = self.threads.pop(call.thread, None)
        for ns, lane in (lanes or {}).items():
            self.late |= {(call.thread, ns, id) for id in (*lane.checkpoints, *lane.batches, *lane.removed)}
        return lanes is not None

    def copy(self, call: Copy) -> int:
        """Everything, under another name; both go on apart."""
        source = self.threads.get(call.thread)
        if source is None:
            return 0
        if call.to in self.threads:
            raise Refused("exists")
        self.threads[call.to] = copied = copy.deepcopy(source)
        for lane in copied.values():
            for checkpoint in lane.checkpoints.values():
                checkpoint.put = checkpoint.put._replace(thread=call.to)
        self.late -= {(call.to, ns, id) for ns, lane in source.items() for id in lane.checkpoints}
        return sum(len(lane.checkpoints) for lane in source.values())

    # -- what changes no answer -----------------------------------------------------------------------------------------

    def compact(self, call: Compact) -> None:
        pass

    def reopen(self, call: Reopen) -> None:
        pass


def pending(batches: Iterable[Batch]) -> list[tuple[str, str, Any]]:
    """Writes of a checkpoint as readers see them: of a (task, idx) the first counts, of a special channel the last."""
    chosen: dict[tuple[str, int], tuple[str, Write]] = {}
    for batch in batches:
        for write in batch.writes:
            if write.idx < 0 or (batch.task, write.idx) not in chosen:
                chosen[batch.task, write.idx] = (batch.path, write)
    in_order = sorted(chosen.items(), key=lambda item: (item[1][0], *item[0]))
    return [(task, write.channel, write.value) for (task, _), (_, write) in in_order]


def used(child: Checkpoint, channel: str) -> list[tuple[str, Any]]:
    """(task, value) of the writes of a channel that made a checkpoint out of its parent, as they were applied: by path, task, idx."""
    found: list[tuple[tuple[str, str, int, int], Any]] = []
    for order, batch in enumerate(child.made_by):
        found += [((batch.path, batch.task, order, write.idx), write) for write in batch.writes]
    first: dict[tuple[str, int], tuple[tuple[str, str, int, int], Any]] = {}
    for batch in child.taken:
        for write in batch.writes:
            first.setdefault((batch.task, write.idx), ((batch.path, batch.task, 0, write.idx), write))
    found += first.values()
    found.sort(key=lambda item: item[0])
    return [(key[1], copy.deepcopy(write.value)) for key, write in found if write.channel == channel and write.idx >= 0]
