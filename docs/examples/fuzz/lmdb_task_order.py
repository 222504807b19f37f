"""LMDBSaver: writes of parallel tasks come back in another order than they were applied in

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
saver.put(at("c"), checkpoint("1", {}, {}), {}, {})
saver.put_writes(at("c", id="1"), [("facts", "a")], "t1", "~2")
saver.put_writes(at("c", id="1"), [("facts", "b")], "t2", "")
found = saver.get_tuple(at("c", id="1")).pending_writes
assert found == [("t2", "facts", "b"), ("t1", "facts", "a")], found
