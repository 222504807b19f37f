"""`ckpt diff`: what differs, where, and that nothing that differs is missed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptstore
from ckptstore.codec.inert import Inert
from ckptstore.inspect.diff import differences
from ckptstore.model import LaneName
from tests.cli import agents


def put(store: ckptstore.Store, id: str, parent: str | None, values: dict[str, Any], thread: str = "t") -> None:
    store.put_checkpoint(
        LaneName(thread),
        id,
        parent,
        skeleton={},
        metadata={},
        versions=dict.fromkeys(values, id),
        values=values,
        changed=set(values),
        encode=lambda name, value: ("json", json.dumps(value).encode()),
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "d.ckpt"
    with ckptstore.open(path) as opened:
        put(opened, "one", None, {"same": 1, "gone": 2, "map": {"a": 1, "b": [1, 2]}})
        put(opened, "two", "one", {"same": 1, "new": 3, "map": {"a": 1, "b": [1, 5]}})
        put(opened, "other", None, {"same": 9}, thread="u")
    return path


def report(ckpt: Callable[..., Any], *arguments: object) -> dict[str, Any]:
    ran = ckpt("diff", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert isinstance(found, dict)
    return found


def brief(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(item["channel"], item["path"], item["kind"], item["before"], item["after"]) for item in found["differences"]]


CHANGES = [
    ("gone", [], "removed", 2, None),
    ("map", ["b", 1], "changed", 2, 5),
    ("new", [], "added", None, 3),
]


def test_with_its_parent_and_with_another(ckpt: Callable[..., Any], store: Path) -> None:
    found = report(ckpt, store, "t")
    assert list(found) == ["before", "after", "differences", "unchanged", "uncompared", "problems"]
    assert found["before"] == {"thread": "t", "ns": "", "id": "one"}
    assert found["after"] == {"thread": "t", "ns": "", "id": "two"}
    assert found["unchanged"] == ["same"]
    assert brief(found) == CHANGES
    assert brief(report(ckpt, store, "t@one", "@two")) == CHANGES
    assert brief(report(ckpt, store, "--thread", "t", "--id", "one", "--other-id", "two")) == CHANGES
    assert brief(report(ckpt, store, "t@two", "t@two")) == []
    assert brief(report(ckpt, store, "t", "--channel", "new")) == CHANGES[2:]
    assert ("same", [], "changed", 1, 9) in brief(report(ckpt, store, "t", "u"))
    text = ckpt("diff", store, "t").out
    for line in ("gone  removed", "map.b[1]  changed", "  - 2", "  + 5", "new  added"):
        assert line in text
    assert "no difference" in ckpt("diff", store, "t@two", "@two").out


def test_a_first_checkpoint_has_nothing_to_compare_with(ckpt: Callable[..., Any], store: Path) -> None:
    ran = ckpt("diff", store, "t@one")
    assert (ran.code, ran.out) == (3, "")
    assert "no parent" in ran.err


def test_messages_are_compared_by_id(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    agents.fill(tmp_path / "s")
    log = json.loads(ckpt("log", tmp_path / "s", "chat", "--json").out)["checkpoints"]
    step = next(item for item in log if item["source"] == "loop" and item["head"])
    found = report(ckpt, tmp_path / "s", f"chat@{step['id']}~1", f"@{step['id']}")
    paths = [(item["channel"], item["path"], item["kind"]) for item in found["differences"]]
    assert [path for path in paths if path[0] == "messages"] == [("messages", ["id=a3"], "added")]
    assert "messages[id=a3]  added" in ckpt("diff", tmp_path / "s", f"chat@{step['id']}").out


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1, 2, 3], [1, 9, 2, 3], [((1,), "added", None, 9)]),
        ([1, 2, 3], [1, 3], [((1,), "removed", 2, None)]),
        (
            [{"id": "a", "x": 1}, {"id": "b"}],
            [{"id": "b"}, {"id": "a", "x": 2}],
            [
                (("id=a", "x"), "changed", 1, 2),
                (("order",), "changed", ["id=a", "id=b"], ["id=b", "id=a"]),
            ],
        ),
        ([{"id": "a"}, {"id": "a"}], [{"id": "a"}], [((1,), "removed", {"id": "a"}, None)]),
        (1, True, [((), "changed", 1, True)]),
        (1, 1.0, [((), "changed", 1, 1.0)]),
        (float("nan"), float("nan"), []),
        ({1: "a"}, {"1": "a"}, [(("1",), "removed", "a", None), (("1",), "added", None, "a")]),
        (Inert("x.A", (1,), {"f": 1}), Inert("x.A", (2,), {"f": 1}), [((0,), "changed", 1, 2)]),
        (Inert("x.A", (1,)), Inert("x.B", (1,)), [((), "changed", Inert("x.A", (1,)), Inert("x.B", (1,)))]),
        ({"a": None}, {}, [(("a",), "removed", None, None)]),
    ],
)
def test_paths(before: Any, after: Any, expected: list[Any]) -> None:
    assert list(differences(before, after)) == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "id"]), inner, max_size=3)
        | st.builds(
            lambda args, fields: Inert("x.A", tuple(args), fields),
            st.lists(inner, max_size=2),
            st.dictionaries(st.sampled_from(["a", "id"]), inner, max_size=2),
        )
    ),
    max_leaves=12,
)


def exactly(value: Any) -> str:
    """Tells apart what is stored differently, such as 1 and True; the order of keys in a map does not count."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key!r}:{exactly(item)}" for key, item in value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(exactly(item) for item in value) + "]"
    if isinstance(value, Inert):
        return f"{value.type_name}({exactly(list(value.args))}{exactly(dict(value.fields))})"
    return repr(value)


@given(VALUES, VALUES)
def test_nothing_that_differs_is_missed_and_nothing_that_is_equal_reported(before: Any, after: Any) -> None:
    assert bool(list(differences(before, after))) == (exactly(before) != exactly(after))
