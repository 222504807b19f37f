"""What is live: the survey that compaction works by.

Live means reachable over references from live lanes. A value that something live names directly is kept; one that is only a base of such
a value is not: the value is encoded anew, against the nearest earlier one of its chain that is kept for its own sake, or whole. So the
bytes of what was removed do not survive as somebody's base, and the bound on frames per read holds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from ckptstore.codec.compression import compress
from ckptstore.codec.names import id_text
from ckptstore.codec.patch import diff
from ckptstore.codec.records import (
    HEADER,
    PATCH,
    THREAD_SCOPE,
    Encoded,
    Entry,
    Kind,
    checkpoint_refs,
    encode_meta,
    encode_patched_value,
    encode_tombstone,
    encode_value,
    history_refs,
    id_hash,
    kept,
    writes_refs,
)
from ckptstore.errors import CkptStoreError
from ckptstore.lineage.reach import all_numbers
from ckptstore.lineage.values import MOST_FRAMES, Values, facts_of
from ckptstore.model import Ref
from ckptstore.progress import Progress
from ckptstore.storage import Compaction, Frame, Rewrite, Storage, View

logger = logging.getLogger("ckptstore")

# In the background: when half of the log is dead, and at least so much that a rewrite is felt.
_WORTH_BYTES = 8 << 20
_WORTH_SHARE = 0.5
# Frames between two words to whoever wants to know how far it is.
_TOLD_EVERY = 256
# A deleted thread's ids are remembered for at most so long (options.late_window), in ms.
_LATE_MS = 366 * 86_400_000
# A run that is still going may name a removed checkpoint as its parent, and has to be told of the loss: one of the newest, and soon.
_REMEMBERED, _REMEMBERED_MS = 32, 7 * 86_400_000


def compact(
    storage: Storage,
    values: Values,
    least_dead: float,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> Compaction:
    """Give the space of dead records back; see `Storage.compact`.

    Args:
        progress: told up to which LSN of how many the log was looked at.
    """
    # Numbers are never reused, also when the records that gave them are gone.
    told = storage.commit(_remember_numbers)
    done = storage.compact(lambda view: Liveness(storage, view, values, told, progress), least_dead=least_dead, stop=stop)
    if progress is not None:
        progress(told, told)
    return done


def _remember_numbers(view: View) -> list[Encoded]:
    thread, lane = view.next_numbers()
    return [encode_meta({"numbers": [thread - 1, lane - 1]})]


class _Anew(NamedTuple):
    """A value to encode anew, against another base or whole."""

    base: Ref | None


class Liveness:
    """A survey of one view."""

    def __init__(self, storage: Storage, view: View, values: Values, told: int, progress: Progress | None = None) -> None:
        self._storage = storage
        self._values = values
        self._told = told
        """LSN of the record that remembers the numbers; the ones before say nothing more."""
        self._progress = progress
        self._now = time.time_ns() // 1_000_000
        self._lanes: set[int] = set()
        self._live_lanes: set[int] = set()
        self._threads: set[int] = set()
        self._choices: set[int] = set()
        """LSNs of what chose the heads of live lanes."""
        self._records: set[Ref] = set()
        """CHECKPOINT and HISTORY records that an index entry names."""
        self._direct: set[Ref] = set()
        """Values that something live names."""
        self._batches: set[Ref] = set()
        self._related: set[int] = set()
        """Lanes that were copied, and copies."""
        self._bereft: set[bytes] = set()
        """Name hashes of removed parents of live checkpoints without a history record."""
        for thread in view.threads():
            self._threads.add(thread)
            for lane in view.lanes(thread):
                self._live_lanes.add(lane)
                self._survey_lane(view, lane)
        self._targets: set[tuple[int, bytes]] = set()
        """(lane, name hash) of checkpoints, removed or not, that live batches were stored on."""
        for batch in self._batches:
            record = view.entry(batch, Kind.WRITES)
            self._direct.update(writes_refs(batch.lsn, record))
            lane, target = record[HEADER : HEADER + 2]
            self._targets.add((lane, id_hash(target)))
        self._anew: dict[Ref, _Anew] = {}
        self._support: list[tuple[int, frozenset[Ref]]] = []
        """For each value that is to be encoded anew: its LSN, and what it rests on as long as it is not."""
        for ref in self._direct:
            self._judge(view, ref)

    def _survey_lane(self, view: View, lane: int) -> None:
        self._lanes.add(lane)
        for origin, thread in view.origin_threads(lane):
            self._related |= {lane, origin}
            self._lanes.add(origin)
            self._threads.add(thread)
        state = view.state(lane)
        if state.head:
            self._choices.add(state.head_since)
        hashes = view.id_hashes(lane)
        for number in all_numbers(view, lane):
            entry = view.live_checkpoint(lane, number)
            self._batches.update(batch.ref for batch in view.writes(lane, number))
            if entry is None:
                continue
            self._records.add(entry.ref)
            record = view.entry(entry.ref, Kind.CHECKPOINT)
            self._direct.update(checkpoint_refs(entry.ref.lsn, record))
            parent = view.checkpoint(lane, entry.parent) if entry.parent else None
            if parent is not None and not entry.has_history:
                if parent.removed:
                    self._bereft.add(hashes[entry.parent])
                else:
                    self._batches.update(entry.consumed.refs())
            history = view.history(lane, number)
            if history is not None:
                self._records.add(history)
                kept_values, kept_batches = history_refs(view.entry(history, Kind.HISTORY))
                self._direct.update(kept_values)
                self._batches.update(kept_batches)

    def _judge(self, view: View, ref: Ref) -> None:
        """Decide whether a live value stays as it is or is encoded anew."""
        facts = facts_of(view, ref)
        if facts.codec != PATCH or (self._direct.issuperset(facts.bases) and self._batches.issuperset(facts.folds)):
            return
        support: set[Ref] = set(facts.folds)
        base: Ref | None = None
        waiting = list(facts.bases)
        while waiting:
            candidate = waiting.pop()
            if candidate in self._direct:
                base = candidate if base is None or candidate > base else base
                continue
            support.add(candidate)
            below = facts_of(view, candidate)
            support.update(below.folds)
            waiting.extend(below.bases)
        self._anew[ref] = _Anew(base)
        self._support.append((ref.lsn, frozenset(support)))

    # -- rewriting ------------------------------------------------------------------------------------------------------

    def rewriter(self, first: int, end: int) -> Rewrite:
        """How to rewrite frames `first` to before `end`. What values outside still rest on is kept for them."""
        needed = {ref for lsn, support in self._support if not first <= lsn < end for ref in support}
        oldest = first == 1

        def rewrite(frame: Frame) -> Sequence[Encoded | None] | None:
            if self._progress is not None and not frame.lsn % _TOLD_EVERY:
                self._progress(frame.lsn, self._told)
            records = [
                self._rewritten(frame, Ref(frame.lsn, ordinal), entry, needed, oldest)
                for ordinal, entry in enumerate(frame.entries)
            ]
            return records if any(record is not None for record in records) else None

        return rewrite

    def _rewritten(self, frame: Frame, ref: Ref, entry: Entry, needed: Iterable[Ref], oldest: bool) -> Encoded | None:
        if entry[0] == Kind.VALUE and ref in self._anew and ref not in needed:
            return self._encoded_anew(ref)
        if not self._lives(ref, entry, oldest) and ref not in needed:
            return self._remembered(entry) if entry[0] == Kind.TOMBSTONE else None
        return kept(entry, frame.stored(ref.ordinal))

    def _remembered(self, entry: Entry) -> Encoded | None:
        """What is left of a tombstone that is needed for nothing else: the newest of the checkpoints that it removed from a lane."""
        scope, number, when, hashes, _dead, head, _spent = entry[HEADER:]
        if scope == THREAD_SCOPE or number not in self._lanes or self._now - when >= _REMEMBERED_MS:
            return None
        return encode_tombstone(scope, number, when, hashes[-16 * _REMEMBERED :], (), None if head is None else id_text(head))

    def _lives(self, ref: Ref, entry: Entry, oldest: bool) -> bool:
        kind, fields = Kind(entry[0]), entry[HEADER:]
        if kind in (Kind.CHECKPOINT, Kind.HISTORY):
            return ref in self._records
        if kind == Kind.VALUE:
            return ref in self._direct
        if kind == Kind.WRITES:
            return ref in self._batches
        if kind == Kind.THREAD:
            return bool(fields[0] in self._threads)
        if kind == Kind.LANE:
            return bool(fields[0] in self._lanes)
        if kind == Kind.COPY:
            return bool(fields[0] in self._live_lanes)
        if kind == Kind.HEAD:
            return ref.lsn in self._choices
        if kind == Kind.TOMBSTONE:
            return self._still_says_something(ref.lsn, fields, oldest)
        return kind == Kind.META and (ref.lsn >= self._told or fields[0].keys() != {"numbers"})

    def _still_says_something(self, lsn: int, fields: Sequence[Any], oldest: bool) -> bool:
        """Whether a tombstone is needed.

        Of a lane: while it says what the head is, records that it removed may be left, or batches that it marked; or while a live
        checkpoint names one of its ids as parent and has no history record: that walk has to know of a loss. Of a thread: while older
        records may be left, or late calls may name its ids.
        """
        scope, number, when, hashes, _dead, _head, spent = fields
        if scope != THREAD_SCOPE:
            if number not in self._lanes:
                return False
            names = {hashes[at : at + 16] for at in range(0, len(hashes), 16)}
            return (
                not oldest
                or lsn in self._choices
                # A copy is made again from its source by a rebuild, removed checkpoints included as long as either still holds them.
                or number in self._related
                or not names.isdisjoint(self._bereft)
                or any((number, name) in self._targets for name in names)
                or any(Ref(*pair) in self._batches for _, flat in spent for pair in zip(flat[::2], flat[1::2], strict=True))
            )
        return not oldest or number in self._threads or self._now - when < _LATE_MS

    def _encoded_anew(self, ref: Ref) -> Encoded:
        with self._storage.view() as view:
            facts = facts_of(view, ref)
            typed = facts.tag, self._values.raw(view, ref)
            base = self._anew[ref].base
            codec, body = compress(typed[1])
            if base is not None and (frames := facts_of(view, base).frames + 1) <= MOST_FRAMES:
                patch = diff(self._values.raw(view, base), typed[1])
                if patch is not None and len(patch) < len(body):
                    return encode_patched_value(typed, crc32(typed[1]), patch, facts.number, frames, [base], [])
            return encode_value(typed, crc32(typed[1]), codec, body)


class BackgroundCompaction:
    """Compacts when much is dead, in a daemon thread that never keeps a process alive, and one at a time."""

    def __init__(self, storage: Storage, values: Values) -> None:
        self._storage = storage
        self._values = values
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def consider(self) -> None:
        """Something was removed: begin, if it is worth it and nothing is going on."""
        if self._thread is not None and self._thread.is_alive():
            return
        stats = self._storage.stats()
        if stats.dead_bytes >= max(_WORTH_BYTES, stats.log_bytes * _WORTH_SHARE):
            self._thread = threading.Thread(target=self._run, name="ckptstore-compact", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            compact(self._storage, self._values, _WORTH_SHARE, self._stop.is_set)
        except (CkptStoreError, OSError) as error:
            # Another process compacts, there is no space, the store was closed: the next removal tries again.
            logger.info("background compaction gave up: %s", error)

    def close(self) -> None:
        """End the work at the next point where that is safe, and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
