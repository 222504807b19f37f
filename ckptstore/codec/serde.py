"""Serializers as this package uses them, and errors that say which part of a value one refused."""

from __future__ import annotations

from typing import Any, Protocol

from ckptstore.errors import SerializationError
from ckptstore.model import Typed


class Serde(Protocol):
    """A serializer, as LangGraph's are: typed bytes out of objects, and back."""

    def dumps_typed(self, obj: Any) -> Typed: ...
    def loads_typed(self, data: Typed) -> Any: ...


def dump(serde: Serde, channel: str, value: Any) -> Typed:
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


def _refused(serde: Serde, value: Any) -> tuple[str, Any]:
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
        return [(f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    fields = getattr(value, "__dict__", None)
    return [(f".{name}", part) for name, part in fields.items() if not name.startswith("__")] if isinstance(fields, dict) else []


def _accepts(serde: Serde, value: Any) -> bool:
    try:
        serde.dumps_typed(value)
    except Exception:
        return False
    return True
