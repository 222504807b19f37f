"""`CkptSaver`: LangGraph's saver interface, translated to the engine. Thin: translate, attribute, delegate.

Contract: LangGraph's `BaseCheckpointSaver`, with the differences that docs/langgraph.md lists. One class serves sync and async
graphs: the async methods run the sync ones in a worker thread, so no fsync ever runs on the event loop, and the sync ones work inside
a running loop too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.ckptstore import checks
from langgraph.checkpoint.ckptstore.attribution import Writers, late, origin_of, rule, source_of
from langgraph.checkpoint.ckptstore.serialization import stamp_message_ids, unwrapped
from langgraph.checkpoint.serde.base import SerializerProtocol

import ckptstore
from ckptstore import RetentionPolicy, Store, StoredCheckpoint, Sweeper
from ckptstore.errors import InvalidArgumentError, MissingConfigError
from ckptstore.options import Durability, IndexKind, Mode
from ckptstore.serde import dump

_BESIDE_SKELETON = frozenset({"id", "channel_values", "channel_versions"})
_END: Any = object()


class CkptSaver(BaseCheckpointSaver[str]):
    """Keeps LangGraph threads in a `ckptstore` folder.

    >>> with CkptSaver(":memory:") as saver:
    ...     saver.get_tuple({"configurable": {"thread_id": "nobody"}}) is None
    True
    """

    _sweeper: Sweeper | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        durability: Durability = "commit",
        index: IndexKind | None = None,
        read_only: bool = False,
        mode: Mode | None = None,
        expect_head: bool = False,
        max_value_bytes: int = 256 << 20,
        drop_metadata: Sequence[str] = (),
        lock_timeout: float = 30.0,
        message_ids: bool = True,
        retention: RetentionPolicy | None = None,
    ) -> None:
        """Open the store at `path`, creating it where there is none.

        Args:
            path: a folder, or `":memory:"`.
            serde: how values become bytes; LangGraph's default when None.
            durability: what an acknowledged call survives: `commit` a power loss, `interval` a power loss but for the last tenth of
                a second, `process` a killed process. Not LangGraph's `durability=`, which says when it calls the saver.
            index: kind of the disposable index: `lmdb`, or `sqlite`, which processes of several containers may share on one volume.
                None keeps the kind that the store has, and gives a new one `lmdb`.
            read_only: never write a record.
            mode: channel mode that the store keeps; None never disagrees.
            expect_head: refuse a put whose parent is not the head of its lane (`ConflictError`).
            max_value_bytes: largest value, in bytes, 1 to 1 GiB.
            drop_metadata: metadata keys never stored, as shell patterns: `("*token*", "api_key")`.
            lock_timeout: seconds to wait for a lock of the store, up to 3600.
            message_ids: give messages without an id one before they are logged.
            retention: what to keep, applied in the background after every 64 puts (`ckptstore.Sweeper`); everything when None.

        Raises:
            InvalidArgumentError: names the argument, its value and the range.
            what `ckptstore.open` raises.
        """
        checks.strings("drop_metadata", drop_metadata, "a sequence of shell patterns")
        if serde is not None and not (hasattr(serde, "dumps_typed") or hasattr(serde, "dumps")):
            raise InvalidArgumentError(f"serde={serde!r}: a LangGraph serializer is needed")
        for name, value in (("expect_head", expect_head), ("message_ids", message_ids)):
            if not isinstance(value, bool):
                raise InvalidArgumentError(f"{name}={value!r}: True or False is needed")
        if retention is not None and not isinstance(retention, RetentionPolicy):
            raise InvalidArgumentError(f"retention={retention!r}: a ckptstore.RetentionPolicy is needed")
        store = ckptstore.open(
            path,
            durability=durability,
            index=index,
            read_only=read_only,
            mode=mode,
            max_value_bytes=max_value_bytes,
            lock_timeout=lock_timeout,
        )
        self._setup(store, serde, expect_head, tuple(drop_metadata), message_ids)
        if retention is not None and not read_only:
            self._sweeper = store.sweeper(retention)

    def _setup(
        self, store: Store, serde: SerializerProtocol | None, expect_head: bool, drop: tuple[str, ...], message_ids: bool
    ) -> None:
        super().__init__(serde=serde)
        self._store = store
        self._writers = Writers()
        self._expect_head = expect_head
        self._drop = drop
        self._message_ids = message_ids

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """The same call as on other savers: `with` or `async with` the result. Options as in the constructor."""
        return cls(conn_string, **options)

    @classmethod
    def from_store(cls, store: Store, *, serde: SerializerProtocol | None = None, expect_head: bool = False) -> Self:
        """A saver on an open store, which closing the saver closes too."""
        saver = cls.__new__(cls)
        saver._setup(store, serde, expect_head, (), True)
        return saver

    @property
    def store(self) -> Store:
        """The engine below."""
        return self._store

    def setup(self) -> None:
        """Nothing to set up; here because other savers have it."""

    def close(self) -> None:
        """Close the store; idempotent. Clones made by `with_allowlist` share it."""
        if self._sweeper is not None:
            self._sweeper.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self.close)

    # -- writing --------------------------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; the config names its parent. Durable when it returns, at the saver's level.

        Raises:
            ThreadDeletedError, ConflictError, SerializationError, ValueTooLargeError and the storage errors.
        """
        lane, thread_id = checks.lane(config)
        checks.draft(checkpoint, metadata, new_versions)
        id = checkpoint["id"]
        token = self._writers.token(config)
        source = source_of(metadata)
        merged = cast(dict[str, Any], get_checkpoint_metadata(config, metadata))
        if self._drop:
            merged = {key: value for key, value in merged.items() if not self._dropped(key)}
        versions = checkpoint["channel_versions"]
        run = merged.get("run_id")
        self._store.put_checkpoint(
            lane,
            id,
            checks.checkpoint_id(config),
            skeleton={key: value for key, value in checkpoint.items() if key not in _BESIDE_SKELETON},
            metadata=merged,
            versions=versions,
            values=checkpoint["channel_values"],
            changed=new_versions,
            encode=self._encode_value,
            token=token,
            source=source,
            rule=rule(token, source, versions),
            run=run if isinstance(run, str) else None,
            expect_head=self._expect_head,
        )
        if self._sweeper is not None:
            self._sweeper.put(lane.thread)
        return {"configurable": {"thread_id": thread_id, "checkpoint_ns": lane.ns, "checkpoint_id": id}}

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Store the writes of a task on the checkpoint that the config names, which need not be stored yet.

        Raises:
            ThreadDeletedError, SerializationError, ValueTooLargeError and the storage errors.
        """
        lane, _ = checks.lane(config)
        target = checks.checkpoint_id(config)
        if target is None:
            raise MissingConfigError("config['configurable']['checkpoint_id'] is missing: writes belong to a checkpoint")
        checks.batch(writes, task_id, task_path)
        if self._message_ids:
            for _, value in writes:
                stamp_message_ids(value)
        token = self._writers.token(config)
        origin = origin_of(task_id, target)
        self._store.put_writes(
            lane,
            target,
            [(WRITES_IDX_MAP.get(channel, idx), channel, value) for idx, (channel, value) in enumerate(writes)],
            task_id=task_id,
            task_path=task_path,
            encode=self._encode,
            token=token,
            origin=origin,
            late=late(token, origin),
        )

    def _encode(self, channel: str, value: Any) -> tuple[str, bytes]:
        return dump(self.serde, channel, value)

    def _encode_value(self, channel: str, value: Any) -> tuple[str, bytes]:
        return dump(self.serde, channel, unwrapped(value))

    def _dropped(self, key: str) -> bool:
        return any(fnmatchcase(key, pattern) for pattern in self._drop)

    # -- reading --------------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the head of its lane; None where there is none. All objects are fresh.

        Raises:
            CorruptionError: names the checkpoint and what is damaged.
        """
        lane, thread_id = checks.lane(config)
        if config["configurable"].get("checkpoint_ns", "") is None:
            return None
        stored = self._store.get(lane, checks.checkpoint_id(config))
        return None if stored is None else self._tuple(stored, thread_id)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints newest first: in place order within one namespace, by id descending over several.

        The iterator holds no lock between two items. A damaged checkpoint raises; calling `next` again goes on behind it.

        Args:
            config: None for all threads; without `checkpoint_ns` all namespaces; with `checkpoint_id` that checkpoint only.
            filter: metadata keys and values that must all be equal; a missing key equals None.
            before: only checkpoints before this one: by place where the lane holds it, else by id.
            limit: at most this many; None for all, 0 or less for none.
        """
        return _Tuples(self, config, filter, before, limit)

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        """For each channel the nearest ancestor's value (`seed`, absent where there is none) and the writes after it, oldest first.

        Raises:
            CheckpointLineageIntegrityError: something of the history is known to be lost.
        """
        lane, _ = checks.lane(config)
        checks.strings("channels", channels, "a sequence of channel names")
        if not channels:
            return {}
        found = self._store.history(lane, checks.checkpoint_id(config), channels)
        loads = self.serde.loads_typed
        result: dict[str, Any] = {}
        for channel, history in found.items():
            writes = [(write.task_id, write.channel, loads(write.value)) for write in history.writes]
            result[channel] = {"writes": writes}
            if history.seed is not None:
                result[channel]["seed"] = loads(history.seed)
        return result

    def _tuple(self, stored: StoredCheckpoint, thread_id: Any) -> CheckpointTuple:
        loads = self.serde.loads_typed
        checkpoint = stored.skeleton if isinstance(stored.skeleton, dict) else loads(stored.skeleton)
        checkpoint["id"] = stored.id
        checkpoint["channel_versions"] = stored.versions
        checkpoint["channel_values"] = {channel: loads(typed) for channel, typed in stored.values.items()}
        return CheckpointTuple(
            _config(thread_id, stored.lane.ns, stored.id),
            cast(Checkpoint, checkpoint),
            cast(CheckpointMetadata, self._metadata(stored.metadata)),
            None if stored.parent is None else _config(thread_id, stored.lane.ns, stored.parent),
            [(write.task_id, write.channel, loads(write.value)) for write in stored.writes],
        )

    def _metadata(self, stored: dict[str, Any] | tuple[str, bytes]) -> dict[str, Any]:
        return stored if isinstance(stored, dict) else cast(dict[str, Any], self.serde.loads_typed(stored))

    # -- upkeep ---------------------------------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all namespaces. Calls of a run that is still going are refused from here on."""
        self._store.delete(checks.thread("thread_id", thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of these runs; what others need of them is kept."""
        self._store.delete_for_runs(checks.ids("run_ids", run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread by reference: same ids, same order. An unknown source copies nothing.

        Raises:
            ThreadExistsError: the target holds records.
        """
        source = checks.thread("source_thread_id", source_thread_id)
        self._store.copy(source, checks.thread("target_thread_id", target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the head of each namespace (`keep_latest`), or nothing (`delete`), of the given threads.

        Delta channels stay readable: what the kept head needs of its ancestors is kept with it.

        Raises:
            TypeError: a bare string instead of a sequence. ValueError: another strategy.
        """
        threads = checks.ids("thread_ids", thread_ids)
        if strategy not in ("keep_latest", "delete"):
            raise InvalidArgumentError(f"strategy={strategy!r}: 'keep_latest' or 'delete' is needed")
        for thread in threads:
            if strategy == "delete":
                self._store.delete(thread)
            else:
                self._store.prune(thread)

    def get_next_version(self, current: str | int | float | None, channel: None) -> str:
        """A version above `current` and unique to its branch: two children of one parent never share one."""
        if current is None:
            number = 0
        elif isinstance(current, str):
            number = int(current.split(".")[0])
        else:
            number = int(current)
        return f"{number + 1:032}.{int.from_bytes(os.urandom(5), 'big') % 10**12:012}"

    # -- async ----------------------------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put` in a worker thread. A cancelled call is stored whole or not at all."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes` in a worker thread."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple` in a worker thread."""
        return await asyncio.to_thread(self.get_tuple, config)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, each step in a worker thread."""
        return _AsyncTuples(self.list(config, filter=filter, before=before, limit=limit))

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        """`get_delta_channel_history` in a worker thread."""
        return await asyncio.to_thread(self.get_delta_channel_history, config=config, channels=channels)

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread` in a worker thread."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs` in a worker thread."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread` in a worker thread."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune` in a worker thread."""
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)


class _Tuples(Iterator[CheckpointTuple]):
    """What `list` returns: an iterator that an error about one checkpoint does not end."""

    def __init__(
        self,
        saver: CkptSaver,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        checks.listing(filter, limit)
        configurable = checks.configurable("config", config) if config is not None else {}
        self._saver = saver
        self._left = limit
        self._thread_id = configurable.get("thread_id")
        thread = None if self._thread_id is None else str(self._thread_id)

        def accept(metadata: Any) -> bool:
            known = saver._metadata(metadata)
            return all(known.get(key) == value for key, value in (filter or {}).items())

        self._stored = saver._store.list(
            thread,
            configurable.get("checkpoint_ns"),
            checks.checkpoint_id(config) if config is not None else None,
            before=None if before is None else checks.checkpoint_id(before, "before"),
            accept=accept if filter else None,
        )

    def __next__(self) -> CheckpointTuple:
        if self._left is not None and self._left <= 0:
            raise StopIteration
        stored = next(self._stored)
        if self._left is not None:
            self._left -= 1
        thread_id = self._thread_id if self._thread_id is not None else stored.lane.thread
        return self._saver._tuple(stored, thread_id)

    def close(self) -> None:
        """End the iteration, as a generator's `close` does."""
        self._left = 0


class _AsyncTuples(AsyncIterator[CheckpointTuple]):
    """What `alist` returns."""

    def __init__(self, tuples: Iterator[CheckpointTuple]) -> None:
        self._tuples = tuples

    async def __anext__(self) -> CheckpointTuple:
        item = await asyncio.to_thread(next, self._tuples, _END)
        if item is _END:
            raise StopAsyncIteration
        return cast(CheckpointTuple, item)

    async def aclose(self) -> None:
        """End the iteration, as an async generator's `aclose` does."""
        self._tuples = iter(())


def _config(thread_id: Any, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}
