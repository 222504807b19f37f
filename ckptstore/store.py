"""`Store`: storage and lineage composed. Thread-safe; every method may be called from any thread and any process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, overload

from ckptstore.codec.records import Encoded, encode_head, encode_meta
from ckptstore.codec.serde import Serde
from ckptstore.errors import FrameGoneError, InvalidArgumentError, ModeMismatchError, ReadOnlyError
from ckptstore.lineage import reader
from ckptstore.lineage.commits import Commits
from ckptstore.lineage.listing import AsyncCheckpointIterator, CheckpointIterator, list_threads
from ckptstore.model import ChannelHistory, LaneName, Outline, StoredCheckpoint, ThreadInfo, Typed
from ckptstore.options import StoreOptions
from ckptstore.progress import Progress
from ckptstore.state.materializer import Reducer, materialize
from ckptstore.state.plain import PlainSerde, load_write
from ckptstore.storage import Compaction, Storage, View
from ckptstore.storage.local import backup as local_backup
from ckptstore.storage.local import checking, erasing
from ckptstore.storage.local.backup import BackupReport
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.layout import named_folder
from ckptstore.thread import Schema, Thread, agreed_schema
from ckptstore.upkeep import compaction, erasure, removal, retention
from ckptstore.upkeep.policy import PruneReport, RetentionPolicy
from ckptstore.upkeep.sweeper import Sweeper
from ckptstore.upkeep.verify import VerifyReport, verify_log, verify_view

DEFAULT_SNAPSHOT_FREQUENCY = 10


_Amount = TypeVar("_Amount", bool, int)


class StoreStats(NamedTuple):
    """Figures an operator wants: sizes and log position, then counters of this process (ckptstore.activity says what each means)."""

    segments: int
    log_bytes: int
    dead_bytes: int
    live_bytes: int
    index_bytes: int
    frames: int
    last_lsn: int
    durable_lsn: int
    appends: int
    appended_bytes: int
    fsyncs: int
    fsync_seconds: float
    slowest_fsync: float
    lock_waits: int
    lock_wait_seconds: float
    waiting: int
    value_reads: int
    value_frames: int
    most_frames: int
    cache_hits: int
    cache_misses: int
    refused_late: int
    conflicts: int
    cut_tail_bytes: int
    last_compaction_ms: int | None


class Store(Commits):
    """A checkpoint store. Use `ckptstore.open`."""

    def __init__(self, storage: Storage, options: StoreOptions) -> None:
        super().__init__(storage, options)
        self._background = compaction.BackgroundCompaction(storage, self._values)
        self._agree_on_mode()

    # -- life cycle -----------------------------------------------------------------------------------------------------

    @property
    def options(self) -> StoreOptions:
        return self._options

    def close(self) -> None:
        """Release the store; idempotent. Everything acknowledged stays."""
        self._background.close()
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def sync(self) -> None:
        """Make everything committed so far durable, whatever the durability level."""
        self._storage.sync()

    def wait_durable(self, lsn: int) -> None:
        """Return when `lsn` survives a power loss."""
        self._storage.wait_durable(lsn)

    def stats(self) -> StoreStats:
        """Sizes, log position, and what this process did since it opened the store."""
        sizes = self._storage.stats()
        return StoreStats(**sizes._asdict(), live_bytes=sizes.live_bytes, **asdict(self._storage.activity))

    def _agree_on_mode(self) -> None:
        wanted = self._options.mode
        if wanted is None:
            return
        with self._storage.view() as view:
            kept = view.meta("mode")
        if kept is None and not self._options.read_only:

            def resolve(view: View) -> list[Encoded]:
                nonlocal kept
                kept = view.meta("mode")
                return [] if kept is not None else [encode_meta({"mode": wanted})]

            self._storage.commit(resolve)
        if kept is not None and kept != wanted:
            raise ModeMismatchError(
                f"the store keeps channel mode {kept!r}, it was opened with mode={wanted!r}: open it with mode={kept!r} or mode=None"
            )

    # -- reading --------------------------------------------------------------------------------------------------------

    def get(self, lane: LaneName, id: str | None = None) -> StoredCheckpoint | None:
        """A checkpoint with its values and pending writes; without an id the lane's head. None where there is none.

        Raises:
            CorruptionError: names the checkpoint and what is damaged.
        """
        while True:
            try:
                with self._storage.view() as view:
                    number = view.lane(lane.thread, lane.ns)
                    if number is None:
                        return None
                    if id is None:
                        entry = view.head(number)
                    else:
                        known = view.number(number, id)
                        entry = None if known is None else view.live_checkpoint(number, known)
                    return None if entry is None else reader.stored(view, self._values, lane, number, entry, id)
            except FrameGoneError:
                continue

    def history(self, lane: LaneName, id: str | None, channels: Sequence[str]) -> dict[str, ChannelHistory]:
        """What each channel's ancestors contribute to a checkpoint: nearest value, then owned writes, oldest first.

        Unknown ids have an empty past, as the LangGraph contract wants.

        Raises:
            CheckpointLineageIntegrityError: there is evidence that something of the past is lost.
        """
        while True:
            try:
                with self._storage.view() as view:
                    number = view.lane(lane.thread, lane.ns)
                    entry = None
                    if number is not None:
                        known = view.state(number).head if id is None else view.number(number, id)
                        entry = view.live_checkpoint(number, known) if known else None
                    if number is None or entry is None:
                        return {channel: ChannelHistory(None, []) for channel in channels}
                    return reader.history(view, self._values, lane, number, entry, channels)
            except FrameGoneError:
                continue

    def state(
        self,
        lane: LaneName,
        id: str | None = None,
        *,
        reducers: Mapping[str, Reducer],
        serde: Serde | None = None,
        channels: Sequence[str] | None = None,
        strict: bool = False,
    ) -> dict[str, Any]:
        """The state at a checkpoint: stored values, and for channels without one the nearest value with the owned writes after it.

        Args:
            id: the lane's head when None.
            reducers: for channels that have to be rebuilt: (value before or `UNSET`, writes oldest first) -> value after.
            serde: how values were written; plain msgpack, as native threads write, when None.
            channels: only these; all when None.
            strict: a channel that has to be rebuilt began with a stored value, as in native threads; without one it raises.

        Raises:
            InvalidArgumentError: no such checkpoint.
            MissingReducerError, CheckpointLineageIntegrityError, CorruptionError
        """
        how = serde if serde is not None else PlainSerde()
        while True:
            try:
                with self._storage.view() as view:
                    number = view.lane(lane.thread, lane.ns)
                    known = None if number is None else view.state(number).head if id is None else view.number(number, id)
                    entry = view.live_checkpoint(number, known) if number is not None and known else None
                    if number is None or entry is None:
                        raise InvalidArgumentError(f"{lane} holds no checkpoint id={id!r}")

                    def loads(typed: Typed) -> Any:
                        return load_write(how, typed)

                    return materialize(view, self._values, lane, number, entry, reducers, loads, channels, strict=strict)
            except FrameGoneError:
                continue

    def outline(self, lane: LaneName, id: str | None = None) -> Outline | None:
        """A checkpoint without its values and writes; without an id the lane's head. None where there is none."""
        while True:
            try:
                with self._storage.view() as view:
                    number = view.lane(lane.thread, lane.ns)
                    known = None if number is None else view.state(number).head if id is None else view.number(number, id)
                    entry = view.live_checkpoint(number, known) if number is not None and known else None
                    return None if number is None or entry is None else reader.outline(view, lane, number, entry)
            except FrameGoneError:
                continue

    def is_pruned(self, lane: LaneName, id: str) -> bool:
        """Whether this id was stored once and removed since, by `prune` or `delete_for_runs`."""
        with self._storage.view() as view:
            number = view.lane(lane.thread, lane.ns)
            known = None if number is None else view.number(number, id)
            entry = None if number is None or known is None else view.checkpoint(number, known)
            return entry is not None and entry.removed

    def list(
        self,
        thread: str | None = None,
        ns: str | None = None,
        id: str | None = None,
        *,
        before: str | None = None,
        accept: Callable[[dict[str, Any] | Typed], bool] | None = None,
    ) -> CheckpointIterator:
        """Checkpoints, newest first: in place order within one lane, by id descending over several.

        Args:
            thread, ns: None for all of them.
            id: only the checkpoint with this id, in each lane.
            before: only what lies before this id: by place where the lane holds it, else by id.
            accept: decides on the metadata, before values are read.

        Returns:
            An iterator that holds no lock between two items. A damaged checkpoint raises, and the next call goes on behind it.
        """
        return CheckpointIterator(self._storage, self._values, thread, ns, id, before, accept)

    def thread(
        self,
        id: str,
        ns: str = "",
        *,
        schema: Schema | None = None,
        serde: Serde | None = None,
        snapshot_frequency: int = DEFAULT_SNAPSHOT_FREQUENCY,
    ) -> Thread:
        """A cursor on a thread's head, or on nothing where the thread is new.

        Args:
            schema: channels of the thread. A new thread needs one; later it is remembered, `reduce` functions excepted, and may
                be extended.
            serde: how values become bytes; msgpack of plain types when None.
            snapshot_frequency: after how many updates of a channel its value is stored again; 1 stores it at each.

        Raises:
            InvalidArgumentError: names the argument. SchemaError: the schema does not agree with what is stored.
        """
        _check_thread("id", id)
        if not id:
            raise InvalidArgumentError(f"id={id!r}: a non-empty string is needed")
        if not isinstance(ns, str):
            raise InvalidArgumentError(f"ns={ns!r}: a string is needed")
        if isinstance(snapshot_frequency, bool) or not isinstance(snapshot_frequency, int) or snapshot_frequency < 1:
            raise InvalidArgumentError(f"snapshot_frequency={snapshot_frequency!r}: a whole number from 1 is needed")
        lane = LaneName(id, ns)
        head = self.outline(lane)
        agreed = agreed_schema(lane, head, schema)
        how = serde if serde is not None else PlainSerde()
        return Thread(self, lane, None if head is None else head.id, agreed, how, snapshot_frequency)

    def threads(self) -> Iterator[ThreadInfo]:
        """All threads that hold a checkpoint, oldest first. Reads no value, so its cost does not depend on their size."""
        return list_threads(self._storage)

    # -- changing what is there -----------------------------------------------------------------------------------------

    def set_head(self, lane: LaneName, id: str) -> int:
        """Make a stored checkpoint the lane's head, without storing one.

        Raises:
            InvalidArgumentError: no such checkpoint.
        """

        def resolve(view: View) -> list[Encoded]:
            number = view.lane(lane.thread, lane.ns)
            known = None if number is None else view.number(number, id)
            if number is None or known is None or view.live_checkpoint(number, known) is None:
                raise InvalidArgumentError(f"{lane} holds no checkpoint id={id!r}")
            return [encode_head(number, id, 0)]

        return self._storage.commit(resolve)

    def delete(self, thread: str, *, erase: bool = False, with_copies: bool = False) -> bool:
        """Delete a thread: all namespaces, checkpoints, writes. Its ids are remembered, so that late writes are refused.

        Copies of the thread keep reading what they share. Space comes back by compaction.

        Args:
            erase: compact too, and return when no file of the store holds bytes of the thread any more, nor of earlier threads of that
                name. Backups do until they are next made; so do open descriptors of other processes on files that are deleted.
            with_copies: with `erase`: delete all threads too that share records with it: its copies, and what it was copied from.

        Returns:
            Whether there was such a thread.

        Raises:
            CopiesRemainError: `erase` without `with_copies`, and other threads share its records: they are named, nothing was done.
            LockTimeoutError: another compaction, or writers, were in the way of `erase`: the thread is deleted, call again.
            CorruptionError: a frame is damaged, so that `erase` cannot tell whose it is.
        """
        _check_thread("thread", thread)
        if erase:
            return self._erase(thread, with_copies)
        if with_copies:
            raise InvalidArgumentError("with_copies=True: only with erase=True")
        return self._removed(removal.delete(self._storage, thread))

    def _erase(self, thread: str, with_copies: bool) -> bool:
        timeout = self._options.lock_timeout
        storage = self._storage
        local = storage if isinstance(storage, LocalStorage) else None
        frames = erasure.all_frames if local is None else erasing.frames
        deleted, traces = erasure.erase(storage, self._values, thread, frames, with_copies=with_copies, timeout=timeout)
        if local is not None:
            erasing.erase_beside_the_log(local, traces.may_mark, timeout)
        return deleted

    def _removed(self, what: _Amount) -> _Amount:
        if what and self._options.auto_compact:
            self._background.consider()
        return what

    def copy(self, source: str, destination: str) -> int:
        """Copy a thread by reference: same ids, same order, all namespaces and writes; nothing of the log is duplicated.

        Returns:
            Number of checkpoints the copy holds; 0 when there is no such source, and then nothing is created.

        Raises:
            ThreadExistsError: the destination holds records already.
        """
        _check_thread("source", source)
        _check_thread("destination", destination)
        if not destination:
            raise InvalidArgumentError("destination='': a non-empty string is needed")
        return removal.copy(self._storage, source, destination)

    @overload
    def prune(self, thread: str, /) -> int: ...
    @overload
    def prune(
        self,
        policy: RetentionPolicy,
        /,
        *,
        threads: Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> PruneReport: ...
    def prune(
        self,
        what: str | RetentionPolicy,
        /,
        *,
        threads: Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int | PruneReport:
        """Remove checkpoints that are not needed any more. Every one that stays reads as before; space comes back by compaction.

        Args:
            what: a thread, to keep the head of each of its namespaces and nothing else; or a policy (`RetentionPolicy`).
            threads: with a policy: only these, and all when None.
            dry_run: with a policy: find out what would go, and about how much that gives back; remove nothing.
            progress: with a policy: called with the number of threads that were looked at, and how many there are; for `max_bytes` a
                second time.

        Returns:
            Of a thread the number of checkpoints removed, of a policy what it did.

        Raises:
            InvalidArgumentError: names the argument.
        """
        if isinstance(what, str):
            if threads is not None or dry_run or progress is not None:
                raise InvalidArgumentError(f"what={what!r}: threads=, dry_run= and progress= are for a RetentionPolicy")
            return self._removed(removal.prune(self._storage, what))
        if not isinstance(what, RetentionPolicy):
            raise InvalidArgumentError(f"thread={what!r}: a string is needed, or a RetentionPolicy")
        if isinstance(threads, str):
            raise InvalidArgumentError(f"threads={threads!r}: a sequence of threads is needed, not one name")
        if dry_run:
            return retention.prune(self._storage, what, threads, dry_run=True, progress=progress)
        self._refuse_read_only()
        report = retention.prune(self._storage, what, threads, progress=progress)
        self._removed(report.removed)
        return report

    def _refuse_read_only(self) -> None:
        """Also where there turns out to be nothing to do."""
        if self._options.read_only:
            raise ReadOnlyError("the store was opened with read_only=True")

    def sweeper(self, policy: RetentionPolicy) -> Sweeper:
        """What applies a policy in the background as threads grow; see `Sweeper`. Close it before the store.

        Raises:
            InvalidArgumentError: not a policy.
        """
        if not isinstance(policy, RetentionPolicy):
            raise InvalidArgumentError(f"policy={policy!r}: a RetentionPolicy is needed")
        return Sweeper(self._storage, policy, self._removed)

    def compact(self, *, least_dead: float = 0.0, progress: Progress | None = None) -> Compaction:
        """Give the space of what was deleted and pruned back, while readers and writers of all processes go on.

        Args:
            least_dead: share of a segment, 0 to 1, that has to be dead for it to be rewritten; 0 rewrites whatever gives anything.
            progress: called with the LSN up to which the log was looked at, and the last one.

        Returns:
            What it did, in segments, bytes and frames. Extra space while it runs: about one segment.

        Raises:
            LockTimeoutError: another compaction is going on. NoSpaceError, ReadOnlyError, StorageIOError
        """
        if isinstance(least_dead, bool) or not isinstance(least_dead, int | float) or not 0 <= least_dead <= 1:
            raise InvalidArgumentError(f"least_dead={least_dead!r}: a number from 0 to 1 is needed")
        return compaction.compact(self._storage, self._values, least_dead, progress=progress)

    def verify(self, *, progress: Progress | None = None) -> VerifyReport:
        """Check everything the store holds: see `ckptstore.verify`."""
        storage = self._storage
        if isinstance(storage, LocalStorage):
            with checking.checked(storage.path, progress=progress) as log:
                return verify_log(log, progress)
        with storage.view() as view:
            return verify_view(view, progress)

    def backup(self, destination: str | os.PathLike[str], *, progress: Progress | None = None) -> BackupReport:
        """Bring a backup in a folder up to date, or make one: see `ckptstore.backup`."""
        folder = named_folder("destination", destination)
        if not isinstance(self._storage, LocalStorage):
            raise InvalidArgumentError("store=':memory:': only a store in a folder can be backed up")
        if folder.is_relative_to(self._storage.path):
            raise InvalidArgumentError(f"destination={str(folder)!r}: a folder outside the store is needed")
        return local_backup.backup(self._storage, folder, progress=progress)

    def delete_for_runs(self, runs: Iterable[str]) -> int:
        """Remove every checkpoint, in any thread and namespace, whose metadata names one of these runs; return how many."""
        return self._removed(removal.delete_for_runs(self._storage, runs))

    # -- async: the same in a worker thread -----------------------------------------------------------------------------

    async def aclose(self) -> None:
        """`close` in a worker thread."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self.close)

    async def athread(
        self,
        id: str,
        ns: str = "",
        *,
        schema: Schema | None = None,
        serde: Serde | None = None,
        snapshot_frequency: int = DEFAULT_SNAPSHOT_FREQUENCY,
    ) -> Thread:
        """`thread` in a worker thread."""
        return await asyncio.to_thread(self.thread, id, ns, schema=schema, serde=serde, snapshot_frequency=snapshot_frequency)

    async def athreads(self) -> AsyncIterator[ThreadInfo]:
        """`threads`, each step in a worker thread."""
        found = self.threads()
        while (info := await asyncio.to_thread(next, found, None)) is not None:
            yield info

    async def adelete(self, thread: str, *, erase: bool = False, with_copies: bool = False) -> bool:
        """`delete` in a worker thread."""
        return await asyncio.to_thread(self.delete, thread, erase=erase, with_copies=with_copies)

    async def acopy(self, source: str, destination: str) -> int:
        """`copy` in a worker thread."""
        return await asyncio.to_thread(self.copy, source, destination)

    @overload
    async def aprune(self, thread: str, /) -> int: ...
    @overload
    async def aprune(
        self,
        policy: RetentionPolicy,
        /,
        *,
        threads: Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> PruneReport: ...
    async def aprune(
        self,
        what: str | RetentionPolicy,
        /,
        *,
        threads: Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int | PruneReport:
        """`prune` in a worker thread."""
        if isinstance(what, RetentionPolicy):
            return await asyncio.to_thread(self.prune, what, threads=threads, dry_run=dry_run, progress=progress)
        return await asyncio.to_thread(self.prune, what)

    async def acompact(self, *, least_dead: float = 0.0, progress: Progress | None = None) -> Compaction:
        """`compact` in a worker thread."""
        return await asyncio.to_thread(self.compact, least_dead=least_dead, progress=progress)

    async def averify(self, *, progress: Progress | None = None) -> VerifyReport:
        """`verify` in a worker thread."""
        return await asyncio.to_thread(self.verify, progress=progress)

    async def astats(self) -> StoreStats:
        """`stats` in a worker thread."""
        return await asyncio.to_thread(self.stats)

    async def aget(self, lane: LaneName, id: str | None = None) -> StoredCheckpoint | None:
        """`get` in a worker thread."""
        return await asyncio.to_thread(self.get, lane, id)

    async def aoutline(self, lane: LaneName, id: str | None = None) -> Outline | None:
        """`outline` in a worker thread."""
        return await asyncio.to_thread(self.outline, lane, id)

    async def astate(
        self,
        lane: LaneName,
        id: str | None = None,
        *,
        reducers: Mapping[str, Reducer],
        serde: Serde | None = None,
        channels: Sequence[str] | None = None,
        strict: bool = False,
    ) -> dict[str, Any]:
        """`state` in a worker thread; the reducers run there, too."""
        return await asyncio.to_thread(self.state, lane, id, reducers=reducers, serde=serde, channels=channels, strict=strict)

    def alist(
        self,
        thread: str | None = None,
        ns: str | None = None,
        id: str | None = None,
        *,
        before: str | None = None,
        accept: Callable[[dict[str, Any] | Typed], bool] | None = None,
    ) -> AsyncCheckpointIterator:
        """`list`, each step in a worker thread; `accept` is asked there, too."""
        return AsyncCheckpointIterator(self.list(thread, ns, id, before=before, accept=accept))

    async def aset_head(self, lane: LaneName, id: str) -> int:
        """`set_head` in a worker thread."""
        return await asyncio.to_thread(self.set_head, lane, id)

    async def ahistory(self, lane: LaneName, id: str | None, channels: Sequence[str]) -> dict[str, ChannelHistory]:
        """`history` in a worker thread."""
        return await asyncio.to_thread(self.history, lane, id, channels)

    async def abackup(self, destination: str | os.PathLike[str], *, progress: Progress | None = None) -> BackupReport:
        """`backup` in a worker thread."""
        return await asyncio.to_thread(self.backup, destination, progress=progress)

    async def await_durable(self, lsn: int) -> None:
        """`wait_durable` in a worker thread."""
        await asyncio.to_thread(self.wait_durable, lsn)

    async def await_sync(self) -> None:
        """`sync` in a worker thread."""
        await asyncio.to_thread(self.sync)


def _check_thread(argument: str, name: object) -> None:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{argument}={name!r}: a string is needed")
