"""`ckpt threads`: what it lists, in which order, and how names reach a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptstore
from tests.cli.stores import put


def listed(ckpt: Callable[..., Any], *arguments: object) -> dict[str, Any]:
    ran = ckpt("threads", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert isinstance(found, dict)
    return found


def test_each_thread_with_its_counts_and_its_head(ckpt: Callable[..., Any], folder: Path) -> None:
    assert listed(ckpt, folder) == {
        "total": 2,
        "threads": [
            {"thread": "small", "checkpoints": 1, "namespaces": 1, "head": "s1"},
            {"thread": "large", "checkpoints": 3, "namespaces": 2, "head": "l2"},
        ],
        "problems": [],
    }


@pytest.mark.parametrize(
    ("sort", "order"),
    [("age", ["small", "large"]), ("name", ["large", "small"]), ("checkpoints", ["large", "small"])],
)
def test_sort(ckpt: Callable[..., Any], folder: Path, sort: str, order: list[str]) -> None:
    assert [item["thread"] for item in listed(ckpt, folder, "--sort", sort)["threads"]] == order


def test_limit_says_how_many_are_left_off(ckpt: Callable[..., Any], folder: Path) -> None:
    found = listed(ckpt, folder, "--limit", 1)
    assert (found["total"], [item["thread"] for item in found["threads"]]) == (2, ["small"])
    assert "... and 1 more" in ckpt("threads", folder, "--limit", 1).out
    assert "more" not in ckpt("threads", folder, "--limit", 2).out


@pytest.mark.parametrize(
    "name", ["\x1b[2J\x1b[31mred", "[bold]not markup[/bold]", "two\nlines", "caf\u00e9 \u4e2d", "\udcff", "x" * 500]
)
def test_any_name_is_shown_whole_and_drives_no_terminal(ckpt: Callable[..., Any], tmp_path: Path, name: str) -> None:
    with ckptstore.open(tmp_path / "chat.ckpt") as store:
        put(store, name, "c1", None, "hello")
    assert listed(ckpt, tmp_path / "chat.ckpt")["threads"][0]["thread"] == name
    for command in ("threads", "inspect"):
        ran = ckpt(command, tmp_path / "chat.ckpt")
        assert ran.code == 0
        assert ran.out.replace("\n", "").isprintable()
        plain = name if name.isprintable() else name.encode("unicode_escape", "surrogatepass").decode()
        assert plain in ran.out


def test_an_empty_store_has_no_threads(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    ckptstore.open(tmp_path / "new").close()
    assert listed(ckpt, tmp_path / "new") == {"total": 0, "threads": [], "problems": []}
