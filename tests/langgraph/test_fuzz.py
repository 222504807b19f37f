"""`fuzz_saver` and `SaverMachine`: our saver is sound, a fault in a saver is found, and the printed program shows it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.checkpoint.ckptstore.testing import Report, SaverMachine, fuzz_saver
from langgraph.checkpoint.memory import InMemorySaver

from ckptstore.errors import CkptStoreError, InvalidArgumentError
from tests.langgraph import broken

ROOT = Path(__file__).resolve().parents[2]


class OurSaverInMemory(SaverMachine):
    def make_saver(self) -> Any:
        return CkptSaver(":memory:")


TestOurSaverInMemory = OurSaverInMemory.TestCase
TestOurSaverInMemory.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@contextmanager
def folder() -> Iterator[CkptSaver]:
    with tempfile.TemporaryDirectory() as path, CkptSaver(f"{path}/chat.ckpt", durability="process") as saver:
        yield saver


def test_our_saver_in_a_folder_answers_as_the_model() -> None:
    report = fuzz_saver(folder, examples=12, steps=30, seed=3)
    assert (report.script, report.missing) == (None, ())
    assert report.steps >= 200


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(script)
    return subprocess.run(
        [sys.executable, str(folder / "program.py")],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


FAULTS = [
    (broken.LosesPaths, "Get: writes", "AssertionError"),
    (broken.IgnoresFilters, "Listing: which checkpoints", "AssertionError"),
    (broken.ReadsOnce, "Listing: values", "AssertionError"),
    (broken.ForgetsSeeds, "History: history", "AssertionError"),
    (broken.RefusesBefore, "Listing: raises KeyError", "KeyError"),
    (broken.async_only, "Listing: which checkpoints", "AssertionError"),
]


@pytest.mark.parametrize(("make", "symptom", "error"), FAULTS, ids=[make.__name__ for make, _, _ in FAULTS])
def test_a_fault_is_found_and_its_program_is_short_and_fails_alike(make: Any, symptom: str, error: str, tmp_path: Path) -> None:
    report = fuzz_saver(make, examples=60, seed=1)
    assert report.failure is not None
    assert report.failure.symptom == symptom
    assert len(report.failure.program) <= 6
    assert report.script is not None
    ran = run(report.script, tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith(error)


def test_the_printed_program_passes_on_a_saver_without_the_fault(tmp_path: Path) -> None:
    report = fuzz_saver(broken.LosesPaths, examples=60, seed=1)
    assert report.script is not None
    sound = report.script.replace("tests.langgraph.broken import", "langgraph.checkpoint.memory import InMemorySaver as")
    ran = run(sound, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_methods_that_a_saver_lacks_are_said_and_not_called() -> None:
    assert fuzz_saver(InMemorySaver, examples=1, steps=5).missing == ("delete_for_runs", "copy_thread", "prune")


def test_the_same_seed_makes_the_same_programs() -> None:
    def found(seed: int) -> Report:
        return fuzz_saver(broken.LosesPaths, examples=20, seed=seed)

    assert found(5) == found(5)


def test_a_function_that_makes_no_saver_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a LangGraph checkpoint saver is needed"):
        fuzz_saver(broken.no_saver)
    with pytest.raises(CkptStoreError, match="no database here"):
        fuzz_saver(broken.fails)
    with pytest.raises(InvalidArgumentError, match="examples=0"):
        fuzz_saver(InMemorySaver, examples=0)
