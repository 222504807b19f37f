"""The index of a local store: an ordered map that can be thrown away at any time.

An implementation gives an `IndexEnv`; the keys inside are those of storage/catalog.py and of frames.py (`F`, `H`). There are two,
`lmdb` and `sqlite`; kinds.py lists them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Protocol

from ckptstore.errors import StorageIOError
from ckptstore.storage.catalog import Kv

LAYOUT = 2
"""Version of the keys, the same in every implementation."""


class IndexEnv(Protocol):
    """An open index. What its library raises comes out as `IndexIOError`."""

    kind: ClassVar[str]
    """Name in `index/OWNER`."""
    version: ClassVar[int]
    """Version of the key layout; another one is rebuilt, never read."""
    data_name: ClassVar[str]
    """Name of the file whose identity stands in OWNER."""
    across_namespaces: ClassVar[bool]
    """Whether processes of several pid namespaces may have it open at once."""

    def read(self) -> AbstractContextManager[Kv]:
        """A snapshot; never blocks writers."""
        ...

    def write(self) -> AbstractContextManager[Kv]:
        """The one write transaction. The caller holds the commit lock. Leaving normally publishes, an exception aborts.

        Raises:
            IndexFullError: the map had to grow and has grown; nothing was published, run the transaction again.
            IndexIOError: nothing was published.
        """
        ...

    def data_file(self) -> Path:
        """The file called `data_name`."""
        ...

    def is_cut(self) -> bool:
        """Whether the end of the file is missing, so that reading might end the process. Asked when nobody else has it open."""
        ...

    def copy_packed(self, folder: Path) -> IndexEnv:
        """A new index in `folder` with the same contents, its pages filled. Nobody else may have this one open."""
        ...

    def sync(self) -> None:
        """Make the index durable, for CLEAN; the caller syncs the folder. Nobody else may have it open."""
        ...

    def close(self, *, last: bool = False) -> None:
        """Give it up.

        Args:
            last: nobody else has it open, and nobody can get in: what only serves sharing may go.
        """
        ...


class IndexFullError(Exception):
    """Internal: the index grew; run the transaction again."""


class IndexIOError(StorageIOError):
    """The index could not be opened, read or written. Nothing of a failed call was kept."""


class IndexNoSpaceError(IndexIOError):
    """Internal: there was no space for the index; the engine makes a `NoSpaceError` of it."""
