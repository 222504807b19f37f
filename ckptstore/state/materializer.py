"""The one fold: a checkpoint's values from its table, its lineage and reducers.

Whoever needs a state goes through here: native threads, the command line, and bindings that bring their framework's reducers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ckptstore.errors import CheckpointLineageIntegrityError, MissingReducerError
from ckptstore.lineage import reader
from ckptstore.lineage.values import Values
from ckptstore.model import LaneName, Typed
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
    channels: Sequence[str] | None = None,
    *,
    strict: bool = False,
) -> dict[str, Any]:
    """The state at a checkpoint: for each channel the stored value, or the nearest one with the owned writes after it.

    Args:
        channels: only these; all that the checkpoint has when None.
        strict: a channel that has to be rebuilt began with a stored value, as in native threads: without one, something is lost.

    Raises:
        MissingReducerError: a channel has to be rebuilt and nobody said how.
        CheckpointLineageIntegrityError: something of its history is lost.
        CorruptionError: something of it is damaged.
    """
    record = reader.checked_record(view, number, entry)
    table = {name: slot for name, slot in record.table.items() if channels is None or name in channels}
    rebuilt = [name for name, slot in table.items() if slot.value is None]
    for name in rebuilt:
        if name not in reducers:
            raise MissingReducerError(
                f"{lane}, checkpoint {record.id!r}: channel {name!r} has to be rebuilt from its writes, and no reducer is known for "
                "it: give the schema (or reducers) with which the thread was written"
            )
    histories = reader.history(view, values, lane, number, entry, rebuilt) if rebuilt else {}
    state = {}
    for name, slot in table.items():
        if slot.value is not None:
            state[name] = loads(values.typed(view, slot.value))
            continue
        history = histories[name]
        if strict and history.seed is None:
            raise CheckpointLineageIntegrityError(
                f"{lane}: broken chain at checkpoint {record.id!r}: channel {name!r} has to be rebuilt, and no ancestor holds its value"
            )
        seed = UNSET if history.seed is None else loads(history.seed)
        value = reducers[name](seed, [loads(write.value) for write in history.writes])
        if value is not UNSET:
            state[name] = value
    return state
