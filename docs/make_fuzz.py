"""Fills in the table of docs/fuzzing.md from the programs in docs/examples/fuzz.

Each program's docstring says what it shows, in which package, and against which rule of the page.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "fuzzing.md"
PROGRAMS = DOCS / "examples" / "fuzz"
OFFICIAL = ("langgraph-checkpoint", "langgraph-checkpoint-sqlite")
BEGIN, END = "<!-- docs/make_fuzz.py writes this table -->\n", "<!-- end -->"


class Finding(NamedTuple):
    program: Path
    saver: str
    what: str
    package: str
    version: str
    rule: str
    fails: str
    """The error that the program ends with."""


def finding(program: Path) -> Finding:
    """What the docstring of a program says."""
    title, _, *lines = (ast.get_docstring(ast.parse(program.read_text())) or "").splitlines()
    saver, _, what = title.partition(": ")
    facts = dict(line.split(": ", 1) for line in lines)
    package, version = facts["package"].split()
    return Finding(program, saver, what, package, version, facts["rule"], facts["fails"])


def findings() -> list[Finding]:
    """All of them, those of LangGraph's own packages first."""
    found = [finding(program) for program in sorted(PROGRAMS.glob("*.py"))]
    return sorted(found, key=lambda item: (item.package not in OFFICIAL, item.package, item.saver))


def table() -> str:
    """The findings, by saver."""
    rows = [
        f"| `{item.saver}` {item.version} | {item.what} | {item.rule} | [{item.program.stem}]({item.program.relative_to(DOCS)}) |\n"
        for item in findings()
    ]
    return "| saver | what is wrong | rule | program |\n|---|---|---|---|\n" + "".join(rows)


def filled(page: str) -> str:
    """The page with the table in it."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
