"""What a channel's ancestors contribute to a checkpoint: the nearest stored value, then the owned writes after it.

The walk follows parent pointers only and carries a visited set, since a re-put can close a loop. It ends in silence where the
LangGraph contract does (an id never stored, a true root, a loop), and raises where history is known to be lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

from ckptstore.codec.names import channel_bit
from ckptstore.codec.records import (
    ChannelPast,
    HistoryEdge,
    Kind,
    decode_history,
    writes_mask,
    writes_task,
)
from ckptstore.errors import CheckpointLineageIntegrityError
from ckptstore.lineage.ownership import read_record
from ckptstore.model import Ref, Typed, WritesRecord
from ckptstore.storage import View
from ckptstore.storage.catalog import CheckpointEntry

# LangGraph's marks of a task that wrote nothing, or returned: no channels, so no checkpoint has a version of them.
_MARKS = frozenset({"__no_writes__", "__return__"})


class WriteItem(NamedTuple):
    """One write of a channel, in replay order."""

    task_id: str
    value: Ref | Typed


def read_writes(view: View, ref: Ref) -> WritesRecord:
    """A writes record from the log."""
    return view.frame(ref.lsn).batch(ref)


def read_history(view: View, ref: Ref) -> dict[str, ChannelPast]:
    """A history record from the log."""
    frame = view.frame(ref.lsn)
    return decode_history(frame.entry(ref, Kind.HISTORY), frame.raw(ref.ordinal))


def past(
    view: View, lane: int, start: CheckpointEntry, channels: Iterable[str], *, admit_loss: bool = False
) -> dict[str, ChannelPast]:
    """For each channel, what lies behind `start`: its own value and its own writes are not part of it.

    Args:
        admit_loss: say of a channel that its past is lost instead of raising: to write that down for later.

    Raises:
        CheckpointLineageIntegrityError: an ancestor was removed and left no history record, so something is lost.
    """
    edges: dict[str, list[HistoryEdge]] = {channel: [] for channel in channels}
    seeds: dict[str, Ref | Typed] = {}
    older: dict[str, tuple[HistoryEdge, ...]] = {}
    open_channels = set(edges)
    lost: set[str] = set()
    visited = {start.number}
    entry = start
    while open_channels:
        if entry.has_history:
            lost |= _end_at_history(view, lane, entry, start, open_channels, seeds, older)
            break
        if not entry.parent or entry.parent in visited:
            break
        visited.add(entry.parent)
        parent = view.checkpoint(lane, entry.parent)
        if parent is None:
            break
        if parent.removed:
            if admit_loss:
                lost |= open_channels
                break
            raise CheckpointLineageIntegrityError(
                f"broken chain at checkpoint {read_record(view, entry.ref).id!r}: its parent was removed and left no history record, so "
                f"the history of {sorted(open_channels)} is lost. Start from a checkpoint that holds these channels' values"
            )
        _collect_edge(view, parent, entry, open_channels, edges)
        if parent.mask and any(parent.mask & channel_bit(channel) for channel in open_channels):
            table = read_record(view, parent.ref).table
            for channel in list(open_channels):
                slot = table.get(channel)
                if slot is not None and slot.value is not None:
                    seeds[channel] = slot.value
                    open_channels.discard(channel)
        entry = parent
    if lost and not admit_loss:
        raise CheckpointLineageIntegrityError(
            f"broken chain behind checkpoint {read_record(view, entry.ref).id!r}: the history of {sorted(lost)} was lost when it was "
            "pruned. Start from a checkpoint that holds these channels' values"
        )
    return {
        channel: ChannelPast(None, (), lost=True)
        if channel in lost
        else ChannelPast(seeds.get(channel), (*older.get(channel, ()), *reversed(newest_first)))
        for channel, newest_first in edges.items()
    }


def nearest_value(view: View, lane: int, start: CheckpointEntry, channel: str) -> Ref | None:
    """The nearest stored value of a channel at `start` or behind it, as far as a reference goes; None without one."""
    bit = channel_bit(channel)
    visited: set[int] = set()
    entry: CheckpointEntry | None = start
    while entry is not None and not entry.removed and entry.number not in visited:
        visited.add(entry.number)
        if entry.mask & bit:
            slot = read_record(view, entry.ref).table.get(channel)
            if slot is not None and slot.value is not None:
                return slot.value if isinstance(slot.value, Ref) else None
        if entry.has_history:
            ref = view.history(lane, entry.number)
            kept = None if ref is None else read_history(view, ref).get(channel)
            return kept.seed if kept is not None and isinstance(kept.seed, Ref) else None
        entry = view.checkpoint(lane, entry.parent) if entry.parent else None
    return None


def folded_writes(view: View, lane: int, at: CheckpointEntry, channel: str) -> list[Ref]:
    """Batches that a value of `channel` stored on a child of `at` is likely to fold, oldest first: what follows the nearest value.

    Only a guess at what to compare with: a batch too many or too few costs bytes, never correctness.
    """
    try:
        edges = past(view, lane, at, [channel])[channel].edges if not at.mask & channel_bit(channel) else ()
    except CheckpointLineageIntegrityError:
        return []
    batches = [[ref for group in edge for ref in group] for edge in edges]
    batches.append([batch.ref for batch in view.writes(lane, at.number) if batch.mask & channel_bit(channel)])
    ordered: list[Ref] = []
    for refs in batches:
        records = [read_writes(view, ref) for ref in refs]
        ordered += [record.ref for record in sorted(records, key=lambda item: (item.task_path, item.task_id, item.ref))]
    return ordered


def _end_at_history(
    view: View,
    lane: int,
    entry: CheckpointEntry,
    start: CheckpointEntry,
    open_channels: Collection[str],
    seeds: dict[str, Ref | Typed],
    older: dict[str, tuple[HistoryEdge, ...]],
) -> set[str]:
    """Take over what a survivor kept of its removed ancestors; return the channels of which it says that they were lost."""
    ref = view.history(lane, entry.number)
    assert ref is not None
    kept = read_history(view, ref)
    for channel in open_channels:
        if channel in kept:
            seed, older[channel], _ = kept[channel]
            if seed is not None:
                seeds[channel] = seed
        elif entry is start and entry.mask & channel_bit(channel):
            record = read_record(view, entry.ref)
            slot = record.table.get(channel)
            if slot is not None and slot.value is not None:
                raise CheckpointLineageIntegrityError(
                    f"what channel {channel!r} held before checkpoint {record.id!r} was pruned; the checkpoint holds its value"
                )
    return {channel for channel in open_channels if channel in kept and kept[channel].lost}


def _collect_edge(
    view: View,
    parent: CheckpointEntry,
    child: CheckpointEntry,
    open_channels: Collection[str],
    edges: dict[str, list[HistoryEdge]],
) -> None:
    """Append the batches on one edge to the channels they write."""
    consumed = child.consumed
    if not (consumed.every or consumed.newest or consumed.first):
        return
    every, newest, first, _ = consumed
    entries = {ref: view.frame(ref.lsn).entry(ref, Kind.WRITES) for ref in (*every, *newest, *first)}
    unchanged: Collection[str] = ()
    if consumed.gated:
        # Two stored facts: every superstep moves the version of each channel it wrote, so an equal version on both ends says
        # that the child used none of the batches on that channel.
        before, after = read_record(view, parent.ref).table, read_record(view, child.ref).table
        unchanged = {
            channel
            for channel in open_channels
            if channel in before
            and channel in after
            and before[channel].version is not None
            and before[channel].version == after[channel].version
        }
    if len(entries) == 1:  # nearly always
        (mask,) = map(writes_mask, entries.values())
        for channel in open_channels:
            if mask & channel_bit(channel) and not (first and channel in unchanged):
                edges[channel].append(HistoryEdge(every, newest, first))
        return
    masks = {ref: writes_mask(entry) for ref, entry in entries.items()}
    tasks = {ref: writes_task(entry) for ref, entry in entries.items()}
    # A batch that does not touch a channel still says that an older one of its task does not count, or not its idx.
    own = {tasks[ref] for ref in (*every, *newest)}
    newest = tuple({tasks[ref]: ref for ref in sorted(newest)}.values())
    first = tuple(ref for ref in first if tasks[ref] not in own)
    for channel in open_channels:
        bit = channel_bit(channel)
        touching = () if channel in unchanged else {tasks[ref] for ref in first if masks[ref] & bit}
        edge = HistoryEdge(
            tuple(ref for ref in every if masks[ref] & bit),
            tuple(ref for ref in newest if masks[ref] & bit),
            tuple(ref for ref in first if tasks[ref] in touching),
        )
        if edge.every or edge.newest or edge.first:
            edges[channel].append(edge)


def edge_writes(channel: str, edge: HistoryEdge, read: Mapping[Ref, WritesRecord]) -> list[WriteItem]:
    """The writes of one channel on one edge, in the order live execution applied them: (task_path, task_id, idx).

    Args:
        read: the batches of the edge, already read.
    """
    items: list[tuple[str, str, int, int, Ref | Typed]] = []
    own: set[str] = set()
    newest = {read[ref].task_id: ref for ref in sorted(edge.newest)} if edge.newest else {}
    for ref in (*edge.every, *newest.values()):
        record = read[ref]
        own.add(record.task_id)
        for idx, name, value in record.writes:
            if name == channel and idx >= 0:
                items.append((record.task_path, record.task_id, ref.lsn, idx, value))
    seen: set[tuple[str, int]] = set()
    for ref in sorted(edge.first):
        record = read[ref]
        task = record.task_id
        if task in own:
            continue
        for idx, name, value in record.writes:
            if idx >= 0 and (task, idx) not in seen:
                seen.add((task, idx))
                if name == channel:
                    items.append((record.task_path, task, 0, idx, value))
    if len(items) > 1:
        items.sort(key=_REPLAY_ORDER)
    return [WriteItem(item[1], item[4]) for item in items]


_REPLAY_ORDER = itemgetter(0, 1, 2, 3)


def history_channels(view: View, lane: int, start: CheckpointEntry) -> list[str]:
    """Channels of which a survivor needs the past when its ancestors go.

    Those that have a version and no value, and those that writes on its path touch and it holds no value of, but for marks.
    """
    table = read_record(view, start.ref).table
    wanted = {channel for channel, slot in table.items() if slot.value is None}
    visited = {start.number}
    entry = start
    while True:
        if entry.has_history:
            ref = view.history(lane, entry.number)
            assert ref is not None
            wanted |= read_history(view, ref).keys()
            break
        for ref in entry.consumed.refs():
            wanted |= {name for idx, name, _ in read_writes(view, ref).writes if idx >= 0}
        if not entry.parent or entry.parent in visited:
            break
        visited.add(entry.parent)
        parent = view.live_checkpoint(lane, entry.parent)
        if parent is None:
            break
        entry = parent
    return sorted(channel for channel in wanted if (table[channel].value is None if channel in table else channel not in _MARKS))
