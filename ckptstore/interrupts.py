"""Ctrl-C and the commit path: a signal handler that raises may do so between any two instructions of the main thread.

In the middle of a commit that would leave a lock taken, or cut a frame that was just published. So the main thread holds such handlers
back for the time of a commit, which is short, and runs them behind it. Other threads never run Python signal handlers.
"""

from __future__ import annotations

import _signal  # the functions without the enums that `signal` wraps around them: those cost more than all of the rest
import signal
import threading
from types import FrameType
from typing import Any

_HELD_BACK = (int(signal.SIGINT), int(signal.SIGTERM))


class HoldBack:
    """`with` Python handlers of SIGINT and SIGTERM held back."""

    __slots__ = ("_handlers", "_noted")

    def __enter__(self) -> None:
        self._noted: list[tuple[int, FrameType | None]] = []
        self._handlers: list[tuple[int, Any]] = []
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _HELD_BACK:
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers.append((number, handler))
                _signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append((number, frame))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        raised: BaseException | None = None
        for number, handler in self._handlers:
            try:
                _signal.signal(number, handler)
            except BaseException as caught:  # by a handler that is back already: the others have to come back, too
                raised = caught
        for noted, frame in self._noted:
            for number, handler in self._handlers:
                if number == noted:
                    handler(noted, frame)
        if raised is not None:
            raise raised
