"""InspeximusSaver: writes of parallel tasks come back in another order than they were applied in

package: langgraph-checkpoint-inspeximus 0.1.0
rule: 3
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
saver.put(at("c"), checkpoint("1", {}, {}), {}, {})
saver.put_writes(at("c", id="1"), [("__no_writes__", None)], "k0", "")
saver.put_writes(at("c", id="1"), [("messages", "a")], "00000000-0000-0000-0000-000000000000", "")
found = saver.get_tuple(at("c", id="1")).pending_writes
assert found == [("00000000-0000-0000-0000-000000000000", "messages", "a"), ("k0", "__no_writes__", None)], found
