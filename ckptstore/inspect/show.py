"""One checkpoint as it is: its state, metadata, pending writes and interrupts, without the application that wrote it.

A channel without a stored value is rebuilt from its lineage. How depends on its reducer, which the store knows for native threads only.
For LangGraph's delta channels, writes that look like chat messages are folded as messages are (by id, with replacing and removing);
lists are appended, which is a guess; anything else is shown as it is stored: the nearest value, and the writes after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ckptstore.channels import UNSET, Channel, Overwrite, append, fold, keyed, remove
from ckptstore.codec.inert import DELTA_SNAPSHOT, MAX_DEPTH, Inert, Opaque, UnreadableValueError, inert
from ckptstore.errors import CkptStoreError, ReducerError
from ckptstore.inspect.looking import looking
from ckptstore.inspect.masking import masked
from ckptstore.inspect.opened import Opened
from ckptstore.inspect.refs import Place, Reference, find_checkpoint, id_of
from ckptstore.inspect.tree import as_map, facts_of
from ckptstore.lineage import reader
from ckptstore.lineage.history import read_writes
from ckptstore.lineage.values import Values
from ckptstore.model import CheckpointRecord, Slot, Typed, Version
from ckptstore.state.channels import remembered
from ckptstore.state.plain import load_write
from ckptstore.storage import View

INTERRUPT: Final = "__interrupt__"
_REMOVE_ALL: Final = "__remove_all__"
_ROLES: Final = ("human", "user", "ai", "assistant", "system")
_COUNTERS: Final = "counters_since_delta_snapshot"
_TOO_DEEP: Final = f"(deeper than the {MAX_DEPTH} levels that are shown)"

# How a channel's value came about.
STORED: Final = "stored"
SNAPSHOT: Final = "snapshot"
MESSAGES: Final = "messages"
APPENDED: Final = "appended"
SCHEMA: Final = "schema"
UNFOLDED: Final = "unfolded"
EMPTY: Final = "empty"
UNREAD: Final = "unread"
GRAPH: Final = "graph"

NOTES: Final[Mapping[str, str]] = {
    SNAPSHOT: "a snapshot of a delta channel",
    MESSAGES: "rebuilt: its writes look like messages, so folded by id",
    APPENDED: "rebuilt by appending lists, which is a guess: --graph folds with the application's reducer",
    SCHEMA: "rebuilt with the schema that the store remembers",
    UNFOLDED: "not rebuilt, its reducer is not known: the nearest stored value, and the writes after it; --graph folds them",
    EMPTY: "has a version and no value",
    UNREAD: "cannot be read",
    GRAPH: "as the application's graph reads it",
}


class Write(NamedTuple):
    """One write, as it is stored."""

    task_id: str
    channel: str
    value: Any


class ChannelView(NamedTuple):
    """One channel of a checkpoint."""

    name: str
    version: Version | None
    how: str
    """How the value came about: a key of `NOTES`, or `stored`."""
    value: Any
    """Plain types, `Inert` and `Opaque`; None where `how` is `unfolded`, `empty` or `unread`."""
    seed: Any
    """With `unfolded`: the nearest stored value; None without one."""
    writes: list[Write]
    """With `unfolded`: the writes after it, oldest first."""


class InterruptView(NamedTuple):
    """A question that a run stopped at."""

    task_id: str
    value: Any
    open: bool
    """Whether the checkpoint has no child yet: nobody has gone on from here."""


class CheckpointView(NamedTuple):
    """A checkpoint, whole."""

    thread: str
    ns: str
    id: str
    parent: str | None
    head: bool
    children: list[str]
    step: int | None
    source: str | None
    time: str | None
    metadata: Any
    """Secrets masked unless asked for."""
    channels: list[ChannelView]
    pending: list[Write]
    """Writes stored on it, as readers see them; interrupts are listed by themselves, too."""
    interrupts: list[InterruptView]
    problems: list[str]


class _InertSerde:
    """What stands for a serde where values are only looked at."""

    def dumps_typed(self, obj: Any) -> Typed:
        raise AssertionError("nothing is ever written here")

    def loads_typed(self, data: Typed) -> Any:
        return seen(data)


def seen(typed: Typed) -> Any:
    """A value as a tree; as `Opaque` where it does not read as one."""
    try:
        value = inert(typed)
    except UnreadableValueError as error:
        return Opaque(typed[0], len(typed[1]), str(error))
    return value


def checkpoint_view(
    path: str | os.PathLike[str],
    reference: Reference,
    *,
    unmask: bool = False,
    channels: Sequence[str] | None = None,
    lock_timeout: float = 30.0,
) -> CheckpointView:
    """Everything of one checkpoint.

    Args:
        unmask: show metadata that looks like a secret.
        channels: only these; all when None. The order is by name.
        lock_timeout: seconds, see `opened`.

    Raises:
        UnknownReferenceError: there is no such checkpoint.
        CorruptionError: its own record is damaged; what else is damaged is among the problems.
        what `opened` raises.
    """
    with looking(path, lock_timeout) as (here, problems):
        view = view_of(here, reference, unmask=unmask, channels=channels)
        return view._replace(problems=problems + view.problems)


def view_of(here: Opened, reference: Reference, *, unmask: bool = False, channels: Sequence[str] | None = None) -> CheckpointView:
    """`checkpoint_view` of a store that is open."""
    values = Values(here.store.options.cache_bytes, lambda: here.storage.activity)
    with here.storage.view() as view:
        place = find_checkpoint(view, reference)
        record = reader.checked_record(view, place.number, place.entry)
        problems: list[str] = []
        wanted = {name: slot for name, slot in sorted(record.table.items()) if channels is None or name in channels}
        problems += [f"channel {name!r}: the checkpoint has none" for name in channels or () if name not in record.table]
        found = [_channel(view, values, place, record, name, slot, problems) for name, slot in wanted.items()]
        pending = _pending(view, values, place, problems)
        children = _children(view, place, problems)
        step, source, time = facts_of(record.skeleton, record.metadata)
        metadata = _metadata(record)
        return CheckpointView(
            place.lane.thread,
            place.lane.ns,
            place.id,
            record.parent,
            view.state(place.number).head == place.entry.number,
            children,
            step,
            source,
            time,
            metadata if unmask else masked(metadata),
            found,
            pending,
            _interrupts(pending, not children),
            problems,
        )


def _metadata(record: CheckpointRecord) -> Any:
    if isinstance(record.metadata, tuple):
        return seen(record.metadata)
    return {name: value if _is_shallow(value) else _TOO_DEEP for name, value in record.metadata.items()}


def _is_shallow(value: Any) -> bool:
    """Whether what shows and compares a value, by recursion, comes to its end."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return True
    return False


def _children(view: View, place: Place, problems: list[str]) -> list[str]:
    found = []
    for number in view.children(place.number, place.entry.number):
        entry = view.live_checkpoint(place.number, number)
        if entry is None:
            continue
        try:
            found.append(id_of(view, entry))
        except CkptStoreError as error:
            problems.append(f"a child of it: {error}")
    return found


# -- channels --------------------------------------------------------------------------------------------------------------


def _channel(
    view: View, values: Values, place: Place, record: CheckpointRecord, name: str, slot: Slot, problems: list[str]
) -> ChannelView:
    try:
        if slot.value is not None:
            value = seen(values.typed(view, slot.value))
            if isinstance(value, Inert) and value.type_name == DELTA_SNAPSHOT:
                return ChannelView(name, slot.version, SNAPSHOT, value.args[0], None, [])
            return ChannelView(name, slot.version, STORED, value, None, [])
        if not _may_have_writes(record, name):
            return ChannelView(name, slot.version, EMPTY, None, None, [])
        past = reader.history(view, values, place.lane, place.number, place.entry, [name])[name]
    except CkptStoreError as error:
        problems.append(f"channel {name!r}: {error}")
        return ChannelView(name, slot.version, UNREAD, None, None, [])
    serde = _InertSerde()
    seed = UNSET if past.seed is None else _opened(load_write(serde, past.seed))
    writes = [Write(write.task_id, write.channel, _opened(load_write(serde, write.value))) for write in past.writes]
    if seed is UNSET and not writes:
        return ChannelView(name, slot.version, EMPTY, None, None, [])
    how, value = rebuilt(_native_kind(record, name), seed, [write.value for write in writes])
    if how == UNFOLDED:
        return ChannelView(name, slot.version, how, None, None if seed is UNSET else seed, writes)
    return ChannelView(name, slot.version, EMPTY if value is UNSET else how, None if value is UNSET else value, None, [])


def _may_have_writes(record: CheckpointRecord, name: str) -> bool:
    """Whether a channel with a version and no value has to be rebuilt.

    LangGraph counts the updates of a delta channel in the metadata as long as no snapshot stands in the table. Its other channels without
    a value are empty, and walking to the root for each of them would read the whole thread.
    """
    if "versions_seen" not in as_map(record.skeleton):
        return True
    counters = as_map(record.metadata).get(_COUNTERS)
    return isinstance(counters, dict) and name in counters


def _native_kind(record: CheckpointRecord, name: str) -> list[str] | None:
    kinds = as_map(record.skeleton).get("channels")
    kind = kinds.get(name) if isinstance(kinds, dict) else None
    return kind if isinstance(kind, list) and kind and all(isinstance(part, str) for part in kind) else None


def _opened(value: Any) -> Any:
    """A value of a delta channel without LangGraph's wrappers, which are instructions to its reducer."""
    if isinstance(value, Inert):
        if value.type_name == DELTA_SNAPSHOT:
            return value.args[0]
        if value.type_name == "langgraph.types.Overwrite" and "value" in value.fields:
            return Overwrite(value.fields["value"])
    if isinstance(value, dict) and value.keys() == {"__overwrite__"}:
        return Overwrite(value["__overwrite__"])
    return value


def rebuilt(kind: Sequence[str] | None, seed: Any, writes: Sequence[Any]) -> tuple[str, Any]:
    """(how, value) of a channel from its nearest value and the writes after it.

    Args:
        kind: what a native thread remembers of the channel; None for other frameworks.
        seed: `UNSET` without one.
        writes: oldest first; `Overwrite` and `UNSET` among them.
    """
    attempts: list[tuple[str, Callable[[], Any]]] = []
    if kind is not None:
        channel = remembered(kind) if len(kind) > (kind[0] == "keyed") else None
        if channel is not None:
            attempts.append((SCHEMA, lambda: fold(channel, seed, writes)))
    elif _all_messages(seed, writes):
        attempts.append((MESSAGES, lambda: folded_messages(seed, writes)))
    elif all(isinstance(value, list) for value in _contents(seed, writes)):
        attempts.append((APPENDED, lambda: fold(append(), seed, writes)))
    for how, attempt in attempts:
        try:
            return how, attempt()
        except ReducerError:
            continue
    return UNFOLDED, None


def _contents(seed: Any, writes: Sequence[Any]) -> list[Any]:
    values = [write.value if isinstance(write, Overwrite) else write for write in (seed, *writes)]
    return [value for value in values if value is not UNSET and value is not None]


def _all_messages(seed: Any, writes: Sequence[Any]) -> bool:
    items = [item for value in _contents(seed, writes) for item in _items(value)]
    return bool(items) and all(_message(item) is not None for item in items)


def _message(item: Any) -> Mapping[str, Any] | None:
    """The fields of what looks like a chat message, or None."""
    if isinstance(item, Inert):
        name = item.short_name
        return item.fields if name.endswith(("Message", "MessageChunk")) and "content" in item.fields else None
    if isinstance(item, dict) and "content" in item and ("role" in item or "type" in item):
        return item
    # The short form: (role, text), without an id.
    if isinstance(item, list) and len(item) == 2 and item[0] in _ROLES and isinstance(item[1], str):
        return {}
    return None


def _items(value: Any) -> list[Any]:
    """What one write holds: a list of messages, or a single one."""
    return value if isinstance(value, list) and _message(value) is None else [] if value is None else [value]


def folded_messages(seed: Any, writes: Sequence[Any]) -> Any:
    """Messages folded as LangGraph folds them: an id that is there is replaced in place, a new one comes last, a removal takes one out.

    It is the fold of `channels.keyed`, over (id, message). A message without an id is never replaced. Removing what is not there does
    nothing, where LangGraph would have refused the write.
    """
    channel: Channel = keyed()
    nameless = 0

    def entry(item: Any) -> dict[str, Any]:
        nonlocal nameless
        fields = _message(item)
        assert fields is not None
        id = fields.get("id")
        if isinstance(item, Inert) and item.short_name == "RemoveMessage":
            return remove(("id", id if isinstance(id, str) else None))
        if not isinstance(id, str):
            nameless += 1
            return {"id": ("nameless", nameless), "item": item}
        return {"id": ("id", id), "item": item}

    def entries(value: Any) -> list[dict[str, Any]]:
        return [entry(item) for item in _items(value)]

    translated: list[Any] = []
    for write in writes:
        if isinstance(write, Overwrite):
            translated.append(Overwrite(entries(write.value)))
            continue
        if write is UNSET:
            translated.append(UNSET)
            continue
        items = _items(write)
        cleared = [at for at, item in enumerate(items) if _removes_all(item)]
        if cleared:
            translated.append(Overwrite([]))
            items = items[cleared[-1] + 1 :]
        translated.append(entries(items))
    folded = fold(channel, UNSET if seed is UNSET else entries(seed), translated)
    return UNSET if folded is UNSET else [item["item"] for item in folded]


def _removes_all(item: Any) -> bool:
    return isinstance(item, Inert) and item.short_name == "RemoveMessage" and item.fields.get("id") == _REMOVE_ALL


# -- writes ------------------------------------------------------------------------------------------------------------------


def _pending(view: View, values: Values, place: Place, problems: list[str]) -> list[Write]:
    """The writes stored on the checkpoint, as readers see them; of a damaged batch, that it is damaged."""
    try:
        found = reader.pending(view, values, place.number, place.entry.number)
        return [Write(write.task_id, write.channel, seen_write(write.value)) for write in found]
    except CkptStoreError:
        pass
    readable = []
    for batch in view.writes(place.number, place.entry.number):
        try:
            record = read_writes(view, batch.ref)
            readable += [Write(record.task_id, item.channel, seen_write(values.typed(view, item.value))) for item in record.writes]
        except CkptStoreError as error:
            problems.append(f"writes on it: {error}")
    return readable


def seen_write(typed: Typed) -> Any:
    """A stored write as a tree: what would replace a value, or unset it, says so."""
    value = load_write(_InertSerde(), typed)
    if value is UNSET:
        return Inert("ckptstore.UNSET")
    return Inert("ckptstore.Overwrite", (value.value,)) if isinstance(value, Overwrite) else value


def _interrupts(pending: Sequence[Write], is_open: bool) -> list[InterruptView]:
    found = []
    for write in pending:
        if write.channel == INTERRUPT:
            for item in write.value if isinstance(write.value, list) else [write.value]:
                asked = item.fields.get("value") if isinstance(item, Inert) else item
                found.append(InterruptView(write.task_id, asked, is_open))
    return found
