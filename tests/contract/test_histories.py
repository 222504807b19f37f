"""Whose writes made which child, where writers meet, children are removed, and parents are gone; and what it costs to fork at every turn."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from langgraph.checkpoint.ckptstore import CkptSaver, attribution
from langgraph.graph import START, StateGraph

from ckptstore import LaneName, Source, Store
from ckptstore.errors import CheckpointLineageIntegrityError, InvalidArgumentError
from ckptstore.lineage.values import MOST_FRAMES
from tests.contract.calls import LANE, history, ids, of_token, open_at, put, values, write, written_bytes
from tests.helpers import Delta, checkpoint, config, says, thread, written
from tests.native.calls import FOLDERS, KINDS, Home, Kind
from tests.values.histories import read_every_value


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    kind: Kind = request.param
    home = Home(kind, tmp_path / "s")
    yield home
    home.close()


@pytest.fixture
def saver() -> Iterator[CkptSaver]:
    with CkptSaver(":memory:") as saver:
        yield saver


def _empty(store: Store, id: str, parent: str | None = None, **more: Any) -> None:
    """A checkpoint that has a version of the channel and no value: its past has to be put together from writes."""
    put(store, id, parent, versions={"m": id}, **more)


def _run(id: str | None, metadata: Any) -> Any:
    """A config as a run passes it: its metadata object tells it apart from other runs."""
    return {**config(id), "metadata": metadata}


def _put(saver: CkptSaver, parent: str | None, id: str, run: Any, source: str = "loop") -> None:
    saver.put(_run(parent, run), checkpoint(id, versions={"m": id}), {"step": 0, "source": source}, {"m": id})  # type: ignore[typeddict-item]


def _history(saver: CkptSaver, id: str) -> list[Any]:
    return written(saver.get_delta_channel_history(config=config(id), channels=["m"])["m"])


# -- several writers on one parent -----------------------------------------------------------------------------------------


def test_a_runs_own_write_counts_for_its_child_though_another_child_took_it_first(home: Home) -> None:
    store = home.store
    _empty(store, "1")
    write(store, "1", "finished", task="a", token=b"run")
    write(store, "1", "edit", task="u", token=b"edit")
    _empty(store, "2", "1", token=b"edit", source=Source.UPDATE, rule=of_token(b"edit", Source.UPDATE))
    write(store, "1", "second", task="b", token=b"run")
    _empty(store, "3", "1", token=b"run", rule=of_token(b"run"))
    assert history(store, "3") == (None, ["finished", "second"])
    assert history(store, "2") == (None, ["finished", "edit"])
    home.reopen(forget_index=True)
    assert history(home.store, "3") == (None, ["finished", "second"])


def test_an_update_in_the_middle_of_a_superstep_takes_nothing_from_the_run(saver: CkptSaver) -> None:
    """One task has finished, the other edits the thread from outside before it finishes, too."""

    def edits(state: Any) -> Any:
        deadline = time.monotonic() + 20
        while not saver.get_tuple(thread()).pending_writes:  # type: ignore[union-attr]
            assert time.monotonic() < deadline, "the write of the other task was never stored"
            time.sleep(0.005)
        graph.update_state(thread(), {"log": ["edit"]}, as_node="last")
        return {"log": ["slow"]}

    builder: Any = StateGraph(Delta)
    builder.add_node("quick", says("quick"))
    builder.add_node("slow", edits)
    builder.add_node("last", says("last"))
    for name in ("quick", "slow"):
        builder.add_edge(START, name)
        builder.add_edge(name, "last")
    graph = builder.compile(checkpointer=saver)
    returned = graph.invoke({"log": ["in"]}, thread(), durability="sync")
    assert returned["log"] == ["in", "quick", "slow", "last"]
    assert graph.get_state(thread()).values["log"] == returned["log"]


def test_a_new_input_does_not_end_the_window_of_a_resumed_run(saver: CkptSaver) -> None:
    """A run died with one task done; another sends a new input on the same checkpoint before a resume, of no known writer, is through."""
    parent = "00000000-0000-6000-8000-000000000001"
    dead, other, resumed = {"run": 1}, {"run": 2}, {"run": 3}
    _put(saver, None, parent, {})
    saver.put_writes(_run(parent, dead), [("m", "done")], "task-a")
    saver.put_writes(_run(parent, other), [("m", "new input")], str(uuid.uuid5(uuid.UUID(parent), "__input__")))
    _put(saver, parent, "2", other, "input")
    saver.put_writes(_run(parent, resumed), [("m", "rest")], "task-b")
    _put(saver, parent, "3", resumed)
    assert _history(saver, "2") == ["new input"]
    assert _history(saver, "3") == ["done", "rest"]


# -- tokens ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [b"\0", b"run\0", b"12345\0", b"1234567"])
def test_a_token_that_ends_in_zero_or_is_too_long_is_refused(home: Home, token: bytes) -> None:
    """The engine keeps tokens padded with zeros, so two that differ in zeros only would be one."""
    _empty(home.store, "1")
    last = home.store.stats().last_lsn
    with pytest.raises(InvalidArgumentError, match="last one not 0"):
        _empty(home.store, "2", "1", token=token)
    with pytest.raises(InvalidArgumentError, match="last one not 0"):
        write(home.store, "1", "w", token=token)
    assert home.store.stats().last_lsn == last
    assert ids(home.store) == ["1"]


def test_runs_are_told_apart_whatever_the_random_numbers_end_in(saver: CkptSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(range(1, 1000))
    monkeypatch.setattr(attribution, "os", SimpleNamespace(urandom=lambda count: bytes([next(drawn)]).ljust(count, b"\0")))
    runs = [{"run": number} for number in range(2)]
    _put(saver, None, "1", {})
    for number, run in enumerate(runs):
        saver.put_writes(_run("1", run), [("m", number)], "task")
    for number, run in enumerate(runs):
        _put(saver, "1", f"child {number}", run)
    assert [_history(saver, f"child {number}") for number in range(2)] == [[0], [1]]


# -- removed children, removed parents -------------------------------------------------------------------------------------


def test_writes_that_made_a_removed_child_make_no_other(home: Home) -> None:
    """With an index built anew between removing and writing on, too: the log says which writes are spent."""
    store = home.store
    _empty(store, "1")
    write(store, "1", "edit", task="a")
    _empty(store, "2", "1", run="undone")
    assert store.delete_for_runs(["undone"]) == 1
    home.reopen(forget_index=True)
    store = home.store
    write(store, "1", "new", task="b")
    _empty(store, "3", "1")
    assert history(store, "3") == (None, ["new"])
    home.reopen(forget_index=True)
    assert history(home.store, "3") == (None, ["new"])


def test_prune_works_after_a_put_under_a_pruned_parent(home: Home) -> None:
    """Values stay; of a channel that had no value any more, nobody knows what it was, and who asks is told so."""

    def step(id: str, parent: str | None, *items: Any) -> None:
        put(home.store, id, parent, {"m": items}, versions={"m": id, "trigger": id})

    step("1", None, "old")
    step("2", "1", "old", "new")
    assert home.store.prune("t") == 1
    step("late", "1", "old", "late")
    for round, gone in enumerate((2, 1)):
        step(f"after {round}", ids(home.store)[0], "old", "late", round)
        assert home.store.prune("t") == gone
        assert ids(home.store) == [f"after {round}"]
        home.reopen(forget_index=True)
        assert values(home.store) == {"m": ["old", "late", round]}
        with pytest.raises(CheckpointLineageIntegrityError):
            history(home.store, f"after {round}", "trigger")
    _empty(home.store, "asks", "after 1")
    assert history(home.store, "asks") == (["old", "late", 1], [])


def test_the_history_of_what_was_lost_to_prune_is_an_error(home: Home) -> None:
    _empty(home.store, "1")
    write(home.store, "1", "lost")
    _empty(home.store, "2", "1")
    home.store.prune("t")
    _empty(home.store, "late", "1")
    write(home.store, "late", "kept")
    _empty(home.store, "after", "late")
    home.store.prune("t")
    assert ids(home.store) == ["after"]
    for _ in range(2):
        with pytest.raises(CheckpointLineageIntegrityError, match="lost when it was pruned"):
            history(home.store, "after")
        home.reopen(forget_index=True)


@pytest.mark.parametrize("forget_first", [False, True], ids=["then-forget", "forget-first"])
def test_a_put_under_a_pruned_parent_is_told_of_the_loss_after_a_compaction_and_with_a_new_index_too(
    home: Home, forget_first: bool
) -> None:
    """What was removed is remembered as long as a run may still be going that stands on it."""
    _empty(home.store, "1")
    _empty(home.store, "2", "1")
    home.store.prune("t")
    home.store.compact()
    if forget_first:
        home.reopen(forget_index=True)
    _empty(home.store, "late", "1")
    for _ in range(2):
        with pytest.raises(CheckpointLineageIntegrityError, match="'late'"):
            history(home.store, "late")
        home.reopen(forget_index=True)


def test_a_put_under_a_parent_that_compaction_forgot_keeps_the_loss(home: Home) -> None:
    """The index knows of more removed checkpoints than a compacted log: what it knew at a put is written down with that."""
    for number in range(40):
        _empty(home.store, f"{number:02}", f"{number - 1:02}" if number else None)
    home.store.prune("t")
    home.store.compact()
    _empty(home.store, "late", "02")
    for _ in range(2):
        with pytest.raises(CheckpointLineageIntegrityError, match="'late'"):
            history(home.store, "late")
        home.store.compact()
        home.reopen(forget_index=True)


@pytest.mark.parametrize("channel", ["__start__", "branch:to:node", "__return__"])
def test_prune_keeps_a_channel_of_any_name(home: Home, channel: str) -> None:
    """No name of a channel is reserved: only a mark without a version is left out."""
    parent = None
    for number in range(3):
        put(home.store, f"{number}", parent, versions={channel: number})
        write(home.store, f"{number}", f"w{number}", task=f"t{number}", channel=channel)
        parent = f"{number}"
    put(home.store, "last", parent, versions={channel: 3})
    before = history(home.store, "last", channel)
    assert before == (None, ["w0", "w1", "w2"])
    home.store.prune("t")
    home.store.compact()
    assert history(home.store, "last", channel) == before


def test_a_survivor_put_again_under_another_parent_has_the_new_past(home: Home) -> None:
    """What was kept of its removed ancestors belonged to the old one."""
    store = home.store
    _empty(store, "1")
    write(store, "1", "w1")
    _empty(store, "2", "1", run="undone")
    write(store, "2", "w2")
    _empty(store, "3", "2")
    store.delete_for_runs(["undone"])
    assert history(store, "3") == (None, ["w1", "w2"])
    _empty(store, "9")
    write(store, "9", "w9")
    _empty(store, "3", "9")
    for _ in range(2):
        found = home.store.get(LANE, "3")
        assert found is not None
        assert found.parent == "9"
        assert history(home.store, "3") == (None, ["w9"])
        home.reopen(forget_index=True)


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("pruned", ["source", "copy"])
@pytest.mark.parametrize("again", [False, True], ids=["put-once", "put-again"])
def test_what_was_pruned_of_a_copied_thread_stays_away_after_compaction(
    tmp_path: Path, kind: str, pruned: str, again: bool
) -> None:
    """The copy is by reference, and a rebuild makes it again from its source: what was removed of either must be removed again."""
    path = tmp_path / "s"

    def expect(store: Store) -> None:
        assert {name: ids(store, name) for name in ("source", "copy")} == {"source": ["2", "1"], "copy": ["2", "1"], pruned: ["2"]}
        for name in ("source", "copy"):
            assert values(store, "2", LaneName(name)) == {"m": ["first", "second"]}

    with open_at(path, index=kind, auto_compact=False) as store:
        put(store, "1", lane=LaneName("source"), values={"m": ["first"]})
        put(store, "2", "1", lane=LaneName("source"), values={"m": ["first", "second"]})
        put(store, "junk", lane=LaneName("junk"), values={"m": "junk" * 100})
        if again:
            put(store, "1", lane=LaneName("source"), values={"m": ["first"]})
        store.copy("source", "copy")
        store.prune(pruned)
        store.delete("junk")
        store.compact()
        expect(store)
    for forget in (False, True):
        if forget:
            for entry in sorted((path / "index").rglob("*"), reverse=True):
                entry.rmdir() if entry.is_dir() else entry.unlink()
        with open_at(path) as store:
            expect(store)


# -- forks -----------------------------------------------------------------------------------------------------------------


def _forks(turns: int) -> tuple[Store, list[bytes]]:
    """A conversation in which every turn forks: the value behind it is stored as a snapshot of everything before and one write more."""
    rng = random.Random(turns)
    store = open_at(":memory:")
    items: list[bytes] = []
    kept: list[bytes] = []
    parent = None

    def packed(channel: str, value: Any) -> tuple[str, bytes]:
        return "msgpack", value

    for turn in range(turns):
        at = f"at {turn}"
        put(store, at, parent, versions={"m": at}, encode=packed)
        items.append(rng.randbytes(2500))
        store.put_writes(LANE, at, [(0, "m", msgpack.packb(items[-1:]))], task_id="k", encode=packed)
        put(store, f"next {turn}", at, versions={"m": f"next {turn}"}, encode=packed)
        kept.append(msgpack.packb(msgpack.ExtType(7, msgpack.packb(items))))
        put(store, f"fork {turn}", at, {"m": kept[-1]}, encode=packed)
        parent = f"fork {turn}"
    return store, kept


def test_forks_at_every_turn_keep_every_value_at_few_frames() -> None:
    """Besides the writes that a value folds; and never a fold on a fold, which would grow with the history."""
    store, kept = _forks(40)
    for turn, value in enumerate(kept):
        found = store.get(LANE, f"fork {turn}")
        assert found is not None
        assert found.values["m"] == ("msgpack", value)
    folded = 0
    for read in read_every_value(store._storage):
        assert len(read.touched - {ref.lsn for ref in read.facts.folds}) <= MOST_FRAMES
        assert len(read.facts.folds) <= 1
        folded += len(read.facts.folds)
    assert folded
    store.close()


def test_forks_at_every_turn_do_not_grow_with_the_square_of_the_turns() -> None:
    """Twice the turns: linear growth doubles what is stored, quadratic growth makes it four times as much."""
    sizes = []
    for turns in (40, 80):
        store, _ = _forks(turns)
        sizes.append(written_bytes(store))
        store.close()
    assert sizes[1] < sizes[0] * 3
