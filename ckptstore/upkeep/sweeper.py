"""Retention in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ckptstore.errors import CkptStoreError, StoreClosedError
from ckptstore.forks import own_locks
from ckptstore.lineage.listing import thread_name
from ckptstore.storage import Storage
from ckptstore.upkeep import retention
from ckptstore.upkeep.policy import RetentionPolicy

logger = logging.getLogger("ckptstore")

# A sweep looks at so many threads, and comes after so many puts.
_SWEPT = 16
_EVERY = 64


class Sweeper:
    """Applies a policy as threads grow: after every 64 puts, to at most 16 threads, in a thread that never keeps a process alive.

    Threads that were put to come first, then others in turn, so that idle ones are met in time. `max_bytes` prunes at most 16 threads a
    sweep, too.
    """

    def __init__(self, storage: Storage, policy: RetentionPolicy, pruned: Callable[[int], object] = lambda removed: None) -> None:
        """Begin with nothing to do.

        Args:
            pruned: told after each sweep how many checkpoints went.
        """
        self._storage = storage
        self._policy = policy
        self._pruned = pruned
        self._count = 0
        self._touched: dict[str, None] = {}
        self._turn = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        own_locks(self)

    def new_locks(self) -> None:
        self._lock = threading.Lock()

    def put(self, thread: str) -> None:
        """Take note of a put; costs next to nothing."""
        with self._lock:
            self._count += 1
            if len(self._touched) < _EVERY:
                self._touched[thread] = None
            if self._count % _EVERY or self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._sweep, name="ckptstore-retention", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Begin no other sweep, and wait for one that is going on."""
        with self._lock:
            self._closed = True
            running = self._thread
        if running is not None and running is not threading.current_thread():
            running.join(timeout=5)

    def _sweep(self) -> None:
        try:
            names = self._next()
            report = retention.prune(self._storage, self._policy, names, most=_SWEPT)
            for line in report.unmet:
                logger.warning("retention: %s", line)
            self._pruned(report.removed)
        except StoreClosedError:
            return
        except (CkptStoreError, OSError) as error:
            logger.warning("a sweep of retention failed: %s", error)

    def _next(self) -> list[str]:
        with self._lock:
            names = list(self._touched)[:_SWEPT]
            for name in names:
                del self._touched[name]
        with self._storage.view() as view:
            numbers = view.threads()
            for number in numbers[self._turn : self._turn + _SWEPT - len(names)]:
                names.append(thread_name(view, number))
        self._turn += _SWEPT
        if self._turn >= len(numbers):
            self._turn = 0
        return list(dict.fromkeys(names))
