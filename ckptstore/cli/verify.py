"""`ckpt verify STORE`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptstore.cli.arguments import Json, StorePath
from ckptstore.cli.output import FINE, PROBLEMS, counted, print_facts, print_json, print_line, print_problems, progress
from ckptstore.inspect.health import verify_store


def verify(
    store: StorePath,
    remarks: Annotated[bool, typer.Option("--remarks", help="Also print what is legal and worth knowing.")] = False,
    json: Json = False,
) -> int:
    """Read everything a store holds, and compare whatever two places say.

    Every frame of the log against its checksums; every live checkpoint, value and batch of writes, decoded down to the checksum of its
    bytes; the index against one built from the log. Nothing is changed, and others may have the store open and write to it.
    """
    with progress("verifying", json) as told:
        report = verify_store(store, progress=told)
    if json:
        print_json({"ok": report.ok, **report._asdict(), "problems": [problem._asdict() for problem in report.problems]})
        return FINE if report.ok else PROBLEMS
    print_facts(
        [
            ("log", f"{report.log_bytes:,} bytes, {counted(report.frames, 'frame')} in {counted(report.segments, 'segment')}"),
            ("index", report.index_state),
            ("threads", f"{report.threads:,}, with {counted(report.namespaces, 'namespace')}"),
            ("checkpoints", f"{report.checkpoints:,}, with {counted(report.values, 'value')}"),
            ("writes", f"{counted(report.batches, 'batch', 'batches')}, {report.orphans:,} on checkpoints that are not stored"),
            ("problems", f"{len(report.problems) + report.more_problems:,}" if report.problems else "none"),
        ]
    )
    for remark in report.remarks if remarks else ():
        print_line(f"remark: {remark}")
    print_problems([str(problem) for problem in report.problems])
    if report.more_problems:
        print_line(f"... and {report.more_problems:,} more problems")
    return FINE if report.ok else PROBLEMS
