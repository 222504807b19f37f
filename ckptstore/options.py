"""What a user may set when a store is opened, checked by pydantic before any file is touched."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ckptstore.errors import InvalidArgumentError

Durability = Literal["commit", "interval", "process"]
"""What an acknowledged call survives: `commit` a power loss, `interval` a power loss but for the last window, `process` a kill."""

Mode = Literal["full", "delta"]

IndexKind = Literal["lmdb", "sqlite"]
"""Kind of the disposable index: `lmdb` is faster, `sqlite` can be shared by processes of several pid namespaces (containers)."""

MEBIBYTE = 1 << 20


class StoreOptions(BaseModel):
    """Options of one opened store. All processes of one store may differ in them, `mode` and `index` excepted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    durability: Durability = "commit"
    index: IndexKind | None = None
    """None keeps the kind that the store has, and gives a new one `lmdb`. Another kind than the store has is built when it is opened by
    nobody else, and refused while it is."""
    read_only: bool = False
    mode: Mode | None = None
    max_value_bytes: int = Field(default=256 * MEBIBYTE, ge=1, le=1024 * MEBIBYTE)
    lock_timeout: float = Field(default=30.0, gt=0, le=3600)
    late_window: float = Field(default=7 * 86400.0, ge=0, le=366 * 86400)
    """Seconds for which ids removed by a thread deletion are remembered, so that late writes to them are refused."""
    sync_interval: float = Field(default=0.1, gt=0, le=60)
    """Seconds between two fsyncs at `durability="interval"`."""
    segment_bytes: int = Field(default=64 * MEBIBYTE, ge=4096, le=1024 * MEBIBYTE)
    """Size at which a new segment is begun."""
    cache_bytes: int = Field(default=64 * MEBIBYTE, ge=0)
    """Bound of the in-process caches: a quarter for verified frames, the rest for decoded bytes of values."""
    auto_compact: bool = True
    """After a deletion or a prune: compact in the background when much of the log is dead."""
    allow_network_filesystem: bool = False


def checked_options(**given: Any) -> StoreOptions:
    """Build `StoreOptions`.

    Raises:
        InvalidArgumentError: names the option, the value given and the range.
    """
    try:
        return StoreOptions(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "options"
        raise InvalidArgumentError(f"{name}={first['input']!r}: {first['msg']}") from None
