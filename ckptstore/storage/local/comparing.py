"""Two indexes of one log compared: what each says of threads, checkpoints, writes and late calls.

An index that lived through compactions knows more than one that was built from what is left: numbers of ids that nothing names any
more, marks of removed ones, frames that were dead. So ids are compared by their hashes, never by their numbers, and of what is gone
only that which a reader can still meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ckptstore.model import Consumed, Ref
from ckptstore.storage.catalog import CheckpointEntry
from ckptstore.storage.local.inspection import HeldView


class Difference(NamedTuple):
    """Something that the index says otherwise than the log."""

    text: str
    thread: int | None = None
    """Number of the thread."""
    lane: int | None = None
    lsn: int | None = None
    """Of the record that is concerned."""


def differences(present: HeldView, fresh: HeldView, *, compacted: bool) -> Iterator[Difference]:
    """What `present` says otherwise than `fresh`, which was built from the log.

    Args:
        compacted: frames fell away; the log then still says of some of them that they are dead.
    """
    ours, theirs = set(present.threads()), set(fresh.threads())
    for thread in sorted(theirs - ours):
        yield Difference("the index does not know this thread", thread)
    for thread in sorted(ours - theirs):
        yield Difference("the index knows a thread that is not in the log", thread)
    for thread in sorted(ours & theirs):
        if present.thread_record(thread) != fresh.thread_record(thread):
            yield Difference("the index places this thread's record, or its name, elsewhere", thread)
        if present.kv.get(b"T" + fresh.thread_record(thread)[1]) != fresh.kv.get(b"T" + fresh.thread_record(thread)[1]):
            yield Difference("the index does not find this thread by its name", thread)
        lanes, known = set(present.lanes(thread)), set(fresh.lanes(thread))
        if lanes != known:
            yield Difference(f"the index gives this thread namespaces {sorted(lanes)}, the log {sorted(known)}", thread)
        for lane in sorted(lanes & known):
            for difference in _lane(present, fresh, lane):
                yield difference._replace(thread=thread, lane=lane)
    for prefix, what in ((b"m", "facts of the store"), (b"n", "numbers given so far")):
        if dict(present.kv.scan(prefix)) != dict(fresh.kv.scan(prefix)):
            yield Difference(f"the index has other {what} than the log")
    # A deletion whose id was stored again and removed for good leaves a mark in the log that the index dropped.
    late = dict(fresh.kv.scan(b"X"))
    if any(late.get(key) != value for key, value in present.kv.scan(b"X")):
        yield Difference("the index remembers other deleted ids than the log")
    yield from _runs(present, fresh)
    if not compacted and set(present.dead()) != set(fresh.dead()):
        yield Difference("the index counts other frames as dead than the log")


def locations(present: HeldView, fresh: HeldView) -> Iterator[Difference]:
    """Where the index says that frames stand, against where they stand; only of a store in which nobody moves them."""
    for key, value in fresh.kv.scan(b"F"):
        if present.kv.get(key) != value:
            yield Difference("the index does not say that this frame stands where it stands", lsn=int.from_bytes(key[1:], "big"))


class _Lane:
    """What one index says of one lane, ids in place of numbers."""

    def __init__(self, view: HeldView, lane: int) -> None:
        self._view = view
        self._lane = lane
        self.ids = view.id_hashes(lane)
        self.places = [(place, self.ids.get(number)) for place, number in view.newest_first(lane)]
        self.count = view.state(lane).checkpoints
        head = view.head(lane)
        self.head = None if head is None else self.ids.get(head.number)
        self.live: dict[bytes, CheckpointEntry] = {}
        self.writes: dict[bytes, list[Any]] = {}
        self.bereft: set[bytes] = set()
        """Removed ids that a live checkpoint names as its parent and has no history record for: a walk must know of the loss."""
        for number, hashed in self.ids.items():
            entry = view.live_checkpoint(lane, number)
            if entry is not None:
                self.live[hashed] = entry
                parent = view.checkpoint(lane, entry.parent) if entry.parent else None
                if parent is not None and parent.removed and not entry.has_history:
                    self.bereft.add(self.ids[entry.parent])
            batches = view.writes(lane, number)
            if batches:
                self.writes[hashed] = batches

    def facts(self, hashed: bytes) -> tuple[object, ...]:
        """A live checkpoint without numbers that the index gave."""
        entry = self.live[hashed]
        children = [self.ids.get(child) for child in self._view.children(self._lane, entry.number)]
        parent = self.ids.get(entry.parent) if entry.parent else None
        known = self._needed(entry)
        history = self._view.history(self._lane, entry.number)
        return (
            entry.ref,
            entry.place,
            parent,
            entry.mask,
            entry.source,
            entry.token,
            entry.has_history,
            history,
            known,
            children,
        )

    def _needed(self, entry: CheckpointEntry) -> Consumed:
        # What a checkpoint consumed says nothing any more once the walk ends at its history record.
        return Consumed() if entry.has_history else entry.consumed


def _lane(present: HeldView, fresh: HeldView, lane: int) -> Iterator[Difference]:
    if present.address(lane) != fresh.address(lane) or present.origin_threads(lane) != fresh.origin_threads(lane):
        yield Difference("the index knows another origin of this namespace than the log")
    ours, theirs = _Lane(present, lane), _Lane(fresh, lane)
    if ours.places != theirs.places or ours.count != theirs.count:
        yield Difference(f"the index lists {ours.count} checkpoints, the log holds {theirs.count}, or in another order")
    if ours.head != theirs.head:
        yield Difference("the index has another head than the log")
    if ours.bereft != theirs.bereft:
        yield Difference("the index knows of other removed parents than the log")
    for hashed in ours.live.keys() | theirs.live.keys():
        if hashed not in theirs.live:
            yield Difference("the index knows a checkpoint that is not in the log", lsn=ours.live[hashed].ref.lsn)
        elif hashed not in ours.live:
            yield Difference("the index does not know this checkpoint", lsn=theirs.live[hashed].ref.lsn)
        elif ours.facts(hashed) != theirs.facts(hashed):
            yield Difference("the index says something else of this checkpoint than the log", lsn=theirs.live[hashed].ref.lsn)
    for hashed in ours.writes.keys() | theirs.writes.keys():
        mine, true = ours.writes.get(hashed, []), theirs.writes.get(hashed, [])
        if mine != true:
            refs: list[Ref] = [batch.ref for batch in (true or mine)]
            yield Difference("the index knows other writes on a checkpoint than the log", lsn=refs[0].lsn)


def _runs(present: HeldView, fresh: HeldView) -> Iterator[Difference]:
    """Every run that the log names for a live checkpoint has to be known; those of earlier puts may be."""
    known = set(_live_runs(present))
    for run, lane, hashed in _live_runs(fresh):
        if (run, lane, hashed) not in known:
            yield Difference("the index does not know the run of a checkpoint", lane=lane)
            return


def _live_runs(view: HeldView) -> Iterator[tuple[bytes, int, bytes]]:
    hashes: dict[int, dict[int, bytes]] = {}
    for key, _ in view.kv.scan(b"V"):
        run, lane, number = key[1:9], int.from_bytes(key[9:13], "big"), int.from_bytes(key[13:17], "big")
        if lane not in hashes:
            hashes[lane] = view.id_hashes(lane)
        if view.live_checkpoint(lane, number) is not None:
            yield run, lane, hashes[lane][number]
