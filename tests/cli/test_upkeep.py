"""`ckpt prune`, `rm`, `copy` and `compact`: nothing happens without --yes, and what is left reads as before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptstore
from ckptstore import channels
from ckptstore.model import LaneName
from tests.cli import agents
from tests.cli.stores import encode, put
from tests.cli.test_table import contents, one_line
from tests.helpers import random_text


def state(ckpt: Callable[..., Any], *arguments: object) -> Any:
    """The channels of a checkpoint, without how they came about: pruning moves values into the survivor's history."""
    ran = ckpt("show", *arguments, "--json")
    assert ran.code == 0
    return [(item["name"], item["value"], item["seed"], item["writes"]) for item in json.loads(ran.out)["channels"]]


def test_prune_says_what_would_go_then_does_it(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "s"
    agents.fill(path)
    before, head = contents(path), state(ckpt, path, "chat")
    planned = ckpt("prune", path, "--keep-last", 1)
    assert planned.code == 0
    assert "nothing was changed: add --yes" in planned.out
    assert contents(path) == before
    plan = json.loads(ckpt("prune", path, "--keep-last", 1, "--json").out)
    assert list(plan) == ["threads", "removed", "deleted", "bytes", "unmet", "dry_run"]
    assert list(plan["threads"][0]) == ["thread", "removed", "kept", "deleted", "bytes"]
    assert plan["dry_run"]
    done = json.loads(ckpt("prune", path, "--thread", "chat", "--keep-last", 1, "--yes", "--json").out)
    assert not done["dry_run"]
    assert done["removed"] == plan["removed"] > 5
    left = json.loads(ckpt("log", path, "chat", "--json").out)
    assert left["total"] == plan["threads"][0]["kept"]
    assert state(ckpt, path, "chat") == head
    assert "nothing to remove" in ckpt("prune", path, "--keep-last", 1, "--yes").out
    assert ckpt("compact", path).code == 0
    assert state(ckpt, path, "chat") == head
    assert ckpt("verify", path).code == 0


def test_each_limit_reaches_the_policy(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "s"
    with ckptstore.open(path) as store:
        for name in ("a", "b"):
            thread = store.thread(name, schema={"items": channels.append()})
            for _ in range(9):
                thread.step({"items": [random_text(1000)]})

    def removed(*arguments: object) -> dict[str, int]:
        ran = ckpt("prune", path, *arguments, "--json")
        assert ran.code == 0
        return {item["thread"]: item["removed"] for item in json.loads(ran.out)["threads"]}

    assert removed("--keep-last", 4) == {"a": 5, "b": 5}
    assert removed("--keep-last", 4, "--thread", "b") == {"b": 5}
    assert removed("--keep-last", 4, "--pin", "a") == {"b": 5}
    assert removed("--older-than", "1w") == {}
    assert removed("--idle", "1w") == {}
    assert removed("--max-bytes-per-thread", "1G", "--max-bytes", "1G") == {}
    assert removed("--max-bytes-per-thread", "20K") == removed("--max-bytes-per-thread", "20480")
    assert removed("--max-bytes-per-thread", "4K", "--pin", "b").keys() == {"a"}
    with ckptstore.open(path, durability="process") as store:
        # As if written long ago: the times stand in the checkpoints.
        for number in range(3):
            put_at(store, "old", f"o{number}", f"o{number - 1}" if number else None)
    assert removed("--older-than", "1w") == {"old": 2}
    assert removed("--idle", "1w") == {"old": 3}
    assert json.loads(ckpt("prune", path, "--idle", "1w", "--yes", "--json").out)["deleted"] == 1
    assert [item["thread"] for item in json.loads(ckpt("threads", path, "--json").out)["threads"]] == ["a", "b"]


def put_at(store: ckptstore.Store, thread: str, id: str, parent: str | None) -> None:
    """A checkpoint of the year 2001."""
    store.put_checkpoint(
        LaneName(thread),
        id,
        parent,
        skeleton={"ts": "2001-01-01T00:00:00+00:00"},
        metadata={},
        versions={"m": id},
        values={"m": id},
        changed={"m"},
        encode=encode,
    )


def test_a_limit_that_cannot_be_met_is_said(ckpt: Callable[..., Any], folder: Path) -> None:
    ran = ckpt("prune", folder, "--max-bytes", "1")
    assert ran.code == 1
    assert "problem: " in ran.out
    assert json.loads(ckpt("prune", folder, "--max-bytes", "1", "--json").out)["unmet"]


def test_a_thread_that_is_not_there(ckpt: Callable[..., Any], folder: Path) -> None:
    one_line(ckpt("prune", folder, "--keep-last", 1, "--thread", "nobody", "--yes"), 3, "no thread 'nobody'")


def test_r09_space_comes_back(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "s"
    agents.fill(path)
    full = json.loads(ckpt("inspect", path, "--json", "--top", 0).out)["log_bytes"]
    assert ckpt("rm", path, "chat", "--yes").code == 0
    done = json.loads(ckpt("compact", path, "--json").out)
    assert list(done) == ["segments_before", "segments_after", "bytes_before", "bytes_after", "frames_dropped", "bytes_freed"]
    assert done["bytes_freed"] == done["bytes_before"] - done["bytes_after"] > full // 2
    assert json.loads(ckpt("threads", path, "--json").out)["total"] == 0


def test_rm_is_all_or_nothing(ckpt: Callable[..., Any], folder: Path) -> None:
    ran = ckpt("rm", folder, "small", "nobody", "--yes")
    assert (ran.code, ran.out) == (3, "")
    assert "no thread 'nobody'" in ran.err
    assert json.loads(ckpt("threads", folder, "--json").out)["total"] == 2
    assert "would go" in ckpt("rm", folder, "small").out
    assert json.loads(ckpt("threads", folder, "--json").out)["total"] == 2
    done = json.loads(ckpt("rm", folder, "small", "large", "small", "--yes", "--json").out)
    assert [(item["thread"], item["removed"]) for item in done["threads"]] == [("small", 1), ("large", 3)]
    assert json.loads(ckpt("threads", folder, "--json").out)["total"] == 0


def test_copy(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "s"
    agents.fill(path)
    done = json.loads(ckpt("copy", path, "chat", "chat/2@x", "--json").out)
    assert (done["source"], done["destination"], done["checkpoints"] > 10) == ("chat", "chat/2@x", True)
    assert state(ckpt, path, "--thread", "chat/2@x") == state(ckpt, path, "chat")
    again = ckpt("copy", path, "chat", "chat/2@x")
    assert again.code == 3
    assert "exists" in again.err
    assert ckpt("copy", path, "nobody", "new").code == 3


@pytest.mark.parametrize(
    "command", [["compact"], ["prune", "--keep-last", "1", "--yes"], ["rm", "large", "--yes"], ["copy", "large", "new"]]
)
def test_beside_an_application_that_writes(folder: Path, command: list[str]) -> None:
    with ckptstore.open(folder) as store:
        arguments = [command[0], str(folder), *command[1:]]
        ran = subprocess.run([sys.executable, "-m", "ckptstore.cli", *arguments], capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert store.copy("small", "still writing") == 1


def test_what_is_not_there_is_not_created(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    for command in (["compact"], ["prune", "--keep-last", "1", "--yes"], ["rm", "t", "--yes"], ["copy", "a", "b"]):
        assert ckpt(command[0], tmp_path / "new", *command[1:]).code == 3
    assert list(tmp_path.iterdir()) == []


def on_disk(folder: Path) -> bytes:
    """All files of a store, one after the other."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_erasing_leaves_no_byte(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "s"
    with ckptstore.open(path) as store:
        put(store, "keep", "k1", None, "kept text")
        put(store, "gone", "g1", None, "marker-of-the-erased")
    assert b"marker-of-the-erased" in on_disk(path)
    assert "would go" in ckpt("rm", path, "gone", "--erase").out
    assert b"marker-of-the-erased" in on_disk(path)
    assert ckpt("rm", path, "gone", "--erase", "--yes").code == 0
    assert b"marker-of-the-erased" not in on_disk(path)
    assert b"kept text" in on_disk(path)
    # Once more, as one would after it was interrupted.
    assert ckpt("rm", path, "gone", "--erase", "--yes").code == 0
    assert ckpt("verify", path).code == 0


def test_copies_are_named_before_anything_goes(ckpt: Callable[..., Any], folder: Path) -> None:
    assert ckpt("copy", folder, "large", "copy 1").code == 0
    assert ckpt("copy", folder, "copy 1", "copy 2").code == 0
    for options in (["--erase"], ["--erase", "--yes"]):
        ran = ckpt("rm", folder, "large", *options)
        assert (ran.code, ran.out) == (3, "")
        assert "'copy 1', 'copy 2'" in ran.err
        assert "--with-copies" in ran.err
    assert ckpt("rm", folder, "large", "--with-copies").code == 2
    plan = json.loads(ckpt("rm", folder, "large", "--erase", "--with-copies", "--json").out)
    assert [item["thread"] for item in plan["threads"]] == ["large", "copy 1", "copy 2"]
    done = json.loads(ckpt("rm", folder, "large", "--erase", "--with-copies", "--yes", "--json").out)
    assert (done["threads"], done["done"]) == (plan["threads"], True)
    assert [item["thread"] for item in json.loads(ckpt("threads", folder, "--json").out)["threads"]] == ["small"]
