"""A store by the name of its folder: open it, check it, save what is whole of it, copy it, make it out of a copy."""

from __future__ import annotations

import os
import shutil
from typing import Any

from ckptstore.errors import InvalidArgumentError
from ckptstore.lineage.commits import Commits
from ckptstore.options import StoreOptions, checked_options
from ckptstore.progress import Progress
from ckptstore.storage.local import backup as local_backup
from ckptstore.storage.local import checking
from ckptstore.storage.local.backup import BackupReport, RestoreReport, StoreExistsError
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.layout import named_folder
from ckptstore.storage.local.vfs import OS
from ckptstore.storage.memory import MemoryStorage
from ckptstore.store import Store
from ckptstore.upkeep.salvage import SalvageReport
from ckptstore.upkeep.salvage import salvage as save_what_is_whole
from ckptstore.upkeep.verify import VerifyReport, verify_log


def open(path: str | os.PathLike[str], **options: Any) -> Store:
    """Open a store folder, creating it where there is none; `":memory:"` gives a store that lives in this process only.

    Args:
        path: the folder.
        options: fields of `ckptstore.options.StoreOptions`.

    Raises:
        InvalidArgumentError: an option is out of range.
        NotAStoreError, StoreMissingError, FormatVersionError, ForeignSegmentError, TimelineError, CorruptionError,
        UnsupportedFilesystemError, NotWritableError, IndexUnusableError, LockTimeoutError: what stands at the path cannot be opened.
    """
    checked = checked_options(**options)
    named_folder("path", path)
    if os.fspath(path) == ":memory:":
        return Store(MemoryStorage(checked.lock_timeout), checked)
    return Store(LocalStorage(path, checked), checked)


def verify(store: str | os.PathLike[str] | Store, *, progress: Progress | None = None) -> VerifyReport:
    """Check a store: every frame of every segment, every live record with its references and values, and the index against the log.

    It works on a damaged store, and on one that others have open and write to. Nothing is written but in a temporary folder. It reads the
    whole log and holds a snapshot of the index meanwhile.

    Args:
        store: a folder, or an open store. Of one in memory only the live records are checked.
        progress: called with the bytes of the log that were read, and how many there are; then, in the same way, with the live checkpoints
            that were looked at.

    Returns:
        What is wrong, and counts. Legal things that are worth knowing are remarks.

    Raises:
        StoreMissingError, NotAStoreError, FormatVersionError: there is nothing to check, or nothing that this version knows.
    """
    if isinstance(store, Store):
        return store.verify(progress=progress)
    with checking.checked(named_folder("store", store), progress=progress) as log:
        return verify_log(log, progress)


def salvage(
    path: str | os.PathLike[str], destination: str | os.PathLike[str], *, progress: Progress | None = None
) -> SalvageReport:
    """Make a new store out of what can still be read of a damaged one: every checkpoint, batch of writes and history that is whole.

    What was lost stays an error for those who need it, never an empty value. Threads whose name is lost are called `found <number>`. If
    records of a deletion are lost, and the index with them, what was deleted may come back. The damaged store is not changed.

    Args:
        path: the damaged store; nobody else should write to it meanwhile.
        destination: where the new store is to be; missing, or an empty folder. There is nothing before all of it is durable.
        progress: called with the bytes of the log that were read, and how many there are; then, in the same way, with the checkpoints.

    Returns:
        What was saved, what is wrong with the files, and what is lost.

    Raises:
        StoreExistsError: there is something at the destination.
        StoreMissingError, NotAStoreError, FormatVersionError: there is nothing to read, or nothing that this version knows.
        InvalidArgumentError, NoSpaceError, StorageIOError
    """
    source, folder = named_folder("path", path), named_folder("destination", destination)
    if folder.is_relative_to(source):
        raise InvalidArgumentError(f"destination={str(folder)!r}: a folder outside the store is needed")
    if folder.exists() and (not folder.is_dir() or os.listdir(folder)):
        raise StoreExistsError(f"{folder} exists: choose another folder, or move it away")
    beside = folder.with_name(f".{folder.name}.salvaging")
    with checking.checked(source, repair=True, progress=progress) as log:
        shutil.rmtree(beside, ignore_errors=True)
        options = StoreOptions(durability="process", max_value_bytes=1 << 30, auto_compact=False)
        storage = LocalStorage(beside, options)
        try:
            report = save_what_is_whole(log, Commits(storage, options), storage, progress)
            storage.sync()
        finally:
            storage.close()
    os.rename(beside, folder)
    OS.sync_folder(folder.parent)
    return report


def backup(
    store: str | os.PathLike[str] | Store, destination: str | os.PathLike[str], *, progress: Progress | None = None
) -> BackupReport:
    """Copy a store to a folder while it is in use: everything that was committed before the call, and nothing of what came after some
    moment in it.

    Again with the same folder, it copies what is new: segments that are there are not copied again, those that were compacted away are
    deleted. A kill or a power cut leaves the backup before, or the new one. The folder is no store: `restore` makes one of it.

    Args:
        store: a folder, which is opened read-only for it, or an open store.
        destination: a folder that is empty or missing, or that holds a backup of this store.
        progress: called with the bytes of the log that are in the backup, and how many there are to be.

    Raises:
        CorruptionError: the store is damaged; an earlier backup stays as it is.
        NotAStoreError: the destination holds something else. ForeignSegmentError: it holds a backup of another store.
        LockTimeoutError: another backup to that folder, or compactions, were in the way.
        InvalidArgumentError, NoSpaceError, NotWritableError, StorageIOError, and what `open` raises.
    """
    if isinstance(store, Store):
        return store.backup(destination, progress=progress)
    with open(named_folder("store", store), read_only=True) as opened:
        return opened.backup(destination, progress=progress)


def restore(source: str | os.PathLike[str], path: str | os.PathLike[str], *, progress: Progress | None = None) -> RestoreReport:
    """Make a store out of a backup. All of it is checked on the way, and at `path` there is nothing until all of it is durable.

    The restored store begins a new timeline: the store that was backed up refuses its segments. Ids of deleted threads are remembered as
    they were.

    Args:
        source: a folder that `backup` wrote.
        path: where the store is to be; missing, or an empty folder.
        progress: called with the bytes that were copied and checked, and how many there are.

    Raises:
        NotAStoreError: the source is no backup. CorruptionError: it is damaged; nothing was restored.
        StoreExistsError: there is something at the path.
        InvalidArgumentError, FormatVersionError, LockTimeoutError, NoSpaceError, NotWritableError, StorageIOError
    """
    return local_backup.restore(named_folder("source", source), named_folder("path", path), progress=progress)


__all__ = ["BackupReport", "RestoreReport", "StoreExistsError", "backup", "open", "restore", "salvage", "verify"]
