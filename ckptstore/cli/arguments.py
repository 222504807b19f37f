"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptstore.inspect.refs import Reference, parse_reference

StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="The store folder.", show_default=False)]
LockTimeout = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for a lock of the store.", show_default=True)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without, say what would go and change nothing.")]

Ref = Annotated[
    str | None,
    typer.Argument(
        metavar="REF",
        help="THREAD[/NAMESPACE][@WHERE]. WHERE: HEAD, a checkpoint id or its beginning, and ~N for the Nth parent. The head without it.",
        show_default=False,
    ),
]
ThreadOption = Annotated[
    str | None,
    typer.Option("--thread", metavar="ID", help="The thread, literally. REF is then left out, or @WHERE.", show_default=False),
]
NsOption = Annotated[str | None, typer.Option("--ns", metavar="NAMESPACE", help="The namespace, literally.", show_default=False)]
IdOption = Annotated[str | None, typer.Option("--id", metavar="ID", help="The checkpoint, by its whole id.", show_default=False)]


def reference(ref: str | None, thread: str | None, ns: str | None, id: str | None) -> Reference:
    """The reference that these arguments make."""
    return parse_reference(ref, thread=thread, ns=ns, id=id)
