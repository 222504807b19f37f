"""The commands put together, and what every error becomes: one line on stderr and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from ckptstore.cli import backup, diff, doctor, fuzz, inspect, log, salvage, show, threads, upkeep, verify, writes
from ckptstore.cli.output import FINE, PROBLEMS, REFUSED, USAGE, printable
from ckptstore.errors import CheckpointLineageError, CkptStoreError, CorruptionError, InvalidArgumentError, StaleIndexError

STOPPED = 130
"""As shells have it for a command that Ctrl-C ended."""

app = typer.Typer(
    help="Look into a ckptstore folder and keep it small, without the application that wrote it.\n\n"
    "STORE is the folder. Values are shown as trees; no object that the store names is ever built. "
    "Commands that remove something say what would go unless --yes is given.\n\n"
    "A checkpoint is named THREAD@WHERE: user-42, user-42@1f0a (the beginning of an id), user-42@HEAD~3 (parents back), "
    "user-42/subgraph:ns@HEAD. Ids with '@' or '/' in them: --thread, --ns, --id.\n\n"
    "Exit codes: 0 fine; 1 problems found, such as damage; 2 usage; 3 refused: missing, not a store, a newer format, locked.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("inspect")(inspect.inspect)
app.command("threads")(threads.threads)
app.command("log")(log.log)
app.command("show")(show.show)
app.command("diff")(diff.diff)
app.command("writes")(writes.writes)
app.command("compact")(upkeep.compact)
app.command("prune")(upkeep.prune)
app.command("rm")(upkeep.rm)
app.command("copy")(upkeep.copy)
app.command("verify")(verify.verify)
app.command("salvage")(salvage.salvage)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("doctor")(doctor.doctor)
app.command("fuzz")(fuzz.fuzz)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    try:
        code = app(list(arguments), prog_name="ckpt", standalone_mode=False)
    except InvalidArgumentError as error:
        return _failed(error, USAGE)
    except (CorruptionError, StaleIndexError, CheckpointLineageError) as error:
        return _failed(error, PROBLEMS)
    except BrokenPipeError:
        raise  # no error of the command: see ckptstore.cli.main
    except (CkptStoreError, NotImplementedError, OSError) as error:
        return _failed(error, REFUSED)
    except (KeyboardInterrupt, typer.Abort):  # older versions of typer raise, newer ones return the code
        return _failed("stopped", STOPPED)
    except Exception as error:
        # Usage errors of typer, of its own click or of the one it used to depend on: told by what they carry.
        if hasattr(error, "format_message"):
            return _failed(f"{error.format_message().rstrip('.')}. Try 'ckpt --help'.", USAGE)
        return _failed(f"internal error, please report it: {type(error).__name__}: {error}", REFUSED)
    if code == STOPPED:
        return _failed("stopped", STOPPED)
    return code if isinstance(code, int) else FINE


def _failed(why: object, code: int) -> int:
    print(f"ckpt: {printable(' '.join(str(why).split()))}", file=sys.stderr)
    return code
