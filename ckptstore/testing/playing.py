"""The half of the state machine that plays runs: their tasks write, then they store a child, alone or side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ckptstore.testing.calls import (
    NULL_TASK,
    Call,
    Crash,
    Driver,
    Get,
    History,
    Origin,
    Put,
    PutWrites,
    Source,
    Version,
)
from ckptstore.testing.model import Batch, Checkpoint, Lane, Model, batch_of
from ckptstore.testing.runs import CHANNELS, DELTA, Run, batches, channels_of, finished, folded, strangers
from ckptstore.testing.session import Session

THREADS = ("a", "b", "c")
NAMESPACES = ("", "", "sub:1")
RUNS = ("r1", "r2", "r3")
USERS = ("ann", "bob")

PICK = st.integers(0, 10_000)
"""Chooses among what is there when a rule runs."""
WHERE = st.sampled_from(["any", "head", "run"])
# Long texts begin alike, so that a store may keep values as changes of others.
TEXTS = st.builds(
    lambda number, size: f"{number}. " + "lorem ipsum " * size, st.integers(0, 99), st.sampled_from([0, 0, 0, 1, 6, 40, 300])
)
WRITES = st.lists(st.tuples(st.sampled_from(CHANNELS), TEXTS), max_size=3).map(tuple)
SPECIALS = st.lists(
    st.tuples(st.sampled_from(["__error__", "__interrupt__", "__resume__", "__scheduled__"]), TEXTS), min_size=1, max_size=3
).map(tuple)
NOTHING: tuple[tuple[str, Any], ...] = (("__no_writes__", None),)
"""What a task stores that wrote nothing."""

Writes = tuple[tuple[str, Any], ...]


class RunsMachine(RuleBasedStateMachine):
    """Threads of a store, runs on them, and the model beside it."""

    def driver(self, variant: int) -> Driver:
        """A driver of a new, empty store. `variant`, 0 to 3, chooses among settings of it, if there are several."""
        raise NotImplementedError

    def new_id(self, number: int, low: bool) -> str:
        """An id for a checkpoint; a low one sorts before others that are there."""
        return f"{'a' if low else 'c'}{number:03}"

    def input_task(self, target: str) -> str:
        """The task that the input of a run is stored under."""
        return "input"

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []
        self.late: list[PutWrites] = []
        """Batches on their way whose child is stored already."""
        self.known: dict[str, Put] = {}
        """The newest put of each id, whatever happened to it since."""
        self.gone: list[tuple[str, str, str]] = []
        """(thread, namespace, id) of what was in deleted threads."""
        self.cut: tuple[Any, int] | None = None
        """How the next change is interrupted."""
        self._numbers = 0

    @initialize(variant=st.integers(0, 3), thread=st.sampled_from(THREADS), text=TEXTS)
    def opened(self, variant: int, thread: str, text: str) -> None:
        self.session = Session(self.driver(variant))
        self.start(thread, "", False, text, None, True)

    def teardown(self) -> None:
        if hasattr(self, "session"):
            try:
                if not self.session.failed:
                    self.session.check()
            finally:
                self.session.driver.close()

    # -- what calls are made of ------------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        return self.session.model

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def checkpoints(self) -> list[tuple[str, str, Checkpoint]]:
        """All that are stored."""
        return [
            (thread, ns, found)
            for thread, lanes in self.model.threads.items()
            for ns, lane in lanes.items()
            for found in lane.checkpoints.values()
        ]

    def pick(self, number: int, where: str = "any") -> tuple[str, str, Checkpoint] | None:
        """A stored checkpoint: any, the head of some lane, or one that a run stands on."""
        found = self.checkpoints()
        if where == "run" and self.runs:
            run = self.runs[number % len(self.runs)]
            checkpoint = self.model.checkpoint(run.thread, run.ns, run.at.id)
            if checkpoint is not None:
                return run.thread, run.ns, checkpoint
        if not found:
            return None
        thread, ns, checkpoint = found[number % len(found)]
        if where == "head":
            head = self.model.checkpoint(thread, ns, None)
            assert head is not None  # a lane with checkpoints has one
            checkpoint = head
        return thread, ns, checkpoint

    def lane(self, thread: str, ns: str) -> Lane | None:
        return self.model.lane(thread, ns)

    def writer(self) -> str:
        return f"w{self.number()}"

    def tasks(self, at: str) -> list[str]:
        """Tasks that a checkpoint leads to: the same for every run on it."""
        return [f"k{task}" for task in range(1 + sum(map(ord, at)) % 3)]

    def path(self, task: str) -> str:
        """Writes are applied by path, which need not be the order of tasks or of time."""
        return {"k0": "~2", "k1": "~1", "k2": ""}.get(task, "")

    # -- calls -----------------------------------------------------------------------------------------------------------

    def do(self, call: Any) -> bool:
        """Make a change, and look at what it touched; whether it was done, and the process lives."""
        cut, self.cut = self.cut, None
        if cut is not None and self.session.shows(call):
            self.die(Crash(*cut, call))
            return False
        done = self.session.do(call)
        if done and isinstance(call, Put):
            self.known[call.id] = call
            self.session.do(History(call.thread, call.ns, call.id, DELTA))
            self.session.do(Get(call.thread, call.ns, None))
        elif isinstance(call, PutWrites):
            self.session.do(Get(call.thread, call.ns, call.target))
            if call.late_for is not None:
                self.session.do(History(call.thread, call.ns, call.late_for, DELTA))
        else:
            self.session.check(getattr(call, "thread", None))
            self.forget()
        return done

    def die(self, call: Call) -> None:
        """A reopening or a crash: no run lives on."""
        self.session.do(call)
        self.session.check()
        self.runs, self.late = [], []
        self.known |= {found.put.id: found.put for _, _, found in self.checkpoints()}

    def forget(self) -> None:
        """What a removal took: writes on removed checkpoints, and runs of deleted threads."""
        self.runs = [run for run in self.runs if self.lane(run.thread, run.ns) is not None]
        for run in self.runs:
            if self.model.checkpoint(run.thread, run.ns, run.at.id) is None:
                run.own, run.taken, run.held = {}, {}, []
        self.late = [
            call
            for call in self.late
            if self.model.checkpoint(call.thread, call.ns, call.target) is not None
            and self.model.checkpoint(call.thread, call.ns, call.late_for) is not None
        ]

    def child(
        self, thread: str, ns: str, at: Put | None, id: str, made_of: Iterable[Batch], source: Source, text: str, **more: Any
    ) -> Put:
        """A checkpoint made out of another by these writes.

        Args:
            more: `snapshots`, delta channels that get a value; `cleared`, whether the title goes; `run`, the run in its
                metadata; and fields of the put.
        """
        made_of = list(made_of)
        snapshots, cleared, run = more.pop("snapshots", ()), more.pop("cleared", False), more.pop("run", None)
        versions: dict[str, Version] = dict.fromkeys((*CHANNELS, "note", "step"), "") if at is None else dict(at.versions)
        values = {} if at is None else {name: value for name, value in at.values.items() if name not in DELTA}
        for name in snapshots:
            values[name] = [] if at is None else folded(self.model, self.lane(thread, ns), at, name, made_of)
        for batch in made_of:
            for write in batch.writes:
                if write.idx >= 0 and write.channel == "messages":
                    values["messages"] = [*values.get("messages", ()), write.value]
                elif write.idx >= 0 and write.channel == "title":
                    values["title"] = write.value
        values["step"] = 0 if at is None else at.values["step"] + 1
        if at is None:
            values |= {"messages": [text], "title": text, "note": text}
        if cleared:
            values.pop("title", None)
        changed = {"step", *snapshots, *(channels_of(made_of) & set(CHANNELS)), *(["title"] if cleared else [])}
        if at is None:
            changed = set(versions)
        fresh = f"{self.number():05}"
        versions |= dict.fromkeys(changed, fresh)
        metadata = {"source": source, "step": values["step"], "user": USERS[len(text) % 2]}
        if run is not None:
            metadata["run_id"] = run
        seen = {"node": {name: versions[name] for name in sorted(changed)}}
        return Put(
            thread, ns, id, None if at is None else at.id, versions, values, tuple(sorted(changed)), metadata, seen, source, **more
        )

    # -- runs ------------------------------------------------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        self.runs = [*self.runs[-5:], run]

    @rule(
        thread=st.sampled_from(THREADS),
        ns=st.sampled_from(NAMESPACES),
        low=st.booleans(),
        text=TEXTS,
        run=st.none() | st.sampled_from(RUNS),
        token=st.sampled_from([True, True, True, False]),
    )
    def start(self, thread: str, ns: str, low: bool, text: str, run: str | None, token: bool) -> None:
        """A checkpoint without a parent, and a run on it."""
        writer = self.writer() if token else None
        put = self.child(thread, ns, None, self.new_id(self.number(), low), (), "input", text, writer=writer, run=run)
        if self.do(put):
            self.begin(Run(writer, thread, ns, put))

    @rule(number=PICK, where=WHERE, resume=st.booleans(), token=st.sampled_from([True, True, True, False]))
    def enter(self, number: int, where: str, resume: bool, token: bool) -> None:
        """Another run on a checkpoint, perhaps while others stand there. A resumed one uses what it finds finished."""
        found = self.pick(number, where)
        if found is not None:
            thread, ns, checkpoint = found
            lane = self.lane(thread, ns)
            assert lane is not None
            at = checkpoint.put.id
            taken = finished(lane, at, self.tasks(at)) if resume else {}
            siblings = frozenset(child.put.id for child in lane.children(at))
            self.begin(Run(self.writer() if token else None, thread, ns, checkpoint.put, taken=taken, siblings=siblings))

    @precondition(lambda self: self.runs)
    @rule(number=PICK, writes=WRITES, how=st.sampled_from(["once", "once", "again", "interrupted", "held", "command"]))
    def work(self, number: int, writes: Writes, how: str) -> None:
        """One task of a run finishes."""
        run = self.runs[number % len(self.runs)]
        todo = self.todo(run)
        if how == "command":
            self.task(run, NULL_TASK, writes or NOTHING)
        elif how == "again" and run.own:
            self.task(run, list(run.own)[-1], writes or NOTHING)
        elif how == "held" and todo and run.writer is not None:
            run.held.append(self.batch(run, todo[0], writes or NOTHING))
        elif todo:
            if how == "interrupted" and not self.task(run, todo[0], (("__interrupt__", "?"),)):
                return
            self.task(run, todo[0], (("__resume__", "!"), *writes) if how == "interrupted" else writes or NOTHING)

    def todo(self, run: Run) -> list[str]:
        """Tasks that a run has not finished where it stands."""
        held = {call.task for call in run.held}
        return [task for task in self.tasks(run.at.id) if task not in run.own and task not in run.taken and task not in held]

    def batch(self, run: Run, task: str, writes: Writes) -> PutWrites:
        origin: Origin = "null" if task == NULL_TASK else "task"
        return PutWrites(self.number(), run.thread, run.ns, run.at.id, task, self.path(task), writes, run.writer, origin)

    def task(self, run: Run, task: str, writes: Writes) -> bool:
        """Store a batch of a run where it stands."""
        call = self.batch(run, task, writes)
        if not self.do(call):
            self.drop(run)
            return False
        if any(not channel.startswith("__") or channel == "__no_writes__" for channel, _ in writes):
            run.own.setdefault(task, []).append(call.number)
        return True

    def drop(self, run: Run) -> None:
        """The run ends here; what it stored stays."""
        self.runs = [other for other in self.runs if other is not run]

    @precondition(lambda self: self.runs)
    @rule(number=PICK, writes=WRITES)
    def work_ahead(self, number: int, writes: Writes) -> None:
        """A write on the next checkpoint arrives before that is stored."""
        run = self.runs[number % len(self.runs)]
        if run.next_id is None:
            run.next_id = self.new_id(self.number(), False)
            task = self.tasks(run.next_id)[0]
            call = self.batch(run, task, writes or NOTHING)._replace(target=run.next_id)
            if self.do(call):
                run.ahead = {task: [call.number]}
            else:
                self.drop(run)

    @precondition(lambda self: self.runs)
    @rule(
        number=PICK,
        writes=st.lists(WRITES, min_size=3, max_size=3),
        snapshots=st.sampled_from([(), (), (), ("log",), ("log", "facts")]),
        cleared=st.sampled_from([False, False, False, True]),
        text=TEXTS,
        low=st.sampled_from([False, False, False, True]),
        run_id=st.none() | st.sampled_from(RUNS),
        hold=st.sampled_from([False, False, True]),
    )
    def finish(
        self,
        number: int,
        writes: Sequence[Writes],
        snapshots: Sequence[str],
        cleared: bool,
        text: str,
        low: bool,
        run_id: str | None,
        hold: bool,
    ) -> None:
        """The tasks that are left finish, and the run stores the child, perhaps before their writes."""
        self.superstep(self.runs[number % len(self.runs)], writes, snapshots, cleared, text, low, run_id, hold)

    @precondition(lambda self: self.runs)
    @rule(
        number=PICK,
        steps=st.lists(st.lists(WRITES, min_size=3, max_size=3), min_size=2, max_size=6),
        run_id=st.none() | st.sampled_from(RUNS),
    )
    def march(self, number: int, steps: Sequence[Sequence[Writes]], run_id: str | None) -> None:
        """Several supersteps in a row, so that there is a past to keep."""
        run = self.runs[number % len(self.runs)]
        for writes in steps:
            if not self.superstep(run, writes, run_id=run_id):
                return

    def superstep(
        self,
        run: Run,
        writes: Sequence[Writes],
        snapshots: Sequence[str] = (),
        cleared: bool = False,
        text: str = "",
        low: bool = False,
        run_id: str | None = None,
        hold: bool = False,
    ) -> bool:
        """Whether the run goes on."""
        for task, items in zip(self.todo(run), writes, strict=False):
            if hold and run.writer is not None:
                run.held.append(self.batch(run, task, items or NOTHING))
            elif not self.task(run, task, items or NOTHING):
                return False
        lane, at = self.lane(run.thread, run.ns), run.at.id
        newest = [numbers[-1] for numbers in run.own.values()]
        mine = [number for numbers in run.own.values() for number in numbers]
        found = [number for numbers in run.taken.values() for number in numbers]
        made_by, taken = (sorted(newest), sorted(found)) if run.writer is not None else ([], sorted(mine + found))
        held = [batch_of(call) for call in run.held]
        used = [*batches(lane, at, made_by + taken), *held]
        id = run.next_id or self.new_id(self.number(), low)
        put = self.child(
            run.thread,
            run.ns,
            run.at,
            id,
            used,
            "loop",
            text,
            snapshots=snapshots,
            cleared=cleared,
            run=run_id,
            writer=run.writer,
            made_by=tuple(made_by),
            taken=tuple(taken),
        )
        if self.is_unclear(run, put, mine + found) or not self.do(put):
            self.drop(run)
            return False
        self.late += [call._replace(late_for=id) for call in run.held]
        run.at, run.own, run.taken, run.held = put, run.ahead, {}, []
        run.next_id, run.ahead, run.siblings = None, {}, frozenset()
        return True

    def is_unclear(self, run: Run, put: Put, known: Sequence[int]) -> bool:
        """Whether time alone would decide what made a checkpoint."""
        lane = self.lane(run.thread, run.ns)
        others = strangers(lane, run.at.id, "loop", known, () if run.writer is None else run.own)
        news = [] if lane is None else [child.put for child in lane.children(run.at.id) if child.put.id not in run.siblings]
        if run.writer is None and (news or any(batch.task in run.own for batch in others)):
            return True
        if run.taken and (
            any(sibling.source in ("loop", "update") for sibling in news) or any(batch.task in run.taken for batch in others)
        ):
            return True
        return bool(channels_of(others) & set(put.changed))

    @precondition(lambda self: self.late)
    @rule(number=PICK)
    def arrive(self, number: int) -> None:
        """A batch comes after the child that it made."""
        call = self.late.pop(number % len(self.late))
        self.do(call)
