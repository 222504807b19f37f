"""The one fold: a checkpoint's values from its table, its lineage and reducers.

Whoever needs a state goes through here: native threads, the command line, and bindings that bring their framework's reducers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ckptstore.errors import MissingReducerError
from ckptstore.lineage import reader
from ckptstore.lineage.ownership import read_record
from ckptstore.lineage.values import Values
from ckptstore.model import CheckpointRecord, LaneName, Typed
from ckptstore.state.channels import UNSET
from ckptstore.storage import View
from ckptstore.storage.catalog import CheckpointEntry

Loads = Callable[[Typed], Any]
Reducer = Callable[[Any, Sequence[Any]], Any]
"""(value before or `UNSET`, writes oldest first) -> value after or `UNSET`."""


def materialize(
    view: View,
    values: Values,
    lane: LaneName,
    number: int,
    entry: CheckpointEntry,
    reducers: Mapping[str, Reducer],
    loads: Loads,
) -> dict[str, Any]:
    """The state at a checkpoint: for each channel the stored value, or the nearest one with the owned writes after it.

    Raises:
        MissingReducerError: a channel has to be rebuilt and nobody said how.
        CheckpointLineageIntegrityError: something of its history is lost.
        CorruptionError: something of it is damaged.
    """
    record = reader.checked_record(view, number, entry)
    state = {name: loads(values.typed(view, slot.value)) for name, slot in record.table.items() if slot.value is not None}
    rebuilt = [name for name, slot in record.table.items() if slot.value is None]
    for name, value in rebuild(view, values, lane, number, entry, record, rebuilt, reducers, loads).items():
        if value is not UNSET:
            state[name] = value
    return state


def rebuild(
    view: View,
    values: Values,
    lane: LaneName,
    number: int,
    entry: CheckpointEntry,
    record: CheckpointRecord,
    channels: Sequence[str],
    reducers: Mapping[str, Reducer],
    loads: Loads,
) -> dict[str, Any]:
    """Values of channels that a checkpoint does not hold; `UNSET` where there is none."""
    for name in channels:
        if name not in reducers:
            raise MissingReducerError(
                f"{lane}, checkpoint {record.id!r}: channel {name!r} has to be rebuilt from its writes, and no reducer is known for "
                "it: give the schema (or reducers) with which the thread was written"
            )
    if not channels:
        return {}
    history = reader.history(view, values, lane, number, entry, channels)
    return {
        name: reducers[name](
            UNSET if history[name].seed is None else loads(history[name].seed),  # type: ignore[arg-type]
            [loads(write.value) for write in history[name].writes],
        )
        for name in channels
    }


def table_of(view: View, entry: CheckpointEntry) -> CheckpointRecord:
    """A checkpoint's record, its values still references."""
    return read_record(view, entry.ref)
