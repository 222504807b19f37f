"""AsyncSqliteSaver: of two answers to an interrupt the first is kept, where the second comes with an update

package: langgraph-checkpoint-sqlite 3.1.2
rule: 4
fails: AssertionError
"""

import asyncio

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver


def at(thread, ns="", id=None, **more):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}, **more}


def checkpoint(id, values, versions, seen=None):
    state = {"channel_values": values, "channel_versions": versions, "versions_seen": seen or {}, "updated_channels": None}
    return {"v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00", **state}


async def main():
    async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
        await saver.aput(at("a"), checkpoint("1", {}, {}), {}, {})
        await saver.aput_writes(at("a", id="1"), [("__resume__", "a")], "t1", "")
        await saver.aput_writes(at("a", id="1"), [("facts", "b"), ("__resume__", "c")], "t1", "")
        found = (await saver.aget_tuple(at("a", id="1"))).pending_writes
        assert found == [("t1", "__resume__", "c"), ("t1", "facts", "b")], found


asyncio.run(main())
