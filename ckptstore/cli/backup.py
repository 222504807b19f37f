"""`ckpt backup STORE DEST` and `ckpt restore SRC STORE`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ckptstore.cli.arguments import Json, StorePath
from ckptstore.cli.output import FINE, counted, print_facts, print_json, progress
from ckptstore.inspect.changes import backup_store, restore_store


def backup(
    store: StorePath,
    destination: Annotated[
        Path,
        typer.Argument(metavar="DEST", help="A folder that is empty or missing, or a backup of this store.", show_default=False),
    ],
    json: Json = False,
) -> int:
    """Copy a store to a folder while it is in use; again, only what is new.

    A kill or a power cut leaves the backup before, or the new one. The folder is no store: 'ckpt restore' makes one of it.
    """
    with progress("copying", json) as told:
        done = backup_store(store, destination, progress=told)
    if json:
        print_json(done._asdict())
    else:
        print_facts(
            [
                ("backup", f"{done.bytes:,} bytes in {counted(done.segments, 'segment')}, up to LSN {done.last_lsn:,}"),
                ("copied", f"{done.copied_bytes:,} bytes of {counted(done.copied_segments, 'segment')}"),
                ("taken", _time(done.taken_ms)),
            ]
        )
    return FINE


def restore(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A backup.", show_default=False)],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store to make; nothing may be there.", show_default=False)],
    json: Json = False,
) -> int:
    """Make a store out of a backup, on a new timeline.

    Everything is checked on the way; nothing stands at STORE before all of it is there. The store that was backed up and the restored
    one go separate ways from here: neither takes segments of the other.
    """
    with progress("restoring", json) as told:
        done = restore_store(source, store, progress=told)
    if json:
        print_json(done._asdict())
    else:
        print_facts(
            [
                ("restored", f"{done.bytes:,} bytes in {counted(done.segments, 'segment')}, up to LSN {done.last_lsn:,}"),
                ("taken", _time(done.taken_ms)),
                ("timeline", done.timeline),
            ]
        )
    return FINE


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
