"""Whether what a reader saw beside running writers is explained by states that a writer's thread went through, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tests.crash.programs import Seen

Lane = Sequence[Seen]
"""The checkpoints of a thread, oldest first; their ids grow."""


def head_is_explained(head: Seen | None, states: Sequence[Lane]) -> bool:
    """A head is the newest checkpoint of one of these states, whole."""
    return any((lane[-1] if lane else None) == head for lane in states)


def listing_is_explained(items: Sequence[Seen], states: Sequence[Lane]) -> bool:
    """A listing goes from the newest down, and each step is what some state says, none older than the one of the step before.

    A step looks for the next id below the last, and then reads it; it is left out if it was removed in between.
    """

    @cache
    def explained(at: int, above: str | None, count: int) -> bool:
        for chosen in range(at, len(states)):
            below = [seen.id for seen in states[chosen] if above is None or seen.id < above]
            if not below:
                if count == len(items):
                    return True
                continue
            for read in range(chosen, len(states)):
                now = next((seen for seen in states[read] if seen.id == below[-1]), None)
                if now is None and explained(read, below[-1], count):
                    return True
                if now is not None and count < len(items) and now == items[count] and explained(read, below[-1], count + 1):
                    return True
        return False

    return explained(0, None, 0)
