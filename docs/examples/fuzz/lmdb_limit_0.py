"""LMDBSaver: a limit of 0 lists everything

package: langgraph-checkpoint-lmdb 0.3.1
rule: 2
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
saver.put(at("a"), checkpoint("1", {}, {}), {}, {})
found = [
    item.config["configurable"]["checkpoint_id"]
    for item in saver.list({"configurable": {"thread_id": "a", "checkpoint_ns": ""}}, limit=0)
]
assert found == [], found
