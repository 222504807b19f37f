"""ObjectStorageSaver: a list of one checkpoint has the others too

package: langgraph-checkpoint-objectstorage 0.1.15
rule: 2
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
saver.put(at("c"), checkpoint("1", {}, {}), {}, {})
found = [item.config["configurable"]["checkpoint_id"] for item in saver.list(at("c", id="2"))]
assert found == [], found
