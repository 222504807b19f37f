"""Exit codes, one line on stderr, no traceback, no secrets; and the command without its extra."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptstore
from tests.cli.stores import SECRET, put

COMMANDS = ["inspect", "threads"]


def refused(ran: Any, code: int, *words: str) -> None:
    """One line on stderr that says these words, and nothing on stdout."""
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("ckpt: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_a_store_is_refused(ckpt: Callable[..., Any], tmp_path: Path, command: str) -> None:
    refused(ckpt(command, tmp_path / "nowhere"), 3, "no store", "nowhere")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").write_text("hello")
    refused(ckpt(command, tmp_path / "file"), 3, "is a file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("hello")
    refused(ckpt(command, tmp_path / "other"), 3, "no store")
    assert os.listdir(tmp_path / "other") == ["notes.txt"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_newer_format_is_refused(ckpt: Callable[..., Any], folder: Path, command: str) -> None:
    facts = json.loads((folder / "STORE").read_text())
    (folder / "STORE").write_text(json.dumps({**facts, "ckptstore": 99}))
    refused(ckpt(command, folder), 3, "format 99", "upgrade")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_segment_of_another_store_is_refused(ckpt: Callable[..., Any], folder: Path, tmp_path: Path, command: str) -> None:
    ckptstore.open(tmp_path / "second").close()
    name = "00000000000000000001.seg"
    (folder / "segments" / name).write_bytes((tmp_path / "second" / "segments" / name).read_bytes())
    refused(ckpt(command, folder), 3, name)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_that_is_being_recovered_is_waited_for_and_then_refused(
    ckpt: Callable[..., Any], folder: Path, command: str
) -> None:
    with (folder / "LOCK").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(ckpt(command, folder, "--lock-timeout", "0.05"), 3, "being opened or recovered")
    assert ckpt(command, folder).code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_damage_that_forbids_opening_is_a_problem_found(ckpt: Callable[..., Any], folder: Path, command: str) -> None:
    os.truncate(folder / "segments" / "00000000000000000001.seg", 200)
    refused(ckpt(command, folder), 1, "00000000000000000001.seg", "truncated")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["inspect"],
        ["nonsense"],
        ["inspect", "a", "b"],
        ["inspect", "a", "--top", "-1"],
        ["inspect", "a", "--top", "many"],
        ["threads", "a", "--limit", "-1"],
        ["threads", "a", "--sort", "colour"],
        ["threads", "a", "--lock-timeout", "0"],
        ["inspect", "a", "--lock-timeout", "nan"],
    ],
)
def test_usage(ckpt: Callable[..., Any], arguments: list[str]) -> None:
    refused(ckpt(*arguments), 2)


def test_help_is_fine(ckpt: Callable[..., Any]) -> None:
    for arguments in (["--help"], ["inspect", "--help"], ["threads", "--help"]):
        ran = ckpt(*arguments)
        assert (ran.code, ran.err) == (0, "")
        assert "Usage" in ran.out


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("command", COMMANDS)
def test_values_metadata_and_secrets_are_not_printed(
    ckpt: Callable[..., Any], folder: Path, command: str, options: list[str]
) -> None:
    ran = ckpt(command, folder, *options)
    assert ran.code == 0
    assert SECRET not in ran.out
    assert "api_key" not in ran.out


def test_looking_while_another_process_writes(folder: Path) -> None:
    """The command joins an open store, sees what was committed, and leaves the writer alone."""
    with ckptstore.open(folder) as store:
        put(store, "new", "c1", None, "hello")
        ran = subprocess.run(
            [sys.executable, "-m", "ckptstore.cli", "threads", str(folder), "--json"], capture_output=True, text=True, timeout=60
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert [item["thread"] for item in json.loads(ran.stdout)["threads"]] == ["small", "large", "new"]
        put(store, "new", "c2", "c1", "still writing")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from ckptstore.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr == f"ckpt: needs {missing}: pip install 'ckptstore[cli]'\n"


def test_a_closed_pipe_is_no_traceback(folder: Path) -> None:
    command = f"{sys.executable} -m ckptstore.cli threads {folder} | true"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in ran.stderr
