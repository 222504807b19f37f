"""A gate that counts who is inside, so that closing and resizing wait for them.

Visitors are held weakly: one that was interrupted between entering and leaving vanishes with its object, and nobody waits for it for
ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

# Visitors that vanished do not say so: look again after this time.
_LOOK_AGAIN = 0.05


class Gate:
    """Visitors enter and leave; somebody may ask to be alone."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._inside: WeakSet[object] = WeakSet()
        self._shut = False

    def enter(self, visitor: object) -> None:
        with self._condition:
            while self._shut:
                self._condition.wait()
            self._inside.add(visitor)

    def leave(self, visitor: object) -> None:
        with self._condition:
            self._inside.discard(visitor)
            if self._shut:
                self._condition.notify_all()

    @contextmanager
    def alone(self, timeout: float | None = None) -> Iterator[bool]:
        """Shut the gate and wait until nobody is inside.

        Args:
            timeout: seconds to wait at most; for ever when None.

        Returns:
            Whether nobody is inside.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while self._shut:
                self._condition.wait()
            self._shut = True
        try:
            with self._condition:
                # Whatever interrupts this wait, Ctrl-C above all: the gate must not stay shut behind it.
                while self._inside and (deadline is None or time.monotonic() < deadline):
                    self._condition.wait(_LOOK_AGAIN)
                empty = not self._inside
            yield empty
        finally:
            with self._condition:
                self._shut = False
                self._condition.notify_all()
