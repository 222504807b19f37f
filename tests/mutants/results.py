"""What runs found: a file of facts, and the table of docs/mutants.md made from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.mutants.mutant import Mutant
from tests.mutants.promises import ROOT, promises
from tests.mutants.table import MUTANTS

RESULTS = ROOT / "docs" / "results" / "mutants.json"
TABLE = ROOT / "docs" / "mutants.md"
BEGIN, END = "<!-- make mutants writes this table -->\n", "<!-- end -->"


class Result(NamedTuple):
    """What became of one mutant."""

    name: str
    edit: str
    """`Mutant.digest` of what was run."""
    verdict: str
    """`killed`, `survived`, `timed out` or `broken`: the tests could not be run."""
    by: str
    """The test that failed first."""


def read() -> list[Result]:
    """The results that are kept."""
    return [Result(**item) for item in json.loads(RESULTS.read_text())["mutants"]] if RESULTS.exists() else []


def write(found: Sequence[Result]) -> None:
    """Keep results, of some mutants or of all, and make the table anew."""
    known = {result.name: result for result in (*read(), *found)}
    kept = [known[mutant.name] for mutants in MUTANTS.values() for mutant in mutants if mutant.name in known]
    RESULTS.write_text(json.dumps({"mutants": [result._asdict() for result in kept]}, indent=1) + "\n")
    before, _, rest = TABLE.read_text().partition(BEGIN)
    TABLE.write_text(before + BEGIN + table(kept) + END + rest.partition(END)[2])


def table(results: Sequence[Result]) -> str:
    """The table: a section of promises at a time, in the order of the page."""
    known = {result.name: result for result in results}
    killed = sum(result.verdict == "killed" for result in results)
    lines = [f"{len(results)} mutants, {killed} killed.", ""]
    for section in dict.fromkeys(promise.section for promise in promises()):
        lines += [f"### {section}", "", "| broken on purpose | in | verdict |", "|---|---|---|"]
        lines += [_row(mutant, known[mutant.name]) for mutant in _of(section) if mutant.name in known]
        lines.append("")
    return "\n".join(lines)


def _of(section: str) -> Sequence[Mutant]:
    by_promise: Mapping[str, Sequence[Mutant]] = MUTANTS
    inside = [" ".join(promise.text.split()) for promise in promises() if promise.section == section]
    return [mutant for text in inside for words, found in by_promise.items() if text.startswith(words) for mutant in found]


def _row(mutant: Mutant, result: Result) -> str:
    by = f" by `{result.by.partition('::')[2].partition('[')[0]}`" if result.by else ""
    return f"| {mutant.what} | `{mutant.file.removeprefix('bindings/').removeprefix('ckptstore/')}` | {result.verdict}{by} |"
