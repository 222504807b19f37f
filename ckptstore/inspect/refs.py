"""References to lanes and checkpoints, as they are typed in a shell: `user-42`, `user-42@1f0a`, `user-42/sub:ns@HEAD~3`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ckptstore.codec.records import Kind, checkpoint_id
from ckptstore.errors import CkptStoreError, CorruptionError, InvalidArgumentError, StaleIndexError
from ckptstore.lineage.listing import ns_name
from ckptstore.model import LaneName
from ckptstore.storage import View
from ckptstore.storage.catalog import CheckpointEntry

_NAMED_AT_MOST = 3


class UnknownReferenceError(CkptStoreError, LookupError):
    """What a reference names is not in the store, or it names more than one checkpoint."""


class Reference(NamedTuple):
    """A parsed reference."""

    thread: str
    ns: str = ""
    id: str | None = None
    """A whole id, or the beginning of one; None for the head."""
    back: int = 0
    """How many parents to go back from there."""
    exact: bool = False
    """`id` is whole: never taken for the beginning of another."""
    lane: bool = False
    """No checkpoint was named, not even the head: where a lane can be meant, it is."""


class Place(NamedTuple):
    """What a reference came to: a lane, and a checkpoint in it."""

    lane: LaneName
    number: int
    """The lane's number."""
    id: str
    entry: CheckpointEntry


_WHERE = re.compile(r"(?P<id>[^~]*)(?P<back>(?:~\d*)*)")


def parse_reference(text: str | None, *, thread: str | None = None, ns: str | None = None, id: str | None = None) -> Reference:
    """Read a reference.

    Args:
        text: `thread[/namespace][@where]`, with `where` being `HEAD`, a checkpoint id, or the beginning of one, and `~N` behind it for
            the Nth parent. Without `@`, the head. The last `@` and the first `/` count.
        thread, ns, id: the same parts literally, for ids with `@`, `/` or `~` in them. With `thread`, `text` is None or `@where`.

    Raises:
        InvalidArgumentError: it does not read as one, or says something twice.

    >>> parse_reference("user-42/sub:1@1f0a~2")
    Reference(thread='user-42', ns='sub:1', id='1f0a', back=2, exact=False, lane=False)
    """
    name, at, where = ("", "", "") if text is None else text.rpartition("@") if "@" in text else (text, "", "")
    if thread is not None:
        if name:
            raise InvalidArgumentError(f"the reference {text!r} names a thread, and --thread={thread!r} another: give one of them")
        lane, slash, inner = thread, "", ""
    else:
        if not name:
            raise InvalidArgumentError(f"reference {text!r}: it names no thread: THREAD, THREAD@ID, THREAD/NS@HEAD~1, or --thread")
        lane, slash, inner = name.partition("/")
    if ns is not None and slash:
        raise InvalidArgumentError(f"the reference {text!r} names a namespace, and --ns={ns!r} another: give one of them")
    if not lane:
        raise InvalidArgumentError(f"reference {text!r}: the thread is empty")
    found, back = None, 0
    if at:
        matched = _WHERE.fullmatch(where)
        if matched is None or not where:
            raise InvalidArgumentError(f"reference {text!r}: behind '@' stands HEAD or a checkpoint id, and ~N for the Nth parent")
        found = matched["id"] if matched["id"] not in ("", "HEAD") else None
        back = sum(int(step) if step else 1 for step in matched["back"].split("~")[1:])
        if id is not None and found is not None:
            raise InvalidArgumentError(f"the reference {text!r} names a checkpoint, and --id={id!r} another: give one of them")
    return Reference(lane, inner if ns is None else ns, found if id is None else id, back, id is not None, not at and id is None)


def find_lane(view: View, reference: Reference) -> tuple[LaneName, int]:
    """The lane a reference names, and its number.

    Raises:
        UnknownReferenceError: names what is there instead.
    """
    lane = LaneName(reference.thread, reference.ns)
    number = view.lane(*lane)
    if number is not None:
        return lane, number
    thread = view.thread(reference.thread)
    if thread is None:
        odd = "; a thread whose id has '@' or '/' in it is named by --thread" if reference.ns or not reference.lane else ""
        raise UnknownReferenceError(f"no thread {reference.thread!r} in this store{odd}")
    names = sorted(ns_name(view, other) for other in view.lanes(thread))
    some = ", ".join(repr(name) for name in names[:_NAMED_AT_MOST]) + (", ..." if len(names) > _NAMED_AT_MOST else "")
    wanted = f"namespace {reference.ns!r}" if reference.ns else "root namespace"
    raise UnknownReferenceError(f"thread {reference.thread!r} has no {wanted}; it has {some}")


def find_checkpoint(view: View, reference: Reference) -> Place:
    """The checkpoint a reference names.

    Raises:
        UnknownReferenceError: there is none, or several.
        CorruptionError: it is damaged.
    """
    lane, number = find_lane(view, reference)
    entry = view.head(number) if reference.id is None else _named(view, lane, number, reference)
    if entry is None:
        raise UnknownReferenceError(f"{lane} holds no checkpoint")
    for step in range(reference.back):
        parent = view.live_checkpoint(number, entry.parent) if entry.parent else None
        if parent is None:
            why = "was pruned or never stored" if entry.parent else "does not exist: that is the first one"
            raise UnknownReferenceError(f"{lane}: {step} parents back is checkpoint {id_of(view, entry)!r}, and its parent {why}")
        entry = parent
    return Place(lane, number, id_of(view, entry), entry)


def _named(view: View, lane: LaneName, number: int, reference: Reference) -> CheckpointEntry:
    assert reference.id is not None
    known = view.number(number, reference.id)
    entry = None if known is None else view.checkpoint(number, known)
    if entry is not None and not entry.removed:
        return entry
    if entry is not None:
        raise UnknownReferenceError(f"{lane}: checkpoint {reference.id!r} was removed")
    if reference.exact:
        raise UnknownReferenceError(f"{lane} holds no checkpoint {reference.id!r}")
    found, damaged = {}, 0
    for item in live_entries(view, number):
        try:
            id = id_of(view, item)
        except (CorruptionError, StaleIndexError):
            damaged += 1
            continue
        if id.startswith(reference.id):
            found[id] = item
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        some = ", ".join(sorted(found)[:_NAMED_AT_MOST]) + (", ..." if len(found) > _NAMED_AT_MOST else "")
        raise UnknownReferenceError(f"{lane}: {reference.id!r} is the beginning of {len(found)} ids: {some}")
    unread = f"; the ids of {damaged} damaged ones could not be read" if damaged else ""
    raise UnknownReferenceError(f"{lane} holds no checkpoint whose id begins with {reference.id!r}{unread}")


def live_entries(view: View, lane: int) -> Iterator[CheckpointEntry]:
    """A lane's checkpoints, newest first."""
    for _, number in view.newest_first(lane):
        entry = view.live_checkpoint(lane, number)
        if entry is not None:
            yield entry


def id_of(view: View, entry: CheckpointEntry) -> str:
    """A checkpoint's id, from the directory of its frame."""
    return checkpoint_id(view.entry(entry.ref, Kind.CHECKPOINT))
