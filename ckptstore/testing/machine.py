"""A hypothesis state machine for checkpoint savers: random programs of runs, edits, forks, removals, reopenings and crashes.

The machine plays runs as LangGraph does and knows what made each checkpoint; `Model` says what must be read of it. A subclass gives the
driver:

>>> from ckptstore.testing.engine import StoreDriver
>>> from ckptstore.testing.machine import SaverMachine, campaign
>>> class InMemory(SaverMachine):
...     def driver(self, variant):
...         return StoreDriver()
>>> campaign(InMemory, steps=60, seed=1).violation is None
True

A failing program is shrunk and printed as Python. `ckptstore.testing.session.replay` runs it again: see docs/testing.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from ckptstore.testing.calls import (
    NULL_TASK,
    Compact,
    Copy,
    Crash,
    Delete,
    DeleteForRuns,
    Get,
    History,
    Listing,
    Prune,
    Put,
    PutWrites,
    Reopen,
    SetHead,
)
from ckptstore.testing.model import batch_of
from ckptstore.testing.playing import (
    NAMESPACES,
    NOTHING,
    PICK,
    RUNS,
    SPECIALS,
    TEXTS,
    THREADS,
    USERS,
    WHERE,
    WRITES,
    RunsMachine,
    Writes,
)
from ckptstore.testing.runs import CHANNELS, Run, channels_of, strangers

FILTERS = st.sampled_from(
    [{}, {}, {"user": "ann"}, {"source": "update"}, {"run_id": "r1", "user": "bob"}, {"nobody": None}, {"step": 1}]
)


class SaverMachine(RunsMachine):
    """Everything else that happens to a store besides runs. Subclasses give `driver`."""

    steps: ClassVar[int] = 0
    """Rules run by all examples of the class."""
    examples: ClassVar[int] = 0
    """Programs run by the class. hypothesis may run a few more or less than it is told to."""

    @invariant()
    def counted(self) -> None:
        type(self).steps += 1

    def teardown(self) -> None:
        type(self).examples += 1
        super().teardown()

    # -- edits and forks -------------------------------------------------------------------------------------------------

    @rule(
        number=PICK,
        where=WHERE,
        given=st.lists(WRITES, min_size=1, max_size=2),
        task=st.sampled_from(["u", "u", "k0"]),
        snapshots=st.sampled_from([(), (), ("log",)]),
        text=TEXTS,
        run=st.none() | st.sampled_from(RUNS),
    )
    def update(
        self, number: int, where: str, given: Sequence[Writes], task: str, snapshots: Sequence[str], text: str, run: str | None
    ) -> None:
        """An edit from outside: one or two batches under one task id, and their child."""
        found = self.pick(number, where)
        if found is None:
            return
        thread, ns, checkpoint = found
        at, writer, lane = checkpoint.put, self.writer(), self.lane(thread, ns)
        unclear = channels_of(strangers(lane, at.id, "update", tasks=[task]))
        calls = []
        for writes in given:
            clear = tuple(write for write in writes if write[0] not in unclear)
            calls.append(PutWrites(self.number(), thread, ns, at.id, task, "", clear or NOTHING, writer))
            if not self.do(calls[-1]):
                return
        put = self.child(
            thread,
            ns,
            at,
            self.new_id(self.number(), False),
            map(batch_of, calls),
            "update",
            text,
            snapshots=[name for name in snapshots if name not in unclear],
            run=run,
            writer=writer,
            made_by=tuple(call.number for call in calls),
        )
        self.do(put)

    @rule(number=PICK, where=WHERE, writes=WRITES, command=st.booleans(), text=TEXTS, low=st.booleans())
    def give_input(self, number: int, where: str, writes: Writes, command: bool, text: str, low: bool) -> None:
        """A run begins with an input, whatever stands on the checkpoint that others did not finish."""
        found = self.pick(number, where)
        if found is None:
            return
        thread, ns, checkpoint = found
        at, writer = checkpoint.put, self.writer()
        task = NULL_TASK if command else self.input_task(at.id)
        unclear = channels_of(strangers(self.lane(thread, ns), at.id, "input", tasks=[task]))
        clear = tuple(write for write in writes if write[0] not in unclear) or NOTHING
        call = PutWrites(self.number(), thread, ns, at.id, task, "", clear, writer, "null" if command else "input")
        if self.do(call):
            id = self.new_id(self.number(), low)
            put = self.child(thread, ns, at, id, [batch_of(call)], "input", text, writer=writer, made_by=(call.number,))
            if self.do(put):
                self.begin(Run(writer, thread, ns, put))

    @rule(number=PICK, where=WHERE, run=st.none() | st.sampled_from(RUNS))
    def replay_from(self, number: int, where: str, run: str | None) -> None:
        """Time travel: a copy of a checkpoint as its own child, and a run on it."""
        found = self.pick(number, where)
        if found is not None:
            thread, ns, checkpoint = found
            at, writer = checkpoint.put, self.writer()
            put = self.child(
                thread, ns, at, self.new_id(self.number(), False), (), "fork", at.metadata["user"], writer=writer, run=run
            )
            put = put._replace(versions=at.versions, changed=(), values={**put.values, "step": at.values["step"]})
            if self.do(put):
                self.begin(Run(writer, thread, ns, put))

    @rule(number=PICK)
    def twin(self, number: int) -> None:
        """A copy of a checkpoint as its own sibling: what made one made the other."""
        found = self.pick(number)
        if found is None:
            return
        thread, ns, checkpoint = found
        lane, parent = self.lane(thread, ns), checkpoint.put.parent
        assert lane is not None
        if parent is not None:
            original = next(child for child in lane.children(parent) if child.put.versions == checkpoint.put.versions)
            if original.kept is not None and parent in lane.checkpoints:
                return
            standing = {batch.number for batch in lane.batches.get(parent, ())}
            self.do(
                original.put._replace(
                    id=self.new_id(self.number(), False),
                    changed=(),
                    source="fork",
                    writer=self.writer(),
                    made_by=tuple(batch.number for batch in original.made_by if batch.number in standing),
                    taken=tuple(batch.number for batch in original.taken if batch.number in standing),
                    twin_of=original.put.id,
                )
            )

    # -- calls that no run makes -----------------------------------------------------------------------------------------

    @rule(number=PICK, text=TEXTS)
    def put_again(self, number: int, text: str) -> None:
        """The same id under the same parent, changed."""
        found = self.pick(number)
        if found is not None:
            self.do(self.again(found[2].put, text))

    def again(self, put: Put, text: str) -> Put:
        return put._replace(
            versions={**put.versions, "note": f"{self.number():05}"},
            values={**put.values, "note": text},
            changed=("note",),
            metadata={**put.metadata, "user": USERS[len(text) % 2]},
            made_by=(),
            taken=(),
            twin_of=None,
        )

    @rule(number=PICK, to=PICK, root=st.sampled_from([True, False, False]), text=TEXTS)
    def move(self, number: int, to: int, root: bool, text: str) -> None:
        """The same id under another parent, perhaps one that comes of it: a loop."""
        found = self.pick(number)
        if found is None:
            return
        thread, ns, checkpoint = found
        lane = self.lane(thread, ns)
        assert lane is not None
        ids = list(lane.checkpoints)
        parent = None if root else ids[to % len(ids)]
        if not checkpoint.made_by and not checkpoint.taken and not strangers(lane, parent, "loop"):
            moved = self.again(checkpoint.put, text)._replace(parent=parent, writer=self.writer(), source="loop")
            if parent != checkpoint.put.parent and self.do(moved):
                self.late = [call for call in self.late if call.late_for != moved.id]

    @rule(number=PICK, text=TEXTS)
    def put_removed(self, number: int, text: str) -> None:
        """An id that was pruned comes back."""
        removed = [
            (thread, ns, id) for thread, lanes in self.model.threads.items() for ns, lane in lanes.items() for id in lane.removed
        ]
        if removed:
            thread, ns, id = sorted(removed)[number % len(removed)]
            put = self.again(self.known[id], text)._replace(thread=thread, ns=ns, writer=self.writer())
            if not strangers(self.lane(thread, ns), put.parent, "loop"):
                self.do(put)

    @rule(number=PICK, text=TEXTS)
    def put_under_nobody(self, number: int, text: str) -> None:
        """A parent that was never stored."""
        found = self.pick(number)
        if found is not None:
            thread, ns, checkpoint = found
            writer = self.writer()
            put = self.child(thread, ns, checkpoint.put, self.new_id(self.number(), False), (), "loop", text, writer=writer)
            put = put._replace(parent=f"nobody {self.number()}")
            if self.do(put):
                self.begin(Run(writer, thread, ns, put))

    @rule(number=PICK, writes=SPECIALS, task=st.sampled_from(["k0", "k1", "x"]), path=st.sampled_from(["", "~5"]))
    def signal(self, number: int, writes: Writes, task: str, path: str) -> None:
        """Errors and interrupts of somebody."""
        found = self.pick(number)
        if found is not None:
            self.do(PutWrites(self.number(), found[0], found[1], found[2].put.id, task, path, writes))

    @rule(thread=st.sampled_from(THREADS), ns=st.sampled_from(NAMESPACES), writes=WRITES)
    def write_to_nobody(self, thread: str, ns: str, writes: Writes) -> None:
        """On an id that is never stored; an empty batch is no call at all."""
        self.do(PutWrites(self.number(), thread, ns, f"nobody {self.number()}", "k0", "", writes, self.writer()))

    @precondition(lambda self: self.gone)
    @rule(number=PICK, writes=WRITES, put=st.booleans())
    def come_late(self, number: int, writes: Writes, put: bool) -> None:
        """A call of a run whose thread was deleted."""
        thread, ns, id = self.gone[number % len(self.gone)]
        if not put:
            self.do(PutWrites(self.number(), thread, ns, id, "k0", "", writes or NOTHING, self.writer()))
        elif not strangers(self.lane(thread, ns), id, "loop"):
            new = self.new_id(self.number(), False)
            self.do(self.child(thread, ns, self.known[id], new, (), "loop", "late", writer=self.writer()))

    # -- heads and removal -----------------------------------------------------------------------------------------------

    @precondition(lambda self: "SetHead" in self.session.driver.changes)
    @rule(number=PICK, known=st.sampled_from([True, True, True, False]))
    def set_head(self, number: int, known: bool) -> None:
        found = self.pick(number)
        if found is not None:
            self.do(SetHead(found[0], found[1], found[2].put.id if known else "nobody"))

    @rule(thread=st.sampled_from(THREADS))
    def prune(self, thread: str) -> None:
        self.do(Prune(thread))

    @rule(thread=st.sampled_from(THREADS), to=st.sampled_from(THREADS))
    def copy(self, thread: str, to: str) -> None:
        if thread != to:
            self.do(Copy(thread, to))

    @rule(thread=st.sampled_from(THREADS), sure=st.booleans())
    def delete(self, thread: str, sure: bool) -> None:
        if sure or len(self.model.threads) > 1:
            lanes = self.model.threads.get(thread, {})
            gone = [(thread, ns, id) for ns, lane in lanes.items() for id in lane.checkpoints]
            self.do(Delete(thread))
            if thread not in self.model.threads:
                self.gone = [*self.gone, *gone][-12:]

    @rule(runs=st.lists(st.sampled_from(RUNS), max_size=2, unique=True).map(tuple))
    def delete_for_runs(self, runs: tuple[str, ...]) -> None:
        self.do(DeleteForRuns(runs))

    # -- upkeep and crashes ----------------------------------------------------------------------------------------------

    @precondition(lambda self: "Compact" in self.session.driver.changes)
    @rule()
    def compact(self) -> None:
        self.do(Compact())

    @precondition(lambda self: "Reopen" in self.session.driver.changes)
    @rule(lose_index=st.booleans())
    def reopen(self, lose_index: bool) -> None:
        self.die(Reopen(lose_index))

    @precondition(lambda self: "Crash" in self.session.driver.changes)
    @rule(kind=st.sampled_from(["kill", "power"]), seed=st.integers(0, 99), during=st.booleans())
    def crash(self, kind: Any, seed: int, during: bool) -> None:
        """At once, or in the middle of the next change."""
        if during:
            self.cut = (kind, seed)
        else:
            self.die(Crash(kind, seed))

    # -- reading ---------------------------------------------------------------------------------------------------------

    @rule(
        number=PICK, id=st.sampled_from(["it", "it", "none", "nobody"]), channels=st.lists(st.sampled_from(CHANNELS), unique=True)
    )
    def look(self, number: int, id: str, channels: Sequence[str]) -> None:
        found = self.pick(number)
        thread, ns, known = ("a", "", "c1") if found is None else (found[0], found[1], found[2].put.id)
        asked = {"it": known, "none": None, "nobody": "nobody"}[id]
        self.session.do(Get(thread, ns, asked))
        self.session.do(History(thread, ns, asked, tuple(channels)))

    @rule(
        number=PICK,
        lanes=st.sampled_from(["all", "thread", "namespace", "lane", "nobody"]),
        id=st.sampled_from([False, False, False, True]),
        before=st.sampled_from(["", "", "known", "c0", "b"]),
        filter=FILTERS,
        limit=st.none() | st.integers(-1, 4),
        bound=PICK,
    )
    def listing(
        self, number: int, lanes: str, id: bool, before: str, filter: dict[str, Any], limit: int | None, bound: int
    ) -> None:
        found, other = self.pick(number), self.pick(bound)
        thread, ns, known = ("a", "", "c1") if found is None else (found[0], found[1], found[2].put.id)
        of = {
            "all": (None, None),
            "thread": (thread, None),
            "namespace": (None, ns),
            "lane": (thread, ns),
            "nobody": ("nobody", ns),
        }
        until = other[2].put.id if before == "known" and other is not None else before or None
        self.session.do(Listing(*of[lanes], known if id else None, until, filter, limit))


class Report(NamedTuple):
    """What a campaign did."""

    steps: int
    examples: int
    seed: int
    seconds: float
    violation: BaseException | None


def campaign(machine: type[SaverMachine], *, steps: int, seed: int, each: int = 50, shrink: bool = True) -> Report:
    """Run random programs until so many steps were made, or one went wrong; that one is made small.

    Args:
        each: the most steps in one program.
        shrink: whether a failing program is made small, which may take minutes.
    """
    began, asked = time.monotonic(), 0
    chosen: Any = type(machine.__name__, (machine,), {"steps": 0, "examples": 0})
    violation: BaseException | None = None
    while chosen.steps < steps and violation is None:
        few = max(1, min(100, (steps - chosen.steps) // each))
        violation = _run(chosen, few, each, seed + asked, shrink)
        asked += few
    if violation is not None:
        violation.add_note(f"found by {machine.__name__} with seed {seed}")
    return Report(chosen.steps, chosen.examples, seed, time.monotonic() - began, violation)


def _run(machine: type[SaverMachine], examples: int, each: int, first: int, shrink: bool) -> BaseException | None:
    how = settings(
        max_examples=examples,
        stateful_step_count=each,
        deadline=None,
        database=None,
        print_blob=False,
        phases=(Phase.generate, *([Phase.shrink] if shrink else [])),
        suppress_health_check=tuple(HealthCheck),
    )
    try:
        run_state_machine_as_test(seed(first)(machine), settings=how)
    except Exception as error:
        return error
    return None
