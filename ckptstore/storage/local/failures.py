"""What a caller is told of an error of the system, where nothing more is known about it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from ckptstore.errors import CkptStoreError, NoSpaceError, NotWritableError, StorageIOError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Raise errors of the system as errors of ours.

    Args:
        what: what was being done, and where; whoever uses this leaves everything as it was when it fails.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, CkptStoreError):
            raise
        if error.errno in NO_SPACE:
            raise NoSpaceError(f"{what}: no space is left; what was there before is as it was") from None
        if isinstance(error, PermissionError | NotADirectoryError) or error.errno == errno.EROFS:
            raise NotWritableError(f"{what}: {error.strerror}") from None
        raise StorageIOError(f"{what}: {error}: the disk or its driver failed; what was there before is as it was") from error
