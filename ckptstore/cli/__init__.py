"""The command `ckpt`: looks into a store folder from the shell, without the application that wrote it.

Arguments and printing only; the work is in `ckptstore.inspect`. One module a command. docs/cli.md shows each with its output.
Needs the extra `cli` (typer and rich), which `ckptstore` itself never imports.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import sys


def main() -> None:
    """Entry point of the console script; exits with the code of docs/cli.md."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        print(f"ckpt: needs {error.name}: pip install 'ckptstore[cli]'", file=sys.stderr)
        sys.exit(3)
    from ckptstore.cli.app import run

    # Names come from users; a terminal that cannot show a character shows its code.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # A command makes many small objects, hardly any cycles, and ends: looking for cycles takes a quarter of the time of a large listing.
    gc.set_threshold(200_000, 20, 20)
    # Warnings of the engine, such as damage that it met when opening, in the form of all that this command says.
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("ckpt: %(message)s"))
    logging.getLogger("ckptstore").addHandler(handler)
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads the output has enough of it. The interpreter flushes once more on its way out: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


__all__ = ["main"]
