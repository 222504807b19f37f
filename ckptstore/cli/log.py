"""`ckpt log STORE REF`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptstore.cli.arguments import IdOption, Json, LockTimeout, NsOption, Ref, StorePath, ThreadOption, reference
from ckptstore.cli.output import FINE, PROBLEMS, counted, print_json, print_line, print_problems, progress
from ckptstore.inspect.tree import LogEntry, LogReport, log_report


def log(
    store: StorePath,
    ref: Ref = None,
    leaves: Annotated[bool, typer.Option("--leaves", help="Only the ends of branches.")] = False,
    limit: Annotated[int | None, typer.Option(min=0, help="Print at most so many.", show_default="all")] = None,
    thread: ThreadOption = None,
    ns: NsOption = None,
    id: IdOption = None,
    lock_timeout: LockTimeout = 30.0,
    json: Json = False,
) -> int:
    """The checkpoints of a thread as a tree, newest first.

    With @WHERE in the reference, that checkpoint and its ancestors only.
    Each line: id, step, what made it, time, and the head, leaves and forks.
    """
    with progress("reading checkpoints", json) as told:
        report = log_report(
            store, reference(ref, thread, ns, id), leaves=leaves, limit=limit, lock_timeout=lock_timeout, progress=told
        )
    if json:
        print_json({**report._asdict(), "checkpoints": [_facts(entry) for entry in report.checkpoints]})
    else:
        _print(report, drawn=not leaves)
    return PROBLEMS if report.problems else FINE


def _facts(entry: LogEntry) -> dict[str, object]:
    facts = entry._asdict()
    del facts["number"], facts["parent_number"]
    return facts


def _print(report: LogReport, drawn: bool) -> None:
    columns: list[int] = []
    width = max((len(entry.id or "") for entry in report.checkpoints), default=0)
    for entry in report.checkpoints:
        lines, columns = drawing(columns, entry) if drawn else (["*"], [])
        for line in lines[:-1]:
            print_line(line)
        print_line(f"{lines[-1]} {_line(entry, width)}".rstrip())
    left = report.total - len(report.checkpoints)
    if left:
        print_line(f"... and {left:,} more")
    if report.leaves > 1 and drawn:
        print_line(f"{counted(report.leaves, 'leaf', 'leaves')}: more than one branch")
    print_problems(report.problems)


def _line(entry: LogEntry, width: int) -> str:
    id = entry.id if entry.id is not None else "(damaged)"
    step = "" if entry.step is None else f"step {entry.step}"
    time = "" if entry.time is None else entry.time[:19].replace("T", " ")
    notes = [
        *(["HEAD"] if entry.head else []),
        *(["leaf"] if entry.leaf and not entry.head else []),
        *([f"fork of {entry.children}"] if entry.children > 1 else []),
        *(["older ones pruned"] if entry.parent_is == "pruned" else []),
        *([f"parent {entry.parent} is not stored"] if entry.parent_is == "missing" else []),
    ]
    return f"{id:<{width}}  {step:<9} {entry.source or '':<6} {time:<19}  {', '.join(notes)}"


GONE = 0
"""A column that nobody waits in."""


def drawing(columns: list[int], entry: LogEntry) -> tuple[list[str], list[int]]:
    """The lines that lead to a checkpoint, the last one with its star, and the columns below it.

    Args:
        columns: for each column, the number of the checkpoint that it leads to, or `GONE`.
    """
    columns = list(columns)
    mine = [at for at, wanted in enumerate(columns) if wanted == entry.number]
    if not mine:
        mine = [columns.index(GONE) if GONE in columns else len(columns)]
        columns[mine[0] : mine[0] + 1] = [entry.number]
    first, last = mine[0], mine[-1]
    lines = []
    if len(mine) > 1:
        cells = []
        for at in range(len(columns)):
            cell = "'" if at in mine[1:] else "|" if columns[at] != GONE else "-" if first < at < last else " "
            cells.append(cell + ("-" if first <= at < last else " "))
        lines.append("".join(cells).rstrip())
        for at in mine[1:]:
            columns[at] = GONE
    lines.append(" ".join("*" if at == first else "|" if wanted != GONE else " " for at, wanted in enumerate(columns)).rstrip())
    columns[first] = entry.parent_number or GONE
    while columns and columns[-1] == GONE:
        columns.pop()
    return lines, columns
