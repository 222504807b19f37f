"""Native threads under test: where the store stands, the sync or the async way to call it, and short ways to look at it."""

from __future__ import annotations

import asyncio
import operator
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import ckptstore
from ckptstore import Checkpoint, LaneName, Store, Thread, channels
from ckptstore.serde import PlainSerde

Kind = Literal["memory", "lmdb", "sqlite"]
KINDS: tuple[Kind, ...] = ("memory", "lmdb", "sqlite")
FOLDERS: tuple[Kind, ...] = ("lmdb", "sqlite")

UNSET, Overwrite = channels.UNSET, channels.Overwrite
LANE = LaneName("t")

TOTAL = channels.reduce(operator.add, name="total")
SCHEMA = {
    "log": channels.append(),
    "title": channels.last_value(),
    "facts": channels.merge(),
    "chat": channels.keyed(),
    "total": TOTAL,
}
GIVEN_AGAIN = {"total": TOTAL}
"""What a later open has to give of `SCHEMA`."""


def reducers(schema: Any = None) -> dict[str, Any]:
    """Reducers as `Store.state` takes them."""
    return {name: partial(channels.fold, channel) for name, channel in (schema or SCHEMA).items()}


class Cursor:
    """A thread's methods, called the sync or the async way."""

    def __init__(self, thread: Thread, asynchronous: bool) -> None:
        self.thread = thread
        self._asynchronous = asynchronous

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        if not self._asynchronous:
            return getattr(self.thread, name)(*args, **named)

        async def main() -> Any:
            return await getattr(self.thread, "a" + name)(*args, **named)

        return asyncio.run(main())

    @property
    def tip(self) -> str | None:
        return self.thread.tip

    def step(self, writes: Any, **named: Any) -> Checkpoint:
        made: Checkpoint = self._call("step", writes, **named)
        return made

    def log(self, *items: Any, **named: Any) -> Checkpoint:
        """A step that appends to `log`."""
        return self.step({"log": list(items)}, **named)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._call("state")
        return found

    def checkpoint(self) -> Any:
        return self._call("checkpoint")

    def head(self) -> Any:
        return self._call("head")

    def diff(self, *args: Any) -> Any:
        return self._call("diff", *args)

    def set_head(self, *args: Any) -> None:
        self._call("set_head", *args)

    def at(self, checkpoint: Any) -> Cursor:
        return Cursor(self._call("at", checkpoint), self._asynchronous)

    def fork(self) -> Cursor:
        return Cursor(self.thread.fork(), self._asynchronous)

    def lineage(self) -> Sequence[Checkpoint]:
        if not self._asynchronous:
            return list(self.thread.lineage())

        async def main() -> Sequence[Checkpoint]:
            return [checkpoint async for checkpoint in self.thread.alineage()]

        return asyncio.run(main())

    def ids(self) -> Sequence[str]:
        return [checkpoint.id for checkpoint in self.lineage()]


class Home:
    """A store of some kind, opened, and the way its methods are called."""

    def __init__(self, kind: Kind, path: Path, asynchronous: bool = False, **options: Any) -> None:
        self.kind = kind
        self.path = path
        self.asynchronous = asynchronous
        self._options = {"durability": "process", **options}
        self._stores: list[Store] = []
        self.store = self.another()

    def another(self, **options: Any) -> Store:
        """The store opened once more, by another handle; the same one in memory."""
        if self.kind == "memory" and self._stores:
            return self.store
        where: dict[str, Any] = {} if self.kind == "memory" else {"index": self.kind}
        self._stores.append(
            ckptstore.open(":memory:" if self.kind == "memory" else self.path, **{**where, **self._options, **options})
        )
        return self._stores[-1]

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def reopen(self, *, forget_index: bool = False) -> None:
        """Close the store everywhere and open it again. A store in memory is left as it is."""
        if self.kind != "memory":
            self.close()
            if forget_index:
                shutil.rmtree(self.path / "index")
            self.store = self.another()

    def thread(self, id: str = "t", ns: str = "", **named: Any) -> Cursor:
        """A cursor at the head; of `SCHEMA` where no schema is given."""
        return Cursor(self._call("thread", id, ns, **{"schema": SCHEMA, **named}), self.asynchronous)

    def again(self, id: str = "t", ns: str = "", **named: Any) -> Cursor:
        """A cursor opened with what the store does not remember, and nothing else."""
        return self.thread(id, ns, **{"schema": GIVEN_AGAIN, **named})

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        if not self.asynchronous:
            return getattr(self.store, name)(*args, **named)

        async def main() -> Any:
            return await getattr(self.store, "a" + name)(*args, **named)

        return asyncio.run(main())

    def delete(self, id: str = "t") -> bool:
        return bool(self._call("delete", id))

    def prune(self, id: str = "t") -> int:
        return int(self._call("prune", id))

    def copy(self, source: str, destination: str) -> int:
        return int(self._call("copy", source, destination))

    def threads(self) -> Sequence[str]:
        if not self.asynchronous:
            return [info.thread for info in self.store.threads()]

        async def main() -> Sequence[str]:
            return [info.thread async for info in self.store.athreads()]

        return asyncio.run(main())

    def listed(self, id: str = "t", ns: str = "") -> Sequence[str]:
        """Ids of a lane, newest first."""
        return [item.id for item in self.store.list(id, ns)]

    def replayed(self, checkpoint: Checkpoint | str, lane: LaneName = LANE) -> dict[str, Any]:
        """A state as the engine alone folds it."""
        id = checkpoint if isinstance(checkpoint, str) else checkpoint.id
        return self.store.state(lane, id, reducers=reducers())

    def frames(self) -> int:
        return int(self.store.stats().frames)


class Meddling(PlainSerde):
    """The plain serde, which once does something else in the middle of a step."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], Any] | None = None

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if self.meanwhile is not None:
            work, self.meanwhile = self.meanwhile, None
            work()
        return super().dumps_typed(obj)
