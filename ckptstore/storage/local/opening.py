"""How a process gets into a store folder.

Alone in it (exclusive lock): create or recover, decide whether the index may be trusted, rebuild it where not. With others inside
(shared lock): join them, if this process can share their index. What decides is evidence outside the index (layout.py), because an
unsynced file must be judged before it is opened: opened after a power cut LMDB may abort the interpreter, and both kinds may lie.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ckptstore.activity import Activity
from ckptstore.errors import (
    CorruptionError,
    FormatVersionError,
    IndexUnusableError,
    LockTimeoutError,
    NotAStoreError,
    NotWritableError,
    StaleIndexError,
    StoreMissingError,
)
from ckptstore.options import StoreOptions
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local import recovery
from ckptstore.storage.local.failures import told
from ckptstore.storage.local.frames import get_end
from ckptstore.storage.local.index import IndexEnv, IndexIOError
from ckptstore.storage.local.index.kinds import DEFAULT, KINDS, keep_kind, kept_kind
from ckptstore.storage.local.layout import (
    Identity,
    Layout,
    boot_id,
    new_identity,
    pid_namespace,
    read_clean,
    read_identity,
    read_owner,
    write_identity,
    write_json,
)
from ckptstore.storage.local.locks import FolderLock, SharedPage
from ckptstore.storage.local.rebuild import fill, relocate
from ckptstore.storage.local.recovery import End
from ckptstore.storage.local.segment import Segments
from ckptstore.storage.local.vfs import Vfs

logger = logging.getLogger("ckptstore")


class Opened(NamedTuple):
    """What an engine needs of an open folder."""

    lock: FolderLock
    identity: Identity
    segments: Segments
    index_env: IndexEnv
    page: SharedPage
    epoch: int
    end: End
    private: Path | None
    """A temporary folder that holds the index, where the store's own cannot be written."""
    damage: CorruptionError | None
    """With a private index: why it does not show all of the log."""


def open_folder(root: Path, options: StoreOptions, vfs: Vfs, activity: Activity, *, forked: bool) -> Opened:
    """Open, create or recover the store at `root`, if that can be done at once.

    Args:
        forked: this process was forked from one that has a store open (index/lmdb.py).

    Raises:
        FolderBusyError: others are on their way in or out; and what `ckptstore.open` raises.
    """
    return _Opening(root, options, vfs, activity, forked).run()


class FolderBusyError(LockTimeoutError):
    """Internal: others are on their way in or out: try again until the time is over."""


class _LogToBeWrittenError(Exception):
    """Internal: this log cannot be opened without writing to it, or not at all, and whoever opens it only reads."""

    def __init__(self, damage: CorruptionError | None = None) -> None:
        self.damage = damage


class _Opening:
    """The steps, with what they find on the way."""

    identity: Identity
    segments: Segments
    _index: IndexEnv
    _kind: str
    _page: SharedPage
    _epoch: int
    _published: End

    def __init__(self, root: Path, options: StoreOptions, vfs: Vfs, activity: Activity, forked: bool) -> None:
        self._activity = activity
        self.layout = Layout(root)
        self.vfs = vfs
        self.options = options
        self._forked = forked
        self._private: Path | None = None
        self._damage: CorruptionError | None = None
        # Of an open that fails nothing stays: descriptors have no other owner, and a map would wait for a collection of garbage.
        self._held = ExitStack()

    def run(self) -> Opened:
        self._create_folder()
        with self._held:
            self._lock = self._folder_lock()
            self._held.callback(self._lock.close)
            with told(f"{self.layout.root} could not be opened"):
                self._open()
            self._held.pop_all()
        return Opened(
            self._lock,
            self.identity,
            self.segments,
            self._index,
            self._page,
            self._epoch,
            self._published,
            self._private,
            self._damage,
        )

    def _folder_lock(self) -> FolderLock:
        root, layout = self.layout.root, self.layout
        try:
            return FolderLock(
                layout.lock, create=not self.options.read_only or layout.store.exists(), reading=self.options.read_only
            )
        except FileNotFoundError:
            raise StoreMissingError(f"{root} is not a store: it has no LOCK file") from None
        except OSError as error:
            if self.options.read_only and layout.store.exists():
                return FolderLock(layout.store, create=False, reading=True)  # a read-only medium without LOCK: any file will do
            raise NotWritableError(f"{layout.lock}: {error.strerror}: the store cannot be opened for writing") from None

    def _create_folder(self) -> None:
        root, layout = self.layout.root, self.layout
        try:
            there = root.exists()
        except OSError as error:  # a name that is too long
            raise NotWritableError(f"{root}: {error.strerror}") from None
        if there and not root.is_dir():
            raise NotAStoreError(f"{root} is a file; a store is a folder: choose another path")
        if layout.store.exists():
            return
        if self.options.read_only:
            raise StoreMissingError(f"there is no store at {root}, and read_only=True does not create one")
        known = {"STORE.tmp", "LOCK", "segments", "index", "torn"}
        if root.exists():
            there_now = set(os.listdir(root))
            if "STORE" in there_now:
                return  # made by another process in this moment
            foreign = sorted(there_now - known)
            if foreign:
                raise NotAStoreError(f"{root} holds other files ({foreign[0]!r}, ...) and no store: choose an empty folder")
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotWritableError(f"{root}: {error.strerror}") from None

    def _open(self) -> None:
        """Be alone and recover, or join those who are in.

        Raises:
            FolderBusyError: neither can be had right now.
        """
        if self._lock.try_exclusive():
            self._lock.name_owner()
            self._open_alone()
            # flock conversions are not atomic: in between, another may have been alone and given the index up.
            if self._lock.try_shared() and self._index_is_still_ours():
                return
        elif self._lock.try_shared():
            if self._join():
                return
            # Those who were in have left without leaving evidence, and this one can be alone, at the next try; or those who are in look at
            # pictures of their own, and another look disturbs nobody.
            if self.options.read_only and not self._lock.try_exclusive() and self._lock.try_shared() and self._look_beside():
                return
        raise FolderBusyError(
            f"{self.layout.root} was being opened or recovered by process {self._lock.owner()} for more than "
            f"{self.options.lock_timeout:g} s"
        )

    def _hold_segments(self) -> None:
        self.segments = Segments(self.vfs, self.layout, self.identity)
        self._held.callback(self.segments.close)

    def _hold_index(self, kind: str, folder: Path) -> None:
        self._index = KINDS[kind](folder, forked=self._forked)
        self._held.callback(self._index.close)

    def _hold_page(self, path: Path) -> None:
        self._page = SharedPage(path, self._activity)
        self._held.callback(self._page.close)

    def _look_beside(self) -> bool:
        """Make a picture beside others who look at theirs; False where one came in who can be joined."""
        if not self.layout.store.exists() or (self._may_write() and read_owner(self.layout) is not None):
            return False
        self.identity = read_identity(self.vfs, self.layout)
        self._hold_segments()
        self._open_private()
        return True

    def _open_alone(self) -> None:
        vfs, layout = self.vfs, self.layout
        if not vfs.exists(layout.store):
            self._create()
        self.identity = read_identity(vfs, layout)
        self._refuse_unknown_features()
        self._hold_segments()
        if not self._may_write():
            self._open_private()
            return
        layout.index.mkdir(exist_ok=True)
        self._choose_kind()
        headers, unfinished = recovery.sweep(self.segments, read_only=self.options.read_only)
        if not headers:
            raise CorruptionError(f"{layout.segments} holds no segment, but STORE exists: restore a backup")
        poisoned = vfs.exists(layout.poison)
        if poisoned and self.options.read_only:
            self._open_private()  # recovering would write the log anew
            return
        end = None
        try:
            if not poisoned and not unfinished:
                end = self._trusted_end(headers)
            if end is None:
                end = self._rebuilt(headers, poisoned)
        except _LogToBeWrittenError as error:
            self._open_private(error.damage)
            return
        if not self.options.read_only:
            self._activity.cut_tail_bytes += recovery.cut(self.segments, end.segment, end.tail)
        # After a kill the page cache still holds everything: one fsync makes it durable and lets the watermark say so.
        self._hold_page(layout.shared)
        self._page.start(self._make_durable(end))
        self._published = end
        self._claim()

    def _may_write(self) -> bool:
        """Whether there can be an index in the folder: whoever wants to write finds out by writing."""
        return not self.options.read_only or os.access(self.layout.root, os.W_OK)

    def _choose_kind(self) -> None:
        """The kind that was asked for, else the one that the store keeps. An index of another kind is then no evidence of anything."""
        kept = kept_kind(self.layout.index)
        self._kind = self.options.index or kept
        if self._kind != kept:
            keep_kind(self.vfs, self.layout.index, self._kind)

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
            if name.endswith(".seg") and _holds_frames(vfs.read_file(path)):
                raise CorruptionError(f"{layout.root} holds records but no STORE file: restore it from a backup")
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
        owner = read_owner(self.layout)
        index = KINDS[self._kind]
        if owner is None or owner.get("kind") != index.kind or owner.get("version") != index.version or owner.get("stale"):
            return None
        folder = self.layout.epoch(int(owner.get("epoch", 0)))
        try:
            data = (folder / index.data_name).stat()
        except OSError:
            return None
        same_boot = boot_id() is not None and owner.get("boot") == boot_id() and [data.st_dev, data.st_ino] == owner.get("file")
        clean = read_clean(self.layout)
        tidy = clean is not None and clean.get("uuid") == self.identity.uuid.hex() and clean.get("epoch") == owner.get("epoch")
        if not same_boot and not tidy:
            return None
        self._epoch = int(owner["epoch"])
        try:
            self._hold_index(index.kind, folder)
        except (IndexIOError, IndexUnusableError):  # damaged, or not to be opened after a fork: nobody else needs this epoch
            return None
        end = None if self._index.is_cut() else self._read_end()
        if end is None or (tidy and clean is not None and not same_boot and clean.get("end") != list(end)):
            self._index.close()
            return None
        if end.segment < headers[-1].segment:
            if self.options.read_only:
                self._index.close()
                raise _LogToBeWrittenError
            recovery.drop_begun_in_vain(self.segments, headers)
        newest = headers[-1].segment
        if end.segment > newest:
            raise CorruptionError(
                f"{self.layout.segment(end.segment)} is missing; the index knows records up to LSN {end.next_lsn - 1}. "
                "Restore it or a backup, or run `ckpt salvage`"
            )
        if end.segment < newest:
            self._index.close()
            return None
        size = self.vfs.size(self.segments.fd(end.segment))
        if size < end.tail:
            raise CorruptionError(
                f"{self.layout.segment(end.segment)} has {size} bytes; the index knows records up to LSN {end.next_lsn - 1}, which "
                f"end at offset {end.tail}. It was truncated: restore a backup, or run `ckpt salvage`"
            )
        return end

    def _rebuilt(self, headers: list[fmt.SegmentHeader], poisoned: bool) -> End:
        """`_rebuild`; whoever only reads leaves damage, and segments that were begun and not published, to who writes."""
        if not self.options.read_only:
            return self._rebuild(headers, poisoned)
        if recovery.is_begun_in_vain(self.segments, headers):
            raise _LogToBeWrittenError
        try:
            return self._rebuild(headers, poisoned)
        except CorruptionError as error:
            self._index.close()
            raise _LogToBeWrittenError(error) from None

    def _rebuild(self, headers: list[fmt.SegmentHeader], poisoned: bool) -> End:
        """Build a new index epoch from the log; after a failed fsync, write the doubtful segment anew first."""
        vfs, layout = self.vfs, self.layout
        layout.index.mkdir(exist_ok=True)
        owner, clean = read_owner(layout) or {}, read_clean(layout) or {}
        known = layout.epochs()
        # An epoch number that any evidence names must not come back: that evidence would vouch for a half-built index.
        self._epoch = max(*known, int(owner.get("epoch", 0)), int(clean.get("epoch", 0)), 0) + 1
        layout.owner.unlink(missing_ok=True)
        for number in known:
            shutil.rmtree(layout.epoch(number), ignore_errors=True)
        self._hold_index(self._kind, layout.epoch(self._epoch))
        started = time.monotonic()
        end = fill(self._index, self.segments, headers, recovery.drop_begun_in_vain(self.segments, headers))
        if end.segment != headers[-1].segment:
            if self.options.read_only:
                self._index.close()
                raise _LogToBeWrittenError
            recovery.set_aside(self.segments, headers.pop())
        if clean.get("uuid") == self.identity.uuid.hex():
            segment, tail, next_lsn, _ = clean["end"]
            if next_lsn > end.next_lsn:
                raise CorruptionError(
                    f"{layout.segment(segment)}: the log ends at LSN {end.next_lsn - 1}, but was closed in order at LSN "
                    f"{next_lsn - 1} (offset {tail}). Records are missing: restore a backup, or run `ckpt salvage`"
                )
        # Only now: the record count that CLEAN vouches for must be checked again if this open fails.
        layout.clean.unlink(missing_ok=True)
        if poisoned:
            end = recovery.rewrite_last(self.segments, headers, end)
            relocate(self._index, self.segments, headers[-1], end)
            vfs.unlink(layout.poison)
            vfs.sync_folder(layout.root)
            logger.warning("%s: recovered from a failed fsync up to LSN %d", layout.root, end.next_lsn - 1)
        if end.next_lsn > 1:
            logger.info("%s: index rebuilt, %d frames in %.2f s", layout.root, end.next_lsn - 1, time.monotonic() - started)
        return end

    def _claim(self) -> None:
        """Write the evidence under which this boot may trust the index."""
        data = self._index.data_file().stat()
        before = read_owner(self.layout) or {}
        write_json(
            self.layout.owner,
            {
                "kind": self._index.kind,
                "version": self._index.version,
                "epoch": self._epoch,
                "boot": boot_id(),
                "file": [data.st_dev, data.st_ino],
                "pid_namespace": pid_namespace(),
                "packed": before.get("packed", 0) if before.get("epoch") == self._epoch else 0,
            },
        )

    def _index_is_still_ours(self) -> bool:
        owner = read_owner(self.layout)
        return self._private is not None or (owner is not None and owner.get("epoch") == self._epoch and not owner.get("stale"))

    def _join(self) -> bool:
        """Enter a store that others have open; False when there is nothing to join, or nothing that can be joined by looking."""
        if not self.layout.store.exists() or not self._may_write():
            return False
        self.identity = read_identity(self.vfs, self.layout)
        self._refuse_unknown_features()
        owner = read_owner(self.layout)
        if owner is None or owner.get("boot") != boot_id():
            return False
        index = KINDS.get(owner.get("kind", ""))
        if index is None or owner.get("version") != index.version:
            raise IndexUnusableError(
                f"{self.layout.root} is open with index {owner.get('kind')!r} version {owner.get('version')}, which this version of "
                "ckptstore does not know: open it with the same version everywhere, or close it everywhere first"
            )
        if self.options.index not in (None, index.kind):
            raise IndexUnusableError(
                f"{self.layout.root} is open with index={index.kind!r}, and index={self.options.index!r} was asked for: close it "
                f"everywhere first, or leave index away to share it as it is"
            )
        if not index.across_namespaces and owner.get("pid_namespace") != pid_namespace():
            raise IndexUnusableError(
                f"{self.layout.root} is open in another pid namespace (another container?), and an LMDB index cannot be shared "
                "across two of them: close it there first, and open it with index='sqlite' to share it"
            )
        if owner.get("stale"):
            raise StaleIndexError(
                f"{self.layout.root}: the index was found to be wrong; close the store everywhere and open it again"
            )
        self._epoch = int(owner["epoch"])
        folder = self.layout.epoch(self._epoch)
        try:
            data = (folder / index.data_name).stat()
        except OSError:
            return False
        if [data.st_dev, data.st_ino] != owner.get("file"):
            return False
        self._hold_segments()
        self._hold_index(index.kind, folder)
        end = self._read_end()
        if end is None:
            self._index.close()
            return False
        self._hold_page(self.layout.shared)
        self._published = end
        return True

    def _open_private(self, damage: CorruptionError | None = None) -> None:
        """Read-only where the store's own index cannot be had: a medium that cannot be written, a damaged log, or one that has to be
        recovered.

        The index stands in a temporary folder and shows the log as of now, up to the first damage.

        Args:
            damage: why an index of all of the log could not be built.
        """
        headers = sorted((self.segments.header(n) for n in self.segments.numbers()), key=lambda header: header.base_lsn)
        replaced = {old for header in headers for old in header.replaces}
        headers = [header for header in headers if header.segment not in replaced]
        self._private = Path(tempfile.mkdtemp(prefix="ckptstore-"))
        self._held.callback(shutil.rmtree, self._private, ignore_errors=True)
        self._epoch = 0
        self._hold_index(self.options.index or DEFAULT, self._private)
        found: list[CorruptionError] = []
        self._published = fill(self._index, self.segments, headers, 0, damage=found)
        self._damage = damage or next(iter(found), None)
        self._hold_page(self._private / "SHARED")
        self._page.start(0)

    def _read_end(self) -> End | None:
        try:
            with self._index.read() as kv:
                return get_end(kv)
        except IndexIOError:
            return None


def _holds_frames(segment: bytes) -> bool:
    """Whether anything stands behind the header of a segment; what has no header counts as something, too."""
    try:
        header = fmt.decode_segment_header(segment)
    except (CorruptionError, FormatVersionError):
        return bool(segment.strip(b"\0"))
    return bool(segment[header.length :].strip(b"\0"))
