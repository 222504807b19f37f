"""`ckpt writes`: which child was made of which batch, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ckptstore
from ckptstore import channels
from ckptstore.model import LaneName, Source
from ckptstore.ownership import by_token
from tests.cli.stores import encode
from tests.helpers import flip, frames


def report(ckpt: Callable[..., Any], *arguments: object, code: int = 0) -> dict[str, Any]:
    ran = ckpt("writes", *arguments, "--json")
    assert (ran.code, ran.err) == (code, "")
    found = json.loads(ran.out)
    assert isinstance(found, dict)
    return found


def consumers(found: dict[str, Any]) -> dict[str, list[tuple[str, str, bool]]]:
    return {
        batch["task_id"]: [(item["id"], item["how"], item["late"]) for item in batch["consumers"]] for batch in found["batches"]
    }


def filled(path: Path) -> Path:
    """A parent with batches of two writers, of nobody, one that comes late, and one that nobody used."""

    def child(store: ckptstore.Store, id: str, token: bytes, source: Source = Source.LOOP) -> None:
        store.put_checkpoint(
            LaneName("t"),
            id,
            "p",
            skeleton={},
            metadata={},
            versions={},
            values={},
            changed=(),
            encode=encode,
            token=token,
            source=source,
            rule=lambda edge: by_token(edge, token, source),
        )

    with ckptstore.open(path) as store:

        def write(task: str, token: bytes, **more: Any) -> None:
            writes = [(0, "log", f"by {task}"), (-1, "__error__", "odd")]
            store.put_writes(LaneName("t"), "p", writes, task_id=task, encode=encode, token=token, **more)

        store.put_checkpoint(LaneName("t"), "p", None, skeleton={}, metadata={}, versions={}, values={}, changed=(), encode=encode)
        write("mine", b"A")
        write("nobody's", b"")
        child(store, "loop", b"A")
        write("update", b"B")
        write("update", b"B")
        child(store, "updated", b"B", Source.UPDATE)
        write("late", b"A", late=lambda children: children[0])
        write("unused", b"C")
        write("orphan", b"C")
        store.put_writes(LaneName("t"), "never stored", [(0, "log", "x")], task_id="early", encode=encode)
    return path


def test_each_batch_names_the_child_it_made_and_why(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    found = report(ckpt, filled(tmp_path / "s"), "t@p")
    assert list(found) == ["thread", "ns", "id", "stored", "batches", "problems"]
    assert list(found["batches"][0]) == ["lsn", "task_id", "task_path", "origin", "token", "writes", "consumers"]
    assert list(found["batches"][0]["consumers"][0]) == ["id", "how", "late", "gated"]
    assert [batch["task_id"] for batch in found["batches"]] == ["mine", "nobody's", "update", "update", "late", "unused", "orphan"]
    assert consumers(found) == {
        "mine": [("loop", "newest", False)],
        "nobody's": [("loop", "first", False)],
        "update": [("updated", "every", False)],
        "late": [("loop", "newest", True)],
        "unused": [],
        "orphan": [],
    }
    assert found["batches"][0]["writes"] == [
        {"idx": 0, "channel": "log", "value": {"$opaque": "text", "size": 7, "why": "written by another serializer"}},
        {"idx": -1, "channel": "__error__", "value": {"$opaque": "text", "size": 3, "why": "written by another serializer"}},
    ]


def test_the_text_says_it_in_words(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    text = ckpt("writes", filled(tmp_path / "s"), "t@p").out
    for words in (
        "7 batches on p",
        "newest: the child's own writer",
        "late: it came after the child",
        "pending: no child",
        "every: each",
    ):
        assert words in text


def test_writes_on_what_was_never_stored(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    found = report(ckpt, filled(tmp_path / "s"), "t", "--id", "never stored")
    assert (found["stored"], [batch["task_id"] for batch in found["batches"]]) == (False, ["early"])
    assert "which is not stored" in ckpt("writes", tmp_path / "s", "t", "--id", "never stored").out


def test_a_native_step_is_of_its_own_batch(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        thread = store.thread("t", schema={"m": channels.append()})
        thread.step({"m": [1]})
        thread.step({"m": [2]})
        last = thread.step({"m": channels.Overwrite([3])})
        thread.step({"m": [4]})
    found = report(ckpt, tmp_path / "s", "t@HEAD~3")
    assert [item["how"] for item in found["batches"][0]["consumers"]] == ["every"]
    assert found["batches"][0]["writes"][0]["value"] == [2]
    assert report(ckpt, tmp_path / "s", f"t@{last.id}")["batches"][0]["consumers"][0]["late"] is False


def test_a_damaged_batch_is_a_problem_and_the_others_are_shown(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    path = filled(tmp_path / "s")
    batch = next(frame for frame in frames(path) if frame.lsn == 2)
    flip(batch.path, batch.offset + batch.size - 1)
    found = report(ckpt, path, "t@p", code=1)
    assert [item["task_id"] for item in found["batches"]] == ["nobody's", "update", "update", "late", "unused", "orphan"]
    assert "LSN 2" in found["problems"][0]
