"""`ckpt backup` and `ckpt restore`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ckptstore
from tests.cli.stores import put
from tests.cli.test_table import contents, one_line


def listed(ckpt: Callable[..., Any], path: Path) -> Any:
    return json.loads(ckpt("threads", path, "--json").out)


def test_there_and_back(ckpt: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    first = json.loads(ckpt("backup", folder, tmp_path / "b", "--json").out)
    assert list(first) == ["segments", "bytes", "copied_segments", "copied_bytes", "last_lsn", "taken_ms"]
    with ckptstore.open(folder) as store:
        put(store, "new", "c1", None, "while it is open")
        assert ckpt("backup", folder, tmp_path / "b").code == 0
    again = json.loads(ckpt("backup", folder, tmp_path / "b", "--json").out)
    assert again["last_lsn"] > first["last_lsn"]
    done = json.loads(ckpt("restore", tmp_path / "b", tmp_path / "r", "--json").out)
    assert list(done) == ["segments", "bytes", "last_lsn", "taken_ms", "timeline"]
    assert listed(ckpt, tmp_path / "r") == listed(ckpt, folder)
    assert ckpt("verify", tmp_path / "r").code == 0
    assert json.loads(ckpt("inspect", tmp_path / "r", "--json").out)["timeline"] == done["timeline"]


def test_what_cannot_be_restored(ckpt: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    one_line(ckpt("restore", tmp_path / "nowhere", tmp_path / "r"), 3, "nowhere")
    one_line(ckpt("restore", folder, tmp_path / "r"), 3, str(folder))
    assert ckpt("backup", folder, tmp_path / "b").code == 0
    before = contents(folder)
    one_line(ckpt("restore", tmp_path / "b", folder), 3, str(folder))
    assert contents(folder) == before
    for file in (tmp_path / "b").rglob("*.seg"):
        file.write_bytes(file.read_bytes()[:-40] + b"\0" * 40)
    one_line(ckpt("restore", tmp_path / "b", tmp_path / "r"), 1)
    assert not (tmp_path / "r").exists()


def test_a_backup_is_not_laid_over_something_else(ckpt: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("hello")
    one_line(ckpt("backup", folder, tmp_path / "mine"), 3, "mine")
    one_line(ckpt("backup", folder, folder / "inside"), 2, "outside the store")


def test_a_folder_that_is_refused_is_left_as_it_is(ckpt: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("hello")
    assert ckpt("backup", folder, tmp_path / "mine").code == 3
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
