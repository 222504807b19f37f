"""The live records of one view, each decoded and checked against whatever else says something about it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol
from zlib import crc32

from ckptstore.activity import Activity
from ckptstore.codec.names import IdForm, channel_bit, id_text, task_hash
from ckptstore.codec.records import (
    HEADER,
    Entry,
    Kind,
    checkpoint_refs,
    decode_checkpoint,
    decode_writes,
    history_refs,
    id_hash,
    value_facts,
    writes_refs,
)
from ckptstore.errors import CheckpointLineageIntegrityError, CkptStoreError, CorruptionError
from ckptstore.lineage.history import history_channels, past, read_history
from ckptstore.lineage.listing import ns_name, thread_name
from ckptstore.lineage.reach import all_numbers
from ckptstore.lineage.values import MOST_FRAMES, Values
from ckptstore.model import LaneName, Ref
from ckptstore.progress import Progress
from ckptstore.storage import View
from ckptstore.storage.catalog import CheckpointEntry, WritesEntry

_CACHE_BYTES = 64 << 20
_TOLD_EVERY = 64
"""Checkpoints between two words to whoever wants to know how far it is."""


class Problem(NamedTuple):
    """One thing that is wrong, as far as it is known where."""

    text: str
    segment: int | None = None
    offset: int | None = None
    lsn: int | None = None
    thread: str | None = None
    ns: str | None = None
    checkpoint: str | None = None

    def __str__(self) -> str:
        log = [
            f"{name} {value}"
            for name, value in (("segment", self.segment), ("offset", self.offset), ("LSN", self.lsn))
            if value is not None
        ]
        names = [
            f"{name} {value!r}"
            for name, value in (("thread", self.thread), ("namespace", self.ns or None), ("checkpoint", self.checkpoint))
            if value is not None
        ]
        return ", ".join(log + names) + (": " if log or names else "") + self.text


class FaultLike(Protocol):
    """A fault of the files, as the storage names it."""

    @property
    def text(self) -> str: ...
    @property
    def segment(self) -> int | None: ...
    @property
    def offset(self) -> int | None: ...
    @property
    def lsn(self) -> int | None: ...


class DifferenceLike(Protocol):
    """Something that the index says otherwise than the log."""

    @property
    def text(self) -> str: ...
    @property
    def thread(self) -> int | None: ...
    @property
    def lane(self) -> int | None: ...
    @property
    def lsn(self) -> int | None: ...


class CheckedLog(Protocol):
    """A log whose files were read from end to end."""

    @property
    def faults(self) -> Sequence[FaultLike]: ...
    @property
    def remarks(self) -> Sequence[str]: ...
    @property
    def segments(self) -> int: ...
    @property
    def frames(self) -> int: ...
    @property
    def log_bytes(self) -> int: ...
    @property
    def present_missing(self) -> str:
        """Why there is no index in use to compare with; empty where there is one."""
        ...

    @property
    def damaged(self) -> bool: ...

    def best_view(self) -> View:
        """The view that knows most: the index in use where the log is damaged, else one built from the log."""
        ...

    def directory(self, lsn: int) -> Sequence[Entry] | None:
        """The directory of a bad frame, where that is good."""
        ...

    def differences(self) -> Iterable[DifferenceLike]: ...


def count_checkpoints(view: View) -> int:
    """Live checkpoints of all threads, as the index counts them."""
    return sum(view.state(lane).checkpoints for thread in view.threads() for lane in view.lanes(thread))


class Checker:
    """The live records of one view."""

    def __init__(self, view: View, progress: Progress | None = None) -> None:
        self._view = view
        self._values = Values(_CACHE_BYTES, lambda: self._activity)
        self._activity = Activity()
        self.remarks: list[str] = []
        self.threads = self.namespaces = self.checkpoints = self.batches = self.histories = self.orphans = 0
        self.seen_values: dict[Ref, str] = {}
        """What is wrong with a value; empty for a good one."""
        self._owners: dict[int, tuple[int, int]] | None = None
        self._names: dict[int, LaneName] = {}
        self._progress = progress
        self._total = 0

    # -- naming ---------------------------------------------------------------------------------------------------------

    def lane_name(self, lane: int) -> LaneName:
        """Name of a lane, as far as it can be read."""
        if lane not in self._names:
            address = self._view.address(lane)
            thread = ns = "?"
            try:
                if address is not None:
                    ns = ns_name(self._view, lane)
                    thread = thread_name(self._view, address.thread)
            except (CkptStoreError, AssertionError):
                pass  # its own problem names it by number
            self._names[lane] = LaneName(thread, ns)
        return self._names[lane]

    def located(self, fault: FaultLike, log: CheckedLog) -> Problem:
        """A fault of the files with the thread and checkpoint it hits, from what is left of the frame or from the index."""
        problem = Problem(fault.text, fault.segment, fault.offset, fault.lsn)
        if fault.lsn is None:
            return problem
        for entry in log.directory(fault.lsn) or ():
            if entry[0] in (Kind.CHECKPOINT, Kind.WRITES, Kind.HISTORY):
                return self._of_lane(problem, entry[HEADER], id_text(entry[HEADER + 1]))
        return self._from_index(problem, fault.lsn)

    def named(self, difference: DifferenceLike) -> Problem:
        """A difference between index and log, with names."""
        problem = Problem(difference.text, lsn=difference.lsn)
        if difference.lane is not None:
            problem = self._of_lane(problem, difference.lane, None)
        elif difference.thread is not None:
            try:
                problem = problem._replace(thread=thread_name(self._view, difference.thread))
            except (CkptStoreError, AssertionError):
                problem = problem._replace(text=f"thread number {difference.thread}: {difference.text}")
        return self._from_index(problem, difference.lsn) if difference.lsn is not None else problem

    def _of_lane(self, problem: Problem, lane: int, checkpoint: str | None) -> Problem:
        name = self.lane_name(lane)
        return problem._replace(thread=name.thread, ns=name.ns, checkpoint=checkpoint)

    def _from_index(self, problem: Problem, lsn: int) -> Problem:
        if self._owners is None:
            self._owners = dict(self._owned())
        owner = self._owners.get(lsn)
        return problem if owner is None else self._of_lane(problem, owner[0], self.id_of(*owner))

    def _owned(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """LSN -> lane and number of the checkpoint whose records stand there."""
        for thread in self._view.threads():
            for lane in self._view.lanes(thread):
                for number in all_numbers(self._view, lane):
                    entry = self._view.live_checkpoint(lane, number)
                    if entry is not None:
                        yield entry.ref.lsn, (lane, number)
                    for batch in self._view.writes(lane, number):
                        yield batch.ref.lsn, (lane, number)

    def id_of(self, lane: int, number: int) -> str | None:
        """A checkpoint's id, from its own record or from one that names it."""
        view = self._view
        entry = view.live_checkpoint(lane, number)
        sources = [] if entry is None else [(entry.ref, Kind.CHECKPOINT, 1)]
        for child in view.children(lane, number):
            below = view.live_checkpoint(lane, child)
            sources += [] if below is None else [(below.ref, Kind.CHECKPOINT, 2)]
        sources += [(batch.ref, Kind.WRITES, 1) for batch in view.writes(lane, number)]
        for ref, kind, field in sources:
            try:
                found: IdForm = view.frame(ref.lsn).entry(ref, kind)[HEADER + field]
                return id_text(found)
            except (CkptStoreError, OSError):
                continue
        return None

    # -- checking -------------------------------------------------------------------------------------------------------

    def problems(self) -> Iterator[Problem]:
        """Everything wrong with the live records."""
        view = self._view
        if self._progress is not None:
            self._total = count_checkpoints(view)
        for thread in view.threads():
            self.threads += 1
            try:
                thread_name(view, thread)
            except CkptStoreError as error:
                yield Problem(f"the name of thread number {thread} cannot be read: {error}")
            for lane in view.lanes(thread):
                self.namespaces += 1
                try:
                    ns_name(view, lane)
                except CkptStoreError as error:
                    yield Problem(f"the name of namespace number {lane} cannot be read: {error}")
                yield from self._lane(lane)

    def _lane(self, lane: int) -> Iterator[Problem]:
        view, name = self._view, self.lane_name(lane)
        here = Problem("", thread=name.thread, ns=name.ns)
        hashes = view.id_hashes(lane)
        state = view.state(lane)
        live: dict[int, CheckpointEntry] = {}
        orphans = 0
        for number in all_numbers(view, lane):
            entry = view.live_checkpoint(lane, number)
            batches = view.writes(lane, number)
            self.batches += len(batches)
            if entry is not None:
                live[number] = entry
                yield from self._checkpoint(here, lane, entry, hashes)
                if self._progress is not None and not len(live) % _TOLD_EVERY:
                    self._progress(self.checkpoints + len(live), self._total)
            elif batches:
                orphans += len(batches)
            for batch in batches:
                yield from self._batch(here, lane, number, batch, hashes)
            history = view.history(lane, number)
            if history is not None:
                yield from self._history(here._replace(checkpoint=self.id_of(lane, number)), history)
        self.checkpoints += len(live)
        if self._progress is not None:
            self._progress(self.checkpoints, self._total)
        self.orphans += orphans
        if orphans:
            self.remarks.append(f"{name}: {orphans} batches of writes on checkpoints that are not stored")
        bereft = sum(_is_bereft(view, lane, entry) for entry in live.values())
        if bereft:
            self.remarks.append(f"{name}: {bereft} checkpoints were stored on a parent that was removed; a walk from them raises")
        if not live:
            self.remarks.append(f"{name}: no checkpoints")
        placed = list(view.newest_first(lane))
        if {number: place for place, number in placed} != {number: entry.place for number, entry in live.items()}:
            yield here._replace(text="the list of checkpoints by place is not that of the checkpoints")
        if state.checkpoints != len(live):
            yield here._replace(text=f"{state.checkpoints} checkpoints are counted, {len(live)} are there")
        if live and state.head not in live:
            yield here._replace(text="the head is not a checkpoint")
        yield from self._lineage(here, lane, live)

    def _checkpoint(self, here: Problem, lane: int, entry: CheckpointEntry, hashes: dict[int, bytes]) -> Iterator[Problem]:
        view = self._view
        ref = entry.ref
        here = here._replace(lsn=ref.lsn, checkpoint=self.id_of(lane, entry.number))
        try:
            frame = view.frame(ref.lsn)
            fields = frame.entry(ref, Kind.CHECKPOINT)
            record = decode_checkpoint(ref, fields, frame.raw(ref.ordinal))
        except CkptStoreError as error:
            yield here._replace(text=str(error))
            return
        except Exception as error:  # bytes that checksums vouch for and that are no checkpoint: another program wrote them
            yield here._replace(text=f"the checkpoint does not decode: {error}")
            return
        if fields[HEADER] != lane and fields[HEADER] not in view.origins(lane):
            yield here._replace(text=f"the record belongs to namespace number {fields[HEADER]}, not {lane}")
        if id_hash(fields[HEADER + 1]) != hashes.get(entry.number):
            yield here._replace(text="the record has another id")
        parent = fields[HEADER + 2]
        if (None if parent is None else id_hash(parent)) != hashes.get(entry.parent):
            yield here._replace(text="the record has another parent")
        if entry.place > ref.lsn:
            yield here._replace(text=f"its place {entry.place} is behind its own record")
        mask = 0
        for channel, slot in record.table.items():
            if slot.value is None:
                continue
            mask |= channel_bit(channel)
            if isinstance(slot.value, Ref) and (why := self._value(slot.value)):
                yield here._replace(text=f"channel {channel!r} cannot be read: {why}")
        if mask != fields[HEADER + 5] or mask != entry.mask:
            yield here._replace(text="the mask of its channels is wrong")
        for value in checkpoint_refs(ref.lsn, fields):
            if (why := self._value(value)) and not any(slot.value == value for slot in record.table.values()):
                yield here._replace(text=f"a value that it names cannot be read: {why}")
        yield from self._edge(here, lane, entry, hashes)

    def _edge(self, here: Problem, lane: int, entry: CheckpointEntry, hashes: dict[int, bytes]) -> Iterator[Problem]:
        """Parent and consumed writes, as far as a walk still uses them."""
        view = self._view
        parent = view.checkpoint(lane, entry.parent) if entry.parent else None
        if not entry.parent or entry.has_history or (parent is not None and parent.removed):
            return
        if parent is not None and entry.number not in view.children(lane, entry.parent):
            yield here._replace(text="its parent does not know it as a child")
        for ref in entry.consumed.refs():
            try:
                fields = view.frame(ref.lsn).entry(ref, Kind.WRITES)
            except CkptStoreError as error:
                yield here._replace(text=f"writes that made it cannot be read: {error}")
                continue
            if id_hash(fields[HEADER + 1]) != hashes.get(entry.parent):
                yield here._replace(text=f"writes that made it, at LSN {ref.lsn}, are not on its parent")

    def _batch(self, here: Problem, lane: int, number: int, batch: WritesEntry, hashes: dict[int, bytes]) -> Iterator[Problem]:
        ref = batch.ref
        here = here._replace(lsn=ref.lsn, checkpoint=self.id_of(lane, number))
        fields = yield from self._writes(here, ref)
        if fields is None:
            return
        if fields[HEADER] != lane and fields[HEADER] not in self._view.origins(lane):
            yield here._replace(text=f"writes of namespace number {fields[HEADER]} stand in {lane}")
        if id_hash(fields[HEADER + 1]) != hashes.get(number):
            yield here._replace(text="writes of another checkpoint")
        if (batch.task, batch.mask) != (fields[HEADER + 4], fields[HEADER + 5]):
            yield here._replace(text="the index has another task or other channels of these writes")

    def _writes(self, here: Problem, ref: Ref) -> Generator[Problem, None, Entry | None]:
        """Check one WRITES record; its entry is the generator's value."""
        try:
            frame = self._view.frame(ref.lsn)
            fields = frame.entry(ref, Kind.WRITES)
            record = decode_writes(ref, fields, frame.raw(ref.ordinal))
        except CkptStoreError as error:
            yield here._replace(text=f"writes cannot be read: {error}")
            return None
        except Exception as error:
            yield here._replace(text=f"writes do not decode: {error}")
            return None
        mask = 0
        for _, channel, _ in record.writes:
            mask |= channel_bit(channel)
        if mask != fields[HEADER + 5] or task_hash(record.task_id) != fields[HEADER + 4]:
            yield here._replace(text="the task or the channels in front of these writes are wrong")
        for value in writes_refs(ref.lsn, fields):
            if why := self._value(value):
                yield here._replace(text=f"a write cannot be read: {why}")
        return fields

    def _history(self, here: Problem, ref: Ref) -> Iterator[Problem]:
        self.histories += 1
        here = here._replace(lsn=ref.lsn)
        try:
            kept_values, kept_batches = history_refs(self._view.frame(ref.lsn).entry(ref, Kind.HISTORY))
            read_history(self._view, ref)
        except CkptStoreError as error:
            yield here._replace(text=f"what it keeps of removed ancestors cannot be read: {error}")
            return
        except Exception as error:
            yield here._replace(text=f"what it keeps of removed ancestors does not decode: {error}")
            return
        for value in kept_values:
            if why := self._value(value):
                yield here._replace(text=f"a value of a removed ancestor cannot be read: {why}")
        for batch in kept_batches:
            yield from self._writes(here, batch)

    def _lineage(self, here: Problem, lane: int, live: dict[int, CheckpointEntry]) -> Iterator[Problem]:
        """Walk from each leaf as a reader does: seeds and the writes after them."""
        view = self._view
        for number, entry in live.items():
            if any(child in live for child in view.children(lane, number)):
                continue
            try:
                past(view, lane, entry, history_channels(view, lane, entry))
            except CheckpointLineageIntegrityError:
                pass  # a removed ancestor: remarked where it was removed
            except CorruptionError as error:
                yield here._replace(text=f"its history cannot be walked: {error}", checkpoint=self.id_of(lane, number))
            except Exception as error:
                yield here._replace(text=f"its history does not decode: {error}", checkpoint=self.id_of(lane, number))

    def _value(self, ref: Ref) -> str:
        """What is wrong with a value; empty when it reads as it was written. Each is read once."""
        if ref not in self.seen_values:
            self.seen_values[ref] = self._read(ref)
        return self.seen_values[ref]

    def _read(self, ref: Ref) -> str:
        try:
            facts = value_facts(ref.lsn, self._view.frame(ref.lsn).entry(ref, Kind.VALUE))
            late = [base for base in (*facts.bases, *facts.folds) if base.lsn > ref.lsn]
            if late:
                return f"it is based on LSN {late[0].lsn}, which was written after it"
            if facts.frames > MOST_FRAMES:
                return f"reading it touches {facts.frames} frames, more than {MOST_FRAMES}"
            raw = self._values.raw(self._view, ref)
        except CkptStoreError as error:
            return str(error)
        except Exception as error:
            return f"the value does not decode: {error}"
        return "" if crc32(raw) == facts.crc else "it does not match its checksum"


def _is_bereft(view: View, lane: int, entry: CheckpointEntry) -> bool:
    parent = view.checkpoint(lane, entry.parent) if entry.parent and not entry.has_history else None
    return parent is not None and parent.removed
