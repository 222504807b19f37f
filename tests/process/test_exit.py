"""A process with a saver that nobody closed ends, and what it stored is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from langgraph.checkpoint.ckptstore import CkptSaver

from tests.helpers import config

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import asyncio, sys, threading
from langgraph.checkpoint.ckptstore import CkptSaver
from tests.helpers import checkpoint, config
path = sys.argv[1]
one = (config(), checkpoint("one", {"log": 1}, {"log": 1}), {}, {"log": 1})
"""

PROGRAMS = {
    "sync": """
saver = CkptSaver(path)
saver.put(*one)
""",
    "interval": """
saver = CkptSaver(path, durability="interval")
saver.put(*one)
""",
    "asyncio.run": """
async def main():
    saver = CkptSaver.from_conn_string(path)
    await saver.aput(*one)
    async for item in saver.alist(config()):
        break
asyncio.run(main())
""",
    "paused list": """
saver = CkptSaver(path, durability="process")
saver.put(*one)
listing = saver.list(config())
next(listing)
""",
    "sys.exit in a thread's company": """
saver = CkptSaver(path, durability="interval")
worker = threading.Thread(target=saver.put, args=one)
worker.start()
worker.join()
sys.exit(0)
""",
    "held by a module": """
import types
module = types.ModuleType("held")
module.saver = CkptSaver(path)
sys.modules["held"] = module
module.saver.put(*one)
""",
    "a compaction in the background": """
import os
saver = CkptSaver(path, durability="process")
for number in range(12):
    gone = checkpoint(str(number), {"log": os.urandom(1 << 20)}, {"log": number})
    saver.put(config(thread="gone"), gone, {}, {"log": number})
saver.put(*one)
saver.delete_thread("gone")
assert saver.store._background._thread is not None
""",
    "a daemon thread that goes on": """
import contextlib
saver = CkptSaver(path, durability="process")
saver.put(*one)
begun = threading.Event()
def work():
    with contextlib.suppress(Exception):
        while True:
            saver.put_writes(config("one"), [("w", 1)], "task")
            begun.set()
threading.Thread(target=work, daemon=True).start()
begun.wait(30)
""",
    "a loop that leaves its calls behind": """
async def main():
    saver = CkptSaver(path, durability="process")
    await saver.aput(*one)
    for number in range(5):
        asyncio.create_task(saver.aput_writes(config("one"), [("w", number)], f"task {number}"))
    await asyncio.sleep(0)
asyncio.run(main())
""",
    "sqlite": """
saver = CkptSaver(path, durability="interval", index="sqlite")
saver.put(*one)
""",
    "raised": """
saver = CkptSaver(path)
saver.put(*one)
try:
    raise KeyboardInterrupt
except KeyboardInterrupt:
    sys.exit(0)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_process_with_an_unclosed_saver_ends(tmp_path: Path, name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HEAD + PROGRAMS[name], str(tmp_path / "store")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    # Left in order, although nobody closed it.
    assert (tmp_path / "store" / "index" / "CLEAN").exists()
    with CkptSaver(tmp_path / "store") as saver:
        found = saver.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"log": 1}
