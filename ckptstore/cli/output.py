"""Printing: tables, JSON, progress, and nothing that could drive a terminal."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ckptstore.inspect.progress import Progress

FINE = 0
PROBLEMS = 1
USAGE = 2
REFUSED = 3

_PATIENCE = 1.0
"""Seconds before a progress bar shows."""


def printable(text: str) -> str:
    """`text` with everything escaped that is not a printable character: names come from users and may hold control codes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text)


def print_json(facts: Any) -> None:
    """One JSON document on stdout, ASCII only, so that any name survives any terminal."""
    print(json.dumps(facts, indent=2))


def print_line(text: str = "") -> None:
    print(printable(text))


def counted(number: int, thing: str, things: str | None = None) -> str:
    """`1 thread`, `1,200 threads`; the plural where it takes more than an s."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {things or thing + 's'}"


def print_problems(problems: Sequence[str]) -> None:
    """Print what could not be read, after what could."""
    for problem in problems:
        print_line(f"problem: {' '.join(problem.split())}")


@contextmanager
def progress(what: str, json: bool) -> Iterator[Progress | None]:
    """A bar on stderr for work that takes longer than a second; nothing with `--json` or without a terminal.

    Yields:
        What to call with (done, of how many), or None where nothing is shown. Until the first call the bar has no end.
    """
    if json or not sys.stderr.isatty():
        yield None
        return
    # Imported when it is needed: a tenth of a short command's time.
    from rich.console import Console
    from rich.progress import Progress as Bar

    bar = Bar(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    timer = threading.Timer(_PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and what they are, aligned."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print_line(f"{name:<{width}}  {value}")


def print_table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str | int | None]]) -> None:
    """Print aligned columns.

    Args:
        columns: (title, whether it is a number).
        rows: cells; numbers are grouped by thousands, None is shown as a dash.
    """
    # Not rich's table: laying out 100,000 rows takes it ten seconds.
    rows = list(rows)
    padded = []
    for at, (title, numeric) in enumerate(columns):
        cells = [title, *[_cell(row[at]) for row in rows]]
        widths = [len(cell) if cell.isascii() else _cells_of_terminal(cell) for cell in cells]
        width = max(widths)
        if numeric:
            padded.append([" " * (width - own) + cell for cell, own in zip(cells, widths, strict=True)])
        else:
            padded.append([cell + " " * (width - own) for cell, own in zip(cells, widths, strict=True)])
    print("\n".join(["  ".join(row).rstrip() for row in zip(*padded, strict=True)]))


def _cells_of_terminal(text: str) -> int:
    """How wide a terminal shows it: some characters take two cells, some none."""
    from rich.cells import cell_len

    return cell_len(text)


def _cell(cell: str | int | None) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else printable(cell)
