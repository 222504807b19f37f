"""Delete, copy and prune: what removes records or shares them, decided under the commit lock, on the storage protocol alone.

Removing writes a tombstone; the bytes go at compaction. A survivor that loses ancestors gets a history record in the same commit, so
there is no moment at which it reads otherwise than before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from ckptstore.codec.names import late_hash, name_hash, run_hash
from ckptstore.codec.records import (
    LANE_SCOPE,
    THREAD_SCOPE,
    Encoded,
    Kind,
    checkpoint_id,
    checkpoint_run,
    encode_copy,
    encode_history,
    encode_lane,
    encode_thread,
    encode_tombstone,
)
from ckptstore.errors import InvalidArgumentError, ThreadExistsError
from ckptstore.lineage.history import history_channels, past
from ckptstore.lineage.listing import ns_name
from ckptstore.lineage.ownership import read_record
from ckptstore.lineage.reach import all_numbers, closure, frames_of, reachable, relatives
from ckptstore.model import Ref
from ckptstore.storage import Storage, View
from ckptstore.storage.catalog import CheckpointEntry


class _Nothing(Exception):
    """Internal: a commit turned out to have nothing to do."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def delete(storage: Storage, thread: str) -> bool:
    """Delete a thread: all namespaces, checkpoints, writes. Its ids are remembered, so that late writes are refused.

    Copies of the thread keep reading what they share. Space comes back by compaction.

    Returns:
        Whether there was such a thread.
    """
    deleted = False

    def resolve(view: View) -> list[Encoded]:
        nonlocal deleted
        number = view.thread(thread)
        deleted = number is not None
        if number is None:
            raise _Nothing
        lanes = view.lanes(number)
        dead: set[int] = set()
        kept: set[int] = set()
        hashes = []
        for lane in lanes:
            address = view.address(lane)
            assert address is not None
            dead |= frames_of(view, lane)
            for other in relatives(view, lane) - set(lanes):
                kept |= reachable(view, other)
            for known, hashed in view.id_hashes(lane).items():
                entry = view.checkpoint(lane, known)
                if entry is not None or view.writes(lane, known):
                    hashes.append(late_hash(address.thread_hash, address.ns_hash, hashed))
        return [encode_tombstone(THREAD_SCOPE, number, now_ms(), b"".join(hashes), dead - kept)]

    with contextlib.suppress(_Nothing):
        storage.commit(resolve)
    return deleted


def copy(storage: Storage, source: str, destination: str) -> int:
    """Copy a thread by reference: same ids, same order, all namespaces and writes; nothing of the log is duplicated.

    Returns:
        Number of checkpoints the copy holds; 0 when there is no such source, and then nothing is created.

    Raises:
        ThreadExistsError: the destination holds records already.
    """
    if source == destination:
        raise InvalidArgumentError(f"destination={destination!r}: a thread cannot be copied onto itself")
    copied = 0

    def resolve(view: View) -> list[Encoded]:
        nonlocal copied
        copied = 0
        number = view.thread(source)
        if number is None:
            raise _Nothing
        if view.thread(destination) is not None:
            raise ThreadExistsError(f"thread {destination!r} exists: a copy needs a new name, or delete that thread first")
        next_thread, next_lane = view.next_numbers()
        records = [encode_thread(next_thread, name_hash(destination), destination)]
        for lane in view.lanes(number):
            ns = ns_name(view, lane)
            records.append(encode_lane(next_lane, name_hash(ns), next_thread, ns))
            records.append(encode_copy(next_lane, lane, 0))
            copied += view.state(lane).checkpoints
            next_lane += 1
        return records

    try:
        storage.commit(resolve)
    except _Nothing:
        return 0
    return copied


def prune(storage: Storage, thread: str) -> int:
    """Keep the head of each namespace and remove every other checkpoint; what the heads need of them is kept.

    Returns:
        Number of checkpoints removed.
    """

    def choose(view: View) -> dict[int, set[int]]:
        number = view.thread(thread)
        chosen = {}
        for lane in [] if number is None else view.lanes(number):
            head = view.head(lane)
            keep = None if head is None else head.number
            chosen[lane] = {known for _, known in view.newest_first(lane)} - {keep}
        return chosen

    return _remove(storage, choose)


def delete_for_runs(storage: Storage, runs: Iterable[str]) -> int:
    """Remove every checkpoint, in any thread and namespace, whose metadata names one of these runs; return how many."""
    names = [run_hash(run) for run in runs]

    def choose(view: View) -> dict[int, set[int]]:
        chosen: dict[int, set[int]] = {}
        for run in names:
            for lane, number in view.of_run(run):
                entry = view.live_checkpoint(lane, number) if view.address(lane) is not None else None
                if entry is not None and _is_of_run(view, entry, names):
                    chosen.setdefault(lane, set()).add(number)
        return chosen

    return _remove(storage, choose) if names else 0


def _is_of_run(view: View, entry: CheckpointEntry, runs: Collection[bytes]) -> bool:
    # A re-put may have changed the metadata since the index entry was made.
    return checkpoint_run(view.frame(entry.ref.lsn).entry(entry.ref, Kind.CHECKPOINT)) in runs


def _remove(storage: Storage, choose: Callable[[View], Mapping[int, Collection[int]]]) -> int:
    """Remove checkpoints, and give each survivor that loses its parent a history record, in one commit."""
    removed = 0

    def resolve(view: View) -> list[Encoded]:
        nonlocal removed
        chosen = {lane: set(numbers) for lane, numbers in choose(view).items() if numbers}
        removed = sum(map(len, chosen.values()))
        if not removed:
            raise _Nothing
        kept: set[int] = set()
        histories = []
        dead: dict[int, set[int]] = {}
        for lane, gone in chosen.items():
            dead[lane] = set()
            for number in all_numbers(view, lane):
                entry = view.live_checkpoint(lane, number)
                if entry is None:
                    continue
                if number in gone:
                    dead[lane].add(entry.ref.lsn)
                    dead[lane].update(batch.ref.lsn for batch in view.writes(lane, number))
                elif entry.parent in gone and not entry.has_history:
                    histories.append(_survivor(view, lane, entry, kept))
        # Live is what any lane still reaches once all of this is gone: one frame may hold records of several.
        family = set(chosen).union(*(relatives(view, lane) for lane in chosen))
        for member in family:
            kept |= reachable(view, member, without=chosen.get(member, ()))
        return histories + [_tombstone(view, lane, gone, dead[lane] - kept) for lane, gone in chosen.items()]

    try:
        storage.commit(resolve)
    except _Nothing:
        return 0
    return removed


def _tombstone(view: View, lane: int, gone: Collection[int], dead: Collection[int]) -> Encoded:
    hashes = view.id_hashes(lane)
    names = b"".join(hashes[number] for number in sorted(gone))
    spent = []
    for number in gone:
        entry = view.live_checkpoint(lane, number)
        parent = view.live_checkpoint(lane, entry.parent) if entry is not None and entry.parent not in gone else None
        if entry is not None and parent is not None and entry.consumed.refs():
            spent.append((_id_of(view, parent), entry.consumed.refs()))
    return encode_tombstone(LANE_SCOPE, lane, now_ms(), names, dead, _head_after(view, lane, gone), spent)


def _id_of(view: View, entry: CheckpointEntry) -> str:
    return checkpoint_id(view.entry(entry.ref, Kind.CHECKPOINT))


def _head_after(view: View, lane: int, gone: Collection[int]) -> str | None:
    """The head once these checkpoints are removed: the present one, or the newest that is left."""
    head = view.head(lane)
    if head is None or head.number in gone:
        left = next((number for _, number in view.newest_first(lane) if number not in gone), None)
        head = None if left is None else view.live_checkpoint(lane, left)
    return None if head is None else _id_of(view, head)


def _survivor(view: View, lane: int, entry: CheckpointEntry, kept: set[int]) -> Encoded:
    """The history record of a checkpoint whose parent goes; adds the frames it needs to `kept`."""
    pasts = past(view, lane, entry, history_channels(view, lane, entry), admit_loss=True)
    needed = {channel: value for channel, value in pasts.items() if value.seed is not None or value.edges or value.lost}
    seeds = [seed for seed, _, _ in needed.values() if isinstance(seed, Ref)]
    batches = [ref for _, edges, _ in needed.values() for edge in edges for group in edge for ref in group]
    kept |= closure(view, seeds, batches)
    # Written even when nothing is needed: it says that the walk may end here.
    return encode_history(lane, read_record(view, entry.ref).id, needed)
