"""Locks and fork: a child inherits every lock as it stood, and no thread that would give it back.

Whoever owns locks registers itself; in a forked child each owner makes new ones. What such a lock protects is a cache or a table whose
single steps are atomic, so a child may find it in any state between two steps.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class LockOwner(Protocol):
    """Something that owns locks."""

    def new_locks(self) -> None:
        """Make the locks, at creation and in a forked child."""
        ...


_owners: WeakSet[LockOwner] = WeakSet()


def own_locks(owner: LockOwner) -> None:
    """Make the locks of `owner` now, and again in every forked child."""
    owner.new_locks()
    _owners.add(owner)


def process_id() -> int:
    """The pid of this process, without a system call: a store asks at each call whether it was forked since."""
    return _pid


_pid = os.getpid()


def _in_child() -> None:
    global _pid
    _pid = os.getpid()
    for owner in list(_owners):
        owner.new_locks()


os.register_at_fork(after_in_child=_in_child)
