"""Savers with one fault each, which fuzzing has to find, and functions that make them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.ckptstore import CkptSaver


class Sound(BaseCheckpointSaver[str]):
    """A saver like others, without a fault: it has what every saver has, and hands it on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = CkptSaver(":memory:")

    def put(self, *given: Any) -> Any:
        return self.inner.put(*given)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.inner.put_writes(config, writes, task_id, task_path)

    def get_tuple(self, config: Any) -> Any:
        return self.inner.get_tuple(config)

    def list(self, config: Any, **named: Any) -> Any:
        return self.inner.list(config, **named)

    def get_delta_channel_history(self, **named: Any) -> Any:
        return self.inner.get_delta_channel_history(**named)


class LosesPaths(Sound):
    """Parallel tasks come back in the order of their ids."""

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id)


class IgnoresFilters(Sound):
    def list(self, config: Any, **named: Any) -> Any:
        return super().list(config, **{**named, "filter": None})


class ListsByNamespace(Sound):
    """Without a fault: the newest is first in each namespace, and the namespaces come one after the other."""

    def list(self, config: Any, *, limit: Any = None, **named: Any) -> Any:
        items = sorted(self.inner.list(config, **named), key=lambda item: str(item.config["configurable"]["checkpoint_ns"]))
        return iter(items[:limit])


class RepeatsUnderLimit(ListsByNamespace):
    """With a limit over several namespaces one is listed twice."""

    def list(self, config: Any, *, limit: Any = None, **named: Any) -> Any:
        items = list(super().list(config, limit=limit, **named))
        if limit is not None and (config is None or "checkpoint_ns" not in config["configurable"]):
            items[1:] = items[:1] * len(items[1:])
        return iter(items)


class IgnoresLimitOfThread(ListsByNamespace):
    def list(self, config: Any, *, limit: Any = None, **named: Any) -> Any:
        several = config is None or "checkpoint_ns" not in config["configurable"]
        return super().list(config, limit=None if several else limit, **named)


class LosesNamespaces(ListsByNamespace):
    """A list of several namespaces lacks one checkpoint of three."""

    def list(self, config: Any, **named: Any) -> Any:
        items = list(super().list(config, **named))
        several = config is None or "checkpoint_ns" not in config["configurable"]
        return iter(items[:2] if several else items)


class LosesUsers(ListsByNamespace):
    """A list of several namespaces has less metadata."""

    def list(self, config: Any, **named: Any) -> Any:
        for item in super().list(config, **named):
            if config is None or "checkpoint_ns" not in config["configurable"]:
                del item.metadata["user"]
            yield item


class HasNoMetadata(Sound):
    """Not the shape of LangGraph's tuples."""

    def get_tuple(self, config: Any) -> Any:
        found = super().get_tuple(config)
        return found and found._replace(metadata=None)


class GivesCheckpoints(Sound):
    """No tuples at all."""

    def get_tuple(self, config: Any) -> Any:
        found = super().get_tuple(config)
        return found and found.checkpoint


class HasNoHistory(Sound):
    def get_delta_channel_history(self, **named: Any) -> Any:
        return None


class TellsMore(Sound):
    """A history of a channel that was not asked for."""

    def get_delta_channel_history(self, **named: Any) -> Any:
        return {**super().get_delta_channel_history(**named), "more": {"writes": []}}


class LosesTitles(Sound):
    """A value is not stored."""

    def put(self, config: Any, checkpoint: Any, *given: Any) -> Any:
        values = {name: value for name, value in checkpoint["channel_values"].items() if name != "title"}
        return super().put(config, {**checkpoint, "channel_values": values}, *given)


class ForgetsSeeds(Sound):
    """Deltas without the snapshot before them."""

    def get_delta_channel_history(self, **named: Any) -> Any:
        return {channel: {"writes": past["writes"]} for channel, past in super().get_delta_channel_history(**named).items()}


class MixesChannels(Sound):
    """A history has the writes of all channels that were asked for."""

    def get_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
        found = super().get_delta_channel_history(config=config, channels=["log", "facts"])
        writes = [write for past in found.values() for write in past["writes"]]
        return {channel: {**found[channel], "writes": writes} for channel in channels}


class ChangesThePast(Sound):
    """Every write on an ancestor counts, whichever run made it: what is inherited does so."""

    def get_delta_channel_history(self, **named: Any) -> Any:
        return BaseCheckpointSaver.get_delta_channel_history(self, **named)


class RefusesBefore(Sound):
    def list(self, config: Any, *, before: Any = None, **named: Any) -> Any:
        if before is not None:
            before["configurable"]["thread_id"]
        return super().list(config, before=before, **named)


class AsyncOnly(BaseCheckpointSaver[str]):
    """Async methods alone, and the newest of a listing is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = CkptSaver(":memory:")

    async def aput(self, *given: Any) -> Any:
        return self.inner.put(*given)

    async def aput_writes(self, *given: Any) -> None:
        self.inner.put_writes(*given)

    async def aget_tuple(self, config: Any) -> Any:
        return self.inner.get_tuple(config)

    async def alist(self, config: Any, **named: Any) -> AsyncIterator[Any]:
        for item in list(self.inner.list(config, **named))[1:]:
            yield item


@asynccontextmanager
async def async_only() -> AsyncIterator[AsyncOnly]:
    yield AsyncOnly()


def no_saver() -> object:
    return object()


def fails() -> object:
    raise OSError("no database here")


class FailsOnce:
    """Makes sound savers, and raises at one of the calls."""

    def __init__(self, call: int) -> None:
        self.call, self.calls = call, 0

    def __call__(self) -> Sound:
        self.calls += 1
        if self.calls == self.call:
            raise OSError(f"out of connections at call {self.call}")
        return Sound()


not_a_function = 7
