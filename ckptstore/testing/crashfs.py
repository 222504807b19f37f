"""A filesystem for crash tests: what a power cut may leave of a store folder, and faults on demand.

`CrashVfs` works on a real folder, which is the live state, and keeps what is durable beside it: the bytes of a file at its last
fdatasync, the entries of a folder at its last `sync_folder`. `image` is a state that a power cut may leave behind:

- a block (512 or 4096 bytes) is as it was durable, or as any write since left it;
- bytes written since the last fdatasync may read as zeros or garbage. Durable bytes in the same block stay: a sector is written
  whole or not at all ("powersafe overwrite");
- the size of a file is anywhere between the sizes it had since its last fdatasync;
- of the creates, renames and unlinks in a folder since its last sync the first n happened, any n.

After a failed fdatasync nothing more of that file becomes durable, whatever later calls return: kernels drop the pages, keep
showing them, and report the error once. A killed process is not a power cut: after a kill the live folder is what is left.

Files made beside the seam (LOCK) and the whole of `index/` are in no image: most of the index is LMDB's, and a power cut makes it
worthless. `write_image` can put an index there that must not be opened.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from errno import EBADF, EIO
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from ckptstore.storage.local.vfs import Vfs
from ckptstore.testing.survival import File, Folder

Image = dict[str, bytes | None]
"""Path inside the store -> bytes of a file, or None for a folder."""

Keep = Literal["lost", "live", "mixed"]
"""What survives of everything that is not durable: nothing, all of it, or any legal part of it."""


@dataclass
class _Fault:
    call: str
    error: int
    path: str
    short: int
    after: int
    times: int
    left: int


class CrashVfs(Vfs):
    """The filesystem under test. Thread-safe; one process."""

    def __init__(self, root: Path) -> None:
        """Take what stands in the folder now as durable.

        Args:
            root: the store folder; it need not exist yet. It is named as the storage names it: resolved.
        """
        self.root = Path(os.path.realpath(root))
        self.watch: Callable[[str, str], None] | None = None
        """Called before each call that changes something, with its name and the path inside the store, and at each named point
        with "point" and its name. It may take images, raise, or kill the process."""
        self._tree = _scan(self.root)
        self._open: dict[int, tuple[str, File]] = {}
        self._faults: list[_Fault] = []
        self._lock = threading.RLock()

    def image(self, rng: random.Random, keep: Keep = "mixed") -> Image:
        """A state of the folder after a power cut at this moment. The same `rng` state gives the same image."""
        with self._lock:
            image: Image = {}
            self._collect(self._tree, "", rng, keep, rng.choice([512, 4096]), image)
            return image

    def _collect(self, folder: Folder, prefix: str, rng: random.Random, keep: Keep, block: int, image: Image) -> None:
        count = {"lost": 0, "live": len(folder.ops), "mixed": rng.randint(0, len(folder.ops))}[keep]
        for name, node in sorted(folder.entries(count).items()):
            path = prefix + name
            if path == "index":
                continue
            if isinstance(node, Folder):
                image[path] = None
                self._collect(node, path + "/", rng, keep, block, image)
            elif keep == "mixed":
                image[path] = node.survivor(rng, block)
            else:
                image[path] = node.durable if keep == "lost" else node.live()

    def fail(self, call: str, error: int = EIO, *, path: str = "*", after: int = 0, times: int = 1, short: int = 0) -> None:
        """Make calls fail from now on.

        Args:
            call: name of a method of `Vfs`, "point" included, whose path is the name of the point.
            error: errno to raise.
            path: shell pattern of the path inside the store.
            after: matching calls to let through first.
            times: calls that fail then.
            short: for `pwrite`, bytes that go out before it fails.
        """
        self._faults.append(_Fault(call, error, path, short, after, times, times))

    @property
    def failed(self) -> bool:
        """Whether any fault that was asked for came up."""
        return any(fault.left < fault.times for fault in self._faults)

    def heal(self) -> None:
        """Drop all faults."""
        self._faults.clear()

    def _enter(self, call: str, name: str, changes: bool = True) -> _Fault | None:
        """Tell the watcher; return the fault that this call has to raise, if any."""
        if changes and self.watch is not None:
            self.watch(call, name)
        for fault in self._faults:
            if fault.call == call and fnmatch(name, fault.path):
                if fault.after > 0:
                    fault.after -= 1
                elif fault.left > 0:
                    fault.left -= 1
                    return fault
        return None

    def _guard(self, call: str, name: str, changes: bool = True) -> None:
        fault = self._enter(call, name, changes)
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), name)

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        with self._lock:
            name = self._name(path)
            self._guard("open", name, create)
            fd = super().open(path, create=create, read_only=read_only)
            folder = self._folder(path.parent)
            node = folder.entries().get(path.name)
            if not isinstance(node, File):
                # Made now; or beside the seam, and then nobody knows when: as if now.
                node = File() if create else File(path.read_bytes())
                folder.ops.append((None, path.name, node))
            elif create:
                node.ops.append((0, None))
            self._open[fd] = (name, node)
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._open.pop(fd, None)
            super().close(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._guard("pread", self._opened(fd)[0], changes=False)
        return super().pread(fd, length, offset)

    def read_file(self, path: Path) -> bytes:
        self._guard("read_file", self._name(path), changes=False)
        return super().read_file(path)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        with self._lock:
            name, node = self._opened(fd)
            fault = self._enter("pwrite", name)
            out = data if fault is None else data[: fault.short]
            super().pwrite(fd, out, offset)
            if out:
                node.ops.append((offset, bytes(out)))
            if fault is not None:
                raise OSError(fault.error, os.strerror(fault.error), name)

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            name, node = self._opened(fd)
            self._guard("truncate", name)
            super().truncate(fd, size)
            node.ops.append((size, None))

    def fdatasync(self, fd: int) -> None:
        """Make the bytes of a file durable in the model. The real folder is not synced: tests do not wait for a disk."""
        with self._lock:
            name, node = self._opened(fd)
            fault = self._enter("fdatasync", name)
            if fault is not None:
                node.failed = True
                raise OSError(fault.error, os.strerror(fault.error), name)
            if not node.failed:
                node.durable, node.ops = node.live(), []

    def rename(self, old: Path, new: Path) -> None:
        with self._lock:
            self._guard("rename", self._name(new))
            super().rename(old, new)
            folder = self._folder(old.parent)
            folder.ops.append((old.name, new.name, folder.entries().get(old.name)))

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._guard("unlink", self._name(path))
            super().unlink(path)
            self._folder(path.parent).ops.append((path.name, None, None))

    def mkdir(self, path: Path) -> None:
        with self._lock:
            self._guard("mkdir", self._name(path))
            super().mkdir(path)
            self._folder(path)

    def sync_folder(self, path: Path) -> None:
        """Make the entries of a folder durable in the model."""
        with self._lock:
            self._guard("sync_folder", self._name(path))
            folder = self._folder(path)
            there = set(os.listdir(path))
            # What was unlinked beside the seam is gone by now, too.
            folder.durable, folder.ops = {name: node for name, node in folder.entries().items() if name in there}, []

    def point(self, name: str) -> None:
        self._guard("point", name)

    def _opened(self, fd: int) -> tuple[str, File]:
        if fd not in self._open:
            raise OSError(EBADF, os.strerror(EBADF))
        return self._open[fd]

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def _folder(self, path: Path) -> Folder:
        """The folder of a path, entered as not yet durable where it is met for the first time."""
        if path == self.root:
            return self._tree
        above = self._folder(path.parent)
        node = above.entries().get(path.name)
        if not isinstance(node, Folder):
            node = Folder()
            above.ops.append((None, path.name, node))
        return node


def _scan(folder: Path) -> Folder:
    found = Folder()
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if entry.is_dir():
            found.durable[entry.name] = _scan(Path(entry.path))
        else:
            found.durable[entry.name] = File(Path(entry.path).read_bytes())
    return found


def write_image(image: Image, folder: Path, *, garbage_index: bool = False) -> Path:
    """Make a store folder out of an image.

    Args:
        folder: must not exist.
        garbage_index: also make an `index/` of LMDB as a power cut leaves it: files full of garbage, and an OWNER of another boot.
    """
    folder.mkdir(parents=True)
    for name, data in image.items():
        if data is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(data)
    if garbage_index:
        epoch = folder / "index" / f"{1:08d}"
        epoch.mkdir(parents=True)
        for name in ("data.mdb", "lock.mdb"):
            (epoch / name).write_bytes(random.Random(len(image)).randbytes(8192))
        status = (epoch / "data.mdb").stat()
        owner = {"kind": "lmdb", "version": 1, "epoch": 1, "boot": "another boot", "file": [status.st_dev, status.st_ino]}
        (folder / "index" / "OWNER").write_text(json.dumps(owner))
        (folder / "index" / "SHARED").write_bytes(b"\xff" * 64)
    return folder
