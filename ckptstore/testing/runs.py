"""What is true of the runs that a random program plays: which writes are whose, and where two could not be told apart.

The machine plays LangGraph's loop: a run stands on a checkpoint, its tasks write there, then it stores a child. So it knows what made the
child. A few races are decided by time only (docs/guarantees.md, limitations): the functions here say where one would begin, and the
machine does not go there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ckptstore.testing.calls import Origin, Past, Put, PutWrites, Refused, Source
from ckptstore.testing.model import Batch, Checkpoint, Lane, Model

DELTA = ("log", "facts")
"""Channels that hold no value in most checkpoints: they are rebuilt from writes. Their values are snapshots: lists of all writes."""
FULL = ("messages", "title")
CHANNELS = (*DELTA, *FULL)
"""What tasks write. Checkpoints also have `step` and `note`."""

USES: dict[Source, frozenset[Origin]] = {
    "loop": frozenset({"task", "null", "input"}),
    "update": frozenset({"task", "null", "input"}),
    "input": frozenset({"null", "input"}),
    "fork": frozenset({"null"}),
}
"""Writes that a checkpoint of each source can be made of."""


@dataclass
class Run:
    """A run that goes on: where it stands, and what it did there."""

    writer: str | None
    thread: str
    ns: str
    at: Put
    """The checkpoint it stands on, as the run knows it."""
    own: dict[str, list[int]] = field(default_factory=dict)
    """Task -> numbers of its batches here, newest last; of those with a regular write."""
    taken: dict[str, list[int]] = field(default_factory=dict)
    """Task -> numbers of batches of others, found here at the start and used instead of running the task."""
    siblings: frozenset[str] = frozenset()
    """Children that the checkpoint had when the run came."""
    held: list[PutWrites] = field(default_factory=list)
    """Batches of finished tasks that are stored only after the child they make."""
    next_id: str | None = None
    """Id of its next checkpoint, where tasks wrote there before it is stored."""
    ahead: dict[str, list[int]] = field(default_factory=dict)
    """`own` of the next checkpoint."""


def channels_of(batches: Iterable[Batch]) -> set[str]:
    """Channels with a regular write."""
    return {write.channel for batch in batches for write in batch.writes if write.idx >= 0}


def batches(lane: Lane | None, target: str, numbers: Iterable[int]) -> list[Batch]:
    wanted = set(numbers)
    return [] if lane is None else [batch for batch in lane.batches.get(target, ()) if batch.number in wanted]


def strangers(
    lane: Lane | None, parent: str | None, source: Source, mine: Iterable[int] = (), tasks: Iterable[str] = ()
) -> list[Batch]:
    """Batches on a parent that made no checkpoint, are not the writer's, and that its child could have been made of for all one can see.

    Args:
        tasks: those that the writer knows the batches of.
    """
    known, own = set(mine), set(tasks)
    return [
        batch
        for batch in (() if lane is None or parent is None else lane.batches.get(parent, ()))
        if batch.regular
        and batch.number not in known
        and batch.number not in lane.spent  # type: ignore[union-attr]
        and batch.task not in own
        and batch.origin in USES[source]
    ]


def finished(lane: Lane, parent: str, tasks: Iterable[str]) -> dict[str, list[int]]:
    """Tasks of which a run that starts on a checkpoint finds the writes, if it can be sure whose they are."""
    if any(child.put.source in ("loop", "update") for child in lane.children(parent)):
        return {}
    found: dict[str, list[int]] = {}
    for task in tasks:
        standing = [batch for batch in lane.batches.get(parent, ()) if batch.task == task and batch.regular]
        if standing and not lane.spent & {batch.number for batch in standing}:
            found[task] = [batch.number for batch in standing]
    return found


def folded(model: Model, lane: Lane | None, at: Put, channel: str, more: Iterable[Batch]) -> list[object]:
    """A snapshot of a delta channel after these writes; without what was lost."""
    start = None if lane is None else lane.checkpoints.get(at.id)
    value: list[object] = list(at.values.get(channel, ()))
    if channel not in at.values and lane is not None and start is not None:
        past = _past(model, lane, start, channel)
        value = [*(past.seed[0] if past.seed else ()), *(item for _, item in past.writes)]
    return value + [write.value for batch in more for write in batch.writes if write.channel == channel and write.idx >= 0]


def _past(model: Model, lane: Lane, start: Checkpoint, channel: str) -> Past:
    try:
        return model.past(lane, start, channel)
    except Refused:
        return Past()
