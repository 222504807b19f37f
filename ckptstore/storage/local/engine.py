"""One log in one process: commit, group fsync, read.

A process has one `Engine` a folder, whatever number of handles: LMDB allows one environment a process, and one descriptor table is
enough. Handles differ in durability, lock timeout and read-only; the engine is what they share.

Commit, and what a kill at each point leaves behind (a power cut loses at most what was not fsynced, see recovery.py):

    resolve            nothing happened
    append             bytes after the published tail: invisible, cut by the next writer
    publish            the index names the frame: every process sees it
    fsync              acknowledged at `commit`
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ckptstore.activity import Activity
from ckptstore.codec.records import Encoded, Entry, Kind, pack
from ckptstore.errors import (
    CkptStoreError,
    CorruptionError,
    DurabilityUnknownError,
    FrameGoneError,
    NoSpaceError,
    ReadOnlyError,
    StaleIndexError,
    StorageIOError,
    StoreClosedError,
    StorePoisonedError,
)
from ckptstore.forks import process_id
from ckptstore.options import StoreOptions
from ckptstore.storage import Compaction, Frame, Resolve, StorageStats, Survey, View
from ckptstore.storage.catalog import Kv
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local import recovery
from ckptstore.storage.local.bulk import read_directories
from ckptstore.storage.local.compaction import Compactor
from ckptstore.storage.local.failures import NO_SPACE, told
from ckptstore.storage.local.frames import FrameCache, get_end, get_location, is_published, put_end, put_location
from ckptstore.storage.local.gate import Gate
from ckptstore.storage.local.hints import write_hint
from ckptstore.storage.local.index import IndexEnv, IndexFullError, IndexNoSpaceError
from ckptstore.storage.local.index.kinds import KINDS
from ckptstore.storage.local.layout import Layout, read_owner, write_json
from ckptstore.storage.local.opening import open_folder
from ckptstore.storage.local.rebuild import fill
from ckptstore.storage.local.recovery import End
from ckptstore.storage.local.segment import Location, SegmentGoneError
from ckptstore.storage.local.vfs import Vfs

logger = logging.getLogger("ckptstore")

# A segment this small takes any batch: a value larger than a segment must find a place.
_SMALL_SEGMENT = 1024
# An index is packed at close when it is worth the while and takes no time that anybody would notice.
_TRIM_FROM, _TRIM_TO = 64 << 10, 32 << 20
_PREFILL = 64 << 10
# Seconds after which an fsync is worth a line in the log, as etcd does.
_SLOW_FSYNC = 1.0
_NOTHING = (b"", b"\0")


_Found = TypeVar("_Found", Frame, list[Entry])


class _LocalView(View):
    """An index snapshot that reads frames from segments."""

    __slots__ = ("_directories", "_engine", "_generation")

    def __init__(self, kv: Kv, engine: Engine) -> None:
        super().__init__(kv)
        self._engine = engine
        self._directories: dict[int, list[Entry]] = {}
        self._generation = self.compactions()
        engine.cache.of_generation(self._generation)

    def frame(self, lsn: int) -> Frame:
        frame = self._engine.cache.get(lsn, self._generation)
        if frame is None:
            frame = self._engine.read_frame(self._kv, lsn)
            self._engine.cache.put(frame, self._generation)
        return frame

    def entries(self, lsn: int) -> list[Entry]:
        frame = self._engine.cache.get(lsn, self._generation)
        if frame is not None:
            return frame.entries
        if lsn not in self._directories:
            self._directories[lsn] = self._engine.read_directory(self._kv, lsn)
        return self._directories[lsn]

    def directories(self, lsns: Collection[int]) -> Iterator[tuple[int, list[Entry]]]:
        for lsn, entries in read_directories(self._engine.segments, self._kv, lsns):
            yield lsn, entries if entries is not None else self._engine.read_directory(self._kv, lsn)


class _Viewing:
    """`with` a view. A class instead of a generator: it is entered once or twice a call."""

    __slots__ = ("_engine", "_reading")

    def __init__(self, engine: Engine, reading: AbstractContextManager[Kv]) -> None:
        self._engine = engine
        self._reading = reading

    def __enter__(self) -> View:
        kv = self._reading.__enter__()
        try:
            return _LocalView(kv, self._engine)
        except BaseException as error:  # a damaged index: nobody else would end this transaction
            self._reading.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reading.__exit__(kind, error, trace)


class Engine:
    """An open store folder in this process."""

    def __init__(self, root: Path, options: StoreOptions, vfs: Vfs, forked: bool) -> None:
        self.pid = process_id()
        self.layout = Layout(root)
        self.vfs = vfs
        self.options = options
        self.cache = FrameCache(options.cache_bytes // 4)
        self.handles = 0
        self.activity = Activity()
        opened = open_folder(root, options, vfs, self.activity, forked=forked)
        (
            self._lock,
            self.identity,
            self.segments,
            self._index,
            self._page,
            self._epoch,
            self._published,
            self._private,
            self.damage,
        ) = opened
        self._closed = False
        self._session_began = False
        self._tail_is_clear = False
        self._appended = False
        self._sealed: int | None = None
        self._extent = (0, 0)
        self._sync_turn = threading.Condition(threading.Lock())
        self._syncing = False
        self._ticker: threading.Thread | None = None
        self._stop_ticker = threading.Event()
        self._hints: list[threading.Thread] = []
        self.calls = Gate()

    @property
    def private(self) -> bool:
        """Whether this engine reads through an index of its own, a picture of the moment it opened: never to be shared or written."""
        return self._private is not None

    def is_at(self, root: Path) -> bool:
        """Whether the folder at `root` is still the one this engine has open, and not another made in its place."""
        return self._lock.is_at(root / "LOCK")

    @property
    def index_kind(self) -> str:
        return self._index.kind

    # -- reading --------------------------------------------------------------------------------------------------------

    def view(self) -> _Viewing:
        if self._closed:
            raise StoreClosedError(f"{self.layout.root} is closed")
        return _Viewing(self, self._index.read())

    def read_frame(self, kv: Kv, lsn: int) -> Frame:
        location, (header, frame) = self._read(kv, lsn, self.segments.read)
        self._check(location, header, lsn)
        return frame

    def read_directory(self, kv: Kv, lsn: int) -> list[Entry]:
        """The directory of a frame, verified, without its bodies."""
        location, (header, entries) = self._read(kv, lsn, self.segments.read_directory)
        self._check(location, header, lsn)
        return entries

    def _read(
        self, kv: Kv, lsn: int, read: Callable[[Location], tuple[fmt.FrameHeader, _Found]]
    ) -> tuple[Location, tuple[fmt.FrameHeader, _Found]]:
        location = self._located(kv, lsn)
        try:
            try:
                return location, read(location)
            except SegmentGoneError:
                # Compacted away since this view began: the index knows the new place, unless the frame fell away.
                with self._index.read() as now:
                    moved = get_location(now, lsn)
                if moved is None:
                    raise FrameGoneError(f"LSN {lsn} was removed and compacted away while it was read: read again") from None
                if moved == location:
                    raise
                header, found = read(moved)
                if any(entry[0] == Kind.VOID for entry in (found.entries if isinstance(found, Frame) else found)):
                    raise FrameGoneError(
                        f"a record of LSN {lsn} may have been compacted away while it was read: read again"
                    ) from None
                return moved, (header, found)
        except CorruptionError as error:
            raise CorruptionError(f"LSN {lsn}: {error}") from None

    def _located(self, kv: Kv, lsn: int) -> Location:
        location = get_location(kv, lsn)
        if location is None:
            raise CorruptionError(f"{self.layout.root}: no frame with LSN {lsn}: run `ckpt verify`")
        return location

    def _check(self, location: Location, header: fmt.FrameHeader, lsn: int) -> None:
        """Every read checks that the frame is the one it asked for: an index that lies must never give wrong data."""
        if header.lsn == lsn:
            return
        self._mark_stale()
        raise StaleIndexError(
            f"{self.layout.root}: the index says LSN {lsn} is at segment {location.segment}, offset {location.offset}, but "
            f"LSN {header.lsn} is there. The index was marked and is rebuilt when the store is next opened"
        )

    def _mark_stale(self) -> None:
        owner = read_owner(self.layout)
        if owner is not None and self._private is None:
            with contextlib.suppress(OSError):
                write_json(self.layout.owner, {**owner, "stale": True})

    # -- writing --------------------------------------------------------------------------------------------------------

    def commit(self, resolve: Resolve, timeout: float) -> tuple[int, int]:
        """Append one batch and publish it. Returns (LSN, segment); not yet durable."""
        if self._closed:
            raise StoreClosedError(f"{self.layout.root} is closed")
        if self._private is not None:
            raise ReadOnlyError(f"{self.layout.root} is open for reading only: its log is damaged, or it cannot be written")
        with self.commit_lock(timeout):
            return self._append_until_it_fits(resolve)

    def _append_until_it_fits(self, resolve: Resolve) -> tuple[int, int]:
        while True:
            try:
                return self._append(resolve)
            except IndexFullError:
                continue
            except IndexNoSpaceError as error:
                raise self._no_space(str(error)) from None

    @contextlib.contextmanager
    def commit_lock(self, timeout: float, *, leaving: bool = False) -> Iterator[None]:
        """Hold the commit lock of a store that may be written.

        Args:
            leaving: for the last commit of `close`; any other is refused once that has begun.
        """
        died = self._page.acquire(timeout)
        try:
            if self._closed and not leaving:
                raise StoreClosedError(f"{self.layout.root} was closed while this call waited: nothing of it was kept")
            if died:
                with told(f"a commit in {self.layout.root}"):
                    self._after_death()
                died = False
            if self._page.poisoned:
                raise StorePoisonedError(
                    f"{self.layout.root}: an fsync failed earlier, so what was written since is uncertain. Reads go on; close the "
                    "store in every process and open it again to recover"
                )
            if not self._session_began:
                self._begin_session()
            yield
        finally:
            self._page.release(died=died)

    def _after_death(self) -> None:
        """The last holder of the commit lock died: cut what it appended, and take back a segment that it named, and did not publish.

        One made by compaction: others may base new records on what it leaves out, and the next recovery would believe its list of
        replaced segments; all that it holds still stands in those. One begun by a commit: the next commit gives its LSNs to others.
        """
        with self._index.read() as kv:
            end = get_end(kv)
            assert end is not None
            self._clear_tail(self.segments.fd(end.segment), end)
            active = self.segments.header(end.segment)
            for number in self.segments.numbers():
                header = self.segments.header(number)
                if header.replaces and not is_published(kv, number):
                    self.segments.forget(number)
                    self.vfs.unlink(self.layout.segment(number))
                    self.vfs.sync_folder(self.layout.segments)
                elif not header.replaces and header.base_lsn > active.base_lsn:
                    recovery.set_aside(self.segments, header)

    def _begin_session(self) -> None:
        """The index changes from here on: take the promise back that it matches CLEAN, before it does."""
        if self.layout.clean.exists():
            with told(f"a commit in {self.layout.root}"):
                self.layout.clean.unlink()
                self.vfs.sync_folder(self.layout.index)
        self._session_began = True

    def _append(self, resolve: Resolve) -> tuple[int, int]:
        vfs = self.vfs
        written: End | None = None
        sealed: int | None = None
        begun: int | None = None
        try:
            with self._index.write() as kv:
                end = get_end(kv)
                assert end is not None
                view = _LocalView(kv, self)
                batch = list(resolve(view))
                vfs.point("commit:resolved")
                if self._is_full(end, batch):
                    sealed = end.segment
                    end = self._rotate(end)
                    begun = end.segment
                fd = self.segments.fd(end.segment)
                if not self._tail_is_clear:
                    self._clear_tail(fd, end)
                entries = [list(record.entry()) for record in batch]
                bodies = b"".join([record.body for record in batch])
                frame, crc = fmt.encode_frame(end.chain, end.next_lsn, self._page.durable, pack(entries), bodies)
                written = end
                self._prefill(fd, end.segment, end.tail + len(frame))
                vfs.pwrite(fd, frame, end.tail)
                vfs.point("commit:appended")
                lsn = end.next_lsn
                view.apply(lsn, entries)
                put_location(kv, lsn, Location(end.segment, end.tail, len(frame)))
                after = End(end.segment, end.tail + len(frame), lsn + 1, crc)
                put_end(kv, after)
                vfs.point("commit:indexed")
        except OSError as error:
            self._take_back(written, begun)
            if isinstance(error, CkptStoreError):
                raise
            if error.errno in NO_SPACE:
                raise self._no_space(error.strerror or str(error)) from None
            raise StorageIOError(
                f"{self.layout.root}: a commit failed ({error}): the disk or its driver failed; nothing of this call was kept"
            ) from error
        except BaseException:
            self._take_back(written, begun)
            raise
        vfs.point("commit:published")
        self.cache.put(Frame(lsn, entries, bodies), view._generation)
        self._published = after
        self._appended = True
        self.activity.appends += 1
        self.activity.appended_bytes += len(frame)
        self._sealed = sealed if sealed is not None else self._sealed
        return lsn, end.segment

    def _clear_tail(self, fd: int, end: End) -> None:
        """Cut what a writer left behind that died between append and publish: the end of its frame could outlive a shorter one.

        Asked at the first append, and by whoever gets the lock of a holder that died: one that lives cuts what it does not publish,
        or poisons.
        """
        if self.vfs.pread(fd, 1, end.tail) not in _NOTHING:
            self.activity.cut_tail_bytes += recovery.cut(self.segments, end.segment, end.tail)
        self._tail_is_clear = True

    def _is_full(self, end: End, batch: list[Encoded]) -> bool:
        size = sum(len(record.body) for record in batch)
        return end.tail + size > self.options.segment_bytes and end.tail > _SMALL_SEGMENT

    def _rotate(self, end: End) -> End:
        """Begin a new segment. The old one is durable before the new one has a name."""
        recovery.cut(self.segments, end.segment, end.tail)
        self._fsync(end.segment)
        self._page.raise_durable(end.next_lsn - 1)
        self.vfs.point("rotate:sealed")
        header, chain, size = self.segments.create(self.new_segment_number(), end.next_lsn)
        return End(header.segment, size, end.next_lsn, chain)

    def new_segment_number(self) -> int:
        """An id for a new segment; asked under the commit lock."""
        return self._page.new_segment(self.segments.next_number())

    def _prefill(self, fd: int, segment: int, needed: int) -> None:
        """Extend the segment with zeros, a step at a time, before frames need the room (recovery.left_over)."""
        known, size = self._extent
        if known != segment or size < needed:
            size = self.vfs.size(fd)
            if size < needed:
                step = b"\0" * (needed - size + _PREFILL)
                self.vfs.pwrite(fd, step, size)
                size += len(step)
            self._extent = (segment, size)

    def _take_back(self, written: End | None, begun: int | None) -> None:
        """Cut what a failed commit appended, so that no later reader of the log takes it for a commit.

        Args:
            begun: a segment that the commit began, which nobody knows of and nobody may keep open: the next rotation, by whichever
                process, may make another of the same number.
        """
        if begun is not None:
            self.segments.forget(begun)
            with contextlib.suppress(OSError):
                self.vfs.unlink(self.layout.segment(begun))
                # Left behind by a power cut, it would claim LSNs that the next commit gives to others.
                self.vfs.sync_folder(self.layout.segments)
            return
        if written is None:
            return
        try:
            fd = self.segments.fd(written.segment)
            if self.vfs.size(fd) > written.tail:
                self.vfs.truncate(fd, written.tail)
                # The kernel may have written the frame already: after a power cut it would be a commit that was refused.
                self.vfs.fdatasync(fd)
            self._extent = (0, 0)
        except OSError as error:
            self._poison(f"a failed append could not be cut: {error}")

    def _no_space(self, why: str) -> NoSpaceError:
        free = shutil.disk_usage(self.layout.root).free
        return NoSpaceError(
            f"no space for a commit in {self.layout.root} ({why}; {free} bytes free): nothing of this call was kept, everything "
            "acknowledged stays readable. Free space, or delete and compact threads, and repeat the call"
        )

    # -- durability -----------------------------------------------------------------------------------------------------

    def make_durable(self, lsn: int, segment: int) -> None:
        """Return when `lsn`, which stands in `segment`, survives a power loss. One fsync serves all who wait."""
        while self._page.durable < lsn:
            with self._sync_turn:
                if self._syncing:
                    self.activity.waiting += 1
                    self._sync_turn.wait()
                    self.activity.waiting -= 1
                    continue
                if self._page.durable >= lsn:
                    return
                if self._page.poisoned:
                    raise self._unknown(lsn, "an fsync failed earlier")
                self._syncing = True
            try:
                # Everything published in this segment before the fsync is covered by it, by whichever thread or process.
                target = self._published if self._published.segment == segment else None
                self._fsync(segment)
                self._page.raise_durable(max(lsn, target.next_lsn - 1 if target is not None else 0))
            except OSError as error:
                raise self._unknown(lsn, str(error)) from None
            finally:
                with self._sync_turn:
                    self._syncing = False
                    self._sync_turn.notify_all()

    def _unknown(self, lsn: int, why: str) -> DurabilityUnknownError:
        return DurabilityUnknownError(
            f"{self.layout.root}: LSN {lsn} was published but may not survive a power loss ({why}). Writes are refused until every "
            "process has closed the store and one has opened it again"
        )

    def _fsync(self, segment: int) -> None:
        try:
            self.vfs.point("fsync:before")
            started = time.perf_counter()
            self.vfs.fdatasync(self.segments.fd(segment))
            taken = time.perf_counter() - started
            self.activity.fsyncs += 1
            self.activity.fsync_seconds += taken
            self.activity.slowest_fsync = max(self.activity.slowest_fsync, taken)
            if taken > _SLOW_FSYNC:
                logger.warning("%s: an fsync took %.1f s: the disk is slow or busy", self.layout.root, taken)
            self.vfs.point("fsync:after")
        except OSError as error:
            self._poison(f"fsync of segment {segment} failed: {error}")
            raise

    def _poison(self, why: str) -> None:
        """After a failed fsync the kernel may have dropped the data and the error: nothing may build on this log any more."""
        self._page.poison()
        logger.error("%s: %s; writes are refused from here on", self.layout.root, why)
        try:
            self.vfs.write_file(self.layout.poison, why.encode())
        except OSError:
            # On a disk that flushes nothing any more. It is needed only as long as the page cache lives.
            with contextlib.suppress(OSError):
                self.layout.poison.write_text(why)

    def sync(self) -> None:
        with self._index.read() as kv:
            end = get_end(kv)
        assert end is not None
        if end.next_lsn > 1:
            self._cover(end)
            self.make_durable(end.next_lsn - 1, end.segment)

    def wait_durable(self, lsn: int) -> None:
        if self._page.durable >= lsn:
            return
        with self._index.read() as kv:
            end = get_end(kv)
        assert end is not None
        if lsn >= end.next_lsn:
            raise ValueError(f"LSN {lsn} has not been written yet")
        self._cover(end)
        self.make_durable(lsn, end.segment)

    def _cover(self, end: End) -> None:
        """Take note of what other processes published: an fsync covers it, too."""
        if end.next_lsn > self._published.next_lsn:
            self._published = end

    def start_ticker(self, interval: float) -> None:
        """Fsync in the background while there is something to fsync; a daemon thread, so it never keeps a process alive."""
        with self._sync_turn:
            if self._ticker is None:
                self._ticker = threading.Thread(target=self._tick, args=(interval,), name="ckptstore-sync", daemon=True)
                self._ticker.start()

    def _tick(self, interval: float) -> None:
        while not self._stop_ticker.wait(interval):
            try:
                self.sync()
            except (CkptStoreError, OSError) as error:
                # A failed fsync has poisoned the store; anything else may pass.
                logger.warning("%s: the sync in the background failed: %s", self.layout.root, error)

    # -- the rest -------------------------------------------------------------------------------------------------------

    def after_commit(self) -> None:
        """Work that a commit leaves behind and nobody waits for: the hint of a segment that was just sealed."""
        sealed, self._sealed = self._sealed, None
        if sealed is not None:
            self._hints = [thread for thread in self._hints if thread.is_alive()]
            thread = threading.Thread(target=self._write_hint, args=(sealed,), name="ckptstore-hint", daemon=True)
            self._hints.append(thread)
            thread.start()

    def _write_hint(self, segment: int) -> None:
        try:
            write_hint(self.segments, segment)
        except (OSError, CkptStoreError) as error:
            logger.info("%s: no hint for segment %d: %s", self.layout.root, segment, error)

    def compact(self, survey: Callable[[View], Survey], timeout: float, least_dead: float, stop: Callable[[], bool]) -> Compaction:
        """See `Storage.compact`."""
        if self._closed:
            raise StoreClosedError(f"{self.layout.root} is closed")
        with told(f"compaction of {self.layout.root}"):
            done = Compactor(self, self._index, timeout).run(survey, least_dead, stop)
        self.activity.last_compaction_ms = time.time_ns() // 1_000_000
        return done

    def begin_segment(self, timeout: float) -> End:
        """Seal the active segment if it holds frames, so that compaction may rewrite it; return the log's end."""
        while True:
            try:
                with self.commit_lock(timeout), self._index.write() as kv:
                    found = get_end(kv)
                    assert found is not None
                    end, sealed = found, found.segment
                    if end.tail > self.segments.header(sealed).length:
                        end = self._rotate(end)
                        put_end(kv, end)
                    self._published = end
                return end
            except IndexFullError:
                self._take_back(None, end.segment if end.segment != sealed else None)

    def stats(self) -> StorageStats:
        dead = 0
        with self._index.read() as kv:
            for lsn in View(kv).dead():
                location = get_location(kv, lsn)
                dead += 0 if location is None else location.length
            end = get_end(kv)
        assert end is not None
        # The active segment is longer than its frames: prefill is no log.
        sizes = [self.vfs.size(self.segments.fd(number)) for number in self.segments.numbers() if number != end.segment]
        index = sum(path.stat().st_blocks * 512 for path in self.layout.index.rglob("*") if path.is_file())
        last = end.next_lsn - 1
        return StorageStats(len(sizes) + 1, sum(sizes) + end.tail, dead, index, last, last, self._page.durable)

    def close(self, patience: float | None = None) -> None:
        """Leave; the last one out makes the index durable and writes CLEAN. Calls that have begun are waited for.

        Args:
            patience: seconds to wait for locks that others hold; the lock timeout when None.
        """
        patience = self.options.lock_timeout if patience is None else patience
        with self.calls.alone(patience):
            if self._closed:
                return
            self._closed = True
        self._stop_ticker.set()
        if self._ticker is not None and self._ticker is not threading.current_thread():
            self._ticker.join(timeout=5)
        for thread in self._hints:
            thread.join(timeout=5)
        if self._private is None and self._appended and not self._page.poisoned:
            with contextlib.suppress(CkptStoreError, OSError):
                self._seal(patience)
        alone = self._lock.try_exclusive()
        try:
            clean = alone and self._session_began and self._private is None and not self._page.poisoned
            if clean:
                self._leave_clean()
            self._index.close(last=clean)
            if clean:
                # What only serves those who are inside at once. Whoever opens the folder makes them anew, and nobody can until LOCK is free.
                for path in (self.layout.shared, self.layout.index / "COMPACT"):
                    with contextlib.suppress(OSError):
                        path.unlink(missing_ok=True)
        finally:
            self._page.close()
            self.segments.close()
            self._lock.close()
            if self._private is not None:
                shutil.rmtree(self._private, ignore_errors=True)

    def _seal(self, patience: float) -> None:
        """An empty frame that carries the final watermark: damage before it can then be told from a torn tail."""
        self.sync()
        with self.commit_lock(patience, leaving=True):
            lsn, segment = self._append_until_it_fits(lambda view: ())
        self.make_durable(lsn, segment)

    def _leave_clean(self) -> None:
        with self._index.read() as kv:
            end = get_end(kv)
        owner = read_owner(self.layout)
        if end is None or owner is None or owner.get("stale"):
            return
        with contextlib.suppress(OSError):
            self.vfs.truncate(self.segments.fd(end.segment), end.tail)
            self._trim(owner)
            self._index.sync()
            self.vfs.sync_folder(self.layout.epoch(self._epoch))
            self.vfs.point("close:index-synced")
            facts = {"uuid": self.identity.uuid.hex(), "epoch": self._epoch, "end": list(end)}
            self.vfs.write_file(self.layout.clean, json.dumps(facts).encode())

    def _trim(self, owner: dict[str, Any]) -> None:
        """Pack a small index that has grown since it was last packed, into a new epoch.

        A kill before OWNER names the new epoch leaves the old one in force, whole; one after it finds the new one whole. What is left
        over is deleted at the next rebuild or trim.
        """
        size = self._index.data_file().stat().st_size
        compacted = self.activity.last_compaction_ms is not None
        grown = size >= max(_TRIM_FROM, owner.get("packed", 0) * 5 // 4)
        if size > _TRIM_TO or not (grown or compacted):
            return
        before = self._epoch
        try:
            packed = self._packed_anew() if compacted else self._index.copy_packed(self._next_epoch())
        except CkptStoreError as error:
            # A damaged log, or no space: the index that is there knows all of it.
            logger.info("%s: the index was not packed: %s", self.layout.root, error)
            self._epoch = before
            return
        self._index.close()
        self._index = packed
        data = packed.data_file().stat()
        self.vfs.point("close:packed")
        write_json(self.layout.owner, {**owner, "epoch": self._epoch, "file": [data.st_dev, data.st_ino], "packed": data.st_size})
        for number in self.layout.epochs():
            if number != self._epoch:
                shutil.rmtree(self.layout.epoch(number), ignore_errors=True)

    def _packed_anew(self) -> IndexEnv:
        """An index of the log as it is: what compaction took out of that leaves marks in the present one."""
        anew: IndexEnv = KINDS[self._index.kind](self._next_epoch())
        try:
            headers, _ = recovery.sweep(self.segments)
            if fill(anew, self.segments, headers, 0).segment != headers[-1].segment:
                recovery.set_aside(self.segments, headers[-1])
            return anew.copy_packed(self._next_epoch())
        finally:
            anew.close()

    def _next_epoch(self) -> Path:
        self._epoch += 1
        folder = self.layout.epoch(self._epoch)
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def release_locks(self) -> None:
        """In a forked child: drop our share of the locks. Closing is enough; unlocking would unlock the parent."""
        self._lock.close()
        self._page.release_in_child()
