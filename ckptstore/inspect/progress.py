"""How long work tells whoever started it how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called now and then with (done, of how many)."""


def silent(done: int, total: int) -> None:
    """Tells nobody."""
