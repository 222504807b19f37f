"""Savers under test: on a folder and in memory, called the sync and the async way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.ckptstore import CkptSaver

from tests.helpers import Driver

NewSaver = Callable[..., CkptSaver]


@pytest.fixture(params=["folder", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_saver(kind: str, tmp_path: Path) -> Iterator[NewSaver]:
    """Makes a fresh, empty saver with each call; options as in the constructor."""
    made: list[CkptSaver] = []

    def make(**options: Any) -> CkptSaver:
        path = ":memory:" if kind == "memory" else tmp_path / f"{len(made)}.ckpt"
        made.append(CkptSaver(path, **options))
        return made[-1]

    yield make
    for saver in made:
        saver.close()


@pytest.fixture
def saver(new_saver: NewSaver) -> CkptSaver:
    return new_saver()


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, saver: CkptSaver) -> Driver:
    return Driver(saver, request.param == "async")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test that is about files keeps its store."""
    return tmp_path / "chat.ckpt"
