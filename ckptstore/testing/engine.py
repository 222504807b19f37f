"""The engine's `Store` as a `Driver`: in memory, or in a folder on a filesystem whose power can be cut.

A folder is driven through `CrashVfs` (crashfs.py), at `durability="commit"`: what a call acknowledged has to survive.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from ckptstore.lineage.ownership import Edge, LateRule, Rule, by_token
from ckptstore.model import Consumed, LaneName, Origin, Source, StoredCheckpoint, Typed
from ckptstore.options import IndexKind, StoreOptions
from ckptstore.storage.catalog import CheckpointEntry
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.memory import MemoryStorage
from ckptstore.store import Store
from ckptstore.testing.calls import (
    METHODS,
    SPECIAL,
    Compact,
    Copy,
    Crash,
    Delete,
    DeleteForRuns,
    Found,
    Get,
    History,
    Listing,
    Past,
    Prune,
    Put,
    PutWrites,
    Refused,
    Reopen,
    SetHead,
    refusals,
)
from ckptstore.testing.crashfs import CrashVfs, Image, write_image
from ckptstore.testing.runs import USES

_SOURCES = {"loop": Source.LOOP, "input": Source.INPUT, "update": Source.UPDATE, "fork": Source.FORK}
_ORIGINS = {"task": Origin.TASK, "null": Origin.NULL, "input": Origin.INPUT}
_USES = {_SOURCES[source]: frozenset(_ORIGINS[origin] for origin in origins) for source, origins in USES.items()}


class StoreDriver:
    """One store that lives as long as the driver."""

    def __init__(self, index: IndexKind | None = None, *, small: bool = False, handles: int = 1) -> None:
        """Open a new store.

        Args:
            index: kind of index of a store in a temporary folder; None for a store in memory.
            small: segments of 4096 bytes and no caches, so that short programs rotate segments and read from the log.
            handles: how many handles of the folder take turns, as several processes would.
        """
        options = StoreOptions(index=index, auto_compact=False)
        self._options = options.model_copy(update={"segment_bytes": 4096, "cache_bytes": 0}) if small else options
        self._folder = None if index is None else tempfile.TemporaryDirectory()
        self._handles = handles
        self._names = count()
        self._calls = 0
        self._stores: Sequence[Store] = ()
        if self._folder is None:
            self.changes = frozenset({"SetHead", "Compact"})
            self._stores = [Store(MemoryStorage(self._options.lock_timeout), self._options)]
        else:
            self.changes = frozenset({"SetHead", "Compact", "Reopen", "Crash"})
            self._open(self._new_path())

    def close(self) -> None:
        for store in self._stores:
            store.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _new_path(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"store{next(self._names)}"

    def _open(self, path: Path) -> None:
        self._fs = CrashVfs(path)
        self._stores = [Store(LocalStorage(path, self._options, self._fs), self._options) for _ in range(self._handles)]

    def _store(self) -> Store:
        """The handle whose turn it is."""
        self._calls += 1
        return self._stores[self._calls % len(self._stores)]

    # -- writing --------------------------------------------------------------------------------------------------------

    def put(self, call: Put) -> None:
        token, source = _token(call.writer), _SOURCES[call.source]
        with refusals():
            self._store().put_checkpoint(
                LaneName(call.thread, call.ns),
                call.id,
                call.parent,
                skeleton={"versions_seen": call.seen},
                metadata=call.metadata,
                versions=call.versions,
                values=call.values,
                changed=call.changed,
                encode=_encode,
                token=token,
                source=source,
                rule=_rule(token, source, call.versions),
                run=call.metadata.get("run_id"),
            )

    def put_writes(self, call: PutWrites) -> None:
        token, origin = _token(call.writer), _ORIGINS[call.origin]
        with refusals():
            self._store().put_writes(
                LaneName(call.thread, call.ns),
                call.target,
                [(SPECIAL.get(channel, idx), channel, value) for idx, (channel, value) in enumerate(call.writes)],
                task_id=call.task,
                task_path=call.path,
                encode=_encode,
                token=token,
                origin=origin,
                late=_late(token, origin),
            )

    def set_head(self, call: SetHead) -> None:
        with refusals():
            self._store().set_head(LaneName(call.thread, call.ns), call.id)

    # -- reading --------------------------------------------------------------------------------------------------------

    def get(self, call: Get) -> Found | None:
        stored = self._store().get(LaneName(call.thread, call.ns), call.id)
        return None if stored is None else _found(stored)

    def history(self, call: History) -> Mapping[str, Past]:
        with refusals():
            found = self._store().history(LaneName(call.thread, call.ns), call.id, call.channels)
        return {
            channel: Past(
                () if past.seed is None else (_decode(past.seed),),
                tuple((write.task_id, _decode(write.value)) for write in past.writes),
            )
            for channel, past in found.items()
        }

    def list(self, call: Listing) -> Sequence[Found]:
        def accept(metadata: Any) -> bool:
            return all(metadata.get(key) == wanted for key, wanted in call.filter.items())

        items = self._store().list(call.thread, call.ns, call.id, before=call.before, accept=accept if call.filter else None)
        found = [_found(item) for item in items]
        return found if call.limit is None else found[: max(call.limit, 0)]

    # -- removing -------------------------------------------------------------------------------------------------------

    def prune(self, call: Prune) -> int:
        return self._store().prune(call.thread)

    def copy(self, call: Copy) -> int:
        with refusals():
            return self._store().copy(call.thread, call.to)

    def delete(self, call: Delete) -> bool:
        return self._store().delete(call.thread)

    def delete_for_runs(self, call: DeleteForRuns) -> int:
        return self._store().delete_for_runs(call.runs)

    # -- upkeep and crashes ---------------------------------------------------------------------------------------------

    def compact(self, call: Compact) -> None:
        self._store().compact()

    def reopen(self, call: Reopen) -> None:
        for store in self._stores:
            store.close()
        if call.lose_index:
            shutil.rmtree(self._fs.root / "index")
        self._open(self._fs.root)

    def crash(self, call: Crash) -> None:
        """Go on with what the disk was left with: at the end of the call, or at some moment in the middle of it."""
        rng = random.Random(call.seed)
        images: list[Image] = []
        if call.during is not None:
            moments, passed = {*rng.sample(range(8), 2), rng.randrange(40)}, count()

            def watch(name: str, path: str) -> None:
                if next(passed) in moments:
                    images.append(self._image(rng, call.kind))

            self._fs.watch = watch
            with suppress(Refused):
                getattr(self, METHODS[type(call.during)])(call.during)
            self._fs.watch = None
        image = rng.choice(images) if images else self._image(rng, call.kind)
        for store in self._stores:
            store.close()
        self._open(write_image(image, self._new_path(), garbage_index=rng.random() < 0.3))

    def _image(self, rng: random.Random, kind: str) -> Image:
        return self._fs.image(rng, "live" if kind == "kill" else "mixed")


def _token(writer: str | None) -> bytes:
    return b"" if writer is None else writer.encode()


def _encode(channel: str, value: Any) -> Typed:
    return "json", json.dumps(value).encode()


def _decode(typed: Typed) -> Any:
    assert typed[0] == "json"
    return json.loads(typed[1])


def _rule(token: bytes, source: Source, versions: Mapping[str, Any]) -> Rule:
    """Which batches made a checkpoint, as a binding would tell it."""

    def decide(edge: Edge) -> Consumed:
        if source == Source.FORK:
            for sibling in edge.siblings:
                if {channel: slot.version for channel, slot in sibling.record().table.items()} == versions:
                    return sibling.entry.consumed
        return by_token(edge, token, source, lambda made, batch: batch.origin in _USES[made])

    return decide


def _late(token: bytes, origin: Origin) -> LateRule:
    def decide(children: Sequence[CheckpointEntry]) -> CheckpointEntry | None:
        mine = (child for child in reversed(children) if token and child.token == token and origin in _USES[child.source])
        return next(mine, None)

    return decide


def _found(stored: StoredCheckpoint) -> Found:
    assert isinstance(stored.metadata, dict)
    return Found(
        *stored.lane,
        stored.id,
        stored.parent,
        stored.versions,
        {channel: _decode(typed) for channel, typed in stored.values.items()},
        stored.metadata,
        stored.skeleton["versions_seen"],
        [(write.task_id, write.channel, _decode(write.value)) for write in stored.writes],
    )
