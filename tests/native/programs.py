"""Random programs of native calls for the crash tests, what a reader must see after each call, and the store they run on.

Checkpoints are named by their position in their thread, so that a program means the same in each process that runs it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from ckptstore import Store
from tests.model.lanes import Model, View, remove
from tests.native.calls import SCHEMA, UNSET, Overwrite


class Call(NamedTuple):
    """One call of a program."""

    kind: Literal["step", "head", "prune", "copy", "delete"]
    thread: str
    at: int | None = None
    """Position of the checkpoint to step from or to make the head; None for a new thread."""
    writes: dict[str, Any] = {}  # noqa: RUF012  never changed
    to: str = ""


def program(seed: int, length: int) -> list[Call]:
    """A random program; the same seed gives the same one."""
    rng = random.Random(seed)
    model, calls = Model(), []
    for number in range(length):
        kind = rng.choices(("step", "head", "prune", "copy", "delete"), (30, 3, 1, 1, 1))[0]
        thread = rng.choice(("a", "b"))
        lane = model.threads.get(thread)
        if lane is None or kind == "step":
            count = 0 if lane is None else len(lane.snapshots)
            at = None if not count else rng.choice((count - 1, rng.randrange(count)))
            call = Call("step", thread, at, _writes(rng, number))
        elif kind == "head":
            call = Call("head", thread, rng.randrange(len(lane.snapshots)))
        else:
            call = Call(kind, thread, to=f"copy {number}" if kind == "copy" else "")
        calls.append(call)
        apply(model, call)
    return calls


def _writes(rng: random.Random, number: int) -> dict[str, Any]:
    text = rng.randbytes(rng.choice((5, 40, 300))).hex()
    choices: dict[str, Sequence[Any]] = {
        "log": ([f"{number} {text}"], [f"{number} {text}"], [], UNSET, Overwrite([text])),
        "title": (text, UNSET, None),
        "facts": ({str(number % 3): text}, {str(number % 5): number}, Overwrite({"new": number}), UNSET),
        "chat": ([{"id": number % 4, "text": text}], [remove(number % 4)], [{"id": number, "text": ""}, remove(number % 3)]),
        "total": (number, 1),
    }
    return {name: rng.choice(choices[name]) for name in rng.sample(sorted(choices), rng.randint(1, 4))}


def apply(model: Model, call: Call) -> None:
    """Make one call of a program on the model."""
    if call.kind == "step":
        at = None if call.at is None else list(model.threads[call.thread].snapshots)[call.at]
        model.step(call.thread, at, call.writes)
    elif call.kind == "head":
        lane = model.threads[call.thread]
        lane.head = list(lane.snapshots)[call.at or 0]
    elif call.kind == "prune":
        model.prune(call.thread)
    elif call.kind == "copy":
        model.copy(call.thread, call.to)
    else:
        model.delete(call.thread)


def run(store: Store, call: Call) -> None:
    """Make one call of a program."""
    if call.kind in ("step", "head"):
        cursor = store.thread(call.thread, schema=SCHEMA, snapshot_frequency=4)
        if call.at is not None:
            cursor = cursor.at([item.id for item in store.list(call.thread, "")][::-1][call.at])
        if call.kind == "step":
            cursor.step(call.writes)
        else:
            cursor.set_head()
    elif call.kind == "prune":
        store.prune(call.thread)
    elif call.kind == "copy":
        store.copy(call.thread, call.to)
    else:
        store.delete(call.thread)


@cache
def views(seed: int, length: int) -> Sequence[View]:
    """What a reader sees after each number of calls of a program, from none on."""
    model = Model()
    found = [model.view()]
    for call in program(seed, length):
        apply(model, call)
        found.append(model.view())
    return found


def count_of(found: View, expected: Sequence[View], least: int, most: int) -> int:
    """How many calls of a program a store holds, `least` <= n <= `most`: no torn call, no mixture, nothing lost or doubled."""
    for count in range(most, least - 1, -1):
        if found == expected[count]:
            return count
    raise AssertionError(
        f"no state after {least} to {most} calls; it is the state after {[n for n, view in enumerate(expected) if view == found]}"
    )
