"""Native threads in a folder: reopened, with its index lost or of another kind, read-only, damaged; and many cursors at once."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

import ckptstore
from ckptstore import Thread
from ckptstore.errors import CorruptionError, ReadOnlyError, StoreMissingError
from tests.helpers import flip, frames
from tests.model.lanes import seen
from tests.native.calls import FOLDERS, GIVEN_AGAIN, KINDS, SCHEMA, Cursor, Home, Kind
from tests.native.programs import count_of, program, run, views

LENGTH = 60


@pytest.mark.parametrize("index", FOLDERS)
@pytest.mark.parametrize("segment_bytes", [4096, 1 << 20])
def test_a_reopened_store_reads_alike(tmp_path: Path, index: Kind, segment_bytes: int) -> None:
    """With its index, without it, and with one of the other kind."""
    expected = views(31, LENGTH)
    home = Home(index, tmp_path / "s", segment_bytes=segment_bytes)
    for number, call in enumerate(program(31, LENGTH), 1):
        run(home.store, call)
        if number % 10 == 0:
            home.reopen(forget_index=number % 20 == 0)
            assert seen(home.store) == expected[number]
    home.close()
    other: Kind = "sqlite" if index == "lmdb" else "lmdb"
    for kind in (other, index):
        with ckptstore.open(tmp_path / "s", index=kind) as store:
            assert seen(store) == expected[-1]


def test_a_store_in_memory_runs_the_same_program() -> None:
    with ckptstore.open(":memory:") as store:
        for number, call in enumerate(program(31, LENGTH), 1):
            run(store, call)
            assert count_of(seen(store), views(31, LENGTH), number, number) == number


def test_a_cursor_that_is_left_open_says_that_its_store_was_closed(tmp_path: Path) -> None:
    """The state is in the store, not in the cursor: a new one takes up where it was."""
    with ckptstore.open(tmp_path / "s") as store:
        first = store.thread("t", schema=SCHEMA).step({"log": ["a"]})
    with ckptstore.open(tmp_path / "s") as store:
        cursor = store.thread("t").at(first.id)
        assert cursor.checkpoint() == first
        assert cursor.step({"log": ["b"]}).step == 1
        assert cursor.state() == {"log": ["a", "b"]}


def test_read_only(tmp_path: Path) -> None:
    with pytest.raises(StoreMissingError):
        ckptstore.open(tmp_path / "s", read_only=True)
    with ckptstore.open(tmp_path / "s") as store:
        store.thread("t", schema=SCHEMA).step({"log": ["a"]})
    with ckptstore.open(tmp_path / "s", read_only=True) as store:
        cursor = store.thread("t")
        assert cursor.state() == {"log": ["a"]}
        assert len(list(cursor.lineage())) == 1
        for call in (lambda: cursor.step({"log": ["b"]}), cursor.set_head, lambda: store.prune("t"), lambda: store.delete("t")):
            with pytest.raises(ReadOnlyError):
                call()


def test_damage_is_an_error_for_those_who_need_it_and_for_nobody_else(tmp_path: Path) -> None:
    """Never a shorter state: a changed byte in a write makes every state that rests on it an error."""
    with ckptstore.open(tmp_path / "s") as store:
        cursor = store.thread("t", schema=SCHEMA)
        made = [cursor.step({"log": [f"line {number}"]}) for number in range(25)]
        other = store.thread("other", schema=SCHEMA)
        other.step({"log": ["fine"]})
    found = list(frames(tmp_path / "s"))
    with ckptstore.open(tmp_path / "s") as store:
        damaged = found[12]  # the thirteenth step: one frame a step
    flip(damaged.path, damaged.offset + damaged.size - 12)
    with ckptstore.open(tmp_path / "s") as store:
        cursor = store.thread("t", schema=GIVEN_AGAIN)
        wrong = []
        for number, checkpoint in enumerate(made):
            try:
                assert cursor.at(checkpoint).state() == {"log": [f"line {at}" for at in range(number + 1)]}
            except CorruptionError:
                wrong.append(number)
        # The value is stored at every tenth step, so those behind the damage and before the next stored value need it.
        assert wrong == list(range(12, 20))
        assert store.thread("other").state() == {"log": ["fine"]}
        assert cursor.step({"log": ["goes on"]}).step == 25


@pytest.mark.parametrize("kind", KINDS)
def test_cursors_in_many_threads_of_a_process(tmp_path: Path, kind: Kind) -> None:
    """Each a branch of one checkpoint, and each a conversation of its own."""
    home = Home(kind, tmp_path / "s")
    home.thread("t").step({"log": ["root"]})
    problems: list[BaseException] = []

    def work(branch: Cursor, own: Cursor, name: str) -> None:
        try:
            for number in range(15):
                branch.step({"log": [f"{name}.{number}"]})
                own.step({"log": [number]})
                assert branch.state() == {"log": ["root", *(f"{name}.{at}" for at in range(number + 1))]}
                assert own.state() == {"log": list(range(number + 1))}
        except BaseException as error:
            problems.append(error)

    start = home.again("t").checkpoint()
    names = [f"w{number}" for number in range(4)]
    threads = [threading.Thread(target=work, args=(home.again("t"), home.thread(name), name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    for name in names:
        assert home.again(name).state() == {"log": list(range(15))}
    assert len(home.listed()) == 1 + 4 * 15
    assert home.again().at(start).state() == {"log": ["root"]}
    home.close()


@pytest.mark.parametrize("kind", KINDS)
def test_many_tasks_of_an_event_loop(tmp_path: Path, kind: Kind) -> None:
    home = Home(kind, tmp_path / "s")

    async def work(cursor: Thread, name: str) -> None:
        for number in range(10):
            await cursor.astep({"log": [f"{name}.{number}"]})
        assert (await cursor.astate())["log"][1:] == [f"{name}.{number}" for number in range(10)]

    async def main() -> None:
        root = await home.store.athread("t", schema=SCHEMA)
        await root.astep({"log": ["root"]})
        branches = [root.fork() for _ in range(4)]
        await asyncio.gather(*(work(branch, f"b{number}") for number, branch in enumerate(branches)))
        # Sync calls work in a running loop too.
        assert branches[0].state() == await branches[0].astate()
        assert len([checkpoint async for checkpoint in branches[0].alineage()]) == 11
        assert [info.checkpoints async for info in home.store.athreads()] == [41]
        await home.store.await_sync()

    asyncio.run(main())
    home.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_step_is_there_whole_or_not_at_all(tmp_path: Path, kind: Kind) -> None:
    home = Home(kind, tmp_path / "s")
    cursor = home.thread("t")
    cursor.step({"log": ["start"], "total": 1})

    async def main() -> None:
        for number in range(20):
            one = home.again("t").thread
            task = asyncio.create_task(one.astep({"log": [number], "total": 1}))
            await asyncio.sleep(0 if number % 2 else 0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    state = home.again("t").state()
    assert len(state["log"]) == state["total"] == len(home.again("t").lineage())
    home.close()


def test_deleting_the_index_of_a_store_with_everything_in_it(tmp_path: Path) -> None:
    """Twice, so that what was rebuilt is itself lost."""
    with ckptstore.open(tmp_path / "s", segment_bytes=4096) as store:
        for call in program(33, LENGTH):
            run(store, call)
    for _ in range(2):
        shutil.rmtree(tmp_path / "s" / "index")
        with ckptstore.open(tmp_path / "s") as store:
            assert seen(store) == views(33, LENGTH)[-1]
