"""The index of a local store: an ordered map that can be thrown away at any time.

An implementation gives an `IndexEnv`; the keys inside are those of storage/catalog.py and of engine.py (`F`, `H`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from ckptstore.storage.catalog import Kv


class IndexEnv(Protocol):
    """An open index."""

    kind: str
    """Name in `index/OWNER`."""
    version: int
    """Version of the key layout; another one is rebuilt, never read."""

    def read(self) -> AbstractContextManager[Kv]:
        """A snapshot; never blocks writers."""
        ...

    def write(self) -> AbstractContextManager[Kv]:
        """The one write transaction. The caller holds the commit lock. Leaving normally publishes, an exception aborts.

        Raises:
            IndexFullError: the map had to grow and has grown; nothing was published, run the transaction again.
        """
        ...

    def data_file(self) -> Path:
        """The file whose identity stands in OWNER."""
        ...

    def copy_packed(self, folder: Path) -> IndexEnv:
        """A new index in `folder` with the same contents, its pages filled. Nobody else may have this one open."""
        ...

    def sync(self) -> None:
        """Make the index durable, for CLEAN."""
        ...

    def close(self) -> None: ...


class IndexFullError(Exception):
    """Internal: the index grew; run the transaction again."""
