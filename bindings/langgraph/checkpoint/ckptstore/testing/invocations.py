"""Neutral calls as calls of LangGraph's saver interface, each as data: so that what is made is what is printed."""

from __future__ import annotations

from typing import Any, NamedTuple

from ckptstore.testing.calls import Copy, Delete, DeleteForRuns, Get, History, Listing, Prune, Put, PutWrites

SaverCall = Put | PutWrites | Get | History | Listing | Prune | Copy | Delete | DeleteForRuns
"""The calls that a saver's interface has methods for."""

OPTIONAL = {"Delete": "delete_thread", "DeleteForRuns": "delete_for_runs", "Copy": "copy_thread", "Prune": "prune"}
"""Calls that a saver may lack, and their methods: LangGraph runs graphs without them."""

MADE_AT = "2026-01-01T00:00:00+00:00"


class Invocation(NamedTuple):
    """A method with its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = {}  # noqa: RUF012  never changed


class Writers:
    """The `metadata` of each run's configs. It is empty, and one and the same object in all calls of a run, as LangGraph does it."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}

    def config(self, thread: str, ns: str, id: str | None, writer: str | None) -> dict[str, Any]:
        named: dict[str, Any] = {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}
        return named if writer is None else {**named, "metadata": self._known.setdefault(writer, {})}

    def name(self, metadata: dict[str, Any]) -> str:
        return next(name for name, known in self._known.items() if known is metadata)


def invocation(call: SaverCall, writers: Writers) -> Invocation:
    """The call of the sync interface; the async one has an `a` in front."""
    match call:
        case Put():
            checkpoint = {
                "v": 4,
                "ts": MADE_AT,
                "id": call.id,
                "channel_values": call.values,
                "channel_versions": call.versions,
                "versions_seen": call.seen,
                "updated_channels": None,
            }
            changed = {channel: call.versions[channel] for channel in call.changed}
            config = writers.config(call.thread, call.ns, call.parent, call.writer)
            return Invocation("put", (config, checkpoint, call.metadata, changed))
        case PutWrites():
            config = writers.config(call.thread, call.ns, call.target, call.writer)
            return Invocation("put_writes", (config, list(call.writes), call.task, call.path))
        case Get():
            return Invocation("get_tuple", (writers.config(call.thread, call.ns, call.id, None),))
        case History():
            config = writers.config(call.thread, call.ns, call.id, None)
            return Invocation("get_delta_channel_history", (), {"config": config, "channels": list(call.channels)})
        case Listing():
            return _listing(call)
        case Prune():
            return Invocation("prune", ([call.thread],))
        case Copy():
            return Invocation("copy_thread", (call.thread, call.to))
        case Delete():
            return Invocation("delete_thread", (call.thread,))
        case DeleteForRuns():
            return Invocation("delete_for_runs", (list(call.runs),))


def _listing(call: Listing) -> Invocation:
    where = {"thread_id": call.thread, "checkpoint_ns": call.ns, "checkpoint_id": call.id}
    config = {"configurable": {key: value for key, value in where.items() if value is not None}}
    named: dict[str, Any] = {}
    if call.filter:
        named["filter"] = call.filter
    if call.before is not None:
        named["before"] = {"configurable": {"checkpoint_id": call.before}}
    if call.limit is not None:
        named["limit"] = call.limit
    return Invocation("list", (config if call.thread is not None else None,), named)
