"""How native threads turn values into bytes: msgpack of plain types, and nothing else.

Plain means None, bool, int (64 bits), float, str, bytes, list, and dict. Anything else is refused with its path, since it would come
back as another type: a tuple as a list, a subclass as its base. `Overwrite` and `UNSET` travel as type tags, not as values.
"""

from __future__ import annotations

from typing import Any

import msgpack

from ckptstore.codec.serde import Serde, dump
from ckptstore.model import Typed
from ckptstore.state.channels import UNSET, Overwrite

_OVERWRITE = "overwrite+"
_UNSET = "unset"


class PlainSerde:
    """msgpack of plain types."""

    def dumps_typed(self, obj: Any) -> Typed:
        """Typed bytes of a plain value.

        Raises:
            TypeError, ValueError, OverflowError: it is not plain.
        """
        _refuse_bytes_like(obj)
        return "msgpack", msgpack.packb(obj, strict_types=True, unicode_errors="surrogatepass")

    def loads_typed(self, data: Typed) -> Any:
        return msgpack.unpackb(data[1], strict_map_key=False, unicode_errors="surrogatepass")


def dump_write(serde: Serde, channel: str, write: Any) -> Typed:
    """Serialize a write, which may be an `Overwrite` or `UNSET`."""
    if write is UNSET:
        return _UNSET, b""
    if isinstance(write, Overwrite):
        tag, data = dump(serde, channel, write.value)
        return _OVERWRITE + tag, data
    return dump(serde, channel, write)


def load_write(serde: Serde, typed: Typed) -> Any:
    """Undo `dump_write`; a plain value comes back as it is."""
    tag, data = typed
    if tag == _UNSET:
        return UNSET
    if tag.startswith(_OVERWRITE):
        return Overwrite(serde.loads_typed((tag[len(_OVERWRITE) :], data)))
    return serde.loads_typed(typed)


def _refuse_bytes_like(value: Any) -> None:
    """msgpack takes a bytearray or a memoryview for bytes, and it would come back as these."""
    if type(value) is list:
        for item in value:
            _refuse_bytes_like(item)
    elif type(value) is dict:
        for key, item in value.items():
            _refuse_bytes_like(key)
            _refuse_bytes_like(item)
    elif isinstance(value, bytearray | memoryview):
        raise TypeError(f"not a plain value: {type(value).__name__}")
