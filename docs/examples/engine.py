"""A small agent on the engine alone, without LangGraph: it plans, acts, fails, tries other ways on branches, and keeps the better one.

Run it with `.venv/bin/python docs/examples/engine.py`. Planner and tools follow a script, nothing is downloaded. Read `SCHEMA` and
`work` first: they are what an agent framework would hold. Everything printed is computed in the run.
"""

from __future__ import annotations

import operator
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ckptstore
from ckptstore import Store, Thread, channels
from ckptstore.errors import ConflictError

TRIP = "trip-to-lisbon"
SPENT = channels.reduce(operator.add, name="sum")
SCHEMA = {
    "goal": channels.last_value(),
    "plan": channels.keyed("task"),  # tasks in their order; writing one again replaces it in its place
    "log": channels.append(),
    "booked": channels.merge(),
    "spent": SPENT,
    "failed": channels.last_value(),
}

Tool = Callable[[], tuple[str, int]]
"""Gives what was booked and its price, or raises `SoldOutError`."""


class SoldOutError(Exception):
    """A tool could not do its work."""


def tools(ledger: Path, deadly: str | None = None) -> Mapping[str, Tool]:
    """The tools of the agent.

    Args:
        ledger: a file to which each tool adds a line when it starts, so that double work would be seen.
        deadly: the tool in which the process is killed.
    """
    prices = {"night train": 140, "bus": 90, "hotel": 260, "hostel": 95, "museum": 20}

    def tool(name: str) -> Tool:
        def run() -> tuple[str, int]:
            with ledger.open("a") as file:
                file.write(name + "\n")
            if name == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            if name not in prices:
                raise SoldOutError(f"no {name} left")
            return f"{name} #{len(name) * 37}", prices[name]

        return run

    return {name: tool(name) for name in ("flight", *prices)}


def planned(*names: str) -> list[dict[str, Any]]:
    """Tasks that are still to do, as items of the plan."""
    return [{"task": name, "done": False} for name in names]


def work(thread: Thread, tools: Mapping[str, Tool]) -> bool:
    """Do what the plan still asks for, from wherever the thread stands: this is the whole of resuming.

    Each task is one step: what the tool gave, the money, and the tick in the plan are stored in one commit or not at all.

    Returns:
        Whether the plan came to its end; False when a tool failed.
    """
    while True:
        task = next((item for item in thread.state()["plan"] if not item["done"]), None)
        if task is None:
            return True
        name = task["task"]
        try:
            number, price = tools[name]()
        except SoldOutError as error:
            thread.step({"log": [f"{name}: {error}"], "failed": name}, metadata={"did": name, "ok": False})
            return False
        thread.step(
            {"plan": [{"task": name, "done": True}], "log": [f"{name}: {number}"], "booked": {name: number}, "spent": price},
            metadata={"did": name, "ok": True},
        )


def opened(store: Store, id: str) -> Thread:
    """A thread that exists. The store remembers its schema; a function it cannot remember, so that is given again."""
    return store.thread(id, schema={"spent": SPENT})


def worker(folder: str, ledger: str, deadly: str) -> None:
    """What runs in the child process that is killed."""
    with ckptstore.open(folder) as store:
        work(opened(store, TRIP), tools(Path(ledger), deadly))


def check(fact: bool, what: str) -> None:
    """Print what was found out, or stop: this script promises nothing that it has not looked at."""
    if not fact:
        sys.exit(f"   NOT SO: {what}")
    print(f"   ok: {what}")


def told(thread: Thread) -> str:
    state = thread.state()
    return f"spent {state.get('spent', 0):>3}, booked: {', '.join(state.get('booked', {})) or 'nothing'}"


def main(folder: Path) -> None:
    path, ledger = folder / "agent.ckpt", folder / "tools.txt"
    store = ckptstore.open(path)

    print(
        "1. The agent plans a trip and starts to work. A step is one task: result, money and the tick in the plan, in one commit."
    )
    thread = store.thread(TRIP, schema=SCHEMA)
    plan = thread.step(
        {"goal": "three days in Lisbon", "plan": planned("museum", "flight", "hotel"), "log": ["planned"]},
        metadata={"did": "plan", "ok": True},
    )
    finished = work(thread, tools(ledger))
    print(f"   {told(thread)}; then: {thread.state()['log'][-1]}")
    check(not finished, "the second task failed, and the failure is stored as well")

    print("\n2. It goes back to the last checkpoint where all was well, and tries two other ways from there, each a branch.")
    good = next(checkpoint for checkpoint in thread.lineage() if checkpoint.metadata["ok"])
    failure = thread.state()
    branches = []
    for way in ("night train", "bus"):
        branch = thread.at(good).fork()
        # A list with Overwrite replaces the plan as a whole, whatever the channel would have made of it.
        todo = [{"task": "museum", "done": True}, *planned(way, "hotel" if way == "bus" else "hostel")]
        branch.step(
            {"plan": channels.Overwrite(todo), "log": [f"instead of the flight: {way}"]}, metadata={"did": "plan", "ok": True}
        )
        branches.append(branch)
    for branch in branches:
        check(work(branch, tools(ledger)), told(branch))
    check(thread.state() == failure, "the thread that failed reads as before")
    logs = [branch.state()["log"] for branch in branches]
    check(
        logs[0][:2] == logs[1][:2] and not set(logs[0][2:]) & set(logs[1][2:]), "the branches share what was before them, no more"
    )

    print("\n3. The cheaper branch becomes the thread's head: what everybody opens from now on. Nothing is copied.")
    better = min(branches, key=lambda branch: int(branch.state()["spent"]))
    better.set_head()
    head = opened(store, TRIP)
    check(head.state() == better.state(), f"a fresh cursor sees it: {told(head)}")
    print("   what it changed since the plan was made:")
    for name, change in head.diff(plan).items():
        print(f"      {name}: {change.before!r:.36} -> {change.after!r:.60}")

    print("\n4. Two agents want to go on from the same head. The second is told, instead of making a branch unawares.")
    rival = opened(store, TRIP)
    # Writing `museum` again makes it a task to do once more, in its old place: before the bus.
    head.step({"plan": planned("bus", "museum"), "log": ["once more"]}, metadata={"did": "plan", "ok": True}, expect_head=True)
    try:
        rival.step({"log": ["me too"]}, metadata={"did": "plan", "ok": True}, expect_head=True)
        refused = False
    except ConflictError:
        refused = True
    check(refused, "its step was refused, and nothing of it is stored")
    store.close()

    print("\n5. A process works on it and gets SIGKILL in the middle of a tool. A new one opens the folder and goes on.")
    child = subprocess.run([sys.executable, __file__, "worker", str(path), str(ledger), "bus"], check=False)
    check(child.returncode == -signal.SIGKILL, f"the process is dead (signal {-child.returncode})")
    before = Counter(ledger.read_text().splitlines())
    store = ckptstore.open(path)
    thread = opened(store, TRIP)
    check(work(thread, tools(ledger)), told(thread))
    runs = Counter(ledger.read_text().splitlines()) - before
    check(dict(runs) == {"bus": 1}, "the tool that was cut off ran again; the task that was finished before the kill did not")

    print("\n6. Clean up: keep the head, and what it needs of its past.")
    state, held = thread.state(), len(list(store.list(TRIP, "")))
    removed = store.prune(TRIP)
    check(removed == held - 1 and opened(store, TRIP).state() == state, f"{held} checkpoints became 1, and it reads as before")
    store.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    else:
        place = tempfile.mkdtemp(prefix="ckptstore-engine-")
        try:
            main(Path(place))
        finally:
            shutil.rmtree(place)
