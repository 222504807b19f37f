"""A checkpoint store for agent runs: an append-only log of what changed, exact in every branch.

LangGraph users import `CkptSaver` from `langgraph.checkpoint.ckptstore`. This package is the engine below it and imports no
LangGraph. `open` gives a `Store`; errors are in one tree under `CkptStoreError`.
"""

from ckptstore import errors
from ckptstore.errors import CkptStoreError
from ckptstore.model import (
    ChannelHistory,
    Consumed,
    LaneName,
    Origin,
    PendingWrite,
    Source,
    StoredCheckpoint,
    ThreadInfo,
)
from ckptstore.options import StoreOptions
from ckptstore.store import Store, open

__version__ = "0.1.0"

__all__ = [
    "ChannelHistory",
    "CkptStoreError",
    "Consumed",
    "LaneName",
    "Origin",
    "PendingWrite",
    "Source",
    "Store",
    "StoreOptions",
    "StoredCheckpoint",
    "ThreadInfo",
    "errors",
    "open",
]
