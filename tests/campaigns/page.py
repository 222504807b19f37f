"""docs/survival.md: the tables in it, made from docs/results/survival.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.campaigns.cuts import BETWEEN
from tests.campaigns.flips import OUTCOMES, UNUSED
from tests.crash.killing import ROOT

RESULT = ROOT / "docs" / "results" / "survival.json"
PAGE = ROOT / "docs" / "survival.md"
_END = "<!-- end -->"


def result() -> dict[str, Any]:
    """What the last campaign found."""
    found: dict[str, Any] = json.loads(RESULT.read_text())
    return found


def rendered(page: str, found: Mapping[str, Any]) -> str:
    """The page with its tables made anew."""
    for name, text in (("run", _run(found)), ("points", _points(found)), ("flips", _flips(found)), ("unused", _unused())):
        before, begin, rest = page.partition(f"<!-- campaign: {name} -->\n")
        _, end, after = rest.partition(_END)
        assert end, f"the page has no place for {name!r}"
        page = f"{before}{begin}{text}\n{end}{after}"
    return page


def write(found: Mapping[str, Any]) -> None:
    """Keep what a campaign found."""
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(rendered(PAGE.read_text(), found))


def _run(found: Mapping[str, Any]) -> str:
    points, crowd = found["points"].values(), found["crowd"]
    flips = sum(sum(kinds.values()) for sample in found["flips"].values() for kinds in sample.values())
    return (
        f"The last run: seed {found['seed']}, {found['rounds']} rounds a point, Python {found['python']}, {found['system']}. "
        f"{sum(point['kills'] for point in points):,} kills of a process alone; {sum(point['crowd'] for point in points):,} in "
        f"{crowd['rounds']:,} crowds, which made {crowd['calls']:,} acknowledged calls, {crowd['reads']:,} checked reads, "
        f"{crowd['compactions']:,} compactions and {crowd['backups']:,} backups, each restored; "
        f"{sum(point['images'] for point in points) + found['between']:,} power cuts; {flips:,} flipped bits. Nothing failed."
    )


def _points(found: Mapping[str, Any]) -> str:
    lines = ["| fault point | kills, one process | kills, in a crowd | power cuts |", "|---|---:|---:|---:|"]
    lines += [
        f"| `{name}` | {counts['kills']:,} | {counts['crowd']:,} | {counts['images']:,} |"
        for name, counts in found["points"].items()
    ]
    return "\n".join([*lines, f"| {BETWEEN} | | | {found['between']:,} |"])


def _flips(found: Mapping[str, Any]) -> str:
    lines = [
        "| folder | what was hit | flips | refused at open | found by the first read | found by verify | not used | a torn tail |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for sample, kinds in found["flips"].items():
        for kind, counts in kinds.items():
            cells = " | ".join(f"{counts.get(outcome, 0):,}" for outcome in OUTCOMES)
            lines.append(f"| {sample} | {kind} | {sum(counts.values()):,} | {cells} |")
    return "\n".join(lines)


def _unused() -> str:
    return "\n".join(f"- {kind}: {why}." for kind, why in UNUSED.items())
