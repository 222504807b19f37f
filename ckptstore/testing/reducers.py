"""`check_reducer`: whether a reducer keeps the promises that stored histories rest on.

A value is stored now and then, and rebuilt from the writes after it. So it must not matter when it was stored, how many writes are
folded at a time, nor whether a write was just given or read from the log.

>>> from ckptstore.testing import check_reducer
>>> check_reducer(lambda total, write: total + write, [1, 5, -2])
>>> check_reducer(lambda items, write: [*items, *write][-2:], [["a"], ["b", "c", "d"]])
>>> def grows(items, write):
...     items.extend(write)
...     return items
>>> check_reducer(grows, [["a"], ["b", "c"]])
Traceback (most recent call last):
    ...
ckptstore.testing.reducers.ReducerCheckError: reducer 'grows' changes what it is given: work on a copy
  write before: ['a']
  write after:  ['a', 'a']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from ckptstore.channels import UNSET, Channel, fold, reduce
from ckptstore.errors import CkptStoreError, InvalidArgumentError, ReducerError, WrongTypeError
from ckptstore.serde import PlainSerde, Serde

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_MOST_EXAMPLES = 1_000_000
_LONGEST = 6
"""Writes in one example. What a reducer does wrong shows with two or three of them."""


class ReducerCheckError(CkptStoreError, AssertionError):
    """A reducer does not keep its promises; the message shows the smallest example that was found. It shows your example values."""


class TestingExtraMissingError(CkptStoreError, ImportError):
    """`check_reducer` needs hypothesis: install `ckptstore[testing]`."""

    __test__ = False  # its name begins like that of a test class


def check_reducer(
    reducer: Channel | Callable[[Any, Any], Any],
    writes: SearchStrategy[Any] | Sequence[Any],
    *,
    examples: int = 200,
    serde: Serde | None = None,
) -> None:
    """Search for a sequence of writes with which a reducer breaks a promise. Returns when none was found.

    Checked is that the reducer

    - takes every write, as the first one too;
    - does not change the value and the writes it is given;
    - gives the same when asked again;
    - gives the same however the writes are batched;
    - gives the same when the value before was stored and read again.

    It runs in one process: what differs between processes, such as the order of a set of strings, is not seen.

    Args:
        reducer: a channel (`channels.append()`, one of your own), or a function as `channels.reduce` takes it.
        writes: single writes: a hypothesis strategy that makes them, or some examples.
        examples: sequences to try, 1 to 1,000,000; each is 1 to 6 writes long.
        serde: how the store will keep values; msgpack of plain types, as native threads keep them, when None.

    Raises:
        ReducerCheckError: a promise is broken; shows the smallest example found.
        TestingExtraMissingError: hypothesis is not installed.
        InvalidArgumentError: names the argument.
    """
    try:
        from hypothesis import HealthCheck, given, settings
        from hypothesis.errors import Flaky
        from hypothesis.strategies import SearchStrategy, lists, sampled_from
    except ImportError:
        raise TestingExtraMissingError("check_reducer needs hypothesis: pip install 'ckptstore[testing]'") from None
    if isinstance(examples, bool) or not isinstance(examples, int) or not 1 <= examples <= _MOST_EXAMPLES:
        raise InvalidArgumentError(f"examples={examples!r}: a whole number from 1 to {_MOST_EXAMPLES} is needed")
    if isinstance(writes, SearchStrategy):
        each = writes
    elif isinstance(writes, Sequence) and not isinstance(writes, str | bytes) and writes:
        each = sampled_from(writes)
    else:
        raise InvalidArgumentError(f"writes={writes!r}: a hypothesis strategy of single writes, or a list of some, is needed")
    check = _Check(_channel(reducer), _name(reducer), serde if serde is not None else PlainSerde())
    found: list[tuple[int, ReducerCheckError]] = []

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(lists(each, min_size=1, max_size=_LONGEST))
    def search(sequence: list[Any]) -> None:
        try:
            check.sequence(sequence)
        except ReducerCheckError as error:
            found.append((len(sequence), error))
            raise

    smallest: ReducerCheckError | None = None
    try:
        search()
    except ReducerCheckError as error:
        smallest = error
    except Flaky:
        # A reducer that gives now this and now that may pass when hypothesis tries the failing example again.
        smallest = min(found, key=lambda item: item[0])[1]
    if smallest is not None:
        # Without the trace of the search and hypothesis' notes, which name its own variables.
        raise ReducerCheckError(str(smallest)) from smallest.__cause__


def _channel(reducer: Channel | Callable[[Any, Any], Any]) -> Channel:
    if not isinstance(reducer, type) and callable(getattr(reducer, "reduce", None)) and hasattr(reducer, "kind"):
        return reducer  # type: ignore[return-value]
    if callable(reducer):
        return reduce(reducer, name="checked")
    raise WrongTypeError(f"reducer={reducer!r}: a channel, or a function of (value, write), is needed")


def _name(reducer: Any) -> str:
    kind = getattr(reducer, "kind", None)
    if isinstance(kind, tuple):
        return "/".join(map(str, kind))
    return str(getattr(reducer, "__name__", None) or type(reducer).__name__)


class _Check:
    """One reducer and how its values are stored."""

    def __init__(self, channel: Channel, name: str, serde: Serde) -> None:
        self._channel = channel
        self._name = name
        self._serde = serde

    def sequence(self, writes: Sequence[Any]) -> None:
        """Check one sequence of writes.

        Raises:
            ReducerCheckError
        """
        for write in writes:
            if not self._equal(self._stored("a write", write), write):
                self._fail("a write comes back from the serde as another one", write=write, back=self._stored("a write", write))
        at_once = self._fold(UNSET, writes)
        again = self._fold(UNSET, writes)
        if not self._equal(at_once, again):
            self._fail("gives something else when asked again", writes=writes, first=at_once, again=again)
        for cut in range(1, len(writes)):
            before, after = writes[:cut], writes[cut:]
            value = self._fold(UNSET, before)
            batched = self._fold(value, after)
            if not self._equal(at_once, batched):
                self._fail("depends on how the writes are batched", writes=writes, at_once=at_once, **{f"after_{cut}": batched})
            stored = self._stored("the value", value)
            through = self._fold(stored, after)
            if not (self._equal(stored, value) and self._equal(through, batched)):
                self._fail(
                    "does not survive that its value is stored and read again",
                    writes=before,
                    value=value,
                    read=stored,
                    then=after,
                    with_value=batched,
                    with_read=through,
                )
        # The last value is one that a snapshot would store, too.
        if not self._equal(self._stored("the value", at_once), at_once):
            self._fail(
                "gives a value that the serde brings back as another one",
                writes=writes,
                value=at_once,
                read=self._stored("the value", at_once),
            )

    def _fold(self, value: Any, writes: Sequence[Any]) -> Any:
        """Fold copies, so that what a reducer does to them reaches no other fold."""
        try:
            mine, given = (UNSET if value is UNSET else deepcopy(value)), deepcopy(list(writes))
        except Exception as error:
            raise self._failure(f"cannot be tried twice, as {error}", value=value, writes=writes) from error
        try:
            result = fold(self._channel, mine, given)
        except Exception as error:
            # What a function raised, without the channel's own words about it.
            cause = error.__cause__ if isinstance(error, ReducerError) and error.__cause__ is not None else error
            raise self._failure(f"raised {type(cause).__name__}: {cause}", value=value, writes=writes) from cause
        if not (mine is UNSET or self._equal(mine, value)):
            self._fail("changes what it is given: work on a copy", value_before=value, value_after=mine, writes=writes)
        for write, after in zip(writes, given, strict=True):
            if not self._equal(write, after):
                self._fail("changes what it is given: work on a copy", write_before=write, write_after=after)
        return result

    def _stored(self, what: str, value: Any) -> Any:
        """What comes back after a value was stored."""
        try:
            return self._serde.loads_typed(self._serde.dumps_typed(value))
        except Exception as error:
            raise self._failure(f"{what} cannot be stored: {type(error).__name__}: {error}", value=value) from error

    def _equal(self, one: Any, other: Any) -> bool:
        """Equal, or the same bytes: a value that holds NaN, or objects that do not compare, is equal to itself."""
        if one is UNSET or other is UNSET:
            return one is other
        try:
            if bool(one == other):
                return True
        except Exception:  # arrays, for one, have no single answer
            pass
        try:
            return self._serde.dumps_typed(one) == self._serde.dumps_typed(other)
        except Exception:
            return False

    def _fail(self, what: str, **shown: Any) -> None:
        raise self._failure(what, **shown)

    def _failure(self, what: str, **shown: Any) -> ReducerCheckError:
        width = max(map(len, shown)) + 1
        lines = [f"  {name.replace('_', ' ') + ':':{width}} {value!r}" for name, value in shown.items()]
        return ReducerCheckError("\n".join([f"reducer {self._name!r} {what}", *lines]))
