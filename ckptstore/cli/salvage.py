"""`ckpt salvage STORE DEST`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptstore.cli.arguments import Json, StorePath
from ckptstore.cli.output import FINE, PROBLEMS, counted, print_facts, print_json, print_line, print_problems, progress
from ckptstore.inspect.changes import salvage_store


def salvage(
    store: StorePath,
    destination: Annotated[
        Path, typer.Argument(metavar="DEST", help="The store to make; nothing may be there.", show_default=False)
    ],
    json: Json = False,
) -> int:
    """Make a new store out of what can still be read of a damaged one.

    Every checkpoint, batch of writes and history that is whole is saved. What was lost stays an error for those who need it, and is named
    here. The damaged store is not changed; nobody else should write to it meanwhile.
    """
    with progress("salvaging", json) as told:
        report = salvage_store(store, destination, progress=told)
    losses = [*report.damage, *report.lost]
    if json:
        named = {name: [problem._asdict() for problem in getattr(report, name)] for name in ("damage", "lost")}
        print_json({**report._asdict(), **named})
        return PROBLEMS if losses else FINE
    print_facts(
        [
            ("saved", f"{counted(report.threads, 'thread')} with {counted(report.namespaces, 'namespace')}"),
            ("checkpoints", f"{report.checkpoints:,}, {report.histories:,} with what they keep of removed ancestors"),
            ("writes", counted(report.batches, "batch", "batches")),
            ("damage", f"{len(report.damage):,}" if report.damage else "none"),
            ("lost", f"{len(report.lost) + report.more:,}" if report.lost else "nothing that is known"),
        ]
    )
    print_problems([str(problem) for problem in losses])
    if report.more:
        print_line(f"... and {report.more:,} more")
    return PROBLEMS if losses else FINE
