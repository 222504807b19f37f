"""Reading a state with the application's own graph: the one thing in the command that loads code of others, and only when asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckptstore.cli.loading import LoadError, attribute
from ckptstore.errors import CkptStoreError
from ckptstore.inspect.opened import opened
from ckptstore.inspect.show import GRAPH, ChannelView, CheckpointView, seen


class GraphError(CkptStoreError, RuntimeError):
    """What was named is no graph, or it cannot read the checkpoint."""


def read_with_graph(store: Path, view: CheckpointView, name: str, lock_timeout: float) -> CheckpointView:
    """The same view, with the values of the graph's channels as the graph reads them.

    Args:
        name: `module:attribute`: a graph, compiled or not, or a function without arguments that returns one.

    Raises:
        InvalidArgumentError: `name` is not of that form.
        LoadError, GraphError: see there.
    """
    graph = _loaded(name)
    from langgraph.checkpoint.ckptstore import CkptSaver

    config: Any = {"configurable": {"thread_id": view.thread, "checkpoint_ns": view.ns, "checkpoint_id": view.id}}
    with opened(store, lock_timeout) as here:
        saver = CkptSaver.from_store(here.store)
        try:
            bound = graph.compile(checkpointer=saver) if hasattr(graph, "compile") else graph.copy({"checkpointer": saver})
            values = bound.get_state(config).values
            read = {channel: seen(saver.serde.dumps_typed(value)) for channel, value in dict(values).items()}
        except Exception as error:
            raise GraphError(f"--graph={name}: it does not read this checkpoint: {type(error).__name__}: {error}") from error
    channels = [
        ChannelView(channel.name, channel.version, GRAPH, read[channel.name], None, []) if channel.name in read else channel
        for channel in view.channels
    ]
    return view._replace(channels=channels)


def _loaded(name: str) -> Any:
    found = attribute(f"--graph={name}", name, "app.agent:graph")
    if callable(found) and not hasattr(found, "get_state") and not hasattr(found, "compile"):
        try:
            found = found()
        except Exception as error:
            raise LoadError(f"--graph={name}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not hasattr(found, "get_state") and not hasattr(found, "compile"):
        raise GraphError(f"--graph={name}: a {type(found).__name__} is no graph")
    return found
