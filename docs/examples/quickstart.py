"""A support agent on `CkptSaver`: killed with SIGKILL in the middle, picked up by a new process, forked, pruned, and weighed.

Run it with `make quickstart`. Nothing is downloaded: the chat model follows a script. Read `agent` and `converse` first; they are
what an application would hold. Everything printed is computed in the run.
"""

from __future__ import annotations

import operator
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

TURNS = 40
KILLED_IN = 27
REGENERATED = 12
CONFIG: Any = {"configurable": {"thread_id": "user-42"}}

WORDS = "the order left our house on monday and waits at the depot we call the driver and tell you by noon".split()  # noqa: SIM905


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    turn: int
    refunds: Annotated[int, operator.add]


class ScriptedModel:
    """Stands in for a chat model: two tool calls for a question, then an answer; every fifth order asks for a refund."""

    def __init__(self, mood: str) -> None:
        self.mood = mood

    def invoke(self, turn: int, messages: list[AnyMessage]) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            calls = [{"name": name, "args": {"order": turn}, "id": f"{name}-{turn}"} for name in ("find_order", "ask_depot")]
            return AIMessage("", id=f"call-{turn}", tool_calls=calls)
        words = random.Random(f"{self.mood} {turn}").choices(WORDS, k=40)
        return AIMessage(f"({self.mood}) {' '.join(words)}", id=f"answer-{turn}-{self.mood}")


def agent(saver: BaseCheckpointSaver[Any], ledger: Path, mood: str = "polite", stall_in: int | None = None) -> Any:
    """The graph: model -> two tools side by side -> model -> perhaps a human's approval.

    Args:
        ledger: a file to which each tool adds a line when it starts to run, so that double work would be seen.
        stall_in: turn in which the depot does not answer, so that the process can be killed at an interesting moment.
    """
    model = ScriptedModel(mood)

    def think(state: State) -> Any:
        return {"messages": [model.invoke(state["turn"], state["messages"])]}

    def tool(call: Any) -> Any:
        with ledger.open("a") as file:
            file.write(call["id"] + "\n")
        if call["name"] == "ask_depot" and call["args"]["order"] == stall_in:
            time.sleep(600)
        found = random.Random(call["id"]).choices(WORDS, k=25)
        return {"messages": [ToolMessage(" ".join(found), id=f"result-{call['id']}", tool_call_id=call["id"])]}

    def approve(state: State) -> Any:
        answer = interrupt(f"refund order {state['turn']}?")
        return {"refunds": 1 if answer == "yes" else 0}

    def after_thinking(state: State) -> Any:
        last = state["messages"][-1]
        if isinstance(last, AIMessage) and last.tool_calls:
            return [Send("tool", call) for call in last.tool_calls]
        return "approve" if state["turn"] % 5 == 0 else END

    graph: Any = StateGraph(State)
    graph.add_node("think", think)
    graph.add_node("tool", tool)
    graph.add_node("approve", approve)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", after_thinking, ["tool", "approve", END])
    graph.add_edge("tool", "think")
    graph.add_edge("approve", END)
    return graph.compile(checkpointer=saver)


def converse(graph: Any) -> None:
    """Bring the thread to its last turn, from wherever it stands: this is the whole of resuming."""
    state = graph.get_state(CONFIG)
    if state.next and not state.interrupts:
        graph.invoke(None, CONFIG, durability="sync")
    while True:
        state = graph.get_state(CONFIG)
        if state.interrupts:
            graph.invoke(Command(resume="yes"), CONFIG, durability="sync")
            continue
        turn = state.values.get("turn", 0) + 1
        if turn > TURNS:
            return
        question = HumanMessage(f"where is order {turn}? it was promised for last week", id=f"question-{turn}")
        graph.invoke({"messages": [question], "turn": turn}, CONFIG, durability="sync")


def regenerate(saver: BaseCheckpointSaver[Any], ledger: Path) -> Any:
    """Answer an old question again: go back to the checkpoint after its tools ran, and go on from there in another mood."""
    graph = agent(saver, ledger, mood="brief")
    old = next(
        state
        for state in graph.get_state_history(CONFIG)
        if state.values.get("turn") == REGENERATED
        and state.next == ("think",)
        and isinstance(state.values["messages"][-1], ToolMessage)
    )
    return graph.invoke(None, old.config, durability="sync")


def worker(folder: str, ledger: str, stall_in: int | None) -> None:
    """What runs in the child processes."""
    with CkptSaver(folder) as saver:
        converse(agent(saver, Path(ledger), stall_in=stall_in))


def start_worker(folder: Path, ledger: Path, *stall_in: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "worker", str(folder), str(ledger), *map(str, stall_in)])


def kill_in_the_middle(folder: Path, child: subprocess.Popen[bytes]) -> None:
    """Watch the store from outside, and kill its writer when one of two tools of the turn has finished and the other has not."""

    def wait() -> None:
        if child.poll() is not None:
            sys.exit("the worker ended before it could be killed")
        time.sleep(0.01)

    while not (folder / "STORE").exists():
        wait()
    with CkptSaver(folder, read_only=True) as outside:
        while not between_two_tools(outside.get_tuple(CONFIG)):
            wait()
    child.send_signal(signal.SIGKILL)
    child.wait()


def between_two_tools(found: CheckpointTuple | None) -> bool:
    """Whether the turn has come, both its tools were started, and the writes of one are stored."""
    if found is None or found.checkpoint["channel_values"].get("turn") != KILLED_IN:
        return False
    started = found.checkpoint["channel_values"].get("__pregel_tasks", [])
    finished = [task for task, channel, _ in found.pending_writes or [] if channel == "messages"]
    return len(started) == 2 and len(finished) == 1


def texts(state: Any) -> list[str]:
    return [str(message.content) for message in state.values["messages"]]


def size(path: Path) -> int:
    """Bytes that files take, of one file or of a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(min(file.stat().st_size, file.stat().st_blocks * 512) for file in files if file.is_file())


def check(fact: bool, what: str) -> None:
    """Print what was found out, or stop: this script promises nothing that it has not looked at."""
    if not fact:
        sys.exit(f"   NOT SO: {what}")
    print(f"   ok: {what}")


def main(folder: Path) -> None:
    store, ledger = folder / "chat.ckpt", folder / "tools.txt"

    print(f"1. An agent answers {TURNS} questions. A turn: model, two tools side by side, model; every fifth waits for a human.")
    print(
        f"   It runs on CkptSaver in a process of its own. In turn {KILLED_IN} that gets SIGKILL, with one tool done and one not."
    )
    child = start_worker(store, ledger, KILLED_IN)
    kill_in_the_middle(store, child)
    check(child.returncode == -signal.SIGKILL, f"the process is dead (signal {-child.returncode})")

    print("\n2. A new process opens the same folder and goes on.")
    start_worker(store, ledger).wait()
    runs = Counter(ledger.read_text().split())
    twice = [call for call, count in runs.items() if count > 1]
    with CkptSaver(store) as saver:
        graph = agent(saver, ledger)
        live = graph.get_state(CONFIG)
        check(live.values["turn"] == TURNS, f"all {TURNS} turns are there, {len(texts(live))} messages")
        check(
            live.values["refunds"] == TURNS // 5, f"{live.values['refunds']} refunds, each approved by a human, each counted once"
        )
        check(twice == [f"ask_depot-{KILLED_IN}"], f"of {len(runs)} tool calls one ran twice: {twice[0]}, which SIGKILL cut off")
        check(runs[f"find_order-{KILLED_IN}"] == 1, f"find_order-{KILLED_IN}, which had finished beside it, did not run again")

        print(f"\n3. Answer {REGENERATED} is generated again, from the checkpoint in front of it: a fork of the thread.")
        before = [(state.config, texts(state)) for state in graph.get_state_history(CONFIG)]
        fork = regenerate(saver, ledger)
        old, new = texts(live)[len(fork["messages"]) - 1], fork["messages"][-1].content
        print(f"   turns 1 to {REGENERATED - 1} --+-- {old[:44]}... -- turns {REGENERATED + 1} to {TURNS}")
        print(f"   {' ' * len(f'turns 1 to {REGENERATED - 1} --')}+-- {new[:44]}...")
        check(
            all(texts(graph.get_state(config)) == messages for config, messages in before),
            f"the old branch is exact: all its {len(before)} checkpoints read as before",
        )
        check([m.content for m in fork["messages"]] == texts(graph.get_state(CONFIG)), "the new branch reads as it ran")
    ours = size(store)

    print("\n4. The same turns and the same fork on SqliteSaver, and what both hold on disk.")
    with SqliteSaver.from_conn_string(str(folder / "chat.sqlite")) as other:
        converse(agent(other, folder / "tools-sqlite.txt"))
        check(texts(agent(other, ledger).get_state(CONFIG)) == texts(live), "both hold the same conversation")
        regenerate(other, folder / "tools-sqlite.txt")
    theirs = sum(size(path) for path in folder.glob("chat.sqlite*"))
    print(f"   SqliteSaver  {theirs:>12,} bytes")
    print(f"   CkptSaver    {ours:>12,} bytes, log and index: {ours / theirs:.0%} of it")

    print("\n5. Prune: keep the head of the thread, drop every checkpoint behind it.")
    with CkptSaver(store) as saver:
        graph = agent(saver, ledger)
        head = texts(graph.get_state(CONFIG))
        held = len(list(saver.list(CONFIG)))
        saver.prune([CONFIG["configurable"]["thread_id"]])
        check(len(list(saver.list(CONFIG))) == 1, f"{held} checkpoints became 1")
        check(texts(graph.get_state(CONFIG)) == head, "the head reads as before")
    print("   Dead bytes stay in the log until compaction, which is not built yet. `ckpt inspect` shows them:\n")
    shown = subprocess.run(
        [sys.executable, "-m", "ckptstore.cli", "inspect", str(store)], capture_output=True, text=True, check=True
    )
    print("".join(f"   {line}".rstrip() + "\n" for line in shown.stdout.splitlines()), end="")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else None)
    else:
        work = tempfile.mkdtemp(prefix="ckptstore-quickstart-")
        try:
            main(Path(work))
        finally:
            shutil.rmtree(work)
