"""Two containers, one volume: an LMDB index must not be shared across pid namespaces, so the second one is refused by name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.programs import opened
from tests.process.child import ids, put

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")


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
        assert "close it there first" in answer
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
