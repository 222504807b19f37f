"""`SaverMachine` and `fuzz_saver`: random programs on any LangGraph saver, each answer compared with the model's."""

from __future__ import annotations

import unittest
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from langgraph.checkpoint.ckptstore.testing.contract import is_langgraphs
from langgraph.checkpoint.ckptstore.testing.driver import MakeSaver, OpenSaver, SaverDriver
from langgraph.checkpoint.ckptstore.testing.failures import Failure, listed_in_any_order
from langgraph.checkpoint.ckptstore.testing.invocations import OPTIONAL
from langgraph.checkpoint.ckptstore.testing.programs import Maker, imported, script
from langgraph.checkpoint.ckptstore.testing.reducing import Program, reduced

from ckptstore.errors import InvalidArgumentError
from ckptstore.testing import machine
from ckptstore.testing.calls import NULL_TASK, Call, Get, History, Listing, Put, PutWrites, Refused
from ckptstore.testing.playing import NAMESPACES, PICK, TEXTS, THREADS, WRITES, Writes
from ckptstore.testing.session import Session, Violation, questions

_ID = "1f000000-0000-6000-{}000-{:012}"
"""Shaped as LangGraph's ids: of version 6, and in order of time."""
_UNKNOWN: dict[str | None, str] = {
    "c0": _ID.format("8", 10**12 - 1),
    "b": _ID.format("a", 0),
    "c1": _ID.format("a", 1),
    "nobody": _ID.format("a", 2),
}
"""For names of checkpoints that the machine asks for and never stores: ids below and above all others."""


class SaverViolation(Violation):
    """A saver answered otherwise than the model. The message is a script that shows it."""

    def __init__(self, failure: Failure, maker: Maker) -> None:
        super().__init__(failure, maker)
        self.failure = failure
        self._maker = maker

    @property
    def script(self) -> str:
        return script(self.failure, self._maker)

    def __str__(self) -> str:
        return f"{self.failure.sentence}\n\n{self.script}"


@dataclass(kw_only=True)
class SaverSession(Session):
    """A session that leaves out what the saver cannot do, or nobody asks of it."""

    maker: Maker
    exact: bool
    """Whether all is asked that `CkptSaver` promises."""
    failure: Failure | None = None

    def fits(self, call: Call) -> bool:
        """Whether the call is to be made."""
        name = type(call).__name__
        if name in OPTIONAL and name not in self.driver.changes:
            return False
        if isinstance(call, Listing) and call.thread is None and (call.ns, call.id) != (None, None):
            return False  # a config without a thread names neither
        return self.exact or is_langgraphs(self.model, call)

    def do(self, call: Call) -> bool:
        if isinstance(call, Get | History):
            call = call._replace(id=_UNKNOWN.get(call.id, call.id))
        elif isinstance(call, Listing):
            call = call._replace(id=_UNKNOWN.get(call.id, call.id), before=_UNKNOWN.get(call.before, call.before))
        return self.fits(call) and super().do(call)

    def check(self, thread: str | None = None) -> None:
        for call in questions(self.model, thread):
            if self.fits(call):
                self.program.append(call)
                self._compared(call)
                self.program.pop()

    def _is_ordered(self, call: Call) -> bool:
        """Whether the order of the answer counts, and which checkpoints a limit leaves: over several namespaces `CkptSaver` promises both."""
        return self.exact or not isinstance(call, Listing) or (call.thread is not None and call.ns is not None)

    def _alike(self, call: Call, expected: Any, found: Any) -> bool:
        if self._is_ordered(call) or isinstance(found, Refused):
            return super()._alike(call, expected, found)
        return listed_in_any_order(call, expected, found) and all(item in expected for item in found)

    def _violation(self, call: Call, expected: Any, found: Any) -> Violation:
        ordered = self._is_ordered(call)
        if isinstance(call, Listing) and call.limit is not None and ordered:
            expected = expected[: max(call.limit, 0)]
        self.failed = True
        self.failure = Failure(tuple(self.program), expected, found, ordered)
        return SaverViolation(self.failure, self.maker)


class SaverMachine(machine.SaverMachine):
    """Random programs on a saver, as a hypothesis state machine: subclass it, give `make_saver`, and run its `TestCase`.

    class MySaverMachine(SaverMachine):
        def make_saver(self):
            return MySaver(":memory:")

    TestMySaver = MySaverMachine.TestCase
    """

    failure: ClassVar[Failure | None] = None
    """What the last program that went wrong did."""
    session: SaverSession
    _missing: ClassVar[tuple[str, ...] | None] = None

    def make_saver(self) -> Any:
        """A new, empty saver, or a context manager, sync or async, of one."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # hypothesis' own would make programs small for minutes where `reduced` takes a second.
        cls.TestCase = type(f"{cls.__name__}TestCase", (SaverTestCase,), {"machine": cls})  # type: ignore[assignment]

    @classmethod
    def maker(cls) -> Maker:
        """How a script makes the saver."""
        return imported(cls, "().make_saver()")

    @classmethod
    def missing(cls) -> tuple[str, ...]:
        """Optional methods that the saver lacks. Programs do without them."""
        if cls._missing is None:
            opened = OpenSaver(cls().make_saver)
            cls._missing = opened.missing()
            opened.close()
        return cls._missing

    def new_session(self) -> SaverSession:
        """A session on a new saver."""
        driver = SaverDriver(self.make_saver, self.missing())
        opened = driver.opened
        maker = self.maker()._replace(managed=opened.managed, asynchronous=opened.asynchronous)
        return SaverSession(driver, maker=maker, exact=driver.exact)

    @initialize(thread=st.sampled_from(THREADS), text=TEXTS)
    def opened(self, thread: str, text: str) -> None:
        self.session = self.new_session()
        self.start(thread, "", False, text, None, True)

    def do(self, call: Any) -> bool:
        # LangGraph says in the metadata what makes a checkpoint, and `CkptSaver` reads it there.
        return super().do(call._replace(metadata={**call.metadata, "source": call.source}) if isinstance(call, Put) else call)

    @precondition(lambda self: self.runs)
    @rule(number=PICK, writes=WRITES, answer=TEXTS)
    def resume(self, number: int, writes: Writes, answer: str) -> None:
        """A command that answers an interrupt, and may update the state too. Of two answers the second counts."""
        self.task(self.runs[number % len(self.runs)], NULL_TASK, (*writes, ("__resume__", answer)))

    @rule(number=PICK, writes=WRITES, more=st.booleans())
    def run_again(self, number: int, writes: Writes, more: bool) -> None:
        """A task is run again on a checkpoint that it led on from already, and writes something else, or more than it did."""
        done = [
            (thread, ns, found.put.id, batch)
            for thread, ns, found in self.checkpoints()
            for child in self.model.threads[thread][ns].children(found.put.id)
            for batch in child.made_by
            if batch.origin == "task"
        ]
        if done:
            thread, ns, id, batch = done[number % len(done)]
            if more:
                writes = (*((write.channel, write.value) for write in batch.writes), *writes)
            self.do(PutWrites(self.number(), thread, ns, id, batch.task, batch.path, writes, self.writer()))

    @rule(thread=st.sampled_from(THREADS), ns=st.sampled_from(NAMESPACES), writes=WRITES)
    def write_to_nobody(self, thread: str, ns: str, writes: Writes) -> None:
        """On an id that is never stored, shaped as others; an empty batch is no call at all."""
        self.do(
            PutWrites(self.number(), thread, ns, self.new_id(self.number(), False), "k0", self.path("k0"), writes, self.writer())
        )

    def new_id(self, number: int, low: bool) -> str:
        """Shaped as LangGraph's; only `CkptSaver` does not mind one below others."""
        return _ID.format("8" if low and self.session.exact else "9", number)

    def input_task(self, target: str) -> str:
        return str(uuid.uuid5(uuid.UUID(target), "__input__"))

    def teardown(self) -> None:
        if hasattr(self, "session") and self.session.failure is not None:
            type(self).failure = self.session.failure
        super().teardown()


class SaverTestCase(unittest.TestCase):
    """Runs a machine's programs; `settings` may be set as for any hypothesis state machine."""

    machine: ClassVar[type[SaverMachine]]
    settings: ClassVar[settings] = settings(deadline=None, suppress_health_check=list(HealthCheck))

    def runTest(self) -> None:
        violation = _search(self.machine, self.settings)
        if violation is not None:
            raise violation


class Report(NamedTuple):
    """What `fuzz_saver` did and found."""

    saver: str
    """Class of the saver."""
    examples: int
    steps: int
    seed: int
    missing: tuple[str, ...]
    """Optional methods that the saver does not implement, and that no program called."""
    failure: Failure | None
    script: str | None
    """The smallest program that was answered wrongly, as Python."""


def fuzz_saver(
    make_saver: MakeSaver,
    *,
    examples: int = 200,
    seed: int = 0,
    steps: int = 50,
    maker: Maker | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Run random programs on savers until one is answered wrongly, and make that one small.

    Args:
        make_saver: returns a new, empty saver, or a context manager, sync or async, of one.
        examples: about how many programs to run.
        seed: the same seed makes the same programs.
        steps: the most steps of one program; a step is one or a few calls.
        maker: how the script makes the saver; importing `make_saver` by its name, when None.
        progress: called with (done, of how many) after each program.

    Raises:
        InvalidArgumentError: names the argument.
        MakeSaverError: `make_saver` failed.
    """
    for name, value, most in (("examples", examples, 1_000_000), ("steps", steps, 1_000)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidArgumentError(f"{name}={value!r}: a whole number from 1 to {most:,} is needed")
    made_by = maker if maker is not None else imported(make_saver, "()")

    class Fuzzed(SaverMachine):
        def make_saver(self) -> Any:
            return make_saver()

        @classmethod
        def maker(cls) -> Maker:
            return made_by

        def teardown(self) -> None:
            super().teardown()
            if progress is not None:
                progress(min(type(self).examples, examples), examples)

    opened = OpenSaver(make_saver)
    saver = type(opened.saver)
    opened.close()
    violation = _search(
        hypothesis_seed(seed)(Fuzzed),
        settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return Report(
        f"{saver.__module__}.{saver.__qualname__}",
        Fuzzed.examples,
        Fuzzed.steps,
        seed,
        Fuzzed.missing(),
        None if violation is None else violation.failure,
        None if violation is None else violation.script,
    )


def _search(fuzzed: type[SaverMachine], how: settings) -> SaverViolation | None:
    """The smallest violation found."""
    session = fuzzed().new_session()
    session.driver.close()
    if not session.exact:
        how = settings(how, phases=[phase for phase in how.phases if phase not in (Phase.shrink, Phase.explain)])
    fuzzed.failure = None
    try:
        run_state_machine_as_test(fuzzed, settings=how)
    except SaverViolation:
        pass
    except Flaky as flaky:
        # A saver that answers now this and now that may pass when hypothesis tries the program again: the failure is kept. Without
        # one it was the run that broke off, as where `make_saver` raises once.
        if fuzzed.failure is None:
            raise _cause(flaky) from None
    failure: Failure | None = fuzzed.failure
    if failure is None:
        return None
    # What others are asked makes sense in any subset. What `CkptSaver` is asked does not: there hypothesis makes the program small.
    return SaverViolation(failure if session.exact else reduced(failure, lambda program: _run(fuzzed, program)), session.maker)


def _cause(flaky: Exception) -> Exception:
    """What was raised when hypothesis ran the program first."""
    return flaky.exceptions[0] if isinstance(flaky, ExceptionGroup) else flaky


def _run(fuzzed: type[SaverMachine], program: Program) -> Failure | None:
    """Make the calls on a new saver; the failure, unless there is none or a call is not one to make."""
    session = fuzzed().new_session()
    try:
        for call in program:
            if not session.do(call):
                return None
    except SaverViolation as violation:
        return violation.failure
    finally:
        session.driver.close()
    return None
