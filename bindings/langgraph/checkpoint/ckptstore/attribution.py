"""Which writes made which checkpoint, as LangGraph runs: the rules the engine asks under its commit lock.

LangGraph does not say which run a call belongs to, but `put` and `put_writes` of one run carry the very same `config["metadata"]`
object. That identity, while the object is alive, names a writer (a *token*). It is a hint: without it the window since the
parent's previous child decides, and where that window may hold unused batches, readers compare channel versions.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from ckptstore import Consumed, Origin, Source
from ckptstore.codec.names import task_hash
from ckptstore.lineage.ownership import Edge, LateRule, Rule, by_token
from ckptstore.storage.catalog import CheckpointEntry, WritesEntry

NULL_TASK = "00000000-0000-0000-0000-000000000000"

_TOKEN_BYTES = 6
_WRITERS = 1024

_ALLOWED = {
    Source.LOOP: frozenset(Origin),
    Source.UPDATE: frozenset(Origin),
    # An input checkpoint applies the input; a finished task of a crashed run stays unused on its parent.
    Source.INPUT: frozenset({Origin.NULL, Origin.INPUT, Origin.EXIT}),
    Source.FORK: frozenset({Origin.NULL}),
}


class Writers:
    """Tokens by identity of the metadata object. Bounded: an object is kept alive while it stands here, so that its identity is its
    own, and the oldest give way."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[object, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def token(self, config: Mapping[str, Any]) -> bytes:
        """The token of the run that this config belongs to; empty when it carries no metadata."""
        metadata = config.get("metadata")
        if metadata is None:
            return b""
        key = id(metadata)
        with self._lock:
            known = self._known.get(key)
            if known is None:
                known = (metadata, os.urandom(_TOKEN_BYTES))
                self._known[key] = known
                if len(self._known) > _WRITERS:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(key)
            return known[1]


def source_of(metadata: Mapping[str, Any]) -> Source:
    """What made a checkpoint, from its metadata."""
    return {"input": Source.INPUT, "update": Source.UPDATE, "fork": Source.FORK}.get(str(metadata.get("source")), Source.LOOP)


def origin_of(task_id: str, target: str) -> Origin:
    """Where a batch came from, from its task id and the checkpoint it is stored on."""
    if task_id == NULL_TASK:
        return Origin.NULL
    if task_id.startswith("ffffffff-") or (task_id[:4] == "0000" and task_id[:8].isdecimal()):
        # Synthetic ids of exit mode. A hashed task id looks like this once in 100,000 runs, and then only a child of
        # another source could be offered it.
        return Origin.EXIT
    if task_id[14:15] == "5" and task_id == _input_task(target):
        return Origin.INPUT
    return Origin.TASK


def _input_task(target: str) -> str | None:
    try:
        return str(uuid.uuid5(uuid.UUID(target), "__input__"))
    except ValueError:
        return None


def rule(token: bytes, source: Source, versions: Mapping[str, Any]) -> Rule:
    """The engine's question 'which batches made this child', answered for a checkpoint about to be stored."""
    allowed = _ALLOWED[source]

    def decide(edge: Edge) -> Consumed:
        if source == Source.FORK:
            # `__copy__` stores a twin: same parent, same versions. It was made by what made the original.
            for sibling in edge.siblings:
                table = sibling.record().table
                if {name: slot.version for name, slot in table.items() if slot.version is not None} == versions:
                    return sibling.entry.consumed
        return by_token(edge, token, source, lambda batch: batch.origin in allowed)

    return decide


def late(token: bytes, origin: Origin) -> LateRule:
    """The engine's question 'which of these children did this batch make, although it comes after it'."""

    def decide(children: Sequence[CheckpointEntry]) -> CheckpointEntry | None:
        if token:
            for child in reversed(children):
                if child.token == token and origin in _ALLOWED[child.source]:
                    return child
        return None

    return decide


__all__ = ["Writers", "WritesEntry", "late", "origin_of", "rule", "source_of", "task_hash"]
