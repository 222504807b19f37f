"""What the stores of these tests hold."""

from __future__ import annotations

from typing import Any

from ckptstore import LaneName, Store

SECRET = "sk-never-printed"


def encode(channel: str, value: Any) -> tuple[str, bytes]:
    return "text", str(value).encode()


def put(store: Store, thread: str, id: str, parent: str | None, text: str, ns: str = "") -> None:
    """One checkpoint with one value and one batch of writes."""
    store.put_checkpoint(
        LaneName(thread, ns),
        id,
        parent,
        skeleton={"v": 4},
        metadata={"api_key": SECRET, "step": 0},
        versions={"messages": id},
        values={"messages": text},
        changed={"messages"},
        encode=encode,
    )
    store.put_writes(LaneName(thread, ns), id, [(0, "messages", text)], task_id="task", encode=encode)
