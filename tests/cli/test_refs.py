"""References to checkpoints: how they read, what they find, and what is said where they find nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptstore
from ckptstore.errors import InvalidArgumentError
from ckptstore.inspect.refs import Reference, parse_reference
from tests.cli.stores import put


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A line of four, with two ids that begin alike; a namespace; and names with odd characters."""
    path = tmp_path / "refs.ckpt"
    with ckptstore.open(path) as opened:
        for id, parent in (("aa1", None), ("ab2", "aa1"), ("c3", "ab2"), ("d4", "c3")):
            put(opened, "user-42", id, parent, id)
        put(opened, "user-42", "n1", None, "inner", ns="sub:1")
        put(opened, "nested", "n1", None, "inner", ns="only/this|x")
        put(opened, "a@b/c", "~1", None, "odd")
        put(opened, "a@b/c", "x@HEAD~1", "~1", "odder")
    return path


def shown(ckpt: Callable[..., Any], *arguments: object) -> str:
    ran = ckpt("show", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    return str(json.loads(ran.out)["id"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user-42", Reference("user-42", lane=True)),
        ("user-42@", None),
        ("user-42@HEAD", Reference("user-42")),
        ("user-42@1f0a", Reference("user-42", "", "1f0a")),
        ("user-42@HEAD~3", Reference("user-42", "", None, 3)),
        ("user-42@~", Reference("user-42", "", None, 1)),
        ("user-42@1f~1~~2", Reference("user-42", "", "1f", 4)),
        ("user-42/sub:ns@HEAD", Reference("user-42", "sub:ns")),
        ("user-42/a/b|c:1", Reference("user-42", "a/b|c:1", lane=True)),
        ("a@b@c", None),
        ("@HEAD", None),
        ("/ns", None),
        ("", None),
        ("t@x~y", None),
    ],
)
def test_parsing(text: str, expected: Reference | None) -> None:
    if expected is None and text != "a@b@c":
        with pytest.raises(InvalidArgumentError):
            parse_reference(text)
    elif expected is None:
        assert parse_reference(text) == Reference("a@b", "", "c")
    else:
        assert parse_reference(text) == expected


def test_saying_something_twice_is_refused() -> None:
    assert parse_reference("@HEAD~1", thread="a@b") == Reference("a@b", "", None, 1)
    assert parse_reference(None, thread="t", ns="n/1", id="x~1") == Reference("t", "n/1", "x~1", 0, exact=True)
    for given in (
        {"text": "t", "thread": "u"},
        {"text": "t/n", "ns": "m"},
        {"text": "t@x", "id": "y"},
        {"text": None},
        {"text": None, "thread": ""},
    ):
        with pytest.raises(InvalidArgumentError):
            parse_reference(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reference", "id"),
    [
        ("user-42", "d4"),
        ("user-42@HEAD", "d4"),
        ("user-42@HEAD~1", "c3"),
        ("user-42@HEAD~3", "aa1"),
        ("user-42@~2", "ab2"),
        ("user-42@ab", "ab2"),
        ("user-42@ab2", "ab2"),
        ("user-42@c~1", "ab2"),
        ("user-42/sub:1@HEAD", "n1"),
        ("nested/only/this|x", "n1"),
    ],
)
def test_finding(ckpt: Callable[..., Any], store: Path, reference: str, id: str) -> None:
    assert shown(ckpt, store, reference) == id


def test_odd_names_by_options(ckpt: Callable[..., Any], store: Path) -> None:
    assert shown(ckpt, store, "--thread", "a@b/c") == "x@HEAD~1"
    assert shown(ckpt, store, "--thread", "a@b/c", "@HEAD~1") == "~1"
    assert shown(ckpt, store, "--thread", "a@b/c", "--id", "~1") == "~1"
    assert shown(ckpt, store, "nested", "--ns", "only/this|x") == "n1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody"], ["no thread 'nobody'"]),
        (["a@b/c"], ["no thread 'a'", "--thread"]),
        (["user-42/nowhere"], ["no namespace 'nowhere'", "'sub:1'"]),
        (["nested"], ["no root namespace", "'only/this|x'"]),
        (["user-42@a"], ["'a' is the beginning of 2 ids", "aa1", "ab2"]),
        (["user-42@zz"], ["begins with 'zz'"]),
        (["user-42", "--id", "aa"], ["no checkpoint 'aa'"]),
        (["user-42@HEAD~4"], ["3 parents back", "'aa1'", "first one"]),
    ],
)
@pytest.mark.parametrize("command", ["show", "writes", "diff"])
def test_what_is_not_there_is_named(
    ckpt: Callable[..., Any], store: Path, command: str, arguments: list[str], words: list[str]
) -> None:
    ran = ckpt(command, store, *arguments)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err


def test_a_pruned_checkpoint_is_said_to_be(ckpt: Callable[..., Any], store: Path) -> None:
    with ckptstore.open(store) as opened:
        opened.prune("user-42")
    assert "was removed" in ckpt("show", store, "user-42@c3").err
    assert "pruned" in ckpt("show", store, "user-42@HEAD~1").err
