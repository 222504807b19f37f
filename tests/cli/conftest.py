"""A small store for the command line, and one way to run a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import ckptstore
from ckptstore.cli.app import run
from tests.cli.stores import SECRET, put


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def ckpt(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `ckpt` with these arguments in this process."""

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three threads: `small` with one checkpoint, `large` with three in two namespaces, `gone` deleted."""
    path = tmp_path / "chat.ckpt"
    with ckptstore.open(path) as store:
        put(store, "small", "s1", None, f"{SECRET} small")
        put(store, "large", "l1", None, f"{SECRET} " + "one " * 300)
        put(store, "large", "l2", "l1", f"{SECRET} " + "two " * 300)
        put(store, "large", "n1", None, f"{SECRET} inner", ns="node:1")
        put(store, "gone", "g1", None, f"{SECRET} " + "gone " * 100)
        store.delete("gone")
    return path
