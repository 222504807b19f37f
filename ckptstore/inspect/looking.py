"""A store opened for looking, and a word where not all of it can be seen: a damaged log without an index is read up to the damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ckptstore.errors import CorruptionError
from ckptstore.inspect.opened import Opened, opened
from ckptstore.inspect.refs import UnknownReferenceError
from ckptstore.storage.local.layout import Layout

_PART = (
    "the log is damaged, and its index was lost: only what stands before the damage is shown. `ckpt verify` names the place, "
    "`ckpt salvage` reads what stands behind it"
)


@contextmanager
def looking(path: str | os.PathLike[str], lock_timeout: float) -> Iterator[tuple[Opened, list[str]]]:
    """Open a store `read_only`.

    Args:
        lock_timeout: seconds, see `opened`.

    Yields:
        The store, and a list of problems to go on with.

    Raises:
        CorruptionError: in place of an `UnknownReferenceError` of the caller's, where what it looks for may stand behind the damage.
        what `opened` raises.
    """
    with opened(path, lock_timeout) as here:
        problems = [_PART] if _is_cut_short(here) else []
        try:
            yield here, problems
        except UnknownReferenceError as error:
            if problems:
                raise CorruptionError(f"{error}; {_PART}") from None
            raise


def _is_cut_short(here: Opened) -> bool:
    """Whether the log is read through a private index because of damage.

    Whoever opens a folder that can be written leaves OWNER in it, unless the index could not be rebuilt from the log.
    """
    return os.access(here.path, os.W_OK) and not Layout(here.path).owner.exists()
