"""docs/cli.md says what the commands do; completion; what a terminal gets and a pipe does not."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rich.progress

import ckptstore
from ckptstore.cli import output
from ckptstore.cli.app import app
from tests.cli.stores import put

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
NAMES = sorted(str(command.name) for command in app.registered_commands)


@pytest.mark.parametrize("name", NAMES)
def test_each_command_has_a_section_that_names_its_options(ckpt: Callable[..., Any], name: str) -> None:
    sections = re.findall(rf"^## `ckpt {name}[ `].*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert len(sections) == 1
    options = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", ckpt(name, "--help").out, re.MULTILINE)) - {"--help"}
    common = {"--lock-timeout", "--json"}
    assert {option for option in options - common if option not in sections[0]} == set()
    assert f"(#ckpt-{name}-" in PAGE


def test_the_table_of_contents_leads_to_the_sections() -> None:
    titles = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    links = re.findall(r"\]\(#([^)]*)\)", PAGE)
    assert len(links) == len(NAMES)
    assert set(links) <= anchors


def test_completion_of_commands() -> None:
    environment = {**os.environ, "_CKPT_COMPLETE": "complete_bash", "COMP_WORDS": "ckpt ", "COMP_CWORD": "1"}
    program = [sys.executable, "-c", "import sys; sys.argv = ['ckpt']; from ckptstore.cli import main; main()"]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.split()) == NAMES


def test_a_terminal_without_unicode_shows_codes(tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        put(store, "caf\u00e9 \u4e2d", "c1", None, "x")
    ran = subprocess.run(
        [sys.executable, "-m", "ckptstore.cli", "threads", str(tmp_path / "s")],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"caf\\xe9 \\u4e2d" in ran.stdout


def test_whoever_reads_only_the_first_lines_gets_no_error(tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s", durability="process") as store:
        for number in range(2000):
            put(store, "t", f"{number:08}", None, "x")
    command = f"{sys.executable} -m ckptstore.cli log {tmp_path / 's'} t | head -n 1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (ran.stdout.count("\n"), ran.stderr) == (1, "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("terminal", "json", "shows"), [(True, False, True), (True, True, False), (False, False, False)])
def test_a_bar_shows_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, terminal: bool, json: bool, shows: bool) -> None:
    """With the patience of a second taken away: what waits for is the bar's own thread, not a clock."""
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(output, "_PATIENCE", 0.0)
    with output.progress("counting", json) as told:
        assert (told is not None) == shows
        while told is not None and "counting" not in stream.getvalue():
            told(1, 2)
    assert ("counting" in stream.getvalue()) == shows


def test_quick_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(output, "_PATIENCE", 3600.0)
    with output.progress("counting", False) as told:
        assert told is not None
        told(1, 1)
    assert stream.getvalue() == ""


BARS = ["inspect", "threads", "log", "verify", "compact", "prune", "rm", "backup", "salvage"]
"""Commands that may take long; `restore` needs a backup first."""


def _with_a_bar(command: str, folder: Path) -> list[object]:
    more: dict[str, list[object]] = {
        "log": ["large"],
        "prune": ["--keep-last", 1],
        "rm": ["large", "--yes"],
        "backup": [folder.parent / "b"],
        "salvage": [folder.parent / "saved"],
    }
    return [command, folder, *more.get(command, [])]


@pytest.mark.parametrize("command", BARS)
def test_bars_have_an_end_and_json_has_no_bar(
    ckpt: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    ends: list[Any] = []
    update = rich.progress.Progress.update

    def watched(self: rich.progress.Progress, task: Any, **named: Any) -> None:
        ends.append(named["total"])
        update(self, task, **named)

    monkeypatch.setattr(rich.progress.Progress, "update", watched)
    monkeypatch.setattr("ckptstore.inspect.threads._TOLD_EVERY", 1)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(output, "_PATIENCE", 0.0)
    code = ckpt(*_with_a_bar(command, folder), "--json").code
    assert (code, stream.getvalue(), ends) == (0, "", [])
    if command in ("rm", "salvage"):
        return  # done, and not to be done again
    assert ckpt(*_with_a_bar(command, folder)).code == 0
    assert ends
    assert all(isinstance(end, int) and end > 0 for end in ends)


def test_ctrl_c_is_one_line(ckpt: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ckptstore.Store, "compact", stop)
    ran = ckpt("compact", folder)
    assert (ran.code, ran.out, ran.err) == (130, "", "ckpt: stopped\n")
