"""Run by the process tests: one task in a process of its own. Arguments: the task's name, the store, and what the task takes.

A task talks to the test in lines: `say` writes one, `hear` waits for one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

from ckptstore import CkptStoreError, Store, StoreOptions
from ckptstore.storage import View
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.vfs import Vfs
from ckptstore.testing.crashfs import CrashVfs
from tests.crash.programs import Call, opened, run


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def hear() -> str:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return ""
        line += byte
    return line.decode().strip()


def put(store: Store, thread: str, id: str, parent: str | None = None, text: str | None = None) -> None:
    """One checkpoint, whose value says its id."""
    run(store, Call("put", thread, id, parent, text or f"value of {id}"))


def ids(store: Store, thread: str) -> list[str]:
    """Ids of a thread, oldest first; each value is checked to be its own."""
    found = []
    for stored in store.list(thread, ""):
        assert stored.values["log"][1].decode().startswith(f"value of {stored.id}"), stored.id
        found.append(stored.id)
    return found[::-1]


def write(store_path: str, name: str, count: str, threads: str, level: str) -> None:
    """Write a chain of checkpoints with writes, over some threads, as fast as it goes."""
    with opened(Path(store_path), level, Vfs()) as store:  # type: ignore[arg-type]
        say("open")
        hear()
        last: dict[str, str] = {}
        for number in range(int(count)):
            thread = f"t{number % int(threads)}"
            id = f"{name}-{number:03}"
            put(store, thread, id, last.get(thread))
            run(store, Call("writes", thread, id, None, f"{number:04} by {name}"))
            last[thread] = id
        say("done")


def neighbour(store_path: str) -> None:
    """Put and read on demand."""
    with opened(Path(store_path), vfs=Vfs()) as store:
        say("open")
        while line := hear():
            word, _, id = line.partition(" ")
            if word == "put":
                put(store, "t", id)
                say("stored")
            else:
                say(" ".join(ids(store, "t")))


def full_disk(store_path: str) -> None:
    """Fail to write the first record of a new segment, stay, and read on demand."""
    fs = CrashVfs(Path(store_path))
    fs.fail("pwrite", ENOSPC, path="segments/*2.seg")
    with opened(Path(store_path), vfs=fs) as store:
        number = 0
        try:
            while True:
                put(store, "t", f"child-{number}", None, f"value of child-{number} " + os.urandom(400).hex())
                number += 1
        except CkptStoreError as error:
            say(f"{type(error).__name__} {number}")
        hear()
        try:
            put(store, "t", "child-last")
            say(" ".join(ids(store, "t")))
        except CkptStoreError as error:
            say(f"{type(error).__name__} {error}")


def hold_lock(store_path: str) -> None:
    """Hold the commit lock until told, then commit."""
    options = StoreOptions()
    storage = LocalStorage(store_path, options)

    def resolve(view: View) -> list[Any]:
        say("holding")
        hear()
        return []

    storage.commit(resolve)
    say("free")
    storage.close()


def come_and_go(store_path: str, name: str, count: str) -> None:
    """Open, write, check and close, over and over."""
    for number in range(int(count)):
        with opened(Path(store_path)) as store:
            put(store, "t", f"{name}-{number}")
            mine = [id for id in ids(store, "t") if id.startswith(name)]
            assert mine == [f"{name}-{at}" for at in range(number + 1)], mine
    say("done")


class _Waiting(Vfs):
    def point(self, name: str) -> None:
        if name == "torn:kept":
            say("recovering")
            hear()


def recover(store_path: str) -> None:
    """Recover a torn store, and stop in the middle until told."""
    with opened(Path(store_path), vfs=_Waiting()) as store:
        say(" ".join(ids(store, "t")))


def hold_list(store_path: str) -> None:
    """Read two items of a listing, wait, read the rest."""
    with opened(Path(store_path), vfs=Vfs()) as store:
        items = store.list("t", "")
        say(" ".join(next(items).id for _ in range(2)))
        hear()
        say(" ".join(item.id for item in items))


def try_to_open(store_path: str) -> None:
    """Open and read, or say why not."""
    try:
        with opened(Path(store_path), vfs=Vfs()) as store:
            say("read " + " ".join(ids(store, "t")))
    except CkptStoreError as error:
        say(f"{type(error).__name__} {error}")


# -- forks -----------------------------------------------------------------------------------------------------------------


def _wait_for(pid: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, status


def _in_fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def fork(store_path: str) -> None:
    """Fork with the store open: the child writes and reads while the parent reads in another thread and holds a listing open."""
    with opened(Path(store_path), vfs=Vfs()) as store:
        for number in range(5):
            put(store, "t", f"before-{number}")
        listing = store.list("t", "")
        assert next(listing).id == "before-4"
        stop, reads, problems = threading.Event(), 0, []

        def read() -> None:
            nonlocal reads
            try:
                while not stop.is_set():
                    assert ids(store, "t")[:5] == [f"before-{number}" for number in range(5)]
                    reads += 1
            except BaseException as error:
                problems.append(error)

        reader = threading.Thread(target=read)
        reader.start()

        def work(name: str) -> None:
            assert len(ids(store, "t")) >= 5
            for number in range(3):
                put(store, "t", f"{name}-{number}")
                assert ids(store, "t")[-1] == f"{name}-{number}"

        for child in range(10):
            _wait_for(_in_fork(lambda child=child: work(f"child{child}")))  # type: ignore[misc]
        stop.set()
        reader.join()
        assert not problems, problems
        assert reads
        assert [item.id for item in listing] == ["before-3", "before-2", "before-1", "before-0"]
        put(store, "t", "after")
        assert ids(store, "t")[-1] == "after"
    say("fine")


class _Gated(Vfs):
    """Stops the first commit of the process that made it, under the commit lock, until told to go on."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def point(self, name: str) -> None:
        if name == "commit:resolved" and os.getpid() == self._pid:
            self.reached.set()
            self.go_on.wait()


def fork_during_put(store_path: str, size: str) -> None:
    """Fork while another thread is in the middle of a put; the child puts into the same thread of the store."""
    vfs = _Gated()
    with opened(Path(store_path), vfs=vfs) as store:
        text = "value of parent " + os.urandom(int(size)).hex()
        putting = threading.Thread(target=put, args=(store, "t", "parent", None, text))
        putting.start()
        vfs.reached.wait()

        def work() -> None:
            signal.alarm(3)  # ends a child that waits for a lock which nobody holds any more
            put(store, "t", "child", None, "value of child " + os.urandom(int(size)).hex())

        pid = _in_fork(work)
        vfs.go_on.set()
        putting.join()
        _wait_for(pid)
        say(" ".join(ids(store, "t")))


def fork_and_close(store_path: str) -> None:
    """A child that closes the store, one that exits without, and one that never touches it: the parent stays in."""
    with opened(Path(store_path), vfs=Vfs()) as store:
        put(store, "t", "first")

        def use_and_close() -> None:
            put(store, "t", "from a child that closes")
            store.close()

        _wait_for(_in_fork(use_and_close))
        _wait_for(_in_fork(store.close))
        _wait_for(_in_fork(lambda: put(store, "t", "from a child that exits")))
        _wait_for(_in_fork(lambda: None))
        pid = os.fork()
        if pid == 0:
            sys.exit(0)  # runs what is registered for the exit of the interpreter
        _wait_for(pid)
        put(store, "t", "last")
        say(", ".join(ids(store, "t")))


def prefork(store_path: str, workers: str) -> None:
    """A server: the store is opened, workers are forked, each writes its own chain; the parent never writes."""
    with opened(Path(store_path), vfs=Vfs()) as store:
        assert ids(store, "t") == []

        def work(name: str) -> None:
            for number in range(20):
                put(store, "t", f"{name}-{number}")

        for pid in [_in_fork(lambda name=f"w{number}": work(name)) for number in range(int(workers))]:  # type: ignore[misc]
            _wait_for(pid)
        say(" ".join(ids(store, "t")))


def prefork_saver(store_path: str, workers: str) -> None:
    """A server: the saver is opened and used, workers are forked that all use it in a loop of their own, and the parent goes on."""
    from langgraph.checkpoint.ckptstore import CkptSaver

    from tests.helpers import checkpoint, config

    def given(id: str, thread: str) -> tuple[Any, Any, Any, Any]:
        return config(thread=thread), checkpoint(id, {"log": id}, {"log": 1}), {}, {"log": 1}

    async def work(name: str) -> None:
        for number in range(10):
            id = f"{name}-{number}"
            await asyncio.gather(saver.aput(*given(id, "shared")), saver.aput(*given(id, name)))
            found = await saver.aget_tuple(config(id, thread=name))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"log": id}

    with CkptSaver(store_path, durability="process") as saver:
        saver.put(*given("before", "shared"))
        pids = [_in_fork(lambda name=f"w{number}": asyncio.run(work(name))) for number in range(int(workers))]  # type: ignore[misc]
        asyncio.run(work("parent"))
        for pid in pids:
            _wait_for(pid)
        say("done")


def _pool_worker(store_path: str, name: str) -> int:
    with opened(Path(store_path), vfs=Vfs()) as store:
        for number in range(5):
            put(store, "t", f"{name}-{number}")
        return len(ids(store, "t"))


def pool(store_path: str, method: str) -> None:
    """multiprocessing with the store open in the parent."""
    with opened(Path(store_path), vfs=Vfs()) as store:
        put(store, "t", "first")
        with multiprocessing.get_context(method).Pool(2) as workers:
            counts = workers.starmap(_pool_worker, [(store_path, f"w{number}") for number in range(3)])
        assert max(counts) <= 16
        put(store, "t", "last")
        say(" ".join(ids(store, "t")))


def orphan(store_path: str) -> None:
    """The forking process is killed; the child it left behind goes on, and does not keep its locks."""
    with opened(Path(store_path), vfs=Vfs()) as store:
        put(store, "t", "parent")
        if os.fork():
            os.kill(os.getpid(), 9)
        say(f"child {os.getpid()}")  # it has let go by now of what it inherited
        hear()
        put(store, "t", "orphan")
        say(" ".join(ids(store, "t")))
    os._exit(0)


def orphan_of_a_holder(store_path: str) -> None:
    """The forking process is killed while another thread of it holds the commit lock; the child it left behind does nothing."""
    with opened(Path(store_path), vfs=Vfs()) as store:
        holding, never = threading.Event(), threading.Event()

        def resolve(view: View) -> list[Any]:
            holding.set()
            never.wait()
            return []

        threading.Thread(target=store._storage.commit, args=(resolve,), daemon=True).start()
        holding.wait()
        if os.fork():
            os.kill(os.getpid(), 9)
        say(f"child {os.getpid()}")  # it has let go by now of what it inherited
        hear()
    os._exit(0)


def orphan_of_a_compactor(store_path: str) -> None:
    """The forking process is killed while another thread of it compacts; the child it left behind does nothing."""
    compacting, never = threading.Event(), threading.Event()

    class Waiting(Vfs):
        def point(self, name: str) -> None:
            if name == "compact:written":
                compacting.set()
                never.wait()

    with opened(Path(store_path), vfs=Waiting(), auto_compact=False) as store:
        put(store, "t", "first")
        put(store, "gone", "second")
        store.delete("gone")
        threading.Thread(target=store.compact, daemon=True).start()
        compacting.wait()
        if os.fork():
            os.kill(os.getpid(), 9)
        say(f"child {os.getpid()}")  # it has let go by now of what it inherited
        hear()
    os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
