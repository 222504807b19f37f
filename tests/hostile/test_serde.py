"""Where trust begins: the store hands out bytes, and the serde that reads them decides what they become."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import ckptstore
from ckptstore import LaneName
from ckptstore.cli.app import run
from tests.helpers import config
from tests.hostile.stores import read_everything

SOURCE = """
made = []
class Thing:
    def __init__(self, *arguments):
        made.append(arguments)
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store in which a value, a write and metadata name a class of a module that nobody has imported."""
    (tmp_path / "named_by_bytes.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    thing = msgpack.packb(msgpack.ExtType(0, msgpack.packb(["named_by_bytes", "Thing", "x"])))
    typed = ("msgpack", thing)
    with ckptstore.open(tmp_path / "store", durability="process") as opened:
        for id, parent in (("c1", None), ("c2", "c1")):
            opened.put_checkpoint(
                LaneName("t"),
                id,
                parent,
                skeleton={"v": 4, "ts": "", "versions_seen": {}, "updated_channels": None},
                metadata={"step": 1},
                versions={"log": id},
                values={"log": typed},
                changed={"log"},
                encode=lambda channel, value: value,
            )
        opened.put_writes(LaneName("t"), "c2", [(0, "log", typed)], task_id="task", encode=lambda channel, value: value)
    yield tmp_path / "store"
    sys.modules.pop("named_by_bytes", None)


def test_the_engine_and_its_commands_import_nothing_that_bytes_name(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ckptstore.open(store) as opened:
        read_everything(opened)
        opened.compact()
        opened.backup(store.with_name("backup"))
    ckptstore.verify(store)
    ckptstore.salvage(store, store.with_name("saved"))
    ckptstore.restore(store.with_name("backup"), store.with_name("restored"))
    for arguments in (["show", str(store), "t"], ["log", str(store), "t"], ["writes", str(store), "t"], ["inspect", str(store)]):
        assert run(arguments) == 0
    assert "named_by_bytes.Thing" in capsys.readouterr().out
    assert "named_by_bytes" not in sys.modules


def test_what_a_value_becomes_is_the_serdes_business(store: Path) -> None:
    """LangGraph's own imports and calls what the bytes name, unless it is told which modules it may."""
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    with CkptSaver(store, serde=strict) as saver:
        found = saver.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"log": "x"}
        assert "named_by_bytes" not in sys.modules
    with CkptSaver(store, serde=JsonPlusSerializer(allowed_msgpack_modules=True)) as saver:
        found = saver.get_tuple(config())
        assert found is not None
        assert type(found.checkpoint["channel_values"]["log"]).__module__ == "named_by_bytes"
    assert sys.modules["named_by_bytes"].made
