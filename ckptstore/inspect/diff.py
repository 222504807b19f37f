"""What differs between two checkpoints, path by path, on values that are only looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ckptstore.codec.inert import Inert
from ckptstore.inspect.looking import looking
from ckptstore.inspect.refs import Reference, UnknownReferenceError
from ckptstore.inspect.show import UNFOLDED, UNREAD, ChannelView, CheckpointView, view_of

Kind = Literal["added", "removed", "changed"]
Step = str | int
"""A field or key, a position in a list, or `id=...` for an item of a list whose items carry ids."""


class Difference(NamedTuple):
    """One place where two values differ."""

    channel: str
    path: tuple[Step, ...]
    kind: Kind
    before: Any
    """None with `added`."""
    after: Any
    """None with `removed`."""


class DiffReport(NamedTuple):
    """Two checkpoints, and what differs."""

    before: CheckpointView
    after: CheckpointView
    differences: list[Difference]
    unchanged: list[str]
    """Channels that are equal."""
    uncompared: list[str]
    """Channels that could not be read, on either side."""
    problems: list[str]


def diff_report(
    path: str | os.PathLike[str],
    first: Reference,
    second: Reference | None = None,
    *,
    channels: Sequence[str] | None = None,
    lock_timeout: float = 30.0,
) -> DiffReport:
    """Compare two checkpoints, of one lane or of two.

    Args:
        first: the earlier one; or, without `second`, the later one, which is compared with its parent.
        channels: only these; all when None.
        lock_timeout: seconds, see `opened`.

    Raises:
        UnknownReferenceError: there is no such checkpoint, or no parent.
        CorruptionError: the record of one of them is damaged.
        what `opened` raises.
    """
    with looking(path, lock_timeout) as (here, problems):
        if second is None:
            after = view_of(here, first)
            if after.parent is None:
                raise UnknownReferenceError(f"checkpoint {after.id!r} has no parent to compare with: name two checkpoints")
            # Named by its id: the head may have moved since.
            first = Reference(first.thread, first.ns, after.parent, exact=True)
            before = view_of(here, first)
        else:
            before, after = view_of(here, first), view_of(here, second)
    if channels is not None:
        before, after = (view._replace(channels=[one for one in view.channels if one.name in channels]) for view in (before, after))
    report = compared(before, after)
    return report._replace(problems=problems + report.problems)


def compared(before: CheckpointView, after: CheckpointView) -> DiffReport:
    """What differs between two checkpoints that were read."""
    left = {channel.name: channel for channel in before.channels}
    right = {channel.name: channel for channel in after.channels}
    found: list[Difference] = []
    unchanged, uncompared = [], []
    for name in sorted(left.keys() | right.keys()):
        if any(side is not None and side.how == UNREAD for side in (left.get(name), right.get(name))):
            uncompared.append(name)
            continue
        older, newer = _content(left.get(name)), _content(right.get(name))
        items = [Difference(name, *item) for item in differences(older, newer)]
        found += items
        if not items:
            unchanged.append(name)
    problems = [f"{view.id}: {problem}" for view in (before, after) for problem in view.problems]
    return DiffReport(before, after, found, unchanged, uncompared, problems)


class _Nothing:
    """There is no value."""


_NOTHING = _Nothing()


def _content(channel: ChannelView | None) -> Any:
    if channel is None or channel.how == "empty":
        return _NOTHING
    if channel.how == UNFOLDED:
        return {"seed": channel.seed, "writes": [write.value for write in channel.writes]}
    return channel.value


def differences(before: Any, after: Any, path: tuple[Step, ...] = ()) -> Iterator[tuple[tuple[Step, ...], Kind, Any, Any]]:
    """(path, kind, before, after) of the smallest parts that differ.

    >>> list(differences({"a": [1, 2]}, {"a": [1, 3], "b": 0}))
    [(('a', 1), 'changed', 2, 3), (('b',), 'added', None, 0)]
    """
    if before is _NOTHING or after is _NOTHING:
        if before is not after:
            yield (path, "added", None, after) if before is _NOTHING else (path, "removed", before, None)
    elif isinstance(before, dict) and isinstance(after, dict):
        yield from _of_maps(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(before, after, path)
    elif isinstance(before, Inert) and isinstance(after, Inert) and before.type_name == after.type_name:
        yield from _of_maps(before.fields, after.fields, path)
        yield from _of_lists(before.args, after.args, path)
    elif not _same(before, after):
        yield path, "changed", before, after


def _of_maps(
    before: Mapping[Any, Any], after: Mapping[Any, Any], path: tuple[Step, ...]
) -> Iterator[tuple[tuple[Step, ...], Kind, Any, Any]]:
    for key in [*before, *(key for key in after if key not in before)]:
        step = key if isinstance(key, str) else repr(key)
        yield from differences(before.get(key, _NOTHING), after.get(key, _NOTHING), (*path, step))


def _of_lists(
    before: Sequence[Any], after: Sequence[Any], path: tuple[Step, ...]
) -> Iterator[tuple[tuple[Step, ...], Kind, Any, Any]]:
    older, newer = _by_id(before), _by_id(after)
    if older is not None and newer is not None and (older or newer):
        yield from _of_maps(older, newer, path)
        if [key for key in older if key in newer] != [key for key in newer if key in older]:
            yield (*path, "order"), "changed", list(older), list(newer)
        return
    same = 0
    while same < min(len(before), len(after)) and _equal(before[same], after[same]):
        same += 1
    ends = 0
    while ends < min(len(before), len(after)) - same and _equal(before[-1 - ends], after[-1 - ends]):
        ends += 1
    for at in range(same, max(len(before), len(after)) - ends):
        left = before[at] if at < len(before) - ends else _NOTHING
        right = after[at] if at < len(after) - ends else _NOTHING
        yield from differences(left, right, (*path, at))


def _by_id(items: Sequence[Any]) -> dict[str, Any] | None:
    """Items by what they call themselves; None unless each does, by a name of its own."""
    found = {}
    for item in items:
        fields = item.fields if isinstance(item, Inert) else item
        id = fields.get("id") if isinstance(fields, Mapping) else None
        if not isinstance(id, str) or f"id={id}" in found:
            return None
        found[f"id={id}"] = item
    return found


def _equal(left: Any, right: Any) -> bool:
    return next(differences(left, right), None) is None


def _same(left: Any, right: Any) -> bool:
    """For what has no parts to compare. 1, 1.0 and True are stored differently. Not a number equals itself."""
    if type(left) is not type(right) or isinstance(left, Inert):
        return False
    return bool(left == right) or (left != left and right != right)
