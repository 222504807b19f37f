"""A program that went wrong as a short Python script, which goes wrong in the same way and needs nothing of this package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from langgraph.checkpoint.ckptstore.testing.failures import Failure, differing, how_many, mistaken, place, raised
from langgraph.checkpoint.ckptstore.testing.invocations import MADE_AT, Invocation, Writers, invocation

from ckptstore.testing.calls import Compact, Found, History, Listing, Past, Refused, SetHead


class Maker(NamedTuple):
    """How a script makes a saver."""

    imports: str
    expression: str
    managed: bool = False
    """Whether the expression gives a context manager."""
    asynchronous: bool = False


def imported(named: Any, use: str) -> Maker:
    """Importing something by its name and using it; what is a lambda or a method, or made in a function or the main program, has none."""
    module, name = getattr(named, "__module__", None), getattr(named, "__qualname__", "")
    if name.isidentifier() and module not in (None, "__main__"):
        return Maker(f"from {module} import {name}", name + use)
    return Maker("make_saver = ...  # how you make it", "make_saver()")


def script(failure: Failure, maker: Maker) -> str:
    """The program as Python. Its last line is an assertion that fails, or a call that raises."""
    writing = _Writing(maker)
    body = [writing.statement(call) for call in failure.program[:-1]] + writing.last(failure)
    made = ["saver = " + maker.expression, *body]
    if maker.managed:
        made = [f"{'async ' if maker.asynchronous else ''}with {maker.expression} as saver:", *_indented(body)]
    if maker.asynchronous:
        made = ["async def main():", *_indented(made), "", "", "asyncio.run(main())"]
    main = "\n".join([*(f"{name} = {{}}  # the metadata of one run" for name in writing.runs), *made])
    imports = "\n".join(
        ["import asyncio\n"] * maker.asynchronous + [maker.imports] + ["import ckptstore"] * ("ckptstore.Lane" in main)
    )
    helpers = [code for name, code in _HELPERS.items() if f"{name}(" in main]
    return "\n\n\n".join([f'"""{failure.sentence}"""\n\n{imports}', *helpers, main]) + "\n"


_HELPERS = {
    "at": """\
def at(thread, ns="", id=None, **more):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}, **more}""",
    "checkpoint": f"""\
def checkpoint(id, values, versions, seen=None):
    state = {{"channel_values": values, "channel_versions": versions, "versions_seen": seen or {{}}, "updated_channels": None}}
    return {{"v": 4, "id": id, "ts": "{MADE_AT}", **state}}""",
}


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" if line else line for whole in lines for line in whole.split("\n")]


class _Writing:
    """Writes calls down, for the sync or the async interface."""

    def __init__(self, maker: Maker) -> None:
        self._async = maker.asynchronous
        self._writers = Writers()
        self.runs: dict[str, None] = {}
        """Runs that are told apart by their metadata."""

    def statement(self, call: Any) -> str:
        if not isinstance(call, Listing):
            return self._call(call)
        return self._items(call, "item") if self._async else f"list({self._call(call)})"

    def _call(self, call: Any) -> str:
        if isinstance(call, SetHead):
            return f"saver.store.set_head(ckptstore.LaneName({call.thread!r}, {call.ns!r}), {call.id!r})"
        if isinstance(call, Compact):
            return "saver.store.compact()"
        made = invocation(call, self._writers)
        text = f"saver.{'a' * self._async}{made.method}({self._arguments(made)})"
        return f"await {text}" if self._async and made.method != "list" else text

    def _value(self, call: Any) -> str:
        return f"({self._call(call)})" if self._async else self._call(call)

    def _items(self, call: Listing, each: str, where: str = "") -> str:
        return f"[{each} {'async ' * self._async}for item in {self._call(call)}{where and ' if '}{where}]"

    def _arguments(self, made: Invocation) -> str:
        shown = [self._literal(argument) for argument in made.arguments]
        if made.method == "put":
            checkpoint = made.arguments[1]
            state = [checkpoint["id"], checkpoint["channel_values"], checkpoint["channel_versions"], checkpoint["versions_seen"]]
            shown[1] = f"checkpoint({', '.join(map(repr, state if state[-1] else state[:-1]))})"
        return ", ".join([*shown, *(f"{name}={self._literal(value)}" for name, value in made.named.items())])

    def _literal(self, value: Any) -> str:
        if not (isinstance(value, dict) and "configurable" in value):
            return repr(value)
        at = value["configurable"]
        if at.keys() != {"thread_id", "checkpoint_ns", "checkpoint_id"}:
            return repr(value)
        shown = [repr(at["thread_id"])]
        if at["checkpoint_ns"]:
            shown.append(repr(at["checkpoint_ns"]))
        if at["checkpoint_id"] is not None:
            shown.append(f"{'' if at['checkpoint_ns'] else 'id='}{at['checkpoint_id']!r}")
        if "metadata" in value:
            name = self._writers.name(value["metadata"])
            self.runs[name] = None
            shown.append(f"metadata={name}")
        return f"at({', '.join(shown)})"

    def last(self, failure: Failure) -> list[str]:
        """The lines that show what is wrong."""
        call, expected, found = failure.call, failure.expected, failure.found
        if isinstance(found, Exception):
            error = raised(found)
            return [f"# {type(error).__name__}: {str(error)!r:.100}", self.statement(call)]
        if isinstance(expected, Refused):
            done = f'raise AssertionError("not refused: {expected.why}")'
            return ["try:", f"    {self.statement(call)}", "except Exception:", "    pass", "else:", f"    {done}"]
        if isinstance(call, History):
            wrong = (name for name in call.channels if not isinstance(found, Mapping) or expected[name] != found.get(name))
            channel = next(wrong, None)
            if channel is None:  # it has channels that were not asked for
                return _compared(f"sorted({self._call(call)})", sorted(expected))
            return _compared(f"{self._value(call)}[{channel!r}]", _history(channel, expected[channel]))
        if isinstance(call, Listing):
            return self._listing(call, failure) if failure.ordered else self._listing_in_any_order(call, failure)
        if expected is None or found is None:
            return _compared(self._call(call), None) if expected is None else [f"assert {self._call(call)} is not None"]
        each, pick = _FIELDS[differing(expected, found)[0]]
        return _compared(each.format(self._value(call)), pick(expected))

    def _listing(self, call: Listing, failure: Failure) -> list[str]:
        pair = mistaken(failure)
        each, pick = _FIELDS[differing(*pair)[0] if pair else "id"]
        return _compared(self._items(call, each.format("item")), [pick(item) for item in failure.expected])

    def _listing_in_any_order(self, call: Listing, failure: Failure) -> list[str]:
        expected, count, pair = failure.expected, how_many(call, failure.expected), mistaken(failure)
        read, name = _ID if _ids_tell(failure, count) else _PLACE
        if pair is not None:
            each, pick = _FIELDS[differing(*pair)[0]]
            return _compared(self._items(call, each.format("item"), f"{read} == {name(pair[0])!r}"), [pick(pair[0])])
        places = sorted(map(name, expected))
        items = self._items(call, read)
        if call.limit is None or not count:
            return _compared(f"sorted({items})" if count > 1 else items, places[:count])
        same = f"len(found) == len(set(found)) == {count} and set(found) <= {{{', '.join(map(repr, places))}}}"
        return [f"found = {items}", f"assert {same}, found"]


_FIELDS: dict[str, tuple[str, Any]] = {
    "thread": ('{}.config["configurable"]["thread_id"]', lambda item: item.thread),
    "ns": ('{}.config["configurable"]["checkpoint_ns"]', lambda item: item.ns),
    "id": ('{}.config["configurable"]["checkpoint_id"]', lambda item: item.id),
    "parent": ("{}.parent_config", lambda item: _config(item)),
    "versions": ('{}.checkpoint["channel_versions"]', lambda item: item.versions),
    "values": ('{}.checkpoint["channel_values"]', lambda item: item.values),
    "metadata": ("{}.metadata", lambda item: item.metadata),
    "seen": ('{}.checkpoint["versions_seen"]', lambda item: item.seen),
    "writes": ("{}.pending_writes", lambda item: item.writes),
}
"""How a script reads each field of a checkpoint, and what it has to be."""

_ID = ('item.config["configurable"]["checkpoint_id"]', lambda item: item.id)
_PLACE = ('tuple(item.config["configurable"][key] for key in ("thread_id", "checkpoint_ns", "checkpoint_id"))', place)
"""How a script reads which checkpoint a listed one is."""


def _ids_tell(failure: Failure, count: int) -> bool:
    """Whether a listing is seen to be wrong by ids alone. A copied thread has the same ones."""
    ids, found = [item.id for item in failure.expected], [item.id for item in failure.found]
    right = len(found) == len(set(found)) == count and set(found) <= set(ids)
    return len(ids) == len(set(ids)) and (not right or mistaken(failure) is not None)


def _config(item: Found) -> dict[str, Any] | None:
    at = {"thread_id": item.thread, "checkpoint_ns": item.ns, "checkpoint_id": item.parent}
    return None if item.parent is None else {"configurable": at}


def _history(channel: str, past: Past) -> dict[str, Any]:
    seed = {"seed": past.seed[0]} if past.seed else {}
    return {"writes": [(task, channel, value) for task, value in past.writes], **seed}


def _compared(expression: str, expected: Any) -> list[str]:
    same = "found is None" if expected is None else f"found == {expected!r}"
    return [f"found = {expression}", f"assert {same}, found"]
