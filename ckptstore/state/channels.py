"""Channels: how the writes of a step change a value. Live steps and replays fold through the same code, so they cannot differ.

>>> from ckptstore.state import channels
>>> channels.fold(channels.append(), ["hi"], [["hello!"], ["again"]])
['hi', 'hello!', 'again']
>>> channels.fold(channels.merge(), {"a": 1}, [{"b": 2}, channels.Overwrite({"c": 3}), {"d": 4}])
{'c': 3, 'd': 4}
>>> chat = channels.keyed()
>>> channels.fold(chat, channels.UNSET, [[{"id": "m1", "text": "hi"}, {"id": "m2", "text": "yes"}], [channels.remove("m1")]])
[{'id': 'm2', 'text': 'yes'}]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ckptstore.errors import InvalidArgumentError, ReducerError


class _Unset:
    """The type of `UNSET`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()
"""As a write: the channel has no value from here on. As a value: there is none."""


@dataclass(frozen=True, slots=True)
class Overwrite:
    """As a write: the value is replaced, whatever the channel's reducer would do."""

    value: Any


_REMOVE: Final = "__remove__"


def remove(key: Any) -> dict[str, Any]:
    """An item for a `keyed` channel: the item with this key goes. Removing what is not there does nothing."""
    return {_REMOVE: key}


class Channel(Protocol):
    """How a channel folds its writes.

    `reduce` has to be deterministic, must not change what it is given, and must not care how writes are batched: reducing
    [a] and then [b] gives what reducing [a, b] gives. `ckptstore.testing.check_reducer` checks a reducer for exactly that.
    """

    @property
    def kind(self) -> tuple[str, ...]:
        """What the store remembers of it: the name of a built-in kind, and its parameters."""
        ...

    @property
    def whole(self) -> bool:
        """Whether the value after a step is the write itself, so that nothing has to be replayed."""
        ...

    def reduce(self, value: Any, writes: Sequence[Any]) -> Any:
        """The value after these writes.

        Args:
            value: the value before, or `UNSET`.
            writes: plain writes, oldest first; `Overwrite` and `UNSET` are dealt with outside.
        """
        ...


def fold(channel: Channel, value: Any, writes: Sequence[Any]) -> Any:
    """Apply writes, `Overwrite` and `UNSET` among them, oldest first.

    Args:
        value: the value before, or `UNSET`.

    Raises:
        ReducerError: the channel cannot take a write.
    """
    waiting: list[Any] = []
    for write in writes:
        if write is UNSET:
            value, waiting = UNSET, []
        elif isinstance(write, Overwrite):
            value, waiting = write.value, []
        else:
            waiting.append(write)
    return channel.reduce(value, waiting) if waiting else value


@dataclass(frozen=True, slots=True)
class _LastValue:
    kind = ("last_value",)
    whole = True

    def reduce(self, value: Any, writes: Sequence[Any]) -> Any:
        return writes[-1] if writes else value


@dataclass(frozen=True, slots=True)
class _Append:
    kind = ("append",)
    whole = False

    def reduce(self, value: Any, writes: Sequence[Any]) -> Any:
        items = list(_expected(self, value, list, []))
        for write in writes:
            items.extend(_expected(self, write, list, []))
        return items


@dataclass(frozen=True, slots=True)
class _Merge:
    kind = ("merge",)
    whole = False

    def reduce(self, value: Any, writes: Sequence[Any]) -> Any:
        merged = dict(_expected(self, value, dict, {}))
        for write in writes:
            merged.update(_expected(self, write, dict, {}))
        return merged


@dataclass(frozen=True, slots=True)
class _Keyed:
    key: str
    whole = False

    @property
    def kind(self) -> tuple[str, ...]:
        return ("keyed", self.key)

    def reduce(self, value: Any, writes: Sequence[Any]) -> Any:
        # A dictionary keeps the order in which keys came; replacing an item keeps its place.
        items = {self._key(item): item for item in _expected(self, value, list, [])}
        for write in writes:
            for item in _expected(self, write, list, []):
                if isinstance(item, Mapping) and item.keys() == {_REMOVE}:
                    items.pop(_hashable(item[_REMOVE]), None)
                else:
                    items[self._key(item)] = item
        return list(items.values())

    def _key(self, item: Any) -> Any:
        try:
            key = item[self.key]
        except (KeyError, TypeError, IndexError):
            raise ReducerError(f"an item of a keyed channel has no {self.key!r}: it is a {type(item).__name__}") from None
        return _hashable(key)


@dataclass(frozen=True, slots=True)
class _Reduce:
    function: Callable[[Any, Any], Any]
    name: str
    whole = False

    @property
    def kind(self) -> tuple[str, ...]:
        return ("reduce", self.name)

    def reduce(self, value: Any, writes: Sequence[Any]) -> Any:
        for write in writes:
            try:
                value = write if value is UNSET else self.function(value, write)
            except Exception as error:
                raise ReducerError(
                    f"reducer {self.name!r} failed on a write of type {type(write).__name__}: {type(error).__name__}: {error}"
                ) from error
        return value


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        raise ReducerError(f"a key of a keyed channel is a {type(key).__name__}: a string or a number is needed") from None
    return key


def _expected(channel: Channel, value: Any, kind: type, empty: Any) -> Any:
    if value is UNSET:
        return empty
    if not isinstance(value, kind):
        raise ReducerError(f"a channel of kind {channel.kind[0]!r} takes a {kind.__name__}, not a {type(value).__name__}")
    return value


def last_value() -> Channel:
    """The last write is the value."""
    return _LastValue()


def append() -> Channel:
    """Writes are lists; the value is all of them, one after the other."""
    return _Append()


def merge() -> Channel:
    """Writes are maps; later entries replace earlier ones of the same key. One level deep."""
    return _Merge()


def keyed(key: str = "id") -> Channel:
    """Writes are lists of maps that carry a key: an item replaces the one with its key in place, a new key comes last.

    Args:
        key: name of the entry that holds the key. `remove(key)` as an item takes one out.
    """
    if not isinstance(key, str):
        raise InvalidArgumentError(f"key={key!r}: a string is needed")
    return _Keyed(key)


def reduce(function: Callable[[Any, Any], Any], *, name: str | None = None) -> Channel:
    """Writes are folded by a function of yours: `function(value, write)` gives the new value; the first write is the first value.

    The store remembers the name, not the function: give it again when you open the thread later.

    Args:
        name: what to remember it by; the function's qualified name when None.
    """
    if not callable(function):
        raise InvalidArgumentError(f"function={function!r}: a callable is needed")
    if name is None and not isinstance(getattr(function, "__qualname__", None), str):
        raise InvalidArgumentError(f"name=None: {function!r} has no name of its own, so one is needed")
    if name is not None and not isinstance(name, str):
        raise InvalidArgumentError(f"name={name!r}: a string is needed")
    return _Reduce(function, name if name is not None else function.__qualname__)


def remembered(kind: Sequence[str]) -> Channel | None:
    """The channel that a remembered kind names, or None where a function has to be given again."""
    if kind[0] == "keyed":
        return _Keyed(kind[1])
    built_in: dict[str, Channel] = {"last_value": _LastValue(), "append": _Append(), "merge": _Merge()}
    return built_in.get(kind[0])
