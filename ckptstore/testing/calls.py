"""Calls of a checkpoint saver in neutral terms: small frozen records that can be printed, replayed, and given to any saver.

A program is a list of calls. The `Model` (model.py) says what each has to answer; a `Driver` makes it on a real store. Nothing here knows
segments, graphs or serializers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol

from ckptstore.errors import CheckpointLineageIntegrityError, InvalidArgumentError, ThreadDeletedError, ThreadExistsError

Version = str | int | float
Source = Literal["loop", "input", "update", "fork"]
"""What makes a checkpoint: a superstep of a run, its input, an edit from outside, or a copy of another checkpoint."""
Origin = Literal["task", "null", "input"]
"""Where writes come from: a task, a command that belongs to no task (`NULL_TASK`), or the input of a run."""

SPECIAL = {"__error__": -1, "__scheduled__": -2, "__interrupt__": -3, "__resume__": -4}
"""Channels with one slot a task, and the idx of it: the last write counts. They are no part of any channel's history."""

NULL_TASK = "00000000-0000-0000-0000-000000000000"


class Put(NamedTuple):
    """Store a checkpoint."""

    thread: str
    ns: str
    id: str
    parent: str | None
    versions: dict[str, Version]
    values: dict[str, Any]
    """Of channels that hold a value. One with a version and no value is rebuilt from the lineage."""
    changed: tuple[str, ...]
    """Channels whose version moved: LangGraph's `new_versions`."""
    metadata: dict[str, Any]
    """Plain values. `run_id` names the run for `DeleteForRuns`."""
    seen: dict[str, dict[str, Version]] = {}  # noqa: RUF012  never changed
    """LangGraph's `versions_seen`."""
    source: Source = "loop"
    writer: str | None = None
    """Tells the run apart that makes the call; None for one that nothing is known of."""
    made_by: tuple[int, ...] = ()
    """Numbers of the batches on the parent that made it, as the run knows that made it; each counts whole. No driver looks at it."""
    taken: tuple[int, ...] = ()
    """Numbers of batches of others that the run found on the parent and used: of these the first write of a (task, idx) counts."""
    twin_of: str | None = None
    """A copy of this checkpoint, beside it under the same parent."""


class PutWrites(NamedTuple):
    """Store a batch of writes on a checkpoint id, which need not be stored yet."""

    number: int
    """Names the batch in `Put.made_by`."""
    thread: str
    ns: str
    target: str
    task: str
    path: str
    writes: tuple[tuple[str, Any], ...]
    """(channel, value): the position is the idx, but for `SPECIAL` channels."""
    writer: str | None = None
    origin: Origin = "task"
    late_for: str | None = None
    """The child that it made, where it comes after it. No driver looks at it."""


class Get(NamedTuple):
    """Read a checkpoint; without an id the head."""

    thread: str
    ns: str
    id: str | None = None


class History(NamedTuple):
    """What the ancestors of a checkpoint contribute to channels."""

    thread: str
    ns: str
    id: str | None
    channels: tuple[str, ...]


class Listing(NamedTuple):
    """Checkpoints, newest first: by place in one namespace, by id over several."""

    thread: str | None = None
    ns: str | None = None
    id: str | None = None
    before: str | None = None
    filter: dict[str, Any] = {}  # noqa: RUF012  never changed
    limit: int | None = None


class SetHead(NamedTuple):
    """Make a stored checkpoint the head of its lane."""

    thread: str
    ns: str
    id: str


class Prune(NamedTuple):
    """Keep the head of each namespace."""

    thread: str


class Copy(NamedTuple):
    thread: str
    to: str


class Delete(NamedTuple):
    thread: str


class DeleteForRuns(NamedTuple):
    runs: tuple[str, ...]


class Compact(NamedTuple):
    """Give back the space of what was removed."""


class Reopen(NamedTuple):
    """Close the store and open it again."""

    lose_index: bool = False
    """What can be rebuilt is deleted in between."""


class Crash(NamedTuple):
    """The process is killed, or the power goes, and the store is opened again."""

    kind: Literal["kill", "power"]
    seed: int
    """Chooses among the states that the disk may be left in."""
    during: Put | PutWrites | SetHead | Prune | Copy | Delete | DeleteForRuns | Compact | None = None
    """The call in the middle of which it happens; None for between two calls."""


Call = Put | PutWrites | Get | History | Listing | SetHead | Prune | Copy | Delete | DeleteForRuns | Compact | Reopen | Crash
Change = Put | PutWrites | SetHead | Prune | Copy | Delete | DeleteForRuns | Compact
"""What a crash may come in the middle of."""


class Found(NamedTuple):
    """A checkpoint as a reader sees it."""

    thread: str
    ns: str
    id: str
    parent: str | None
    versions: dict[str, Version]
    values: dict[str, Any]
    metadata: dict[str, Any]
    seen: dict[str, dict[str, Version]]
    writes: list[tuple[str, str, Any]]
    """(task, channel, value) of the pending writes."""


class Past(NamedTuple):
    """What the ancestors of a checkpoint contribute to one channel."""

    seed: tuple[Any, ...] = ()
    """The nearest value, alone; empty where there is none."""
    writes: tuple[tuple[str, Any], ...] = ()
    """(task, value) of the writes after it, oldest first."""


Refusal = Literal["late", "lost", "exists", "unknown"]


class Refused(Exception):
    """A call that must fail, and stores nothing.

    `late`: it names a checkpoint of a deleted thread. `lost`: what it asks for was removed. `exists`: a copy onto a thread that is
    there. `unknown`: a head that is not stored.
    """

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why = why


_REFUSALS: dict[type[Exception], Refusal] = {
    ThreadDeletedError: "late",
    CheckpointLineageIntegrityError: "lost",
    ThreadExistsError: "exists",
    InvalidArgumentError: "unknown",
}


@contextmanager
def refusals() -> Iterator[None]:
    """Errors by which ckptstore refuses a call, as `Refused`. No other saver raises them."""
    try:
        yield
    except tuple(_REFUSALS) as error:
        raise Refused(next(why for kind, why in _REFUSALS.items() if isinstance(error, kind))) from error


class Driver(Protocol):
    """Makes calls on a store. Each raises `Refused` where the store refuses; counts are None where the store does not tell.

    `changes` names the optional calls that it can make: class names, such as "SetHead" or "Crash". Only those are made.
    """

    changes: frozenset[str]

    def put(self, call: Put) -> None: ...
    def put_writes(self, call: PutWrites) -> None: ...
    def get(self, call: Get) -> Found | None: ...
    def history(self, call: History) -> Mapping[str, Past]: ...
    def list(self, call: Listing) -> Sequence[Found]: ...

    def set_head(self, call: SetHead) -> None: ...
    def prune(self, call: Prune) -> int | None: ...
    def copy(self, call: Copy) -> int | None: ...
    def delete(self, call: Delete) -> bool | None: ...
    def delete_for_runs(self, call: DeleteForRuns) -> int | None: ...
    def compact(self, call: Compact) -> None: ...
    def reopen(self, call: Reopen) -> None: ...
    def crash(self, call: Crash) -> None: ...
    def close(self) -> None: ...


METHODS = {
    Put: "put",
    PutWrites: "put_writes",
    Get: "get",
    History: "history",
    Listing: "list",
    SetHead: "set_head",
    Prune: "prune",
    Copy: "copy",
    Delete: "delete",
    DeleteForRuns: "delete_for_runs",
    Compact: "compact",
    Reopen: "reopen",
    Crash: "crash",
}
"""The method of a driver that a call is made by; the model has the same, but for `crash` (session.py)."""
