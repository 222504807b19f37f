"""Small programs of commits, what a reader must see after each call, and how to tell how much of a program a store holds.

Only the engine is used, so that the processes of the kill tests start fast.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ckptstore import LaneName, Store, StoreOptions
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.vfs import Vfs

Level = Literal["commit", "interval", "process"]
LEVELS: tuple[Level, ...] = ("commit", "interval", "process")

SEGMENT = 4096
"""The smallest segment there may be: a program of some dozen calls rotates."""


class Call(NamedTuple):
    """One call of a program."""

    kind: Literal["put", "writes", "delete", "copy", "prune"]
    thread: str
    id: str = ""
    parent: str | None = None
    text: str = ""


class Seen(NamedTuple):
    """A checkpoint as a reader sees it."""

    id: str
    parent: str | None
    value: str
    writes: tuple[tuple[str, str], ...]


State = dict[str, list[Seen]]
"""Thread -> its checkpoints, oldest first."""


def program(seed: int, length: int, *, only: Sequence[str] = ("put", "writes", "delete", "copy", "prune")) -> list[Call]:
    """A random program; the same seed gives the same one. Some values are larger than a segment."""
    rng = random.Random(seed)
    calls: list[Call] = []
    state: State = {}
    while len(calls) < length:
        kind = rng.choices(("put", "writes", "delete", "copy", "prune"), (12, 8, 1, 1, 1))[0]
        thread = rng.choice(("a", "b"))
        text = rng.randbytes(rng.choice((10, 150, 400, 900)) if rng.random() < 0.97 else 3000).hex()
        call = Call("put", thread, f"{len(calls):04}", state[thread][-1].id if state.get(thread) else None, text)
        if thread in state and kind in only:
            if kind == "writes":
                call = Call("writes", thread, rng.choice(state[thread]).id, None, f"{len(calls):04}{text}")
            elif kind == "prune" and len(state[thread]) > 1:
                call = Call("prune", thread)
            elif kind == "copy":
                call = Call("copy", thread, f"copy {len(calls)}")
            elif kind == "delete":
                call = Call("delete", thread)
        calls.append(call)
        state = after(state, call)
    return calls


def after(state: State, call: Call) -> State:
    """The model: what readers see once a call is through."""
    state = {thread: list(lane) for thread, lane in state.items()}
    lane = state.get(call.thread, [])
    if call.kind == "put":
        state[call.thread] = [*lane, Seen(call.id, call.parent, call.text, ())]
    elif call.kind == "writes":
        at = next(at for at, seen in enumerate(lane) if seen.id == call.id)
        lane[at] = lane[at]._replace(writes=tuple(sorted((*lane[at].writes, (call.text[:4], call.text)))))
    elif call.kind == "delete":
        del state[call.thread]
    elif call.kind == "copy":
        state[call.id] = list(lane)
    else:
        state[call.thread] = lane[-1:]
    return state


def states(calls: Sequence[Call]) -> list[State]:
    """The state after each number of calls, from none on."""
    found: list[State] = [{}]
    for call in calls:
        found.append(after(found[-1], call))
    return found


def typed(channel: str, value: Any) -> tuple[str, bytes]:
    """A serializer for text."""
    return "text", str(value).encode()


def run(store: Store, call: Call) -> None:
    """Make one call of a program."""
    lane = LaneName(call.thread)
    if call.kind == "put":
        store.put_checkpoint(
            lane,
            call.id,
            call.parent,
            skeleton={},
            metadata={},
            versions={"log": call.id},
            values={"log": call.text},
            changed={"log"},
            encode=typed,
        )
    elif call.kind == "writes":
        store.put_writes(lane, call.id, [(0, "log", call.text)], task_id=call.text[:4], encode=typed)
    elif call.kind == "delete":
        store.delete(call.thread)
    elif call.kind == "copy":
        store.copy(call.thread, call.id)
    else:
        store.prune(call.thread)


def seen(store: Store) -> State:
    """Everything a reader sees of a store."""
    return {
        info.thread: [
            Seen(
                stored.id,
                stored.parent,
                stored.values["log"][1].decode(),
                tuple(sorted((write.task_id, write.value[1].decode()) for write in stored.writes)),
            )
            for stored in store.list(info.thread, "")
        ][::-1]
        for info in store.threads()
    }


class Unsynced(Vfs):
    """The real filesystem without fsync: for tests that read files or kill processes, and cut no power."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


UNSYNCED = Unsynced()


@contextmanager
def opened(path: Path, level: Level = "commit", vfs: Vfs = UNSYNCED, **options: Any) -> Iterator[Store]:
    """A store with small segments, closed at the end."""
    chosen = StoreOptions(**{"durability": level, "segment_bytes": SEGMENT, **options})
    store = Store(LocalStorage(path, chosen, vfs), chosen)
    try:
        yield store
    finally:
        store.close()


def assert_prefix(found: State, expected: Sequence[State], least: int, most: int) -> None:
    """A store holds the first n calls of a program, `least` <= n <= `most`: no torn call, no mixture, nothing lost or doubled."""
    assert any(found == expected[count] for count in range(least, most + 1)), (
        f"no state after {least} to {most} calls; it is the state after {[n for n, state in enumerate(expected) if state == found]}"
    )
