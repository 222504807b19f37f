"""Branches stay exact: what is read back must equal what the live run returned, in the new branch and in every older one.

A write stored on a parent does not say which child used it. Each scenario makes two children of one parent, or leaves writes behind
that no child used, in one of the ways a graph can.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from langgraph.channels import LastValue
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, interrupt

from tests.helpers import Delta, concat, config, line, says, side_by_side, thread

RUN: dict[str, Any] = {"durability": "sync"}


def _logs(app: Any) -> list[list[Any] | None]:
    """The log of every checkpoint, newest first."""
    return [state.values.get("log") for state in app.get_state_history(thread())]


def _before(app: Any, node: str) -> Any:
    """Config of the checkpoint from which a node runs next."""
    return next(state.config for state in app.get_state_history(thread()) if state.next == (node,))


def test_a_replay_from_an_old_checkpoint(saver: CkptSaver) -> None:
    """s1."""
    count = itertools.count(1)
    app = line(Delta, saver, a=lambda state: {"log": [f"a{next(count)}"]}, b=says("b"))
    app.invoke({"log": ["i"]}, thread(), **RUN)
    old = _logs(app)
    live = app.invoke(None, _before(app, "a"), **RUN)["log"]
    assert live == ["i", "a2", "b"]
    assert _logs(app)[0] == live
    assert _logs(app)[-len(old) :] == old


def test_two_updates_of_one_checkpoint(saver: CkptSaver) -> None:
    """s2."""
    app = line(Delta, saver, a=says("a"), b=says("b"))
    app.invoke({"log": ["i"]}, thread(), **RUN)
    at = _before(app, "a")
    first = app.update_state(at, {"log": ["u1"]}, as_node="a")
    second = app.update_state(at, {"log": ["u2"]}, as_node="a")
    assert app.get_state(first).values["log"] == ["i", "u1"]
    assert app.get_state(second).values["log"] == ["i", "u2"]


def test_a_second_resume_of_an_interrupt_that_writes_more(saver: CkptSaver) -> None:
    """s3."""
    counts = iter([1, 3])

    def ask(state: Any) -> Command[Any]:
        interrupt("question")
        count = next(counts)
        return Command(update=[("log", [f"a{count}-{i}"]) for i in range(count)])

    app = line(Delta, saver, ask=ask, b=says("b"))
    app.invoke({"log": ["i"]}, thread(), **RUN)
    paused = app.get_state(thread()).config
    app.invoke(Command(resume="1"), thread(), **RUN)
    old = _logs(app)
    live = app.invoke(Command(resume="2"), paused, **RUN)["log"]
    assert live == ["i", "a3-0", "a3-1", "a3-2", "b"]
    assert _logs(app)[0] == live
    assert _logs(app)[-len(old) :] == old


def _crashed(saver: CkptSaver) -> Any:
    """A run in which `a` finished (its writes stand on the head) and `b` failed. From now on `b` works and `a` counts up."""
    failing = [True]
    count = itertools.count(1)

    def b(state: Any) -> Any:
        if failing:
            raise RuntimeError("b fails once")
        return {"log": ["B"]}

    app = side_by_side(Delta, saver, a=lambda state: {"log": [f"A{next(count)}"]}, b=b)
    with pytest.raises(RuntimeError, match="b fails once"):
        app.invoke({"log": ["i"]}, thread(), **RUN)
    failing.clear()
    return app


def test_time_travel_after_a_crash(saver: CkptSaver) -> None:
    """s4."""
    app = _crashed(saver)
    live = app.invoke(None, app.get_state(thread()).config, **RUN)["log"]
    assert _logs(app)[0] == live


def test_a_resume_after_a_crash_uses_what_was_finished(saver: CkptSaver) -> None:
    """s4r."""
    app = _crashed(saver)
    live = app.invoke(None, thread(), **RUN)["log"]
    assert _logs(app)[0] == live == ["i", "A1", "B"]


def test_a_new_input_after_a_crash(saver: CkptSaver) -> None:
    """s5."""
    app = _crashed(saver)
    live = app.invoke({"log": ["j"]}, thread(), **RUN)["log"]
    assert _logs(app)[0] == live


def test_an_update_after_a_crash(saver: CkptSaver) -> None:
    """s6."""
    app = _crashed(saver)
    updated = app.update_state(thread(), {"log": ["UPD"]}, as_node="a")
    assert app.get_state(updated).values["log"] == ["i", "UPD"]


class _InStep(CkptSaver):
    """Lets no run store its child before both runs have stored their writes."""

    writes_stored: threading.Barrier | None = None

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if self.writes_stored is not None and metadata.get("step") == 1:
            self.writes_stored.wait(10)
        return super().put(config, checkpoint, metadata, new_versions)


def _two_at_once(saver: CkptSaver, *, children_in_turn: bool) -> None:
    both_run = threading.Barrier(2)
    first_is_done = threading.Event()
    count = itertools.count()

    def slow(state: Any) -> Any:
        mine = next(count)
        both_run.wait(10)
        if children_in_turn and mine:
            first_is_done.wait(10)
        return {"log": [f"r{mine}"]}

    app = line(Delta, saver, a=slow)
    app.invoke({"log": ["in"]}, thread(), interrupt_before=["a"], **RUN)
    live: list[Any] = []

    def run() -> None:
        live.append(app.invoke(None, thread(), **RUN)["log"])
        first_is_done.set()

    runs = [threading.Thread(target=run) for _ in range(2)]
    for one in runs:
        one.start()
    for one in runs:
        one.join(20)
    assert sorted(live) == [["in", "r0"], ["in", "r1"]]
    heads = [log for log in _logs(app) if log is not None and len(log) == 2]
    assert sorted(heads) == sorted(live)


def test_two_runs_at_once_one_after_the_other(saver: CkptSaver) -> None:
    """s7: writes, child, writes, child."""
    _two_at_once(saver, children_in_turn=True)


def test_two_runs_at_once_interleaved(kind: str, tmp_path: Any) -> None:
    """s7b: writes, writes, child, child."""
    with _InStep(":memory:" if kind == "memory" else tmp_path / "s7b.ckpt") as saver:
        saver.writes_stored = threading.Barrier(2)
        _two_at_once(saver, children_in_turn=False)
        assert saver.writes_stored.n_waiting == 0
        assert not saver.writes_stored.broken


def test_a_copy_of_a_checkpoint(saver: CkptSaver) -> None:
    """s8."""
    app = line(Delta, saver, a=says("a"), b=says("b"))
    app.invoke({"log": ["i"]}, thread(), **RUN)
    copied = app.update_state(thread(), None, as_node="__copy__")
    assert app.get_state(copied).values["log"] == ["i", "a", "b"]


def _graph_with_delta_input(saver: BaseCheckpointSaver[Any], b: Any) -> Any:
    return Pregel(
        nodes={
            "a": NodeBuilder().subscribe_only("k").do(lambda _: ["A"]).write_to("inp"),
            "b": NodeBuilder().subscribe_only("k").do(b).write_to("inp"),
            "c": NodeBuilder().subscribe_only("inp").do(lambda _: ["w"]).write_to("out"),
        },
        channels={"k": LastValue(str), "inp": DeltaChannel(concat, list), "out": DeltaChannel(concat, list)},
        input_channels=["k", "inp"],
        output_channels=["inp", "out"],
        checkpointer=saver,
    )


def test_an_input_into_a_delta_channel_after_a_crash(saver: CkptSaver) -> None:
    """s9: the finished task's write on the head must not join the input."""
    failing = [True]

    def b(_: Any) -> list[str]:
        if failing:
            raise RuntimeError("b fails once")
        return ["B"]

    app = _graph_with_delta_input(saver, b)
    with pytest.raises(RuntimeError, match="b fails once"):
        app.invoke({"k": "1"}, thread(), **RUN)
    failing.clear()
    live = app.invoke({"inp": ["IN"]}, thread(), **RUN)
    assert live["inp"] == ["IN"]
    assert app.get_state(thread()).values == {"k": "1", **live}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_branches_of_branches(saver: CkptSaver, depth: int) -> None:
    """Every leaf of a tree of updates reads its own path, after a restart of the graph too."""
    app = line(Delta, saver, a=says("a"), b=says("b"))
    app.invoke({"log": ["i"]}, thread(), **RUN)
    leaves: dict[tuple[str, ...], Any] = {(): _before(app, "a")}
    for _ in range(depth):
        leaves = {
            (*path, name): app.update_state(at, {"log": [name]}, as_node="a") for path, at in leaves.items() for name in ("l", "r")
        }
    again = line(Delta, saver, a=says("a"), b=says("b"))
    for path, at in leaves.items():
        assert again.get_state(at).values["log"] == ["i", *path]
    assert len(list(saver.list(config()))) == len(_logs(app))
