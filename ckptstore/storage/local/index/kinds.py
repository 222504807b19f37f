"""The kinds of index there are, and which one a store keeps."""

from __future__ import annotations

from pathlib import Path

from ckptstore.options import IndexKind
from ckptstore.storage.local.index.lmdb import LmdbIndex
from ckptstore.storage.local.index.sqlite import SqliteIndex
from ckptstore.storage.local.vfs import Vfs

KINDS: dict[str, type[LmdbIndex] | type[SqliteIndex]] = {"lmdb": LmdbIndex, "sqlite": SqliteIndex}
DEFAULT: IndexKind = "lmdb"


def kept_kind(index: Path) -> str:
    """The kind that a store keeps, from `index/KIND`; the default where it does not say, or says something unknown."""
    try:
        kind = (index / "KIND").read_text().strip()
    except (OSError, ValueError):
        return DEFAULT
    return kind if kind in KINDS else DEFAULT


def keep_kind(vfs: Vfs, index: Path, kind: str) -> None:
    """Note durably which kind a store keeps from now on.

    OWNER names a kind too, but it is written without fsync and removed at the start of a rebuild: after a power cut, or a kill in a
    rebuild, a store shared by two containers would come back as one that cannot be.
    """
    vfs.write_file(index / "KIND", kind.encode() + b"\n")
