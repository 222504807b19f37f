"""Any LangGraph saver as a `Driver`: neutral calls in, neutral answers out.

Savers may keep values in two ways where LangGraph sees no difference; the driver brings both to one. A saver that keeps them by
(channel, version) shows a value again in every later checkpoint with that version.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, NamedTuple, cast

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.ckptstore.saver import CkptSaver
from langgraph.checkpoint.ckptstore.testing.invocations import OPTIONAL, Invocation, SaverCall, Writers, invocation

from ckptstore import LaneName
from ckptstore.errors import (
    CkptStoreError,
    InvalidArgumentError,
)
from ckptstore.testing.calls import (
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
    Reopen,
    SetHead,
    refusals,
)

MakeSaver = Callable[[], Any]
"""Returns a new, empty saver, or a context manager, sync or async, of one."""


class Unreadable(NamedTuple):
    """Stands for a part of an answer that has not the shape of LangGraph's interface, and equals none that is expected."""

    why: str


class MakeSaverError(CkptStoreError, RuntimeError):
    """The function that makes the saver to test failed."""


class OpenSaver:
    """A saver that was made, and its methods called the sync way, or where it has none the async way on a loop of its own."""

    def __init__(self, make: MakeSaver) -> None:
        self._stack = ExitStack()
        self.managed = self.asynchronous = False
        """How it was made: by a context manager, and by an async one, or it has async methods only."""
        try:
            self.saver = self._opened(make())
        except Exception as error:
            self.close()
            raise MakeSaverError(f"make_saver() failed: {type(error).__name__}: {error}") from error
        if not isinstance(self.saver, BaseCheckpointSaver):
            self.close()
            raise InvalidArgumentError(f"make_saver() gave a {type(self.saver).__name__}: a LangGraph checkpoint saver is needed")
        if not self.asynchronous and type(self.saver).get_tuple is BaseCheckpointSaver.get_tuple:
            self.asynchronous = True
            self._runner = self._stack.enter_context(asyncio.Runner())

    def _opened(self, made: Any) -> Any:
        self.asynchronous = not hasattr(made, "__enter__") and hasattr(made, "__aenter__")
        self.managed = hasattr(made, "__enter__") or self.asynchronous
        if not self.managed:
            return made
        if not self.asynchronous:
            return self._stack.enter_context(made)
        self._runner = self._stack.enter_context(asyncio.Runner())
        stack = AsyncExitStack()
        self._stack.callback(lambda: self._runner.run(stack.aclose()))
        return self._runner.run(stack.enter_async_context(made))

    def call(self, made: Invocation) -> Any:
        if not self.asynchronous:
            found = getattr(self.saver, made.method)(*made.arguments, **made.named)
            return list(found) if made.method == "list" else found
        return self._runner.run(self._acall(made))

    async def _acall(self, made: Invocation) -> Any:
        method = getattr(self.saver, "a" + made.method)
        if made.method == "list":
            return [item async for item in method(*made.arguments, **made.named)]
        return await method(*made.arguments, **made.named)

    def holds_something(self) -> bool:
        """Whether a checkpoint is listed before a program begins."""
        try:
            return bool(self.call(invocation(Listing(), Writers())))
        except Exception:
            return False  # the programs will show it

    def missing(self) -> tuple[str, ...]:
        """Methods that it does not implement, of those that LangGraph runs graphs without."""
        tries = (Delete("nobody"), DeleteForRuns(()), Copy("nobody", "nobody else"), Prune("nobody"))
        return tuple(OPTIONAL[type(call).__name__] for call in tries if not self._has(call))

    def _has(self, call: SaverCall) -> bool:
        try:
            self.call(invocation(call, Writers()))
        except NotImplementedError:
            return False
        except Exception:
            return True  # whatever is wrong with it, it is there, and the programs will show it
        return True

    def close(self) -> None:
        self._stack.close()


class SaverDriver:
    """A new saver that lives as long as the driver."""

    def __init__(self, make: MakeSaver, missing: Sequence[str] = ()) -> None:
        """Make the saver.

        Args:
            missing: methods that it does not implement, as `OpenSaver.missing` tells.
        """
        self.opened = OpenSaver(make)
        if self.opened.holds_something():
            self.close()
            raise MakeSaverError(
                "the saver is not empty: make_saver() has to return a new one each time, without checkpoints in it"
            )
        self.changes = frozenset(name for name, method in OPTIONAL.items() if method not in missing)
        self.exact = isinstance(self.opened.saver, CkptSaver)
        """Whether all holds that `CkptSaver` promises."""
        if self.exact:
            self.changes |= {"SetHead", "Compact"}
        self._writers = Writers()
        self._given: dict[tuple[str, str, str], frozenset[str]] = {}
        """Channels that a checkpoint was put with a value of."""
        self._of_version: dict[tuple[str, str, str, Any], Any] = {}
        """The value that a version of a channel was put with."""

    def close(self) -> None:
        self.opened.close()

    def _call(self, call: SaverCall) -> Any:
        with refusals():
            return self.opened.call(invocation(call, self._writers))

    # -- writing --------------------------------------------------------------------------------------------------------

    def put(self, call: Put) -> None:
        self._call(call)
        self._given[call.thread, call.ns, call.id] = frozenset(call.values)
        for channel in call.values.keys() & set(call.changed):
            self._of_version[call.thread, call.ns, channel, call.versions[channel]] = copy.deepcopy(call.values[channel])

    def put_writes(self, call: PutWrites) -> None:
        self._call(call)

    # -- reading --------------------------------------------------------------------------------------------------------

    def get(self, call: Get) -> Found | None:
        found = self._call(call)
        return None if found is None else self._found(found)

    def history(self, call: History) -> Mapping[str, Past]:
        found = self._call(call)
        return cast(
            "Mapping[str, Past]", _read(lambda: {channel: _read(partial(_past, channel, past)) for channel, past in found.items()})
        )

    def list(self, call: Listing) -> Sequence[Found]:
        return [self._found(item) for item in self._call(call)]

    def _found(self, item: CheckpointTuple) -> Found:
        return Found(
            thread=_read(lambda: _text(item.config["configurable"]["thread_id"])),
            ns=_read(lambda: _text(item.config["configurable"].get("checkpoint_ns", ""))),
            id=_read(lambda: _text(item.config["configurable"]["checkpoint_id"])),
            parent=_read(lambda: None if item.parent_config is None else item.parent_config["configurable"]["checkpoint_id"]),
            versions=_read(lambda: dict(item.checkpoint["channel_versions"])),
            values=_read(lambda: self._values(item)),
            metadata=_read(lambda: dict(item.metadata)),
            seen=_read(lambda: {node: dict(seen) for node, seen in item.checkpoint["versions_seen"].items()}),
            writes=_read(lambda: [(task, channel, value) for task, channel, value in item.pending_writes or ()]),
        )

    def _values(self, item: CheckpointTuple) -> dict[str, Any]:
        at, checkpoint = item.config["configurable"], item.checkpoint
        thread, ns, versions = at["thread_id"], at.get("checkpoint_ns", ""), checkpoint["channel_versions"]
        given = self._given.get((thread, ns, at["checkpoint_id"]), frozenset())
        return {
            channel: value
            for channel, value in checkpoint["channel_values"].items()
            if channel in given or not self._is_of_version(thread, ns, channel, versions.get(channel), value)
        }

    def _is_of_version(self, thread: str, ns: str, channel: str, version: Any, value: Any) -> bool:
        key = (thread, ns, channel, version)
        return key in self._of_version and bool(self._of_version[key] == value)

    # -- removing -------------------------------------------------------------------------------------------------------

    def prune(self, call: Prune) -> None:
        self._call(call)

    def copy(self, call: Copy) -> None:
        self._call(call)
        for thread, ns, id in [key for key in self._given if key[0] == call.thread]:
            self._given[call.to, ns, id] = self._given[thread, ns, id]
        for thread, ns, channel, version in [key for key in self._of_version if key[0] == call.thread]:
            self._of_version[call.to, ns, channel, version] = self._of_version[thread, ns, channel, version]

    def delete(self, call: Delete) -> None:
        self._call(call)

    def delete_for_runs(self, call: DeleteForRuns) -> None:
        self._call(call)

    # -- what only CkptSaver has -----------------------------------------------------------------------------------------

    def set_head(self, call: SetHead) -> None:
        with refusals():
            self.opened.saver.store.set_head(LaneName(call.thread, call.ns), call.id)

    def compact(self, call: Compact) -> None:
        self.opened.saver.store.compact()

    def reopen(self, call: Reopen) -> None:
        raise NotImplementedError("make_saver makes new savers only")

    def crash(self, call: Crash) -> None:
        raise NotImplementedError("make_saver makes new savers only")


def _read(read: Callable[[], Any]) -> Any:
    """A part of an answer. One that cannot be read is a wrong answer, not an error of the call that gave it."""
    try:
        return read()
    except Exception as error:
        return Unreadable(f"{type(error).__name__}: {error}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is needed, not {value!r}")
    return value


def _past(channel: str, past: Any) -> Past:
    return Past(
        (past["seed"],) if "seed" in past else (),
        # No channel holds a tuple: a write of another channel is like none that is expected.
        tuple((task, value if named == channel else (named, value)) for task, named, value in past["writes"]),
    )
