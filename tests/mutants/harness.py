"""A copy of the package and its tests in a folder of its own, and runs of tests in it.

The copy has to win over the editable install, in the tests and in every process that they start. `PYTHONPATH` puts it first, and a
`sitecustomize` in it takes the original out of the path of each interpreter: what is not in the copy cannot be imported at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutants.plugin import REPORT, TESTS
from tests.mutants.promises import ROOT

COPIED = ("ckptstore", "bindings", "tests", "docs", "README.md", "pyproject.toml")
LONGEST = 300
"""Seconds that a run of one mutant may take; all tests together may take three times as long."""
_SITE = "import sys\nsys.path[:] = [path for path in sys.path if path not in {original!r}]\n"
_WHERE = "import ckptstore, langgraph.checkpoint.ckptstore as binding; print(ckptstore.__file__, binding.__file__, sep='\\n')"


class Ran(NamedTuple):
    """What became of a run of tests."""

    passed: Sequence[str]
    failed: Sequence[str]
    skipped: Sequence[str]
    unknown: Sequence[str]
    """Tests that were asked for and are not there."""
    timed_out: bool
    seconds: float
    output: str


def copy_tree(source: Path, target: Path) -> None:
    """Copy what tests need, compiled files included, which keep their times and so stay valid."""
    target.mkdir()
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        else:
            shutil.copy2(source / name, target / name)
    original = [str(ROOT), str(ROOT / "bindings")]
    (target / "sitecustomize.py").write_text(_SITE.format(original=original))


def check_imports(tree: Path) -> None:
    """Make sure that a process in a tree imports the package and the binding of that tree.

    Raises:
        RuntimeError: it does not, so that a run there would say nothing.
    """
    ran = subprocess.run([sys.executable, "-c", _WHERE], cwd=tree, env=_environment(tree), capture_output=True, text=True)
    found = [Path(line) for line in ran.stdout.splitlines()]
    if len(found) != 2 or not all(path.is_relative_to(tree) for path in found):
        raise RuntimeError(f"{tree}: another copy of the package is imported: {ran.stdout}{ran.stderr}")


def run_tests(tree: Path, selection: Sequence[dict[str, Any]], *, first_failure: bool, longest: float = LONGEST) -> Ran:
    """Run tests in a tree; what they started and left running is ended.

    Args:
        selection: as `Mutant.selection` gives it.
        first_failure: stop at the first test that fails.
        longest: seconds after which the run is ended.
    """
    report = tree / "report.json"
    files = dict.fromkeys(file for test in selection for file in test["files"])
    command = [sys.executable, "-m", "pytest", *files, "-p", "tests.mutants.plugin", "-p", "no:cacheprovider", "--tb=short"]
    command += [f"--basetemp={tree / 'tmp'}", *(["-x"] if first_failure else [])]
    environment = {**_environment(tree), TESTS: json.dumps(list(selection)), REPORT: str(report)}
    said = tree / "output.txt"
    started = time.monotonic()
    with said.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(longest)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end_group(process)
    facts = json.loads(report.read_text()) if report.exists() else {"passed": [], "failed": [], "skipped": [], "unknown": []}
    return Ran(**facts, timed_out=timed_out, seconds=time.monotonic() - started, output=said.read_text())


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "bindings")])}


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: they are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
