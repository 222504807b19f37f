"""`Store`: storage, codec and lineage composed. Thread-safe; every method may be called from any thread and any process.

Values travel as the caller's objects up to `encode`, which is called only for channels that must be written, and as typed bytes
from there on. This file decides which bytes of a checkpoint are written at all; what a commit decides from what is already there is
decided in the `resolve` functions, under the commit lock.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from types import TracebackType
from typing import Any, NamedTuple, Self
from zlib import crc32

from ckptstore.codec.names import channel_bit, late_hash, name_hash, task_hash
from ckptstore.codec.records import (
    HEADER,
    LANE_SCOPE,
    THREAD_SCOPE,
    ChannelPast,
    Encoded,
    Kind,
    checkpoint_id,
    decode_name,
    encode_checkpoint,
    encode_copy,
    encode_head,
    encode_history,
    encode_lane,
    encode_meta,
    encode_thread,
    encode_tombstone,
    encode_value,
    encode_writes,
    pack_plain,
    pack_slots,
    prepare_checkpoint,
    prepare_writes,
    value_facts,
)
from ckptstore.errors import (
    CheckpointLineageIntegrityError,
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    ModeMismatchError,
    ThreadDeletedError,
    ThreadExistsError,
    ValueTooLargeError,
)
from ckptstore.lineage import ownership
from ckptstore.lineage.history import edge_writes, history_channels, past, read_history, read_writes
from ckptstore.lineage.ownership import LateRule, Rule, read_record
from ckptstore.lineage.reach import all_numbers, frames_of, reachable, relatives
from ckptstore.model import (
    ChannelHistory,
    CheckpointRecord,
    Consumed,
    LaneName,
    Origin,
    PendingWrite,
    Ref,
    Slot,
    Source,
    StoredCheckpoint,
    ThreadInfo,
    Typed,
    Version,
    WriteEntry,
    WritesRecord,
)
from ckptstore.options import StoreOptions, checked_options
from ckptstore.storage import Storage, StorageStats, View
from ckptstore.storage.catalog import CheckpointEntry
from ckptstore.storage.local.engine import LocalStorage
from ckptstore.storage.memory import MemoryStorage

Encode = Callable[[str, Any], Typed]
"""Serialize the value of a channel."""

# A value this small stands in the checkpoint's table itself: a reference and a directory entry would cost as much.
_INLINE_VALUE = 32
# A write is read once or twice and rarely shared, so it stands in its batch, unless it is large enough to be shared with a channel.
_INLINE_WRITE = 1024
_TABLES = 512


class _Moved(Exception):
    """Internal: what was read before the commit lock changed; prepare again."""


class _Known(NamedTuple):
    """What a put knows before it takes the lock."""

    lane: int | None
    parent: CheckpointEntry | None
    parent_table: Mapping[str, Slot]
    own: CheckpointEntry | None
    others: list[Mapping[str, Slot]]
    """Tables that may hold a value already stored at this version: the id's own earlier one, and those of siblings."""


class Store:
    """A checkpoint store. Use `ckptstore.open`."""

    def __init__(self, storage: Storage, options: StoreOptions) -> None:
        self._storage = storage
        self._options = options
        self._tables: OrderedDict[Ref, Mapping[str, Slot]] = OrderedDict()
        self._tables_lock = threading.Lock()
        self._agree_on_mode()

    # -- life cycle -----------------------------------------------------------------------------------------------------

    @property
    def options(self) -> StoreOptions:
        return self._options

    def close(self) -> None:
        """Release the store; idempotent. Everything acknowledged stays."""
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def sync(self) -> None:
        """Make everything committed so far durable, whatever the durability level."""
        self._storage.sync()

    def wait_durable(self, lsn: int) -> None:
        """Return when `lsn` survives a power loss."""
        self._storage.wait_durable(lsn)

    def stats(self) -> StorageStats:
        """Sizes and log position."""
        return self._storage.stats()

    def _agree_on_mode(self) -> None:
        wanted = self._options.mode
        if wanted is None:
            return
        with self._storage.view() as view:
            kept = view.meta("mode")
        if kept is None and not self._options.read_only:

            def resolve(view: View) -> list[Encoded]:
                nonlocal kept
                kept = view.meta("mode")
                return [] if kept is not None else [encode_meta({"mode": wanted})]

            self._storage.commit(resolve)
        if kept is not None and kept != wanted:
            raise ModeMismatchError(
                f"the store keeps channel mode {kept!r}, it was opened with mode={wanted!r}: open it with mode={kept!r} or mode=None"
            )

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def put_checkpoint(
        self,
        lane: LaneName,
        id: str,
        parent: str | None,
        *,
        skeleton: dict[str, Any],
        metadata: dict[str, Any],
        versions: Mapping[str, Version],
        values: Mapping[str, Any],
        changed: Collection[str],
        encode: Encode,
        token: bytes = b"",
        source: Source = Source.LOOP,
        rule: Rule = ownership.native,
        run: str | None = None,
        expect_head: bool = False,
    ) -> int:
        """Store one checkpoint and the values it does not share with its parent, in one commit.

        Args:
            parent: id of the parent in this lane; it need not be stored.
            skeleton: what the checkpoint holds besides values and versions.
            versions: version of each channel; a channel without a value is rebuilt from its lineage.
            values: value of each channel that has one.
            changed: channels whose version moved. A channel that is not in it and has its parent's version is not serialized.
            rule: decides under the commit lock which writes on the parent made this checkpoint.
            run: id of the run, for `delete_for_runs`.
            expect_head: refuse unless `parent` is the lane's head (None: unless the lane is empty).

        Returns:
            The LSN of the commit.

        Raises:
            ThreadDeletedError: the parent was removed by a thread deletion and not stored since.
            ConflictError: `expect_head`, and another checkpoint is the head.
            ValueTooLargeError, SerializationError: nothing was stored.
            what `Storage.commit` raises.
        """
        while True:
            known = self._known(lane, id, parent, changed)
            table, fresh = self._table(lane, versions, values, changed, encode, known)
            packed, refs = pack_slots(table)
            try:
                prepared = prepare_checkpoint(skeleton, metadata, packed)
            except (TypeError, ValueError, OverflowError):
                # Objects in the skeleton (pending sends) or the metadata: those go through the caller's serializer.
                prepared = prepare_checkpoint(
                    _plain_or_typed("checkpoint", skeleton, encode), _plain_or_typed("metadata", metadata, encode), packed
                )
            mask = _mask(channel for channel, slot in table.items() if slot.value is not None)
            unchanged = _mask(
                channel
                for channel, version in versions.items()
                if channel in known.parent_table and known.parent_table[channel].version == version
            )
            placed = Ref(0, 0)

            def resolve(view: View) -> list[Encoded]:
                nonlocal placed
                records = list(fresh)
                number = self._lane(view, lane, records)
                parent_entry, own = self._entries(view, known.lane, id, parent)
                if (parent_entry, own) != (known.parent, known.own):
                    raise _Moved
                if parent is not None and parent_entry is None:
                    self._refuse_late(view, lane, parent)
                if expect_head:
                    self._refuse_conflict(view, lane, number, parent, id)
                consumed, history = Consumed(), None
                parent_number = view.number(number, parent) if parent is not None else None
                if parent is not None and parent_number:
                    edge = ownership.edge(view, number, parent_number, parent, child=own.number if own else None)
                    consumed = rule(edge)
                    if consumed.first:
                        masks = {batch.ref: batch.mask for batch in edge.candidates}
                        doubtful = any(masks.get(ref, unchanged) & unchanged for ref in consumed.first)
                        consumed = consumed._replace(gated=doubtful)
                    if parent_entry is None and own is None:
                        history = self._twin_history(view, number, edge, versions)
                placed = Ref(0, len(records))
                records.append(
                    encode_checkpoint(
                        prepared,
                        lane=number,
                        id=id,
                        parent=parent,
                        token=token,
                        source=source,
                        mask=mask,
                        consumed=consumed,
                        run=None if run is None else _run_hash(run),
                        refs=refs,
                    )
                )
                if history is not None:
                    records.append(encode_history(number, id, history))
                return records

            try:
                lsn = self._storage.commit(resolve)
            except _Moved:
                continue
            self._remember(Ref(lsn, placed.ordinal), table)
            return lsn

    def _known(self, lane: LaneName, id: str, parent: str | None, changed: Collection[str]) -> _Known:
        with self._storage.view() as view:
            number = view.lane(lane.thread, lane.ns)
            parent_entry, own = self._entries(view, number, id, parent)
            parent_table = self._table_of(view, parent_entry) if parent_entry is not None else {}
            others: list[Mapping[str, Slot]] = []
            if own is not None:
                others.append(self._table_of(view, own))
            if number is not None and parent_entry is not None and not changed:
                # Nothing changed although the parent differs: a copy of one of the parent's children.
                for child in view.children(number, parent_entry.number):
                    entry = view.live_checkpoint(number, child)
                    if entry is not None:
                        others.append(self._table_of(view, entry))
            return _Known(number, parent_entry, parent_table, own, others)

    @staticmethod
    def _entries(
        view: View, lane: int | None, id: str, parent: str | None
    ) -> tuple[CheckpointEntry | None, CheckpointEntry | None]:
        """(live entry of the parent, live entry of the id itself)."""
        if lane is None:
            return None, None
        entries = []
        for name in (parent, id):
            number = None if name is None else view.number(lane, name)
            entries.append(None if number is None else view.live_checkpoint(lane, number))
        return entries[0], entries[1]

    def _table(
        self,
        lane: LaneName,
        versions: Mapping[str, Version],
        values: Mapping[str, Any],
        changed: Collection[str],
        encode: Encode,
        known: _Known,
    ) -> tuple[dict[str, Slot], list[Encoded]]:
        """The channel table, and VALUE records for what is not stored yet; their ordinals are their positions."""
        table: dict[str, Slot] = {}
        fresh: list[Encoded] = []
        for channel, version in versions.items():
            if channel not in values:
                table[channel] = Slot(version, None)
                continue
            before = known.parent_table.get(channel)
            if channel not in changed and before is not None and before.value is not None and before.version == version:
                table[channel] = Slot(version, before.value)
            else:
                table[channel] = Slot(version, self._value(lane, channel, encode(channel, values[channel]), known, fresh))
        for channel, value in values.items():
            if channel not in versions:
                table[channel] = Slot(None, self._value(lane, channel, encode(channel, value), known, fresh))
        return table, fresh

    def _value(self, lane: LaneName, channel: str, typed: Typed, known: _Known, fresh: list[Encoded]) -> Ref | Typed:
        """Where a value stands: inline, in a record that holds the same bytes already, or in a new one."""
        raw = typed[1]
        self._check_size(lane, channel, raw)
        if len(raw) <= _INLINE_VALUE:
            return typed
        crc = crc32(raw)
        for table in (known.parent_table, *known.others):
            slot = table.get(channel)
            if slot is not None and isinstance(slot.value, Ref) and self._same(slot.value, typed, crc):
                return slot.value
        fresh.append(encode_value(typed, crc))
        return Ref(0, len(fresh) - 1)

    def _same(self, ref: Ref, typed: Typed, crc: int) -> bool:
        """Whether a stored value has exactly these bytes. Only values with equal length and checksum are read."""
        with self._storage.view() as view:
            frame = view.frame(ref.lsn)
            if value_facts(frame.entry(ref, Kind.VALUE)) != (typed[0], len(typed[1]), crc):
                return False
            return frame.raw(ref.ordinal) == typed[1]

    def _check_size(self, lane: LaneName, channel: str, raw: bytes) -> None:
        if len(raw) > self._options.max_value_bytes:
            raise ValueTooLargeError(
                f"{lane}, channel {channel!r}: a value of {len(raw)} bytes is above max_value_bytes={self._options.max_value_bytes}; "
                "nothing was stored. Keep large data outside the state, or raise the limit"
            )

    @staticmethod
    def _lane(view: View, lane: LaneName, records: list[Encoded]) -> int:
        """The lane's number; appends the records that introduce thread and namespace where they are new."""
        number = view.lane(lane.thread, lane.ns)
        if number is not None:
            return number
        thread = view.thread(lane.thread)
        next_thread, next_lane = view.next_numbers()
        if thread is None:
            thread = next_thread
            records.append(encode_thread(thread, name_hash(lane.thread), lane.thread))
        records.append(encode_lane(next_lane, name_hash(lane.ns), thread, lane.ns))
        return next_lane

    def _refuse_late(self, view: View, lane: LaneName, id: str) -> None:
        deleted = view.late(lane.thread, lane.ns, id)
        if deleted is None:
            return
        ago = time.time() - deleted / 1000
        if ago <= self._options.late_window:
            raise ThreadDeletedError(
                f"{lane}, checkpoint {id!r}: the thread was deleted {ago:.0f} s ago and this call comes from before; it was refused. "
                "A new start (a put without a parent) is always welcome"
            )

    @staticmethod
    def _refuse_conflict(view: View, lane: LaneName, number: int, parent: str | None, id: str) -> None:
        head = view.head(number)
        expected = None if parent is None else view.number(number, parent)
        if (head.number if head else None) == expected or (head is not None and view.number(number, id) == head.number):
            return
        shown = "none" if head is None else repr(read_record(view, head.ref).id)
        raise ConflictError(
            f"{lane}: the head is {shown}, this put expects {parent!r}: another writer was faster. Read the head and try again"
        )

    @staticmethod
    def _twin_history(
        view: View, lane: int, edge: ownership.Edge, versions: Mapping[str, Version]
    ) -> Mapping[str, ChannelPast] | None:
        """A copy of a checkpoint whose ancestors are gone needs what the original keeps of them."""
        for sibling in edge.siblings:
            if sibling.entry.has_history:
                table = sibling.record().table
                if {name: slot.version for name, slot in table.items() if slot.version is not None} == dict(versions):
                    ref = view.history(lane, sibling.entry.number)
                    return None if ref is None else read_history(view, ref)
        return None

    def _table_of(self, view: View, entry: CheckpointEntry) -> Mapping[str, Slot]:
        with self._tables_lock:
            table = self._tables.get(entry.ref)
            if table is not None:
                self._tables.move_to_end(entry.ref)
                return table
        table = read_record(view, entry.ref).table
        self._remember(entry.ref, table)
        return table

    def _remember(self, ref: Ref, table: Mapping[str, Slot]) -> None:
        resolved = {
            channel: Slot(slot.version, Ref(ref.lsn, slot.value.ordinal))
            if isinstance(slot.value, Ref) and not slot.value.lsn
            else slot
            for channel, slot in table.items()
        }
        with self._tables_lock:
            self._tables[ref] = resolved
            if len(self._tables) > _TABLES:
                self._tables.popitem(last=False)

    # -- writes ---------------------------------------------------------------------------------------------------------

    def put_writes(
        self,
        lane: LaneName,
        target: str,
        writes: Sequence[tuple[int, str, Any]],
        *,
        task_id: str,
        task_path: str = "",
        encode: Encode,
        token: bytes = b"",
        origin: Origin = Origin.TASK,
        late: LateRule = lambda children: None,
    ) -> int | None:
        """Store one batch of writes on a checkpoint id, whole, in one commit. The id need not be stored (yet).

        Args:
            writes: (idx, channel, value); a negative idx marks a special channel, of which the last write counts for readers.
            late: given the children the target has already, says which of them this batch made, if any.

        Returns:
            The LSN of the commit; None for an empty batch, which stores nothing.

        Raises:
            ThreadDeletedError, ValueTooLargeError, SerializationError and what `Storage.commit` raises.
        """
        if not writes:
            return None
        fresh: list[Encoded] = []
        entries = []
        for idx, channel, value in writes:
            typed = encode(channel, value)
            self._check_size(lane, channel, typed[1])
            if len(typed[1]) <= _INLINE_WRITE:
                entries.append(WriteEntry(idx, channel, typed))
            else:
                entries.append(WriteEntry(idx, channel, Ref(0, len(fresh))))
                fresh.append(encode_value(typed, crc32(typed[1])))
        prepared = prepare_writes(task_id, task_path, entries)
        mask = _mask(channel for _, channel, _ in writes)
        regular = any(idx >= 0 for idx, _, _ in writes)

        def resolve(view: View) -> list[Encoded]:
            records = list(fresh)
            number = self._lane(view, lane, records)
            target_number = view.number(number, target)
            child = None
            if target_number is None or view.live_checkpoint(number, target_number) is None:
                self._refuse_late(view, lane, target)
            if target_number is not None and regular:
                children = [view.live_checkpoint(number, child) for child in view.children(number, target_number)]
                made = late([entry for entry in children if entry is not None])
                child = None if made is None else checkpoint_id(view.frame(made.ref.lsn).entry(made.ref, Kind.CHECKPOINT))
            records.append(
                encode_writes(
                    prepared,
                    lane=number,
                    target=target,
                    token=token,
                    origin=origin,
                    task=task_hash(task_id),
                    mask=mask,
                    regular=regular,
                    child=child,
                )
            )
            return records

        return self._storage.commit(resolve)

    # -- reading --------------------------------------------------------------------------------------------------------

    def get(self, lane: LaneName, id: str | None = None) -> StoredCheckpoint | None:
        """A checkpoint with its values and pending writes; without an id the lane's head. None where there is none.

        Raises:
            CorruptionError: names the checkpoint and what is damaged.
        """
        with self._storage.view() as view:
            number = view.lane(lane.thread, lane.ns)
            if number is None:
                return None
            if id is None:
                entry = view.head(number)
            else:
                known = view.number(number, id)
                entry = None if known is None else view.live_checkpoint(number, known)
            return None if entry is None else self._stored(view, lane, number, entry)

    def _stored(self, view: View, lane: LaneName, number: int, entry: CheckpointEntry) -> StoredCheckpoint:
        record: CheckpointRecord | None = None
        try:
            record = self._checked_record(view, number, entry)
            values = {channel: self._typed(view, slot.value) for channel, slot in record.table.items() if slot.value is not None}
            return StoredCheckpoint(
                lane,
                record.id,
                record.parent,
                record.skeleton,
                record.metadata,
                {channel: slot.version for channel, slot in record.table.items() if slot.version is not None},
                values,
                self._pending(view, number, entry.number),
            )
        except CorruptionError as error:
            name = repr(record.id) if record is not None else f"number {entry.number} (its own record is damaged)"
            raise CorruptionError(f"{lane}, checkpoint {name}: {error}") from None

    @staticmethod
    def _checked_record(view: View, lane: int, entry: CheckpointEntry) -> CheckpointRecord:
        record = read_record(view, entry.ref)
        if record.lane != lane and record.lane not in view.origins(lane):
            raise CorruptionError(f"LSN {entry.ref.lsn} belongs to lane {record.lane}, not {lane}: the index is wrong")
        return record

    @staticmethod
    def _typed(view: View, value: Ref | Typed) -> Typed:
        """Typed bytes of a slot; the decoded bytes are checked, not only the stored ones."""
        if not isinstance(value, Ref):
            return value
        frame = view.frame(value.lsn)
        tag, length, crc = value_facts(frame.entry(value, Kind.VALUE))
        raw = frame.raw(value.ordinal)
        if crc32(raw) != crc:
            raise CorruptionError(
                f"the value at LSN {value.lsn}, record {value.ordinal}, does not match its checksum ({length} bytes)"
            )
        return tag, raw

    def _pending(self, view: View, lane: int, number: int) -> list[PendingWrite]:
        """Writes stored on a checkpoint as readers see them: the first of a regular (task, idx) wins, the last of a special one."""
        batches = view.writes(lane, number)
        if not batches:
            return []
        chosen: dict[tuple[str, int], tuple[str, str, Ref | Typed]] = {}
        for batch in batches:
            record = read_writes(view, batch.ref)
            for idx, channel, value in record.writes:
                if idx < 0 or (record.task_id, idx) not in chosen:
                    chosen[record.task_id, idx] = (record.task_path, channel, value)
        ordered = sorted(
            ((path, task, idx, channel, value) for (task, idx), (path, channel, value) in chosen.items()),
            key=lambda item: item[:3],
        )
        return [PendingWrite(task, channel, self._typed(view, value)) for _, task, _, channel, value in ordered]

    def history(self, lane: LaneName, id: str | None, channels: Sequence[str]) -> dict[str, ChannelHistory]:
        """What each channel's ancestors contribute to a checkpoint: nearest value, then owned writes, oldest first.

        Unknown ids have an empty past, as the LangGraph contract wants.

        Raises:
            CheckpointLineageIntegrityError: there is evidence that something of the past is lost.
        """
        with self._storage.view() as view:
            number = view.lane(lane.thread, lane.ns)
            entry = None
            if number is not None:
                known = view.state(number).head if id is None else view.number(number, id)
                entry = view.live_checkpoint(number, known) if known else None
            if number is None or entry is None:
                return {channel: ChannelHistory(None, []) for channel in channels}
            try:
                pasts = past(view, number, entry, channels)
                read: dict[Ref, WritesRecord] = {}
                found = {channel: self._history(view, channel, pasts[channel], read) for channel in channels}
            except CorruptionError as error:
                raise CorruptionError(f"{lane}, history of checkpoint {id or 'head'!r}: {error}") from None
            if any(value.seed is None and not value.writes for value in found.values()):
                self._refuse_loss(view, lane, entry, found)
            return found

    def _history(self, view: View, channel: str, kept: ChannelPast, read: dict[Ref, WritesRecord]) -> ChannelHistory:
        writes = []
        for edge in kept.edges:
            for ref in (*edge.every, *edge.newest, *edge.first):
                if ref not in read:
                    read[ref] = read_writes(view, ref)
            for item in edge_writes(channel, edge, read):
                writes.append(PendingWrite(item.task_id, channel, self._typed(view, item.value)))
        return ChannelHistory(None if kept.seed is None else self._typed(view, kept.seed), writes)

    @staticmethod
    def _refuse_loss(view: View, lane: LaneName, entry: CheckpointEntry, found: Mapping[str, ChannelHistory]) -> None:
        """Counters that speak of updates where the lineage holds neither value nor write are evidence of loss."""
        record = read_record(view, entry.ref)
        counters = record.metadata.get("counters_since_delta_snapshot") if isinstance(record.metadata, dict) else None
        for channel, history in found.items():
            counted = counters.get(channel) if isinstance(counters, dict) else None
            slot = record.table.get(channel)
            if counted and counted[0] and not history.writes and history.seed is None and (slot is None or slot.value is None):
                raise CheckpointLineageIntegrityError(
                    f"{lane}: broken chain at checkpoint {record.id!r}: channel {channel!r} had {counted[0]} updates since its last "
                    "snapshot, but the ancestors hold neither a value nor a write of it"
                )

    def list(
        self,
        thread: str | None = None,
        ns: str | None = None,
        id: str | None = None,
        *,
        before: str | None = None,
        accept: Callable[[dict[str, Any] | Typed], bool] | None = None,
    ) -> CheckpointIterator:
        """Checkpoints, newest first: in place order within one lane, by id descending over several.

        Args:
            thread, ns: None for all of them.
            id: only the checkpoint with this id, in each lane.
            before: only what lies before this id: by place where the lane holds it, else by id.
            accept: decides on the metadata, before values are read.

        Returns:
            An iterator that holds no lock between two items. A damaged checkpoint raises, and the next call goes on behind it.
        """
        return CheckpointIterator(self, self._plan(thread, ns, id, before), accept)

    def _plan(self, thread: str | None, ns: str | None, id: str | None, before: str | None) -> Iterator[_Item]:
        lanes = self._lanes(thread, ns)
        if id is not None:
            for lane, number in lanes:
                with self._storage.view() as view:
                    known = view.number(number, id)
                    found = known is not None and view.live_checkpoint(number, known) is not None
                if found and known is not None and (before is None or self._is_before(number, known, before)):
                    yield _Item(lane, number, known)
        elif len(lanes) == 1:
            lane, number = lanes[0]
            yield from self._by_place(lane, number, before)
        else:
            yield from self._by_id(lanes, before)

    def _is_before(self, lane: int, number: int, before: str) -> bool:
        with self._storage.view() as view:
            entry = view.live_checkpoint(lane, number)
            bound = view.number(lane, before)
            other = None if bound is None else view.live_checkpoint(lane, bound)
            if entry is None:
                return False
            if other is not None:
                return entry.place < other.place
            return checkpoint_id(view.frame(entry.ref.lsn).entry(entry.ref, Kind.CHECKPOINT)) < before

    def _by_place(self, lane: LaneName, number: int, before: str | None) -> Iterator[_Item]:
        place = None
        by_id = False
        if before is not None:
            with self._storage.view() as view:
                bound = view.number(number, before)
                entry = None if bound is None else view.live_checkpoint(number, bound)
                place, by_id = (None, True) if entry is None else (entry.place, False)
        while True:
            with self._storage.view() as view:
                step = next(view.newest_first(number, place), None)
                if step is None:
                    return
                place, found = step
                skip = False
                if by_id and before is not None:
                    entry = view.live_checkpoint(number, found)
                    skip = entry is None or checkpoint_id(view.frame(entry.ref.lsn).entry(entry.ref, Kind.CHECKPOINT)) >= before
            if not skip:
                yield _Item(lane, number, found)

    def _by_id(self, lanes: Sequence[tuple[LaneName, int]], before: str | None) -> Iterator[_Item]:
        found: list[tuple[str, int, LaneName, int]] = []
        for lane, number in lanes:
            with self._storage.view() as view:
                bound = None if before is None else view.number(number, before)
                limit = None if bound is None else view.live_checkpoint(number, bound)
                for place, known in view.newest_first(number, limit.place if limit else None):
                    entry = view.live_checkpoint(number, known)
                    if entry is None:
                        continue
                    id = checkpoint_id(view.frame(entry.ref.lsn).entry(entry.ref, Kind.CHECKPOINT))
                    if before is None or limit is not None or id < before:
                        found.append((id, place, lane, number))
        heapq.heapify(negated := [(_Descending(id), -place, lane, number) for id, place, lane, number in found])
        while negated:
            id, _, lane, number = heapq.heappop(negated)
            with self._storage.view() as view:
                known_number = view.number(number, id.text)
            if known_number is not None:
                yield _Item(lane, number, known_number)

    def _lanes(self, thread: str | None, ns: str | None) -> Sequence[tuple[LaneName, int]]:
        """(name, number) of the lanes a listing covers."""
        with self._storage.view() as view:
            if thread is not None and ns is not None:
                number = view.lane(thread, ns)
                return [] if number is None else [(LaneName(thread, ns), number)]
            if thread is not None:
                one = view.thread(thread)
                threads = [] if one is None else [one]
            else:
                threads = view.threads()
            found = []
            for number in threads:
                name = thread if thread is not None else self._thread_name(view, number)
                for lane in view.lanes(number):
                    lane_name = LaneName(name, self._ns_name(view, lane))
                    if ns is None or lane_name.ns == ns:
                        found.append((lane_name, lane))
            return found

    @staticmethod
    def _thread_name(view: View, thread: int) -> str:
        ref, _ = view.thread_record(thread)
        return decode_name(view.frame(ref.lsn).raw(ref.ordinal))

    @staticmethod
    def _ns_name(view: View, lane: int) -> str:
        address = view.address(lane)
        assert address is not None
        return decode_name(view.frame(address.ref.lsn).raw(address.ref.ordinal))

    def threads(self) -> Iterator[ThreadInfo]:
        """All threads that hold a checkpoint, oldest first. Reads no value, so its cost does not depend on their size."""
        with self._storage.view() as view:
            numbers = view.threads()
        for number in numbers:
            with self._storage.view() as view:
                try:
                    lanes = view.lanes(number)
                    states = [(lane, view.state(lane)) for lane in lanes]
                    if not any(state.checkpoints for _, state in states):
                        continue
                    info = self._thread_info(view, number, states)
                except (AssertionError, KeyError):
                    continue  # deleted in between
            yield info

    def _thread_info(self, view: View, number: int, states: Sequence[tuple[int, Any]]) -> ThreadInfo:
        filled = [(lane, state) for lane, state in states if state.checkpoints]
        root = next((lane for lane, _ in filled if self._ns_name(view, lane) == ""), filled[-1][0])
        head = view.head(root)
        return ThreadInfo(
            self._thread_name(view, number),
            sum(state.checkpoints for _, state in filled),
            len(filled),
            None if head is None else checkpoint_id(view.frame(head.ref.lsn).entry(head.ref, Kind.CHECKPOINT)),
        )

    # -- changing what is there -----------------------------------------------------------------------------------------

    def set_head(self, lane: LaneName, id: str) -> int:
        """Make a stored checkpoint the lane's head, without storing one.

        Raises:
            InvalidArgumentError: no such checkpoint.
        """

        def resolve(view: View) -> list[Encoded]:
            number = view.lane(lane.thread, lane.ns)
            known = None if number is None else view.number(number, id)
            if number is None or known is None or view.live_checkpoint(number, known) is None:
                raise InvalidArgumentError(f"{lane} holds no checkpoint id={id!r}")
            return [encode_head(number, id, 0)]

        return self._storage.commit(resolve)

    def delete(self, thread: str) -> bool:
        """Delete a thread: all namespaces, checkpoints, writes. Its ids are remembered, so that late writes are refused.

        Copies of the thread keep reading what they share. Space comes back by compaction.

        Returns:
            Whether there was such a thread.
        """
        deleted = False

        def resolve(view: View) -> list[Encoded]:
            nonlocal deleted
            number = view.thread(thread)
            deleted = number is not None
            if number is None:
                raise _Nothing
            lanes = view.lanes(number)
            dead: set[int] = set()
            kept: set[int] = set()
            hashes = []
            for lane in lanes:
                address = view.address(lane)
                assert address is not None
                dead |= frames_of(view, lane)
                for other in relatives(view, lane) - set(lanes):
                    kept |= reachable(view, other)
                for known, hashed in view.id_hashes(lane).items():
                    entry = view.checkpoint(lane, known)
                    if entry is not None or view.writes(lane, known):
                        hashes.append(late_hash(address.thread_hash, address.ns_hash, hashed))
            return [encode_tombstone(THREAD_SCOPE, number, _now_ms(), b"".join(hashes), dead - kept)]

        try:
            self._storage.commit(resolve)
        except _Nothing:
            pass
        return deleted

    def copy(self, source: str, destination: str) -> int:
        """Copy a thread by reference: same ids, same order, all namespaces and writes; nothing of the log is duplicated.

        Returns:
            Number of checkpoints the copy holds; 0 when there is no such source, and then nothing is created.

        Raises:
            ThreadExistsError: the destination holds records already.
        """
        if source == destination:
            raise InvalidArgumentError(f"destination={destination!r}: a thread cannot be copied onto itself")
        copied = 0

        def resolve(view: View) -> list[Encoded]:
            nonlocal copied
            copied = 0
            number = view.thread(source)
            if number is None:
                raise _Nothing
            if view.thread(destination) is not None:
                raise ThreadExistsError(f"thread {destination!r} exists: a copy needs a new name, or delete that thread first")
            next_thread, next_lane = view.next_numbers()
            records = [encode_thread(next_thread, name_hash(destination), destination)]
            for lane in view.lanes(number):
                ns = self._ns_name(view, lane)
                records.append(encode_lane(next_lane, name_hash(ns), next_thread, ns))
                records.append(encode_copy(next_lane, lane, 0))
                copied += view.state(lane).checkpoints
                next_lane += 1
            return records

        try:
            self._storage.commit(resolve)
        except _Nothing:
            return 0
        return copied

    def prune(self, thread: str) -> int:
        """Keep the head of each namespace and remove every other checkpoint; what the heads need of them is kept.

        Returns:
            Number of checkpoints removed.
        """

        def choose(view: View) -> dict[int, set[int]]:
            number = view.thread(thread)
            chosen = {}
            for lane in [] if number is None else view.lanes(number):
                head = view.head(lane)
                keep = None if head is None else head.number
                chosen[lane] = {known for _, known in view.newest_first(lane)} - {keep}
            return chosen

        return self._remove(choose)

    def delete_for_runs(self, runs: Iterable[str]) -> int:
        """Remove every checkpoint, in any thread and namespace, whose metadata names one of these runs; return how many."""
        names = [_run_hash(run) for run in runs]

        def choose(view: View) -> dict[int, set[int]]:
            chosen: dict[int, set[int]] = {}
            for run in names:
                for lane, number in view.of_run(run):
                    entry = view.live_checkpoint(lane, number) if view.address(lane) is not None else None
                    if entry is not None and self._is_of_run(view, entry, names):
                        chosen.setdefault(lane, set()).add(number)
            return chosen

        return self._remove(choose) if names else 0

    @staticmethod
    def _is_of_run(view: View, entry: CheckpointEntry, runs: Collection[bytes]) -> bool:
        # A re-put may have changed the metadata since the index entry was made.
        return view.frame(entry.ref.lsn).entry(entry.ref, Kind.CHECKPOINT)[HEADER + 7] in runs

    def _remove(self, choose: Callable[[View], Mapping[int, Collection[int]]]) -> int:
        """Remove checkpoints, and give each survivor that loses its parent a history record, in one commit."""
        removed = 0

        def resolve(view: View) -> list[Encoded]:
            nonlocal removed
            chosen = {lane: set(numbers) for lane, numbers in choose(view).items() if numbers}
            removed = sum(map(len, chosen.values()))
            if not removed:
                raise _Nothing
            histories, tombstones = [], []
            for lane, gone in chosen.items():
                kept: set[int] = set()
                dead: set[int] = set()
                for number in all_numbers(view, lane):
                    entry = view.live_checkpoint(lane, number)
                    if entry is None:
                        continue
                    if number in gone:
                        dead.add(entry.ref.lsn)
                        dead.update(batch.ref.lsn for batch in view.writes(lane, number))
                    elif entry.parent in gone and not entry.has_history:
                        histories.append(self._survivor(view, lane, entry, kept))
                kept |= reachable(view, lane, without=gone)
                for other in relatives(view, lane):
                    kept |= reachable(view, other, without=chosen.get(other, ()))
                hashes = view.id_hashes(lane)
                names = b"".join(hashes[number] for number in sorted(gone))
                tombstones.append(encode_tombstone(LANE_SCOPE, lane, _now_ms(), names, dead - kept))
            return [record for record in histories if record is not None] + tombstones

        try:
            self._storage.commit(resolve)
        except _Nothing:
            return 0
        return removed

    @staticmethod
    def _survivor(view: View, lane: int, entry: CheckpointEntry, kept: set[int]) -> Encoded | None:
        """The history record of a checkpoint whose parent goes; adds the frames it needs to `kept`."""
        pasts = past(view, lane, entry, history_channels(view, lane, entry))
        needed = {channel: value for channel, value in pasts.items() if value.seed is not None or value.edges}
        for seed, edges in needed.values():
            if isinstance(seed, Ref):
                kept.add(seed.lsn)
            kept.update(ref.lsn for edge in edges for group in edge for ref in group)
        # Written even when nothing is needed: it says that the walk may end here.
        return encode_history(lane, read_record(view, entry.ref).id, needed)


class _Nothing(Exception):
    """Internal: a commit turned out to have nothing to do."""


class _Item(NamedTuple):
    lane: LaneName
    number: int
    checkpoint: int


class _Descending:
    """A string that sorts the other way round."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __lt__(self, other: _Descending) -> bool:
        return self.text > other.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and self.text == other.text

    __hash__ = None  # type: ignore[assignment]


class CheckpointIterator:
    """Checkpoints one by one. Nothing is held between two of them, and an error about one does not end the iteration."""

    def __init__(self, store: Store, plan: Iterator[_Item], accept: Callable[[dict[str, Any] | Typed], bool] | None) -> None:
        self._store = store
        self._plan = plan
        self._accept = accept

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredCheckpoint:
        for lane, number, known in self._plan:
            with self._store._storage.view() as view:
                entry = view.live_checkpoint(number, known) if view.address(number) is not None else None
                if entry is None:
                    continue  # removed since the plan was made
                if self._accept is not None and not self._accept(self._store._checked_record(view, number, entry).metadata):
                    continue
                return self._store._stored(view, lane, number, entry)
        raise StopIteration


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _mask(channels: Iterable[str]) -> int:
    mask = 0
    for channel in channels:
        mask |= channel_bit(channel)
    return mask


def _plain_or_typed(name: str, value: dict[str, Any], encode: Encode) -> dict[str, Any] | Typed:
    return value if pack_plain(value) is not None else encode(name, value)


def _run_hash(run: str) -> bytes:
    return blake2b(run.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def open(path: str | os.PathLike[str], **options: Any) -> Store:
    """Open a store folder, creating it where there is none; `":memory:"` gives a store that lives in this process only.

    Args:
        path: the folder.
        options: fields of `ckptstore.options.StoreOptions`.

    Raises:
        InvalidArgumentError: an option is out of range.
        NotAStoreError, StoreMissingError, FormatVersionError, ForeignSegmentError, TimelineError, CorruptionError,
        UnsupportedFilesystemError, NotWritableError, IndexUnusableError, LockTimeoutError: what stands at the path cannot be opened.
    """
    checked = checked_options(**options)
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidArgumentError(f"path={path!r}: a folder name is needed")
    if os.fspath(path) == ":memory:":
        return Store(MemoryStorage(checked.lock_timeout), checked)
    return Store(LocalStorage(path, checked), checked)


__all__ = ["CheckpointIterator", "Store", "open"]
