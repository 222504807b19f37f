"""Retention: letting go what a policy lets go (policy.py says what it may say, planning.py decides).

What to remove is planned in a view, without a lock, thread by thread. The commit that removes it looks again: what became the head
meanwhile, or got writes, stays. A survivor that loses ancestors gets a history record in that commit (removal.py), so every checkpoint
that stays reads as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from ckptstore.errors import CheckpointLineageError, CorruptionError, FrameGoneError
from ckptstore.lineage.listing import thread_name
from ckptstore.progress import Progress
from ckptstore.storage import Resolve, Storage, View
from ckptstore.upkeep import removal
from ckptstore.upkeep.planning import Plan, Planner
from ckptstore.upkeep.policy import PruneReport, RetentionPolicy, ThreadPrune


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

    def _planned(self, name: str, *, heads_only: bool) -> tuple[Plan | None, int | None]:
        """What goes of a thread, and what that gives back where it has to be known."""
        while True:
            try:
                with self._storage.view() as view:
                    number = view.thread(name)
                    if number is None:
                        return None, None
                    planner = Planner(view, number, name, self._policy, self._now)
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

    def _carry_out(self, plan: Plan, given_back: int | None, before: ThreadPrune | None = None) -> None:
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


def _still_to_go(view: View, plan: Plan) -> dict[int, set[int]]:
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


def _unchanged(view: View, plan: Plan) -> bool:
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
