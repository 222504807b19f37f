"""A store opened for looking, and a word where not all of it can be seen: a damaged log without an index is read up to the damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ckptstore.errors import CorruptionError
from ckptstore.inspect.opened import Opened, opened
from ckptstore.inspect.refs import UnknownReferenceError

_PART = (
    "the log is damaged, and its index was lost: only what stands before the damage is shown. `ckpt verify` names the place, "
    "`ckpt salvage` reads what stands behind it"
)


def cut_short(here: Opened) -> list[str]:
    """A word where not all of the log can be seen; nothing where it can."""
    return [] if here.storage.damage is None else [_PART]


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
        problems = cut_short(here)
        try:
            yield here, problems
        except UnknownReferenceError as error:
            if problems:
                raise CorruptionError(f"{error}; {_PART}") from None
            raise


@contextmanager
def opened_whole(path: str | os.PathLike[str], lock_timeout: float) -> Iterator[Opened]:
    """Open a store `read_only`, to plan a change of it.

    Raises:
        CorruptionError: not all of it can be seen. what `opened` raises.
    """
    with opened(path, lock_timeout) as here:
        if here.storage.damage is not None:
            raise here.storage.damage
        yield here
