"""Random lives of a store for the tests of upkeep: threads with namespaces, forks, writes, copies and removals, on small segments.

A life is a list of moves. A move names what it does to by position among what is there, so any list is a life, and a shorter one too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from ckptstore import LaneName, Store
from tests.contract.calls import everything, open_at, put, write
from tests.crash.programs import SEGMENT

CHANNELS = ("m", "n")
THREADS = ("a", "b", "c")

Move = tuple[str, int]
KINDS = ("put", "put", "delta", "delta", "delta", "write", "again", "head", "prune", "runs", "copy", "delete")

moves = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1 << 16)), min_size=1, max_size=40)


class Life(NamedTuple):
    """A store and what was put into it, for choosing what to do next."""

    store: Store
    ids: dict[LaneName, list[str]]
    """Ids ever put, removed ones too."""


def opened_life(path: Path | str, **options: Any) -> Life:
    return Life(open_at(path, **{"segment_bytes": SEGMENT, "auto_compact": False, **options}), {})


def lived(life: Life, given: Sequence[Move]) -> Life:
    """Make these moves."""
    for number, move in enumerate(given):
        make(life, move, number)
    return life


def make(life: Life, move: Move, number: int) -> None:
    """Make one move; some do nothing where there is nothing to do it to."""
    store, (kind, choice) = life.store, move
    rng = random.Random(choice)
    thread = rng.choice(THREADS)
    lane = LaneName(thread, rng.choice(("", "", "", "sub:1")))
    known = life.ids.setdefault(lane, [])
    id = f"{number:04}{rng.randbytes(2).hex()}"
    run = f"run {rng.randrange(3)}"
    parent = rng.choice([*known[-1:], *known[-3:], None]) if known else None
    if kind == "put":
        values = {"m": [_text(rng) for _ in range(rng.randrange(1, 6))], "n": _text(rng)}
        put(store, id, parent, values, lane=lane, run=run)
        known.append(id)
    elif kind == "delta":
        # A channel that is rebuilt from the writes on its lineage.
        if parent is not None:
            write(store, parent, _text(rng), task=f"task {rng.randrange(3)}", lane=lane)
        put(store, id, parent, {"n": _text(rng)}, versions={"m": id, "n": id}, lane=lane, run=run)
        known.append(id)
    elif kind == "write" and known:
        write(
            store, rng.choice(known), _text(rng), _text(rng), task=f"task {rng.randrange(9)}", channel=rng.choice("mn"), lane=lane
        )
    elif kind == "again" and known:
        put(store, rng.choice(known), parent, {"m": [_text(rng)]}, lane=lane, run=run)
    elif kind == "head":
        live = [stored.id for stored in store.list(*lane)]
        if live:
            store.set_head(lane, rng.choice(live))
    elif kind == "prune":
        store.prune(thread)
    elif kind == "runs":
        store.delete_for_runs([run])
    elif kind == "copy":
        store.copy(thread, f"{thread} copied {number}")
    elif kind == "delete":
        gone = rng.choice([info.thread for info in store.threads()] or ["nobody"])
        store.delete(gone)
        for lane in [lane for lane in life.ids if lane.thread == gone]:
            del life.ids[lane]


def _text(rng: random.Random) -> str:
    size = rng.choice((5, 60, 300, 1200) if rng.random() < 0.95 else (6000,))
    # Half of it repeats, so that values are stored as patches of each other.
    return "the same words again " * (size // 40) + rng.randbytes(size // 4).hex()


def told(store: Store) -> Any:
    """Everything a reader sees."""
    return everything(store, CHANNELS)
