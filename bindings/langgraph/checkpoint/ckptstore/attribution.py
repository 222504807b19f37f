"""Which writes made which checkpoint, as LangGraph runs: the rules the engine asks under its commit lock.

LangGraph does not say which run a call belongs to, but `put` and `put_writes` of one run carry the very same `config["metadata"]`
object. That identity, while the object is alive, names a writer (a *token*). It is a hint: without it the window since the
parent's previous child decides, and where that window may hold unused batches, readers compare channel versions.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ckptstore import Consumed, Origin, Source
from ckptstore.ownership import CheckpointEntry, Edge, LateRule, Rule, by_token

NULL_TASK = "00000000-0000-0000-0000-000000000000"

_TOKEN_BYTES = 6  # the last one is not 0: the engine keeps tokens padded with zeros
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
    own, and the oldest give way. Each step on the dictionary is atomic, so there is no lock that a fork could leave locked."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}

    def token(self, config: Mapping[str, Any]) -> bytes:
        """The token of the run that this config belongs to; empty when it carries no metadata."""
        metadata = config.get("metadata")
        if metadata is None:
            return b""
        known = self._known.get(id(metadata))
        if known is None:
            known = self._known.setdefault(id(metadata), (metadata, os.urandom(_TOKEN_BYTES - 1) + b"\1"))
            while len(self._known) > _WRITERS:
                self._known.pop(next(iter(self._known)), None)
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

    def decide(edge: Edge) -> Consumed:
        if source == Source.FORK:
            # `__copy__` stores a twin: same parent, same versions. It was made by what made the original.
            for sibling in edge.siblings:
                table = sibling.record().table
                if {name: slot.version for name, slot in table.items() if slot.version is not None} == versions:
                    return sibling.entry.consumed
        return by_token(edge, token, source, lambda made, batch: batch.origin in _ALLOWED[made])

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
