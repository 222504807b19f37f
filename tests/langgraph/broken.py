"""Savers with one fault each, which fuzzing has to find, and functions that make them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver


class LosesPaths(InMemorySaver):
    """Parallel tasks come back in the order of their ids."""

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id)


class IgnoresFilters(InMemorySaver):
    def list(self, config: Any, **named: Any) -> Any:
        return super().list(config, **{**named, "filter": None})


class ReadsOnce(InMemorySaver):
    """A value is gone once it was read."""

    def get_tuple(self, config: Any) -> Any:
        found = super().get_tuple(config)
        if found is not None:
            self.blobs = {key: value for key, value in self.blobs.items() if key[2] != "title"}
        return found


class ForgetsSeeds(InMemorySaver):
    """Deltas without the snapshot before them."""

    def get_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
        found = super().get_delta_channel_history(config=config, channels=channels)
        return {channel: {"writes": past["writes"]} for channel, past in found.items()}


class RefusesBefore(InMemorySaver):
    def list(self, config: Any, *, before: Any = None, **named: Any) -> Any:
        if before is not None:
            before["configurable"]["thread_id"]
        return super().list(config, before=before, **named)


class AsyncOnly(BaseCheckpointSaver[str]):
    """Async methods alone, and the newest of a listing is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = InMemorySaver()

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


not_a_function = 7
