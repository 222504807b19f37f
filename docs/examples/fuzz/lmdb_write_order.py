"""LMDBSaver: writes of one task come back in another order

package: langgraph-checkpoint-lmdb 0.3.1
rule: 3
fails: AssertionError
"""

import tempfile

import lmdb
from langgraph_checkpoint_lmdb import LMDBSaver


def at(thread, ns="", id=None, **more):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}, **more}


def checkpoint(id, values, versions, seen=None):
    state = {"channel_values": values, "channel_versions": versions, "versions_seen": seen or {}, "updated_channels": None}
    return {"v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00", **state}


saver = LMDBSaver(lmdb.open(tempfile.mkdtemp(), max_dbs=2))
saver.put(at("b"), checkpoint("1", {}, {}), {}, {})
saver.put_writes(at("b", id="1"), [("__resume__", "a"), ("__interrupt__", "b")], "t1", "")
found = saver.get_tuple(at("b", id="1")).pending_writes
assert found == [("t1", "__resume__", "a"), ("t1", "__interrupt__", "b")], found
