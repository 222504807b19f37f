"""A LangGraph application that fills stores for these tests, and that `show --graph` loads by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt


def merge(state: Any, writes: Sequence[Any]) -> Any:
    """Messages by id."""
    for write in writes:
        state = add_messages(state, write)
    return state


def concat(state: Any, writes: Sequence[Any]) -> list[Any]:
    """Lists one after the other."""
    return [*(state or []), *(item for write in writes for item in write)]


def total(state: Any, writes: Sequence[Any]) -> int:
    """A reducer that nobody could guess."""
    return (state or 0) + sum(writes)


class State(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(merge, list, snapshot_frequency=50)]
    log: Annotated[list[Any], DeltaChannel(concat, list, snapshot_frequency=50)]
    cost: Annotated[int, DeltaChannel(total, int, snapshot_frequency=50)]
    title: str


def answer(state: State) -> dict[str, Any]:
    """One more message."""
    said = len(state["messages"])
    return {
        "messages": [{"role": "ai", "content": f"answer {said}", "id": f"a{said}"}],
        "log": [said],
        "cost": 2,
        "title": f"t{said}",
    }


def approve(state: State) -> dict[str, Any]:
    """Ask a human."""
    return {"log": [interrupt({"question": "send it?"})]}


graph: Any = StateGraph(State)
graph.add_node("answer", answer)
graph.add_node("approve", approve)
graph.add_edge(START, "answer")
graph.add_edge("answer", "approve")

not_a_graph = 7


def make() -> Any:
    """A function that returns the graph."""
    return graph


def broken() -> Any:
    """An application that does not start."""
    raise RuntimeError("no settings")


def make_saver() -> Any:
    """A saver that `fuzz` finds nothing in."""
    return CkptSaver(":memory:")


def question(app: Any, number: int, config: Any) -> None:
    """One turn, up to the question to the human."""
    app.invoke({"messages": [{"role": "user", "content": f"question {number}", "id": f"q{number}"}]}, config)


def fill(folder: Path) -> dict[str, Any]:
    """Two turns, a question that waits, and a fork of the first turn on which the head then is.

    Returns:
        What the application itself reads of each checkpoint, by id.
    """
    with CkptSaver(folder) as saver:
        app = graph.compile(checkpointer=saver)
        config: Any = {
            "configurable": {"thread_id": "chat"},
            "metadata": {"api_key": "sk-never-shown", "nested": {"Token": "t-hidden"}},
        }
        for number in range(2):
            question(app, number, config)
            app.invoke(Command(resume="yes"), config)
        question(app, 2, config)
        first = [state.config for state in app.get_state_history(config) if state.metadata["step"] == 2][-1]
        question(app, 9, {**first, "metadata": config["metadata"]})
        return {
            state.config["configurable"]["checkpoint_id"]: state.values
            for at in (config, first)
            for state in app.get_state_history(at)
        } | {
            item.config["configurable"]["checkpoint_id"]: app.get_state(item.config).values
            for item in saver.list({"configurable": {"thread_id": "chat"}})
        }
