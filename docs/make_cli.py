"""Fills in what `ckpt` prints in docs/cli.md: runs each `$ ckpt ...` of its console blocks on a small store.

python docs/make_cli.py            rewrites docs/cli.md
python docs/make_cli.py --check    only says whether it would change, apart from figures, ids and times
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.types import interrupt

from ckptstore.cli.app import run

PAGE = Path(__file__).resolve().parent / "cli.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
SHOWN_AS = "/home/you"

SAVER = """\
from langgraph.checkpoint.ckptstore import CkptSaver


def make_saver():
    return CkptSaver(":memory:")
"""
"""What `ckpt fuzz` is given."""


def merge(messages: Any, writes: Any) -> Any:
    """Messages by id."""
    for write in writes:
        messages = add_messages(messages, write)
    return messages


class Orders(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(merge, list)]
    cost: Annotated[int, DeltaChannel(lambda cost, writes: (cost or 0) + sum(writes), int)]


def orders(saver: CkptSaver) -> None:
    """A thread in delta mode that asks a human, and is then asked something else at an earlier point."""

    def answer(state: Orders) -> dict[str, Any]:
        number = len(state["messages"])
        return {"messages": [{"role": "ai", "content": f"answer {number}", "id": f"a{number}"}], "cost": 2}

    def approve(state: Orders) -> dict[str, Any]:
        interrupt("Send it?")
        return {}

    builder: Any = StateGraph(Orders)
    builder.add_node("answer", answer)
    builder.add_node("approve", approve)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "approve")
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "order-7"}, "metadata": {"user": "ada", "api_key": "sk-test"}}
    graph.invoke({"messages": [{"role": "user", "content": "two pens", "id": "q1"}]}, config)
    before = list(graph.get_state_history(config))[-1].config
    graph.invoke({"messages": [{"role": "user", "content": "ten pens", "id": "q2"}]}, {**before, "metadata": config["metadata"]})


def fill(folder: str) -> None:
    """Three threads in full mode, of which one is pruned, and one in delta mode with a fork."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [("ai", f"answer {len(state['messages'])}: " + "all is well " * 20)]})
    builder.add_edge(START, "answer")
    with CkptSaver(folder) as saver:
        graph = builder.compile(checkpointer=saver)
        for thread, turns in (("user-42", 12), ("user-43", 3), ("user-44", 6)):
            for turn in range(turns):
                graph.invoke({"messages": [("user", f"question {turn}")]}, {"configurable": {"thread_id": thread}})
        saver.prune(["user-44"])
        orders(saver)


def output(command: str, folder: str) -> str:
    """What a command prints, and its exit code where that is not 0."""
    _, *arguments = shlex.split(command)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run(arguments)
    text = printed.getvalue().replace(os.path.realpath(folder), SHOWN_AS).replace(platform.release(), "6.8.0")
    return text if code == 0 else f"{text}(exit code {code})\n"


def filled(page: str) -> str:
    """The page with the output of every command in it."""

    def block(found: re.Match[str]) -> str:
        commands = [line[2:] for line in found[1].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"$ {command}\n{output(command, folder)}" for command in commands) + "```"

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        fill("chat.ckpt")
        Path("app.py").write_text(SAVER)
        return BLOCK.sub(block, page)


def masked(page: str) -> list[str]:
    """The lines of the page without what differs from run to run, and without their order: the kinds stand by size."""
    page = re.sub(r"^filesystem .*", "filesystem", page, flags=re.MULTILINE)
    return sorted(re.sub(r" +", " ", re.sub(r"[0-9a-f-]{8,}|[\d,]+", "#", page)).splitlines())


if __name__ == "__main__":
    before = PAGE.read_text()
    after = filled(before)
    if sys.argv[1:] == ["--check"]:
        sys.exit(masked(before) != masked(after))
    PAGE.write_text(after)
