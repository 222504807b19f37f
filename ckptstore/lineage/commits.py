"""Checkpoints and batches of writes on their way into the log: which bytes are written at all, and what the commit decides.

A put does its work in two steps. Outside the commit lock it finds out which values are stored already and serializes the others.
Under the lock (`resolve`) it checks that what it knew still holds, and decides what depends on what is there: numbers, ownership, late
calls, the expected head.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ckptstore.codec.names import channel_bit, name_hash, run_hash, task_hash
from ckptstore.codec.records import (
    LANE_SCOPE,
    ChannelPast,
    Encoded,
    Kind,
    WritesBody,
    checkpoint_id,
    encode_checkpoint,
    encode_history,
    encode_lane,
    encode_thread,
    encode_tombstone,
    encode_writes,
    pack_plain,
    pack_slots,
    prepare_checkpoint,
    prepare_writes,
)
from ckptstore.errors import (
    CheckpointLineageIntegrityError,
    ConflictError,
    FrameGoneError,
    InvalidArgumentError,
    ThreadDeletedError,
    ValueTooLargeError,
)
from ckptstore.forks import own_locks
from ckptstore.lineage import ownership
from ckptstore.lineage.history import read_history
from ckptstore.lineage.ownership import LateRule, Rule, read_record
from ckptstore.lineage.placing import INLINE_VALUE, INLINE_WRITE, Placer, Spot
from ckptstore.lineage.values import Values
from ckptstore.model import Consumed, LaneName, Origin, Ref, Slot, Source, Typed, Version, WriteEntry
from ckptstore.options import StoreOptions
from ckptstore.storage import Storage, View
from ckptstore.storage.catalog import CheckpointEntry

Encode = Callable[[str, Any], Typed]
"""Serialize the value of a channel."""

_TABLES = 512


class _Moved(Exception):
    """Internal: what was read before the commit lock changed; prepare again."""


class _Known(NamedTuple):
    """What a put knows before it takes the lock. The references are compared again under it."""

    parent: Ref | None
    parent_table: Mapping[str, Slot]
    own: Ref | None
    """An earlier put of the same id."""
    siblings: tuple[CheckpointEntry, ...] = ()
    """Children of the parent whose values may be the same ones: for a put that says that nothing changed, which is a copy."""


class _Draft(NamedTuple):
    """A checkpoint as the caller gave it."""

    lane: LaneName
    id: str
    parent: str | None
    skeleton: dict[str, Any]
    metadata: dict[str, Any]
    versions: Mapping[str, Version]
    values: Mapping[str, Any]
    changed: Collection[str]
    encode: Encode
    token: bytes
    source: Source
    rule: Rule
    run: str | None
    expect_head: bool
    step: Sequence[tuple[str, Typed]]
    require_parent: bool


class _Placed(NamedTuple):
    """A checkpoint with a place for each of its values."""

    known: _Known
    table: Mapping[str, Slot]
    step: Sequence[WriteEntry]
    fresh: Sequence[Encoded]
    spot: Spot | None
    raws: Sequence[tuple[int, str | None, bytes]]
    """(ordinal, channel, raw bytes) of the new value records."""


class Commits:
    """The writing half of a store: thread-safe, with a bounded cache of channel tables, which are never shared with callers."""

    def __init__(self, storage: Storage, options: StoreOptions) -> None:
        self._storage = storage
        self._options = options
        self._values = Values(options.cache_bytes * 3 // 4, lambda: storage.activity)
        self._placer = Placer(self._values)
        self._tables: OrderedDict[Ref, Mapping[str, Slot]] = OrderedDict()
        self._tips: OrderedDict[tuple[LaneName, str], Ref] = OrderedDict()
        own_locks(self)

    def new_locks(self) -> None:
        self._tables_lock = threading.Lock()

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
        step: Sequence[tuple[str, Typed]] = (),
        require_parent: bool = False,
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
            require_parent: refuse unless the parent is stored; without it a put under an unknown or removed parent is accepted.
            step: (channel, write) that made this checkpoint out of its parent, stored in the same commit; `rule` is then not asked.

        Returns:
            The LSN of the commit.

        Raises:
            ThreadDeletedError: the parent was removed by a thread deletion and not stored since.
            ConflictError: `expect_head`, and another checkpoint is the head.
            ValueTooLargeError, SerializationError: nothing was stored.
            what `Storage.commit` raises.
        """
        _check_token(token)
        draft = _Draft(
            lane,
            id,
            parent,
            skeleton,
            metadata,
            versions,
            values,
            changed,
            encode,
            token,
            source,
            rule,
            run,
            expect_head,
            step,
            require_parent,
        )
        for channel, typed in step:
            self._check_size(lane, channel, typed[1])
        while True:
            try:
                return self._put_once(draft)
            except (_Moved, FrameGoneError):
                continue

    def _put_once(self, draft: _Draft) -> int:
        known = self._known(draft)
        table, waiting = self._table(draft, known)
        sizes = [len(typed[1]) for typed in (*waiting.values(), *(write for _, write in draft.step))]
        with self._placer.turn(draft.lane, sizes):
            placed = self._placed(draft, known, table, waiting)
            lsn = self._commit_checkpoint(draft, placed)
            if placed.spot is not None:
                with self._storage.view() as view:
                    self._placer.remember(view, placed.spot, lsn, placed.raws)
            return lsn

    def _placed(self, draft: _Draft, known: _Known, table: dict[str, Slot], waiting: Mapping[str, Typed]) -> _Placed:
        """Find a place for what is not inline. Everything is serialized by now: no reading is held while objects are packed."""
        step = [WriteEntry(idx, channel, typed) for idx, (channel, typed) in enumerate(draft.step)]
        large = [idx for idx, (_, typed) in enumerate(draft.step) if len(typed[1]) > INLINE_WRITE]
        if not waiting and not large:
            return _Placed(known, table, step, (), None, ())
        fresh: list[Encoded] = []
        raws: list[tuple[int, str | None, bytes]] = []
        with self._storage.view() as view:
            spot = self._placer.spot(view, draft.lane, draft.parent, known.parent_table)
            if known.parent is not None and (spot.at is None or spot.at.ref != known.parent):
                # Removed or put again since its table was kept: what that names may be compacted away.
                self._forget(draft.lane, draft.id, draft.parent)
                raise _Moved
            for channel, typed in waiting.items():
                place = self._placer.place(view, spot, channel, typed, self._same(view, known, channel), fresh)
                table[channel] = Slot(table[channel].version, place)
                if not place.lsn:
                    raws.append((place.ordinal, channel, typed[1]))
            for idx in large:
                channel, typed = draft.step[idx]
                place = self._placer.place(view, spot, None, typed, (), fresh)
                step[idx] = WriteEntry(idx, channel, place)
                if not place.lsn:
                    raws.append((place.ordinal, None, typed[1]))
        return _Placed(known, table, step, fresh, spot, raws)

    def _commit_checkpoint(self, draft: _Draft, placed: _Placed) -> int:
        lane, id, parent, known = draft.lane, draft.id, draft.parent, placed.known
        packed, refs = pack_slots(placed.table)
        try:
            prepared = prepare_checkpoint(draft.skeleton, draft.metadata, packed)
        except (TypeError, ValueError, OverflowError):
            # Objects in the skeleton (pending sends) or the metadata: those go through the caller's serializer.
            prepared = prepare_checkpoint(
                _plain_or_typed("checkpoint", draft.skeleton, draft.encode),
                _plain_or_typed("metadata", draft.metadata, draft.encode),
                packed,
            )
        mask = _mask(channel for channel, slot in placed.table.items() if slot.value is not None)
        step = prepare_writes("", "", placed.step) if placed.step else None
        ordinal = 0

        def resolve(view: View) -> list[Encoded]:
            nonlocal ordinal
            records = list(placed.fresh)
            number = self._lane(view, lane, records)
            own_number, own = view.live_ref(number, id)
            parent_number, parent_ref = (None, None) if parent is None else view.live_ref(number, parent)
            if (parent_ref, own) != (known.parent, known.own) or not (placed.spot is None or placed.spot.holds(view)):
                self._forget(lane, id, parent)
                raise _Moved
            if parent is not None and parent_ref is None:
                self._refuse_late(view, lane, parent)
            if draft.require_parent and parent is not None and parent_ref is None:
                raise CheckpointLineageIntegrityError(
                    f"{lane}: checkpoint {parent!r} was removed while a step from it was made; nothing was stored. Open the thread anew"
                )
            if draft.expect_head:
                self._refuse_conflict(view, lane, number, parent, id)
            before = None if own is None or own_number is None else view.live_checkpoint(number, own_number)
            consumed, history = Consumed(), None
            if step is not None and parent is not None:
                consumed = Consumed(every=(Ref(0, len(records)),))
                channels = _mask(channel for channel, _ in draft.step)
                records.append(_batch(step, number, parent, draft.token, Origin.TASK, "", channels, regular=True, child=None))
            elif parent is not None and parent_number is not None:
                edge = ownership.edge(view, number, parent_number, parent, child=own_number)
                consumed = draft.rule(edge)
                if consumed.first:
                    consumed = consumed._replace(gated=_doubtful(consumed, edge, known.parent_table, draft.versions))
                if before is not None and before.parent == parent_number:
                    # Put again under the same parent: it was made by what made it first.
                    consumed = before.consumed
                if parent_ref is None and own is None:
                    history = self._twin_history(view, number, edge, draft.versions)
            if parent is not None and parent_number is not None and parent_ref is None and history is None:
                records += self._loss(view, number, parent_number, parent)
            ordinal = len(records)
            records.append(
                encode_checkpoint(
                    prepared,
                    lane=number,
                    id=id,
                    parent=parent,
                    token=draft.token,
                    source=draft.source,
                    mask=mask,
                    consumed=consumed,
                    run=None if draft.run is None else run_hash(draft.run),
                    place=before.place if before is not None else 0,
                    refs=refs,
                )
            )
            if history is not None:
                records.append(encode_history(number, id, history))
            return records

        lsn = self._storage.commit(resolve)
        self._remember(Ref(lsn, ordinal), placed.table, (lane, id))
        return lsn

    def _known(self, draft: _Draft) -> _Known:
        lane, id, parent, changed = draft.lane, draft.id, draft.parent, draft.changed
        with self._tables_lock:
            tip = None if parent is None or (lane, id) in self._tips else self._tips.get((lane, parent))
            table = None if tip is None else self._tables.get(tip)
        if table is not None and changed:
            return _Known(tip, table, None)
        with self._storage.view() as view:
            number = view.lane(lane.thread, lane.ns)
            if number is None:
                return _Known(None, {}, None)
            _, own = view.live_ref(number, id)
            parent_number, parent_ref = (None, None) if parent is None else view.live_ref(number, parent)
            if parent_number is None or parent_ref is None:
                return _Known(None, {}, own)
            siblings: tuple[CheckpointEntry, ...] = ()
            if not changed:
                found = (view.live_checkpoint(number, child) for child in view.children(number, parent_number))
                siblings = tuple(entry for entry in found if entry is not None)
            return _Known(parent_ref, self._table_of(view, parent_ref), own, siblings)

    def _table(self, draft: _Draft, known: _Known) -> tuple[dict[str, Slot], dict[str, Typed]]:
        """The channel table as far as it is known without looking for places, and the typed bytes that still need one."""
        table: dict[str, Slot] = {}
        waiting: dict[str, Typed] = {}
        versions, values = draft.versions, draft.values
        for channel in (*versions, *(name for name in values if name not in versions)):
            version = versions.get(channel)
            before = known.parent_table.get(channel)
            if channel not in values:
                table[channel] = Slot(version, None)
            elif version is not None and channel not in draft.changed and _unchanged(before, version):
                assert before is not None
                table[channel] = Slot(version, before.value)
            else:
                typed = draft.encode(channel, values[channel])
                self._check_size(draft.lane, channel, typed[1])
                table[channel] = Slot(version, typed)
                if len(typed[1]) > INLINE_VALUE:
                    waiting[channel] = typed
        return table, waiting

    def _same(self, view: View, known: _Known, channel: str) -> list[Ref]:
        """Records that may hold the very bytes of a channel: of the parent, of an earlier put of the id, of copies."""
        tables = [known.parent_table]
        tables += [self._table_of(view, ref) for ref in (known.own, *(entry.ref for entry in known.siblings)) if ref is not None]
        return [slot.value for table in tables if (slot := table.get(channel)) is not None and isinstance(slot.value, Ref)]

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
            self._storage.activity.refused_late += 1
            raise ThreadDeletedError(
                f"{lane}, checkpoint {id!r}: the thread was deleted {ago:.0f} s ago and this call comes from before; it was refused. "
                "A new start (a put without a parent) is always welcome"
            )

    def _refuse_conflict(self, view: View, lane: LaneName, number: int, parent: str | None, id: str) -> None:
        head = view.head(number)
        expected = 0 if parent is None else view.number(number, parent)
        if (head.number if head else 0) == expected or (head is not None and view.number(number, id) == head.number):
            return
        self._storage.activity.conflicts += 1
        shown = "none" if head is None else repr(read_record(view, head.ref).id)
        raise ConflictError(
            f"{lane}: the head is {shown}, this put expects {parent!r}: another writer was faster. Read the head and try again"
        )

    @staticmethod
    def _loss(view: View, lane: int, parent_number: int, parent: str) -> list[Encoded]:
        """What says with a child that its parent was removed: the index knows, and the log may have forgotten it by compaction."""
        entry = view.checkpoint(lane, parent_number)
        if entry is None or not entry.removed:
            return []  # not stored yet
        head = view.head(lane)
        head_id = None if head is None else checkpoint_id(view.entry(head.ref, Kind.CHECKPOINT))
        return [encode_tombstone(LANE_SCOPE, lane, time.time_ns() // 1_000_000, name_hash(parent), (), head_id)]

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

    def _table_of(self, view: View, ref: Ref) -> Mapping[str, Slot]:
        with self._tables_lock:
            table = self._tables.get(ref)
            if table is not None:
                self._tables.move_to_end(ref)
                return table
        table = read_record(view, ref).table
        self._remember(ref, table)
        return table

    def _remember(self, ref: Ref, table: Mapping[str, Slot], tip: tuple[LaneName, str] | None = None) -> None:
        """Keep a table, and for a checkpoint just put, where it stands: the next put usually names it as its parent."""
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
            if tip is not None:
                self._tips[tip] = ref
                if len(self._tips) > _TABLES:
                    self._tips.popitem(last=False)

    def _forget(self, lane: LaneName, id: str, parent: str | None) -> None:
        with self._tables_lock:
            self._tips.pop((lane, id), None)
            if parent is not None:
                self._tips.pop((lane, parent), None)

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
        _check_token(token)
        if not writes:
            return None
        serialized = []
        for idx, channel, value in writes:
            typed = encode(channel, value)
            self._check_size(lane, channel, typed[1])
            serialized.append((idx, channel, typed))
        while True:
            try:
                return self._put_writes_once(lane, target, serialized, task_id, task_path, token, origin, late)
            except (_Moved, FrameGoneError):
                continue

    def _put_writes_once(
        self,
        lane: LaneName,
        target: str,
        writes: Sequence[tuple[int, str, Typed]],
        task_id: str,
        task_path: str,
        token: bytes,
        origin: Origin,
        late: LateRule,
    ) -> int:
        large = {position: typed for position, (_, _, typed) in enumerate(writes) if len(typed[1]) > INLINE_WRITE}
        with self._placer.turn(lane, (len(typed[1]) for typed in large.values())):
            spot: Spot | None = None
            fresh: list[Encoded] = []
            entries = [WriteEntry(*write) for write in writes]
            if large:
                with self._storage.view() as view:
                    spot = self._placer.spot(view, lane, target, {})
                    if spot.at is not None:
                        spot = spot._replace(table=self._table_of(view, spot.at.ref))
                    for position, typed in large.items():
                        place = self._placer.place(view, spot, None, typed, (), fresh)
                        entries[position] = entries[position]._replace(value=place)
            lsn = self._commit_writes(lane, target, entries, fresh, spot, task_id, task_path, token, origin, late)
            if spot is not None:
                raws = [
                    (entry.value.ordinal, None, typed[1])
                    for entry, (_, _, typed) in zip(entries, writes, strict=True)
                    if isinstance(entry.value, Ref) and not entry.value.lsn
                ]
                with self._storage.view() as view:
                    self._placer.remember(view, spot, lsn, raws)
            return lsn

    def _commit_writes(
        self,
        lane: LaneName,
        target: str,
        writes: Sequence[WriteEntry],
        fresh: Sequence[Encoded],
        spot: Spot | None,
        task_id: str,
        task_path: str,
        token: bytes,
        origin: Origin,
        late: LateRule,
    ) -> int:
        prepared = prepare_writes(task_id, task_path, writes)
        mask = _mask(channel for _, channel, _ in writes)
        regular = any(idx >= 0 for idx, _, _ in writes)

        def resolve(view: View) -> list[Encoded]:
            records = list(fresh)
            number = self._lane(view, lane, records)
            target_number = view.number(number, target)
            child = None
            if spot is not None and not spot.holds(view):
                raise _Moved
            if target_number is None or view.live_checkpoint(number, target_number) is None:
                self._refuse_late(view, lane, target)
            if target_number is not None and regular:
                children = [view.live_checkpoint(number, child) for child in view.children(number, target_number)]
                made = late([entry for entry in children if entry is not None])
                child = None if made is None else checkpoint_id(view.entry(made.ref, Kind.CHECKPOINT))
            records.append(_batch(prepared, number, target, token, origin, task_id, mask, regular=regular, child=child))
            return records

        return self._storage.commit(resolve)


def _check_token(token: bytes) -> None:
    if len(token) > 6 or token.endswith(b"\0"):
        raise InvalidArgumentError(f"token={token!r}: up to 6 bytes are needed, the last one not 0")


def _unchanged(before: Slot | None, version: Version) -> bool:
    return before is not None and before.value is not None and before.version == version


def _batch(
    prepared: WritesBody,
    lane: int,
    target: str,
    token: bytes,
    origin: Origin,
    task_id: str,
    mask: int,
    *,
    regular: bool,
    child: str | None,
) -> Encoded:
    task = task_hash(task_id)
    return encode_writes(
        prepared, lane=lane, target=target, token=token, origin=origin, task=task, mask=mask, regular=regular, child=child
    )


def _mask(channels: Iterable[str]) -> int:
    mask = 0
    for channel in channels:
        mask |= channel_bit(channel)
    return mask


def _plain_or_typed(name: str, value: dict[str, Any], encode: Encode) -> dict[str, Any] | Typed:
    return value if pack_plain(value) is not None else encode(name, value)


def _doubtful(consumed: Consumed, edge: ownership.Edge, before: Mapping[str, Slot], versions: Mapping[str, Version]) -> bool:
    """Whether batches of the window may hold writes that the child did not use: on a channel whose version did not move.

    A mask that meets no unchanged channel proves that there are none, and then no reader has to compare versions.
    """
    unchanged = _mask(name for name, version in versions.items() if name in before and before[name].version == version)
    masks = {batch.ref: batch.mask for batch in edge.candidates}
    return any(masks.get(ref, unchanged) & unchanged for ref in consumed.first)
