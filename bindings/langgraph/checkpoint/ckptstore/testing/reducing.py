"""Making a failing program smaller than hypothesis does: calls and parts of calls are dropped one by one while it still fails alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from langgraph.checkpoint.ckptstore.testing.failures import Failure

from ckptstore.testing.calls import Call, Get, History, Listing, Put, PutWrites

Program = tuple[Call, ...]
Run = Callable[[Program], Failure | None]


def reduced(failure: Failure, run: Run) -> Failure:
    """The smallest program found that fails with the same symptom.

    Args:
        run: makes the calls on a new saver; the first failure, or None where there is none or a call does not fit in.
    """
    while (smaller := _smaller(failure, run)) is not None:
        failure = smaller
    return failure


def _smaller(failure: Failure, run: Run) -> Failure | None:
    for program in _candidates(failure.program):
        found = run(program)
        if found is not None and found.symptom == failure.symptom and _size(found.program) < _size(failure.program):
            return found
    return None


def _size(program: Program) -> tuple[int, int]:
    return len(program), len(repr(program).replace("None", ""))


def _candidates(program: Program) -> Iterator[Program]:
    last = len(program) - 1
    size = last
    while size:
        for start in range(0, last, size):
            yield _kept(program, lambda at, start=start, size=size: not start <= at < min(start + size, last))  # type: ignore[misc]
        size //= 2
    for at, call in enumerate(program):
        for simpler in _simpler(call):
            yield (*program[:at], simpler, *program[at + 1 :])
    for names in _namings(program):
        yield tuple(_renamed(call, names) for call in program)


def _kept(program: Program, keep: Callable[[int], bool]) -> Program:
    """The calls without some; a checkpoint whose parent goes stands on the parent of that."""
    kept = [call for at, call in enumerate(program) if keep(at)]
    numbers = {call.number for call in kept if isinstance(call, PutWrites)}
    gone = {call.id: call.parent for at, call in enumerate(program) if isinstance(call, Put) and not keep(at)}
    return tuple(_moved(call, numbers, gone) if isinstance(call, Put) else call for call in kept)


def _moved(call: Put, numbers: set[int], gone: dict[str, str | None]) -> Put:
    if call.parent not in gone:
        return call._replace(made_by=_among(numbers, call.made_by), taken=_among(numbers, call.taken))
    parent: str | None = call.parent
    while parent in gone:
        parent = gone[parent]
    return call._replace(parent=parent, made_by=(), taken=())


def _among(numbers: set[int], some: Iterable[int]) -> tuple[int, ...]:
    return tuple(number for number in some if number in numbers)


# -- one call ------------------------------------------------------------------------------------------------------------


def _simpler(call: Call) -> Iterator[Call]:
    match call:
        case Put():
            if call.writer is not None:
                yield call._replace(writer=None)
            yield call._replace(seen={})
            for channel in call.versions:
                yield call._replace(
                    versions=_less(call.versions, channel),
                    values=_less(call.values, channel),
                    changed=tuple(name for name in call.changed if name != channel),
                    seen={},
                )
            for channel in call.values:
                yield call._replace(values=_less(call.values, channel))
            for key in call.metadata:
                yield call._replace(metadata=_less(call.metadata, key))
        case PutWrites():
            if call.writer is not None:
                yield call._replace(writer=None)
            yield call._replace(path="")
            for at in range(len(call.writes)):
                yield call._replace(writes=call.writes[:at] + call.writes[at + 1 :])
        case History():
            for channel in call.channels:
                yield call._replace(channels=(channel,))
        case Listing():
            yield call._replace(limit=None)
            yield call._replace(before=None)
            yield call._replace(id=None)
            for key in call.filter:
                yield call._replace(filter=_less(call.filter, key))


def _less(items: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in items.items() if name != key}


# -- names ---------------------------------------------------------------------------------------------------------------


class _Names(dict[Any, str]):
    """New names for old ones, of one kind."""

    def __missing__(self, name: Any) -> Any:
        return name


def _namings(program: Program) -> Iterator[dict[str, _Names]]:
    """Short names for ids, tasks, versions and texts: for all at once, else for one kind at a time."""
    kinds = {
        "id": _ordered(sorted(set(_ids(program)))),
        "version": _ordered(
            sorted({version for call in program if isinstance(call, Put) for version in call.versions.values()}, key=str)
        ),
        "task": _Names({task: f"t{at}" for at, task in enumerate(_seen(_tasks(program)), 1)}),
        "text": _Names({text: chr(ord("a") + at % 26) for at, text in enumerate(_seen(_texts(program)))}),
        "ns": _Names(dict.fromkeys((call.ns for call in program if isinstance(call, Put | PutWrites | Get | History)), "")),
    }
    nothing = {kind: _Names() for kind in kinds}
    yield kinds
    yield {**kinds, "ns": _Names()}
    for kind, names in kinds.items():
        yield {**nothing, kind: names}


def _ordered(names: list[Any]) -> _Names:
    width = len(str(len(names)))
    return _Names({name: f"{at:0{width}}" for at, name in enumerate(names, 1)})


def _seen(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _ids(program: Program) -> Iterator[str]:
    for call in program:
        match call:
            case Put():
                yield call.id
                yield from (id for id in (call.parent, call.twin_of) if id is not None)
            case PutWrites():
                yield call.target
            case Get() | History():
                yield from (id for id in (call.id,) if id is not None)
            case Listing():
                yield from (id for id in (call.id, call.before) if id is not None)


def _tasks(program: Program) -> Iterator[str]:
    return (call.task for call in program if isinstance(call, PutWrites))


def _texts(program: Program) -> Iterator[str]:
    for call in program:
        if isinstance(call, PutWrites):
            yield from _strings([value for _, value in call.writes])
        elif isinstance(call, Put):
            yield from _strings(list(call.values.values()))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _renamed(call: Call, names: dict[str, _Names]) -> Call:
    id, version, task, ns = names["id"], names["version"], names["task"], names["ns"]
    match call:
        case Put():
            return call._replace(
                ns=ns[call.ns],
                id=id[call.id],
                parent=id[call.parent],
                twin_of=id[call.twin_of],
                versions={name: version[found] for name, found in call.versions.items()},
                seen={node: {name: version[found] for name, found in seen.items()} for node, seen in call.seen.items()},
                values={name: _retold(value, names["text"]) for name, value in call.values.items()},
            )
        case PutWrites():
            writes = tuple((channel, _retold(value, names["text"])) for channel, value in call.writes)
            return call._replace(
                ns=ns[call.ns], target=id[call.target], task=task[call.task], writes=writes, late_for=id[call.late_for]
            )
        case Get() | History():
            return call._replace(ns=ns[call.ns], id=id[call.id])
        case Listing():
            return call._replace(ns=ns[call.ns], id=id[call.id], before=id[call.before])
    return call


def _retold(value: Any, texts: _Names) -> Any:
    if isinstance(value, list):
        return [_retold(item, texts) for item in value]
    return texts[value] if isinstance(value, str) else value
