"""The threads of a store, from the index: the cost does not depend on the size of what they hold."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from ckptstore.errors import InvalidArgumentError
from ckptstore.inspect.looking import looking
from ckptstore.inspect.progress import Progress
from ckptstore.model import ThreadInfo

# Threads between two words to whoever wants to know how far it is.
_TOLD_EVERY = 1024

Sort = Literal["age", "name", "checkpoints"]


class ThreadsReport(NamedTuple):
    """A listing, and how much was left off."""

    total: int
    """Number of threads in the store, before `limit`."""
    threads: list[ThreadInfo]
    problems: list[str]


def threads_report(
    path: str | os.PathLike[str],
    *,
    sort: Sort = "age",
    limit: int | None = None,
    lock_timeout: float = 30.0,
    progress: Progress | None = None,
) -> ThreadsReport:
    """List the threads that hold a checkpoint.

    Args:
        sort: `age` oldest first, `name` by id, `checkpoints` most first.
        limit: at most so many, at least 0; None for all.
        lock_timeout: seconds, see `opened`.
        progress: told how many threads of at most how many were found.

    Raises:
        InvalidArgumentError: `limit` is negative.
        what `opened` raises.
    """
    if limit is not None and limit < 0:
        raise InvalidArgumentError(f"limit={limit}: 0 or more is needed")
    with looking(path, lock_timeout) as (here, problems):
        with here.storage.view() as view:
            most = view.next_numbers()[0] - 1
        found = []
        for info in here.store.threads():
            found.append(info)
            if progress is not None and not len(found) % _TOLD_EVERY:
                progress(len(found), most)
    if sort == "name":
        found.sort(key=lambda info: info.thread)
    elif sort == "checkpoints":
        found.sort(key=lambda info: -info.checkpoints)
    return ThreadsReport(len(found), found[:limit], problems)
