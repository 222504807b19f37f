"""Train the zstd dictionary that ships with the package, on records of generated LangGraph runs. Never on anybody's data.

Runs small graphs with different shapes (full and delta channels, tools, interrupts, subgraph namespaces, metadata as servers add it) on
a store in memory, takes the raw bytes of every record body, and trains on them. A trained dictionary is part of the format: once
released, a file is never changed; a better one gets a new number and a new codec tag.

    python bench/train_dictionary.py ckptstore/codec/dictionary-1.zdict
"""

from __future__ import annotations

import operator
import random
import sys
import uuid
from pathlib import Path
from typing import Annotated, Any, TypedDict

import zstandard
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.types import Command, interrupt

from ckptstore.codec.records import PATCH, Kind

SIZE = 16 * 1024
SEED = 20261201
OPENINGS = [
    "Sure! Here is what I found:",
    "I'd be happy to help with that.",
    "Let me look that up for you.",
    "Could you please explain how",
    "Can you write a function that",
    "What is the difference between",
    "Thanks, that works. Now please",
    "Based on the search results, ",
    "I'm sorry, but I could not find",
    "The following example shows how to",
]
WORDS = """
please could you the a of and to in is it that for on with as this be are was by an or from at not have can will would
about which when there what how many some other time user question answer result data file table value number error
message code function class list name type string test case order customer account city weather temperature price
report summary week day today tomorrow next first last new old small large different important possible because
however therefore also only then into more than after before between during without within should need want make use
find show check create update delete run add
""".split()  # noqa: SIM905
TOOLS = ["search", "get_weather", "run_sql", "read_file", "calculator", "send_email", "fetch_url", "python"]


def sentence(rng: random.Random, words: int) -> str:
    text = " ".join(rng.choice(WORDS) for _ in range(words))
    return f"{rng.choice(OPENINGS)} {text}." if rng.random() < 0.4 else text


def tool_output(rng: random.Random) -> str:
    rows = [
        f'{{"title": "{sentence(rng, 5)}", "url": "https://example.org/{rng.randrange(10**6)}", "content": "{sentence(rng, 12)}", '
        f'"score": {rng.random():.4f}, "published": "202{rng.randrange(4, 7)}-0{rng.randrange(1, 9)}-1{rng.randrange(9)}T08:30:00Z"}}'
        for _ in range(rng.randrange(1, 5))
    ]
    return f'{{"status": "success", "results": [{", ".join(rows)}]}}'


def answer(rng: random.Random) -> AIMessage:
    usage = {"input_tokens": rng.randrange(9000), "output_tokens": rng.randrange(900), "total_tokens": rng.randrange(9900)}
    message = AIMessage(content=sentence(rng, rng.randrange(5, 60)), id=f"run-{uuid.UUID(int=rng.getrandbits(128))}")
    if rng.random() < 0.6:
        message.response_metadata = {
            "model_name": "gpt-4o-mini",
            "finish_reason": "stop",
            "system_fingerprint": None,
            "logprobs": None,
        }
        message.usage_metadata = usage  # type: ignore[assignment]
    if rng.random() < 0.4:
        call = {"name": rng.choice(TOOLS), "args": {"query": sentence(rng, 4)}, "id": f"call_{rng.getrandbits(96):024x}"}
        message.tool_calls = [{**call, "type": "tool_call"}]  # type: ignore[list-item]
    return message


def replies(rng: random.Random) -> list[AnyMessage]:
    message = answer(rng)
    found: list[AnyMessage] = [message]
    for call in message.tool_calls:
        found.append(ToolMessage(content=tool_output(rng), name=call["name"], tool_call_id=str(call["id"])))
    return found


def graph(rng: random.Random, delta: bool) -> StateGraph[Any]:
    if delta:

        class State(TypedDict, total=False):
            messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, list, snapshot_frequency=10)]
            todos: list[dict[str, str]]
            title: str
            steps: Annotated[list[str], operator.add]
    else:

        class State(TypedDict, total=False):  # type: ignore[no-redef]
            messages: Annotated[list[AnyMessage], add_messages]
            todos: list[dict[str, str]]
            title: str
            steps: Annotated[list[str], operator.add]

    def agent(state: Any) -> Any:
        return {"messages": replies(rng), "steps": [rng.choice(TOOLS)]}

    def tools(state: Any) -> Any:
        if rng.random() < 0.2:
            return {
                "title": sentence(rng, 4),
                "todos": [{"content": sentence(rng, 6), "status": rng.choice(["pending", "completed"])}],
            }
        return {}

    def review(state: Any) -> Any:
        if rng.random() < 0.1:
            interrupt({"question": sentence(rng, 5), "options": ["approve", "reject", "edit"]})
        return {}

    builder: StateGraph[Any] = StateGraph(State)
    for name, node in (("agent", agent), ("tools", tools), ("human_review", review)):
        builder.add_node(name, node)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "tools")
    builder.add_edge("tools", "human_review")
    builder.add_edge("human_review", END)
    return builder


def samples(rng: random.Random, runs: int) -> list[bytes]:
    """Raw bodies of all records of some generated threads."""
    found = []
    for run in range(runs):
        with CkptSaver(":memory:") as saver:
            app = graph(rng, delta=run % 2 == 1).compile(checkpointer=saver)
            config: Any = {"configurable": {"thread_id": str(uuid.UUID(int=rng.getrandbits(128)))}}
            if run % 3 == 0:
                config["configurable"]["user_id"] = f"user-{rng.randrange(10**5)}"
                config["metadata"] = {"assistant_id": str(uuid.UUID(int=rng.getrandbits(128))), "graph_id": "agent"}
            if run % 4 == 0:
                app.invoke({"messages": [SystemMessage("You are a helpful assistant. " + sentence(rng, 20))]}, config)
            for _ in range(rng.randrange(2, 9)):
                text = sentence(rng, rng.randrange(3, 40))
                identity = str(uuid.UUID(int=rng.getrandbits(128)))
                state = app.invoke({"messages": [HumanMessage(text, id=identity)]}, config, durability="sync")
                if "__interrupt__" in state:
                    app.invoke(Command(resume=rng.choice(["approve", "reject"])), config, durability="sync")
            found += bodies(saver)
    return found


def bodies(saver: CkptSaver) -> list[bytes]:
    storage = saver.store._storage
    last = storage.stats().last_lsn
    found = []
    with storage.view() as view:
        for lsn in range(1, last + 1):
            frame = view.frame(lsn)
            for ordinal, entry in enumerate(frame.entries):
                if entry[0] in (Kind.CHECKPOINT, Kind.WRITES) or (entry[0] == Kind.VALUE and entry[1] != PATCH):
                    raw = frame.raw(ordinal)
                    if 48 <= len(raw) <= 8192:
                        found.append(raw)
    return found


def main() -> None:
    rng = random.Random(SEED)
    train, test = samples(rng, 160), samples(rng, 16)
    dictionary = zstandard.train_dictionary(SIZE, train, level=3)
    Path(sys.argv[1]).write_bytes(dictionary.as_bytes())
    plain, tuned = zstandard.ZstdCompressor(level=3), zstandard.ZstdCompressor(level=3, dict_data=dictionary)
    print(f"{len(train)} samples for training, {len(test)} for testing, {sum(map(len, test))} bytes")
    print(f"without: {sum(len(plain.compress(raw)) for raw in test)}, with: {sum(len(tuned.compress(raw)) for raw in test)}")


if __name__ == "__main__":
    main()
