"""Retention: which checkpoints of a thread a policy lets go.

Each limit that a policy sets removes what is beyond it. These stay, whatever it says: threads that are pinned; the head of each
namespace; a checkpoint that waits (its run was interrupted or broke off, so a resume needs the writes on it), and the checkpoints of the
enclosing graphs that such a one names; and for each checkpoint of the root that stays, the newest one of each subgraph that names it. The
root checkpoint that the head of a finished subgraph names may go: graphs that open a namespace for each call would keep all of them. Only a
thread that was idle for too long goes whole, and only if nothing in it waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ckptstore.codec.records import pack
from ckptstore.lineage.history import history_channels, past
from ckptstore.lineage.listing import ns_name
from ckptstore.lineage.ownership import read_record
from ckptstore.lineage.reach import all_numbers, closure, reachable
from ckptstore.model import Ref, Source
from ckptstore.storage import View
from ckptstore.storage.catalog import CheckpointEntry
from ckptstore.upkeep.policy import RetentionPolicy

_FRAME_HEADER = 44


class Lane:
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


class Plan(NamedTuple):
    """What goes of a thread."""

    thread: int
    name: str
    lanes: Sequence[Lane]
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


class Planner:
    """Decides about one thread, in one view."""

    def __init__(self, view: View, thread: int, name: str, policy: RetentionPolicy, now_ms: int) -> None:
        self._view = view
        self._thread = thread
        self._name = name
        self._policy = policy
        self._now = now_ms
        self._lanes = [Lane(view, lane) for lane in view.lanes(thread)]
        self._sizes: dict[int, int] = {}
        self._active = self._newest_ms()

    def plan(self) -> Plan:
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

    def heads(self) -> Plan:
        """Everything but heads and what waits."""
        return self._result(self._related({lane.number: set() for lane in self._lanes}))

    def given_back(self, plan: Plan) -> int:
        """Bytes of the log that compaction is going to give back, about."""
        everything = self._needed({})
        if plan.delete:
            return self._bytes(everything)
        return self._bytes(everything - self._needed(plan.gone))

    def _result(self, stays: Mapping[int, Collection[int]], *, delete: bool = False) -> Plan:
        gone = {} if delete else {lane.number: frozenset(lane.entries.keys() - set(stays[lane.number])) for lane in self._lanes}
        return Plan(self._thread, self._name, self._lanes, gone, delete, self._active)

    def _within(self, lane: Lane) -> set[int]:
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

    def _of_roots(self, lane: Lane, roots: Collection[str]) -> set[int]:
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
