"""Everything a store says, fact by fact, so that what a damaged store says can be held against it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from ckptstore import CkptStoreError, LaneName, Store
from tests.upkeep.lives import CHANNELS

Key = tuple[str, ...]
Facts = dict[Key, Any]
"""What is asked -> the answer, or the error that came instead."""

_LISTED = ("thread", "listed")


def facts(store: Store, known: Iterable[Key] = ()) -> Facts:
    """Ask a store for everything it lists, and for all that is known of it.

    Args:
        known: also ask for these, whether the store lists them or not.
    """
    found: Facts = {}
    for info in _each(store.threads()):
        if isinstance(info, CkptStoreError):
            found["error", "of threads"] = info
        else:
            found["thread", info.thread] = info
    places = {(LaneName(key[1], key[2]), key[3]) for key in known if key[0] == "checkpoint"}
    for number, item in enumerate(_each(store.list())):
        if isinstance(item, CkptStoreError):
            found["error", f"list {number}"] = item
        else:
            found["listed", *item.lane, item.id] = item
            places.add((item.lane, item.id))
    for lane, id in sorted(places):
        stored = _asked(found, ("checkpoint", *lane, id), partial(store.get, lane, id))
        for channel in CHANNELS:
            if stored is not None and channel in stored.versions and channel not in stored.values:
                _asked(found, ("past", *lane, id, channel), partial(store.history, lane, id, [channel]))
    for lane in sorted({lane for lane, _ in places}):
        _asked(found, ("head", *lane), partial(store.get, lane))
    return found


def _each(items: Iterator[Any]) -> Iterator[Any]:
    """What a listing gives, errors included."""
    while True:
        try:
            yield next(items)
        except StopIteration:
            return
        except CkptStoreError as error:
            yield error


def _asked(found: Facts, key: Key, ask: Callable[[], Any]) -> Any:
    try:
        answer = ask()
    except CkptStoreError as error:
        found[key] = error
        return None
    if answer is not None:
        found[key] = answer
    return answer


def errors(found: Facts, truth: Mapping[Key, Any]) -> list[Key]:
    """What a reader is told by an error where it once got an answer."""
    return [
        key
        for key, answer in found.items()
        if isinstance(answer, CkptStoreError) and not isinstance(truth.get(key), CkptStoreError)
    ]


def lies(found: Facts, truth: Mapping[Key, Any]) -> list[str]:
    """What is said otherwise than it is, and what is missing without an error."""
    silent = not any(key[0] == "error" for key in found)
    lost_checkpoints = {key[1:4] for key, answer in found.items() if key[0] == "checkpoint" and isinstance(answer, CkptStoreError)}
    said = [
        f"{key}: {answer} instead of {truth.get(key, 'nothing')}"
        for key, answer in found.items()
        if not isinstance(answer, CkptStoreError) and truth.get(key) != answer
    ]
    missing = [
        f"{key} is missing"
        for key in truth
        if key not in found
        # A listing that met an error said so; a past is not asked of a checkpoint that gave an error.
        and (silent or key[0] not in _LISTED)
        and not (key[0] == "past" and key[1:4] in lost_checkpoints)
    ]
    return said + missing
