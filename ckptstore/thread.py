"""`Thread`: a cursor on one checkpoint of a lane, and the native way to step, fork and read it.

A step writes a batch of writes on the cursor's tip and the checkpoint that they make, in one commit. Channels that grow are not stored at
each step: the checkpoint says "rebuild it from the lineage", and every `snapshot_frequency` updates the value itself is stored.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptstore.codec.serde import Serde, dump
from ckptstore.errors import (
    CheckpointLineageIntegrityError,
    CheckpointParentMissingError,
    InvalidArgumentError,
    MissingReducerError,
    SchemaError,
)
from ckptstore.model import Consumed, LaneName, Outline, Source, Typed, Version
from ckptstore.state.channels import UNSET, Channel, Overwrite, fold, remembered
from ckptstore.state.plain import PlainSerde, dump_write

if TYPE_CHECKING:
    from ckptstore.store import Store

Schema = Mapping[str, Channel]

# Stands for a value that the parent holds already: the engine takes it over by its version and never serializes it.
_KEPT = object()
_PLAIN = PlainSerde()
_KINDS = "channels"
_SINCE = "since_snapshot"


class Checkpoint(NamedTuple):
    """A checkpoint of a native thread, as `step` and `lineage` return it. Its id is all that `at` needs."""

    thread: str
    ns: str
    id: str
    parent: str | None
    step: int
    """Distance from the first checkpoint of its lineage."""
    created_ms: int
    """Unix time in milliseconds, by the writer's clock. Order is never taken from it."""
    metadata: dict[str, Any]


class Change(NamedTuple):
    """What differs in one channel; `UNSET` where a side has no value."""

    before: Any
    after: Any


class Thread:
    """A cursor on its own tip. Cursors of one lane share its checkpoints and nothing else; make one for each writer."""

    def __init__(
        self, store: Store, lane: LaneName, tip: str | None, schema: Schema, serde: Serde, snapshot_frequency: int
    ) -> None:
        self._store = store
        self._lane = lane
        self._tip = tip
        self._schema = dict(schema)
        self._serde = serde
        self._frequency = snapshot_frequency

    def __repr__(self) -> str:
        at = "empty" if self._tip is None else f"at {self._tip}"
        return f"<Thread {self._lane.thread!r}{'/' + self._lane.ns if self._lane.ns else ''} {at}>"

    @property
    def id(self) -> str:
        """The thread's id."""
        return self._lane.thread

    @property
    def ns(self) -> str:
        """The namespace; empty for the root."""
        return self._lane.ns

    @property
    def tip(self) -> str | None:
        """Id of the checkpoint this cursor is on; None before the first step."""
        return self._tip

    # -- stepping -------------------------------------------------------------------------------------------------------

    def step(
        self, writes: Mapping[str, Any], *, metadata: Mapping[str, Any] | None = None, expect_head: bool = False
    ) -> Checkpoint:
        """Apply one write to each named channel and store the checkpoint that results; the cursor moves to it.

        Args:
            writes: a write for each channel: what its kind takes, an `Overwrite`, or `UNSET`.
            metadata: plain values to keep with the checkpoint.
            expect_head: refuse if the lane's head is not this cursor's tip: another writer was faster.

        Raises:
            SchemaError: a channel that the schema does not name.
            ReducerError: a channel cannot take its write; nothing was stored.
            MissingReducerError: a channel needs its reducer to be given again.
            ConflictError: see `expect_head`. SerializationError, ValueTooLargeError, and the storage errors.
        """
        _check_mapping("writes", writes)
        _check_mapping("metadata", metadata if metadata is not None else {})
        if not isinstance(expect_head, bool):
            raise InvalidArgumentError(f"expect_head={expect_head!r}: True or False is needed")
        for name in writes:
            self._channel(name)
        before = None if self._tip is None else self._read(self._tip)
        plan = self._plan(writes, before)
        given = dict(metadata or {})
        dump(_PLAIN, "metadata", given)
        number, now = 0 if before is None else _number(before, "step") + 1, time.time_ns() // 1_000_000
        skeleton = {
            "step": number,
            "created_ms": now,
            _KINDS: {name: list(channel.kind) for name, channel in self._schema.items()},
            _SINCE: plan.since,
        }
        id = _new_id()
        self._store.put_checkpoint(
            self._lane,
            id,
            self._tip,
            skeleton=skeleton,
            metadata=given,
            versions=plan.versions,
            values=plan.values,
            changed=writes.keys(),
            encode=self._dump,
            source=Source.UPDATE,
            rule=lambda edge: Consumed(),
            expect_head=expect_head,
            step=plan.step,
            require_parent=True,
        )
        parent, self._tip = self._tip, id
        return Checkpoint(*self._lane, id, parent, number, now, given)

    def _plan(self, writes: Mapping[str, Any], before: Outline | None) -> _Plan:
        """What of a step is a value, what a write, and what is rebuilt later."""
        versions: dict[str, Version] = {} if before is None else dict(before.versions)
        since: dict[str, int] = {} if before is None else dict(before.skeleton[_SINCE])
        values: dict[str, Any] = {}
        step: list[tuple[str, Typed]] = []
        if before is not None:
            # Unchanged values keep their version, so the engine takes them over without looking at them.
            values.update(dict.fromkeys(before.valued, _KEPT))
        for name, write in writes.items():
            channel = self._channel(name)
            known = before is not None and name in before.versions
            versions[name] = int(versions.get(name, 0)) + 1
            count = since.get(name, 0) + 1
            if write is UNSET:
                versions.pop(name)
                values.pop(name, None)
                since.pop(name, None)
            elif channel.whole or isinstance(write, Overwrite) or not known or count >= self._frequency:
                # Stored whole: it is the write itself, replaces everything, has nothing before it, or the cadence says so.
                old = UNSET if channel.whole or isinstance(write, Overwrite) or not known else self._value(name)
                if isinstance(write, Overwrite) and remembered(channel.kind) is not None:
                    channel.reduce(write.value, [])  # a value of another type would break every later fold
                values[name] = fold(channel, old, [write])
                since[name] = 0
            else:
                # The write has to be foldable now: a bad one must not be found out when the state is next read. A kind of our own
                # can tell from the write alone; a function of the user's has to see the value.
                fold(channel, self._value(name) if channel.kind[0] == "reduce" else UNSET, [write])
                step.append((name, dump_write(self._serde, name, write)))
                values.pop(name, None)
                since[name] = count
        return _Plan(versions, values, since, step)

    def _dump(self, name: str, value: Any) -> Typed:
        if value is _KEPT:
            raise CheckpointLineageIntegrityError(
                f"{self._lane}: checkpoint {self._tip!r} was removed while this step was made; nothing was stored. Open the thread anew"
            )
        return dump(self._serde, name, value)

    def _value(self, name: str) -> Any:
        """A channel's value at the tip, for a snapshot: rebuilt by the same fold as any read."""
        assert self._tip is not None
        state = self._store.state(self._lane, self._tip, reducers=self._reducers(), serde=self._serde, channels=[name], strict=True)
        return state.get(name, UNSET)

    # -- reading --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The state at the tip: a fresh dictionary of fresh values; channels without a value are not in it.

        Raises:
            MissingReducerError: a `reduce` channel's function has to be given again.
            CheckpointLineageIntegrityError, CorruptionError: history is lost or damaged; never an empty value.
        """
        if self._tip is None:
            return {}
        return self._store.state(self._lane, self._tip, reducers=self._reducers(), serde=self._serde, strict=True)

    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint at the tip; None before the first step."""
        return None if self._tip is None else self._checkpoint(self._read(self._tip))

    def head(self) -> Checkpoint | None:
        """The lane's head: what `Store.thread` opens at. Not necessarily this cursor's tip."""
        stored = self._store.outline(self._lane)
        return None if stored is None else self._checkpoint(stored)

    def lineage(self) -> Iterator[Checkpoint]:
        """Checkpoints from the tip to the first one, parent by parent, newest first. Holds no lock between two of them.

        Raises:
            CheckpointLineageIntegrityError: a parent is missing, or the chain closes a loop.
        """
        at, seen = self._tip, set()
        while at is not None:
            if at in seen:
                raise CheckpointLineageIntegrityError(
                    f"{self._lane}: the chain of parents of {self._tip!r} closes a loop at {at!r}"
                )
            seen.add(at)
            stored = self._store.outline(self._lane, at)
            if stored is None:
                if at != self._tip and self._store.is_pruned(self._lane, at):
                    return  # what lies behind was pruned, and what its survivor needs was kept with it
                raise CheckpointLineageIntegrityError(f"{self._lane}: checkpoint {at!r}, a parent in this lineage, is not stored")
            yield self._checkpoint(stored)
            at = stored.parent

    def diff(self, other: Checkpoint | str | None = None) -> dict[str, Change]:
        """What differs between another checkpoint and the tip, by channel.

        Args:
            other: the checkpoint to compare with; the tip's parent when None.

        Raises:
            CheckpointParentMissingError: the tip has no parent.
        """
        if other is None:
            parent = None if self._tip is None else self._read(self._tip).parent
            if parent is None:
                raise CheckpointParentMissingError(f"{self._lane}: {self._tip or 'an empty thread'} has no parent to compare with")
            other = parent
        before, after = self.at(_id_of(other)).state(), self.state()
        return {
            name: Change(before.get(name, UNSET), after.get(name, UNSET))
            for name in sorted(before.keys() | after.keys())
            if name not in before or name not in after or before[name] != after[name]
        }

    # -- cursors --------------------------------------------------------------------------------------------------------

    def at(self, checkpoint: Checkpoint | str) -> Thread:
        """Another cursor in the same lane, on that checkpoint.

        Raises:
            InvalidArgumentError: the lane holds no such checkpoint.
        """
        outline = self._read(_id_of(checkpoint))
        return Thread(self._store, self._lane, outline.id, self._with(outline), self._serde, self._frequency)

    def fork(self) -> Thread:
        """Another cursor on the same checkpoint: its first step begins a branch."""
        return Thread(self._store, self._lane, self._tip, self._schema, self._serde, self._frequency)

    def set_head(self, checkpoint: Checkpoint | str | None = None) -> None:
        """Make a checkpoint the lane's head, without storing one; the cursor moves to it.

        Args:
            checkpoint: this cursor's tip when None.

        Raises:
            InvalidArgumentError: the lane holds no such checkpoint.
        """
        id = self._tip if checkpoint is None else _id_of(checkpoint)
        if id is None:
            raise InvalidArgumentError(f"{self._lane}: checkpoint=None on an empty thread: step first")
        outline = self._read(id)
        self._store.set_head(self._lane, id)
        self._schema = self._with(outline)
        self._tip = id

    # -- async: the same in a worker thread -----------------------------------------------------------------------------

    async def astep(
        self, writes: Mapping[str, Any], *, metadata: Mapping[str, Any] | None = None, expect_head: bool = False
    ) -> Checkpoint:
        """`step` in a worker thread. Cancelled, it is stored whole or not at all."""
        return await asyncio.to_thread(self.step, writes, metadata=metadata, expect_head=expect_head)

    async def astate(self) -> dict[str, Any]:
        """`state` in a worker thread."""
        return await asyncio.to_thread(self.state)

    async def acheckpoint(self) -> Checkpoint | None:
        """`checkpoint` in a worker thread."""
        return await asyncio.to_thread(self.checkpoint)

    async def ahead(self) -> Checkpoint | None:
        """`head` in a worker thread."""
        return await asyncio.to_thread(self.head)

    async def alineage(self) -> AsyncIterator[Checkpoint]:
        """`lineage`, each step in a worker thread."""
        lineage = self.lineage()
        while (checkpoint := await asyncio.to_thread(next, lineage, None)) is not None:
            yield checkpoint

    async def adiff(self, other: Checkpoint | str | None = None) -> dict[str, Change]:
        """`diff` in a worker thread."""
        return await asyncio.to_thread(self.diff, other)

    async def aat(self, checkpoint: Checkpoint | str) -> Thread:
        """`at` in a worker thread."""
        return await asyncio.to_thread(self.at, checkpoint)

    async def aset_head(self, checkpoint: Checkpoint | str | None = None) -> None:
        """`set_head` in a worker thread."""
        await asyncio.to_thread(self.set_head, checkpoint)

    # -- helpers --------------------------------------------------------------------------------------------------------

    def _with(self, outline: Outline) -> dict[str, Channel]:
        """The schema, with channels that a checkpoint of this lane has besides: another cursor may have added them."""
        return {**_remembered_schema(outline), **self._schema}

    def _channel(self, name: str) -> Channel:
        channel = self._schema.get(name)
        if channel is None:
            raise SchemaError(f"{self._lane}: no channel {name!r} in the schema, which has {sorted(self._schema)}")
        if isinstance(channel, _Forgotten):
            raise MissingReducerError(
                f"{self._lane}: channel {name!r} is folded by the function {channel.kind[-1]!r}, which has to be given again: "
                f"store.thread({self._lane.thread!r}, schema={{{name!r}: channels.reduce(...)}})"
            )
        return channel

    def _reducers(self) -> dict[str, Any]:
        return {name: _folding(channel) for name, channel in self._schema.items() if not isinstance(channel, _Forgotten)}

    def _read(self, id: str) -> Outline:
        stored = self._store.outline(self._lane, id)
        if stored is None:
            raise InvalidArgumentError(f"{self._lane} holds no checkpoint id={id!r}")
        return stored

    def _checkpoint(self, stored: Outline) -> Checkpoint:
        metadata = stored.metadata if isinstance(stored.metadata, dict) else {}
        return Checkpoint(*self._lane, stored.id, stored.parent, _number(stored, "step"), _number(stored, "created_ms"), metadata)


class _Plan(NamedTuple):
    versions: dict[str, Version]
    values: dict[str, Any]
    since: dict[str, int]
    step: list[tuple[str, Typed]]


class _Forgotten:
    """Stands for a `reduce` channel whose function was not given again."""

    whole = False

    def __init__(self, kind: tuple[str, ...]) -> None:
        self.kind = kind

    def reduce(self, value: Any, writes: Any) -> Any:
        raise AssertionError("never folded: Thread asks for the function first")


def _folding(channel: Channel) -> Any:
    return lambda value, writes: fold(channel, value, writes)


def agreed_schema(lane: LaneName, stored: Outline | None, given: Schema | None) -> Schema:
    """The schema a thread is opened with: what the store remembers, completed by what the caller gives.

    Raises:
        SchemaError: a channel was written with another kind; or a new thread without a schema.
    """
    _check_schema(given)
    if stored is None:
        if not given:
            raise SchemaError(f"{lane} is new: give it a schema, such as schema={{'messages': channels.append()}}")
        return dict(given)
    if not isinstance(stored.skeleton, dict) or _KINDS not in stored.skeleton:
        raise SchemaError(f"{lane} was not written by a native thread (a LangGraph saver?): it has no schema to open it with")
    schema = _remembered_schema(stored)
    for name, channel in (given or {}).items():
        before = schema.get(name)
        if before is not None and tuple(before.kind) != tuple(channel.kind):
            raise SchemaError(
                f"{lane}: channel {name!r} was written as {'/'.join(before.kind)} and is opened as {'/'.join(channel.kind)}: open it "
                "as it was, or use another channel name"
            )
        schema[name] = channel
    return schema


def _check_schema(schema: Any) -> None:
    if schema is None:
        return
    _check_mapping("schema", schema)
    for name, channel in schema.items():
        if not callable(getattr(channel, "reduce", None)) or not hasattr(channel, "kind") or isinstance(channel, type):
            raise InvalidArgumentError(f"schema[{name!r}]={channel!r}: a channel is needed, such as channels.append()")


def _remembered_schema(outline: Outline) -> dict[str, Channel]:
    kinds = outline.skeleton.get(_KINDS, {}) if isinstance(outline.skeleton, dict) else {}
    return {name: remembered(kind) or _Forgotten(tuple(kind)) for name, kind in kinds.items()}


def _id_of(checkpoint: Checkpoint | str) -> str:
    id = checkpoint.id if isinstance(checkpoint, Checkpoint) else checkpoint
    if not isinstance(id, str):
        raise InvalidArgumentError(f"checkpoint={checkpoint!r}: a Checkpoint or its id is needed")
    return id


def _check_mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidArgumentError(f"{name}={value!r}: a mapping from names is needed")


def _number(stored: Outline, key: str) -> int:
    value = stored.skeleton.get(key) if isinstance(stored.skeleton, dict) else None
    return value if isinstance(value, int) else 0


def _new_id() -> str:
    """A UUID of version 7: its time helps a reader's eye, the store does not look at it."""
    stamp = (time.time_ns() // 1_000_000).to_bytes(6, "big")
    rest = bytearray(os.urandom(10))
    rest[0] = rest[0] & 0x0F | 0x70
    rest[2] = rest[2] & 0x3F | 0x80
    digits = (stamp + rest).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
