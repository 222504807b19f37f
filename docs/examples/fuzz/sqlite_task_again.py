"""SqliteSaver: a task that runs again on an old checkpoint changes what is read of a later one

package: langgraph-checkpoint-sqlite 3.1.2
rule: 6
fails: AssertionError
"""

from langgraph.checkpoint.sqlite import SqliteSaver


def at(thread, ns="", id=None, **more):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}, **more}


def checkpoint(id, values, versions, seen=None):
    state = {"channel_values": values, "channel_versions": versions, "versions_seen": seen or {}, "updated_channels": None}
    return {"v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00", **state}


with SqliteSaver.from_conn_string(":memory:") as saver:
    saver.put(at("a"), checkpoint("1", {}, {}), {}, {})
    saver.put_writes(at("a", id="1"), [("messages", "a")], "t1", "")
    saver.put(at("a", id="1"), checkpoint("2", {}, {"log": "1"}), {}, {})
    saver.put_writes(at("a", id="1"), [("facts", "b"), ("log", "c")], "t1", "")
    found = saver.get_delta_channel_history(config=at("a", id="2"), channels=["log"])["log"]
    assert found == {"writes": []}, found
