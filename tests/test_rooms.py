"""The house: a room imports only rooms above it, the engine imports no framework, and outsiders use public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "ckptstore"
BINDING = ROOT / "bindings" / "langgraph" / "checkpoint" / "ckptstore"

ROOMS = (
    ("errors", "options", "model", "forks", "activity", "interrupts", "progress"),
    ("codec",),
    ("storage",),
    ("lineage",),
    ("state",),
    ("upkeep",),
    ("store", "folders", "thread", "ownership", "serde", "channels", "metrics"),
    ("modes",),
    ("inspect",),
    ("transfer",),
    ("cli",),
    ("testing",),
)
HEIGHT = {room: height for height, rooms in enumerate(ROOMS) for room in rooms}

FRAMEWORKS = {"langgraph", "langchain_core", "typer", "rich", "psycopg"}
NEEDED = {"msgpack", "zstandard", "lmdb", "apsw", "pydantic"}
"""What the engine may import at module level: its dependencies."""

KNOW_THE_FOLDER = {"store", "folders", "inspect", "testing"}
"""Rooms outside storage/ that may name storage/local: who opens a folder, who shows one, and the crash filesystem."""

TESTING = {f"ckptstore.testing.{name}" for name in ("calls", "machine", "model", "playing", "runs", "session")}
PUBLIC = {"ckptstore", "ckptstore.errors", "ckptstore.options", "ckptstore.ownership", "ckptstore.serde", *TESTING}


class Import(NamedTuple):
    """One imported module, in the file that imports it."""

    file: Path
    module: str
    at_import: bool
    """Whether it runs when the file is imported: not inside a function, not for type checkers only."""


def imports(folder: Path) -> Iterator[Import]:
    for file in sorted(folder.rglob("*.py")):
        yield from _of(file, ast.parse(file.read_text()), True)


def _of(file: Path, node: ast.AST, at_import: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(file, alias.name, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file}: a relative import"
            assert child.module is not None
            for alias in child.names:
                # `from ckptstore.codec import names` imports a module, `from ckptstore.codec.names import x` a name of one.
                whole = f"{child.module}.{alias.name}"
                yield Import(file, whole if _is_module(whole) else child.module, at_import)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for_checkers = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _of(file, child, at_import and not inside and not for_checkers)


def _is_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def room(file: Path) -> str:
    """The room a file of the engine is in; empty for the package itself."""
    first = file.relative_to(ENGINE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def test_every_file_is_in_a_room_of_the_list() -> None:
    assert {room(file) for file in ENGINE.rglob("*.py")} - {""} <= HEIGHT.keys()


def test_a_room_imports_only_rooms_above_it() -> None:
    wrong = []
    for found in imports(ENGINE):
        here, parts = room(found.file), found.module.split(".")
        if parts[0] != "ckptstore" or not here:
            continue
        # Importing the package from inside it would import everything, whatever the height.
        if len(parts) == 1 or HEIGHT[parts[1]] > HEIGHT[here]:
            wrong.append(f"{found.file.relative_to(ROOT)} imports {found.module}")
    assert wrong == []


def test_only_those_who_open_or_show_a_folder_know_how_it_is_laid_out() -> None:
    knowing = {room(found.file) for found in imports(ENGINE) if found.module.startswith("ckptstore.storage.local")}
    assert knowing - {"storage"} <= KNOW_THE_FOLDER
    inside = {
        found.file.name
        for found in imports(ENGINE / "storage")
        if found.module.startswith("ckptstore.storage.local") and found.file.parent == ENGINE / "storage"
    }
    assert inside == set()


def test_the_engine_imports_its_dependencies_and_nothing_else() -> None:
    for found in imports(ENGINE):
        package = found.module.split(".")[0]
        if package == "ckptstore" or package in sys.stdlib_module_names or not found.at_import:
            continue
        allowed = NEEDED | {"cli": {"typer", "rich"}, "testing": {"hypothesis"}}.get(room(found.file), set())
        assert package in allowed, f"{found.file.relative_to(ROOT)} imports {found.module}"


def test_no_framework_is_named_in_the_engine_outside_the_command_line() -> None:
    """Not inside functions either: `fuzz`, `doctor` and `show --graph` of the command line alone may load the binding."""
    for found in imports(ENGINE):
        if room(found.file) != "cli":
            assert found.module.split(".")[0] not in FRAMEWORKS, f"{found.file.relative_to(ROOT)} imports {found.module}"


def test_the_command_line_prints_what_inspect_finds() -> None:
    for found in imports(ENGINE / "cli"):
        if found.module.startswith("ckptstore"):
            above = found.module == "ckptstore.errors" or found.module.split(".")[1] in ("inspect", "cli")
            assert above, f"{found.file.name} imports {found.module}"


def test_the_binding_uses_public_names() -> None:
    for found in imports(BINDING):
        if found.module.split(".")[0] == "ckptstore":
            assert found.module in PUBLIC, f"{found.file.name} imports {found.module}"


def test_namespace_packages_have_no_init_file() -> None:
    """`langgraph` and `langgraph.checkpoint` belong to several distributions."""
    assert not (BINDING.parent / "__init__.py").exists()
    assert not (BINDING.parent.parent / "__init__.py").exists()


@pytest.mark.parametrize("module", ["ckptstore", "ckptstore.cli", "ckptstore.inspect.stats"])
def test_importing_loads_no_framework(module: str) -> None:
    program = f"import {module}, sys; print(*sorted({FRAMEWORKS!r} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout.strip()) == (0, ""), ran.stderr
