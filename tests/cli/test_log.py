"""`ckpt log`: the tree that it draws, leaves, lineages, and order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptstore
from ckptstore.cli.log import drawing
from ckptstore.inspect.tree import LogEntry
from ckptstore.model import LaneName
from tests.cli.stores import put
from tests.helpers import flip, frames

KEYS = ["id", "parent", "parent_is", "step", "source", "time", "head", "leaf", "children", "batches"]


@pytest.fixture
def forked(tmp_path: Path) -> Path:
    """a <- b <- c <- d and b <- e <- f and b <- g, with the head on f."""
    path = tmp_path / "forked.ckpt"
    with ckptstore.open(path) as store:
        for id, parent in (("a", None), ("b", "a"), ("c", "b"), ("d", "c"), ("e", "b"), ("f", "e"), ("g", "b")):
            put(store, "t", id, parent, id)
        store.set_head(LaneName("t"), "f")
    return path


def listed(ckpt: Callable[..., Any], *arguments: object) -> dict[str, Any]:
    ran = ckpt("log", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert isinstance(found, dict)
    return found


def ids(report: dict[str, Any]) -> str:
    return "".join(item["id"] for item in report["checkpoints"])


def test_the_tree_is_drawn(ckpt: Callable[..., Any], forked: Path) -> None:
    ran = ckpt("log", forked, "t")
    assert ran.code == 0
    assert [line.split("  step")[0].rstrip() for line in ran.out.splitlines()] == [
        "* g",
        "| * f",
        "| * e",
        "| | * d",
        "| | * c",
        "|-'-'",
        "* b",
        "* a",
        "3 leaves: more than one branch",
    ]
    assert "HEAD" in ran.out.splitlines()[1]
    assert "leaf" in ran.out.splitlines()[0]
    assert "fork of 3" in ran.out.splitlines()[6]


def test_the_keys_are_the_documented_ones(ckpt: Callable[..., Any], forked: Path) -> None:
    report = listed(ckpt, forked, "t")
    assert list(report) == ["thread", "ns", "head", "total", "leaves", "checkpoints", "problems"]
    assert (report["thread"], report["ns"], report["head"], report["total"], report["leaves"]) == ("t", "", "f", 7, 3)
    for item in report["checkpoints"]:
        assert list(item) == KEYS
    by_id = {item["id"]: item for item in report["checkpoints"]}
    assert by_id["b"]["children"] == 3
    assert by_id["a"]["parent_is"] == "none"
    assert [id for id, item in by_id.items() if item["leaf"]] == ["g", "f", "d"]
    assert [id for id, item in by_id.items() if item["head"]] == ["f"]
    assert by_id["b"]["batches"] == 1


def test_leaves_limits_and_lineages(ckpt: Callable[..., Any], forked: Path) -> None:
    assert ids(listed(ckpt, forked, "t", "--leaves")) == "gfd"
    assert ids(listed(ckpt, forked, "t@HEAD")) == "feba"
    assert ids(listed(ckpt, forked, "t@d")) == "dcba"
    assert ids(listed(ckpt, forked, "t@HEAD~1")) == "eba"
    report = listed(ckpt, forked, "t", "--limit", 2)
    assert (ids(report), report["total"], report["head"]) == ("gf", 7, "f")
    assert "... and 5 more" in ckpt("log", forked, "t", "--limit", 2).out


def test_r15_two_writers_leave_two_leaves(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        put(store, "t", "base", None, "q")
        put(store, "t", "A", "base", "A")
        put(store, "t", "B", "base", "B")
    assert [item["id"] for item in listed(ckpt, tmp_path / "s", "t", "--leaves")["checkpoints"]] == ["B", "A"]


def test_pruned_and_missing_parents_are_told_apart(ckpt: Callable[..., Any], forked: Path) -> None:
    with ckptstore.open(forked) as store:
        put(store, "t", "orphan", "never stored", "x")
        put(store, "u", "a", None, "a")
        put(store, "u", "b", "a", "b")
        store.prune("u")
    by_id = {item["id"]: item for item in listed(ckpt, forked, "t")["checkpoints"]}
    assert (by_id["orphan"]["parent"], by_id["orphan"]["parent_is"]) == ("never stored", "missing")
    assert "parent never stored is not stored" in ckpt("log", forked, "t").out
    assert listed(ckpt, forked, "u")["checkpoints"][0]["parent_is"] == "pruned"
    assert "older ones pruned" in ckpt("log", forked, "u").out


def test_a_parent_that_was_stored_later_stands_below_its_child(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        put(store, "t", "child", "parent", "x")
        put(store, "t", "parent", None, "y")
    assert [item["id"] for item in listed(ckpt, tmp_path / "s", "t")["checkpoints"]] == ["child", "parent"]


def test_a_loop_is_a_problem_and_no_hang(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        put(store, "t", "a", None, "x")
        put(store, "t", "b", "a", "y")
        put(store, "t", "a", "b", "x")
    ran = ckpt("log", tmp_path / "s", "t", "--json")
    assert ran.code == 1
    report = json.loads(ran.out)
    assert sorted(ids(report)) == ["a", "b"]
    assert "own ancestors" in report["problems"][0]
    assert ckpt("log", tmp_path / "s", "t@b").code == 1


def test_a_damaged_checkpoint_keeps_its_place(ckpt: Callable[..., Any], forked: Path) -> None:
    """The record of c is damaged: the tree is drawn from the index, and says which one cannot be read."""
    found = [frame for frame in frames(forked) if b"\xa1c" in frame.path.read_bytes()[frame.offset : frame.offset + frame.size]]
    damaged = found[0]
    flip(damaged.path, damaged.offset + damaged.size - 1)
    ran = ckpt("log", forked, "t", "--json")
    assert ran.code == 1
    report = json.loads(ran.out)
    assert report["total"] == 7
    assert f"LSN {damaged.lsn}" in report["problems"][0]


@st.composite
def trees(draw: st.DrawFn) -> list[LogEntry]:
    """Parents of 1..n, each older than its child, newest first."""
    parents = [draw(st.integers(0, number - 1)) for number in range(1, draw(st.integers(1, 12)) + 1)]
    return [
        LogEntry(number, str(number), None, parent, "stored", None, None, None, False, False, 0, 0)
        for number, parent in reversed(list(enumerate(parents, start=1)))
    ]


@given(trees())
def test_any_tree_is_drawn_so_that_each_star_stands_under_its_children(tree: list[LogEntry]) -> None:
    columns: list[int] = []
    for entry in tree:
        waiting = [at for at, number in enumerate(columns) if number == entry.number]
        lines, after = drawing(columns, entry)
        star = lines[-1].index("*") // 2
        assert lines[-1].count("*") == 1
        if waiting:
            assert star == waiting[0]
            assert (len(lines) == 2) == (len(waiting) > 1)
        else:
            assert star >= len(columns) or columns[star] == 0
        if len(lines) == 2:
            assert [at for at in range(len(columns)) if lines[0][2 * at : 2 * at + 1] == "'"] == waiting[1:]
        # Every other branch goes on in its own column.
        for at, number in enumerate(columns):
            if number not in (0, entry.number):
                assert lines[-1][2 * at] == "|"
                assert after[at] == number
        columns = after
    assert columns == []
