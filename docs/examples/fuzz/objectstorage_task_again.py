"""ObjectStorageSaver: a task that runs again on an old checkpoint changes what is read of a later one

package: langgraph-checkpoint-objectstorage 0.1.15
rule: 6
fails: AssertionError
"""

import tempfile

from langgraph_checkpoint_objectstorage import ObjectStorageSaver


def at(thread, ns="", id=None, **more):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}, **more}


def checkpoint(id, values, versions, seen=None):
    state = {"channel_values": values, "channel_versions": versions, "versions_seen": seen or {}, "updated_channels": None}
    return {"v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00", **state}


saver = ObjectStorageSaver.from_conn_string("file://" + tempfile.mkdtemp())
saver.put(at("b"), checkpoint("2", {}, {}), {}, {})
saver.put_writes(at("b", id="2"), [("__no_writes__", None)], "t1", "")
saver.put(at("b", id="2"), checkpoint("3", {}, {"log": "1"}), {}, {})
saver.put_writes(at("b", id="2"), [("messages", "a"), ("log", "b")], "t1", "")
found = saver.get_delta_channel_history(config=at("b", id="3"), channels=["log"])["log"]
assert found == {"writes": []}, found
