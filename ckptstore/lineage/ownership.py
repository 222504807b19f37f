"""Which batches of writes on a parent made a child: decided once, when the child is committed (DESIGN 7).

Under the commit lock the candidates are complete: all batches stored on the parent so far, all children it has. The decision is
stored in the child as `Consumed`, so no later or interleaved write can change what the child's history reads.
This file holds the facts and the native default; a binding brings its own rule (`Rule`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ckptstore.codec.records import Kind, decode_checkpoint
from ckptstore.model import CheckpointRecord, Consumed, Ref, Source
from ckptstore.storage import View
from ckptstore.storage.catalog import CheckpointEntry, WritesEntry


class Sibling(NamedTuple):
    """A child that the parent has already."""

    entry: CheckpointEntry
    record: Callable[[], CheckpointRecord]
    """Reads it whole; only the rules that compare versions need that."""


class Edge(NamedTuple):
    """All that can be known when a child is committed."""

    parent_id: str
    candidates: Sequence[WritesEntry]
    """Batches on the parent with regular writes, in LSN order."""
    owned: frozenset[Ref]
    """Those that a child owns already, or owned before it was removed."""
    siblings: Sequence[Sibling]
    """By place."""


Rule = Callable[[Edge], Consumed]
LateRule = Callable[[Sequence[CheckpointEntry]], CheckpointEntry | None]
"""Given the children a batch's target already has: the one that this batch made, or None."""


def read_record(view: View, ref: Ref) -> CheckpointRecord:
    """A checkpoint record from the log."""
    frame = view.frame(ref.lsn)
    return decode_checkpoint(ref, frame.entry(ref, Kind.CHECKPOINT), frame.raw(ref.ordinal))


def edge(view: View, lane: int, parent: int, parent_id: str, *, child: int | None) -> Edge:
    """Collect the facts of an edge.

    Args:
        child: number of the child itself where it exists already (a re-put): it is not its own sibling.
    """
    siblings = []
    for number in view.children(lane, parent):
        entry = view.live_checkpoint(lane, number)
        if entry is not None and number != child:
            siblings.append(entry)
    owned = frozenset(ref for entry in siblings for ref in entry.consumed.refs())
    candidates = [batch for batch in view.writes(lane, parent) if batch.regular]
    spent = frozenset(batch.ref for batch in candidates if batch.spent)
    return Edge(parent_id, candidates, owned | spent, [Sibling(entry, _reader(view, entry.ref)) for entry in siblings])


def _reader(view: View, ref: Ref) -> Callable[[], CheckpointRecord]:
    return lambda: read_record(view, ref)


def native(edge: Edge) -> Consumed:
    """Everything stored on the parent since its previous child."""
    return by_token(edge, b"", Source.LOOP)


def by_token(
    edge: Edge,
    token: bytes,
    source: Source,
    can_use: Callable[[Source, WritesEntry], bool] = lambda source, batch: True,
) -> Consumed:
    """A writer's own batches, and for tasks without one what stands in the window since the previous child.

    Args:
        token: names the writer; empty when unknown, then only the window counts.
        source: an update may store several batches under one task id, and all of them count.
        can_use: whether a child of that source can have used a batch at all. A sibling that could not does not end the window.
    """
    mine = {ref for sibling in edge.siblings if sibling.entry.token == token for ref in sibling.entry.consumed.refs()}
    own: dict[bytes, list[Ref]] = {}
    for batch in edge.candidates:
        # What another writer's child took is still this writer's own; what made a child of its own made that one.
        if token and batch.token == token and batch.ref not in mine and can_use(source, batch):
            own.setdefault(batch.task, []).append(batch.ref)
    first = tuple(
        batch.ref
        for batch in edge.candidates
        if batch.task not in own
        and batch.ref not in edge.owned
        and can_use(source, batch)
        and not any(sibling.entry.place > batch.ref.lsn and can_use(sibling.entry.source, batch) for sibling in edge.siblings)
    )
    refs = tuple(sorted(ref for batches in own.values() for ref in batches))
    if source == Source.UPDATE:
        return Consumed(every=refs, first=first)
    return Consumed(newest=refs, first=first)
