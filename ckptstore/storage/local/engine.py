"""One log in one process: open, commit, group fsync, read. `LocalStorage` is the handle that users of this room hold.

A process has one `Engine` a folder, whatever number of handles: LMDB allows one environment a process, and one descriptor table is
enough. Handles differ in durability, lock timeout and read-only; the engine is what they share.

Commit, and what a kill at each point leaves behind (a power cut loses at most what was not fsynced, see recovery.py):

    resolve            nothing happened
    append             bytes after the published tail: invisible, cut by the next writer
    publish            the index names the frame: every process sees it
    fsync              acknowledged at `commit`
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import logging
import os
import shutil
import struct
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb

from ckptstore.codec.records import Encoded, pack
from ckptstore.errors import (
    CkptStoreError,
    CorruptionError,
    DurabilityUnknownError,
    FormatVersionError,
    IndexUnusableError,
    LockTimeoutError,
    NoSpaceError,
    NotAStoreError,
    NotWritableError,
    ReadOnlyError,
    StaleIndexError,
    StoreClosedError,
    StoreMissingError,
    StorePoisonedError,
)
from ckptstore.options import StoreOptions
from ckptstore.storage import Frame, Resolve, StorageStats, View
from ckptstore.storage.catalog import Kv
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local import recovery
from ckptstore.storage.local.hints import read_hint, write_hint
from ckptstore.storage.local.index import IndexEnv, IndexFullError
from ckptstore.storage.local.index.lmdb import LmdbIndex
from ckptstore.storage.local.layout import (
    Layout,
    boot_id,
    new_identity,
    pid_namespace,
    read_identity,
    read_json,
    refuse_network_filesystem,
    write_identity,
    write_json,
)
from ckptstore.storage.local.locks import FolderLock, SharedPage
from ckptstore.storage.local.recovery import End
from ckptstore.storage.local.segment import Found, Location, Segments
from ckptstore.storage.local.vfs import OS, Vfs

logger = logging.getLogger("ckptstore")

_END = struct.Struct(">QQQI")
_LOCATION = struct.Struct(">IQI")
_REBUILD_CHUNK = 5000
# A segment this small takes any batch: a value larger than a segment must find a place.
_SMALL_SEGMENT = 1024
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _frame_key(lsn: int) -> bytes:
    return b"F" + lsn.to_bytes(6, "big")


class _FrameCache:
    """Verified frames by LSN, least recently used out first, bounded in bytes. Frames are immutable."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: OrderedDict[int, Frame] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, lsn: int) -> Frame | None:
        with self._lock:
            frame = self._frames.get(lsn)
            if frame is not None:
                self._frames.move_to_end(lsn)
            return frame

    def put(self, frame: Frame) -> None:
        if frame.size > self._limit:
            return
        with self._lock:
            if frame.lsn not in self._frames:
                self._frames[frame.lsn] = frame
                self._bytes += frame.size
            while self._bytes > self._limit:
                _, old = self._frames.popitem(last=False)
                self._bytes -= old.size


class _LocalView(View):
    """An index snapshot that reads frames from segments."""

    __slots__ = ("_engine",)

    def __init__(self, kv: Kv, engine: Engine) -> None:
        super().__init__(kv)
        self._engine = engine

    def frame(self, lsn: int) -> Frame:
        frame = self._engine.cache.get(lsn)
        if frame is None:
            frame = self._engine.read_frame(self._kv, lsn)
            self._engine.cache.put(frame)
        return frame


class Engine:
    """An open store folder in this process."""

    def __init__(self, root: Path, options: StoreOptions, vfs: Vfs, forked: bool) -> None:
        self.pid = os.getpid()
        self.layout = Layout(root)
        self.vfs = vfs
        self.options = options
        self.cache = _FrameCache(options.cache_bytes)
        self.handles = 0
        self._forked = forked
        self._closed = False
        self._private_index: Path | None = None
        self._session_began = False
        self._appended = False
        self._sync_turn = threading.Condition(threading.Lock())
        self._syncing = False
        self._published = End(0, 0, 1, 0)
        self._ticker: threading.Thread | None = None
        self._stop_ticker = threading.Event()
        self._create_folder()
        try:
            self._lock = FolderLock(self.layout.lock, create=not options.read_only)
        except FileNotFoundError:
            raise StoreMissingError(f"{root} is not a store: it has no LOCK file") from None
        except OSError as error:
            raise NotWritableError(f"{self.layout.lock}: {error.strerror}: the store cannot be opened for writing") from None
        try:
            self._open()
        except BaseException:
            self._lock.close()
            raise

    # -- opening --------------------------------------------------------------------------------------------------------

    def _create_folder(self) -> None:
        root, layout = self.layout.root, self.layout
        if root.exists() and not root.is_dir():
            raise NotAStoreError(f"{root} is a file; a store is a folder: choose another path")
        if layout.store.exists():
            return
        if self.options.read_only:
            raise StoreMissingError(f"there is no store at {root}, and read_only=True does not create one")
        known = {"STORE.tmp", "LOCK", "segments", "index", "torn"}
        if root.exists():
            foreign = sorted(set(os.listdir(root)) - known)
            if foreign:
                raise NotAStoreError(f"{root} holds other files ({foreign[0]!r}, ...) and no store: choose an empty folder")
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotWritableError(f"{root}: {error.strerror}") from None

    def _open(self) -> None:
        """Be alone and recover, or join those who are in."""
        deadline = time.monotonic() + self.options.lock_timeout
        while True:
            if self._lock.try_exclusive():
                self._lock.name_owner()
                self._open_alone()
                # flock conversions are not atomic: in between, another may have been alone and given the index up.
                while not self._lock.try_shared():
                    self._check_deadline(deadline)
                    time.sleep(0.001)
                if self._index_is_still_ours():
                    return
                self._release_index()
            elif self._lock.try_shared():
                if self._join():
                    return
                # Those who were in have left without leaving evidence: give the shared lock up and try to be alone.
                self._lock.close()
                self._lock = FolderLock(self.layout.lock, create=False)
            self._check_deadline(deadline)
            time.sleep(0.001)

    def _check_deadline(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise LockTimeoutError(
                f"{self.layout.root} was being opened or recovered by process {self._lock.owner()} for more than "
                f"{self.options.lock_timeout:g} s"
            )

    def _open_alone(self) -> None:
        vfs, layout = self.vfs, self.layout
        if not vfs.exists(layout.store):
            self._create()
        self.identity = read_identity(vfs, layout)
        self._refuse_unknown_features()
        self.segments = Segments(vfs, layout, self.identity)
        if self.options.read_only and not os.access(layout.root, os.W_OK):
            self._open_private()
            return
        layout.index.mkdir(exist_ok=True)
        headers, durable = recovery.sweep(self.segments)
        if not headers:
            raise CorruptionError(f"{layout.segments} holds no segment, but STORE exists: restore a backup")
        poisoned = vfs.exists(layout.poison)
        end = None
        if not poisoned:
            end = self._trusted_end(headers)
        if end is None:
            end = self._rebuild(headers, poisoned, durable)
        if not self.options.read_only:
            recovery.cut(self.segments, end.segment, end.tail)
        # After a kill the page cache still holds everything: one fsync makes it durable and lets the watermark say so.
        self._page = SharedPage(layout.shared)
        self._page.start(self._make_durable(end))
        self._published = end
        self._claim()

    def _make_durable(self, end: End) -> int:
        try:
            self.vfs.fdatasync(self.segments.fd(end.segment))
        except OSError:
            if self.options.read_only:
                return 0
            raise
        return end.next_lsn - 1

    def _create(self) -> None:
        """Write a new store: first segment, then STORE, so that a store with STORE always has a segment."""
        layout, vfs = self.layout, self.vfs
        for name in vfs.listdir(layout.segments):
            path = layout.segments / name
            if name.endswith(".seg") and path.stat().st_size > 4096:
                raise CorruptionError(f"{layout.root} holds segments but no STORE file: restore it from a backup")
            vfs.unlink(path)
        identity = new_identity()
        vfs.mkdir(layout.segments)
        vfs.sync_folder(layout.root)
        Segments(vfs, layout, identity).create(1, 1)
        write_identity(vfs, layout, identity)

    def _refuse_unknown_features(self) -> None:
        unknown = self.identity.unknown("read_compatible")
        if unknown and not self.options.read_only:
            raise FormatVersionError(
                f"{self.layout.root} uses features this version can only read: {', '.join(unknown)}. Open it with read_only=True, "
                "or upgrade ckptstore"
            )

    def _trusted_end(self, headers: list[fmt.SegmentHeader]) -> End | None:
        """Open the index if evidence outside it says that it may be opened; return the log's end it names."""
        owner = read_json(self.layout.owner)
        if owner is None or owner.get("kind") != LmdbIndex.kind or owner.get("version") != LmdbIndex.version:
            return None
        folder = self.layout.epoch(int(owner.get("epoch", 0)))
        try:
            data = (folder / "data.mdb").stat()
        except OSError:
            return None
        same_boot = (
            boot_id() is not None
            and owner.get("boot") == boot_id()
            and [data.st_dev, data.st_ino] == owner.get("file")
            and not owner.get("stale")
        )
        clean = read_json(self.layout.clean)
        tidy = clean is not None and clean.get("uuid") == self.identity.uuid.hex() and clean.get("epoch") == owner.get("epoch")
        if not same_boot and not tidy:
            return None
        self._epoch = int(owner["epoch"])
        self._index: IndexEnv = LmdbIndex(folder, forked=self._forked)
        end = self._read_end()
        if end is None or (tidy and clean is not None and not same_boot and clean.get("end") != list(end)):
            self._index.close()
            return None
        newest = max(header.segment for header in headers)
        if end.segment != newest:
            self._index.close()
            if end.segment > newest:
                raise CorruptionError(
                    f"{self.layout.segment(end.segment)} is missing; the index knows records up to LSN {end.next_lsn - 1}. "
                    "Restore it or a backup, or run `ckpt salvage`"
                )
            return None
        size = self.vfs.size(self.segments.fd(end.segment))
        if size < end.tail:
            self._index.close()
            raise CorruptionError(
                f"{self.layout.segment(end.segment)} has {size} bytes; the index knows records up to LSN {end.next_lsn - 1}, which "
                f"end at offset {end.tail}. It was truncated: restore a backup, or run `ckpt salvage`"
            )
        return end

    def _rebuild(self, headers: list[fmt.SegmentHeader], poisoned: bool, durable: int) -> End:
        """Build a new index epoch from the log; after a failed fsync, write the doubtful segment anew first."""
        vfs, layout = self.vfs, self.layout
        layout.index.mkdir(exist_ok=True)
        known = [int(name) for name in os.listdir(layout.index) if name.isdigit()]
        clean = read_json(layout.clean)
        for path in (layout.owner, layout.clean):
            path.unlink(missing_ok=True)
        for number in known:
            shutil.rmtree(layout.epoch(number), ignore_errors=True)
        self._epoch = max(known, default=0) + 1
        self._index = LmdbIndex(layout.epoch(self._epoch), forked=self._forked)
        started = time.monotonic()
        end = self._fill(headers, durable)
        if clean is not None and clean.get("uuid") == self.identity.uuid.hex():
            segment, tail, next_lsn, _ = clean["end"]
            if next_lsn > end.next_lsn:
                self._index.close()
                raise CorruptionError(
                    f"{layout.segment(segment)}: the log ends at LSN {end.next_lsn - 1}, but was closed in order at LSN "
                    f"{next_lsn - 1} (offset {tail}). Records are missing: restore a backup, or run `ckpt salvage`"
                )
        if poisoned:
            end = recovery.rewrite_last(self.segments, headers, end)
            with self._index.write() as kv:
                for found in self.segments.scan(end.segment, headers[-1].length, headers[-1].salt):
                    kv.put(_frame_key(found.header.lsn), _LOCATION.pack(*found.location))
                kv.put(b"H", _END.pack(*end))
            vfs.unlink(layout.poison)
            vfs.sync_folder(layout.root)
            logger.warning("%s: recovered from a failed fsync up to LSN %d", layout.root, end.next_lsn - 1)
        if end.next_lsn > 1:
            logger.info("%s: index rebuilt, %d frames in %.2f s", layout.root, end.next_lsn - 1, time.monotonic() - started)
        return end

    def _fill(self, headers: list[fmt.SegmentHeader], durable: int) -> End:
        """Fold the log into an empty index, in chunks."""
        waiting: list[tuple[Location, int, list[Any]]] = []

        def flush(end: End | None = None) -> None:
            while True:
                try:
                    with self._index.write() as kv:
                        catalog = View(kv)
                        for location, lsn, entries in waiting:
                            catalog.apply(lsn, entries)
                            kv.put(_frame_key(lsn), _LOCATION.pack(*location))
                        if end is not None:
                            kv.put(b"H", _END.pack(*end))
                except IndexFullError:
                    continue
                waiting.clear()
                return

        def visit(location: Location, lsn: int, entries: list[Any]) -> None:
            waiting.append((location, lsn, entries))
            if len(waiting) >= _REBUILD_CHUNK:
                flush()

        def visit_found(found: Found) -> None:
            visit(found.location, found.header.lsn, found.frame.entries)

        hinted, expected = 0, 1
        for header, following in zip(headers, headers[1:], strict=False):
            hint = read_hint(self.vfs, self.layout, header)
            if hint is None or header.base_lsn != expected or hint[-1].lsn + 1 != following.base_lsn:
                break
            for item in hint:
                visit(Location(header.segment, item.offset, item.length), item.lsn, item.entries)
            expected = following.base_lsn
            hinted += 1
        end, _ = recovery.replay(self.segments, headers[hinted:], visit_found, expected, durable)
        flush(end)
        return end

    def _claim(self) -> None:
        """Write the evidence under which this boot may trust the index."""
        data = self._index.data_file().stat()
        write_json(
            self.layout.owner,
            {
                "kind": self._index.kind,
                "version": self._index.version,
                "epoch": self._epoch,
                "boot": boot_id(),
                "file": [data.st_dev, data.st_ino],
                "pid_namespace": pid_namespace(),
            },
        )

    def _index_is_still_ours(self) -> bool:
        owner = read_json(self.layout.owner)
        return self._private_index is not None or (
            owner is not None and owner.get("epoch") == self._epoch and not owner.get("stale")
        )

    def _release_index(self) -> None:
        self._index.close()
        self._page.close()
        self.segments.close()

    def _join(self) -> bool:
        """Enter a store that others have open; False when there is nothing left to join."""
        if not self.layout.store.exists():
            return False
        self.identity = read_identity(self.vfs, self.layout)
        self._refuse_unknown_features()
        owner = read_json(self.layout.owner)
        if owner is None or owner.get("boot") != boot_id():
            return False
        if owner.get("kind") != LmdbIndex.kind or owner.get("version") != LmdbIndex.version:
            raise IndexUnusableError(
                f"{self.layout.root} is open with index {owner.get('kind')!r} version {owner.get('version')}: open it the same way, "
                "or close it everywhere first"
            )
        if owner.get("pid_namespace") != pid_namespace():
            raise IndexUnusableError(
                f"{self.layout.root} is open in another pid namespace (another container?), and an LMDB index cannot be shared across "
                'two of them: close it there first, or create the store with index="sqlite"'
            )
        if owner.get("stale"):
            raise StaleIndexError(
                f"{self.layout.root}: the index was found to be wrong; close the store everywhere and open it again"
            )
        self._epoch = int(owner["epoch"])
        folder = self.layout.epoch(self._epoch)
        try:
            data = (folder / "data.mdb").stat()
        except OSError:
            return False
        if [data.st_dev, data.st_ino] != owner.get("file"):
            return False
        self.segments = Segments(self.vfs, self.layout, self.identity)
        self._index = LmdbIndex(folder, forked=self._forked)
        end = self._read_end()
        if end is None:
            self._index.close()
            return False
        self._page = SharedPage(self.layout.shared)
        self._published = end
        return True

    def _open_private(self) -> None:
        """Read-only on a medium that cannot be written: an index of our own, in a temporary folder, as of now."""
        headers = sorted((self.segments.header(n) for n in self.segments.numbers()), key=lambda header: header.base_lsn)
        replaced = {old for header in headers for old in header.replaces}
        headers = [header for header in headers if header.segment not in replaced]
        self._private_index = Path(tempfile.mkdtemp(prefix="ckptstore-"))
        self._epoch = 0
        self._index = LmdbIndex(self._private_index, forked=self._forked)
        self._published = self._fill(headers, 0)
        self._page = SharedPage(self._private_index / "SHARED")
        self._page.start(0)

    def _read_end(self) -> End | None:
        try:
            with self._index.read() as kv:
                value = kv.get(b"H")
        except lmdb.Error:
            return None
        return None if value is None else End(*_END.unpack(value))

    # -- reading --------------------------------------------------------------------------------------------------------

    @contextmanager
    def view(self) -> Iterator[View]:
        if self._closed:
            raise StoreClosedError(f"{self.layout.root} is closed")
        with self._index.read() as kv:
            yield _LocalView(kv, self)

    def read_frame(self, kv: Kv, lsn: int) -> Frame:
        value = kv.get(_frame_key(lsn))
        if value is None:
            raise CorruptionError(f"{self.layout.root}: no frame with LSN {lsn}: run `ckpt verify`")
        location = Location(*_LOCATION.unpack(value))
        try:
            header, frame = self.segments.read(location)
        except FileNotFoundError:
            raise CorruptionError(f"{self.layout.segment(location.segment)} is missing; LSN {lsn} stood in it") from None
        except CorruptionError as error:
            raise CorruptionError(f"{self.layout.root}, LSN {lsn}: {error}") from None
        if header.lsn != lsn:
            self._mark_stale()
            raise StaleIndexError(
                f"{self.layout.root}: the index says LSN {lsn} is at segment {location.segment}, offset {location.offset}, but "
                f"LSN {header.lsn} is there. The index was marked and is rebuilt when the store is next opened"
            )
        return frame

    def _mark_stale(self) -> None:
        owner = read_json(self.layout.owner)
        if owner is not None and self._private_index is None:
            with contextlib.suppress(OSError):
                write_json(self.layout.owner, {**owner, "stale": True})

    # -- writing --------------------------------------------------------------------------------------------------------

    def commit(self, resolve: Resolve, timeout: float) -> tuple[int, int]:
        """Append one batch and publish it. Returns (LSN, segment); not yet durable."""
        if self._closed:
            raise StoreClosedError(f"{self.layout.root} is closed")
        with self._page.commit_lock(timeout):
            if self._page.poisoned:
                raise StorePoisonedError(
                    f"{self.layout.root}: an fsync failed earlier, so what was written since is uncertain. Reads go on; close the "
                    "store in every process and open it again to recover"
                )
            if not self._session_began:
                self._begin_session()
            while True:
                try:
                    return self._append(resolve)
                except IndexFullError:
                    continue
                except lmdb.Error as error:
                    if isinstance(error, lmdb.DiskError) or "No space" in str(error) or "too large" in str(error):
                        raise self._no_space(str(error)) from None
                    raise

    def _begin_session(self) -> None:
        """The index changes from here on: take the promise back that it matches CLEAN, before it does."""
        if self.layout.clean.exists():
            self.layout.clean.unlink()
            self.vfs.sync_folder(self.layout.index)
        self._session_began = True

    def _append(self, resolve: Resolve) -> tuple[int, int]:
        vfs = self.vfs
        written: End | None = None
        try:
            with self._index.write() as kv:
                value = kv.get(b"H")
                assert value is not None
                end = End(*_END.unpack(value))
                view = _LocalView(kv, self)
                batch = list(resolve(view))
                vfs.point("commit:resolved")
                end = self._room(kv, end, batch)
                fd = self.segments.fd(end.segment)
                if vfs.size(fd) > end.tail:
                    recovery.cut(self.segments, end.segment, end.tail)
                entries = [list(record.entry()) for record in batch]
                bodies = b"".join([record.body for record in batch])
                frame, crc = fmt.encode_frame(end.chain, end.next_lsn, self._page.durable, pack(entries), bodies, crc32(bodies))
                written = end
                vfs.pwrite(fd, frame, end.tail)
                vfs.point("commit:appended")
                lsn = end.next_lsn
                view.apply(lsn, entries)
                kv.put(_frame_key(lsn), _LOCATION.pack(end.segment, end.tail, len(frame)))
                after = End(end.segment, end.tail + len(frame), lsn + 1, crc)
                kv.put(b"H", _END.pack(*after))
                vfs.point("commit:indexed")
        except OSError as error:
            self._take_back(written)
            if error.errno in _NO_SPACE and not isinstance(error, CkptStoreError):
                raise self._no_space(error.strerror or str(error)) from None
            raise
        except BaseException:
            self._take_back(written)
            raise
        vfs.point("commit:published")
        self.cache.put(Frame(lsn, entries, bodies))
        self._published = after
        self._appended = True
        return lsn, end.segment

    def _room(self, kv: Kv, end: End, batch: list[Encoded]) -> End:
        """Begin a new segment when this one is full. The old one is durable before the new one has a name."""
        size = sum(len(record.body) for record in batch)
        if end.tail + size <= self.options.segment_bytes or end.tail <= _SMALL_SEGMENT:
            return end
        fd = self.segments.fd(end.segment)
        if self.vfs.size(fd) > end.tail:
            recovery.cut(self.segments, end.segment, end.tail)
        self._fsync(end.segment)
        self._page.raise_durable(end.next_lsn - 1)
        self.vfs.point("rotate:sealed")
        header, chain, size = self.segments.create(end.segment + 1, end.next_lsn)
        after = End(header.segment, size, end.next_lsn, chain)
        self._sealed = end.segment
        return after

    def _take_back(self, written: End | None) -> None:
        """Cut what a failed commit appended, so that no later reader of the log takes it for a commit."""
        if written is None:
            return
        try:
            fd = self.segments.fd(written.segment)
            if self.vfs.size(fd) > written.tail:
                self.vfs.truncate(fd, written.tail)
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
                    self._sync_turn.wait()
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
            self.vfs.fdatasync(self.segments.fd(segment))
            self.vfs.point("fsync:after")
        except OSError as error:
            self._poison(f"fsync of segment {segment} failed: {error}")
            raise

    def _poison(self, why: str) -> None:
        """After a failed fsync the kernel may have dropped the data and the error: nothing may build on this log any more."""
        self._page.poison()
        logger.error("%s: %s; writes are refused from here on", self.layout.root, why)
        with contextlib.suppress(OSError):
            self.vfs.write_file(self.layout.poison, why.encode())

    def sync(self) -> None:
        end = self._published
        if end.segment and end.next_lsn > 1:
            self.make_durable(end.next_lsn - 1, end.segment)

    def wait_durable(self, lsn: int) -> None:
        if self._page.durable >= lsn:
            return
        end = self._read_end()
        assert end is not None
        if lsn >= end.next_lsn:
            raise ValueError(f"LSN {lsn} has not been written yet")
        self._published = end
        self.make_durable(lsn, end.segment)

    def start_ticker(self, interval: float) -> None:
        """Fsync in the background while there is something to fsync; a daemon thread, so it never keeps a process alive."""
        with self._sync_turn:
            if self._ticker is None:
                self._ticker = threading.Thread(target=self._tick, args=(interval,), name="ckptstore-sync", daemon=True)
                self._ticker.start()

    def _tick(self, interval: float) -> None:
        while not self._stop_ticker.wait(interval):
            with contextlib.suppress(DurabilityUnknownError):
                self.sync()

    # -- the rest -------------------------------------------------------------------------------------------------------

    def after_commit(self) -> None:
        """Work that a commit leaves behind and nobody waits for: the hint of a segment that was just sealed."""
        sealed, self._sealed = self._sealed, 0
        if sealed:
            threading.Thread(target=self._write_hint, args=(sealed,), name="ckptstore-hint", daemon=True).start()

    _sealed = 0

    def _write_hint(self, segment: int) -> None:
        try:
            write_hint(self.segments, segment)
        except (OSError, CkptStoreError) as error:
            logger.info("%s: no hint for segment %d: %s", self.layout.root, segment, error)

    def stats(self) -> StorageStats:
        sizes = [self.vfs.size(self.segments.fd(number)) for number in self.segments.numbers()]
        with self.view() as view:
            kv = view._kv
            dead = 0
            for lsn in view.dead():
                value = kv.get(_frame_key(lsn))
                if value is not None:
                    dead += _LOCATION.unpack(value)[2]
        end = self._read_end()
        assert end is not None
        index = sum(path.stat().st_blocks * 512 for path in self.layout.index.rglob("*") if path.is_file())
        return StorageStats(len(sizes), sum(sizes), dead, index, end.next_lsn - 1, end.next_lsn - 1, self._page.durable)

    def close(self) -> None:
        """Leave; the last one out makes the index durable and writes CLEAN."""
        if self._closed:
            return
        self._closed = True
        self._stop_ticker.set()
        if self._ticker is not None and self._ticker is not threading.current_thread():
            self._ticker.join(timeout=5)
        if self._private_index is None and self._appended and not self._page.poisoned:
            with contextlib.suppress(CkptStoreError, OSError):
                self._seal()
        alone = self._lock.try_exclusive()
        try:
            if alone and self._session_began and self._private_index is None and not self._page.poisoned:
                self._leave_clean()
            self._index.close()
        finally:
            self._page.close()
            self.segments.close()
            self._lock.close()
            if self._private_index is not None:
                shutil.rmtree(self._private_index, ignore_errors=True)

    def _seal(self) -> None:
        """An empty frame that carries the final watermark: damage before it can then be told from a torn tail."""
        self.sync()
        with self._page.commit_lock(self.options.lock_timeout):
            lsn, segment = self._append(lambda view: ())
        self.make_durable(lsn, segment)

    def _leave_clean(self) -> None:
        end = self._read_end()
        owner = read_json(self.layout.owner)
        if end is None or owner is None or owner.get("stale"):
            return
        with contextlib.suppress(OSError):
            self._index.sync()
            self.vfs.sync_folder(self.layout.epoch(self._epoch))
            self.vfs.point("close:index-synced")
            self.vfs.write_file(
                self.layout.clean,
                json.dumps({"uuid": self.identity.uuid.hex(), "epoch": self._epoch, "end": list(end)}).encode(),
            )


# -- the table of engines of this process ------------------------------------------------------------------------------------

_table_lock = threading.RLock()
_table: dict[tuple[str, bool], Engine] = {}
_inherited: list[Engine] = []
"""Engines of the parent process, kept for ever and never touched: closing their LMDB environment would harm the parent."""


def _after_fork_in_child() -> None:
    global _table_lock
    _table_lock = threading.RLock()
    for engine in _table.values():
        _inherited.append(engine)
        # The descriptor is shared with the parent: closing drops our share, unlocking would unlock the parent.
        with contextlib.suppress(OSError):
            engine._lock.close()
    _table.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _acquire(root: Path, options: StoreOptions, vfs: Vfs) -> Engine:
    key = (str(root), options.read_only and not os.access(root, os.W_OK))
    with _table_lock:
        engine = _table.get(key)
        if engine is None:
            engine = Engine(root, options, vfs, forked=bool(_inherited))
            _table[key] = engine
        engine.handles += 1
        return engine


def _release(engine: Engine) -> None:
    if engine.pid != os.getpid():
        return
    with _table_lock:
        engine.handles -= 1
        if engine.handles == 0:
            for key, known in list(_table.items()):
                if known is engine:
                    del _table[key]
            engine.close()


@atexit.register
def _close_all() -> None:
    """A store nobody closed: make it durable and leave in order. Nothing here waits for anybody."""
    for engine in list(_table.values()):
        if engine.pid == os.getpid():
            with contextlib.suppress(Exception):
                engine.close()


class LocalStorage:
    """A handle on a store folder. Cheap; all handles of a process on one folder share one engine."""

    def __init__(self, path: str | os.PathLike[str], options: StoreOptions, vfs: Vfs = OS) -> None:
        """Open, create or recover the store.

        Args:
            path: the folder; created unless `options.read_only`.
            options: see `ckptstore.options.StoreOptions`.
            vfs: the seam for fault tests.
        """
        self.path = Path(os.path.realpath(os.fspath(path)))
        self._options = options
        self._vfs = vfs
        if os.name == "nt":
            raise NotImplementedError("ckptstore does not run on Windows yet")
        if not options.allow_network_filesystem:
            refuse_network_filesystem(self.path)
        self._closed = False
        self._attach()

    def _attach(self) -> None:
        self._engine = _acquire(self.path, self._options, self._vfs)
        self._finalizer = weakref.finalize(self, _release, self._engine)
        # atexit order is not ours to rely on: _close_all does this work for stores that nobody closed.
        self._finalizer.atexit = False

    def _live(self) -> Engine:
        if self._closed:
            raise StoreClosedError(f"{self.path} is closed: open it again")
        if self._engine.pid != os.getpid():
            with _table_lock:
                if self._engine.pid != os.getpid():
                    self._finalizer.detach()
                    self._attach()
        return self._engine

    def view(self) -> contextlib.AbstractContextManager[View]:
        return self._live().view()

    def commit(self, resolve: Resolve) -> int:
        engine = self._live()
        if self._options.read_only:
            raise ReadOnlyError(f"{self.path} was opened with read_only=True")
        lsn, segment = engine.commit(resolve, self._options.lock_timeout)
        if engine._sealed:
            engine.after_commit()
        if self._options.durability == "commit":
            engine.make_durable(lsn, segment)
        elif self._options.durability == "interval":
            engine.start_ticker(self._options.sync_interval)
        return lsn

    def wait_durable(self, lsn: int) -> None:
        self._live().wait_durable(lsn)

    def sync(self) -> None:
        self._live().sync()

    def stats(self) -> StorageStats:
        return self._live().stats()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._finalizer()
