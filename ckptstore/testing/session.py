"""A model and a driver side by side: each call is made on both, and their answers are compared.

A program that went wrong is printed as Python. `replay` runs it again, so that it can be made smaller by hand and kept as a test.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckptstore.testing.calls import (
    METHODS,
    Call,
    Crash,
    Driver,
    Found,
    Get,
    History,
    Listing,
    Refused,
)
from ckptstore.testing.model import Model


class Violation(AssertionError):
    """A store answered otherwise than the model; the message shows both, and the program."""


@dataclass
class Session:
    """A driver, the model of what it has to answer, and the calls made so far."""

    driver: Driver
    model: Model = field(default_factory=Model)
    program: list[Call] = field(default_factory=list)
    failed: bool = False

    def do(self, call: Call) -> bool:
        """Make a call; whether it was done, and not refused.

        Raises:
            Violation: the answer is not the model's.
        """
        if isinstance(call, Crash):
            self._crash(call)
            return True
        self.program.append(call)
        return not isinstance(self._compared(call), Refused)

    def _compared(self, call: Call) -> Any:
        expected = _answer(self.model, call._replace(limit=None) if isinstance(call, Listing) else call)
        try:
            found = _answer(self.driver, call)
        except Exception as error:
            raise self._violation(call, expected, error) from error
        if not self._alike(call, expected, found):
            raise self._violation(call, expected, found)
        return expected

    def _alike(self, call: Call, expected: Any, found: Any) -> bool:
        """Whether an answer is the model's; of a listing that without its limit."""
        if isinstance(call, Listing) and not isinstance(found, Refused):
            return _listed(call, expected, found)
        return (found is None and isinstance(expected, int)) or _comparable(found) == _comparable(expected)

    def _crash(self, call: Crash) -> None:
        """Afterwards everything that was acknowledged is there, and of the call in the middle of which it came all or nothing."""
        allowed = [self.model]
        if call.during is not None:
            allowed.append(copy.deepcopy(self.model))
            _answer(allowed[1], call.during)
        self.program.append(call)
        try:
            self.driver.crash(call)
            found = everything(self.driver)
        except Exception as error:
            raise self._violation(call, [everything(model) for model in allowed], error) from error
        for model in allowed:
            if everything(model) == found:
                self.model = model
                return
        raise self._violation(call, [everything(model) for model in allowed], found)

    def shows(self, call: Any) -> bool:
        """Whether a reader can tell that a call was made."""
        after = copy.deepcopy(self.model)
        _answer(after, call)
        return bool(everything(after) != everything(self.model))

    def check(self, thread: str | None = None) -> None:
        """Compare everything a reader can ask about a thread, or about all of them."""
        for call in questions(self.model, thread):
            self.program.append(call)
            self._compared(call)
            self.program.pop()

    def _violation(self, call: Call, expected: Any, found: Any) -> Violation:
        self.failed = True
        expected, found = _difference(expected, found)
        shown = repr(found) if isinstance(found, Exception) else _shown(found)
        return Violation(_short(f"{call!r}\nexpected {_shown(expected)}\nfound    {shown}\n{printed(self.program)}"))


def printed(program: Iterable[Call]) -> str:
    """A program as Python."""
    return "program = [\n" + "".join(f"    {_short(repr(call))},\n" for call in program) + "]"


def _short(text: str) -> str:
    """Long texts as products, so that a program can be read."""
    return _REPEATED.sub(lambda match: f"{match[1]}' + {match[2]!r} * {len(match[0][len(match[1]) :]) // len(match[2])} + '", text)


_REPEATED = re.compile(r"('[^']{0,8}?)([a-z ]{12})\2{3,}")


def replay(driver: Driver, program: Iterable[Call]) -> None:
    """Run a program of calls, and compare all answers; everything a reader can ask at the end.

    Raises:
        Violation: an answer is not the model's.
    """
    session = Session(driver)
    try:
        for call in program:
            session.do(call)
        session.check()
    finally:
        driver.close()


def questions(model: Model, thread: str | None = None) -> list[Call]:
    """Everything a reader can ask about what there is: lists, heads, checkpoints, and the history of each channel."""
    asked: list[Call] = [Listing(thread)]
    for name, lanes in model.threads.items():
        if thread in (None, name):
            for ns, lane in lanes.items():
                asked += [Listing(name, ns), Get(name, ns)]
                for id, found in lane.checkpoints.items():
                    asked += [History(name, ns, id, (channel,)) for channel in found.put.versions]
    return asked


def everything(target: Model | Driver) -> Any:
    """What a reader can ask without knowing what there is: all checkpoints, the head of each lane, and every history."""
    listed = sorted(target.list(Listing()))
    heads = {(item.thread, item.ns): _answer(target, Get(item.thread, item.ns)) for item in listed}
    pasts = [
        _comparable(_answer(target, History(item.thread, item.ns, item.id, (channel,))))
        for item in listed
        for channel in item.versions
    ]
    return listed, heads, pasts


def _answer(target: Model | Driver, call: Any) -> Any:
    try:
        return getattr(target, METHODS[type(call)])(call)
    except Refused as refused:
        return refused


def _listed(call: Listing, expected: Sequence[Found], found: Sequence[Found]) -> bool:
    """Over several lanes there may be equal ids, and the order among those is nobody's promise."""
    ids = [item.id for item in expected]
    wanted = ids if call.limit is None else ids[: max(call.limit, 0)]
    places = {(item.thread, item.ns, item.id) for item in found}
    return bool([item.id for item in found] == wanted) and len(places) == len(found) and all(item in expected for item in found)


def _comparable(answer: Any) -> Any:
    return answer.why if isinstance(answer, Refused) else answer


def _difference(expected: Any, found: Any) -> tuple[Any, Any]:
    """Of two listings, what is not the same in both."""
    if not isinstance(expected, list) or not isinstance(found, list) or sorted(expected) == sorted(found):
        return expected, found
    return [item for item in expected if item not in found], [item for item in found if item not in expected]


def _shown(answer: Any) -> str:
    return f"refused: {answer.why}" if isinstance(answer, Refused) else repr(answer)
