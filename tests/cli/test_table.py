"""Every command on every kind of place: one clear line and the right exit code, never a traceback; and looking writes nothing."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ckptstore
from ckptstore.cli.app import app
from tests.helpers import flip, frames

BESIDE = "a folder beside the store"
"""Stands for a path that each test has of its own."""
READING = {
    "inspect": [],
    "threads": [],
    "log": ["large"],
    "show": ["large"],
    "diff": ["large"],
    "writes": ["large"],
    "doctor": ["--no-probes"],
    "verify": [],
    "backup": [BESIDE],
}
CHANGING = {
    "compact": [],
    "prune": ["--keep-last", "1", "--yes"],
    "rm": ["large", "--yes"],
    "copy": ["large", "new"],
}
COMMANDS = {**READING, **CHANGING}
TAKES_NO_LOCK = ("verify",)
HAS_NO_TIMEOUT = ("verify", "backup")
NEEDS_A_THREAD = ("log", "show", "diff", "writes", "rm", "copy")

every = pytest.mark.parametrize("command", COMMANDS)
reading = pytest.mark.parametrize("command", READING)
changing = pytest.mark.parametrize("command", CHANGING)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder but index/ and LOCK, byte by byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.relative_to(folder).parts[0] not in ("index", "LOCK")
    }


@pytest.fixture
def run(ckpt: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run one of the commands on a folder, with the arguments it needs."""

    def call(command: str, folder: object, *more: object) -> Any:
        beside = tmp_path_factory.mktemp("beside") / "new"
        return ckpt(command, folder, *(beside if given == BESIDE else given for given in COMMANDS[command]), *more)

    return call


def waiting(command: str) -> list[str]:
    """Do not wait long."""
    return [] if command in HAS_NO_TIMEOUT else ["--lock-timeout", "0.05"]


def one_line(ran: Any, code: int, *words: str) -> None:
    assert (ran.code, ran.out) == (code, ""), ran
    assert ran.err.startswith("ckpt: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    assert "internal error" not in ran.err
    for word in words:
        assert word in ran.err


def test_every_command_is_in_the_table() -> None:
    """`restore` is not: what it reads is no store (test_backup.py). Nor is `salvage`: damage is its business (test_salvage.py). `fuzz` opens
    none (test_fuzz.py)."""
    assert {command.name for command in app.registered_commands} == COMMANDS.keys() | {"restore", "salvage", "fuzz"}


@every
def test_a_store_that_is_fine(run: Callable[..., Any], folder: Path, command: str) -> None:
    for options in ([], ["--json"]) if command in READING else (["--json"],):
        ran = run(command, folder, *options)
        assert (ran.code, ran.err) == (0, "")
        if options:
            assert isinstance(json.loads(ran.out), dict)


@every
def test_missing(run: Callable[..., Any], tmp_path: Path, command: str) -> None:
    one_line(run(command, tmp_path / "nowhere"), 3, "no store", "nowhere")
    one_line(run(command, tmp_path / ("x" * 300)), 3)
    assert os.listdir(tmp_path) == []


@every
@pytest.mark.parametrize("index", [True, False])
def test_an_empty_store(run: Callable[..., Any], tmp_path: Path, command: str, index: bool) -> None:
    ckptstore.open(tmp_path / "s").close()
    if not index:
        for path in (tmp_path / "s" / "index").rglob("OWNER"):
            path.unlink()
    ran = run(command, tmp_path / "s")
    if command in NEEDS_A_THREAD:
        one_line(ran, 3, "no thread 'large'")
    else:
        assert (ran.code, ran.err) == (0, "")


@every
@pytest.mark.parametrize("what", ["file", "empty", "other"])
def test_what_is_no_store(run: Callable[..., Any], tmp_path: Path, command: str, what: str) -> None:
    place = tmp_path / what
    if what == "file":
        place.write_text("hello")
    else:
        place.mkdir()
    if what == "other":
        (place / "notes.txt").write_text("hello")
    before = contents(tmp_path)
    one_line(run(command, place), 3, str(place))
    assert contents(tmp_path) == before


@every
def test_a_newer_format(run: Callable[..., Any], folder: Path, command: str) -> None:
    facts = json.loads((folder / "STORE").read_text())
    (folder / "STORE").write_text(json.dumps({**facts, "ckptstore": 99}))
    before = contents(folder)
    ran = run(command, folder)
    if command == "doctor":
        assert ran.code == 1
        assert "format 99" in ran.out
    else:
        one_line(ran, 3, "format 99", "upgrade")
    assert contents(folder) == before


@every
def test_a_segment_of_another_store(run: Callable[..., Any], folder: Path, tmp_path: Path, command: str) -> None:
    ckptstore.open(tmp_path / "second").close()
    name = "00000000000000000001.seg"
    (folder / "segments" / name).write_bytes((tmp_path / "second" / "segments" / name).read_bytes())
    before = contents(folder)
    ran = run(command, folder)
    if command in ("doctor", "verify"):
        assert ran.code == 1
        assert name in ran.out
    else:
        one_line(ran, 3, name)
    assert contents(folder) == before


@every
def test_a_store_that_another_process_recovers(run: Callable[..., Any], folder: Path, command: str) -> None:
    with (folder / "LOCK").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = run(command, folder, *waiting(command))
    if command in TAKES_NO_LOCK:
        assert (ran.code, ran.err) == (0, "")
    elif command == "doctor":
        assert ran.code == 1
        assert "being opened or recovered" in ran.out
    else:
        one_line(ran, 3, "being opened or recovered")


@contextmanager
def commit_lock_held(folder: Path) -> Iterator[None]:
    """A commit of this process that does not end; released by the test, not by time."""
    entered, leave = threading.Event(), threading.Event()
    with ckptstore.open(folder) as store:

        def resolve(view: object) -> list[Any]:
            entered.set()
            leave.wait(60)
            return []

        worker = threading.Thread(target=lambda: store._storage.commit(resolve))
        worker.start()
        assert entered.wait(60)
        try:
            yield
        finally:
            leave.set()
            worker.join()


@every
def test_a_commit_lock_that_is_held(run: Callable[..., Any], folder: Path, command: str) -> None:
    """Reading goes on; changing waits for as long as it may and then names the holder."""
    with commit_lock_held(folder):
        ran = run(command, folder, *waiting(command))
    if command in READING:
        assert (ran.code, ran.err) == (0, "")
    else:
        one_line(ran, 3, "commit lock", str(os.getpid()))


@every
def test_a_truncated_segment(run: Callable[..., Any], folder: Path, command: str) -> None:
    os.truncate(folder / "segments" / "00000000000000000001.seg", 200)
    before = contents(folder)
    ran = run(command, folder)
    assert ran.code == 1
    assert "00000000000000000001.seg" in ran.out + ran.err or "segment 1" in ran.out
    assert ran.err.count("\n") <= 1
    assert contents(folder) == before


@every
def test_a_changed_byte_in_a_record(run: Callable[..., Any], folder: Path, command: str) -> None:
    """The writes on the head of `large` are damaged: whoever reads them says so, and nobody else has to know."""
    damaged = max(frame.lsn for frame in frames(folder) if b"\xa2l2" in frame.path.read_bytes()[frame.offset :][: frame.size])
    frame = next(frame for frame in frames(folder) if frame.lsn == damaged)
    flip(frame.path, frame.offset + frame.size - 1)
    before = contents(folder)
    ran = run(command, folder)
    assert ran.err.count("\n") <= 1
    assert ran.code == (1 if command in ("inspect", "show", "diff", "writes", "verify", "backup", "compact", "prune") else 0), ran
    if ran.code:
        assert f"LSN {damaged}" in ran.out + ran.err or f"segment 1, offset {frame.offset}" in ran.err
    if command in READING:
        assert contents(folder) == before


@every
def test_damage_in_the_identity(run: Callable[..., Any], folder: Path, command: str) -> None:
    (folder / "STORE").write_text("{")
    ran = run(command, folder)
    assert ran.code == 1
    assert "STORE" in ran.out + ran.err
    assert ran.err.count("\n") <= 1


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """A folder that this process cannot write. Root ignores permissions, so for root it is a read-only mount."""
    if os.geteuid() != 0:
        modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        try:
            yield
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        return
    at = str(folder)
    for command in (["mount", "--bind", at, at], ["mount", "-o", "remount,ro,bind", at]):
        if subprocess.run(command, check=False, capture_output=True).returncode:
            subprocess.run(["umount", at], check=False, capture_output=True)
            pytest.skip("root without the right to mount: nothing here is unwritable")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", at], check=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_that_cannot_be_written(run: Callable[..., Any], folder: Path, command: str) -> None:
    before = contents(folder)
    with unwritable(folder):
        ran = run(command, folder)
    if command in READING:
        assert (ran.code, ran.err) == (0, "")
    else:
        one_line(ran, 3, str(folder))
    assert contents(folder) == before


def test_several_may_look_at_a_store_that_cannot_be_written(run: Callable[..., Any], folder: Path) -> None:
    with unwritable(folder), ckptstore.open(folder, read_only=True) as one:
        with ckptstore.open(folder, read_only=True, lock_timeout=0.2) as two:
            assert list(one.threads()) == list(two.threads()) != []
        ran = run("show", folder)
        assert (ran.code, ran.err) == (0, "")


@reading
@pytest.mark.parametrize("state", ["closed", "open", "killed", "no index", "torn tail"])
def test_looking_writes_no_byte_outside_index_and_lock(run: Callable[..., Any], folder: Path, command: str, state: str) -> None:
    if state == "no index":
        for path in (folder / "index").glob("*"):
            if path.is_file():
                path.unlink()
    if state == "torn tail":
        for path in (folder / "index").glob("*"):
            if path.is_file():
                path.unlink()
        with (folder / "segments" / "00000000000000000001.seg").open("ab") as segment:
            segment.write(b"\x17" * 7)
    if state == "killed":
        program = f"import os, ckptstore; s = ckptstore.open({str(folder)!r}); s.copy('small', 'late'); os._exit(9)"
        assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 9
    if state == "open":
        with ckptstore.open(folder) as store:
            store.copy("small", "late")
            before = contents(folder)
            assert run(command, folder).code == 0
            assert contents(folder) == before
        return
    before = contents(folder)
    ran = run(command, folder)
    assert (ran.code, ran.err) == (0, "")
    assert contents(folder) == before


@every
def test_help_is_worth_reading(ckpt: Callable[..., Any], command: str) -> None:
    ran = ckpt(command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"Usage: ckpt {command}" in ran.out
    # What it does, what stands for what, and how it ends.
    assert len(ran.out.splitlines()) > 8
    assert "--json" in ran.out
    assert ("--lock-timeout" in ran.out) == (command not in HAS_NO_TIMEOUT)


@pytest.mark.parametrize(
    "arguments",
    [
        ["log", "s"],
        ["show", "s", "t", "--channel"],
        ["show", "s", "t", "--thread", "u"],
        ["show", "s", "t@"],
        ["log", "s", "t", "--limit", "-1"],
        ["prune", "s"],
        ["prune", "s", "--pin", "t"],
        ["prune", "s", "--keep-last", "0"],
        ["prune", "s", "--older-than", "30"],
        ["prune", "s", "--idle", "0d"],
        ["prune", "s", "--max-bytes", "1X"],
        ["prune", "s", "--max-bytes-per-thread", "-1"],
        ["compact", "s", "--least-dead", "2"],
        ["rm", "s"],
        ["copy", "s", "a"],
        ["diff", "s"],
        ["writes", "s", "@HEAD"],
        ["show", "s", "t", "--lock-timeout", "0"],
        ["doctor", "a", "b"],
    ],
)
def test_usage(ckpt: Callable[..., Any], arguments: list[str]) -> None:
    one_line(ckpt(*arguments), 2)


def test_copying_onto_itself_is_usage(ckpt: Callable[..., Any], folder: Path) -> None:
    one_line(ckpt("copy", folder, "large", "large"), 2, "onto itself")


@every
def test_damage_without_an_index_shows_what_stands_before_it(run: Callable[..., Any], folder: Path, command: str) -> None:
    """The index is lost and the log damaged in the middle: what stands before is shown, and that it is not all is said."""
    for path in (folder / "index").glob("*"):
        if path.is_file():
            path.unlink()
    damaged = list(frames(folder))[6]
    flip(damaged.path, damaged.offset + 5)
    before = contents(folder)
    if command in ("inspect", "threads", "log", "show", "diff", "writes", "doctor"):
        ran = run(command, folder, "--json")
        assert (ran.code, ran.err) == (1, "")
        problems = json.loads(ran.out)["problems"] if command != "doctor" else [ran.out]
        assert "before the damage" in problems[0]
        text = run(command, folder)
        assert (text.code, text.err) == (1, "")
        assert "before the damage" in text.out
    elif command == "verify":
        ran = run(command, folder)
        assert ran.code == 1
        assert f"segment 1, offset {damaged.offset}" in ran.out
    else:
        one_line(run(command, folder), 1, "damage")
    if command in ("log", "show", "diff", "writes"):
        one_line(run(command, folder, "--ns", "node:1"), 1, "no namespace 'node:1'", "before the damage")
    assert contents(folder) == before


def test_a_part_is_not_taken_for_all_where_a_change_is_planned(ckpt: Callable[..., Any], folder: Path) -> None:
    for path in (folder / "index").glob("*"):
        if path.is_file():
            path.unlink()
    damaged = list(frames(folder))[6]
    flip(damaged.path, damaged.offset + 5)
    one_line(ckpt("prune", folder, "--keep-last", 1), 1, "damage")
    one_line(ckpt("rm", folder, "small"), 1, "damage")
