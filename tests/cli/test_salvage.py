"""`ckpt salvage`: damaged stores become new ones, and what is lost is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers import flip, frames


def test_a_store_that_is_whole(ckpt: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    ran = ckpt("salvage", folder, tmp_path / "saved", "--json")
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(ran.out)
    assert (report["damage"], report["lost"], report["more"]) == ([], [], 0)
    assert json.loads(ckpt("threads", tmp_path / "saved", "--json").out)["total"] == report["threads"]
    assert ckpt("verify", tmp_path / "saved").code == 0


def test_r45_a_changed_byte(ckpt: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    """What is lost is named and the rest is in a sound store; the damaged one stays as it is."""
    frame = list(frames(folder))[5]
    flip(frame.path, frame.offset + frame.size - 1)
    before = frame.path.read_bytes()
    ran = ckpt("salvage", folder, tmp_path / "saved")
    assert (ran.code, ran.err) == (1, "")
    assert f"LSN {frame.lsn}" in ran.out
    assert frame.path.read_bytes() == before
    assert ckpt("threads", tmp_path / "saved").code == 0
    assert "problems     none" in ckpt("verify", tmp_path / "saved").out


def test_what_is_not_there_and_what_is_in_the_way(ckpt: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    ran = ckpt("salvage", tmp_path / "nowhere", tmp_path / "saved")
    assert (ran.code, ran.out) == (3, "")
    assert "nowhere" in ran.err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    ran = ckpt("salvage", folder, tmp_path / "full")
    assert (ran.code, ran.out) == (3, "")
    assert "full" in ran.err
    assert os.listdir(tmp_path / "full") == ["a"]
