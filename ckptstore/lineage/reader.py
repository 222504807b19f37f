"""Stored checkpoints and channel histories, assembled from records. Everything returned is fresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptstore.codec.records import ChannelPast
from ckptstore.errors import CheckpointLineageIntegrityError, CorruptionError
from ckptstore.lineage.history import edge_writes, past, read_writes
from ckptstore.lineage.ownership import read_record
from ckptstore.lineage.values import Values
from ckptstore.model import (
    ChannelHistory,
    CheckpointRecord,
    LaneName,
    Outline,
    PendingWrite,
    Ref,
    StoredCheckpoint,
    Typed,
    WritesRecord,
)
from ckptstore.storage import View
from ckptstore.storage.catalog import CheckpointEntry


def stored(
    view: View, values: Values, lane: LaneName, number: int, entry: CheckpointEntry, asked: str | None = None
) -> StoredCheckpoint:
    """A checkpoint whole: its record, values and pending writes, all fresh objects.

    Args:
        asked: the id the caller asked for, for errors.

    Raises:
        CorruptionError: names the checkpoint and what is damaged.
    """
    record: CheckpointRecord | None = None
    try:
        record = checked_record(view, number, entry)
        found = {channel: values.typed(view, slot.value) for channel, slot in record.table.items() if slot.value is not None}
        return StoredCheckpoint(
            lane,
            record.id,
            record.parent,
            record.skeleton,
            record.metadata,
            {channel: slot.version for channel, slot in record.table.items() if slot.version is not None},
            found,
            pending(view, values, number, entry.number),
        )
    except CorruptionError as error:
        known = asked if record is None else record.id
        name = repr(known) if known is not None else f"number {entry.number} (its own record is damaged)"
        raise CorruptionError(f"{lane}, checkpoint {name}: {error}") from None


def outline(view: View, lane: LaneName, number: int, entry: CheckpointEntry) -> Outline:
    """A checkpoint without its values and writes."""
    record = checked_record(view, number, entry)
    return Outline(
        lane,
        record.id,
        record.parent,
        record.skeleton,
        record.metadata,
        {channel: slot.version for channel, slot in record.table.items() if slot.version is not None},
        frozenset(channel for channel, slot in record.table.items() if slot.value is not None),
    )


def checked_record(view: View, lane: int, entry: CheckpointEntry) -> CheckpointRecord:
    """A checkpoint's record, checked to belong to the lane: an index that points elsewhere must never give wrong data."""
    record = read_record(view, entry.ref)
    if record.lane != lane and record.lane not in view.origins(lane):
        raise CorruptionError(f"LSN {entry.ref.lsn} belongs to lane {record.lane}, not {lane}: the index is wrong")
    return record


def pending(view: View, values: Values, lane: int, number: int) -> list[PendingWrite]:
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
    return [PendingWrite(task, channel, values.typed(view, value)) for _, task, _, channel, value in ordered]


def history(
    view: View, values: Values, lane: LaneName, number: int, entry: CheckpointEntry, channels: Sequence[str]
) -> dict[str, ChannelHistory]:
    """What each channel's ancestors contribute to a checkpoint.

    Raises:
        CheckpointLineageIntegrityError: there is evidence that something of it is lost.
        CorruptionError: names the checkpoint and what is damaged.
    """
    try:
        pasts = past(view, number, entry, channels)
        read: dict[Ref, WritesRecord] = {}
        found = {channel: _channel_history(view, values, channel, pasts[channel], read) for channel in channels}
    except CorruptionError as error:
        raise CorruptionError(f"{lane}, history of checkpoint number {entry.number}: {error}") from None
    if any(item.seed is None and not item.writes for item in found.values()):
        _refuse_loss(view, lane, entry, found)
    return found


def _channel_history(view: View, values: Values, channel: str, kept: ChannelPast, read: dict[Ref, WritesRecord]) -> ChannelHistory:
    writes = []
    for edge in kept.edges:
        for ref in (*edge.every, *edge.newest, *edge.first):
            if ref not in read:
                read[ref] = read_writes(view, ref)
        for item in edge_writes(channel, edge, read):
            writes.append(PendingWrite(item.task_id, channel, values.typed(view, item.value)))
    return ChannelHistory(None if kept.seed is None else values.typed(view, kept.seed), writes)


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
