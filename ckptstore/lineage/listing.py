"""Listings: of checkpoints, newest first, and of threads. Nothing is held between two items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from ckptstore.codec.names import name_hash
from ckptstore.codec.records import Kind, checkpoint_id, entry_name
from ckptstore.errors import CkptStoreError, CorruptionError, FrameGoneError
from ckptstore.lineage.reader import checked_record, stored
from ckptstore.lineage.values import Values
from ckptstore.model import LaneName, Ref, StoredCheckpoint, ThreadInfo, Typed
from ckptstore.storage import Storage, View, named_entry, read_again
from ckptstore.storage.catalog import CheckpointEntry, LaneState

# Threads listed in one view: it is closed before the caller goes on.
_PORTION = 256
_ROOT = name_hash("")


class _Item(NamedTuple):
    lane: LaneName
    number: int
    checkpoint: int


_Step = _Item | CkptStoreError
"""One item of a listing: where it stands, or why it cannot be listed."""


class CheckpointIterator:
    """Checkpoints one by one. Nothing is held between two of them, and an error about one does not end the iteration."""

    def __init__(
        self,
        storage: Storage,
        values: Values,
        thread: str | None,
        ns: str | None,
        id: str | None,
        before: str | None,
        accept: Callable[[dict[str, Any] | Typed], bool] | None,
    ) -> None:
        self._storage = storage
        self._values = values
        self._plan = _plan(storage, thread, ns, id, before)
        self._accept = accept

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredCheckpoint:
        for step in self._plan:
            if isinstance(step, CkptStoreError):
                raise step
            item = self._read(step)
            if item is not None:
                return item
        raise StopIteration

    def _read(self, item: _Item) -> StoredCheckpoint | None:
        """One checkpoint; None where it was removed since the plan was made, or is not accepted."""
        lane, number, known = item
        while True:
            try:
                with self._storage.view() as view:
                    entry = view.live_checkpoint(number, known) if view.address(number) is not None else None
                    if entry is None or not (self._accept is None or self._accept(checked_record(view, number, entry).metadata)):
                        return None
                    return stored(view, self._values, lane, number, entry)
            except FrameGoneError:
                continue


class AsyncCheckpointIterator:
    """The same for an event loop: each step in a worker thread, and an error about one does not end the iteration."""

    def __init__(self, found: CheckpointIterator) -> None:
        self._found = found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredCheckpoint:
        item = await asyncio.to_thread(next, self._found, None)
        if item is None:
            raise StopAsyncIteration
        return item


def _plan(storage: Storage, thread: str | None, ns: str | None, id: str | None, before: str | None) -> Iterator[_Step]:
    lanes, unreadable = read_again(storage, partial(_lanes, thread=thread, ns=ns))
    yield from unreadable
    if id is not None:
        for lane, number in lanes:
            known = read_again(storage, partial(_known, lane=number, id=id, before=before))
            if known is not None:
                yield _Item(lane, number, known)
    elif len(lanes) == 1:
        yield from _by_place(storage, *lanes[0], before)
    else:
        yield from _by_id(storage, lanes, before)


def _known(view: View, lane: int, id: str, before: str | None) -> int | None:
    """The number of an id that a listing covers."""
    known = view.number(lane, id)
    entry = None if known is None else view.live_checkpoint(lane, known)
    return known if entry is not None and _is_before(view, lane, entry, before) else None


def _id(view: View, entry: CheckpointEntry) -> str:
    return checkpoint_id(view.entry(entry.ref, Kind.CHECKPOINT))


def _bound(view: View, lane: int, before: str) -> CheckpointEntry | None:
    """The checkpoint that bounds a listing by its place, where the lane holds it."""
    number = view.number(lane, before)
    return None if number is None else view.live_checkpoint(lane, number)


def _is_before(view: View, lane: int, entry: CheckpointEntry, before: str | None) -> bool:
    if before is None:
        return True
    bound = _bound(view, lane, before)
    return entry.place < bound.place if bound is not None else _id(view, entry) < before


def _by_place(storage: Storage, lane: LaneName, number: int, before: str | None) -> Iterator[_Step]:
    """One lane, newest first. Each step looks up the next place anew, so commits and removals in between do no harm."""
    place: int | None = None
    compare_ids = False
    if before is not None:
        with storage.view() as view:
            bound = _bound(view, number, before)
            place, compare_ids = (None, True) if bound is None else (bound.place, False)
    while True:
        try:
            with storage.view() as view:
                step = next(view.newest_first(number, place), None)
                if step is None:
                    return
                entry = view.live_checkpoint(number, step[1])
                wanted = entry is not None and not (compare_ids and before is not None and _id(view, entry) >= before)
        except FrameGoneError:
            continue
        place, found = step
        if wanted:
            yield _Item(lane, number, found)


def _by_id(storage: Storage, lanes: Sequence[tuple[LaneName, int]], before: str | None) -> Iterator[_Step]:
    """Several lanes, by id descending: a subgraph's checkpoint may land before the one of its root."""
    found: list[tuple[str, int, LaneName, int]] = []
    for lane, number in lanes:
        readable, unreadable = read_again(storage, partial(_ids, name=lane, lane=number, before=before))
        yield from unreadable
        found += [(id, known, lane, number) for id, known in readable]
    found.sort(key=lambda item: (item[0], item[1]), reverse=True)
    for _, known, lane, number in found:
        yield _Item(lane, number, known)


def _ids(view: View, name: LaneName, lane: int, before: str | None) -> tuple[list[tuple[str, int]], list[CkptStoreError]]:
    """(id, number) of the checkpoints of a lane that a listing covers, and an error for each whose id cannot be read."""
    readable: list[tuple[str, int]] = []
    unreadable: list[CkptStoreError] = []
    bound = None if before is None else _bound(view, lane, before)
    for _, known in view.newest_first(lane, None if bound is None else bound.place):
        entry = view.live_checkpoint(lane, known)
        if entry is None:
            continue
        try:
            id = _id(view, entry)
        except FrameGoneError:
            raise
        except CkptStoreError as error:
            unreadable.append(CorruptionError(f"{name}, checkpoint number {known}: {error}"))
            continue
        if bound is not None or before is None or id < before:
            readable.append((id, known))
    return readable, unreadable


def _lanes(view: View, thread: str | None, ns: str | None) -> tuple[Sequence[tuple[LaneName, int]], Sequence[CkptStoreError]]:
    """(name, number) of the lanes that a listing covers, and an error for each whose name cannot be read."""
    lanes: list[tuple[LaneName, int]] = []
    unreadable: list[CkptStoreError] = []
    if thread is not None and ns is not None:
        number = view.lane(thread, ns)
        return ([] if number is None else [(LaneName(thread, ns), number)]), []
    if thread is None:
        threads = view.threads()
    else:
        one = view.thread(thread)
        threads = [] if one is None else [one]
    for number in threads:
        try:
            name = thread if thread is not None else thread_name(view, number)
            named = [(LaneName(name, ns_name(view, lane)), lane) for lane in view.lanes(number)]
            lanes += [(lane_name, lane) for lane_name, lane in named if ns is None or lane_name.ns == ns]
        except FrameGoneError:
            raise
        except CkptStoreError as error:
            unreadable.append(CorruptionError(f"the name of thread number {number} or of one of its namespaces: {error}"))
    return lanes, unreadable


def thread_name(view: View, thread: int) -> str:
    """Name of a thread, read from the log: the index holds no names."""
    ref, _ = view.thread_record(thread)
    return entry_name(view.entry(ref, Kind.THREAD))


def ns_name(view: View, lane: int) -> str:
    """Namespace of a lane, read from the log."""
    address = view.address(lane)
    assert address is not None
    if address.ns_hash == _ROOT:
        return ""
    return entry_name(view.entry(address.ref, Kind.LANE))


def list_threads(storage: Storage) -> Iterator[ThreadInfo]:
    """All threads that hold a checkpoint, oldest first. No value is read, so the cost does not depend on their size."""
    with storage.view() as view:
        end, _ = view.next_numbers()
    first = 1
    while first < end:
        first, found = read_again(storage, partial(_thread_portion, first=first, end=end))
        yield from found


def _thread_portion(view: View, first: int, end: int) -> tuple[int, list[ThreadInfo]]:
    """(number to go on with, what is to be said of the next threads)."""
    threads = view.threads_between(first, end, _PORTION)
    return max(threads, default=end) + 1, _thread_infos(view, threads) if threads else []


def _thread_infos(view: View, threads: Mapping[int, tuple[int, int]]) -> list[ThreadInfo]:
    """What is to be said of a portion of threads, each given with the ref of its record."""
    filled: dict[int, list[tuple[int, LaneState]]] = {}
    for thread, lane in view.lanes_between(min(threads), max(threads) + 1):
        state = view.state(lane)
        if state.checkpoints:
            filled.setdefault(thread, []).append((lane, state))
    heads = {thread: _head_of(view, lanes) for thread, lanes in filled.items()}
    kinds = dict.fromkeys((threads[thread] for thread in filled), Kind.THREAD)
    kinds |= dict.fromkeys((head for head in heads.values() if head is not None), Kind.CHECKPOINT)
    texts = _texts(view, kinds)
    return [
        ThreadInfo(
            texts[ref],
            sum([state.checkpoints for _, state in filled[thread]]),
            len(filled[thread]),
            None if (head := heads[thread]) is None else texts[head],
        )
        for thread, ref in threads.items()
        if thread in filled
    ]


def _head_of(view: View, lanes: Sequence[tuple[int, LaneState]]) -> tuple[int, int] | None:
    """Where the head's record of a thread stands: of its root namespace, or else of its newest."""
    root, state = lanes[-1]
    if len(lanes) > 1:
        root, state = next(((lane, state) for lane, state in lanes if ns_name(view, lane) == ""), lanes[-1])
    return view.ref_of(root, state.head) if state.head else None


def _texts(view: View, kinds: Mapping[tuple[int, int], Kind]) -> dict[tuple[int, int], str]:
    """The name in each THREAD record, the id in each CHECKPOINT record, of these places."""
    ordinals: dict[int, list[int]] = {}
    for lsn, ordinal in kinds:
        ordinals.setdefault(lsn, []).append(ordinal)
    texts = {}
    for lsn, entries in view.directories(ordinals):
        for ordinal in ordinals[lsn]:
            kind = kinds[lsn, ordinal]
            entry = named_entry(entries, Ref(lsn, ordinal), kind)
            texts[lsn, ordinal] = entry_name(entry) if kind == Kind.THREAD else checkpoint_id(entry)
    return texts
