"""A checkpoint store for agent runs: an append-only log of what changed, exact in every branch.

LangGraph users import `CkptSaver` from `langgraph.checkpoint.ckptstore`. This package is the engine below it and imports no
LangGraph. A tour of it:

>>> import ckptstore
>>> from ckptstore import channels
>>> store = ckptstore.open(":memory:")          # or a folder, which several processes may share

A thread has channels. A step writes to some of them, and stores the writes and the checkpoint they make in one commit.

>>> thread = store.thread("user-42", schema={"messages": channels.append(), "title": channels.last_value()})
>>> first = thread.step({"messages": ["hi"], "title": "greeting"})
>>> second = thread.step({"messages": ["hello!"]})
>>> thread.state()
{'messages': ['hi', 'hello!'], 'title': 'greeting'}

A thread is a cursor on its own tip. Going back and stepping from there begins a branch; both stay exact.

>>> branch = thread.at(first).fork()
>>> third = branch.step({"messages": ["again"]})
>>> branch.state()["messages"], thread.state()["messages"]
(['hi', 'again'], ['hi', 'hello!'])
>>> [checkpoint.id == first.id for checkpoint in branch.lineage()]
[False, True]
>>> thread.diff(first)
{'messages': Change(before=['hi'], after=['hi', 'hello!'])}

The head is the newest checkpoint of a lane until somebody moves it. `expect_head` refuses a step when another writer was faster.

>>> thread.head().id == third.id
True
>>> thread.set_head(second)
>>> branch.step({"title": "late"}, expect_head=True)  # doctest: +ELLIPSIS
Traceback (most recent call last):
ckptstore.errors.ConflictError: ...

The schema is remembered, so a later open needs none. What a thread holds can be copied, pruned to its heads, and deleted.

>>> store.thread("user-42").state()["messages"]
['hi', 'hello!']
>>> store.copy("user-42", "user-43")
3
>>> store.prune("user-43")
2
>>> [(info.thread, info.checkpoints) for info in store.threads()]
[('user-42', 3), ('user-43', 1)]
>>> store.delete("user-42")
True
>>> store.thread("user-43").state()["messages"]
['hi', 'hello!']
>>> store.close()

What reads or writes the disk has an async twin with an `a` in front (docs/engine.md). Errors are in one tree under `CkptStoreError`
(ckptstore.errors); rules of ownership for bindings are in ckptstore.ownership, serializers in ckptstore.serde, tools for your tests in
ckptstore.testing.
"""

from ckptstore import channels, errors
from ckptstore.errors import CkptStoreError
from ckptstore.folders import BackupReport, RestoreReport, StoreExistsError, backup, open, restore, salvage, verify
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
from ckptstore.store import Store
from ckptstore.thread import Change, Checkpoint, Thread
from ckptstore.upkeep.checker import Problem
from ckptstore.upkeep.erasure import CopiesRemainError
from ckptstore.upkeep.policy import PruneReport, RetentionPolicy, ThreadPrune
from ckptstore.upkeep.salvage import SalvageReport
from ckptstore.upkeep.sweeper import Sweeper
from ckptstore.upkeep.verify import VerifyReport

__version__ = "0.1.0"

__all__ = [
    "BackupReport",
    "Change",
    "ChannelHistory",
    "Checkpoint",
    "CkptStoreError",
    "Consumed",
    "CopiesRemainError",
    "LaneName",
    "Origin",
    "PendingWrite",
    "Problem",
    "PruneReport",
    "RestoreReport",
    "RetentionPolicy",
    "SalvageReport",
    "Source",
    "Store",
    "StoreExistsError",
    "StoreOptions",
    "StoredCheckpoint",
    "Sweeper",
    "Thread",
    "ThreadInfo",
    "ThreadPrune",
    "VerifyReport",
    "backup",
    "channels",
    "errors",
    "open",
    "restore",
    "salvage",
    "verify",
]
