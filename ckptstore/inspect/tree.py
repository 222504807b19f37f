"""The checkpoints of a lane as a tree: who descends from whom, where it forks, which are leaves, and where the head is.

The shape comes from the index alone. Of each checkpoint that is shown the record is read, for its step, source and time; values are not.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from ckptstore.codec.inert import UnreadableValueError, inert
from ckptstore.errors import CorruptionError, InvalidArgumentError, StaleIndexError
from ckptstore.inspect.looking import looking
from ckptstore.inspect.progress import Progress
from ckptstore.inspect.refs import Reference, find_checkpoint, find_lane, id_of, live_entries
from ckptstore.lineage.reader import checked_record
from ckptstore.storage import View
from ckptstore.storage.catalog import CheckpointEntry

Parent = Literal["stored", "none", "pruned", "missing"]

# Records read in one view: a view pins pages of the index.
_STRETCH = 256


class LogEntry(NamedTuple):
    """One checkpoint of the tree."""

    number: int
    """Number of the id in its lane: what the parents of others point at."""
    id: str | None
    """None where the record is damaged."""
    parent: str | None
    parent_number: int
    """0 where no parent is shown: see `parent_is`."""
    parent_is: Parent
    """`pruned`: removed, and what is needed of it is kept; `missing`: named, and not in the store."""
    step: int | None
    source: str | None
    """What made it: `input`, `loop`, `update` or `fork` in LangGraph; None where the record does not say."""
    time: str | None
    """By the writer's clock, ISO 8601."""
    head: bool
    leaf: bool
    children: int
    batches: int
    """Batches of writes stored on it."""


class LogReport(NamedTuple):
    """A lane, or the lineage of one checkpoint."""

    thread: str
    ns: str
    head: str | None
    total: int
    """Checkpoints before `limit`."""
    leaves: int
    checkpoints: list[LogEntry]
    """Newest first, and no parent before its child."""
    problems: list[str]


def log_report(
    path: str | os.PathLike[str],
    reference: Reference,
    *,
    leaves: bool = False,
    limit: int | None = None,
    lock_timeout: float = 30.0,
    progress: Progress | None = None,
) -> LogReport:
    """The tree of a lane; of a checkpoint, where the reference names one, its lineage.

    Args:
        leaves: only checkpoints without children.
        limit: at most so many, at least 0; None for all.
        lock_timeout: seconds, see `opened`.
        progress: told how many of how many records were read.

    Raises:
        InvalidArgumentError: `limit` is negative.
        UnknownReferenceError: there is no such lane or checkpoint.
        what `opened` raises.
    """
    if limit is not None and limit < 0:
        raise InvalidArgumentError(f"limit={limit}: 0 or more is needed")
    with looking(path, lock_timeout) as (here, problems):
        with here.storage.view() as view:
            lane, number = find_lane(view, reference)
            if reference.lane:
                entries = list(live_entries(view, number))
            else:
                entries = _lineage(view, number, find_checkpoint(view, reference).entry)
            head = view.state(number).head
            head_id = _head_id(view, number)
            children = {entry.number: len(view.children(number, entry.number)) for entry in entries}
        ordered, looped = _children_first(entries)
        if looped:
            problems.append(
                f"{looped} checkpoints are their own ancestors: a checkpoint was stored again under one of its descendants"
            )
        shown = [entry for entry in ordered if not leaves or not children[entry.number]]
        total = len(shown)
        shown = shown[:limit]
        found: list[LogEntry] = []
        for at in range(0, len(shown), _STRETCH):
            with here.storage.view() as view:
                for entry in shown[at : at + _STRETCH]:
                    found.append(_entry(view, number, entry, entry.number == head, children[entry.number], problems))
            if progress is not None:
                progress(len(found), len(shown))
    count = sum(1 for entry in entries if not children[entry.number])
    return LogReport(lane.thread, lane.ns, head_id, total, count, found, problems)


def _head_id(view: View, lane: int) -> str | None:
    """Id of the lane's head; None where there is none, or it is damaged, which the report says where it shows it."""
    head = view.head(lane)
    try:
        return None if head is None else id_of(view, head)
    except (CorruptionError, StaleIndexError):
        return None


def _lineage(view: View, lane: int, start: CheckpointEntry) -> list[CheckpointEntry]:
    found, seen = [start], {start.number}
    entry = start
    while entry.parent and entry.parent not in seen:
        parent = view.live_checkpoint(lane, entry.parent)
        if parent is None:
            break
        seen.add(parent.number)
        found.append(parent)
        entry = parent
    return found


def _children_first(entries: Sequence[CheckpointEntry]) -> tuple[list[CheckpointEntry], int]:
    """Newest first, but no parent before its child: a parent may have been stored after it. And how many stand in loops."""
    known = {entry.number: entry for entry in entries}
    waiting = dict.fromkeys(known, 0)
    for entry in entries:
        if entry.parent in known:
            waiting[entry.parent] += 1
    ready = [(-entry.place, entry.number) for entry in entries if not waiting[entry.number]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        entry = known[heapq.heappop(ready)[1]]
        ordered.append(entry)
        if entry.parent in known:
            waiting[entry.parent] -= 1
            if not waiting[entry.parent]:
                heapq.heappush(ready, (-known[entry.parent].place, entry.parent))
    placed = {entry.number for entry in ordered}
    looped = [entry for entry in entries if entry.number not in placed]
    return ordered + looped, len(looped)


def _entry(view: View, lane: int, entry: CheckpointEntry, head: bool, children: int, problems: list[str]) -> LogEntry:
    parent_is = _parent_of(view, lane, entry)
    batches = len(view.writes(lane, entry.number))
    above = entry.parent if parent_is == "stored" else 0
    try:
        record = checked_record(view, lane, entry)
    except (CorruptionError, StaleIndexError) as error:
        problems.append(f"checkpoint number {entry.number}: {error}")
        return LogEntry(entry.number, None, None, above, parent_is, None, None, None, head, not children, children, batches)
    step, source, time = facts_of(record.skeleton, record.metadata)
    return LogEntry(
        entry.number, record.id, record.parent, above, parent_is, step, source, time, head, not children, children, batches
    )


def _parent_of(view: View, lane: int, entry: CheckpointEntry) -> Parent:
    if not entry.parent:
        return "none"
    parent = view.checkpoint(lane, entry.parent)
    if parent is not None and not parent.removed:
        return "stored"
    return "pruned" if entry.has_history or parent is not None else "missing"


def facts_of(skeleton: Any, metadata: Any) -> tuple[int | None, str | None, str | None]:
    """(step, source, time) of a checkpoint, where its record says so."""
    skeleton, metadata = as_map(skeleton), as_map(metadata)
    step = metadata.get("step", skeleton.get("step"))
    source = metadata.get("source")
    time = skeleton.get("ts")
    created = skeleton.get("created_ms")
    if not isinstance(time, str) and isinstance(created, int) and 0 <= created < 1 << 42:
        time = datetime.fromtimestamp(created / 1000, UTC).isoformat(timespec="milliseconds")
    return (
        step if isinstance(step, int) else None,
        source if isinstance(source, str) else None,
        time if isinstance(time, str) else None,
    )


def as_map(stored: Any) -> dict[str, Any]:
    """Skeleton or metadata as a dictionary; what the engine could not keep as plain values is typed bytes."""
    if isinstance(stored, tuple):
        try:
            stored = inert(stored)
        except UnreadableValueError:
            return {}
    return stored if isinstance(stored, dict) else {}
