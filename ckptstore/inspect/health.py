"""Where a store stands and what its index is worth: what `ckpt doctor` says of a folder before and after it opens it."""

from __future__ import annotations

import os
import shutil
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from ckptstore.errors import CkptStoreError
from ckptstore.folders import verify
from ckptstore.inspect.looking import cut_short
from ckptstore.inspect.opened import opened
from ckptstore.inspect.progress import Progress
from ckptstore.storage.local.index.kinds import kept_kind
from ckptstore.storage.local.layout import Layout, boot_id, mount_type, read_clean, read_owner, refuse_network_filesystem
from ckptstore.upkeep.verify import VerifyReport

PACKAGES = (
    "ckptstore",
    "msgpack",
    "zstandard",
    "lmdb",
    "apsw",
    "pydantic",
    "typer",
    "rich",
    "langgraph",
    "langgraph-checkpoint",
    "langchain-core",
)


class StoreHealth(NamedTuple):
    """One folder."""

    path: str
    filesystem: str
    """Type of the mount; empty where the system does not say."""
    free_bytes: int
    writable: bool
    """For the user who asks."""
    index_kind: str
    evidence: str
    """Whether the index could be trusted before this command opened the store, and why."""
    poisoned: bool
    """An fsync failed, and nobody recovered since."""
    torn: int
    """Files with bytes that were cut from the end of a log."""
    open_ms: float
    """How long opening it took; with a rebuild of the index, where there was one."""
    problems: list[str]


def versions() -> dict[str, str | None]:
    """Versions of the packages that matter, None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def store_health(path: str | os.PathLike[str], *, lock_timeout: float = 30.0) -> StoreHealth:
    """Look at a store's folder, then open it.

    Args:
        lock_timeout: seconds, see `opened`.

    Raises:
        StoreMissingError, NotAStoreError: there is no store at the path.
    """
    root = Path(os.path.realpath(path))
    layout = Layout(root)
    problems: list[str] = []
    if not layout.store.exists():
        with opened(path, lock_timeout):
            pass
    evidence = _evidence(layout)
    poisoned = layout.poison.exists()
    if poisoned:
        problems.append("an fsync failed and the store was not recovered since: close it everywhere, and open it for writing")
    started = time.monotonic()
    try:
        refuse_network_filesystem(root)
        with opened(path, lock_timeout) as here:
            problems += cut_short(here)
    except CkptStoreError as error:
        problems.append(str(error))
    return StoreHealth(
        str(root),
        _filesystem(root),
        shutil.disk_usage(root).free,
        os.access(root, os.W_OK),
        kept_kind(layout.index),
        evidence,
        poisoned,
        sum(1 for _ in layout.torn.glob("*")),
        round((time.monotonic() - started) * 1000, 1),
        problems,
    )


def _filesystem(root: Path) -> str:
    try:
        return mount_type(root, Path("/proc/self/mountinfo").read_text())
    except OSError:
        return ""


def _evidence(layout: Layout) -> str:
    """Whether the next one to be alone in the folder may trust the index (storage/local/opening.py decides)."""
    owner, clean = read_owner(layout), read_clean(layout)
    if owner is None:
        return "there is none: it is rebuilt when the store is opened"
    if owner.get("stale"):
        return "it was found to be wrong: it is rebuilt when the store is opened"
    if clean is not None and clean.get("epoch") == owner.get("epoch"):
        return "trusted: the store was closed in order"
    if boot_id() is not None and owner.get("boot") == boot_id():
        return "trusted: it was written since the machine started"
    return "not trusted: the machine was restarted and the store not closed in order; it is rebuilt when the store is opened"


def verify_store(path: str | os.PathLike[str], *, progress: Progress | None = None) -> VerifyReport:
    """Check everything a store holds, without opening it; see `ckptstore.verify`."""
    return verify(path, progress=progress)
