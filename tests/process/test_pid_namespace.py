"""Two containers, one volume.

An LMDB index must not be shared across pid namespaces, so the second one is refused by name; an sqlite one is shared, both writing.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.programs import opened, seen
from tests.process.child import ids, put

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def _why_not() -> str | None:
    try:
        subprocess.run([*UNSHARE, "true"], check=True, capture_output=True, timeout=20)
    except FileNotFoundError:
        return "there is no unshare here"
    except (subprocess.SubprocessError, OSError):
        return "making a pid namespace is not permitted here"
    return None


pytestmark = pytest.mark.skipif((WHY_NOT := _why_not()) is not None, reason=WHY_NOT or "")


def test_an_open_store_is_refused_in_another_pid_namespace(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    with opened(tmp_path / "store") as store:
        put(store, "t", "one")
        refused = spawn("try_to_open", tmp_path / "store", before=UNSHARE)
        answer = refused.hear()
        assert answer.startswith("IndexUnusableError ")
        assert "another pid namespace" in answer
        assert "close it there first, and open it with index='sqlite'" in answer
        refused.finish()
        put(store, "t", "two")
        assert ids(store, "t") == ["one", "two"]
    welcome = spawn("try_to_open", tmp_path / "store", before=UNSHARE)
    assert welcome.hear() == "read one two"
    welcome.finish()


def test_a_store_open_in_another_pid_namespace_is_refused_here(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    inside = spawn("neighbour", tmp_path / "store", before=UNSHARE)
    assert inside.hear() == "open"
    here = spawn("try_to_open", tmp_path / "store")
    assert here.hear().startswith("IndexUnusableError ")
    here.finish()
    inside.say("put one")
    assert inside.hear() == "stored"
    inside.finish()
    with opened(tmp_path / "store") as store:
        assert ids(store, "t") == ["one"]


# -- sqlite ------------------------------------------------------------------------------------------------------------------


def test_an_sqlite_store_is_shared_with_another_pid_namespace(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    """Both write and see each other's commits at once; whoever was there first leaves and comes back."""
    with opened(tmp_path / "store", index="sqlite") as store:
        inside = spawn("neighbour", tmp_path / "store", before=UNSHARE)
        assert inside.hear() == "open"
        expected: list[str] = []
        for number in range(10):
            put(store, "t", f"here-{number}")
            inside.say(f"put inside-{number}")
            assert inside.hear() == "stored"
            expected += [f"here-{number}", f"inside-{number}"]
            assert ids(store, "t") == expected
            inside.say("read")
            assert inside.hear().split() == expected
    inside.say("put alone")
    assert inside.hear() == "stored"
    with opened(tmp_path / "store") as store:
        assert ids(store, "t") == [*expected, "alone"]
        put(store, "t", "again")
    inside.say("read")
    assert inside.hear().split() == [*expected, "alone", "again"]
    inside.finish()
    with opened(tmp_path / "store") as store:
        assert ids(store, "t") == [*expected, "alone", "again"]


def test_two_pid_namespaces_write_at_full_speed(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    with opened(tmp_path / "store", index="sqlite"):
        pass
    writers = [spawn("write", tmp_path / "store", f"p{number}", 40, 2, "process", before=UNSHARE) for number in range(2)]
    for child in writers:
        assert child.hear() == "open"
    for child in writers:
        child.say("go")
    for child in writers:
        assert child.hear() == "done"
        child.finish()
    with opened(tmp_path / "store") as store:
        found = [checkpoint.id for lane in seen(store).values() for checkpoint in lane]
    assert sorted(found) == sorted(f"p{number}-{at:03}" for number in range(2) for at in range(40))


def test_a_container_that_is_killed_stops_nobody(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    """It holds the commit lock when it goes."""
    with opened(tmp_path / "store", index="sqlite", lock_timeout=20) as store:
        put(store, "t", "first")
        inside = spawn("hold_lock", tmp_path / "store", before=UNSHARE)
        assert inside.hear() == "holding"
        os.kill(inside.pid, signal.SIGKILL)  # unshare takes what it started with it
        inside.process.wait()
        put(store, "t", "second")
        assert ids(store, "t") == ["first", "second"]
