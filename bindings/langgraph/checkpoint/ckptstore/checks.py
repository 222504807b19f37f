"""Arguments of the saver's methods, checked before anything is done: what is wrong is named, with its value and what is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ckptstore import LaneName
from ckptstore.errors import InvalidArgumentError, MissingConfigError, WrongTypeError


def _refuse(name: str, value: Any, needed: str) -> InvalidArgumentError:
    return WrongTypeError(f"{name}={value!r}: {needed} is needed")


def configurable(name: str, config: Any) -> Mapping[str, Any]:
    """The `configurable` part of a config."""
    if not isinstance(config, Mapping):
        raise _refuse(name, config, "a config: a mapping with 'configurable'")
    found = config.get("configurable")
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise _refuse(f"{name}['configurable']", found, "a mapping")
    return found


def lane(config: Any) -> tuple[LaneName, Any]:
    """The lane a config names, and the thread id as the caller gave it."""
    found = configurable("config", config)
    given = found.get("thread_id")
    if given is None:
        raise MissingConfigError("config['configurable']['thread_id'] is missing: every call belongs to a thread")
    ns = found.get("checkpoint_ns")
    if ns is not None and not isinstance(ns, str):
        raise _refuse("config['configurable']['checkpoint_ns']", ns, "a string")
    return LaneName(thread("config['configurable']['thread_id']", given), ns or ""), given


def thread(name: str, value: Any) -> str:
    """A thread id as the store keys it: other savers take numbers too, and mean the same thread."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, Mapping | Sequence | set):
        raise _refuse(name, value, "a thread id")
    return str(value)


def checkpoint_id(config: Any, name: str = "config") -> str | None:
    """The id a config names; None, missing and '' all mean none."""
    id = configurable(name, config).get("checkpoint_id")
    if id is not None and not isinstance(id, str):
        raise _refuse(f"{name}['configurable']['checkpoint_id']", id, "a string")
    return id or None


def draft(checkpoint: Any, metadata: Any, new_versions: Any) -> None:
    """What `put` is given besides the config."""
    if not isinstance(checkpoint, Mapping):
        raise _refuse("checkpoint", checkpoint, "a checkpoint")
    id = checkpoint.get("id")
    if not isinstance(id, str) or not id:
        raise InvalidArgumentError(f"checkpoint['id']={id!r}: a non-empty string is needed")
    for key in ("channel_values", "channel_versions"):
        if key not in checkpoint:
            raise InvalidArgumentError(f"checkpoint[{key!r}] is missing: a mapping is needed")
        if not isinstance(checkpoint[key], Mapping):
            raise _refuse(f"checkpoint[{key!r}]", checkpoint[key], "a mapping")
    for channel, version in checkpoint["channel_versions"].items():
        if not isinstance(version, str | int | float) or (isinstance(version, int) and not -(1 << 63) <= version < 1 << 63):
            raise _refuse(f"checkpoint['channel_versions'][{channel!r}]", version, "a string, float or 64-bit integer")
    if not isinstance(metadata, Mapping):
        raise _refuse("metadata", metadata, "a mapping")
    if not isinstance(new_versions, Mapping):
        raise _refuse("new_versions", new_versions, "a mapping")


def batch(writes: Any, task_id: Any, task_path: Any) -> None:
    """What `put_writes` is given besides the config."""
    if isinstance(writes, str | bytes) or not isinstance(writes, Sequence):
        raise _refuse("writes", writes, "a sequence of (channel, value)")
    for write in writes:
        if not isinstance(write, Sequence) or len(write) != 2 or not isinstance(write[0], str):
            raise _refuse("writes", write, "a pair of channel name and value")
    if not isinstance(task_id, str):
        raise _refuse("task_id", task_id, "a string")
    if not isinstance(task_path, str):
        raise _refuse("task_path", task_path, "a string")


def listing(filter: Any, limit: Any) -> None:
    """What `list` is given besides the configs."""
    if filter is not None and not isinstance(filter, Mapping):
        raise _refuse("filter", filter, "a mapping")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise _refuse("limit", limit, "a whole number")


def strings(name: str, values: Any, needed: str) -> None:
    """A sequence of strings."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | set | frozenset):
        raise _refuse(name, values, needed)
    if not all(isinstance(value, str) for value in values):
        raise _refuse(name, values, needed)


def ids(name: str, values: Any) -> list[str]:
    """A sequence of ids; one bare string is a mistake that would otherwise name its letters."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | set | frozenset):
        raise _refuse(name, values, "a sequence of ids, not one,")
    return [str(value) for value in values]
