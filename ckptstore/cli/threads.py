"""`ckpt threads PATH`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptstore.cli.output import FINE, PROBLEMS, print_json, print_line, print_problems, print_table, progress
from ckptstore.inspect.threads import Sort, threads_report


def threads(
    path: Annotated[Path, typer.Argument(help="The store folder.", show_default=False)],
    sort: Annotated[Sort, typer.Option(help="age: oldest first; name: by thread id; checkpoints: most first.")] = "age",
    limit: Annotated[int | None, typer.Option(min=0, help="Print at most so many.", show_default="all")] = None,
    lock_timeout: Annotated[float, typer.Option(help="Seconds to wait while another process recovers the store.")] = 30.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> int:
    """The threads of a store, from the index alone."""
    with progress("listing", json) as told:
        report = threads_report(path, sort=sort, limit=limit, lock_timeout=lock_timeout, progress=told)
    if json:
        print_json({"total": report.total, "threads": [info._asdict() for info in report.threads], "problems": report.problems})
        return PROBLEMS if report.problems else FINE
    print_table(
        [("thread", False), ("checkpoints", True), ("namespaces", True), ("head", False)],
        [(info.thread, info.checkpoints, info.namespaces, info.head) for info in report.threads],
    )
    left = report.total - len(report.threads)
    if left:
        print_line(f"... and {left:,} more")
    print_problems(report.problems)
    return PROBLEMS if report.problems else FINE
