"""Known faults of LangGraph's savers, tried out on the version that is installed. Loaded by `ckpt doctor` alone; everything is in memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypedDict


class Probe(NamedTuple):
    """One known fault."""

    fault: str
    with_stock: bool
    """Whether it shows with LangGraph's in-memory saver."""
    with_ckptstore: bool
    """Whether it shows with `CkptSaver`."""


def probe() -> list[Probe]:
    """Try each known fault with both savers.

    Raises:
        ImportError: langgraph is not installed.
    """
    from langgraph.checkpoint.ckptstore import CkptSaver
    from langgraph.checkpoint.memory import InMemorySaver

    faults: list[tuple[str, Callable[[Any], bool]]] = [
        ("a fork of a delta thread holds writes of the branch it left", _fork_holds_other_branch),
        ("a late write on an old checkpoint changes the state after it", _late_write_changes_history),
        ("Overwrite as the first write is stored as the value", _overwrite_is_stored),
    ]
    return [Probe(fault, shows(InMemorySaver()), shows(CkptSaver(":memory:"))) for fault, shows in faults]


def _concat(items: Any, writes: Sequence[Any]) -> list[Any]:
    return [*(items or []), *(item for write in writes for item in write)]


def _delta_graph(saver: Any) -> Any:
    from langgraph.channels.delta import DeltaChannel
    from langgraph.graph import START, StateGraph

    # No class: langgraph is loaded here and not before, and hints of a class inside a function cannot be looked up.
    state = TypedDict("state", {"log": Annotated[list[Any], DeltaChannel(_concat, list, snapshot_frequency=1000)]})  # noqa: UP013
    builder: Any = StateGraph(state)
    builder.add_node("answer", lambda now: {"log": [f"a{now['log'][-1][1:]}"]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


_CONFIG: dict[str, Any] = {"configurable": {"thread_id": "probe"}}


def _fork_holds_other_branch(saver: Any) -> bool:
    graph = _delta_graph(saver)
    graph.invoke({"log": ["q1"]}, _CONFIG)
    before = graph.get_state(_CONFIG).config
    graph.invoke({"log": ["q2"]}, _CONFIG)
    graph.invoke({"log": ["q3"]}, before)
    return bool(graph.get_state(_CONFIG).values["log"] != ["q1", "a1", "q3", "a3"])


def _late_write_changes_history(saver: Any) -> bool:
    graph = _delta_graph(saver)
    graph.invoke({"log": ["q1"]}, _CONFIG)
    parent = graph.get_state(_CONFIG).parent_config
    saver.put_writes(parent, [("log", ["late"])], "00000000-0000-0000-0000-0000000000ff")
    return bool(graph.get_state(_CONFIG).values["log"] != ["q1", "a1"])


def _overwrite_is_stored(saver: Any) -> bool:
    from langgraph.graph import START, StateGraph
    from langgraph.types import Overwrite

    state = TypedDict("state", {"items": Annotated[list[Any] | None, operator.add]})  # noqa: UP013
    builder: Any = StateGraph(state)
    builder.add_node("only", lambda now: {})
    builder.add_edge(START, "only")
    graph = builder.compile(checkpointer=saver)
    graph.update_state(_CONFIG, {"items": Overwrite(["x"])}, as_node="only")
    return bool(graph.get_state(_CONFIG).values.get("items") != ["x"])
