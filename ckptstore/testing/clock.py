"""A wall clock that jumps, as it does when somebody sets it, when it is stepped by the network, or when a machine comes back from a pause.

Only `time.time` and `time.time_ns` jump: monotonic clocks keep their word, and so they do on real machines.
"""

from __future__ import annotations

import random
import time
from types import TracebackType

_YEARS = 30 * 365 * 86400.0


class JumpingClock:
    """While this is entered, the wall clock of this process may jump each time it is read."""

    def __init__(self, rng: random.Random, chance: float = 0.3) -> None:
        """Begin at the present.

        Args:
            chance: of a jump at a reading, by up to 30 years to either side of the present.
        """
        self.jumps = 0
        self.ahead = 0.0
        """Seconds that the clock is ahead now; it may be set."""
        self._rng = rng
        self._chance = chance

    def __enter__(self) -> JumpingClock:
        self._time, self._time_ns = time.time, time.time_ns
        time.time, time.time_ns = self.time, self.time_ns
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        time.time, time.time_ns = self._time, self._time_ns

    def time(self) -> float:
        self._jump()
        return self._time() + self.ahead

    def time_ns(self) -> int:
        self._jump()
        return self._time_ns() + int(self.ahead * 1e9)

    def _jump(self) -> None:
        if self._rng.random() < self._chance:
            self.ahead = self._rng.uniform(-_YEARS, _YEARS)
            self.jumps += 1
