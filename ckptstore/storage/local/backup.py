"""Backup and restore: the segments of a store copied while it is in use, and a store made out of such a copy.

A backup folder holds `BACKUP`, which names the files that belong to it with their lengths and checksums, and those files. What a kill or
a power cut leaves behind at each step of a backup:

    copy       new files, and bytes behind the end of a file that grew: `BACKUP` names neither, so the old backup is whole
    manifest   `BACKUP` is replaced as a whole, when all that it names is durable: from here on the new backup counts
    sweep      files that it does not name; the next backup deletes them

A restore writes the store under another name beside its place and renames it when all of it is durable: at its place there is nothing, or
a whole store. It begins a new timeline, and a segment on it, so that nobody takes what is written to it from here on, and what is
written to the store that was backed up, for the same.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from ckptstore.codec.records import pack
from ckptstore.codec.shapes import MOST_LSN
from ckptstore.errors import (
    CkptStoreError,
    CorruptionError,
    ForeignSegmentError,
    FormatVersionError,
    LockTimeoutError,
    NotAStoreError,
)
from ckptstore.progress import Progress
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.checking import hold, void_in
from ckptstore.storage.local.failures import told
from ckptstore.storage.local.frames import get_end
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.index.kinds import KINDS, keep_kind, kept_kind
from ckptstore.storage.local.inspection import Held, Log
from ckptstore.storage.local.layout import Layout, now_ms, parse_json, read_identity, write_identity
from ckptstore.storage.local.locks import FolderLock
from ckptstore.storage.local.recovery import End
from ckptstore.storage.local.segment import Segments
from ckptstore.storage.local.vfs import OS, Vfs

MANIFEST = "BACKUP"
VERSION = 1
_BLOCK = 1 << 20
# Inside the folder, whatever the list says: a restore must copy nothing else.
_FILE = re.compile(r"[0-9a-fx-]+\.seg", re.ASCII)


class StoreExistsError(CkptStoreError, FileExistsError):
    """A store is not restored over anything that is there: choose another path, or move that away."""


class BackupReport(NamedTuple):
    """What a backup holds, and what it took to bring it there. Sizes are in bytes."""

    segments: int
    bytes: int
    copied_segments: int
    """Segments that were copied, in whole or what was added to them."""
    copied_bytes: int
    last_lsn: int
    """Everything committed up to here is in the backup."""
    taken_ms: int
    """Unix time in ms."""


class RestoreReport(NamedTuple):
    """A restored store."""

    segments: int
    bytes: int
    last_lsn: int
    taken_ms: int
    """Unix time in ms at which the backup was taken."""
    timeline: str
    """The new timeline, in hex."""


class _Item(NamedTuple):
    """A segment in a backup."""

    segment: int
    file: str
    bytes: int
    crc: int
    sealed: bool
    """Whether it had a successor: then it never changes."""


class _Manifest(NamedTuple):
    store: str
    """The file STORE."""
    index_kind: str
    end: End
    taken_ms: int
    items: tuple[_Item, ...]


# -- backup ----------------------------------------------------------------------------------------------------------------


def backup(storage: LocalStorage, destination: Path, vfs: Vfs = OS, progress: Progress | None = None) -> BackupReport:
    """Bring a backup up to date, or make one; see `ckptstore.backup`."""
    layout = Layout(destination)
    with told(f"backup to {destination}"):
        destination.parent.mkdir(parents=True, exist_ok=True)
        vfs.mkdir(destination)
        # Before the lock is made, too: a folder that is refused stays as it is.
        _old(destination)
        with _locked(destination / "LOCK", f"{destination} is being written by another backup"):
            old = _old(destination)
            vfs.mkdir(layout.segments)
            vfs.sync_folder(destination)
            vfs.sync_folder(destination.parent)
            with ExitStack() as files:
                with ExitStack() as snapshot:
                    # The files are held until all is copied, the snapshot of the index is not: it keeps pages from being used again.
                    log, view = hold(storage, files, snapshot)
                    end = get_end(view.kv)
                    assert end is not None
                    held = log.in_order(void_in(log, view))
                return _Backup(log, held, end, layout, old, vfs, progress).run(whole=not storage._live().private)


class _Backup:
    """One backup."""

    def __init__(
        self,
        log: Log,
        held: list[Held],
        end: End,
        layout: Layout,
        old: _Manifest | None,
        vfs: Vfs,
        progress: Progress | None,
    ) -> None:
        if log.faults or log.identity is None:
            raise CorruptionError(f"{log.faults[0].text}: nothing was backed up, an earlier backup stays as it is")
        self._log = log
        self._held = held
        self._end = end
        self._layout = layout
        self._vfs = vfs
        self._store = OS.read_file(log.layout.store).decode()
        if old is not None and _uuid(old.store) != _uuid(self._store):
            raise ForeignSegmentError(
                f"{layout.root} holds a backup of store {_uuid(old.store)}, this is {_uuid(self._store)}: choose another folder"
            )
        self._old = {} if old is None else {item.segment: item for item in old.items}
        self._taken = now_ms()
        self._copied = self._copied_bytes = 0
        self._progress = progress
        self._before = 0

    def run(self, *, whole: bool) -> BackupReport:
        self._refuse_a_part(whole)
        items = []
        for held in self._held:
            items.append(self._item(held, last=held is self._held[-1]))
            self._tell(items[-1].bytes)
            self._before += items[-1].bytes
        self._vfs.sync_folder(self._layout.segments)
        self._vfs.point("backup:synced")
        index = kept_kind(self._log.layout.index)
        manifest = _Manifest(self._store, index, self._end, self._taken, tuple(items))
        self._vfs.write_file(self._layout.root / MANIFEST, _encoded(manifest))
        self._vfs.point("backup:counts")
        self._sweep({item.file for item in items})
        return BackupReport(
            len(items), sum(item.bytes for item in items), self._copied, self._copied_bytes, self._end.next_lsn - 1, self._taken
        )

    def _tell(self, offset: int) -> None:
        """Tell how far the present segment is."""
        if self._progress is not None:
            total = sum(self._end.tail if held is self._held[-1] else held.size for held in self._held)
            self._progress(self._before + offset, total)

    def _refuse_a_part(self, whole: bool) -> None:
        """A store that was opened read-only in spite of damage shows what is before it: that is no reason to forget a better backup.

        Args:
            whole: the store was not opened in that way.
        """
        last = self._held[-1] if self._held else None
        if last is not None and last.number == self._end.segment and (whole or self._ends_here(last)):
            return
        raise CorruptionError(
            f"{self._log.layout.root} is damaged, or was not left in order: nothing was backed up. Run `ckpt verify`"
        )

    def _ends_here(self, last: Held) -> bool:
        return all(piece.location.offset < self._end.tail for piece in self._log.pieces(last))

    def _item(self, held: Held, *, last: bool) -> _Item:
        stop = self._end.tail if last else held.size
        old = self._old.get(held.number)
        assert held.header is not None
        prefix = f"{held.number:020d}-{held.header.salt:08x}"
        if old is not None and old.file.startswith(prefix) and self._is_there(old):
            if old.sealed and not last and old.bytes == stop:
                return old
            if old.bytes <= stop and _crc(held, 0, old.bytes) == old.crc:
                return self._grown(held, old, stop, last)
        return self._new(held, prefix, stop, last)

    def _is_there(self, item: _Item) -> bool:
        path = self._layout.segments / item.file
        return path.exists() and path.stat().st_size >= item.bytes

    def _grown(self, held: Held, old: _Item, stop: int, last: bool) -> _Item:
        """Append what a segment got since. A kill leaves a file that is longer than `BACKUP` says."""
        if stop == old.bytes:
            return old._replace(sealed=not last)
        self._check(held, stop)
        fd = self._vfs.open(self._layout.segments / old.file)
        try:
            self._vfs.truncate(fd, old.bytes)
            crc = self._copy(held, fd, old.bytes, stop, old.crc)
            self._vfs.fdatasync(fd)
        finally:
            self._vfs.close(fd)
        self._vfs.point("backup:grown")
        return _Item(held.number, old.file, stop, crc, not last)

    def _new(self, held: Held, prefix: str, stop: int, last: bool) -> _Item:
        self._check(held, stop)
        name = f"{prefix}-{self._taken}"
        while (self._layout.segments / f"{name}.seg").exists():
            name += "x"
        # `BACKUP` does not name it yet, so it needs no temporary name.
        fd = self._vfs.open(self._layout.segments / f"{name}.seg", create=True)
        try:
            crc = self._copy(held, fd, 0, stop, 0)
            self._vfs.fdatasync(fd)
        finally:
            self._vfs.close(fd)
        self._vfs.point("backup:copied")
        return _Item(held.number, f"{name}.seg", stop, crc, not last)

    def _check(self, held: Held, stop: int) -> None:
        """Damage is not copied: the backup that is there may be the only good one."""
        for piece in self._log.pieces(held, stop):
            if piece.frame is None:
                raise CorruptionError(
                    f"segment {held.number}, offset {piece.location.offset}: {piece.why}. Nothing was backed up, an earlier backup stays "
                    "as it is: run `ckpt verify`"
                )

    def _copy(self, held: Held, fd: int, start: int, stop: int, crc: int) -> int:
        for offset, data in _blocks(held.fd, start, stop):
            self._vfs.pwrite(fd, data, offset)
            crc = crc32(data, crc)
            self._tell(offset + len(data))
        self._copied += 1
        self._copied_bytes += stop - start
        return crc

    def _sweep(self, named: set[str]) -> None:
        for name in self._vfs.listdir(self._layout.segments):
            if name not in named:
                self._vfs.unlink(self._layout.segments / name)
        self._vfs.sync_folder(self._layout.segments)
        self._vfs.point("backup:swept")


def _old(destination: Path) -> _Manifest | None:
    """The backup that is there; None where there is none yet.

    Raises:
        NotAStoreError: the folder holds something else. CorruptionError: its `BACKUP` is damaged.
    """
    if (destination / MANIFEST).exists():
        return _manifest(destination)
    foreign = sorted(set(os.listdir(destination)) - {"LOCK", "segments", f"{MANIFEST}.tmp"})
    if foreign:
        raise NotAStoreError(f"{destination} holds other files ({foreign[0]!r}, ...) and no backup: choose an empty folder")
    return None


# -- restore ---------------------------------------------------------------------------------------------------------------


def restore(source: Path, path: Path, vfs: Vfs = OS, progress: Progress | None = None) -> RestoreReport:
    """Make a store out of a backup; see `ckptstore.restore`."""
    if not (source / MANIFEST).is_file():
        raise NotAStoreError(f"{source} holds no backup: it has no file {MANIFEST}")
    manifest = _manifest(source)
    if path.is_symlink() or (path.exists() and (not path.is_dir() or os.listdir(path))):
        raise StoreExistsError(f"{path} exists: restore to another path, or move it away")
    beside = path.with_name(f".{path.name}.restoring")
    with told(f"restore to {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        vfs.mkdir(beside)
        with _locked(beside / "LOCK", f"{path} is being restored by another process"):
            report = _restored(source, manifest, beside, vfs, progress)
            vfs.rename(beside, path)
            vfs.point("restore:renamed")
            vfs.sync_folder(path.parent)
            return report


def _restored(source: Path, manifest: _Manifest, beside: Path, vfs: Vfs, progress: Progress | None) -> RestoreReport:
    layout = Layout(beside)
    size = sum(item.bytes for item in manifest.items)
    done = 0

    def copied(data: bytes) -> None:
        nonlocal done
        done += len(data)
        if progress is not None:
            progress(done, size)

    # What a killed restore left behind.
    for folder in (layout.segments, layout.index, beside):
        for name in vfs.listdir(folder):
            if name != "LOCK" and not (folder / name).is_dir():
                vfs.unlink(folder / name)
    for folder in (layout.segments, layout.index):
        vfs.mkdir(folder)
    vfs.point("restore:begun")
    for item in manifest.items:
        _take_over(source / "segments" / item.file, layout.segment(item.segment), item, vfs, copied)
        vfs.point("restore:copied")
    vfs.write_file(layout.store, manifest.store.encode())
    before = read_identity(vfs, layout)
    identity = before._replace(timelines=(*before.timelines, os.urandom(8)))
    segments = Segments(vfs, layout, identity)
    try:
        for item in manifest.items:
            segments.header(item.segment)
        lsn = manifest.end.next_lsn

        def seal(salt: int) -> tuple[bytes, int]:
            return fmt.encode_frame(salt, lsn, lsn - 1, pack([]), b"")

        # With a frame, though an empty one: a segment without any counts as begun in vain.
        segments.create(max(item.segment for item in manifest.items) + 1, lsn, seal=seal)
    finally:
        segments.close()
    keep_kind(vfs, layout.index, manifest.index_kind)
    write_identity(vfs, layout, identity)
    for folder in (layout.segments, layout.index, beside):
        vfs.sync_folder(folder)
    vfs.point("restore:whole")
    return RestoreReport(len(manifest.items), size, lsn - 1, manifest.taken_ms, identity.timeline.hex())


def _take_over(source: Path, target: Path, item: _Item, vfs: Vfs, copied: Callable[[bytes], None]) -> None:
    """Copy one file of a backup, and check that it is the one that was made."""
    try:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CorruptionError(f"{source} is missing: the backup is damaged, nothing was restored") from None
    try:
        out = vfs.open(target, create=True)
        try:
            crc = size = 0
            for offset, data in _blocks(fd, 0, item.bytes):
                vfs.pwrite(out, data, offset)
                crc = crc32(data, crc)
                size += len(data)
                copied(data)
            vfs.fdatasync(out)
        finally:
            vfs.close(out)
    finally:
        os.close(fd)
    if (size, crc) != (item.bytes, item.crc):
        raise CorruptionError(f"{source} does not match its checksum: the backup is damaged, nothing was restored")


# -- what both need --------------------------------------------------------------------------------------------------------


def _encoded(manifest: _Manifest) -> bytes:
    facts: dict[str, Any] = {
        "ckptstore_backup": VERSION,
        "store": manifest.store,
        "index": manifest.index_kind,
        "end": list(manifest.end),
        "taken_ms": manifest.taken_ms,
        "segments": [list(item) for item in manifest.items],
    }
    return json.dumps({**facts, "crc": _facts_crc(facts)}, indent=1).encode() + b"\n"


def _uuid(store: str) -> str:
    return str(json.loads(store)["uuid"])


def _facts_crc(facts: dict[str, Any]) -> int:
    return crc32(json.dumps(facts, sort_keys=True).encode())


def _manifest(folder: Path) -> _Manifest:
    """Read `BACKUP`.

    Raises:
        CorruptionError: it is not what a backup writes. FormatVersionError: a newer version wrote it.
    """
    path = folder / MANIFEST
    try:
        facts = parse_json(path.read_bytes())
        version, crc = facts["ckptstore_backup"], facts.pop("crc")
        if version != VERSION:
            raise FormatVersionError(f"{path}: backup format {version}, this version knows {VERSION}: upgrade ckptstore")
        if crc != _facts_crc(facts):
            raise ValueError("it does not match its checksum")
        facts["store"].encode()  # it becomes a file; lone surrogates cannot
        items = tuple(_Item(*item) for item in facts["segments"])
        manifest = _Manifest(facts["store"], facts["index"], End(*facts["end"]), facts["taken_ms"], items)
        if not _is_sound(manifest):
            raise ValueError("it names what no backup holds")
        return manifest
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(f"{path} does not read as a backup's list of files: {error}") from None


def _is_sound(manifest: _Manifest) -> bool:
    """Whether the list says what a backup may say: it is somebody's file, and names others."""
    if not isinstance(manifest.store, str) or manifest.index_kind not in KINDS or not manifest.items:
        return False
    numbers = [
        *manifest.end,
        manifest.taken_ms,
        *(number for item in manifest.items for number in (item.segment, item.bytes, item.crc)),
    ]
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers) or not 0 < manifest.end.next_lsn <= MOST_LSN:
        return False
    return all(isinstance(item.file, str) and _FILE.fullmatch(item.file) for item in manifest.items)


def _blocks(fd: int, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    while start < stop:
        data = OS.pread(fd, min(_BLOCK, stop - start), start)
        if not data:
            return
        yield start, data
        start += len(data)


def _crc(held: Held, start: int, stop: int) -> int:
    crc = 0
    for _, data in _blocks(held.fd, start, stop):
        crc = crc32(data, crc)
    return crc


@contextmanager
def _locked(path: Path, busy: str) -> Iterator[None]:
    lock = FolderLock(path, create=True)
    try:
        if not lock.try_exclusive():
            raise LockTimeoutError(busy)
        yield
    finally:
        lock.close()
