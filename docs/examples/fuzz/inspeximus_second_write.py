"""InspeximusSaver: of two writes of a task at one index the second is kept

package: langgraph-checkpoint-inspeximus 0.1.0
rule: 4
fails: AssertionError
"""

import tempfile

from langgraph.checkpoint.inspeximus import InspeximusSaver


def at(thread, ns="", id=None, **more):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}, **more}


def checkpoint(id, values, versions, seen=None):
    state = {"channel_values": values, "channel_versions": versions, "versions_seen": seen or {}, "updated_channels": None}
    return {"v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00", **state}


saver = InspeximusSaver(path=tempfile.mkdtemp() + "/threads.jsonl")
saver.put(at("c"), checkpoint("2", {}, {}), {}, {})
saver.put_writes(at("c", id="2"), [("messages", "a")], "t1", "")
saver.put_writes(at("c", id="2"), [("title", "b")], "t1", "")
found = saver.get_tuple(at("c", id="2")).pending_writes
assert found == [("t1", "messages", "a")], found
