"""Forks of a process that has a store open. Each test forks inside a child of its own, so that a fault there cannot harm the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.programs import opened
from tests.process.child import ids, put

Spawn = Callable[..., Any]


def test_a_child_writes_and_reads_while_the_parent_reads(tmp_path: Path, spawn: Spawn) -> None:
    child = spawn("fork", tmp_path / "store")
    assert child.hear() == "fine"
    child.finish()
    with opened(tmp_path / "store") as store:
        found = ids(store, "t")
    assert found == [*(f"before-{n}" for n in range(5)), *(f"child{c}-{n}" for c in range(10) for n in range(3)), "after"]


@pytest.mark.parametrize(
    "size",
    [
        20,
        20000,
    ],
)
def test_a_fork_in_the_middle_of_a_put_of_another_thread(tmp_path: Path, spawn: Spawn, size: int) -> None:
    """The child inherits what that thread held, and no thread that would give it back."""
    child = spawn("fork_during_put", tmp_path / "store", size)
    assert child.hear() == "parent child"
    child.finish()


def test_a_child_that_closes_or_exits_leaves_the_parent_in(tmp_path: Path, spawn: Spawn) -> None:
    child = spawn("fork_and_close", tmp_path / "store")
    assert child.hear() == "first, from a child that closes, from a child that exits, last"
    child.finish()
    with opened(tmp_path / "store") as store:
        put(store, "t", "later")


def test_prefork(tmp_path: Path, spawn: Spawn) -> None:
    child = spawn("prefork", tmp_path / "store", 3)
    found = child.hear().split()
    child.finish()
    assert sorted(found) == sorted(f"w{worker}-{number}" for worker in range(3) for number in range(20))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(tmp_path: Path, spawn: Spawn, method: str) -> None:
    child = spawn("pool", tmp_path / "store", method)
    found = child.hear().split()
    child.finish()
    assert (found[0], found[-1]) == ("first", "last")
    assert sorted(found[1:-1]) == sorted(f"w{worker}-{number}" for worker in range(3) for number in range(5))


def test_a_child_outlives_the_parent_and_holds_none_of_its_locks(tmp_path: Path, spawn: Spawn) -> None:
    child = spawn("orphan", tmp_path / "store")
    assert child.hear().startswith("child ")
    child.process.wait()
    with opened(tmp_path / "store", lock_timeout=5) as store:
        put(store, "t", "other")
        child.say("go on")
        assert child.hear().split() == ["parent", "other", "orphan"]
        assert ids(store, "t") == ["parent", "other", "orphan"]


def test_a_child_does_not_keep_the_commit_lock_of_a_parent_that_was_killed(tmp_path: Path, spawn: Spawn) -> None:
    with opened(tmp_path / "store", lock_timeout=5) as store:
        child = spawn("orphan_of_a_holder", tmp_path / "store")
        assert child.hear().startswith("child ")
        child.process.wait()
        put(store, "t", "other")
        assert ids(store, "t") == ["other"]
        child.say("go on")


def test_a_child_does_not_go_on_compacting_for_a_parent_that_was_killed(tmp_path: Path, spawn: Spawn) -> None:
    """As far as others can tell: they may compact."""
    child = spawn("orphan_of_a_compactor", tmp_path / "store")
    assert child.hear().startswith("child ")
    child.process.wait()
    with opened(tmp_path / "store") as store:
        assert store.compact().frames_dropped
        assert ids(store, "t") == ["first"]
    child.say("go on")
