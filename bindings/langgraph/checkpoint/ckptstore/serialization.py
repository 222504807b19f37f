"""Values on their way to the serde: wrappers unwrapped, message ids stamped, refusals explained."""

from __future__ import annotations

import os
import uuid
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.types import Overwrite

from ckptstore.errors import SerializationError

_OVERWRITE_KEY = "__overwrite__"


def unwrapped(value: Any) -> Any:
    """The value inside an `Overwrite`: a wrapper is an instruction to a reducer and must never become a channel's value."""
    if isinstance(value, Overwrite):
        return value.value
    if type(value) is dict and len(value) == 1 and _OVERWRITE_KEY in value:
        return value[_OVERWRITE_KEY]
    return value


def stamp_message_ids(value: Any) -> None:
    """Give id-less messages an id in place, before they are logged: replaying the log must not mint new ones.

    LangGraph since 1.2.15 does this itself before it calls the saver; in place means that the running graph sees the same id.
    """
    if isinstance(value, BaseMessage):
        if value.id is None:
            # os.urandom: test suites patch uuid.uuid4 with a finite sequence.
            value.id = str(uuid.UUID(bytes=os.urandom(16), version=4))
    elif isinstance(value, list | tuple):
        for item in value:
            stamp_message_ids(item)
    elif isinstance(value, Overwrite):
        stamp_message_ids(value.value)


def encode(serde: SerializerProtocol, channel: str, value: Any) -> tuple[str, bytes]:
    """Serialize a channel's value.

    Raises:
        SerializationError: names the channel, the path inside the value and the type that was refused.
    """
    try:
        return serde.dumps_typed(value)
    except Exception as error:
        path, culprit = _refused(serde, value)
        raise SerializationError(
            f"{channel}{path}: a value of type {type(culprit).__module__}.{type(culprit).__qualname__} cannot be serialized "
            f"({type(error).__name__}: {error}); nothing was stored. Keep it out of the state, or use a serde that knows it"
        ) from error


def _refused(serde: SerializerProtocol, value: Any) -> tuple[str, Any]:
    """Path and value of the innermost part that the serde refuses."""
    path = ""
    for _ in range(100):  # a value may contain itself
        for step, part in _parts(value):
            if not _accepts(serde, part):
                path += step
                value = part
                break
        else:
            break
    return path, value


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [
            (f"[{key!r}]" if not isinstance(key, str) else f".{key}" if key.isidentifier() else f"[{key!r}]", part)
            for key, part in value.items()
        ]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    fields = getattr(value, "__dict__", None)
    return [(f".{name}", part) for name, part in fields.items()] if isinstance(fields, dict) else []


def _accepts(serde: SerializerProtocol, value: Any) -> bool:
    try:
        serde.dumps_typed(value)
    except Exception:
        return False
    return True
