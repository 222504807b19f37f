"""The named fault points of the source, and the row of the table that a point counts in."""

from __future__ import annotations

import re
from pathlib import Path

import ckptstore

FILES = ("segment", "hint", "torn", "STORE", "POISON", "CLEAN", "KIND", "BACKUP")
"""What is written as a whole file: each passes two points, under its own name."""


def rows() -> list[str]:
    """One for each point of the source, in the order of the alphabet."""
    named = {name for name in in_source() if "{" not in name}
    return sorted(named | {f"{step}:{file}" for step in ("written", "renamed") for file in FILES})


def in_source() -> set[str]:
    """Points as they stand in the source."""
    return {name for text in _sources() for name in re.findall(r"\.point\(f?\"([^\"]+)\"\)", text)}


def whole_files_in_source() -> int:
    """How many places write a whole file."""
    return sum(len(re.findall(r"\.write_file\(", text)) for text in _sources())


def _sources() -> list[str]:
    return [path.read_text() for path in (Path(ckptstore.__file__).parent).rglob("*.py") if path.name != "crashfs.py"]


def row(point: str) -> str:
    """The row of a point that was passed: those of whole files go by the kind of file."""
    step, _, name = point.partition(":")
    if step not in ("written", "renamed"):
        return point
    name = name.removesuffix(".tmp")
    if name.endswith(".seg"):
        return f"{step}:segment"
    if name.endswith(".hint"):
        return f"{step}:hint"
    return f"{step}:{'torn' if name[0].isdigit() else name}"


def pattern(of_row: str) -> str:
    """A shell pattern of the points of a row."""
    step, _, file = of_row.partition(":")
    if step not in ("written", "renamed"):
        return of_row
    name = {"segment": "*.seg", "hint": "*.hint", "torn": "0*-*[0-9]"}.get(file, file)
    return f"{step}:{name}" + (".tmp" if step == "written" else "")
