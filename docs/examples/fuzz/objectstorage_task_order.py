"""ObjectStorageSaver: writes of parallel tasks come back in another order than they were applied in

package: langgraph-checkpoint-objectstorage 0.1.15
rule: 3
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
saver.put(at("b"), checkpoint("1", {}, {}), {}, {})
saver.put_writes(at("b", id="1"), [("__no_writes__", None)], "t1", "~2")
saver.put_writes(at("b", id="1"), [("__error__", "a")], "t2", "")
found = saver.get_tuple(at("b", id="1")).pending_writes
assert found == [("t2", "__error__", "a"), ("t1", "__no_writes__", None)], found
