"""The commands put together, and what every error becomes: one line on stderr and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from ckptstore.cli import inspect, threads
from ckptstore.cli.output import FINE, PROBLEMS, REFUSED, USAGE, printable
from ckptstore.errors import CkptStoreError, CorruptionError, InvalidArgumentError, StaleIndexError

app = typer.Typer(
    add_completion=False, help="Look into a ckptstore folder. Exit codes: 0 fine, 1 problems found, 2 usage, 3 refused."
)
app.command("inspect")(inspect.inspect)
app.command("threads")(threads.threads)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    try:
        code = app(list(arguments), prog_name="ckpt", standalone_mode=False)
    except InvalidArgumentError as error:
        return _failed(error, USAGE)
    except (CorruptionError, StaleIndexError) as error:
        return _failed(error, PROBLEMS)
    except (CkptStoreError, NotImplementedError, OSError) as error:
        return _failed(error, REFUSED)
    except Exception as error:
        # Usage errors of typer, of its own click or of the one it used to depend on: told by what they carry.
        if hasattr(error, "format_message"):
            return _failed(f"{error.format_message().rstrip('.')}. Try 'ckpt --help'.", USAGE)
        return _failed(f"internal error, please report it: {type(error).__name__}: {error}", REFUSED)
    return code if isinstance(code, int) else FINE


def _failed(why: object, code: int) -> int:
    print(f"ckpt: {printable(' '.join(str(why).split()))}", file=sys.stderr)
    return code
