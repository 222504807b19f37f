"""Random programs of calls: memory and folder answer alike, a reopened store and one with a new index too, and nobody misses dead frames."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ckptstore import LaneName, Source, Store
from ckptstore.errors import CkptStoreError
from ckptstore.storage.memory import MemoryStorage
from tests.contract.calls import dead, everything, late_of, logical_view, of_token, open_at, put, write

THREADS = st.sampled_from(["a", "b"])
LANES = st.builds(LaneName, THREADS, st.sampled_from(["", "n:1"]))
IDS = st.sampled_from(["1", "2", "3", "4", "5"])
TOKENS = st.sampled_from([b"", b"writeA", b"writeB"])
RUNS = st.sampled_from(["r1", "r2", None])


def _log(length: int) -> list[str]:
    """Logs of different lengths begin alike, so that one can be stored as a change of another."""
    return [f"line {number} of {number * number}" for number in range(length)]


VALUES = st.one_of(st.integers(0, 3), st.integers(0, 3).map(lambda number: [number] * 30), st.integers(30, 60).map(_log))

CALLS = st.one_of(
    st.tuples(st.just("put"), LANES, IDS, st.none() | IDS, st.dictionaries(st.sampled_from("mn"), VALUES), TOKENS, RUNS),
    st.tuples(st.just("put"), LANES, IDS, IDS, st.just({}), TOKENS, RUNS),
    st.tuples(st.just("write"), LANES, IDS, st.sampled_from("mn"), VALUES, st.sampled_from(["k1", "k2"]), TOKENS),
    st.tuples(st.just("twin"), LANES, IDS, IDS),
    st.tuples(st.just("head"), LANES, IDS),
    st.tuples(st.just("prune"), THREADS),
    st.tuples(st.just("copy"), THREADS, st.sampled_from(["a", "b", "c"])),
    st.tuples(st.just("delete"), st.sampled_from(["a", "b", "c"])),
    st.tuples(st.just("runs"), st.sampled_from(["r1", "r2"])),
)
PLACES = st.sampled_from(["", "", "", "", "", "", "", "reopen", "new index"])


def _twin(store: Store, lane: LaneName, original: str, id: str) -> Any:
    """A copy of a checkpoint as a sibling, made by what made the original."""
    stored = store.get(lane, original)
    if stored is None or stored.parent is None:
        return None

    def rule(edge: Any) -> Any:
        for sibling in edge.siblings:
            if sibling.record().id == original:
                return sibling.entry.consumed
        return of_token(b"")(edge)

    return put(store, id, stored.parent, {}, lane=lane, versions=stored.versions, changed=(), source=Source.FORK, rule=rule)


def _run(store: Store, call: Any) -> Any:
    """Make one call; what it answers, or the error it raises, without the log's positions."""
    name, *arguments = call
    try:
        if name == "put":
            lane, id, parent, values, token, run = arguments
            versions = {"m": f"{id}{parent}", **{channel: f"{id}.{value}" for channel, value in values.items()}}
            put(store, id, parent, values, lane=lane, versions=versions, token=token, rule=of_token(token), run=run)
        elif name == "write":
            lane, target, channel, value, task, token = arguments
            write(store, target, value, task=task, channel=channel, lane=lane, token=token, late=late_of(token))
        elif name == "twin":
            _twin(store, *arguments)
        elif name == "head":
            store.set_head(*arguments)
        elif name == "prune":
            return store.prune(*arguments)
        elif name == "copy":
            return store.copy(*arguments)
        elif name == "delete":
            return store.delete(*arguments)
        else:
            return store.delete_for_runs(arguments)
    except CkptStoreError as error:
        return type(error).__name__, str(error).split(": the thread was deleted")[0]
    return None


def _reopened(store: Store, path: Path, new_index: bool, options: dict[str, Any]) -> Store:
    """The store closed and opened again; its answers and its index must not have changed."""
    answers, index, gone = everything(store), logical_view(store), dead(store)
    store.close()
    if new_index:
        shutil.rmtree(path / "index")
    again = open_at(path, **options)
    assert logical_view(again) == index
    assert everything(again) == answers
    assert dead(again) == gone
    return again


@given(program=st.lists(st.tuples(CALLS, PLACES), max_size=25), small=st.booleans(), index=st.sampled_from(["lmdb", "sqlite"]))
@settings(max_examples=60, deadline=None)
def test_memory_and_folder_answer_alike(program: list[Any], small: bool, index: str) -> None:
    options: dict[str, Any] = {"index": index, **({"segment_bytes": 4096} if small else {})}
    with tempfile.TemporaryDirectory() as folder, open_at(":memory:") as memory:
        path = Path(folder) / "s"
        local = open_at(path, **options)
        try:
            for call, place in program:
                assert _run(local, call) == _run(memory, call)
                if place:
                    local = _reopened(local, path, place == "new index", options)
            assert everything(local) == everything(memory)
            local = _reopened(local, path, True, options)
            assert everything(local) == everything(memory)
        finally:
            local.close()


@given(program=st.lists(CALLS, max_size=30))
@settings(max_examples=150, deadline=None)
def test_nobody_misses_a_dead_frame(program: list[Any]) -> None:
    """Each frame is dropped as soon as it is dead: neither the calls that follow nor any read may miss it."""
    with open_at(":memory:") as store, open_at(":memory:") as untouched:
        storage = store._storage
        assert isinstance(storage, MemoryStorage)
        for call in program:
            assert _run(store, call) == _run(untouched, call)
            for lsn in dead(store) & storage._frames.keys():
                del storage._frames[lsn]
        assert everything(store) == everything(untouched)
