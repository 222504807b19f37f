"""Salvage: a new store out of what can still be read of a damaged one.

Record by record, in the order of each thread: a checkpoint with all of its values, a batch of writes, what a survivor kept of removed
ancestors, each only if it is whole. What was lost stays an error where somebody needs it: a lost parent is marked as removed, and where
writes that made a checkpoint are lost, its history says so. Copies of threads are written out, since what they shared may be damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from ckptstore.activity import Activity
from ckptstore.codec.compression import compress
from ckptstore.codec.names import name_hash, run_hash
from ckptstore.codec.records import (
    HEADER,
    LANE_SCOPE,
    THREAD_SCOPE,
    ChannelPast,
    Encoded,
    HistoryEdge,
    Kind,
    checkpoint_id,
    checkpoint_run,
    encode_head,
    encode_history,
    encode_meta,
    encode_tombstone,
    encode_value,
)
from ckptstore.errors import CkptStoreError, CorruptionError
from ckptstore.lineage.commits import Commits
from ckptstore.lineage.history import history_channels, past, read_history, read_writes
from ckptstore.lineage.listing import ns_name, thread_name
from ckptstore.lineage.ownership import Edge, LateRule
from ckptstore.lineage.reach import all_numbers
from ckptstore.lineage.reader import checked_record
from ckptstore.lineage.values import Values
from ckptstore.model import CheckpointRecord, Consumed, LaneName, Origin, Ref, Typed, WriteEntry, WritesRecord
from ckptstore.progress import Progress
from ckptstore.storage import Storage, View
from ckptstore.storage.catalog import CheckpointEntry, WritesEntry
from ckptstore.upkeep.checker import CheckedLog, Checker, Problem, count_checkpoints
from ckptstore.upkeep.removal import now_ms

MOST_LOST = 1000
"""Losses that a report names; the others are counted."""

_CACHE_BYTES = 64 << 20


class SalvageReport(NamedTuple):
    """What was saved, and what is lost."""

    threads: int
    namespaces: int
    checkpoints: int
    batches: int
    histories: int
    """Checkpoints with what they keep of removed ancestors."""
    damage: list[Problem]
    """What is wrong with the files."""
    lost: list[Problem]
    """What could not be saved, one each: a checkpoint, a batch of writes, a history; with thread and checkpoint where they are known."""
    more: int
    """Damage and losses beyond those that are named."""


class DamagedLog(CheckedLog, Protocol):
    """A log that was read as far as it goes."""

    def late(self) -> Mapping[bytes, int]:
        """Hashes of ids that thread deletions removed -> unix time in ms."""
        ...


def salvage(log: DamagedLog, target: Commits, storage: Storage, progress: Progress | None = None) -> SalvageReport:
    """Save what is whole.

    Args:
        target, storage: an empty store, and the storage below it.
        progress: told how many checkpoints of how many were looked at.
    """
    return _Salvage(log, target, storage, progress).run()


class _Lane(NamedTuple):
    """A namespace on its way."""

    source: int
    """Its number in the damaged store."""
    name: LaneName
    hashes: Mapping[int, bytes]
    placed: dict[int, int]
    """Number of a checkpoint that was saved -> its place in the new store."""
    batches: dict[Ref, Ref]
    """Where saved batches stand now."""
    gone: set[bytes]
    """Hashes of ids to be marked as removed at the next checkpoint: removed ancestors, which writes may name again later."""
    lost: set[bytes]
    """Hashes of ids to be marked as removed at the end, so that whoever walks to them is told of a loss."""


class _Salvage:
    """One salvage."""

    def __init__(self, log: DamagedLog, target: Commits, storage: Storage, progress: Progress | None) -> None:
        self._log = log
        self._view: View = log.best_view()
        self._progress = progress
        self._seen = 0
        self._total = 0 if progress is None else count_checkpoints(self._view)
        self._target = target
        self._storage = storage
        self._checker = Checker(self._view)
        self._values = Values(_CACHE_BYTES, lambda: self._activity)
        self._activity = Activity()
        self._names: set[str] = set()
        self._lost: list[Problem] = []
        self._more = 0
        self._threads = self._namespaces = self._checkpoints = self._batches = self._histories = 0

    def run(self) -> SalvageReport:
        damage = [self._checker.located(fault, self._log) for fault in self._log.faults]
        for thread in self._view.threads():
            self._thread(thread)
        late = self._log.late()
        for moment in sorted(set(late.values())):
            hashes = b"".join(hashed for hashed, when in late.items() if when == moment)
            self._store(encode_tombstone(THREAD_SCOPE, 0, moment, hashes, []))
        mode = self._view.meta("mode")
        if mode is not None:
            self._store(encode_meta({"mode": mode}))
        return SalvageReport(
            self._threads,
            self._namespaces,
            self._checkpoints,
            self._batches,
            self._histories,
            damage[:MOST_LOST],
            self._lost,
            self._more + max(0, len(damage) - MOST_LOST),
        )

    def _store(self, *records: Encoded) -> int:
        return self._storage.commit(lambda view: records)

    def _lose(self, lane: _Lane, text: str, checkpoint: str | None, lsn: int | None = None) -> None:
        if len(self._lost) >= MOST_LOST:
            self._more += 1
            return
        self._lost.append(Problem(text, lsn=lsn, thread=lane.name.thread, ns=lane.name.ns, checkpoint=checkpoint))

    # -- threads and lanes ----------------------------------------------------------------------------------------------

    def _thread(self, thread: int) -> None:
        view = self._view
        name = self._name(partial(thread_name, view, thread), f"found {thread & 0x7FFFFFFF}")
        while name in self._names:
            name += " again"
        self._names.add(name)
        lanes = []
        for number in view.lanes(thread):
            ns = self._name(partial(ns_name, view, number), f"found {number}")
            lanes.append(_Lane(number, LaneName(name, ns), view.id_hashes(number), {}, {}, set(), set()))
        steps: list[tuple[int, int, Callable[[], None]]] = []
        for lane in lanes:
            steps += self._steps(lane)
        # Writes stand before the checkpoint that they made, also where both are one commit.
        for _, _, step in sorted(steps, key=lambda item: item[:2]):
            step()
        for lane in lanes:
            self._finish(lane)
        saved = sum(bool(lane.placed or lane.batches) for lane in lanes)
        self._namespaces += saved
        self._threads += bool(saved)

    @staticmethod
    def _name(read: Callable[[], str], otherwise: str) -> str:
        try:
            return read()
        except CkptStoreError:
            return otherwise

    def _steps(self, lane: _Lane) -> list[tuple[int, int, Callable[[], None]]]:
        steps: list[tuple[int, int, Callable[[], None]]] = []
        for number in all_numbers(self._view, lane.source):
            entry = self._view.live_checkpoint(lane.source, number)
            if entry is not None:
                steps.append((entry.place, 1, partial(self._checkpoint, lane, entry)))
            for batch in self._view.writes(lane.source, number):
                steps.append((batch.ref.lsn, 0, partial(self._batch, lane, number, batch)))
        return steps

    def _finish(self, lane: _Lane) -> None:
        """Marks of what is gone, and the head."""
        head = self._view.head(lane.source)
        wanted = None if head is None else lane.placed.get(head.number)
        spent = self._spent(lane)

        def resolve(view: View) -> list[Encoded]:
            number = view.lane(*lane.name)
            if number is None:
                return []
            ids = dict(view.newest_first(number))
            chosen = ids.get(wanted) if wanted is not None else None
            entry = view.head(number) if chosen is None else view.live_checkpoint(number, chosen)
            id = None if entry is None else _id(view, entry)
            records = [] if id is None else [encode_head(number, id, 0)]
            gone = self._marks(lane, lane.gone | lane.lost)
            if gone or spent:
                records.append(encode_tombstone(LANE_SCOPE, number, now_ms(), gone, [], id, spent))
            return records

        if lane.placed or lane.batches:
            self._storage.commit(resolve)

    @staticmethod
    def _marks(lane: _Lane, hashes: set[bytes]) -> bytes:
        """Ids to be marked as removed. One that was stored again after its removal is there."""
        return b"".join(sorted(hashes - {lane.hashes[number] for number in lane.placed}))

    def _spent(self, lane: _Lane) -> list[tuple[str, list[Ref]]]:
        """Batches that made children which were removed: they make no other."""
        found = []
        for number in lane.placed:
            refs = [
                lane.batches[batch.ref]
                for batch in self._view.writes(lane.source, number)
                if batch.spent and batch.ref in lane.batches
            ]
            entry = self._view.live_checkpoint(lane.source, number)
            if refs and entry is not None:
                found.append((_id(self._view, entry), refs))
        return found

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def _checkpoint(self, lane: _Lane, entry: CheckpointEntry) -> None:
        self._seen += 1
        if self._progress is not None:
            self._progress(self._seen, self._total)
        try:
            record = checked_record(self._view, lane.source, entry)
            values = {
                name: self._values.typed(self._view, slot.value) for name, slot in record.table.items() if slot.value is not None
            }
        except Exception as error:  # whatever damaged bytes make of a decoder
            self._lose(lane, f"a checkpoint: {error}", self._id_of(lane, entry.number), entry.ref.lsn)
            if entry.number in lane.hashes:
                lane.lost.add(lane.hashes[entry.number])
            return
        kept = self._past(lane, entry, record)
        versions = {name: slot.version for name, slot in record.table.items() if slot.version is not None}
        metadata: Any = record.metadata
        place = self._target.put_checkpoint(
            lane.name,
            record.id,
            record.parent,
            skeleton=record.skeleton,
            metadata=metadata,
            versions=versions,
            values=values,
            changed=record.table.keys(),
            encode=_as_it_is,
            token=entry.token,
            source=entry.source,
            run=_run(self._view, entry, record.metadata),
            rule=lambda edge: self._consumed(lane, entry, edge),
        )
        lane.placed[entry.number] = place
        self._checkpoints += 1
        self._keep(lane, record, kept)

    def _consumed(self, lane: _Lane, entry: CheckpointEntry, edge: Edge) -> Consumed:
        """What made a checkpoint, with the references of the new store; batches that came after their child are appended later."""
        every, newest, first, gated = entry.consumed
        there = lane.batches
        return Consumed(
            tuple(there[ref] for ref in every if ref in there),
            tuple(there[ref] for ref in newest if ref in there),
            tuple(there[ref] for ref in first if ref in there),
            gated,
        )

    def _past(self, lane: _Lane, entry: CheckpointEntry, record: CheckpointRecord) -> Mapping[str, ChannelPast] | None:
        """What has to be written about a checkpoint's past; None where its parent says it."""
        view = self._view
        parent = view.checkpoint(lane.source, entry.parent) if entry.parent else None
        if entry.has_history:
            if entry.parent:
                lane.gone.add(lane.hashes[entry.parent])
            ref = view.history(lane.source, entry.number)
            try:
                if ref is None:
                    raise CorruptionError("the record is missing")
                return self._kept_past(lane, read_history(view, ref))
            except Exception as error:
                self._lose(lane, f"what it kept of removed ancestors: {error}", record.id, None if ref is None else ref.lsn)
                return self._lost_past(record, ())
        if entry.parent and (parent is None or parent.removed):
            if parent is not None or self._log.damaged:
                # Of a parent that is not there nobody can say whether it never was, or stood in what is lost.
                lane.gone.add(lane.hashes[entry.parent])
            return None
        if entry.parent and lane.hashes[entry.parent] in lane.lost:
            # What lies behind a lost parent may still be told without it.
            try:
                return self._kept_past(lane, past(view, lane.source, entry, history_channels(view, lane.source, entry)))
            except Exception as error:
                self._lose(lane, f"what lies behind it: {error}", record.id)
                return None
        missing = []
        for ref in entry.consumed.refs():
            try:
                self._whole(read_writes(view, ref))
            except Exception as error:
                missing.append(error)
        if missing:
            self._lose(lane, f"writes that made it: {missing[0]}", record.id)
            return self._lost_past(record, self._channels_of(lane, entry.parent))
        return None

    @staticmethod
    def _lost_past(record: CheckpointRecord, others: Sequence[str]) -> dict[str, ChannelPast] | None:
        """A history that says of each channel which has to be rebuilt that it is lost."""
        lost = {name for name in (*record.table, *others) if name not in record.table or record.table[name].value is None}
        return {name: ChannelPast(None, (), lost=True) for name in lost} or None

    def _channels_of(self, lane: _Lane, number: int) -> Sequence[str]:
        entry = self._view.live_checkpoint(lane.source, number)
        try:
            return () if entry is None else tuple(checked_record(self._view, lane.source, entry).table)
        except Exception:
            return ()

    def _kept_past(self, lane: _Lane, kept: Mapping[str, ChannelPast]) -> dict[str, ChannelPast]:
        """A history with references of the new store: values and batches of removed ancestors are stored for it."""
        whole: list[tuple[str, ChannelPast, Typed | None]] = []
        needed: dict[Ref, WritesRecord] = {}
        for channel, behind in kept.items():
            seed = None if behind.seed is None else self._values.typed(self._view, behind.seed)
            for edge in behind.edges:
                for ref in (*edge.every, *edge.newest, *edge.first):
                    if ref not in lane.batches and ref not in needed:
                        needed[ref] = self._whole(read_writes(self._view, ref))
            whole.append((channel, behind, seed))
        for ref in sorted(needed):
            lane.batches[ref] = self._removed_batch(lane, ref, needed[ref])
        seeds = self._seeds([seed for _, _, seed in whole if seed is not None])
        result = {}
        for channel, behind, seed in whole:
            edges = tuple(HistoryEdge(*(tuple(lane.batches[ref] for ref in group) for group in edge)) for edge in behind.edges)
            result[channel] = ChannelPast(None if seed is None else next(seeds), edges, behind.lost)
        return result

    def _seeds(self, seeds: Sequence[Typed]) -> Iterator[Ref]:
        """Store values of removed ancestors."""
        if not seeds:
            return iter(())
        lsn = self._store(*(encode_value(seed, crc32(seed[1]), *compress(seed[1])) for seed in seeds))
        return (Ref(lsn, ordinal) for ordinal in range(len(seeds)))

    def _removed_batch(self, lane: _Lane, ref: Ref, record: WritesRecord) -> Ref:
        """Store a batch that stood on a removed checkpoint; the mark of that one, which comes last, takes it out of sight."""
        number = self._view.number(lane.source, record.target)
        if number is not None and self._view.live_checkpoint(lane.source, number) is not None:
            # The id was stored again, and that one has nothing to do with this batch.
            record = record._replace(target=f"{record.target} (removed)")
        lane.gone.add(name_hash(record.target))
        _, _, token, origin, *_ = self._view.frame(ref.lsn).entry(ref, Kind.WRITES)[HEADER:]
        stored = self._put_writes(lane, record, token, Origin(origin), lambda children: None)
        if stored is None:
            raise CorruptionError("a batch without writes")
        return stored

    def _keep(self, lane: _Lane, record: CheckpointRecord, kept: Mapping[str, ChannelPast] | None) -> None:
        """Write down what a checkpoint keeps of the past, and that its removed ancestors are removed."""
        marks = self._marks(lane, lane.gone)
        lane.gone.clear()
        if kept is None and not marks:
            return

        def resolve(view: View) -> list[Encoded]:
            number = view.lane(*lane.name)
            assert number is not None
            records = [] if kept is None else [encode_history(number, record.id, kept)]
            if marks:
                records.append(encode_tombstone(LANE_SCOPE, number, now_ms(), marks, [], record.id))
            return records

        self._storage.commit(resolve)
        self._histories += kept is not None

    # -- writes -----------------------------------------------------------------------------------------------------------

    def _whole(self, record: WritesRecord) -> WritesRecord:
        """A batch with its values in place of references, all of them read."""
        return record._replace(
            writes=tuple(WriteEntry(idx, channel, self._values.typed(self._view, value)) for idx, channel, value in record.writes)
        )

    def _batch(self, lane: _Lane, number: int, batch: WritesEntry) -> None:
        try:
            record = self._whole(read_writes(self._view, batch.ref))
            if lane.hashes[number] in lane.lost:
                raise CorruptionError("the checkpoint is lost")
        except Exception as error:
            self._lose(lane, f"writes on it: {error}", self._id_of(lane, number), batch.ref.lsn)
            return
        stored = self._put_writes(lane, record, batch.token, batch.origin, self._made(lane, number, batch.ref))
        self._batches += 1
        if stored is not None:
            lane.batches[batch.ref] = stored

    def _put_writes(self, lane: _Lane, record: WritesRecord, token: bytes, origin: Origin, late: LateRule) -> Ref | None:
        """Store a batch; where it stands then."""
        lsn = self._target.put_writes(
            lane.name,
            record.target,
            list(record.writes),
            task_id=record.task_id,
            task_path=record.task_path,
            encode=_as_it_is,
            token=token,
            origin=origin,
            late=late,
        )
        with self._storage.view() as view:
            number = view.lane(*lane.name)
            known = None if number is None else view.number(number, record.target)
            found = [] if number is None or known is None else view.writes(number, known)
            return next((batch.ref for batch in found if batch.ref.lsn == lsn), None)

    def _made(self, lane: _Lane, number: int, batch: Ref) -> LateRule:
        """Which child a batch made, if that was there before it."""
        places = set()
        for child in self._view.children(lane.source, number):
            entry = self._view.live_checkpoint(lane.source, child)
            if entry is not None and child in lane.placed and batch in entry.consumed.refs():
                places.add(lane.placed[child])
        return lambda children: next((child for child in children if child.place in places), None)

    def _id_of(self, lane: _Lane, number: int) -> str | None:
        return self._checker.id_of(lane.source, number)


def _as_it_is(channel: str, typed: Typed) -> Typed:
    """Bytes that are serialized already."""
    return typed


def _id(view: View, entry: CheckpointEntry) -> str:
    return checkpoint_id(view.entry(entry.ref, Kind.CHECKPOINT))


def _run(view: View, entry: CheckpointEntry, metadata: dict[str, Any] | Typed) -> str | None:
    """The run that a checkpoint is to be deleted with. The log holds its hash; the metadata of LangGraph's checkpoints name it."""
    named = metadata.get("run_id") if isinstance(metadata, dict) else None
    known = checkpoint_run(view.entry(entry.ref, Kind.CHECKPOINT))
    return named if isinstance(named, str) and known == run_hash(named) else None
