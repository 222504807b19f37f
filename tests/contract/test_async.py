"""The async twins of what a store reads and moves: the same answers, worked out beside the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import ckptstore
from ckptstore.errors import CorruptionError, InvalidArgumentError
from tests.contract.calls import LANE, OTHER, put, write
from tests.helpers import flip, frames


def append(before: Any, writes: Any) -> Any:
    return [*(before if isinstance(before, list) else []), *writes]


def test_twins_answer_alike(tmp_path: Path) -> None:
    async def main() -> None:
        async with ckptstore.open(tmp_path / "s") as store:
            put(store, "1", None, {"m": ["a"]})
            write(store, "1", "b")
            put(store, "2", "1", versions={"m": "2"})
            put(store, "u1", lane=OTHER)
            assert await store.aoutline(LANE) == store.outline(LANE)
            assert await store.aoutline(LANE, "nowhere") is None
            state = await store.astate(LANE, "1", reducers={"m": append}, serde=Json(), channels=["m"])
            assert state == store.state(LANE, "1", reducers={"m": append}, serde=Json(), channels=["m"]) == {"m": ["a"]}
            for arguments in ((), ("t",), ("t", ""), ("t", "", "1"), ("nowhere",)):
                assert [item async for item in store.alist(*arguments)] == list(store.list(*arguments))
            asked: list[int] = []

            def accept(metadata: Any) -> bool:
                asked.append(threading.get_ident())
                return bool(metadata["id"] != "2")

            assert [item.id async for item in store.alist("t", "", before="2", accept=accept)] == ["1"]
            assert asked
            assert threading.get_ident() not in asked
            await store.aset_head(LANE, "1")
            head = store.outline(LANE)
            assert head is not None
            assert head.id == "1"
            with pytest.raises(InvalidArgumentError, match="nowhere"):
                await store.aset_head(LANE, "nowhere")

    asyncio.run(main())


class Json:
    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        raise AssertionError("nothing is written")

    def loads_typed(self, typed: tuple[str, bytes]) -> Any:
        return json.loads(typed[1])


def test_an_error_about_one_checkpoint_does_not_end_the_list(tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        for id in ("1", "2", "3"):
            put(store, id, None, {"m": id * 100})
    damaged = list(frames(tmp_path / "s"))[1]
    flip(damaged.path, damaged.offset + damaged.size - 1)

    async def main() -> list[str]:
        found: list[str] = []
        async with ckptstore.open(tmp_path / "s", read_only=True) as store:
            items = store.alist("t", "")
            while True:
                try:
                    found.append((await anext(items)).id)
                except CorruptionError:
                    found.append("damaged")
                except StopAsyncIteration:
                    return found

    assert asyncio.run(main()) == ["3", "damaged", "1"]
