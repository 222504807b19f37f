"""Bytes on disk as a conversation grows: 100, 500, 1000 and 2000 one-message updates, in both channel modes, of three kinds of content.

    python bench/growth.py            prints the table
    python bench/growth.py --write    also writes docs/results/growth.json, and the table in docs/benchmarks.md

Content: `text`, messages of 128 characters; `tools`, every fifth message is a tool's output of 4 to 64 KB; `images`, every tenth message
carries a picture in base64, 20 to 60 KB, which no compressor shrinks below three quarters. One thread a row; it is closed to be measured,
and goes on. A row counts only if what is read back at the end is what was sent. Takes some minutes: LangGraph serializes the whole state
at each step in full mode.
"""

from __future__ import annotations

import base64
import json
import math
import platform
import random
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.graph import START, StateGraph

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bytes import CONFIG, MODES, ROOT, SNAPSHOT_FREQUENCY, on_disk, replace_table, text

RESULT = ROOT / "docs" / "results" / "growth.json"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- bench/growth.py writes this table -->\n"
UPDATES = (100, 500, 1000, 2000)


def chat(rng: random.Random, number: int) -> AnyMessage:
    return (AIMessage if number % 2 else HumanMessage)(text(rng), id=f"m{number}")


def tools(rng: random.Random, number: int) -> AnyMessage:
    if number % 5 != 4:
        return chat(rng, number)
    size = int(4096 * 16 ** rng.random())
    rows: list[str] = []
    length = 0
    while length < size:
        rows.append(json.dumps({"id": rng.randrange(10**6), "title": text(rng)[:60], "score": round(rng.random(), 3)}))
        length += len(rows[-1]) + 1
    return ToolMessage("\n".join(rows)[:size], tool_call_id=f"call{number}", id=f"m{number}")


def images(rng: random.Random, number: int) -> AnyMessage:
    if number % 10 != 9:
        return chat(rng, number)
    picture = base64.b64encode(rng.randbytes(rng.randrange(15_000, 45_000))).decode()
    parts: list[str | dict[Any, Any]] = [
        {"type": "text", "text": text(rng)},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
    ]
    return HumanMessage(parts, id=f"m{number}")


CONTENT: dict[str, Callable[[random.Random, int], AnyMessage]] = {"text": chat, "tools": tools, "images": images}


def measure(mode: str, content: str, path: Path) -> dict[str, dict[str, int]]:
    """Bytes on disk, and characters sent, after each number of updates."""
    builder: Any = StateGraph(MODES[mode])
    builder.add_node("nothing", lambda state: {})
    builder.add_edge(START, "nothing")
    rng = random.Random(1)
    sent: list[AnyMessage] = []
    characters = 0
    found = {}
    for updates in UPDATES:
        with CkptSaver(str(path), durability="process") as saver:
            graph = builder.compile(checkpointer=saver)
            while len(sent) < updates:
                message = CONTENT[content](rng, len(sent))
                sent.append(message)
                characters += len(message.content) if isinstance(message.content, str) else len(json.dumps(message.content))
                graph.invoke({"messages": [message]}, CONFIG)
        found[str(updates)] = {"bytes": on_disk(path), "characters": characters}
    with CkptSaver(str(path), durability="process") as saver:
        read = builder.compile(checkpointer=saver).get_state(CONFIG).values["messages"]
    if read != sent:
        sys.exit(f"{mode}, {content}: another state is read back; nothing is reported")
    return found


def run() -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for content in CONTENT:
        for mode in MODES:
            with tempfile.TemporaryDirectory() as folder:
                rows.setdefault(content, {})[mode] = measure(mode, content, Path(folder) / "s")
            print(content, mode, rows[content][mode], file=sys.stderr, flush=True)
    packages = ("ckptstore", "langgraph", "langgraph-checkpoint")
    return {
        "snapshot_frequency": SNAPSHOT_FREQUENCY,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "growth": rows,
    }


def table(result: dict[str, Any]) -> str:
    """One line for each content, mode and number of updates."""
    lines = [
        "| content | mode | updates | sent | on disk | bytes an update | to the first row's bytes / (N log2 N) |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for content, modes in result["growth"].items():
        for mode, points in modes.items():
            first = None
            for updates, point in points.items():
                count = int(updates)
                share = point["bytes"] / (count * math.log2(count))
                first = first or share
                lines.append(
                    f"| {content} | {mode} | {count:,} | {point['characters']:,} | {point['bytes']:,} | "
                    f"{point['bytes'] / count:,.0f} | {share / first:.2f} |"
                )
    return "\n".join(lines) + "\n"


def write(result: dict[str, Any]) -> None:
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    replace_table(PAGE, BEGIN, table(result))


if __name__ == "__main__":
    measured = run()
    print(table(measured), end="")
    if sys.argv[1:] == ["--write"]:
        write(measured)
