"""`ckpt compact`, `prune`, `rm` and `copy`: what changes a store."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ckptstore.cli.arguments import Json, LockTimeout, StorePath, Yes, duration, size
from ckptstore.cli.output import (
    FINE,
    PROBLEMS,
    counted,
    print_facts,
    print_json,
    print_line,
    print_problems,
    print_table,
    progress,
)
from ckptstore.inspect.changes import ChangeReport, PruneReport, compact_store, copy_of_thread, prune_store, remove_threads


def compact(
    store: StorePath,
    least_dead: Annotated[
        float, typer.Option(min=0, max=1, help="Leave segments alone of which a smaller share is dead, 0 to 1.")
    ] = 0.0,
    lock_timeout: LockTimeout = 30.0,
    json: Json = False,
) -> int:
    """Give the space of what was deleted and pruned back to the disk.

    Other processes may read and write meanwhile. It takes up to one segment of extra space while it runs.
    """
    with progress("compacting", json) as told:
        done = compact_store(store, least_dead=least_dead, lock_timeout=lock_timeout, progress=told)
    if json:
        print_json({**done._asdict(), "bytes_freed": done.bytes_before - done.bytes_after})
        return FINE
    print_facts(
        [
            ("before", f"{done.bytes_before:,} bytes in {counted(done.segments_before, 'segment')}"),
            ("after", f"{done.bytes_after:,} bytes in {counted(done.segments_after, 'segment')}"),
            ("dropped", counted(done.frames_dropped, "frame")),
        ]
    )
    return FINE


def prune(
    store: StorePath,
    thread: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this thread; may be given again.", show_default="all")
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", help="Keep so many checkpoints of each branch, from its end.", show_default=False)
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Remove checkpoints older than this: 90m, 12h, 30d, 8w.", show_default=False)
    ] = None,
    idle: Annotated[
        str | None, typer.Option(metavar="TIME", help="Delete threads in which nothing happened for so long.", show_default=False)
    ] = None,
    max_bytes_per_thread: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Remove a thread's oldest checkpoints until it takes so much: 512K, 1G.", show_default=False
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Prune threads to their heads, longest idle first, until all take so much.", show_default=False
        ),
    ] = None,
    pin: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Never touch this thread; may be given again.", show_default=False)
    ] = None,
    yes: Yes = False,
    lock_timeout: LockTimeout = 30.0,
    json: Json = False,
) -> int:
    """Remove checkpoints by age, number or size. Those that stay read as before. Without --yes nothing is changed.

    At least one limit is needed; each that is given removes what is beyond it. These stay, whatever the limits say: the head of each
    namespace, what waits for a human or broke off, what these need, and pinned threads. Only --idle deletes threads whole.
    The bytes stay in the log until 'ckpt compact'.
    """
    limits: dict[str, Any] = {"pinned": pin} if pin else {}
    if keep_last is not None:
        limits["keep_last"] = keep_last
    for name, time in (("older_than", older_than), ("idle", idle)):
        if time is not None:
            limits[name] = duration(f"--{name.replace('_', '-')}", time)
    for name, amount in (("max_bytes_per_thread", max_bytes_per_thread), ("max_bytes", max_bytes)):
        if amount is not None:
            limits[name] = size(f"--{name.replace('_', '-')}", amount)
    with progress("pruning", json) as told:
        report = prune_store(store, limits, thread or (), do=yes, lock_timeout=lock_timeout, progress=told)
    if json:
        print_json({**report._asdict(), "threads": [item._asdict() for item in report.threads]})
    else:
        _print_prune(report)
    return PROBLEMS if report.unmet else FINE


def _print_prune(report: PruneReport) -> None:
    if report.threads:
        print_table(
            [("thread", False), ("would go" if report.dry_run else "removed", True), ("kept", True), ("bytes", True)],
            [(item.thread, item.removed, item.kept, item.bytes) for item in report.threads],
        )
    deleted = f", {counted(report.deleted, 'thread')} whole" if report.deleted else ""
    of = f"{counted(report.removed, 'checkpoint')} of {counted(len(report.threads), 'thread')}{deleted}"
    if not report.threads:
        print_line("nothing to remove")
    elif report.dry_run:
        given_back = "" if report.bytes is None else f", and give back about {report.bytes:,} bytes"
        print_line(f"{of} would go{given_back}; nothing was changed: add --yes to do it")
    else:
        print_line(f"{of} removed")
    print_problems(report.unmet)


def rm(
    store: StorePath,
    threads: Annotated[list[str], typer.Argument(metavar="THREAD...", help="Ids of threads, literally.", show_default=False)],
    erase: Annotated[
        bool,
        typer.Option("--erase", help="Compact, too, until no file of the store holds bytes of these threads. Backups still do."),
    ] = False,
    with_copies: Annotated[
        bool, typer.Option("--with-copies", help="With --erase: delete all threads that share records with these, too.")
    ] = False,
    yes: Yes = False,
    lock_timeout: LockTimeout = 30.0,
    json: Json = False,
) -> int:
    """Delete threads with all their namespaces. Without --yes nothing is changed.

    Runs that are still going are refused their late writes for 7 days. Copies of a deleted thread keep what they share with it,
    and so --erase is refused while there are any. Without --erase the bytes stay in the log until 'ckpt compact'.
    """
    with progress("deleting", json) as told:
        report = remove_threads(
            store, threads, do=yes, erase=erase, with_copies=with_copies, lock_timeout=lock_timeout, progress=told
        )
    _print(report, json)
    return FINE


def copy(
    store: StorePath,
    source: Annotated[str, typer.Argument(metavar="SRC", help="The thread to copy, literally.", show_default=False)],
    destination: Annotated[str, typer.Argument(metavar="DST", help="The new thread's id.", show_default=False)],
    lock_timeout: LockTimeout = 30.0,
    json: Json = False,
) -> int:
    """Copy a thread by reference: same checkpoints, same ids, all namespaces; nothing of the log is doubled."""
    copied = copy_of_thread(store, source, destination, lock_timeout=lock_timeout)
    if json:
        print_json({"source": source, "destination": destination, "checkpoints": copied})
    else:
        print_line(f"{destination}: {counted(copied, 'checkpoint')}, shared with {source}")
    return FINE


def _print(report: ChangeReport, json: bool) -> None:
    if json:
        print_json({"done": report.done, "removed": report.removed, "threads": [change._asdict() for change in report.threads]})
        return
    if report.threads:
        print_table(
            [("thread", False), ("checkpoints", True), ("removed" if report.done else "would go", True)],
            [(change.thread, change.checkpoints, change.removed) for change in report.threads],
        )
    of = f"{counted(report.removed, 'checkpoint')} of {counted(len(report.threads), 'thread')}"
    if not report.threads:
        print_line("nothing to remove")
    elif report.done:
        print_line(f"{of} removed")
    else:
        print_line(f"{of} would go; nothing was changed: add --yes to do it")
