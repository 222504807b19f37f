"""Printing: tables that are whole in a pipe and folded on a terminal, JSON, and nothing that could drive a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

FINE = 0
PROBLEMS = 1
USAGE = 2
REFUSED = 3


def printable(text: str) -> str:
    """`text` with everything escaped that is not a printable character: names come from users and may hold control codes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text)


def print_json(facts: Any) -> None:
    """One JSON document on stdout, ASCII only, so that any name survives any terminal."""
    print(json.dumps(facts, indent=2))


def print_line(text: str = "") -> None:
    print(printable(text))


def counted(number: int, thing: str) -> str:
    """`1 thread`, `1,200 threads`."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


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
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, numeric in columns:
        table.add_column(title, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(cell)) for cell in row))
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 1 << 16)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def _cell(cell: str | int | None) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else printable(cell)
