"""`ckpt fuzz MODULE:MAKE_SAVER`."""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext, redirect_stdout
from typing import Annotated, Any

import typer

from ckptstore.cli.arguments import Json
from ckptstore.cli.loading import LoadError, attribute
from ckptstore.cli.output import FINE, PROBLEMS, counted, print_facts, print_json, print_line, progress
from ckptstore.errors import CkptStoreError


class ExtrasMissingError(CkptStoreError, ImportError):
    """Fuzzing needs LangGraph and hypothesis."""


def fuzz(
    make_saver: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:MAKE_SAVER",
            help="A function that returns a new, empty saver, or a context manager (sync or async) of one.",
            show_default=False,
        ),
    ],
    examples: Annotated[int, typer.Option(help="About how many random programs to run.")] = 200,
    seed: Annotated[int, typer.Option(help="Chooses the programs: the same seed, the same programs.")] = 0,
    steps: Annotated[int, typer.Option(help="The most steps of one program.")] = 50,
    json: Json = False,
) -> int:
    """Run random programs on a LangGraph saver of any kind, and compare what it answers with what a saver must answer.

    A program plays runs as LangGraph makes them: puts, writes, forks, resumed tasks, lists, deleted threads. The first one that is
    answered wrongly is made small, and printed as a Python script that fails in the same way. Methods that the saver does not implement are
    left out. docs/fuzzing.md says what is checked and what not.

    Your module is imported, and the function called once a program: each time it has to make an empty saver.
    """
    # What the user's code prints is no part of the JSON document.
    with redirect_stdout(sys.stderr) if json else nullcontext():
        report = _fuzzed(make_saver, examples, seed, steps, json)
    if json:
        print_json(_facts(report))
        return PROBLEMS if report.script else FINE
    print_facts(
        [
            ("saver", report.saver),
            ("programs", f"{report.examples:,} with {counted(report.steps, 'step')}, seed {report.seed}"),
            ("left out", ", ".join(report.missing) or "nothing"),
            ("found", report.failure.sentence if report.failure else "nothing"),
        ]
    )
    if report.script:
        print_line()
        print(report.script, end="")
    return PROBLEMS if report.script else FINE


def _fuzzed(make_saver: str, examples: int, seed: int, steps: int, json: bool) -> Any:
    named = f"MODULE:MAKE_SAVER={make_saver!r}"
    make = attribute(named, make_saver, "app.storage:make_saver")
    if not callable(make):
        raise LoadError(f"{named}: an object of type {type(make).__name__} cannot be called")
    try:
        from hypothesis.configuration import set_hypothesis_home_dir
        from langgraph.checkpoint.ckptstore.testing import Maker, fuzz_saver
    except ImportError as error:
        package = str(error.name).split(".")[0]
        raise ExtrasMissingError(f"fuzz needs {package}: pip install 'ckptstore[langgraph,testing]'") from error
    module, _, path = make_saver.partition(":")
    first, *_ = path.split(".")
    maker = Maker(f"from {module} import {first}", f"{path}()")
    # hypothesis would leave a folder of its own where the command is run.
    with tempfile.TemporaryDirectory(prefix="ckpt-fuzz-") as home, progress("fuzzing", json) as tick:
        set_hypothesis_home_dir(home)
        try:
            return fuzz_saver(make, examples=examples, seed=seed, steps=steps, maker=maker, progress=tick)
        finally:
            set_hypothesis_home_dir(None)


def _facts(report: Any) -> dict[str, Any]:
    return {
        "saver": report.saver,
        "examples": report.examples,
        "steps": report.steps,
        "seed": report.seed,
        "missing": list(report.missing),
        "found": report.failure.sentence if report.failure else None,
        "script": report.script,
    }
