"""The mutants fit the code and the page, and the results that are kept are those of these mutants. `make mutants` runs them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.mutants import results
from tests.mutants.harness import check_imports, copy_tree
from tests.mutants.mutant import Mutant
from tests.mutants.promises import ROOT, promise_of, promises
from tests.mutants.run import Due, run_one
from tests.mutants.table import MUTANTS

ALL = [mutant for mutants in MUTANTS.values() for mutant in mutants]


def test_every_promise_has_a_mutant_and_every_mutant_a_promise() -> None:
    broken = [promise_of(words) for words, mutants in MUTANTS.items() if mutants]
    assert [promise.text for promise in promises() if promise not in broken] == []
    assert max(Counter(promise.text for promise in broken).values()) == 1


def test_every_mutant_fits_the_code_and_names_tests_of_its_promise() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in ALL).items() if count > 1] == []
    for words, mutants in MUTANTS.items():
        for mutant in mutants:
            text = (ROOT / mutant.file).read_text()
            broken = mutant.applied(text)
            assert broken != text
            compile(broken, mutant.file, "exec")
            assert mutant.selection(promise_of(words))


def test_the_results_are_of_these_mutants_and_none_survived() -> None:
    found = results.read()
    assert [(result.name, result.edit) for result in found] == [(mutant.name, mutant.digest) for mutant in ALL], (
        "run `make mutants`"
    )
    assert [result.name for result in found if result.verdict != "killed"] == []


def test_the_table_is_that_of_the_results() -> None:
    assert f"{results.BEGIN}{results.table(results.read())}{results.END}" in results.TABLE.read_text()


def test_a_run_tells_killed_from_survived_and_from_what_could_not_be_run(tmp_path: Path) -> None:
    """The same test on an edit that changes nothing, on one that breaks the code, and on one with which no test can be collected."""
    file, promise = "ckptstore/storage/catalog.py", promise_of("A write belongs to the child that it made")
    harmful = next(mutant for mutant in ALL if mutant.name == "late-batch-lost")
    old, _ = harmful.edits[0]
    edits = {"survived": [(old, f"        # A remark.\n{old}")], "killed": harmful.edits, "broken": [(old, "        (\n")]}
    copy_tree(ROOT, tmp_path / "control")
    check_imports(tmp_path / "control")
    for verdict, edit in edits.items():
        mutant = Mutant(verdict, "", file, edit, by=harmful.by)
        result, ran = run_one(tmp_path / "control", Due(mutant, promise))
        assert result.verdict == verdict, ran.output
        assert result.by.endswith("test_a_late_batch_joins_its_own_child") == (verdict == "killed")
