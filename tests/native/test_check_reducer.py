"""`check_reducer` passes the built-in channels and good functions, and finds what bad ones do wrong."""

from __future__ import annotations

import itertools
import operator
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from ckptstore import channels
from ckptstore.errors import CkptStoreError, InvalidArgumentError, WrongTypeError
from ckptstore.testing import ReducerCheckError, check_reducer

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ITEMS = st.builds(lambda key, text: {"id": key, "text": text}, st.sampled_from("abc"), st.text(max_size=3))

BUILT_IN = {
    "append": (channels.append(), st.lists(PLAIN, max_size=3)),
    "last_value": (channels.last_value(), PLAIN),
    "merge": (channels.merge(), st.dictionaries(st.sampled_from("abc"), PLAIN)),
    "keyed": (channels.keyed(), st.lists(ITEMS | st.sampled_from("abcd").map(channels.remove), max_size=3)),
    "keyed by name": (channels.keyed("name"), st.lists(st.builds(lambda name: {"name": name}, st.integers(0, 3)), max_size=3)),
    "reduce": (channels.reduce(operator.add), st.integers(-100, 100)),
}


class Pickle:
    """A serde that takes everything."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "pickle", pickle.dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return pickle.loads(data[1])


class Lossy(Pickle):
    """A serde that brings tuples back as lists, as JSON does."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        value = pickle.loads(data[1])
        return list(value) if isinstance(value, tuple) else value


class Mean:
    """A channel of a user's own that is wrong: the mean of means is not the mean."""

    kind = ("mean",)
    whole = False

    def reduce(self, value: Any, writes: Sequence[Any]) -> Any:
        known = list(writes) if value is channels.UNSET else [value, *writes]
        return sum(known) / len(known)


class Total:
    """A channel of a user's own that is right."""

    kind = ("total",)
    whole = False

    def reduce(self, value: Any, writes: Sequence[Any]) -> Any:
        return (0 if value is channels.UNSET else value) + sum(writes)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_channels_pass(name: str) -> None:
    channel, writes = BUILT_IN[name]
    check_reducer(channel, writes)


def test_good_reducers_pass() -> None:
    check_reducer(Total(), st.integers(0, 9))
    check_reducer(max, [3, 1, 2])
    check_reducer(lambda items, write: [*items, *write][-3:], st.lists(st.integers(), max_size=3), serde=Pickle())
    check_reducer(operator.or_, st.sets(st.integers(0, 5)), serde=Pickle())


def test_a_value_that_does_not_equal_itself_is_no_failure() -> None:
    check_reducer(operator.add, [float("nan"), 1.0])


def grows(items: list[Any], write: list[Any]) -> list[Any]:
    items.extend(write)
    return items


def eats(items: list[Any], write: list[Any]) -> list[Any]:
    return [*items, write.pop()] if write else items


counter = itertools.count()

BAD: dict[str, tuple[Any, Any, str, str]] = {
    "changes its value": (grows, st.lists(st.integers(0, 9), max_size=3), "'grows' changes what it is given", "[0]"),
    "changes its write": (eats, st.lists(st.integers(0, 9), max_size=3), "'eats' changes what it is given", "write after:  []"),
    "counts its calls": (lambda old, new: old + next(counter), st.integers(0, 9), "something else when asked again", "[0, 0]"),
    "cares for batches": (Mean(), st.integers(0, 9), "'mean' depends on how the writes are batched", "[0, 0, 1]"),
    "does not take a write": (operator.add, st.text() | st.integers(0, 9), "raised TypeError", "['', 0]"),
    "does not take a first write": (channels.append(), [[1], 5], "raised ReducerError", "[5]"),
    "makes what is not plain": (lambda old, new: (old, new), [1], "the value cannot be stored: TypeError", "(1, 1)"),
    "is given what is not plain": (operator.add, [(1,), (2,)], "a write cannot be stored: TypeError", "(1,)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_reducers_are_found_and_the_smallest_example_is_shown(name: str) -> None:
    reducer, writes, what, example = BAD[name]
    with pytest.raises(ReducerCheckError) as caught:
        check_reducer(reducer, writes)
    assert what in str(caught.value)
    assert example in str(caught.value)
    # One error, of our tree, without the search's own variables.
    assert isinstance(caught.value, CkptStoreError)
    assert isinstance(caught.value, AssertionError)
    assert not getattr(caught.value, "__notes__", [])


def test_a_value_that_comes_back_as_another_one() -> None:
    def pair(old: Any, new: Any) -> Any:
        return (*old, *new)

    check_reducer(pair, [(1,), (2,)], serde=Pickle())
    with pytest.raises(ReducerCheckError, match="a write comes back from the serde as another one"):
        check_reducer(pair, [(1,), (2,)], serde=Lossy())
    with pytest.raises(ReducerCheckError, match="brings back as another one") as caught:
        check_reducer(lambda old, new: (*old, *new), [[1]], serde=Lossy())
    assert "(1, 1)" in str(caught.value)


def test_a_reducer_that_tells_a_stored_value_from_a_new_one() -> None:
    class Tally(dict[str, int]):
        """Equal to a dict, and not of that type."""

    class Forgets(Pickle):
        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            value = pickle.loads(data[1])
            return dict(value) if isinstance(value, Tally) else value

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return super().dumps_typed(dict(obj) if isinstance(obj, Tally) else obj)

    def count(old: Any, new: Any) -> Any:
        tally = Tally(old)
        # What is read again has lost its type, and with it the bonus.
        tally["n"] = tally.get("n", 0) + (2 if isinstance(old, Tally) else 1)
        return tally

    with pytest.raises(ReducerCheckError, match="stored and read again") as caught:
        check_reducer(count, [{"n": 1}], serde=Forgets())
    assert "with value" in str(caught.value)


def test_an_error_of_the_reducer_is_the_cause() -> None:
    def fails(old: Any, new: Any) -> Any:
        raise ZeroDivisionError("by zero")

    with pytest.raises(ReducerCheckError, match="raised ZeroDivisionError: by zero") as caught:
        check_reducer(fails, [1])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((3, [1]), "reducer=3"),
        ((operator.add, []), "writes=[]"),
        ((operator.add, "ab"), "writes='ab'"),
        ((operator.add, None), "writes=None"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[Any, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_reducer(*arguments)
    assert str(caught.value).startswith(named)
    assert isinstance(caught.value, WrongTypeError) == named.startswith("reducer")


@pytest.mark.parametrize("examples", [0, -1, 1_000_001, True, 1.5, "many"])
def test_examples_is_a_whole_number_from_one(examples: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"examples={examples!r}: a whole number from 1 to 1000000"):
        check_reducer(operator.add, [1], examples=examples)


def test_without_hypothesis_one_line_says_what_to_install() -> None:
    """In a process where it cannot be imported; the module itself needs none."""
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from ckptstore.testing import TestingExtraMissingError, check_reducer\n"
        "try: check_reducer(max, [1])\n"
        "except TestingExtraMissingError as error: print(isinstance(error, ImportError), error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "True check_reducer needs hypothesis: pip install 'ckptstore[testing]'\n", ran.stderr


def test_importing_it_loads_no_hypothesis() -> None:
    program = "import sys, ckptstore.testing; print('hypothesis' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "False\n", ran.stderr
