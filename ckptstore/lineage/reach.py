"""Which frames a lane still needs: what is live is what is reachable over references."""

from __future__ import annotations

from collections.abc import Iterable

from ckptstore.codec.records import Kind, checkpoint_refs, history_refs, value_facts, writes_refs
from ckptstore.model import Ref
from ckptstore.storage import View


def all_numbers(view: View, lane: int) -> list[int]:
    """Every number of a lane: checkpoints, removed ones, and ids that only writes or children name."""
    return list(range(1, view.state(lane).numbers + 1))


def frames_of(view: View, lane: int) -> set[int]:
    """LSNs of frames that records of this lane stand in, by the index alone; what those reference is not followed."""
    lsns = _names(view, lane)
    for number in all_numbers(view, lane):
        entry = view.live_checkpoint(lane, number)
        if entry is not None:
            lsns.add(entry.ref.lsn)
        lsns.update(batch.ref.lsn for batch in view.writes(lane, number))
        history = view.history(lane, number)
        if history is not None:
            lsns.add(history.lsn)
            entry_ = view.frame(history.lsn).entry(history, Kind.HISTORY)
            values, writes = history_refs(entry_)
            lsns.update(ref.lsn for ref in (*values, *writes))
    return lsns


def reachable(view: View, lane: int, without: Iterable[int] = ()) -> set[int]:
    """LSNs of frames that live records of a lane, and its names, stand in or reference, bases of patches included.

    Args:
        without: numbers of checkpoints to leave out, with their writes: those about to be removed.
    """
    left_out = set(without)
    lsns: set[int] = _names(view, lane)
    values: set[Ref] = set()
    batches: set[Ref] = set()
    for number in all_numbers(view, lane):
        if number in left_out:
            continue
        entry = view.live_checkpoint(lane, number)
        if entry is not None:
            lsns.add(entry.ref.lsn)
            values.update(checkpoint_refs(entry.ref.lsn, view.frame(entry.ref.lsn).entry(entry.ref, Kind.CHECKPOINT)))
            if not entry.has_history and entry.parent not in left_out and view.live_checkpoint(lane, entry.parent):
                batches.update(entry.consumed.refs())
        batches.update(batch.ref for batch in view.writes(lane, number))
        history = view.history(lane, number)
        if history is not None:
            lsns.add(history.lsn)
            kept_values, kept_writes = history_refs(view.frame(history.lsn).entry(history, Kind.HISTORY))
            values.update(kept_values)
            batches.update(kept_writes)
    return lsns | closure(view, values, batches)


def _names(view: View, lane: int) -> set[int]:
    """Frames that introduced a live lane and its thread: they may stand beside a checkpoint that is gone."""
    address = view.address(lane)
    if address is None:
        return set()
    return {address.ref.lsn, view.thread_record(address.thread)[0].lsn}


def closure(view: View, values: Iterable[Ref], batches: Iterable[Ref]) -> set[int]:
    """LSNs of frames needed to read these values and batches of writes, through all bases."""
    waiting_values, waiting_batches = set(values), set(batches)
    seen: set[Ref] = set()
    while waiting_values or waiting_batches:
        if waiting_batches:
            ref = waiting_batches.pop()
            if ref not in seen:
                seen.add(ref)
                waiting_values.update(writes_refs(ref.lsn, view.frame(ref.lsn).entry(ref, Kind.WRITES)))
        else:
            ref = waiting_values.pop()
            if ref not in seen:
                seen.add(ref)
                facts = value_facts(ref.lsn, view.frame(ref.lsn).entry(ref, Kind.VALUE))
                waiting_values.update(facts.bases)
                waiting_batches.update(facts.folds)
    return {ref.lsn for ref in seen}


def relatives(view: View, lane: int) -> set[int]:
    """Live lanes that share records with this one: its copies, what it was copied from, and their copies."""
    family = {lane, *view.origins(lane)}
    found = {origin for origin in family if origin != lane and view.address(origin) is not None}
    for other, origins in view.copied_lanes():
        if other != lane and family & {other, *origins}:
            found.add(other)
    return found
