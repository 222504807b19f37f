"""Native threads in memory and in a folder, with each index, called the sync and the async way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.native.calls import FOLDERS, KINDS, Home, Kind
from tests.native.mixins import (
    Cadence,
    Cursors,
    Expecting,
    FreshObjects,
    Functions,
    NativeContract,
    Removing,
    Replacing,
    Stepping,
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def options() -> dict[str, Any]:
    return {}


@pytest.fixture
def asynchronous() -> bool:
    return False


@pytest.fixture
def home(kind: Kind, tmp_path: Path, options: dict[str, Any], asynchronous: bool) -> Iterator[Home]:
    home = Home(kind, tmp_path / "s", asynchronous, **options)
    yield home
    home.close()


class TestSync(NativeContract):
    """Every test of the contract."""


class TestSyncReplacing(Replacing):
    """Every test of Overwrite and UNSET."""


class TestAsync(Stepping, Cursors, Cadence, Functions, Expecting, Removing, FreshObjects):
    """The same through the async methods, in an event loop of its own for each call."""

    @pytest.fixture
    def kind(self) -> Kind:
        return "lmdb"

    @pytest.fixture
    def asynchronous(self) -> bool:
        return True


class TestSmallSegments(Stepping, Cursors, Cadence, Removing):
    """A new segment every 4 KiB, and no caches."""

    @pytest.fixture(params=FOLDERS)
    def kind(self, request: pytest.FixtureRequest) -> Kind:
        chosen: Kind = request.param
        return chosen

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"segment_bytes": 4096, "cache_bytes": 0}
