"""Random programs of native calls mean what the plain model says: live, in the cursors that made them, and replayed by fresh ones.

`CKPTSTORE_FUZZ=N` runs N programs of each kind instead of the few of a usual run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

import ckptstore
from ckptstore import Checkpoint, LaneName, Store, Thread
from ckptstore.errors import CkptStoreError, ConflictError, ReducerError, SchemaError, ThreadExistsError
from tests.model.lanes import Model, Snapshot, remove, seen
from tests.native.calls import GIVEN_AGAIN, KINDS, SCHEMA, UNSET, Kind, Overwrite, reducers

EXAMPLES = int(os.environ.get("CKPTSTORE_FUZZ", "0"))

THREADS = ("a", "b", "c")
THREAD = st.sampled_from(THREADS)
PICK = st.integers(0, 10_000)
"""Chooses among what is there when a rule runs."""

# Long texts begin alike, so that values are stored as changes of others, in records of their own.
TEXTS = st.builds(lambda n, size: f"{n}." + "lorem ipsum " * size, st.integers(0, 9), st.sampled_from([0, 0, 1, 6, 40]))
ITEMS = st.builds(lambda id, text: {"id": id, "text": text}, st.integers(0, 4), TEXTS)
FACTS = st.dictionaries(st.sampled_from("xyz"), TEXTS, max_size=2)
KEYED = st.lists(ITEMS, max_size=2, unique_by=lambda item: item["id"])
WRITES: dict[str, Any] = {
    "log": st.lists(TEXTS, max_size=2),
    "title": TEXTS | st.none(),
    "facts": FACTS,
    "chat": st.lists(ITEMS | st.builds(remove, st.integers(0, 4)), max_size=3),
    "total": st.integers(-5, 5),
}
OVERWRITES: dict[str, Any] = {
    "log": st.lists(TEXTS, max_size=2),
    "title": TEXTS,
    "facts": FACTS,
    "chat": KEYED,
    "total": st.integers(0, 3),
}


def _one(name: str) -> Any:
    """A write, nearly always a plain one: the others begin a channel's history anew, and long ones have to be met too."""

    def kind(chosen: int) -> Any:
        return {18: st.builds(Overwrite, OVERWRITES[name]), 19: st.just(UNSET)}.get(chosen, WRITES[name])

    return st.integers(0, 19).flatmap(kind)


STEP = st.lists(st.sampled_from(sorted(SCHEMA)), unique=True, max_size=5).flatmap(
    lambda chosen: st.fixed_dictionaries({name: _one(name) for name in chosen})
)
BAD = st.sampled_from([{"log": "text"}, {"facts": [1]}, {"chat": [{}]}, {"title": 1, "log": None}, {"chat": [3], "total": 1}])


class Held:
    """A cursor that the program holds, and where the model thinks it is."""

    def __init__(self, thread: Thread, name: str, at: int | None) -> None:
        self.thread = thread
        self.name = name
        self.at = at


class Programs(RuleBasedStateMachine):
    """Three threads of one store, cursors that live on, and the model beside them."""

    kind: Kind

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name) / "s"
        self.options: dict[str, Any] = {}
        self.model = Model()
        self.ids: dict[int, str] = {}
        """Id of each checkpoint of the model."""
        self.held: list[Held] = []
        self.touched: list[Held] = []

    @initialize(small=st.booleans(), frequency=st.sampled_from([2, 10, 10]), steps=st.lists(STEP, min_size=3, max_size=12))
    def begin(self, small: bool, frequency: int, steps: list[dict[str, Any]]) -> None:
        """A store with a thread of some steps."""
        self.options = {"durability": "process"}
        if self.kind != "memory":
            self.options |= {"index": self.kind, **({"segment_bytes": 4096, "cache_bytes": 0} if small else {})}
        self.store = self.open()
        self.open_thread("a", frequency, True)
        self.walk(0, steps)

    def open(self) -> Store:
        return ckptstore.open(":memory:" if self.kind == "memory" else self.path, **self.options)

    def pick(self, number: int) -> Held:
        return self.held[number % len(self.held)]

    def chosen(self, name: str, number: int) -> int:
        """A checkpoint of a thread that holds some."""
        known = list(self.model.threads[name].snapshots)
        return known[number % len(known)]

    def existing(self, number: int) -> str:
        """A thread that holds checkpoints."""
        names = list(self.model.threads)
        return names[number % len(names)]

    def snapshot(self, held: Held) -> Snapshot | None:
        """What the model has where a cursor is; None where nothing is, or nothing any more."""
        lane = self.model.threads.get(held.name)
        return None if lane is None or held.at is None else lane.snapshots.get(held.at)

    def gone(self, held: Held) -> bool:
        return held.at is not None and self.snapshot(held) is None

    # -- cursors ---------------------------------------------------------------------------------------------------------

    @rule(name=THREAD, frequency=st.sampled_from([1, 2, 3, 10]), given=st.booleans())
    def open_thread(self, name: str, frequency: int, given: bool) -> None:
        """At the head; with the whole schema, or with what the store does not remember."""
        lane = self.model.threads.get(name)
        if lane is None and not given:
            with pytest.raises(SchemaError):
                self.store.thread(name)
            return
        schema = SCHEMA if given else GIVEN_AGAIN
        thread = self.store.thread(name, schema=schema, snapshot_frequency=frequency)
        self.hold(Held(thread, name, None if lane is None else lane.head))

    @precondition(lambda self: self.held)
    @rule(number=PICK)
    def fork(self, number: int) -> None:
        held = self.pick(number)
        self.hold(Held(held.thread.fork(), held.name, held.at))

    @precondition(lambda self: any(held.name in self.model.threads for held in self.held))
    @rule(number=PICK, to=PICK, by_id=st.booleans())
    def go_to(self, number: int, to: int, by_id: bool) -> None:
        """`at`, from a cursor that may itself stand on what is gone."""
        there = [held for held in self.held if held.name in self.model.threads]
        held = there[number % len(there)]
        at = self.chosen(held.name, to)
        self.hold(Held(held.thread.at(self.ids[at] if by_id else self.checkpoint(held.name, at)), held.name, at))

    def hold(self, held: Held) -> None:
        assert held.thread.tip == (None if held.at is None else self.ids[held.at])
        self.held = [*self.held[-7:], held]
        self.touched = [held]

    def checkpoint(self, name: str, at: int) -> Checkpoint:
        found = self.store.thread(name, schema=GIVEN_AGAIN).at(self.ids[at]).checkpoint()
        assert found is not None
        return found

    # -- steps -----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.held)
    @rule(number=PICK, writes=STEP, expect=st.sampled_from([False, False, True]), note=st.none() | TEXTS)
    def step(self, number: int, writes: dict[str, Any], expect: bool, note: Any) -> None:
        held = self.pick(number)
        call = partial(held.thread.step, writes, metadata=None if note is None else {"note": note}, expect_head=expect)
        frames, tip = self.store.stats().frames, held.thread.tip
        lane = self.model.threads.get(held.name)
        head = None if lane is None else lane.head
        if self.gone(held):
            with pytest.raises(CkptStoreError):
                call()
        elif expect and held.at != head:
            with pytest.raises(ConflictError):
                call()
        else:
            made = call()
            held.at = self.model.step(held.name, held.at, writes)
            self.ids[held.at] = made.id
            snapshot = self.snapshot(held)
            assert snapshot is not None
            assert (made.parent, made.step) == (tip, snapshot.step)
            assert made.metadata == ({} if note is None else {"note": note})
            assert held.thread.checkpoint() == made
            assert self.store.stats().frames == frames + 1
            self.touched = [held]
            return
        assert (self.store.stats().frames, held.thread.tip) == (frames, tip)

    @precondition(lambda self: self.held)
    @rule(number=PICK, steps=st.lists(STEP, min_size=4, max_size=12))
    def walk(self, number: int, steps: list[dict[str, Any]]) -> None:
        """Many steps in a row, so that the cadence comes round."""
        held = self.pick(number)
        if not self.gone(held):
            for writes in steps:
                made = held.thread.step(writes)
                held.at = self.model.step(held.name, held.at, writes)
                self.ids[held.at] = made.id
            self.touched = [held]

    @precondition(lambda self: self.held)
    @rule(number=PICK, writes=BAD)
    def bad_step(self, number: int, writes: dict[str, Any]) -> None:
        held = self.pick(number)
        frames, tip = self.store.stats().frames, held.thread.tip
        with pytest.raises(CkptStoreError if self.gone(held) else ReducerError):
            held.thread.step(writes)
        assert (self.store.stats().frames, held.thread.tip) == (frames, tip)
        self.touched = [held]

    # -- heads and removal -----------------------------------------------------------------------------------------------

    @precondition(lambda self: any(held.name in self.model.threads for held in self.held))
    @rule(number=PICK, to=PICK, own=st.booleans())
    def set_head(self, number: int, to: int, own: bool) -> None:
        there = [held for held in self.held if held.name in self.model.threads]
        held = there[number % len(there)]
        if own and (self.gone(held) or held.at is None):
            with pytest.raises(CkptStoreError):
                held.thread.set_head()
            return
        at = held.at if own else self.chosen(held.name, to)
        assert at is not None
        held.thread.set_head(None if own else self.ids[at])
        held.at = self.model.threads[held.name].head = at
        self.touched = [held]

    @precondition(lambda self: self.model.threads)
    @rule(number=PICK)
    def prune(self, number: int) -> None:
        name = self.existing(number)
        assert self.store.prune(name) == self.model.prune(name)
        self.touched = [held for held in self.held if held.name == name]

    @precondition(lambda self: self.model.threads)
    @rule(number=PICK, destination=THREAD)
    def copy(self, number: int, destination: str) -> None:
        source = self.existing(number)
        if destination in self.model.threads:
            with pytest.raises(CkptStoreError if source == destination else ThreadExistsError):
                self.store.copy(source, destination)
            return
        assert self.store.copy(source, destination) == self.model.copy(source, destination)
        # Cursors of a deleted thread whose checkpoints are back, from a copy that shares them, are good again.
        self.touched = [held for held in self.held if held.name == destination]

    @precondition(lambda self: len(self.model.threads) > 1)
    @rule(number=PICK)
    def delete(self, number: int) -> None:
        name = self.existing(number)
        assert self.store.delete(name) == self.model.delete(name)
        self.touched = [held for held in self.held if held.name == name]

    @rule(name=st.sampled_from(["x", "y"]))
    def remove_what_is_not_there(self, name: str) -> None:
        assert (self.store.prune(name), self.store.delete(name), self.store.copy(name, "z")) == (0, False, 0)

    @precondition(lambda self: self.kind != "memory")
    @rule(forget_index=st.booleans())
    def reopen(self, forget_index: bool) -> None:
        """Cursors are opened anew where they were; those on nothing, or on what is gone, end with the store."""
        self.store.close()
        if forget_index:
            shutil.rmtree(self.path / "index")
        self.store = self.open()
        kept = [held for held in self.held if self.snapshot(held) is not None]
        for held in kept:
            assert held.at is not None
            held.thread = self.store.thread(held.name, schema=GIVEN_AGAIN, snapshot_frequency=3).at(self.ids[held.at])
        self.held = self.touched = kept

    # -- what must hold --------------------------------------------------------------------------------------------------

    @invariant()
    def cursors_read_what_the_model_says(self) -> None:
        """Checked where something happened; everything is at the end."""
        for held in self.touched:
            snapshot = self.snapshot(held)
            if self.gone(held):
                with pytest.raises(CkptStoreError):
                    held.thread.state()
            elif snapshot is None:
                assert held.thread.state() == {}
            else:
                self.check(held, snapshot)
        self.touched = []

    def check(self, held: Held, snapshot: Snapshot) -> None:
        assert held.at is not None
        lane = self.model.threads[held.name]
        replayed = self.store.state(LaneName(held.name), self.ids[held.at], reducers=reducers())
        assert held.thread.state() == replayed == snapshot.state
        walk, at = [], held.at
        while at in lane.snapshots:
            walk.append(self.ids[at])
            parent = lane.snapshots[at].parent
            if parent is None:
                break
            at = parent
        assert [checkpoint.id for checkpoint in held.thread.lineage()] == walk
        head = held.thread.head()
        assert head is not None
        assert head.id == self.ids[lane.head]
        self.check_diff(held, snapshot, lane.snapshots[lane.head])

    def check_diff(self, held: Held, snapshot: Snapshot, head: Snapshot) -> None:
        names = snapshot.state.keys() | head.state.keys()
        expected = {
            name: (head.state.get(name, UNSET), snapshot.state.get(name, UNSET))
            for name in names
            if name not in head.state or name not in snapshot.state or head.state[name] != snapshot.state[name]
        }
        lane = self.model.threads[held.name]
        assert held.thread.diff(self.ids[lane.head]) == expected

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                assert seen(self.store) == self.model.view()
                for name, lane in self.model.threads.items():
                    assert [item.id for item in self.store.list(name, "")] == [self.ids[at] for at in reversed(lane.snapshots)]
                if self.kind != "memory":
                    self.reopen(forget_index=True)
                    assert seen(self.store) == self.model.view()
        finally:
            if hasattr(self, "store"):
                self.store.close()
            self._folder.cleanup()


USUAL: dict[Kind, tuple[int, int]] = {"memory": (80, 30), "lmdb": (40, 30), "sqlite": (40, 30)}
"""Programs, and the most rules in each."""


@pytest.mark.parametrize("kind", KINDS)
def test_random_programs_mean_what_the_model_says(kind: Kind) -> None:
    machine = type(f"Programs_{kind}", (Programs,), {"kind": kind})
    examples, steps = USUAL[kind]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or examples,
            stateful_step_count=50 if EXAMPLES else steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
