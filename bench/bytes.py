"""Bytes on disk for a conversation: 500 one-message updates of 128 characters, `CkptSaver` beside SqliteSaver, in one run.

    python bench/bytes.py            prints the table
    python bench/bytes.py --write    also writes docs/results/bytes.json, and the table in README.md and docs/benchmarks.md

The graph's one node does nothing, so an update is one input message. Text is made of words, not of noise: it compresses as chat does.
A row counts only if both savers read the same 500 messages back. Sizes are taken after both are closed.
"""

from __future__ import annotations

import json
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

UPDATES = 500
CHARACTERS = 128
SNAPSHOT_FREQUENCY = 10

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "results" / "bytes.json"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- bench/bytes.py writes this table -->\n", "<!-- end -->"

CONFIG: Any = {"configurable": {"thread_id": "chat"}}
WORDS = "the of and to in is that for it was with be by on not at are this have from or had they which one you were all".split()  # noqa: SIM905


def extend(messages: list[Any], writes: Sequence[Any]) -> list[Any]:
    """Delta reducer: every write is a list of messages."""
    return [*(messages or []), *(message for write in writes for message in write)]


class Full(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Delta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(extend, list, snapshot_frequency=SNAPSHOT_FREQUENCY)]


MODES: dict[str, Any] = {"full": Full, "delta": Delta}
SAVERS: dict[str, Callable[[str], AbstractContextManager[BaseCheckpointSaver[Any]]]] = {
    "ckptstore": CkptSaver,
    "sqlite": SqliteSaver.from_conn_string,
}


def text(source: random.Random) -> str:
    """A message: words and now and then a number, cut to `CHARACTERS`."""
    words = [source.choice(WORDS) + (str(source.randrange(100)) if source.random() < 0.2 else "") for _ in range(CHARACTERS)]
    return " ".join(words)[:CHARACTERS]


def measure(mode: str, name: str, folder: Path) -> tuple[int, list[str]]:
    """(bytes on disk after close, messages read back) of one saver in one mode."""
    path = folder / f"{mode}-{name}"
    source = random.Random(1)
    with SAVERS[name](str(path)) as saver:
        builder: Any = StateGraph(MODES[mode])
        builder.add_node("nothing", lambda state: {})
        builder.add_edge(START, "nothing")
        graph = builder.compile(checkpointer=saver)
        for number in range(UPDATES):
            graph.invoke({"messages": [HumanMessage(text(source), id=f"m{number}")]}, CONFIG, durability="sync")
        read = [message.content for message in graph.get_state(CONFIG).values["messages"]]
    return sum(on_disk(found) for found in folder.glob(path.name + "*")), read


def on_disk(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = [file for file in (path, *path.rglob("*")) if file.is_file()]
    # Allocated blocks where the file is sparse, its length where the last block is not full.
    return sum(min(file.stat().st_size, file.stat().st_blocks * 512) for file in files)


def run() -> dict[str, Any]:
    """All rows, and what they were measured with."""
    rows = {}
    for mode in MODES:
        with tempfile.TemporaryDirectory() as folder:
            results = {name: measure(mode, name, Path(folder)) for name in SAVERS}
        source = random.Random(1)
        expected = [text(source) for _ in range(UPDATES)]
        for name, (_, read) in results.items():
            if read != expected:
                sys.exit(f"{mode}: {name} reads another state back; nothing is reported")
        rows[mode] = {name: size for name, (size, _) in results.items()}
    packages = ("ckptstore", "langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite")
    return {
        "updates": UPDATES,
        "characters": CHARACTERS,
        "snapshot_frequency": SNAPSHOT_FREQUENCY,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "bytes": rows,
    }


def table(result: dict[str, Any]) -> str:
    """The result as the table in README.md."""
    lines = ["| mode | `CkptSaver` | SqliteSaver | share |", "|---|---:|---:|---:|"]
    for mode, sizes in result["bytes"].items():
        lines.append(f"| {mode} | {sizes['ckptstore']:,} | {sizes['sqlite']:,} | {sizes['ckptstore'] / sizes['sqlite']:.1%} |")
    return "\n".join(lines) + "\n"


def write(result: dict[str, Any]) -> None:
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    for page in (README, PAGE):
        replace_table(page, BEGIN, table(result))


def replace_table(page: Path, begin: str, new: str) -> None:
    """Put a table between its marks in a page."""
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(END)
    page.write_text(before + begin + new + END + after)


if __name__ == "__main__":
    found = run()
    print(table(found), end="")
    if sys.argv[1:] == ["--write"]:
        write(found)
