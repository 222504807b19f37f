"""How long work tells whoever started it how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called now and then, in the thread that works, with (done, of how many). Work of several parts begins again for each. What it raises
ends the work."""
