"""The frozen records that travel between the rooms.

A *lane* is one namespace of one thread: a tree of checkpoints. A *place* is the LSN of the first put of an id and orders a lane.
References name a record by (LSN of its frame, ordinal inside the frame), never by offset, so that compaction may move bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

Typed = tuple[str, bytes]
"""A serialized value as a serde gives it: type tag, bytes. The tag is kept verbatim."""

Version = str | int | float


class Ref(NamedTuple):
    """Address of one record in the log."""

    lsn: int
    ordinal: int


class LaneName(NamedTuple):
    """A lane as callers name it."""

    thread: str
    ns: str = ""

    def __str__(self) -> str:
        return f"thread {self.thread!r}" + (f", namespace {self.ns!r}" if self.ns else "")


class Origin(IntEnum):
    """Where a batch of writes came from, as far as ownership cares."""

    TASK = 0
    NULL = 1
    """Writes of no task: a `Command`, or graph input of LangGraph before 1.2.15."""
    INPUT = 2
    EXIT = 3
    """Several supersteps at once, stored when a run ends."""


class Source(IntEnum):
    """What made a checkpoint, as far as ownership cares."""

    LOOP = 0
    INPUT = 1
    UPDATE = 2
    FORK = 3


class Consumed(NamedTuple):
    """Which batches of writes on its parent made a checkpoint, decided at its commit (DESIGN 7).

    Three groups, because three facts decide how a task's batches combine when they are replayed.
    """

    every: tuple[Ref, ...] = ()
    """Each batch counts, in order: two updates under one task id, or a native step."""
    newest: tuple[Ref, ...] = ()
    """The writer's own batches: the newest batch of a task counts, whole."""
    first: tuple[Ref, ...] = ()
    """Batches of other writers in the window: the first write of a (task, idx) counts, as readers were shown."""
    gated: bool = False
    """`first` may hold batches that the child did not use: compare channel versions of both ends when reading."""

    def refs(self) -> tuple[Ref, ...]:
        return self.every + self.newest + self.first


class Slot(NamedTuple):
    """One channel in a checkpoint's table."""

    version: Version | None
    value: Ref | Typed | None
    """A reference, the typed bytes themselves when tiny, or None: no value here."""


class CheckpointRecord(NamedTuple):
    """A stored checkpoint, its values still references."""

    ref: Ref
    lane: int
    id: str
    parent: str | None
    token: bytes
    consumed: Consumed
    skeleton: dict[str, Any]
    metadata: dict[str, Any] | Typed
    table: Mapping[str, Slot]


class WriteEntry(NamedTuple):
    """One write of a batch."""

    idx: int
    channel: str
    value: Ref | Typed


class WritesRecord(NamedTuple):
    """One `put_writes` call, whole."""

    ref: Ref
    lane: int
    target: str
    task_id: str
    task_path: str
    writes: tuple[WriteEntry, ...]


class PendingWrite(NamedTuple):
    """A write as a reader sees it."""

    task_id: str
    channel: str
    value: Typed


class StoredCheckpoint(NamedTuple):
    """What a read returns: fresh objects, values as typed bytes."""

    lane: LaneName
    id: str
    parent: str | None
    skeleton: dict[str, Any]
    metadata: dict[str, Any] | Typed
    versions: dict[str, Version]
    values: dict[str, Typed]
    writes: list[PendingWrite]


class Outline(NamedTuple):
    """A checkpoint without its values and writes: what costs the same to read however large they are."""

    lane: LaneName
    id: str
    parent: str | None
    skeleton: dict[str, Any]
    metadata: dict[str, Any] | Typed
    versions: dict[str, Version]
    valued: frozenset[str]
    """Channels whose value the checkpoint holds; the others are rebuilt from its lineage."""


class ChannelHistory(NamedTuple):
    """What one channel's ancestors contribute to a checkpoint: the nearest value, then the owned writes after it, oldest first."""

    seed: Typed | None
    writes: list[PendingWrite]


class ThreadInfo(NamedTuple):
    """One line of a thread listing; nothing in it needs a value to be read."""

    thread: str
    checkpoints: int
    namespaces: int
    head: str | None
    """Id of the head of the root namespace, or of the newest lane when there is no root."""
