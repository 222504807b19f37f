"""What hurt users of checkpoint stores in public, as small inputs with the right answers. Each is a class of fault; the id names its row."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Overwrite

import ckptstore
from ckptstore.codec.names import name_hash
from ckptstore.codec.records import LANE_SCOPE, encode_tombstone
from ckptstore.errors import (
    CheckpointLineageIntegrityError,
    ConflictError,
    CorruptionError,
    LockTimeoutError,
    SerializationError,
    ThreadDeletedError,
)
from ckptstore.storage import Frame
from ckptstore.storage.local.vfs import Vfs
from tests.helpers import (
    MODES,
    Delta,
    Driver,
    Full,
    checkpoint,
    concat,
    config,
    flip,
    frames,
    line,
    random_text,
    says,
    side_by_side,
    thread,
    written,
)

by_mode = pytest.mark.parametrize("schema", MODES, ids=["full", "delta"])


def child(code: str, *args: object, **options: Any) -> subprocess.Popen[str]:
    """Another process that runs this code, its standard input and output piped."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def says_line(process: subprocess.Popen[str]) -> str:
    """The next line a child prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


# -- branches and writes ---------------------------------------------------------------------------------------------------


@by_mode
def test_replay_and_edit_of_an_old_checkpoint_leave_all_leaves_exact(saver: CkptSaver, schema: Any) -> None:
    """R01."""
    count = iter(range(1, 9))
    app = line(schema, saver, n1=says("n1"), n2=lambda state: {"log": [f"n2#{next(count)}"]})
    app.invoke({"log": ["q"]}, thread())
    first = app.get_state(thread()).config
    middle = next(state.config for state in app.get_state_history(thread()) if state.next == ("n2",))
    app.invoke(None, middle)
    second = app.get_state(thread()).config
    third = app.update_state(middle, {"log": ["E"]})
    assert app.get_state(first).values["log"] == ["q", "n1", "n2#1"]
    assert app.get_state(second).values["log"] == ["q", "n1", "n2#2"]
    assert app.get_state(third).values["log"] == ["q", "n1", "E"]


def test_a_write_belongs_to_the_child_made_after_it(call: Driver) -> None:
    """R02."""
    root = call.put(config(), {**empty_checkpoint(), "channel_versions": {"log": "1"}})
    call.put_writes(root, [("log", ["b1"])], "k1")
    first = call.put(root, {**empty_checkpoint(), "channel_versions": {"log": "2"}})
    call.put_writes(root, [("log", ["b2"])], "k2")
    second = call.put(root, {**empty_checkpoint(), "channel_versions": {"log": "2b"}})
    assert written(call.history(first["configurable"]["checkpoint_id"], "log")) == [["b1"]]
    assert written(call.history(second["configurable"]["checkpoint_id"], "log")) == [["b2"]]


@given(st.lists(st.one_of(st.just("child"), st.sampled_from(["k1", "k2", "k3"])), max_size=14))
@settings(max_examples=60, deadline=None)
def test_writes_and_children_of_one_parent_in_any_order(events: list[str]) -> None:
    """R02, for every interleaving: a write belongs to the next child, the first of a task counts, and nothing later changes it."""
    with CkptSaver(":memory:") as saver:
        saver.put(config(), checkpoint("0", {}, {"log": 1}), {}, {})
        waiting: dict[str, int] = {}
        expected: list[list[int]] = []
        for number, event in enumerate(events):
            if event == "child":
                child_id = f"c{len(expected)}"
                saver.put(config("0"), checkpoint(child_id, {}, {"log": f"2.{child_id}"}), {}, {"log": f"2.{child_id}"})
                expected.append([waiting[task] for task in sorted(waiting)])
                waiting = {}
            else:
                saver.put_writes(config("0"), [("log", number)], event)
                waiting.setdefault(event, number)
        for index, writes in enumerate(expected):
            found = saver.get_delta_channel_history(config=config(f"c{index}"), channels=["log"])["log"]
            assert written(found) == writes


def test_edits_of_an_old_checkpoint_cost_what_they_change(folder: Path) -> None:
    """R03: five edits of a thread that holds 500 KB, each of which makes LangGraph snapshot the whole channel."""
    with CkptSaver(folder) as saver:
        app = line(Delta, saver, n1=says("n1"), n2=says("n2"))
        app.invoke({"log": [random_text(100) for _ in range(5000)]}, thread())
        middle = next(state.config for state in app.get_state_history(thread()) if state.next == ("n2",))
        # Summed over frames: the file itself is extended ahead of them.
        before = sum(frame.size for frame in frames(folder))
        for _ in range(5):
            app.update_state(middle, {"log": ["e"]})
        assert 0 < sum(frame.size for frame in frames(folder)) - before < 10_000


@by_mode
@given(outputs=st.lists(st.lists(st.text(max_size=3), max_size=3), min_size=1, max_size=8))
@settings(max_examples=12, deadline=None)
def test_parallel_writers_read_back_as_they_ran(
    tmp_path_factory: pytest.TempPathFactory, schema: Any, outputs: list[list[str]]
) -> None:
    """R04: live result, `get_state` and `get_state` after reopening are equal, for two turns of up to eight nodes at once."""
    folder = tmp_path_factory.mktemp("parallel") / "s"
    nodes = {chr(ord("a") + i): (lambda state, out=out: {"log": out}) for i, out in enumerate(outputs)}
    for turn in range(2):
        with CkptSaver(folder, durability="process") as saver:
            app = side_by_side(schema, saver, **nodes)
            live = app.invoke({"log": [str(turn)]}, thread())["log"]
            assert app.get_state(thread()).values["log"] == live
        with CkptSaver(folder) as saver:
            assert side_by_side(schema, saver, **nodes).get_state(thread()).values["log"] == live


class _Photographed(CkptSaver):
    """Slow in `put_writes`; keeps the log as each call left it, which is all that a kill after that call leaves."""

    pictures: Path
    taken = 0

    def _picture(self) -> None:
        target = self.pictures / str(self.taken)
        self.taken += 1
        source = self.pictures.parent / "s"
        shutil.copytree(source / "segments", target / "segments")
        shutil.copy(source / "STORE", target / "STORE")

    def put(self, *args: Any) -> Any:
        result = super().put(*args)
        self._picture()
        return result

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        time.sleep(0.05)
        super().put_writes(config, writes, task_id, task_path)
        self._picture()


@by_mode
def test_slow_writes_and_a_kill_between_any_two_calls(tmp_path: Path, schema: Any) -> None:
    """R06: in whatever order the calls land, live result, `get_state` and history are equal; a killed run resumes to the same end."""
    (tmp_path / "pictures").mkdir()
    with _Photographed(tmp_path / "s") as saver:
        saver.pictures = tmp_path / "pictures"
        app = line(schema, saver, n=says("x"))
        live = app.invoke({"log": ["q"]}, thread(), durability="sync")["log"]
        assert live == ["q", "x"]
        assert app.get_state(thread()).values["log"] == live
        assert next(app.get_state_history(thread())).values["log"] == live
        taken = saver.taken
    assert taken >= 4
    for number in range(taken):
        with CkptSaver(tmp_path / "pictures" / str(number)) as saver:
            app = line(schema, saver, n=says("x"))
            started = saver.get_tuple(config()) is not None
            state = app.get_state(thread()).values.get("log", [])
            assert live[: len(state)] == state
            app.invoke(None if started else {"log": ["q"]}, thread(), durability="sync")
            assert app.get_state(thread()).values["log"] == live


def test_unknown_ids_and_repeated_writes_across_a_reopen(folder: Path) -> None:
    """R43: writes for an id not stored yet are invisible, then join it; the same call twice does not double."""
    with CkptSaver(folder) as saver:
        saver.put_writes(config("1"), [("log", "a"), ("log", "b"), ("__error__", "e1")], "k")
        assert saver.get_tuple(config("1")) is None
        assert list(saver.list(None)) == []
        assert list(saver.store.threads()) == []
    with CkptSaver(folder) as saver:
        saver.put_writes(config("1"), [("log", "a"), ("log", "b"), ("__error__", "e2")], "k")
        saver.put(config(), checkpoint("1"), {}, {})
    with CkptSaver(folder) as saver:
        found: Any = saver.get_tuple(config())
        assert found.pending_writes == [("k", "__error__", "e2"), ("k", "log", "a"), ("k", "log", "b")]


# -- removing ----------------------------------------------------------------------------------------------------------------


def _turns(app: Any, count: int) -> None:
    for turn in range(count):
        app.invoke({"log": [turn]}, thread())


def test_prune_keeps_twelve_items_and_a_further_turn_adds_to_them(saver: CkptSaver) -> None:
    """R08, the regular way."""
    app = line(Delta, saver, n=says("x"))
    _turns(app, 6)
    saver.prune(["t"])
    assert len(list(saver.list(config()))) == 1
    assert len(app.get_state(thread()).values["log"]) == 12
    assert len(app.invoke({"log": [6]}, thread())["log"]) == 14


def test_ancestors_removed_by_hand_are_an_error_and_not_an_empty_list(saver: CkptSaver) -> None:
    """R08, the damage: a removal that leaves the survivor no history. Reading and running on both refuse."""
    app = line(Delta, saver, n=says("x"))
    _turns(app, 6)
    head, *others = [item.checkpoint["id"] for item in saver.list(config())]
    storage = saver.store._storage

    def forget(view: Any) -> list[Any]:
        return [encode_tombstone(LANE_SCOPE, view.lane("t", ""), 0, b"".join(map(name_hash, others)), (), head)]

    storage.commit(forget)
    with pytest.raises(CheckpointLineageIntegrityError, match=head):
        app.get_state(thread())
    with pytest.raises(CheckpointLineageIntegrityError, match=head):
        app.invoke({"log": [6]}, thread())
    assert [item.checkpoint["id"] for item in saver.list(config())] == [head]


def test_a_head_without_its_ancestors_is_an_error_and_not_an_empty_list(new_saver: Any) -> None:
    """R08, a head carried alone into another store: its own counters say that updates are missing."""
    source, target = new_saver(), new_saver()
    _turns(line(Delta, source, n=says("x")), 6)
    head: Any = source.get_tuple(config())
    target.put(config(), head.checkpoint, head.metadata, head.checkpoint["channel_versions"])
    app = line(Delta, target, n=says("x"))
    with pytest.raises(CheckpointLineageIntegrityError, match=f"broken chain at checkpoint '{head.checkpoint['id']}'"):
        app.get_state(thread())
    with pytest.raises(CheckpointLineageIntegrityError, match="broken chain"):
        app.invoke({"log": [6]}, thread())


@by_mode
def test_prune_copy_and_delete_for_runs_keep_every_state(call: Driver, schema: Any) -> None:
    """R10."""
    app = line(schema, call.saver, n=says("x"))
    for run in ("r1", "r2", "r3"):
        app.invoke({"log": [run]}, {**thread(), "metadata": {"run_id": run}})
    whole = ["r1", "x", "r2", "x", "r3", "x"]
    call.copy_thread("t", "u")
    call.delete_for_runs(["r2"])
    assert app.get_state(thread()).values["log"] == whole
    assert {item.metadata["run_id"] for item in call.list(config())} == {"r1", "r3"}
    call.prune(["t"])
    assert app.get_state(thread()).values["log"] == whole
    assert app.get_state(thread("u")).values["log"] == whole
    assert app.invoke({"log": ["more"]}, thread())["log"] == [*whole, "more", "x"]
    call.delete_thread("t")
    assert app.get_state(thread("u")).values["log"] == whole
    assert call.ids(config()) == []


def test_late_calls_do_not_bring_a_deleted_thread_back(call: Driver) -> None:
    """R11."""
    stored = call.put(config(), {**empty_checkpoint(), "id": "1"})
    call.put_writes(stored, [("log", 0)], "k")
    call.delete_thread("t")
    with pytest.raises(ThreadDeletedError, match="'1'"):
        call.put_writes(stored, [("log", 1)], "k")
    with pytest.raises(ThreadDeletedError, match="'1'"):
        call.put(stored, checkpoint("2"))
    assert call.get_tuple(thread()) is None
    assert call.ids(None) == []
    assert list(call.saver.store.threads()) == []
    call.put(config(), checkpoint("3"))
    assert call.get_tuple(thread()).pending_writes == []
    assert call.ids(None) == ["3"]


def test_a_late_call_after_a_reopen_is_still_late(folder: Path) -> None:
    """R11."""
    with CkptSaver(folder) as saver:
        stored = saver.put(config(), checkpoint("1"), {}, {})
        saver.delete_thread("t")
    with CkptSaver(folder) as saver:
        with pytest.raises(ThreadDeletedError):
            saver.put_writes(stored, [("log", 1)], "k")
        assert saver.get_tuple(config()) is None


# -- running -----------------------------------------------------------------------------------------------------------------


def test_sync_calls_inside_a_running_loop(saver: CkptSaver) -> None:
    """R13."""

    async def main() -> Any:
        saver.put(config(), checkpoint("1"), {}, {})
        await saver.aput_writes(config("1"), [("a", 1)], "k")
        assert saver.get_tuple(config()) == await saver.aget_tuple(config())
        return [item.checkpoint["id"] for item in saver.list(config())]

    assert asyncio.run(main()) == ["1"]


@by_mode
def test_of_two_answers_to_one_head_both_stay_by_default(folder: Path, schema: Any) -> None:
    """R15."""
    with CkptSaver(folder) as one, CkptSaver(folder) as two:
        left, right = (line(schema, saver, n=says("x")) for saver in (one, two))
        left.invoke({"log": ["q"]}, thread())
        base = left.get_state(thread()).config
        left.invoke({"log": ["A"]}, base)
        right.invoke({"log": ["B"]}, base)
        logs = [state.values["log"] for state in left.get_state_history(thread()) if state.next == ()]
        assert logs == [["q", "x", "B", "x"], ["q", "x", "A", "x"], ["q", "x"]]


@by_mode
def test_of_two_answers_to_one_head_the_second_is_refused_with_expect_head(folder: Path, schema: Any) -> None:
    """R15."""
    with CkptSaver(folder, expect_head=True) as one, CkptSaver(folder, expect_head=True) as two:
        left, right = (line(schema, saver, n=says("x")) for saver in (one, two))
        left.invoke({"log": ["q"]}, thread())
        base = left.get_state(thread()).config
        left.invoke({"log": ["A"]}, base)
        with pytest.raises(ConflictError, match=base["configurable"]["checkpoint_id"]):
            right.invoke({"log": ["B"]}, base)
        assert right.get_state(thread()).values["log"] == ["q", "x", "A", "x"]
        assert right.invoke({"log": ["B"]}, thread())["log"] == ["q", "x", "A", "x", "B", "x"]


def _loop_of(saver: CkptSaver, steps: int, seen: list[int]) -> Any:
    graph: Any = StateGraph(Full)

    async def step(state: Any) -> Any:
        seen.append(sum("put_after_previous" in repr(task.get_coro()) for task in asyncio.all_tasks()))
        return {"log": ["x"]}

    graph.add_node("n", step)
    graph.add_edge(START, "n")
    graph.add_conditional_edges("n", lambda state: "n" if len(state["log"]) < steps else END)
    return graph.compile(checkpointer=saver)


class _Slow(CkptSaver):
    """Counts the puts that have begun and are not stored yet; each takes a while."""

    inside = 0
    most = 0

    def put(self, *args: Any) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.005)
        try:
            return super().put(*args)
        finally:
            self.inside -= 1


def test_waiting_puts_stay_bounded() -> None:
    """R23: with `durability="sync"`. With "async" it is LangGraph that queues the puts, one by one, before it calls any saver."""
    waiting: list[int] = []
    with _Slow(":memory:") as saver:
        app = _loop_of(saver, 60, waiting)
        asyncio.run(app.ainvoke({"log": []}, {**thread(), "recursion_limit": 100}, durability="sync"))
        assert len(waiting) == 60
        assert max(waiting) <= 2
        assert saver.most == 1
        assert app.get_state(thread()).values["log"] == ["x"] * 60


_HOLDER = """
import sys, ckptstore
store = ckptstore.open(sys.argv[1])
def resolve(view):
    print("held", flush=True)
    sys.stdin.readline()
    return []
store._storage.commit(resolve)
print("free", flush=True)
sys.stdin.readline()
"""


def test_a_held_commit_lock_gives_a_named_error_and_reads_go_on(folder: Path) -> None:
    """R27."""
    with CkptSaver(folder, lock_timeout=1.0) as saver:
        saver.put(config(), checkpoint("1"), {}, {})
        holder = child(_HOLDER, folder)
        assert holder.stdin is not None
        try:
            assert says_line(holder) == "held"
            with pytest.raises(LockTimeoutError, match=rf"within 1 s: process {holder.pid} has held it for \d") as raised:
                saver.put(config("1"), checkpoint("2"), {}, {})
            assert isinstance(raised.value, TimeoutError)
            assert [item.checkpoint["id"] for item in saver.list(config())] == ["1"]
            assert saver.get_tuple(config()) is not None
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert says_line(holder) == "free"
            saver.put(config("1"), checkpoint("3"), {}, {})
            assert [item.checkpoint["id"] for item in saver.list(config())] == ["3", "1"]
        finally:
            holder.communicate("\n", timeout=30)


_UNCLOSED = """
import asyncio, sys
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.ckptstore import CkptSaver
async def main():
    saver = CkptSaver(sys.argv[1], durability=sys.argv[2])
    at = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    await saver.aput(at, {**empty_checkpoint(), "id": "1"}, {}, {})
    keep.append(saver)
keep = []
asyncio.run(main())
"""


@pytest.mark.parametrize("durability", ["commit", "interval", "process"])
def test_a_process_with_an_unclosed_saver_exits(folder: Path, durability: str) -> None:
    """R28."""
    process = child(_UNCLOSED, folder, durability)
    assert process.wait(60) == 0
    with CkptSaver(folder) as saver:
        assert [item.checkpoint["id"] for item in saver.list(None)] == ["1"]


_KILLED = """
import sys
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.ckptstore import CkptSaver
saver = CkptSaver(sys.argv[1], durability=sys.argv[2])
for number in range(60):
    saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, {**empty_checkpoint(), "id": f"{number:02}"}, {}, {})
    print(number, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("durability", ["commit", "process"])
def test_another_process_opens_while_the_first_lives_and_after_it_was_killed(folder: Path, durability: str) -> None:
    """R50."""
    first = child(_KILLED, folder, durability)
    try:
        for number in range(60):
            assert says_line(first) == str(number)
        expected = [f"{number:02}" for number in reversed(range(60))]
        with CkptSaver(folder) as saver:
            assert [item.checkpoint["id"] for item in saver.list(config())] == expected
            saver.put(config("59"), checkpoint("beside"), {}, {})
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=30)
    with CkptSaver(folder) as saver:
        assert [item.checkpoint["id"] for item in saver.list(config())] == ["beside", *expected]
        saver.put(config("beside"), checkpoint("after"), {}, {})
        found: Any = saver.get_tuple(config())
        assert found.checkpoint["id"] == "after"


# -- damage ------------------------------------------------------------------------------------------------------------------

_COUNT = 12
_SHARED = 5  # this checkpoint brings a value that all later ones still hold


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with twelve checkpoints of random text, one frame each."""
    folder = tmp_path_factory.mktemp("damage") / "twelve"
    shared = random_text(300)
    with CkptSaver(folder, durability="process") as saver:
        for number in range(_COUNT):
            values = {"own": random_text(300), **({"shared": shared} if number >= _SHARED else {})}
            versions = {"own": number + 1, **({"shared": 1} if number >= _SHARED else {})}
            changed: dict[str, Any] = {"own": number + 1, **({"shared": 1} if number == _SHARED else {})}
            parent = f"c{number - 1:02}" if number else None
            saver.put(config(parent), checkpoint(f"c{number:02}", values, versions), {"step": number}, changed)
    return folder


def _listed(saver: CkptSaver, at: Any) -> tuple[dict[str, Any], list[CorruptionError]]:
    """What a listing gives when every error is noted and the iteration goes on."""
    good: dict[str, Any] = {}
    errors: list[CorruptionError] = []
    items = iter(saver.list(at))
    while True:
        try:
            item = next(items)
        except StopIteration:
            return good, errors
        except CorruptionError as error:
            errors.append(error)
            assert len(errors) <= _COUNT, "the listing does not move on"
        else:
            good[item.checkpoint["id"]] = item


@contextlib.contextmanager
def _damaged(store: Path, lsn: int, place: float) -> Iterator[CkptSaver]:
    """A copy of a store, with one byte of one frame changed."""
    copy = store.with_name(f"copy-{os.urandom(4).hex()}")
    shutil.copytree(store, copy)
    frame = next(frame for frame in frames(copy) if frame.lsn == lsn)
    flip(frame.path, frame.offset + int(place * (frame.size - 1)))
    try:
        with CkptSaver(copy) as saver:
            yield saver
    finally:
        shutil.rmtree(copy)


@given(number=st.integers(0, _COUNT - 1), place=st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_damage_is_reported_by_those_who_need_it_and_by_nobody_else(twelve: Path, number: int, place: float) -> None:
    """R16, R17: one changed byte anywhere in one frame. No changed value is ever returned."""
    with CkptSaver(twelve) as saver:
        whole, _ = _listed(saver, config())
    affected = {f"c{i:02}" for i in (range(_SHARED, _COUNT) if number == _SHARED else [number])}
    with _damaged(twelve, number + 1, place) as saver:
        good, errors = _listed(saver, config())
        assert good == {id: item for id, item in whole.items() if id not in affected}
        assert len(errors) == len(affected)
        # Where the record itself is damaged, its id cannot be read; the error names the lane and the place in the log.
        for id in affected - {f"c{number:02}"}:
            assert any(id in str(error) for error in errors)
        for id, item in whole.items():
            if id in affected:
                with pytest.raises(CorruptionError, match=rf"checkpoint '{id}': .*segment 1, offset \d+"):
                    saver.get_tuple(config(id))
            else:
                assert saver.get_tuple(config(id)) == item


@pytest.mark.parametrize("at", [thread(), None], ids=["of the thread", "of all threads"])
@pytest.mark.parametrize("lsn", [1, 4])
def test_damage_in_a_listing_over_all_namespaces(twelve: Path, lsn: int, at: Any) -> None:
    """R16: no namespace is named, or nothing at all. LSN 1 also holds the names of the thread and of its lane."""
    with _damaged(twelve, lsn, 0.9) as saver:
        good, errors = _listed(saver, at)
        assert len(good) == _COUNT - 1
        assert len(errors) == 1


@pytest.mark.parametrize("place", [0.9, 0.15], ids=["body", "directory"])
def test_damage_in_one_of_two_namespaces(tmp_path: Path, place: float) -> None:
    """R16: a thread with a subgraph. The listing over both gives all that is whole."""
    with CkptSaver(tmp_path / "s") as saver:
        for number in range(6):
            ns = "sub:1" if number % 2 else ""
            saver.put(config(ns=ns), checkpoint(str(number), {"a": random_text(300)}, {"a": 1}), {}, {"a": 1})
    with _damaged(tmp_path / "s", 5, place) as saver:
        good, errors = _listed(saver, thread())
        assert sorted(good) == ["0", "1", "2", "3", "5"]
        assert len(errors) == 1


@by_mode
def test_a_changed_byte_inside_a_stored_text_is_an_error(folder: Path, schema: Any) -> None:
    """R17: at the level of a graph. The states that do not need the record stay readable."""
    with CkptSaver(folder) as saver:
        app = line(schema, saver, n=says("x"))
        app.invoke({"log": ["q"]}, thread())
        # The update's write stands on the head before it, which is read with it: take one further back.
        old = [*app.get_state_history(thread())][1]
        app.update_state(thread(), {"log": [random_text(2000)]}, as_node="n")
    largest = max(frames(folder), key=lambda frame: frame.size)
    flip(largest.path, largest.offset + largest.size - 500)
    with CkptSaver(folder) as saver:
        app = line(schema, saver, n=says("x"))
        with pytest.raises(CorruptionError, match=f"LSN {largest.lsn}"):
            app.get_state(thread())
        assert app.get_state(old.config) == old


_CAPPED = """
import json, os, resource, sys
from langgraph.checkpoint.ckptstore import CkptSaver
from ckptstore.errors import NoSpaceError
from tests.helpers import MODES, line, says, thread
schema = MODES[int(sys.argv[3])]
saver = CkptSaver(sys.argv[1])
app = line(schema, saver, a=says("a"), b=says("b"))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
done, message = 0, None
while message is None and done < 100:
    try:
        app.invoke({"log": [os.urandom(8000).hex()]}, thread(), durability="sync")
        done += 1
    except NoSpaceError as error:
        message = str(error)
state = app.get_state(thread())
read = len(state.values["log"])
refused = False
try:
    app.invoke({"log": [os.urandom(200_000).hex()]}, thread("other"), durability="sync")
except NoSpaceError:
    refused = True
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
app.invoke(None, thread(), durability="sync")
end = app.get_state(thread())
after = app.invoke({"log": ["last"]}, thread())["log"]
print(json.dumps({"done": done, "message": message, "read": read, "refused": refused, "end": len(end.values["log"]),
                  "next": list(end.next), "after": after[-3:], "length": len(after)}))
"""


@pytest.mark.parametrize("limit", [200_000, 207_000, 214_000])
@pytest.mark.parametrize("mode", [0, 1], ids=["full", "delta"])
def test_a_full_disk_loses_nothing_and_the_step_resumes(folder: Path, limit: int, mode: int) -> None:
    """R41: a file size limit stands in for the full disk."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = child(_CAPPED, folder, limit, mode, env={**os.environ, "PYTHONPATH": path})
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    seen = json.loads(out)
    assert seen["message"] is not None
    assert "no space" in seen["message"]
    assert seen["done"] >= 1
    assert seen["refused"]
    assert seen["read"] >= 3 * seen["done"]
    assert seen["next"] == []
    assert seen["end"] in (3 * seen["done"], 3 * seen["done"] + 3)
    assert seen["after"] == ["last", "a", "b"]
    with CkptSaver(folder) as saver:
        app = line(MODES[mode], saver, a=says("a"), b=says("b"))
        assert len(app.get_state(thread()).values["log"]) == seen["length"] == seen["end"] + 3


# -- values and metadata -------------------------------------------------------------------------------------------------------


def _bytes_read_to_list_threads(folder: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Counter[int]]:
    with CkptSaver(folder, durability="process") as saver:
        for number in range(40):
            saver.put(config(thread=f"thread-{number}"), checkpoint("1", {"a": random_text(size)}, {"a": 1}), {}, {"a": 1})
    read = 0
    kinds: Counter[int] = Counter()
    pread, raw = Vfs.pread, Frame.raw

    def counted(self: Vfs, fd: int, length: int, offset: int) -> bytes:
        nonlocal read
        data = pread(self, fd, length, offset)
        read += len(data)
        return data

    def decoded(self: Frame, ordinal: int) -> bytes:
        kinds[self.entries[ordinal][0]] += 1
        return raw(self, ordinal)

    with ckptstore.open(folder) as store:
        monkeypatch.setattr(Vfs, "pread", counted)
        monkeypatch.setattr(Frame, "raw", decoded)
        listed = [info.thread for info in store.threads()]
        monkeypatch.undo()
    assert listed == [f"thread-{number}" for number in range(40)]
    return read, kinds


def test_listing_threads_reads_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R20: what is read from disk does not depend on the size of the values, and no value is decoded."""
    small, kinds = _bytes_read_to_list_threads(tmp_path / "small", 200, monkeypatch)
    large, same = _bytes_read_to_list_threads(tmp_path / "large", 50_000, monkeypatch)
    assert kinds == same
    value = 4
    assert kinds[value] == 0
    assert large < small + 40 * 200


def _merge(old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any]:
    return {**(old or {}), **(new or {})}


class _Box(TypedDict):
    box: Annotated[dict[str, Any] | None, _merge]


@pytest.mark.parametrize("given_value", [Overwrite({"k": 1}), {"__overwrite__": {"k": 1}}], ids=["object", "dict"])
def test_an_overwrite_wrapper_never_becomes_a_value(saver: CkptSaver, given_value: Any) -> None:
    """R25: through a graph, and by a direct put."""
    app = line(_Box, saver, n=lambda state: {"box": {"n": 1}})
    app.update_state(thread(), {"box": given_value}, as_node="n")
    assert app.get_state(thread()).values == {"box": {"k": 1}}
    saver.put(config(thread="u"), checkpoint("1", {"box": given_value}, {"box": 1}), {}, {"box": 1})
    found: Any = saver.get_tuple(config(thread="u"))
    assert found.checkpoint["channel_values"] == {"box": {"k": 1}}


def test_messages_in_metadata_come_back_equal(call: Driver) -> None:
    """R30."""
    metadata = {"source": "loop", "step": 1, "writes": {"n": {"messages": [AIMessage("hi", id="m1")]}}}
    call.put(config(), checkpoint("1"), metadata)
    assert call.get_tuple(config()).metadata == metadata
    assert call.ids(None, filter={"step": 1}) == ["1"]
    assert call.ids(None, filter={"step": 2}) == []


def test_secrets_in_metadata_are_dropped_on_request(new_saver: Any) -> None:
    """R31: they are kept in clear by default, as the other savers do."""
    at = {"configurable": {"thread_id": "t", "api_key": "sk-test", "refresh_token": "rt", "user": "u"}}
    open_saver, closed = new_saver(), new_saver(drop_metadata=("*key*", "*token*"))
    for saver in (open_saver, closed):
        line(Full, saver, n=says("x")).invoke({"log": ["q"]}, at)
    assert all(item.metadata["api_key"] == "sk-test" for item in open_saver.list(config()))
    kept = [item.metadata for item in closed.list(config())]
    assert kept
    assert not [metadata for metadata in kept if {"api_key", "refresh_token"} & metadata.keys()]
    assert all(metadata["user"] == "u" for metadata in kept)


def test_dropped_metadata_reaches_no_file(folder: Path) -> None:
    """R31."""
    at = {"configurable": {"thread_id": "t", "api_key": "sk-a-very-secret-text"}}
    with CkptSaver(folder, drop_metadata=["api_key"]) as saver:
        line(Delta, saver, n=says("x")).invoke({"log": ["q"]}, at)
    for path in folder.rglob("*"):
        if path.is_file():
            assert b"sk-a-very-secret-text" not in path.read_bytes()


@by_mode
def test_a_value_the_serde_refuses_is_named_and_the_thread_stays(saver: CkptSaver, schema: Any) -> None:
    """R32."""
    output: list[Any] = [{"deep": [object()]}]
    app = line(schema, saver, n=lambda state: {"log": output})
    with pytest.raises(SerializationError, match=r"^log\[0\]\.deep\[0\]: .*builtins\.object"):
        app.invoke({"log": ["q"]}, thread())
    assert app.get_state(thread()).next == ("n",)
    assert app.get_state(thread()).values["log"] == ["q"]
    output[:] = ["fine"]
    assert app.invoke(None, thread())["log"] == ["q", "fine"]


_STEPS = st.one_of(
    st.integers(0, 3).map(lambda at: (f"[{at}]", lambda part: [*[0] * at, part, "after"])),
    st.sampled_from(["deep", "k1"]).map(lambda key: (f".{key}", lambda part: {"a": 1, key: part})),
    st.sampled_from(["two words", "", "é-1"]).map(lambda key: (f"[{key!r}]", lambda part: {key: part, "z": [1]})),
)


@given(st.lists(_STEPS, max_size=6))
@settings(max_examples=40, deadline=None)
def test_the_path_to_a_refused_value_is_exact(steps: list[Any]) -> None:
    """R32, for any nesting: by `put` and by `put_writes`; nothing of the call is stored."""
    value: Any = object()
    for _, wrap in reversed(steps):
        value = wrap(value)
    path = "log" + "".join(step for step, _ in steps)
    with CkptSaver(":memory:") as saver:
        saver.put(config(), checkpoint("1"), {}, {})
        with pytest.raises(SerializationError) as by_put:
            saver.put(config("1"), checkpoint("2", {"log": value}, {"log": 1}), {}, {"log": 1})
        with pytest.raises(SerializationError) as by_writes:
            saver.put_writes(config("1"), [("fine", 1), ("log", value)], "k")
        for raised in (by_put, by_writes):
            assert str(raised.value).startswith(f"{path}: a value of type builtins.object ")
        assert [(item.checkpoint["id"], item.pending_writes) for item in saver.list(config())] == [("1", [])]


def test_no_limit_of_the_index_is_ever_met(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R36: an index that begins at 128 KiB takes 300 turns of 500 bytes; another process reads what it grew to."""
    monkeypatch.setattr("ckptstore.storage.local.index.lmdb._FIRST_MAP", 128 << 10)
    with CkptSaver(folder, durability="process") as saver:
        app = line(Delta, saver, n=says("x"))
        for _ in range(300):
            app.invoke({"log": [random_text(500)]}, thread(), durability="sync")
        assert max(path.stat().st_size for path in (folder / "index").rglob("data.mdb")) > 128 << 10
        reader = child(f"import ckptstore; print(sum(1 for _ in ckptstore.open({str(folder)!r}).list()))")
        out, _ = reader.communicate(timeout=60)
        assert int(out) == len(list(saver.list(config()))) == 900
        assert len(app.get_state(thread()).values["log"]) == 600


def test_delta_and_full_agree(saver: CkptSaver) -> None:
    """R04, R06: the two kinds of channel hold the same log after the same turns."""
    logs = []
    for index, schema in enumerate(MODES):
        app = side_by_side(schema, saver, a=says("a"), b=says("b"), c=says("c"))
        for turn in range(3):
            app.invoke({"log": [turn]}, thread(str(index)))
        logs.append(app.get_state(thread(str(index))).values["log"])
    assert logs[0] == logs[1] == concat([], [[turn, "a", "b", "c"] for turn in range(3)])
