"""The documents hold: examples run, figures are those of the result files, named tests exist, and the format page suffices to read."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import json
import operator
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import ckptstore
from ckptstore import LaneName, Store, Thread
from ckptstore.cli.output import FINE, PROBLEMS, REFUSED, USAGE
from ckptstore.inspect.stats import Breakdown, StoreReport
from tests.mini_reader import MiniReader, NotReadable
from tests.mutants.promises import PAGE, named_tests, promises

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


# -- docs/format.md ------------------------------------------------------------------------------------------------------


def extend(items: list[Any], writes: Any) -> list[Any]:
    return [*(items or []), *(item for write in writes for item in write)]


class State(TypedDict):
    full: Annotated[list[str], operator.add]
    delta: Annotated[list[str], DeltaChannel(extend, list, snapshot_frequency=4)]


def graph(saver: CkptSaver) -> Any:
    def one(state: State) -> Any:
        return {"full": ["one " * 40], "delta": [f"one {len(state['full'])} " * 30]}

    def two(state: State) -> Any:
        return {"full": [interrupt("more?")], "delta": ["two"]}

    builder: Any = StateGraph(State)
    builder.add_node("one", one)
    builder.add_node("two", two)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    return builder.compile(checkpointer=saver)


def turns(app: Any, thread: str, count: int) -> Any:
    config: Any = {"configurable": {"thread_id": thread}}
    for turn in range(count):
        app.invoke({"full": [f"turn {turn}"], "delta": [f"turn {turn}"]}, config)
        app.invoke(Command(resume="yes"), config)
    return config


def fill(folder: Path) -> None:
    """Every record kind: runs, forks, a pruned, a copied and a deleted thread, a moved head, orphans, odd names, small segments."""
    store = ckptstore.open(folder, segment_bytes=8192, mode="full")
    with CkptSaver.from_store(store) as saver:
        app = graph(saver)
        config = turns(app, "chat", 6)
        old = [state.config for state in app.get_state_history(config)][9]
        app.update_state(old, {"full": ["edited"], "delta": ["edited"]}, as_node="one")
        app.invoke(None, old)
        turns(app, "pruned", 5)
        saver.prune(["pruned"])
        turns(app, "pruned", 1)
        turns(app, "gone", 2)
        turns(app, "origin", 3)
        saver.copy_thread("origin", "copy")
        turns(app, "copy", 1)
        saver.delete_thread("origin")
        saver.delete_thread("gone")
        turns(app, "gone", 1)
        head = saver.get_tuple({"configurable": {"thread_id": "chat", "checkpoint_ns": ""}})
        assert head is not None
        assert head.parent_config is not None
        store.set_head(LaneName("chat"), head.parent_config["configurable"]["checkpoint_id"])
        odd = LaneName("\udcff\n", "ns|x:1")
        for id, parent in (("not a uuid", None), ("b", "not a uuid"), ("not a uuid", None), ("c", "b"), ("b", "c")):
            put(store, odd, id, parent)
        put(store, LaneName("only writes"), None, None)


def put(store: Store, lane: LaneName, id: str | None, parent: str | None) -> None:
    def encode(channel: str, value: Any) -> tuple[str, bytes]:
        return "my-own-tag", bytes(value)

    if id is not None:
        values = {"small": b"x", "large": os.urandom(700)}
        versions: dict[str, Any] = {"small": 1, "large": 1.5, "absent": "2"}
        store.put_checkpoint(
            lane, id, parent, skeleton={"v": 4}, metadata={}, versions=versions, values=values, changed=set(versions), encode=encode
        )
    writes = [(0, "absent", os.urandom(2000)), (-3, "special", b"first"), (1, "absent", b"y")]
    store.put_writes(lane, id or "never stored", writes, task_id="task", encode=encode)


def lanes(reader: MiniReader, store: Store) -> Iterator[tuple[LaneName, Any]]:
    for thread, ns in sorted(reader.names()):
        yield LaneName(thread, ns), reader.lane(thread, ns)


def test_a_reader_written_from_the_format_page_reads_everything_a_store_holds(tmp_path: Path) -> None:
    fill(tmp_path / "chat.ckpt")
    reader = MiniReader(tmp_path / "chat.ckpt")
    entries = [entry for frame in reader.frames.values() for entry in frame.entries]
    assert {entry[0] for entry in entries} == set(range(1, 11))
    assert {entry[1] for entry in entries} >= {0, 2, 16}
    assert len(list((tmp_path / "chat.ckpt" / "segments").glob("*.seg"))) > 2
    with ckptstore.open(tmp_path / "chat.ckpt", read_only=True) as store:
        assert {info.thread for info in store.threads()} == {thread for thread, _ in reader.names()}
        assert reader.facts == {"mode": "full"}
        for name, lane in lanes(reader, store):
            stored = list(store.list(name.thread, name.ns))
            assert lane.newest_first() == [item.id for item in stored]
            head = store.get(name)
            assert head is not None
            assert lane.head == head.id
            for item in stored:
                found = reader.checkpoint(lane, item.id)
                assert (found.parent, found.skeleton, found.metadata) == (item.parent, item.skeleton, item.metadata)
                assert (found.versions, found.values) == (item.versions, item.values)
                assert found.pending == [(write.task_id, write.channel, write.value) for write in item.writes]


def test_that_reader_agrees_about_the_history_of_every_channel(tmp_path: Path) -> None:
    fill(tmp_path / "chat.ckpt")
    reader = MiniReader(tmp_path / "chat.ckpt")
    compared = 0
    with ckptstore.open(tmp_path / "chat.ckpt", read_only=True) as store:
        for name, lane in lanes(reader, store):
            for item in store.list(name.thread, name.ns):
                for channel in item.versions.keys() - item.values.keys():
                    history = store.history(name, item.id, [channel])[channel]
                    seed, writes = reader.history(lane, item.id, channel)
                    assert seed == history.seed
                    assert writes == [(write.task_id, write.value) for write in history.writes]
                    compared += bool(writes)
    assert compared > 30


def test_that_reader_reads_a_store_that_is_open(tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "chat.ckpt") as store:
        for number in range(3):
            put(store, LaneName("t"), f"c{number}", None)
            lane = MiniReader(tmp_path / "chat.ckpt").lane("t")
            assert lane is not None
            assert lane.newest_first() == [item.id for item in store.list("t", "")]


def test_that_reader_notices_a_changed_byte_anywhere(tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "chat.ckpt") as store:
        put(store, LaneName("t"), "c", None)
    path = next((tmp_path / "chat.ckpt" / "segments").glob("*.seg"))
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        with pytest.raises(NotReadable):
            MiniReader(tmp_path / "chat.ckpt")


# -- examples ------------------------------------------------------------------------------------------------------------


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def echo() -> Any:
    """The `builder` of the examples: a graph that answers."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [("ai", state["messages"][-1].content)]})
    builder.add_edge(START, "answer")
    return builder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"builder": echo()}
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page.name}, python block {number}", "exec"), names)
    if "chat.ckpt" in page.read_text():
        assert (tmp_path / "chat.ckpt" / "STORE").exists()


def test_pages_have_examples() -> None:
    assert {page.name for page in PAGES if blocks(page, "python")} >= {"README.md", "langgraph.md", "engine.md"}


def test_the_quickstart_runs_and_finds_everything_so() -> None:
    """It stops with an error code at the first fact that does not hold."""
    ran = subprocess.run([sys.executable, str(DOCS / "examples" / "quickstart.py")], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("   ok: ") == 10


def test_the_example_of_the_engine_runs_and_finds_everything_so() -> None:
    ran = subprocess.run([sys.executable, str(DOCS / "examples" / "engine.py")], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("   ok: ") == 11


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and not hasattr(object, name)}


def test_every_public_name_of_threads_and_stores_is_in_the_page_of_the_engine() -> None:
    text = (DOCS / "engine.md").read_text()
    internal = {"new_locks"}  # called after a fork
    missing = {name for name in public(Thread) | public(Store) - internal if not re.search(rf"`(?:\w+\.)?{name}[`(]", text)}
    assert missing == set()
    tables = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    for kind, name, parameters in (
        (Store, "thread", 'thread(id, ns="", *, schema=None, serde=None, snapshot_frequency=10)'),
        (Store, "state", "state(lane, id=None, *, reducers, serde=None, channels=None, strict=False)"),
        (Store, "list", "list(thread=None, ns=None, id=None, *, before=None, accept=None)"),
        (Store, "history", "history(lane, id, channels)"),
        (Store, "compact", "compact(*, least_dead=0.0, progress=None)"),
        (Thread, "step", "step(writes, *, metadata=None, expect_head=False)"),
        (Thread, "diff", "diff(other=None)"),
        (Thread, "set_head", "set_head(checkpoint=None)"),
    ):
        assert any(f"`{parameters}`" in row for row in tables), name
        found = inspect.signature(getattr(kind, name))
        plain = [item.replace(annotation=inspect.Parameter.empty) for item in found.parameters.values() if item.name != "self"]
        shown = str(inspect.Signature(plain)).replace("'", '"')
        assert name + shown == parameters


def test_every_error_that_the_page_of_the_engine_names_exists() -> None:
    text = (DOCS / "engine.md").read_text()
    for name in set(re.findall(r"`(\w+Error)`", text)) - {"TypeError", "AttributeError"}:
        assert hasattr(ckptstore.errors, name), name


# -- docs/fuzzing.md -----------------------------------------------------------------------------------------------------

FUZZ: Any = SimpleNamespace(**runpy.run_path(str(DOCS / "make_fuzz.py")))


@pytest.mark.parametrize("found", FUZZ.findings(), ids=lambda found: found.program.stem)
def test_a_finding_of_the_page_still_shows_in_the_installed_saver(found: Any) -> None:
    try:
        importlib.metadata.version(found.package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{found.package} is not installed")
    with pytest.raises((AssertionError, TypeError)) as raised:
        runpy.run_path(str(found.program))
    assert raised.type.__name__ == found.fails
    assert len(found.program.read_text().splitlines()) <= 32


def test_the_table_of_findings_is_made_from_the_programs() -> None:
    page = FUZZ.PAGE.read_text()
    assert page == FUZZ.filled(page), "run docs/make_fuzz.py"
    assert {found.rule for found in FUZZ.findings()} <= set(re.findall(r"^\| (\d) \|", page, re.MULTILINE))


# -- figures and names ---------------------------------------------------------------------------------------------------


def test_the_figures_of_the_readme_are_those_of_the_result_file() -> None:
    bench = runpy.run_path(str(ROOT / "bench" / "bytes.py"))
    table = bench["table"](json.loads((DOCS / "results" / "bytes.json").read_text()))
    assert f"{bench['BEGIN']}{table}{bench['END']}" in (ROOT / "README.md").read_text()


def test_the_printed_output_in_the_cli_page_is_what_the_commands_print() -> None:
    ran = subprocess.run([sys.executable, str(DOCS / "make_cli.py"), "--check"], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", ""), "run docs/make_cli.py"


def test_each_promise_names_tests() -> None:
    assert promises()
    assert [promise.text for promise in promises() if not promise.tests] == []


def test_each_test_that_the_page_of_promises_names_exists() -> None:
    for path, name in named_tests(PAGE.read_text()):
        tree = ast.parse((ROOT / path).read_text())
        found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name]
        assert found, f"{path}::{name}"
        marks = [ast.unparse(mark) for node in found for mark in node.decorator_list]
        assert not any("xfail" in mark or "skip" in mark for mark in marks), f"{path}::{name} is not known to hold"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_option_of_the_saver_is_in_its_page() -> None:
    text = (DOCS / "langgraph.md").read_text()
    options = [name for name in inspect.signature(CkptSaver.__init__).parameters if name not in ("self", "path")]
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == options


def test_the_exit_codes_and_keys_of_the_cli_are_in_its_page() -> None:
    text = (DOCS / "cli.md").read_text()
    assert re.findall(r"^\| (\d) \|", text, re.MULTILINE) == [str(code) for code in (FINE, PROBLEMS, USAGE, REFUSED)]
    shown = json.loads(text.partition("--json --top 1\n")[2].partition("```")[0])
    assert list(shown) == list(StoreReport._fields)
    assert list(shown["breakdown"]) == list(Breakdown._fields)
