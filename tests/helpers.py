"""What several test files share: configs, checkpoints, small graphs, and damage done to the bytes of a closed store."""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.graph import START, StateGraph

from ckptstore.storage.local import format as fmt

# LangGraph's own types are typed dicts; tests pass plain ones, and wrong ones on purpose.
Config = Any
Tuples = list[CheckpointTuple]
Ids = list[str]


def config(id: str | None = None, ns: str = "", thread: Any = "t") -> Config:
    """A config that names a lane and, with an id, a checkpoint."""
    named = {} if id is None else {"checkpoint_id": id}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, **named}}


def thread(name: str = "t", **more: Any) -> Config:
    """The config a user passes to a graph."""
    return {"configurable": {"thread_id": name, **more}}


def checkpoint(id: str, values: dict[str, Any] | None = None, versions: dict[str, Any] | None = None) -> Any:
    """A checkpoint with this id; channels without a version in `versions` have none."""
    return {**empty_checkpoint(), "id": id, "channel_values": values or {}, "channel_versions": versions or {}}


class Driver:
    """Calls a saver's methods the sync or the async way, so that one test covers both."""

    def __init__(self, saver: CkptSaver, asynchronous: bool) -> None:
        self.saver = saver
        self.asynchronous = asynchronous

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        if not self.asynchronous:
            return getattr(self.saver, name)(*args, **named)

        async def main() -> Any:
            return await getattr(self.saver, "a" + name)(*args, **named)

        return asyncio.run(main())

    def put(
        self,
        at: Any,
        checkpoint: Any,
        metadata: dict[str, Any] | None = None,
        new_versions: dict[str, Any] | None = None,
    ) -> Any:
        return self._call("put", at, checkpoint, metadata or {}, new_versions or {})

    def put_writes(self, at: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self._call("put_writes", at, writes, task_id, task_path)

    def get_tuple(self, at: Any) -> Any:
        return self._call("get_tuple", at)

    def values(self, id: str | None = None, ns: str = "", thread: Any = "t") -> dict[str, Any]:
        """Channel values of a stored checkpoint."""
        found = self.get_tuple(config(id, ns, thread))
        assert found is not None
        return dict(found.checkpoint["channel_values"])

    def list(self, at: Any, **named: Any) -> Tuples:
        if not self.asynchronous:
            return list(self.saver.list(at, **named))

        async def main() -> Tuples:
            return [item async for item in self.saver.alist(at, **named)]

        return asyncio.run(main())

    def ids(self, at: Any, **named: Any) -> Ids:
        return [item.checkpoint["id"] for item in self.list(at, **named)]

    def history(self, id: str | None, channel: str = "m") -> Any:
        return self._call("get_delta_channel_history", config=config(id), channels=[channel])[channel]

    def delete_thread(self, name: Any) -> None:
        self._call("delete_thread", name)

    def delete_for_runs(self, runs: Any) -> None:
        self._call("delete_for_runs", runs)

    def copy_thread(self, source: Any, target: Any) -> None:
        self._call("copy_thread", source, target)

    def prune(self, threads: Any, **named: Any) -> None:
        self._call("prune", threads, **named)


def written(history: Any) -> list[Any]:
    """The values of a channel history's writes."""
    return [write[2] for write in history["writes"]]


# -- graphs ------------------------------------------------------------------------------------------------------------


def concat(current: Any, writes: Sequence[Any]) -> list[Any]:
    """A delta reducer: appends lists, and single items too."""
    out = list(current or [])
    for write in writes:
        out += write if isinstance(write, list) else [write]
    return out


class Delta(TypedDict):
    log: Annotated[list[Any], DeltaChannel(concat, snapshot_frequency=1000)]


class Full(TypedDict):
    log: Annotated[list[Any], operator.add]


MODES: list[Any] = [Full, Delta]


def line(schema: Any, saver: BaseCheckpointSaver[Any], **nodes: Callable[[Any], Any]) -> Any:
    """A graph of these nodes one after the other."""
    graph: Any = StateGraph(schema)
    before = START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    return graph.compile(checkpointer=saver)


def side_by_side(schema: Any, saver: BaseCheckpointSaver[Any], **nodes: Callable[[Any], Any]) -> Any:
    """A graph of these nodes, all in one superstep."""
    graph: Any = StateGraph(schema)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
    return graph.compile(checkpointer=saver)


def says(item: Any) -> Callable[[Any], Any]:
    """A node that appends one item to `log`."""
    return lambda state: {"log": [item]}


# -- bytes of a closed store ---------------------------------------------------------------------------------------------


class FrameAt(NamedTuple):
    """A frame in a segment file."""

    path: Path
    offset: int
    size: int
    lsn: int


def frames(store: Path) -> Iterator[FrameAt]:
    """All frames of a closed store, in order."""
    for path in sorted((store / "segments").glob("*.seg")):
        data = path.read_bytes()
        at = fmt.segment_header_length(data)
        while (header := fmt.decode_frame_header(data[at : at + fmt.FRAME_HEADER])) is not None:
            yield FrameAt(path, at, header.size, header.lsn)
            at += header.size


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Replace bytes inside a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int, mask: int = 0x01) -> None:
    """Flip bits of one byte inside a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def random_text(characters: int) -> str:
    """Text that neither compresses well nor repeats anything."""
    return os.urandom(characters // 2 + 1).hex()[:characters]
