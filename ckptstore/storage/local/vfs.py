"""The calls that touch files, in one small class.

It exists for fault tests: `ckptstore.testing.crashfs` puts itself behind these methods, keeps live and durable bytes apart and
composes crash images; `point` marks the places where tests kill a process. LMDB's own files are not behind this seam: the index
is disposable, and what a crash may do to it is decided before it is opened (recovery.py).
"""

from __future__ import annotations

import os
from pathlib import Path


class Vfs:
    """Files of the operating system. Methods raise OSError as it does."""

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        """Open a file for reading and positioned writing; with `create`, make it or empty it."""
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT | os.O_TRUNC
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        data = os.pread(fd, length, offset)
        while 0 < len(data) < length:
            more = os.pread(fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Write all of `data`; a short write is continued, so that what stopped it is raised."""
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            written += os.pwrite(fd, data[written:], offset + written)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def file_size(self, path: Path) -> int:
        return path.stat().st_size

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        # macOS has no fdatasync, and its fsync leaves data in the drive's cache.
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            import fcntl

            fcntl.fcntl(fd, 51)  # F_FULLFSYNC

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def listdir(self, path: Path) -> list[str]:
        return os.listdir(path) if path.is_dir() else []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def read_file(self, path: Path) -> bytes:
        return path.read_bytes()

    def sync_folder(self, path: Path) -> None:
        """Make creates, renames and unlinks inside a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def point(self, name: str) -> None:
        """A named fault point. Does nothing; tests override it."""

    def write_file(self, path: Path, data: bytes) -> None:
        """Replace a small file as a whole, durably: temporary file, fsync, rename, fsync of the folder."""
        temporary = path.with_name(path.name + ".tmp")
        fd = self.open(temporary, create=True)
        try:
            self.pwrite(fd, data, 0)
            self.fdatasync(fd)
        finally:
            self.close(fd)
        self.point(f"written:{path.name}.tmp")
        self.rename(temporary, path)
        self.point(f"renamed:{path.name}")
        self.sync_folder(path.parent)


OS = Vfs()
