"""`ckpt fuzz`: a sound saver, one with a fault, and what cannot be fuzzed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from ckptstore.cli import main; main()"


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(script)
    command = [sys.executable, str(folder / "program.py")]
    return subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60)


def test_a_fault_is_printed_as_a_program_that_fails(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    ran = ckpt("fuzz", "tests.langgraph.broken:LosesPaths", "--examples", 300, "--seed", 1)
    assert (ran.code, ran.err) == (1, "")
    facts, _, script = ran.out.partition("\n\n")
    assert re.search("^found     .*: pending writes, or their order .rules 3 and 4 of docs/fuzzing.md.$", facts, re.MULTILINE)
    assert "left out  delete_thread, delete_for_runs, copy_thread, prune" in facts
    shown = run(script, tmp_path)
    assert shown.returncode == 1
    assert shown.stderr.splitlines()[-1].startswith("AssertionError: [")


def test_json(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    ran = ckpt("fuzz", "tests.langgraph.broken:LosesPaths", "--examples", 300, "--seed", 1, "--json")
    assert (ran.code, ran.err) == (1, "")
    facts = json.loads(ran.out)
    assert facts["found"].endswith("(rules 3 and 4 of docs/fuzzing.md)")
    assert facts["seed"] == 1
    assert run(facts["script"], tmp_path).returncode == 1


def test_a_sound_saver(ckpt: Callable[..., Any]) -> None:
    ran = ckpt("fuzz", "tests.cli.agents:make_saver", "--examples", 3, "--steps", 10)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("found     nothing\n")
    ran = ckpt("fuzz", "tests.cli.agents:make_saver", "--examples", 3, "--steps", 10, "--json")
    facts = json.loads(ran.out)
    assert (ran.code, facts["found"], facts["script"], facts["missing"]) == (0, None, None, [])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tests.langgraph.broken:"], 2, "MODULE:MAKE_SAVER='tests.langgraph.broken:': a module and a name in it are needed"),
        (["tests.langgraph.nowhere:make"], 3, "cannot be loaded"),
        (["tests.langgraph.broken:nowhere"], 3, "cannot be loaded"),
        (["tests.langgraph.broken:not_a_function"], 3, "an object of type int cannot be called"),
        (["tests.langgraph.broken:no_saver"], 2, "a LangGraph checkpoint saver is needed"),
        (["tests.langgraph.broken:fails"], 3, "no database here"),
        (["tests.cli.agents:make_saver", "--examples", "0"], 2, "examples=0"),
        (["tests.cli.agents:make_saver", "--steps", "1001"], 2, "steps=1001"),
    ],
)
def test_what_cannot_be_fuzzed(ckpt: Callable[..., Any], arguments: list[str], code: int, words: str) -> None:
    ran = ckpt("fuzz", *arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert words in ran.err


def run_command(arguments: str, folder: Path, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """Run `ckpt fuzz` in a folder, as a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {before}; sys.argv = ['ckpt', 'fuzz', *{arguments.split()!r}]; {MAIN}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_nothing_is_left_in_the_folder_where_it_is_run(tmp_path: Path) -> None:
    ran = run_command("tests.cli.agents:make_saver --examples 3 --steps 10", tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_what_the_saver_prints_is_no_part_of_the_json(tmp_path: Path) -> None:
    lines = [
        "from tests.cli.agents import make_saver as make",
        "print('imported')",
        "def make_saver():",
        "    print('made')",
        "    return make()",
    ]
    (tmp_path / "savers.py").write_text("\n".join(lines))
    ran = run_command("savers:make_saver --examples 1 --steps 2 --json", tmp_path)
    assert (ran.returncode, json.loads(ran.stdout)["found"]) == (0, None)
    assert {"imported", "made"} == set(ran.stderr.split())


@pytest.mark.parametrize("missing", ["hypothesis", "langchain_core"])
def test_without_the_extras_one_line_says_what_to_install(missing: str, tmp_path: Path) -> None:
    (tmp_path / "savers.py").write_text("def make_saver():\n    return None\n")
    ran = run_command("savers:make_saver", tmp_path, f"sys.modules[{missing!r}] = None")
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr == f"ckpt: fuzz needs {missing}: pip install 'ckptstore[langgraph,testing]'\n"
