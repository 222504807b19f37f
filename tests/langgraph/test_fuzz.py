"""`fuzz_saver` and `SaverMachine`: our saver is sound, a fault in a saver is found, and the printed program shows it."""

from __future__ import annotations

import re
import runpy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from langgraph.checkpoint.ckptstore.testing import Failure, Report, SaverMachine, SaverViolation, fuzz_saver
from langgraph.checkpoint.memory import InMemorySaver

from ckptstore.errors import CkptStoreError, InvalidArgumentError
from ckptstore.testing.calls import Call, Delete, Found, Get, History, Listing, Past
from tests.langgraph import broken
from tests.langgraph.fuzz import Lmdb, Memory


@pytest.mark.parametrize("machine", [Memory, Lmdb])
def test_random_programs_of_our_saver_answer_what_the_model_says(machine: type[SaverMachine]) -> None:
    report = fuzz_saver(machine().make_saver, examples=15, steps=30, seed=3)
    assert (report.script, report.missing) == (None, ())
    assert report.steps >= 200


class OurSaverInMemory(Memory):
    pass


TestOurSaverInMemory = OurSaverInMemory.TestCase
TestOurSaverInMemory.settings = settings(
    max_examples=5, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


def run(script: str, folder: Path) -> None:
    (folder / "program.py").write_text(script)
    runpy.run_path(str(folder / "program.py"))


FAULTS = [
    (broken.LosesPaths, "writes", AssertionError),
    (broken.IgnoresFilters, "which checkpoints", AssertionError),
    (broken.RepeatsUnderLimit, "which checkpoints", AssertionError),
    (broken.IgnoresLimitOfThread, "which checkpoints", AssertionError),
    (broken.LosesNamespaces, "which checkpoints", AssertionError),
    (broken.LosesUsers, "metadata", AssertionError),
    (broken.HasNoMetadata, "metadata", AssertionError),
    (broken.GivesCheckpoints, "thread, ns, id, parent, versions, values, metadata, seen, writes", AttributeError),
    (broken.HasNoHistory, "history", TypeError),
    (broken.TellsMore, "history", AssertionError),
    (broken.LosesTitles, "values", AssertionError),
    (broken.ForgetsSeeds, "history", AssertionError),
    (broken.MixesChannels, "history", AssertionError),
    (broken.ChangesThePast, "history", AssertionError),
    (broken.RefusesBefore, "raises KeyError", KeyError),
    (broken.AsyncOnly, "which checkpoints", AssertionError),
    (broken.async_only, "which checkpoints", AssertionError),
]


@pytest.mark.parametrize(("make", "aspect", "error"), FAULTS, ids=[make.__name__ for make, _, _ in FAULTS])
def test_a_fault_is_found_and_its_program_is_short_and_fails_alike(
    make: Any, aspect: str, error: type[Exception], tmp_path: Path
) -> None:
    report = fuzz_saver(make, examples=300, seed=1)
    assert report.failure is not None
    assert report.failure.symptom.partition(": ")[2] == aspect
    assert len(report.failure.program) <= 8
    assert report.script is not None
    with pytest.raises(error):
        run(report.script, tmp_path)
    if make not in (broken.AsyncOnly, broken.async_only):
        for sound in ("Sound", "ListsByNamespace"):
            run(report.script.replace(f"import {make.__name__}", f"import {sound} as {make.__name__}"), tmp_path)


CHECKPOINT = Found("a", "", "2", "1", {}, {}, {}, {}, [])
CALLS: list[tuple[Call, Any, Any, str]] = [
    (
        History("a", "", "1", ("log",)),
        {"log": Past()},
        {},
        "get_delta_channel_history gives another past than the checkpoint was made of (rules 5 and 6 of docs/fuzzing.md)",
    ),
    (
        Listing("a"),
        [],
        [CHECKPOINT],
        "list gives other checkpoints than it has to, or in another order (rule 2 of docs/fuzzing.md)",
    ),
    (Get("a", "", "1"), None, CHECKPOINT, "get_tuple gives a checkpoint that is not there (rule 1 of docs/fuzzing.md)"),
    (Get("a", "", "1"), CHECKPOINT, None, "get_tuple does not give a checkpoint that is there (rule 1 of docs/fuzzing.md)"),
    (
        Get("a", "", "1"),
        CHECKPOINT,
        CHECKPOINT._replace(parent=None),
        "get_tuple gives a checkpoint otherwise than it was stored: parent (rule 1 of docs/fuzzing.md)",
    ),
    (Delete("a"), None, KeyError("a"), "delete_thread raises KeyError (rule 7 of docs/fuzzing.md)"),
]


@pytest.mark.parametrize(("call", "expected", "found", "sentence"), CALLS)
def test_what_went_wrong_is_a_sentence_with_its_rule(call: Call, expected: Any, found: Any, sentence: str) -> None:
    assert Failure((call,), expected, found).sentence == sentence
    if not isinstance(call, Delete):
        assert Failure((Delete("b"), call), expected, found).sentence == re.sub(r"rules? (.*) of", r"rules \1 and 7 of", sentence)


class Shelf:
    def take(self) -> Any:
        return broken.LosesPaths()


@pytest.mark.parametrize("make", [lambda: broken.LosesPaths(), Shelf().take, partial(broken.LosesPaths)])
def test_a_function_that_no_name_imports_is_left_to_the_reader_of_the_script(make: Any, tmp_path: Path) -> None:
    script = fuzz_saver(make, examples=300, seed=1).script
    assert script is not None
    assert "\nmake_saver = ...  # how you make it\n" in script
    with pytest.raises(AssertionError):
        run(script.replace("make_saver = ...", "from tests.langgraph.broken import LosesPaths as make_saver"), tmp_path)


class Faulty(SaverMachine):
    def make_saver(self) -> Any:
        return broken.LosesPaths()


def test_the_test_case_of_a_machine_fails_with_the_small_program() -> None:
    with pytest.raises(SaverViolation, match=r"pending writes, or their order \(rules 3 and 4 of docs/fuzzing.md\)\n") as raised:
        Faulty.TestCase("runTest").debug()
    assert len(raised.value.failure.program) <= 4
    assert "import Faulty\n" in str(raised.value)


@pytest.mark.parametrize("make", [broken.Sound, broken.ListsByNamespace])
def test_nothing_is_found_in_a_sound_saver_of_another_kind(make: Any) -> None:
    assert fuzz_saver(make, examples=20, steps=30, seed=2).script is None


def test_methods_that_a_saver_lacks_are_said_and_not_called() -> None:
    assert fuzz_saver(InMemorySaver, examples=1, steps=5).missing == ("delete_for_runs", "copy_thread", "prune")
    assert "delete_thread" in fuzz_saver(broken.Sound, examples=1, steps=5).missing


def test_the_same_seed_makes_the_same_programs() -> None:
    def found(seed: int) -> Report:
        return fuzz_saver(broken.LosesPaths, examples=20, seed=seed)

    assert found(5) == found(5)


def test_a_function_that_makes_no_saver_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a LangGraph checkpoint saver is needed"):
        fuzz_saver(broken.no_saver)
    with pytest.raises(CkptStoreError, match="no database here"):
        fuzz_saver(broken.fails)
    shared = InMemorySaver()
    with pytest.raises(CkptStoreError, match="the saver is not empty"):
        fuzz_saver(lambda: shared, examples=5)
    with pytest.raises(InvalidArgumentError, match="examples=0"):
        fuzz_saver(InMemorySaver, examples=0)


@pytest.mark.parametrize("call", [5, 7])
def test_a_run_that_breaks_off_is_no_run_that_found_nothing(call: int) -> None:
    with pytest.raises(CkptStoreError, match=f"out of connections at call {call}"):
        fuzz_saver(broken.FailsOnce(call), examples=5, steps=5)
