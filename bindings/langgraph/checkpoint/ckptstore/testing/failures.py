"""What went wrong in a program: as a key that smaller programs are compared by, and as a sentence to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ckptstore.testing.calls import (
    Call,
    Compact,
    Copy,
    Delete,
    DeleteForRuns,
    Found,
    Get,
    History,
    Listing,
    Prune,
    Put,
    PutWrites,
    Refused,
    SetHead,
)


class Failure(NamedTuple):
    """A program whose last call was answered wrongly."""

    program: tuple[Call, ...]
    expected: Any
    found: Any
    """The answer, or the exception that was raised instead."""
    ordered: bool = True
    """Whether the order of a listing counts. Where it does not, `expected` is what the list without its limit has."""

    @property
    def call(self) -> Call:
        return self.program[-1]

    @property
    def symptom(self) -> str:
        """What went wrong, without values: `Get: writes`, `Put: raises KeyError`."""
        return f"{type(self.call).__name__}: {_aspect(self)}"

    @property
    def sentence(self) -> str:
        """What went wrong, and against which rule of docs/fuzzing.md."""
        said, rules = _said(self)
        if any(isinstance(call, _REMOVING) for call in self.program) and "7" not in rules:
            rules = (*rules, "7")
        return f"{said} ({'rule' if len(rules) == 1 else 'rules'} {' and '.join(rules)} of docs/fuzzing.md)"


def _aspect(failure: Failure) -> str:
    expected, found = failure.expected, failure.found
    if isinstance(found, Exception):
        return f"raises {type(raised(found)).__name__}"
    if isinstance(expected, Refused):
        return "is not refused"
    if isinstance(expected, Found) and isinstance(found, Found):
        return ", ".join(differing(expected, found))
    if isinstance(expected, Mapping):
        return "history"
    if isinstance(expected, list) and isinstance(found, list):
        pair = mistaken(failure)
        return ", ".join(differing(*pair)) if pair else "which checkpoints"
    return "is there" if expected is None else "is not there"


def raised(found: Exception) -> BaseException:
    """The error of the saver behind a refusal."""
    return found.__cause__ or found if isinstance(found, Refused) else found


def differing(expected: Found, found: Found) -> list[str]:
    return [name for name in Found._fields if getattr(expected, name) != getattr(found, name)]


def place(item: Found) -> tuple[str, str, str]:
    return item.thread, item.ns, item.id


def how_many(call: Any, expected: Sequence[Found]) -> int:
    return len(expected) if call.limit is None else min(call.limit, len(expected))


def listed_in_any_order(call: Any, expected: Sequence[Found], found: Sequence[Found]) -> bool:
    """Whether as many checkpoints are listed as there are up to the limit, each of them one of the expected, and none twice."""
    places = {place(item) for item in found}
    return len(found) == len(places) == how_many(call, expected) and places <= {place(item) for item in expected}


def mistaken(failure: Failure) -> tuple[Found, Found] | None:
    """A checkpoint as it was expected and as it was found in a listing of the right checkpoints; None where other ones are listed."""
    expected, found = failure.expected, failure.found
    pairs: Iterable[tuple[Found, Found]] = ()
    if not failure.ordered:
        if listed_in_any_order(failure.call, expected, found):
            wanted = {place(item): item for item in expected}
            pairs = [(wanted[place(item)], item) for item in found]
    elif list(map(place, expected)) == list(map(place, found)):
        pairs = zip(expected, found, strict=True)
    return next((pair for pair in pairs if pair[0] != pair[1]), None)


_REMOVING = (Copy, Delete, DeleteForRuns, Prune)

_FIELDS = {
    "ns": "namespace",
    "versions": "channel_versions",
    "values": "channel values",
    "seen": "versions_seen",
    "writes": "pending writes, or their order",
}
"""What a reader knows each field by, where it has another name."""

_METHODS = {
    Put: "put",
    PutWrites: "put_writes",
    Get: "get_tuple",
    History: "get_delta_channel_history",
    Listing: "list",
    Prune: "prune",
    Copy: "copy_thread",
    Delete: "delete_thread",
    DeleteForRuns: "delete_for_runs",
    SetHead: "set_head",
    Compact: "compact",
}
_RULES = {Put: ("1",), PutWrites: ("4",), Get: ("1",), History: ("5", "6"), Listing: ("2",)}


def _said(failure: Failure) -> tuple[str, tuple[str, ...]]:
    """What the last call did, and the rules that say otherwise."""
    call, expected, found = failure.call, failure.expected, failure.found
    method, rules = _METHODS[type(call)], _RULES.get(type(call), ("7",))
    if isinstance(found, Exception):
        return f"{method} raises {type(raised(found)).__name__}", rules
    if isinstance(expected, Refused):
        return f"{method} is not refused", rules
    if isinstance(call, History):
        return f"{method} gives another past than the checkpoint was made of", rules
    pair = mistaken(failure) if isinstance(call, Listing) else (expected, found)
    if pair is None:
        return f"{method} gives other checkpoints than it has to{', or in another order' * failure.ordered}", rules
    if expected is None:
        return f"{method} gives a checkpoint that is not there", rules
    if found is None:
        return f"{method} does not give a checkpoint that is there", rules
    names = differing(*pair)
    said = f"{method} gives a checkpoint otherwise than it was stored: {', '.join(_FIELDS.get(name, name) for name in names)}"
    return said, ("3", "4") if names == ["writes"] else rules
