"""Which calls any saver has to answer as the model does: those that LangGraph itself makes, from 1.2.15 on.

The machine plays more than that: what only `CkptSaver` promises (an order that is not that of ids, refusals, which writes made which
checkpoint whatever came in between, histories behind what was removed). For other savers such calls are left out:

- Ids grow, and an id is stored once: LangGraph makes them from the clock.
- A parent is stored before its child, and so are the writes that a delta channel of the child is made of.
- Where the writes on a parent are not just those that made the child, the child has the whole value of the delta channel. Edits, inputs
  and commands are not stored on a parent that has children; a task that is run again there is.
- A value that did not change has the version that it was stored with.
- A deleted thread begins anew, nothing is copied onto a thread that is there, and no removal takes what a delta channel needs.
- A history is asked for delta channels that have no value. A limit is not negative.
"""

from __future__ import annotations

from typing import Any

from ckptstore.testing.calls import SPECIAL, Call, Copy, DeleteForRuns, History, Listing, Past, Prune, Put, PutWrites, Version
from ckptstore.testing.model import Checkpoint, Lane, Model, pending, used
from ckptstore.testing.runs import DELTA


def is_langgraphs(model: Model, call: Call) -> bool:
    """Whether LangGraph makes a call in this state, so that every saver has to answer it as the model does."""
    match call:
        case Put():
            return _put(model.lane(call.thread, call.ns), call)
        case PutWrites():
            return (call.thread, call.ns, call.target) not in model.late and _put_writes(model.lane(call.thread, call.ns), call)
        case History():
            target = model.checkpoint(call.thread, call.ns, call.id)
            asked = set(DELTA) if target is None else set(DELTA) & target.put.versions.keys() - target.put.values.keys()
            return set(call.channels) <= asked
        case Listing():
            return call.limit is None or call.limit >= 0
        case Copy():
            return call.to not in model.threads
        case Prune():
            return not any(
                _needs_ancestors(model, lane, found)
                for lane in model.threads.get(call.thread, {}).values()
                for id, found in lane.checkpoints.items()
                if id == lane.head
            )
        case DeleteForRuns():
            return not any(
                _needs_ancestors(model, lane, found)
                for lanes in model.threads.values()
                for lane in lanes.values()
                for found in lane.checkpoints.values()
            )
    return True


def _put(lane: Lane | None, call: Put) -> bool:
    if call.parent is None:
        return lane is None or _is_new(lane, call.id)
    if lane is None or call.parent not in lane.checkpoints or not _is_new(lane, call.id):
        return False
    standing = {batch.number: batch for batch in lane.batches.get(call.parent, ())}
    if not {*call.made_by, *call.taken} <= standing.keys():
        return False
    child = Checkpoint(call, [standing[number] for number in call.made_by], [standing[number] for number in call.taken])
    seen = pending(standing.values())
    return all(
        used(child, channel) == [(task, value) for task, named, value in seen if named == channel]
        for channel in DELTA
        if channel in call.versions and channel not in call.values
    ) and all(
        _is_stored(lane, channel, call.versions[channel], value)
        for channel, value in call.values.items()
        if channel not in call.changed
    )


def _is_stored(lane: Lane, channel: str, version: Version, value: Any) -> bool:
    """Whether a checkpoint has this value of this version."""
    puts = [found.put for found in lane.checkpoints.values()]
    return any(put.versions.get(channel) == version and put.values.get(channel) == value for put in puts)


def _is_new(lane: Lane, id: str) -> bool:
    return id > max((*lane.checkpoints, *lane.removed), default="")


def _put_writes(lane: Lane | None, call: PutWrites) -> bool:
    channels = {channel for channel, _ in call.writes}
    if call.late_for is not None and channels & set(DELTA):
        return False
    if lane is None:
        return True
    if channels & SPECIAL.keys() and any(
        batch.task == call.task and batch.path != call.path for batch in lane.batches.get(call.target, ())
    ):
        # The path of a task is always the same.
        return False
    again = call.origin == "task" and any(
        batch.task == call.task and batch.path == call.path for child in lane.children(call.target) for batch in child.made_by
    )
    return again or channels <= SPECIAL.keys() or not lane.children(call.target)


def _needs_ancestors(model: Model, lane: Lane, checkpoint: Checkpoint) -> bool:
    return any(
        model.past(lane, checkpoint, channel) != Past()
        for channel in DELTA
        if channel in checkpoint.put.versions and channel not in checkpoint.put.values
    )
