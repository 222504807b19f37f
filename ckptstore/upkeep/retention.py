"""Retention: which checkpoints a policy lets go, and letting them go.

Each limit that a policy sets removes what is beyond it. These stay, whatever it says: threads that are pinned; the head of each
namespace; a checkpoint that waits (its run was interrupted or broke off, so a resume needs the writes on it), and the checkpoints of the
enclosing graphs that such a one names; and for each checkpoint of the root that stays, the newest one of each subgraph that names it. The
root checkpoint that the head of a finished subgraph names may go: graphs that open a namespace for each call would keep all of them. Only a
thread that was idle for too long goes whole, and only if nothing in it waits.

What to remove is planned in a view, without a lock, thread by thread. The commit that removes it looks again: what became the head
meanwhile, or got writes, stays. A survivor that loses ancestors gets a history record in that commit (removal.py), so every checkpoint
that stays reads as before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ckptstore.codec.records import pack
from ckptstore.errors import (
    CheckpointLineageError,
    CkptStoreError,
    CorruptionError,
    FrameGoneError,
    InvalidArgumentError,
    StoreClosedError,
)
from ckptstore.forks import own_locks
from ckptstore.lineage.history import history_channels, past
from ckptstore.lineage.listing import ns_name, thread_name
from ckptstore.lineage.ownership import read_record
from ckptstore.lineage.reach import all_numbers, closure, reachable
from ckptstore.model import Ref, Source
from ckptstore.progress import Progress
from ckptstore.storage import Resolve, Storage, View
from ckptstore.storage.catalog import CheckpointEntry
from ckptstore.upkeep import removal

logger = logging.getLogger("ckptstore")

_FRAME_HEADER = 44
# A sweep in the background looks at so many threads, and comes after so many puts.
_SWEPT = 16
_EVERY = 64


class RetentionPolicy(BaseModel):
    """What to keep. Every limit is optional, and each that is given removes what is beyond it.

    Times are compared with the clock of whoever wrote a checkpoint: `ts` of LangGraph's checkpoints, `created_ms` of native ones. One
    without a time is never too old. Sizes are those of the log, before compression of what is left by a compaction.

    Raises:
        InvalidArgumentError: names the limit, its value and the range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keep_last: int | None = Field(default=None, ge=1, strict=True)
    """Checkpoints to keep of the lineage of each leaf, from the leaf backwards, at least 1."""
    older_than: timedelta | None = Field(default=None, gt=timedelta(0))
    """Remove checkpoints older than this; a timedelta, or seconds."""
    idle: timedelta | None = Field(default=None, gt=timedelta(0))
    """Delete whole threads whose newest checkpoint is older than this, unless something in them waits."""
    max_bytes_per_thread: int | None = Field(default=None, ge=0, strict=True)
    """Remove the oldest checkpoints of a thread until its records take at most so many bytes."""
    max_bytes: int | None = Field(default=None, ge=0, strict=True)
    """Prune threads to their heads, those longest idle first, until the live bytes of the log are at most so many."""
    pinned: frozenset[str] = frozenset()
    """Threads never to be touched."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"])) or "policy"
            raise InvalidArgumentError(f"{name}={first['input']!r}: {first['msg']}") from None


class ThreadPrune(NamedTuple):
    """What went of one thread."""

    thread: str
    removed: int
    """Checkpoints."""
    kept: int
    deleted: bool
    """The thread as a whole: it was idle."""
    bytes: int | None
    """What compaction is going to give back, in bytes of the log; None where it was not measured."""


class PruneReport(NamedTuple):
    """What a prune did, or would do."""

    threads: list[ThreadPrune]
    """Threads that lose something."""
    removed: int
    """Checkpoints, those of deleted threads included."""
    deleted: int
    """Threads."""
    bytes: int | None
    """What compaction is going to give back, in bytes of the log; None where it was not measured."""
    unmet: list[str]
    """Limits that could not be met, and threads that could not be read; one line each."""
    dry_run: bool


def prune(
    storage: Storage,
    policy: RetentionPolicy,
    threads: Iterable[str] | None = None,
    *,
    dry_run: bool = False,
    most: int | None = None,
    progress: Progress | None = None,
) -> PruneReport:
    """Apply a policy.

    Args:
        threads: only these; all when None.
        dry_run: find out what would go, and what that would give back; remove nothing.
        most: threads to prune to their heads at most, for `max_bytes`.
        progress: told how many threads of how many were looked at; for `max_bytes` a second time.
    """
    return _Prune(storage, policy, dry_run, progress).run(threads, most)


class _Lane:
    """One namespace of a thread, as a plan sees it."""

    def __init__(self, view: View, lane: int) -> None:
        self.number = lane
        self.ns = ns_name(view, lane)
        head = view.head(lane)
        self.head = None if head is None else head.number
        self.entries: dict[int, CheckpointEntry] = {}
        self.batches: dict[int, tuple[Ref, ...]] = {}
        special: set[int] = set()
        for number in all_numbers(view, lane):
            entry = view.live_checkpoint(lane, number)
            if entry is None:
                continue
            self.entries[number] = entry
            found = view.writes(lane, number)
            self.batches[number] = tuple(batch.ref for batch in found)
            if any(not batch.regular for batch in found):
                special.add(number)
        self.children: dict[int, list[int]] = {}
        for number, entry in self.entries.items():
            self.children.setdefault(entry.parent, []).append(number)
        self.waiting = {number for number in self.entries if self._waits(number, number in special)}

    def _waits(self, number: int, special: bool) -> bool:
        """Writes that no child was made of: finished tasks of a run that broke off, or an interrupt that only forks went around."""
        if not self.batches[number]:
            return False
        below = self.children.get(number, [])
        return not below or (special and all(self.entries[child].source != Source.LOOP for child in below))

    def lineages(self, length: int) -> set[int]:
        """The last checkpoints of each leaf's lineage."""
        kept: set[int] = set()
        for leaf in self.entries:
            if leaf in self.children:
                continue
            at, chain = leaf, set[int]()
            while at in self.entries and at not in chain and len(chain) < length:
                chain.add(at)
                at = self.entries[at].parent
            kept |= chain
        return kept


class _Plan(NamedTuple):
    """What goes of a thread."""

    thread: int
    name: str
    lanes: Sequence[_Lane]
    gone: Mapping[int, frozenset[int]]
    """Lane -> numbers."""
    delete: bool
    active_ms: int | None
    """When the newest checkpoint was made."""

    @property
    def removed(self) -> int:
        return sum(len(lane.entries) for lane in self.lanes) if self.delete else sum(map(len, self.gone.values()))

    @property
    def kept(self) -> int:
        return sum(len(lane.entries) for lane in self.lanes) - self.removed


class _Prune:
    """One application of a policy."""

    def __init__(self, storage: Storage, policy: RetentionPolicy, dry_run: bool, progress: Progress | None) -> None:
        self._storage = storage
        self._policy = policy
        self._progress = progress
        self._dry_run = dry_run
        self._now = time.time_ns() // 1_000_000
        self._done: dict[str, ThreadPrune] = {}
        self._unmet: list[str] = []

    def run(self, threads: Iterable[str] | None, most: int | None) -> PruneReport:
        active: dict[str, int | None] = {}
        saved = 0
        for name in self._told(self._names(threads)):
            try:
                plan, given_back = self._planned(name, heads_only=False)
            except (CheckpointLineageError, CorruptionError) as error:
                self._unmet.append(f"thread {name!r} was left as it is: {error}")
                continue
            if plan is None:
                continue
            active[name] = plan.active_ms
            self._carry_out(plan, given_back)
            saved += given_back or 0
        if self._policy.max_bytes is not None:
            self._shrink(active, most, saved)
        done = list(self._done.values())
        measured = [item.bytes for item in done if item.bytes is not None]
        return PruneReport(
            done,
            sum(item.removed for item in done),
            sum(item.deleted for item in done),
            sum(measured) if len(measured) == len(done) else None,
            self._unmet,
            self._dry_run,
        )

    def _told(self, names: Sequence[str]) -> Iterator[str]:
        """The names one by one, and a word about each that is done."""
        for at, name in enumerate(names, start=1):
            yield name
            if self._progress is not None:
                self._progress(at, len(names))

    def _names(self, threads: Iterable[str] | None) -> list[str]:
        if threads is not None:
            return [name for name in threads if name not in self._policy.pinned]
        names = []
        with self._storage.view() as view:
            for number in view.threads():
                try:
                    names.append(thread_name(view, number))
                except CorruptionError as error:
                    self._unmet.append(f"thread number {number} was left as it is: {error}")
        return [name for name in names if name not in self._policy.pinned]

    # -- planning -------------------------------------------------------------------------------------------------------

    def _planned(self, name: str, *, heads_only: bool) -> tuple[_Plan | None, int | None]:
        """What goes of a thread, and what that gives back where it has to be known."""
        while True:
            try:
                with self._storage.view() as view:
                    number = view.thread(name)
                    if number is None:
                        return None, None
                    planner = _Planner(view, number, name, self._policy, self._now)
                    plan = planner.heads() if heads_only else planner.plan()
                    measured = self._dry_run or self._policy.max_bytes is not None or self._policy.max_bytes_per_thread is not None
                    if measured and plan.removed:
                        return plan, planner.given_back(plan)
                    return plan, 0 if measured else None
            except FrameGoneError:
                continue

    def _shrink(self, active: Mapping[str, int | None], most: int | None, saved: int) -> None:
        """Prune to heads, the longest idle first, until the log is small enough."""
        limit = self._policy.max_bytes
        assert limit is not None
        live = self._storage.stats().live_bytes - (saved if self._dry_run else 0)
        oldest_first = sorted(active, key=lambda name: active[name] or 0)
        for name in self._told(oldest_first[:most]):
            if live <= limit:
                return
            known = self._done.get(name)
            if known is not None and known.deleted:
                continue
            plan, given_back = self._planned(name, heads_only=True)
            if plan is not None and plan.removed:
                self._done.pop(name, None)
                self._carry_out(plan, given_back, before=known)
                live -= (given_back or 0) - ((known.bytes or 0) if known is not None and self._dry_run else 0)
        if live > limit:
            self._unmet.append(
                f"max_bytes={limit}: about {live} live bytes are left, heads and what waits among them: delete threads, or raise the limit"
            )

    # -- removing -------------------------------------------------------------------------------------------------------

    def _carry_out(self, plan: _Plan, given_back: int | None, before: ThreadPrune | None = None) -> None:
        """Remove what a plan says.

        Args:
            before: what was removed of the thread already; in a dry run the plan says it again.
        """
        if not plan.removed:
            return
        removed, deleted = plan.removed, plan.delete
        if not self._dry_run:
            if plan.delete:
                deleted = removal.delete(cast(Storage, _While(self._storage, lambda view: _unchanged(view, plan))), plan.name)
                removed = removed if deleted else 0
            else:
                removed = removal._remove(self._storage, lambda view: _still_to_go(view, plan))
            if before is not None:
                removed, given_back = removed + before.removed, (given_back or 0) + (before.bytes or 0)
        if removed:
            self._done[plan.name] = ThreadPrune(plan.name, removed, plan.kept, deleted, given_back)


class _Planner:
    """Decides about one thread, in one view."""

    def __init__(self, view: View, thread: int, name: str, policy: RetentionPolicy, now_ms: int) -> None:
        self._view = view
        self._thread = thread
        self._name = name
        self._policy = policy
        self._now = now_ms
        self._lanes = [_Lane(view, lane) for lane in view.lanes(thread)]
        self._sizes: dict[int, int] = {}
        self._active = self._newest_ms()

    def plan(self) -> _Plan:
        """What the policy lets go."""
        idle = self._policy.idle
        if (
            idle is not None
            and self._active is not None
            and self._now - self._active > _ms(idle)
            and not any(lane.waiting for lane in self._lanes)
        ):
            return self._result({}, delete=True)
        stays = self._related({lane.number: self._within(lane) for lane in self._lanes})
        limit = self._policy.max_bytes_per_thread
        if limit is not None:
            stays = self._shrunk(stays, limit)
        return self._result(stays)

    def heads(self) -> _Plan:
        """Everything but heads and what waits."""
        return self._result(self._related({lane.number: set() for lane in self._lanes}))

    def given_back(self, plan: _Plan) -> int:
        """Bytes of the log that compaction is going to give back, about."""
        everything = self._needed({})
        if plan.delete:
            return self._bytes(everything)
        return self._bytes(everything - self._needed(plan.gone))

    def _result(self, stays: Mapping[int, Collection[int]], *, delete: bool = False) -> _Plan:
        gone = {} if delete else {lane.number: frozenset(lane.entries.keys() - set(stays[lane.number])) for lane in self._lanes}
        return _Plan(self._thread, self._name, self._lanes, gone, delete, self._active)

    def _within(self, lane: _Lane) -> set[int]:
        """What is within the limits of number and age."""
        keep_last, older_than = self._policy.keep_last, self._policy.older_than
        within = set(lane.entries) if keep_last is None else lane.lineages(keep_last)
        if older_than is not None:
            oldest = self._now - _ms(older_than)
            within = {number for number in within if not self._is_before(lane.entries[number], oldest)}
        return within

    def _related(self, within: Mapping[int, set[int]]) -> dict[int, set[int]]:
        """What stays: what is within the limits, heads, what waits, and what those belong together with in other namespaces."""
        stays = {lane.number: set(within[lane.number]) for lane in self._lanes}
        by_ns = {lane.ns: lane for lane in self._lanes}
        for lane in self._lanes:
            stays[lane.number] |= lane.waiting | ({lane.head} if lane.head is not None else set())
            for number in lane.waiting:
                for ns, id in self._parents(lane.entries[number]).items():
                    above = by_ns.get(ns)
                    known = None if above is None else self._view.number(above.number, id)
                    if above is not None and known in above.entries:
                        stays[above.number].add(known)
        root = by_ns.get("")
        if root is not None and len(self._lanes) > 1:
            kept = {read_record(self._view, root.entries[number].ref).id for number in stays[root.number]}
            for lane in self._lanes:
                if lane is not root:
                    stays[lane.number] |= self._of_roots(lane, kept)
        return stays

    def _of_roots(self, lane: _Lane, roots: Collection[str]) -> set[int]:
        """The newest checkpoint of a subgraph's namespace for each root checkpoint that it names."""
        newest: dict[str, int] = {}
        for number, entry in sorted(lane.entries.items(), key=lambda item: item[1].place):
            id = self._parents(entry).get("")
            if id is not None and id in roots:
                newest[id] = number
        return set(newest.values())

    def _shrunk(self, stays: dict[int, set[int]], limit: int) -> dict[int, set[int]]:
        """Let the oldest go until what is left is small enough: the fewest that do it, found by halving."""
        least = self._related({lane.number: set() for lane in self._lanes})
        free = sorted(
            (lane.entries[number].place, lane.number, number)
            for lane in self._lanes
            for number in stays[lane.number] - least[lane.number]
        )

        def left(count: int) -> dict[int, set[int]]:
            going = {(lane, number) for _, lane, number in free[:count]}
            return {lane: {number for number in kept if (lane, number) not in going} for lane, kept in stays.items()}

        low, high = 0, len(free)
        while low < high:
            middle = (low + high) // 2
            gone = self._result(left(middle)).gone
            if self._bytes(self._needed(gone)) <= limit:
                high = middle
            else:
                low = middle + 1
        return left(low)

    # -- facts ----------------------------------------------------------------------------------------------------------

    def _needed(self, gone: Mapping[int, Collection[int]]) -> set[int]:
        """Frames that the thread needs once these are gone, what survivors keep of them included."""
        view = self._view
        lsns: set[int] = set()
        for lane in self._lanes:
            without = set(gone.get(lane.number, ()))
            lsns |= reachable(view, lane.number, without)
            for number, entry in lane.entries.items():
                if number not in without and entry.parent in without and not entry.has_history:
                    pasts = past(view, lane.number, entry, history_channels(view, lane.number, entry), admit_loss=True)
                    seeds = [kept.seed for kept in pasts.values() if isinstance(kept.seed, Ref)]
                    batches = [ref for kept in pasts.values() for edge in kept.edges for group in edge for ref in group]
                    lsns |= closure(view, seeds, batches)
        return lsns

    def _bytes(self, lsns: Iterable[int]) -> int:
        return sum(map(self._size, lsns))

    def _size(self, lsn: int) -> int:
        if lsn not in self._sizes:
            entries = self._view.entries(lsn)
            self._sizes[lsn] = _FRAME_HEADER + len(pack(entries)) + sum(entry[2] for entry in entries)
        return self._sizes[lsn]

    def _parents(self, entry: CheckpointEntry) -> Mapping[str, str]:
        """Checkpoints of the enclosing graphs, by namespace, as the metadata of a LangGraph subgraph names them."""
        metadata = read_record(self._view, entry.ref).metadata
        found = metadata.get("parents") if isinstance(metadata, dict) else None
        return (
            {ns: id for ns, id in found.items() if isinstance(ns, str) and isinstance(id, str)} if isinstance(found, dict) else {}
        )

    def _newest_ms(self) -> int | None:
        """When the thread was last active: the newest time of a head, or of a checkpoint that came last."""
        times = []
        for lane in self._lanes:
            last = next((number for _, number in self._view.newest_first(lane.number)), None)
            for number in {last, lane.head} & lane.entries.keys():
                assert number is not None
                made = _made_ms(self._view, lane.entries[number])
                if made is None:
                    return None
                times.append(made)
        return max(times, default=None)

    def _is_before(self, entry: CheckpointEntry, oldest_ms: int) -> bool:
        made = _made_ms(self._view, entry)
        return made is not None and made < oldest_ms


def _made_ms(view: View, entry: CheckpointEntry) -> int | None:
    """When a checkpoint was made, as its record says; None where it does not."""
    skeleton = read_record(view, entry.ref).skeleton
    if not isinstance(skeleton, dict):
        return None
    made = skeleton.get("created_ms")
    if isinstance(made, int) and not isinstance(made, bool):
        return made
    text = skeleton.get("ts")
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int((parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


def _ms(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)


def _still_to_go(view: View, plan: _Plan) -> dict[int, set[int]]:
    """Of what a plan lets go, asked under the commit lock: not what became the head since, nor what got writes or was stored again."""
    if view.thread(plan.name) != plan.thread:
        return {}
    going: dict[int, set[int]] = {}
    for lane in plan.lanes:
        head = view.head(lane.number)
        for number in plan.gone[lane.number]:
            entry = view.live_checkpoint(lane.number, number)
            if entry is None or entry.ref != lane.entries[number].ref or (head is not None and head.number == number):
                continue
            if tuple(batch.ref for batch in view.writes(lane.number, number)) == lane.batches[number]:
                going.setdefault(lane.number, set()).add(number)
    return going


def _unchanged(view: View, plan: _Plan) -> bool:
    """Whether an idle thread is still as it was, asked under the commit lock."""
    if view.thread(plan.name) != plan.thread or view.lanes(plan.thread) != [lane.number for lane in plan.lanes]:
        return False
    return all(
        view.state(lane.number).checkpoints == len(lane.entries)
        and all(
            (entry := view.live_checkpoint(lane.number, number)) is not None
            and entry.ref == known.ref
            and tuple(batch.ref for batch in view.writes(lane.number, number)) == lane.batches[number]
            for number, known in lane.entries.items()
        )
        for lane in plan.lanes
    )


class _While:
    """A storage whose commits do nothing once a condition no longer holds."""

    def __init__(self, storage: Storage, holds: Callable[[View], bool]) -> None:
        self._storage = storage
        self._holds = holds

    def commit(self, resolve: Resolve) -> int:
        def guarded(view: View) -> Any:
            if not self._holds(view):
                raise removal._Nothing
            return resolve(view)

        return self._storage.commit(guarded)


# -- in the background -------------------------------------------------------------------------------------------------------


class Sweeper:
    """Applies a policy as threads grow: after every 64 puts, to at most 16 threads, in a thread that never keeps a process alive.

    Threads that were put to come first, then others in turn, so that idle ones are met in time. `max_bytes` prunes at most 16 threads a
    sweep, too.
    """

    def __init__(self, storage: Storage, policy: RetentionPolicy, pruned: Callable[[int], object] = lambda removed: None) -> None:
        """Begin with nothing to do.

        Args:
            pruned: told after each sweep how many checkpoints went.
        """
        self._storage = storage
        self._policy = policy
        self._pruned = pruned
        self._count = 0
        self._touched: dict[str, None] = {}
        self._turn = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        own_locks(self)

    def new_locks(self) -> None:
        self._lock = threading.Lock()

    def put(self, thread: str) -> None:
        """Take note of a put; costs next to nothing."""
        with self._lock:
            self._count += 1
            if len(self._touched) < _EVERY:
                self._touched[thread] = None
            if self._count % _EVERY or self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._sweep, name="ckptstore-retention", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Begin no other sweep, and wait for one that is going on."""
        with self._lock:
            self._closed = True
            running = self._thread
        if running is not None and running is not threading.current_thread():
            running.join(timeout=5)

    def _sweep(self) -> None:
        try:
            names = self._next()
            report = prune(self._storage, self._policy, names, most=_SWEPT)
            for line in report.unmet:
                logger.warning("retention: %s", line)
            self._pruned(report.removed)
        except StoreClosedError:
            return
        except (CkptStoreError, OSError) as error:
            logger.warning("a sweep of retention failed: %s", error)

    def _next(self) -> list[str]:
        with self._lock:
            names = list(self._touched)[:_SWEPT]
            for name in names:
                del self._touched[name]
        with self._storage.view() as view:
            numbers = view.threads()
            for number in numbers[self._turn : self._turn + _SWEPT - len(names)]:
                names.append(thread_name(view, number))
        self._turn += _SWEPT
        if self._turn >= len(numbers):
            self._turn = 0
        return list(dict.fromkeys(names))
