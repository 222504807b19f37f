"""Retention: what a policy says, and what is said about applying one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ckptstore.errors import InvalidArgumentError


class RetentionPolicy(BaseModel):
    """What to keep. Every limit is optional, and each that is given removes what is beyond it.

    Times are compared with the clock of whoever wrote a checkpoint: `ts` of LangGraph's checkpoints, `created_ms` of native ones. One
    without a time is never too old. Sizes are those of the log, before compression of what is left by a compaction.

    Raises:
        InvalidArgumentError: names the limit, its value and the range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keep_last: int | None = Field(default=None, ge=1, strict=True)
    """Checkpoints to keep of the lineage of each leaf, from the leaf backwards, at least 1."""
    older_than: timedelta | None = Field(default=None, gt=timedelta(0))
    """Remove checkpoints older than this; a timedelta, or seconds."""
    idle: timedelta | None = Field(default=None, gt=timedelta(0))
    """Delete whole threads whose newest checkpoint is older than this, unless something in them waits."""
    max_bytes_per_thread: int | None = Field(default=None, ge=0, strict=True)
    """Remove the oldest checkpoints of a thread until its records take at most so many bytes."""
    max_bytes: int | None = Field(default=None, ge=0, strict=True)
    """Prune threads to their heads, those longest idle first, until the live bytes of the log are at most so many."""
    pinned: frozenset[str] = frozenset()
    """Threads never to be touched."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"])) or "policy"
            raise InvalidArgumentError(f"{name}={first['input']!r}: {first['msg']}") from None


class ThreadPrune(NamedTuple):
    """What went of one thread."""

    thread: str
    removed: int
    """Checkpoints."""
    kept: int
    deleted: bool
    """The thread as a whole: it was idle."""
    bytes: int | None
    """What compaction is going to give back, in bytes of the log; None where it was not measured."""


class PruneReport(NamedTuple):
    """What a prune did, or would do."""

    threads: list[ThreadPrune]
    """Threads that lose something."""
    removed: int
    """Checkpoints, those of deleted threads included."""
    deleted: int
    """Threads."""
    bytes: int | None
    """What compaction is going to give back, in bytes of the log; None where it was not measured."""
    unmet: list[str]
    """Limits that could not be met, and threads that could not be read; one line each."""
    dry_run: bool
