"""Arguments and options that several commands have."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from ckptstore.errors import InvalidArgumentError
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


_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def duration(option: str, text: str) -> timedelta:
    """A time as `30d`: a whole number of seconds, minutes, hours, days or weeks.

    Raises:
        InvalidArgumentError: it does not read as one.

    >>> duration("--idle", "36h")
    datetime.timedelta(days=1, seconds=43200)
    """
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if found is None:
        raise InvalidArgumentError(f"{option}={text!r}: a number with s, m, h, d or w is needed, such as 30d")
    return timedelta(seconds=int(found[1]) * _SECONDS[found[2]])


def size(option: str, text: str) -> int:
    """A number of bytes as `1G`: K, M, G and T are powers of 1024.

    Raises:
        InvalidArgumentError: it does not read as one.

    >>> size("--max-bytes", "64K")
    65536
    """
    found = re.fullmatch(r"(\d{1,15})([KMGT]?)", text)
    if found is None:
        raise InvalidArgumentError(f"{option}={text!r}: a number of bytes is needed, with K, M, G or T, such as 1G")
    return int(found[1]) * _BYTES[found[2]]
