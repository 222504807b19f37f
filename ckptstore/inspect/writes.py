"""The batches of writes stored on a checkpoint, and which of its children each of them made, and why."""

from __future__ import annotations

import os
from typing import Any, Final, Literal, NamedTuple

from ckptstore.errors import CkptStoreError
from ckptstore.inspect.looking import looking
from ckptstore.inspect.refs import Reference, find_checkpoint, find_lane, id_of
from ckptstore.inspect.show import seen_write
from ckptstore.lineage.history import read_writes
from ckptstore.lineage.values import Values
from ckptstore.model import Ref
from ckptstore.storage import View
from ckptstore.storage.catalog import CheckpointEntry, WritesEntry

Group = Literal["every", "newest", "first"]

WHY: Final[dict[str, str]] = {
    "every": "each batch of the step or update counts",
    "newest": "the child's own writer stored it; the newest batch of a task counts",
    "first": "stored by others since the previous child; the first write of a task and index counts",
}


class Consumer(NamedTuple):
    """A child that a batch made."""

    id: str | None
    """None where its record is damaged."""
    how: Group
    """See `WHY`."""
    late: bool
    """Whether the batch came after the child, whose writer it has in common."""
    gated: bool
    """With `first`: used only as far as the child's channel versions moved, which is looked up when reading."""


class StoredWrite(NamedTuple):
    """One write of a batch."""

    idx: int
    """Negative for a special channel, of which readers see the last write."""
    channel: str
    value: Any


class Batch(NamedTuple):
    """One `put_writes` call."""

    lsn: int
    task_id: str
    task_path: str
    origin: str
    """task, null (of no task), input, or exit (several steps at once)."""
    token: str
    """Names the run that stored it, in hex; empty when it is not known."""
    writes: list[StoredWrite]
    consumers: list[Consumer]


class WritesReport(NamedTuple):
    """All batches on one checkpoint id, oldest first."""

    thread: str
    ns: str
    id: str
    stored: bool
    """Whether the checkpoint itself is there: writes may come before it, or without it."""
    batches: list[Batch]
    problems: list[str]


def writes_report(path: str | os.PathLike[str], reference: Reference, *, lock_timeout: float = 30.0) -> WritesReport:
    """The batches on a checkpoint.

    Args:
        reference: a checkpoint; by its whole id also one that is not stored.
        lock_timeout: seconds, see `opened`.

    Raises:
        UnknownReferenceError: there is no such checkpoint, and nothing was written to such an id.
        what `opened` raises.
    """
    with looking(path, lock_timeout) as (here, problems), here.storage.view() as view:
        values = Values(here.store.options.cache_bytes, lambda: here.storage.activity)
        lane, number = find_lane(view, reference)
        known = None if reference.id is None else view.number(number, reference.id)
        stored = known is None or view.live_checkpoint(number, known) is not None
        if known is not None and not stored and not reference.back and view.writes(number, known):
            assert reference.id is not None
            id, target = reference.id, known
        else:
            place = find_checkpoint(view, reference)
            id, target, stored = place.id, place.entry.number, True
        children = [view.live_checkpoint(number, child) for child in view.children(number, target)]
        live = [child for child in children if child is not None]
        batches = [
            found for batch in view.writes(number, target) if (found := _batch(view, values, batch, live, problems)) is not None
        ]
        return WritesReport(lane.thread, lane.ns, id, stored, batches, problems)


def _batch(view: View, values: Values, batch: WritesEntry, children: list[CheckpointEntry], problems: list[str]) -> Batch | None:
    try:
        record = read_writes(view, batch.ref)
    except CkptStoreError as error:
        problems.append(f"batch at LSN {batch.ref.lsn}: {error}")
        return None
    writes = []
    for item in record.writes:
        try:
            writes.append(StoredWrite(item.idx, item.channel, seen_write(values.typed(view, item.value))))
        except CkptStoreError as error:
            problems.append(f"batch at LSN {batch.ref.lsn}, channel {item.channel!r}: {error}")
    consumers = [found for child in children if (found := _consumer(view, batch.ref, child, problems)) is not None]
    return Batch(batch.ref.lsn, record.task_id, record.task_path, batch.origin.name.lower(), batch.token.hex(), writes, consumers)


def _consumer(view: View, batch: Ref, child: CheckpointEntry, problems: list[str]) -> Consumer | None:
    consumed = child.consumed
    how: Group
    if batch in consumed.every:
        how = "every"
    elif batch in consumed.newest:
        how = "newest"
    elif batch in consumed.first:
        how = "first"
    else:
        return None
    id = None
    try:
        id = id_of(view, child)
    except CkptStoreError as error:
        problems.append(f"a child of it: {error}")
    return Consumer(id, how, batch.lsn > child.place, consumed.gated and how == "first")
