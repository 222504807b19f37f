"""InspeximusSaver: nothing is listed before an id that the namespace does not have

package: langgraph-checkpoint-inspeximus 0.1.0
rule: 2
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
saver.put(at("a"), checkpoint("1", {}, {}), {}, {})
found = [
    item.config["configurable"]["checkpoint_id"]
    for item in saver.list(
        {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}, before={"configurable": {"checkpoint_id": "2"}}
    )
]
assert found == ["1"], found
