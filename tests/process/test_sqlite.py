"""Several processes on a store with an sqlite index: what the other files of this folder show with the default kind, where it matters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptstore.errors import IndexUnusableError
from tests.crash.programs import opened, seen
from tests.process.child import ids, put

Spawn = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A closed store that keeps its sqlite index, whoever opens it."""
    with opened(tmp_path / "store", index="sqlite"):
        pass
    yield tmp_path / "store"
    assert json.loads((tmp_path / "store" / "index" / "OWNER").read_text())["kind"] == "sqlite"


def test_many_writers_lose_and_double_nothing(path: Path, spawn: Spawn) -> None:
    """And an index built from the log afterwards says the same, in either kind."""
    writers = [spawn("write", path, f"p{number}", 40, 2, "process") for number in range(3)]
    for child in writers:
        assert child.hear() == "open"
    for child in writers:
        child.say("go")
    with opened(path) as store:  # a reader among them
        while len(found := seen(store)) < 2 or sum(map(len, found.values())) < 120:
            for lane in found.values():
                for writer in range(3):
                    chain = [checkpoint.id for checkpoint in lane if checkpoint.id.startswith(f"p{writer}-")]
                    assert chain == sorted(set(chain))
        for child in writers:
            assert child.hear() == "done"
            child.finish()
        found = seen(store)
    assert sorted(checkpoint.id for lane in found.values() for checkpoint in lane) == sorted(
        f"p{number}-{at:03}" for number in range(3) for at in range(40)
    )
    for kind in ("lmdb", "sqlite"):
        with opened(path, index=kind) as store:
            assert seen(store) == found


def test_commits_are_seen_by_the_others_at_once(path: Path, spawn: Spawn) -> None:
    with opened(path) as store:
        child = spawn("neighbour", path)
        assert child.hear() == "open"
        expected: list[str] = []
        for number in range(25):
            put(store, "t", f"parent-{number}")
            child.say("read")
            expected.append(f"parent-{number}")
            assert child.hear().split() == expected
            child.say(f"put child-{number}")
            assert child.hear() == "stored"
            expected.append(f"child-{number}")
            assert ids(store, "t") == expected
        child.finish()


def test_a_paused_list_in_another_process_blocks_nobody(path: Path, spawn: Spawn) -> None:
    with opened(path, lock_timeout=5) as store:
        for number in range(5):
            put(store, "t", f"{number}")
        child = spawn("hold_list", path)
        assert child.hear() == "4 3"
        for number in range(5, 200):  # the log of SQLite is moved to its file several times meanwhile
            put(store, "t", f"{number}")
        child.say("go on")
        assert child.hear() == "2 1 0"
        child.finish()


def test_a_killed_process_stops_nobody(path: Path, spawn: Spawn) -> None:
    first, second = spawn("neighbour", path), spawn("neighbour", path)
    for child in (first, second):
        assert child.hear() == "open"
    first.say("put one")
    assert first.hear() == "stored"
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    with opened(path) as store:
        put(store, "t", "two")
        second.say("read")
        assert second.hear().split() == ["one", "two"]
    os.kill(second.pid, signal.SIGKILL)
    second.process.wait()
    with opened(path) as store:
        assert ids(store, "t") == ["one", "two"]


def test_processes_that_come_and_go(path: Path, spawn: Spawn) -> None:
    """Each is now the first one in, now the last one out, who deletes the log of SQLite."""
    children = [spawn("come_and_go", path, f"p{number}", 12) for number in range(3)]
    for child in children:
        assert child.hear() == "done"
        child.finish()
    with opened(path) as store:
        assert sorted(ids(store, "t")) == sorted(f"p{name}-{number}" for name in range(3) for number in range(12))


# -- another kind while it is open ---------------------------------------------------------------------------------------------


def test_another_kind_is_refused_while_others_have_the_store_open(path: Path, spawn: Spawn) -> None:
    child = spawn("neighbour", path)
    assert child.hear() == "open"
    with (
        pytest.raises(IndexUnusableError, match=r"open with index='sqlite', and index='lmdb' was asked for"),
        opened(path, index="lmdb"),
    ):
        pass
    for options in ({}, {"index": "sqlite"}):
        with opened(path, **options) as store:
            put(store, "t", f"with {len(options)}")
    child.say("read")
    assert child.hear() == "with 0 with 1"
    child.finish()


# -- forks -------------------------------------------------------------------------------------------------------------------


def test_a_child_writes_and_reads_while_the_parent_reads(path: Path, spawn: Spawn) -> None:
    child = spawn("fork", path)
    assert child.hear() == "fine"
    child.finish()
    with opened(path) as store:
        found = ids(store, "t")
    assert found == [*(f"before-{n}" for n in range(5)), *(f"child{c}-{n}" for c in range(10) for n in range(3)), "after"]


def test_a_child_that_closes_or_exits_leaves_the_parent_in(path: Path, spawn: Spawn) -> None:
    child = spawn("fork_and_close", path)
    assert child.hear() == "first, from a child that closes, from a child that exits, last"
    child.finish()


def test_prefork(path: Path, spawn: Spawn) -> None:
    child = spawn("prefork", path, 3)
    found = child.hear().split()
    child.finish()
    assert sorted(found) == sorted(f"w{worker}-{number}" for worker in range(3) for number in range(20))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(path: Path, spawn: Spawn, method: str) -> None:
    child = spawn("pool", path, method)
    found = child.hear().split()
    child.finish()
    assert (found[0], found[-1]) == ("first", "last")
    assert sorted(found[1:-1]) == sorted(f"w{worker}-{number}" for worker in range(3) for number in range(5))


def test_a_child_outlives_the_parent_and_holds_none_of_its_locks(path: Path, spawn: Spawn) -> None:
    child = spawn("orphan", path)
    assert child.hear().startswith("child ")
    child.process.wait()
    with opened(path, lock_timeout=5) as store:
        put(store, "t", "other")
        child.say("go on")
        assert child.hear().split() == ["parent", "other", "orphan"]


def _run(code: str, *arguments: object) -> list[str]:
    """Run a program in a process of its own; the lines it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    return done.stdout.splitlines()


_PARENT_LEAVES = """
import os, sys
from pathlib import Path
from tests.crash.programs import opened
from tests.process.child import hear, ids, put, say

path = Path(sys.argv[1])
with opened(path) as store:
    put(store, "t", "parent")
    assert ids(store, "t") == ["parent"]
    back, forth = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        put(store, "t", "child")
        os.write(back[1], b"x")
        os.read(forth[0], 1)
        put(store, "t", "child, alone")
        os._exit(0)
    os.read(back[0], 1)
# The parent is out. Had the child trusted what it inherited, SQLite would have deleted its log now.
assert (path / "index" / "00000001" / "data.db-wal").exists()
os.write(forth[1], b"x")
assert os.waitpid(pid, 0)[1] == 0
with opened(path) as store:
    print(*ids(store, "t"), sep="\\n")
"""


def test_a_parent_that_closes_does_not_take_the_log_from_its_child(path: Path) -> None:
    assert _run(_PARENT_LEAVES, path) == ["parent", "child", "child, alone"]


_IN_THE_MIDDLE = """
import os, sys, threading
from pathlib import Path
from ckptstore.errors import IndexUnusableError
from ckptstore.storage.local.index import sqlite
from tests.crash.programs import opened
from tests.process.child import _Gated, ids, put

sqlite._WAIT = 0.2
vfs = _Gated()
with opened(Path(sys.argv[1]), vfs=vfs) as store:
    putting = threading.Thread(target=put, args=(store, "t", "parent"))
    putting.start()
    vfs.reached.wait()
    pid = os.fork()
    if pid == 0:
        for attempt in range(2):
            try:
                put(store, "t", "child")
            except IndexUnusableError as error:
                print("refused:", "forked while a call on the store was going on" in str(error), flush=True)
        sys.exit(0)
    print("status:", os.waitpid(pid, 0)[1], flush=True)
    vfs.go_on.set()
    putting.join()
    put(store, "t", "parent again")
    print(*ids(store, "t"), sep=", ")
"""


def test_a_child_forked_in_the_middle_of_a_call_that_does_not_end_is_refused(path: Path) -> None:
    """The parent waits for such calls, but not for ever; its own call is not harmed, and the child ends."""
    assert _run(_IN_THE_MIDDLE, path) == ["refused: True", "refused: True", "status: 0", "parent, parent again"]


_MANY_FORKS = """
import os, sys, threading
from pathlib import Path
from tests.crash.programs import opened
from tests.process.child import ids, put

with opened(Path(sys.argv[1]), "process") as store:
    stop = threading.Event()
    written = []
    def write():
        while not stop.is_set():
            put(store, "t", f"parent-{len(written)}")
            written.append(None)
    writing = [threading.Thread(target=write)]
    writing[0].start()
    for number in range(10):
        pid = os.fork()
        if pid == 0:
            put(store, "t", f"child-{number}")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    writing[0].join()
    found = ids(store, "t")
    assert len(set(found)) == len(found)
    print([id for id in found if id.startswith("child")] == [f"child-{number}" for number in range(10)])
    print([id for id in found if id.startswith("parent")] == [f"parent-{number}" for number in range(len(written))])
"""


def test_forks_while_another_thread_writes(path: Path) -> None:
    """Each fork waits for the call that is going on, so every child may work."""
    assert _run(_MANY_FORKS, path) == ["True", "True"]


# -- a full disk -------------------------------------------------------------------------------------------------------------

_CAPPED = """
import resource, signal, sys
from pathlib import Path
from ckptstore.errors import NoSpaceError
from tests.crash.programs import opened
from tests.process.child import ids, put

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
with opened(Path(sys.argv[1]), "process", segment_bytes=4096) as store:
    put(store, "t", "0")
    # Segments are small, so it is a file of the index that meets the limit.
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
    number = 1
    try:
        while number < 2000:
            put(store, f"t{number}", "x")
            number += 1
    except NoSpaceError as error:
        print("data.db" in str(error) or "index" in str(error))
    print(number < 2000, len(list(store.threads())) == number)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    put(store, "t", "last")
    print(*ids(store, "t"))
with opened(Path(sys.argv[1])) as store:
    print(len(list(store.threads())) == number, *ids(store, "t"))
"""


@pytest.mark.parametrize("limit", [90_000, 400_000])
def test_a_full_disk_under_the_index(path: Path, limit: int) -> None:
    """Of the log of SQLite, or of its data file. Nothing is kept of the call that failed, and all goes on when there is space."""
    assert _run(_CAPPED, path, limit) == ["True", "True True", "0 last", "True 0 last"]
