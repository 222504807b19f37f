"""What an open store did in this process since it was opened: counters, cheap enough to be always on.

They are plain numbers, changed where a lock is held anyway: those of commits under the commit lock, those of fsyncs by the one thread
that leads, those of reads under the lock of the value cache.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Activity:
    """Counters of one open store in one process. Times in seconds."""

    appends: int = 0
    appended_bytes: int = 0
    fsyncs: int = 0
    fsync_seconds: float = 0.0
    slowest_fsync: float = 0.0
    lock_waits: int = 0
    """Commits that found the commit lock taken."""
    lock_wait_seconds: float = 0.0
    waiting: int = 0
    """Calls waiting right now: for the commit lock, or for an fsync."""
    value_reads: int = 0
    """Values read from the log, not from the cache."""
    value_frames: int = 0
    """Frames these reads touched."""
    most_frames: int = 0
    """The most that one of them touched."""
    cache_hits: int = 0
    cache_misses: int = 0
    refused_late: int = 0
    conflicts: int = 0
    cut_tail_bytes: int = 0
    last_compaction_ms: int | None = None
    """Unix time in ms of the last compaction by this process."""
