"""The contract on the storage in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ckptstore import Store
from tests.contract.calls import open_at
from tests.contract.mixins import StorageContract


@pytest.fixture
def make_store() -> Iterator[Callable[..., Store]]:
    made: list[Store] = []

    def make(**options: Any) -> Store:
        made.append(open_at(":memory:", **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    return make_store()


class TestMemory(StorageContract):
    """Every test of the contract."""
