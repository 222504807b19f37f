"""A function of the user's that cannot take a write: the step that brings it is refused, and no later read finds it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptstore import channels
from ckptstore.errors import ReducerError
from tests.native.calls import KINDS, Home, Kind

SCHEMA = {"n": channels.reduce(operator.add)}


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    kind: Kind = request.param
    home = Home(kind, tmp_path / "s")
    yield home
    home.close()


@pytest.mark.parametrize("reopened", [False, True], ids=["open", "reopened"])
def test_a_write_that_the_function_cannot_take_is_refused_at_the_step(home: Home, reopened: bool) -> None:
    """Whether it fits depends on the value, which a cursor may have at hand or has to put together first."""
    cursor = home.thread(schema=SCHEMA)
    made = cursor.step({"n": 1})
    if reopened:
        home.reopen()
        cursor = home.thread(schema=SCHEMA)
    last = home.store.stats().last_lsn
    for _ in range(2):
        with pytest.raises(ReducerError, match=r"'add' failed on a write of type str"):
            cursor.step({"n": "x"})
        assert cursor.tip == made.id
        assert cursor.state() == {"n": 1}
    assert home.store.stats().last_lsn == last
    assert home.listed() == [made.id]
    # Past the next snapshots, which fold all that was stored.
    for _ in range(25):
        cursor.step({"n": 1})
    assert cursor.state() == home.thread(schema=SCHEMA).state() == {"n": 26}
