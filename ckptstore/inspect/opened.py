"""A store folder opened for looking: `read_only`, with the storage below the store at hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ckptstore.options import checked_options
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.layout import Identity, Layout, read_identity
from ckptstore.storage.local.vfs import OS
from ckptstore.store import Store


class Opened(NamedTuple):
    """What the functions of this room work on."""

    path: Path
    identity: Identity
    storage: LocalStorage
    store: Store


@contextmanager
def opened(path: str | os.PathLike[str], lock_timeout: float) -> Iterator[Opened]:
    """Open a store folder `read_only` and close it again.

    Args:
        path: the folder; it is not created.
        lock_timeout: seconds to wait while another process opens or recovers the store, above 0 and up to 3600.

    Raises:
        StoreMissingError, NotAStoreError, FormatVersionError, ForeignSegmentError, TimelineError, CorruptionError,
        UnsupportedFilesystemError, IndexUnusableError, LockTimeoutError: what stands at the path cannot be opened.
    """
    options = checked_options(read_only=True, lock_timeout=lock_timeout)
    storage = LocalStorage(path, options)
    with Store(storage, options) as store:
        yield Opened(storage.path, read_identity(OS, Layout(storage.path)), storage, store)
