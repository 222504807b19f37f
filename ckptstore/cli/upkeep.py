"""`ckpt compact`, `prune`, `rm` and `copy`: what changes a store."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptstore.cli.arguments import Json, LockTimeout, StorePath, Yes
from ckptstore.cli.output import FINE, counted, print_facts, print_json, print_line, print_table, progress
from ckptstore.inspect.changes import ChangeReport, compact_store, copy_of_thread, prune_to_heads, remove_threads


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
    with progress("compacting", json):
        done = compact_store(store, least_dead=least_dead, lock_timeout=lock_timeout)
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
    keep_last: Annotated[int, typer.Option(min=1, max=1, help="Checkpoints to keep of each namespace; so far 1, the head.")] = 1,
    yes: Yes = False,
    lock_timeout: LockTimeout = 30.0,
    json: Json = False,
) -> int:
    """Remove all checkpoints but the heads. What the heads need of them is kept, so they read as before.

    Other branches go, too: after a fork the head is on the newest one. Without --yes nothing is changed.
    The bytes stay in the log until 'ckpt compact'.
    """
    with progress("pruning", json) as told:
        report = prune_to_heads(store, thread or (), do=yes, lock_timeout=lock_timeout, progress=told)
    _print(report, "checkpoint", json)
    return FINE


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
    _print(report, "checkpoint", json)
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


def _print(report: ChangeReport, thing: str, json: bool) -> None:
    if json:
        print_json({"done": report.done, "removed": report.removed, "threads": [change._asdict() for change in report.threads]})
        return
    if report.threads:
        print_table(
            [("thread", False), ("checkpoints", True), ("removed" if report.done else "would go", True)],
            [(change.thread, change.checkpoints, change.removed) for change in report.threads],
        )
    of = f"{counted(report.removed, thing)} of {counted(len(report.threads), 'thread')}"
    if not report.threads:
        print_line("nothing to remove")
    elif report.done:
        print_line(f"{of} removed")
    else:
        print_line(f"{of} would go; nothing was changed: add --yes to do it")
