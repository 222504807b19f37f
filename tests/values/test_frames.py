"""Whatever was stored before, each version of each branch reads back equal, and reading it touches few frames."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from base64 import b85encode
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptstore import LaneName, Store, StoreOptions
from ckptstore.activity import Activity
from ckptstore.codec.records import Encoded, Kind, encode_patched_value, encode_value, encode_writes, prepare_writes
from ckptstore.errors import CorruptionError
from ckptstore.lineage.values import MOST_FRAMES, Choice, Values
from ckptstore.model import Ref, Typed, WriteEntry
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.vfs import Vfs
from ckptstore.storage.memory import MemoryStorage
from ckptstore.testing.crashfs import CrashVfs, write_image
from tests.values.histories import Edit, History, closing, encode, read_every_value, text

KINDS = ["grow", "grow", "any", "any", "fork", "snapshot", "write", "write", "put again", "prune", "new thread of the same name"]
EDITS = st.builds(Edit, st.sampled_from(KINDS), st.integers(0, 1 << 16))
BREAKS = ["reopen", "index", "crash", "kill", "second store"]
OPTIONS = StoreOptions(segment_bytes=16384, cache_bytes=64 << 10)


def few_frames(store: Store) -> Counter[int]:
    """Check the bound for each value of a log; how often each number of frames was touched."""
    counted: Counter[int] = Counter()
    for read in read_every_value(store._storage):
        folded = {ref.lsn for ref in read.facts.folds}
        assert len(read.touched - folded) <= MOST_FRAMES, read
        if not folded:
            assert read.facts.frames == len(read.touched), read
        counted[len(read.touched)] += 1
    return counted


def opened(path: Path, vfs: Vfs) -> Store:
    return Store(LocalStorage(path, OPTIONS, vfs), OPTIONS)


class Folder:
    """A store on a crashing filesystem, and what may happen to it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / "store 0"
        self._count = 0
        self._also: Store | None = None
        self._vfs = CrashVfs(self._path)
        self.history = History(opened(self._path, self._vfs))

    def happen(self, what: str, seed: int) -> None:
        store = self.history.store
        if what == "second store":
            # Caches of its own: what the first one writes from here on, it has not seen, and the other way round.
            self.history.store = opened(self._path, self._vfs)
            self._also = store
            return
        if what in ("crash", "kill"):
            image = self._vfs.image(random.Random(seed), "live" if what == "kill" else "mixed")
            self.close()
            self._count += 1
            self._path = write_image(image, self._root / f"store {self._count}", garbage_index=seed % 3 == 0)
        else:
            self.close()
            if what == "index":
                shutil.rmtree(self._path / "index")
        self._vfs = CrashVfs(self._path)
        self.history.store = opened(self._path, self._vfs)

    def close(self) -> None:
        for store in (self.history.store, self._also):
            if store is not None:
                store.close()
        self._also = None


@given(program=st.lists(EDITS | st.sampled_from(BREAKS), min_size=1, max_size=40), seed=st.integers(0, 1 << 16))
@settings(max_examples=40, deadline=None)
def test_any_history_with_crashes_and_reopens(program: list[Edit | str], seed: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Folder(Path(root))
        try:
            for number, step in enumerate(program):
                if isinstance(step, str):
                    folder.happen(step, seed + number)
                    folder.history.check()
                else:
                    folder.history.run(step)
            folder.history.check()
            few_frames(folder.history.store)
            folder.happen("index", seed)
            folder.history.check()
        finally:
            folder.close()


@pytest.mark.parametrize("seed", range(3))
def test_long_histories(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [kind for kind in KINDS if kind not in ("prune", "new thread of the same name")]
    with closing(Store(MemoryStorage(), OPTIONS)) as store:
        history = History(store)
        for number in range(350):
            history.run(Edit(rng.choice(kinds), number))
        history.check()
        counted = few_frames(store)
    assert max(counted) > 4
    assert sum(counted.values()) > 400


@pytest.mark.parametrize("count", [600])
def test_a_list_that_only_grows(count: int) -> None:
    """Frames grow with the logarithm, and bytes with little more than the number of items."""
    with closing(Store(MemoryStorage(), OPTIONS)) as store:
        value: list[str] = []
        for number in range(count):
            value = [*value, text(random.Random(number))]
            put(store, f"c{number}", f"c{number - 1}" if number else None, {"a": value})
        counted = few_frames(store)
        assert max(counted) <= 12
        stored = sum(entry[2] for lsn in range(1, count + 1) for entry in entries(store, lsn) if entry[0] == Kind.VALUE)
        assert stored < 4 * len(encode("a", value)[1])


def put(store: Store, id: str, parent: str | None, values: dict[str, Any], thread: str = "t") -> None:
    versions = dict.fromkeys(values, id)
    store.put_checkpoint(
        LaneName(thread),
        id,
        parent,
        skeleton={},
        metadata={},
        versions=versions,
        values=values,
        changed=set(versions),
        encode=encode,
    )


def entries(store: Store, lsn: int) -> list[Any]:
    with store._storage.view() as view:
        return view.entries(lsn)


# -- snapshots that repeat writes ------------------------------------------------------------------------------------------


def commit(storage: MemoryStorage, record: Encoded) -> Ref:
    return Ref(storage.commit(lambda view: [record]), 0)


def a_fold(near_frames: int, *, large: bool) -> tuple[MemoryStorage, Ref]:
    """A snapshot stored against 20 writes, behind a value that takes so many frames to read.

    Args:
        large: each write is a reference to a value of another frame, as where it repeats what the input held.
    """
    storage = MemoryStorage()
    kept: list[str] = [text(random.Random(1), 2000)]
    typed = encode("log", kept)
    copy_all = bytes([1, 0, 0]) + varint(len(typed[1])) + b"\0\0"
    near = commit(storage, encode_value(typed, crc32(typed[1]), 0, typed[1]))
    for frames in range(2, near_frames + 1):
        near = commit(storage, encode_patched_value(typed, crc32(typed[1]), copy_all, 0, frames, (near,), ()))
    folds = []
    for number in range(20):
        # Noise: where another patch would be less than half of the value, a fold of so many frames is not worth its followers' price.
        item = [b85encode(random.Random(100 + number).randbytes(1600 if large else 300)).decode()]
        kept += item
        write: Ref | Typed = encode("log", item)
        if large:
            write = commit(storage, encode_value(write, crc32(write[1]), 0, write[1]))
        prepared = prepare_writes(f"task {number}", "", [WriteEntry(0, "log", write)])
        record = encode_writes(prepared, lane=1, target="c", token=b"", origin=0, task=b"", mask=0, regular=True, child=None)
        folds.append(commit(storage, record))
    typed = encode("log", kept)
    with storage.view() as view:
        snapshot = Values(1 << 20, Activity).encode(view, typed, crc32(typed[1]), Choice(near, (), folds))
    return storage, commit(storage, snapshot)


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value >= 0x80 else bytes([value])


@pytest.mark.parametrize("near_frames", [1, 5, MOST_FRAMES - 1, MOST_FRAMES])
def test_a_snapshot_of_writes_touches_these_and_few_frames_besides(near_frames: int) -> None:
    storage, ref = a_fold(near_frames, large=False)
    *_, read = read_every_value(storage)
    assert read.ref == ref
    assert len(read.facts.folds) == 20
    assert read.facts.frames == len(read.touched)
    assert len(read.touched - {fold.lsn for fold in read.facts.folds}) <= MOST_FRAMES


def test_a_snapshot_of_writes_counts_the_values_these_refer_to() -> None:
    storage, ref = a_fold(1, large=True)
    *_, read = read_every_value(storage)
    assert read.ref == ref
    assert read.facts.frames == len(read.touched)


# -- damage ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_in_a_base_never_gives_a_wrong_value(seed: int) -> None:
    """In memory no frame has a checksum, so that what is tested here is the checksum of the decoded bytes."""
    rng = random.Random(seed)
    kinds = [kind for kind in KINDS if kind not in ("prune", "new thread of the same name")]
    storage = MemoryStorage()
    refused = based = 0
    with closing(Store(storage, OPTIONS)) as store:
        history = History(store)
        for number in range(60):
            history.run(Edit(rng.choice(kinds), number))
        good = {read.ref: read.facts for read in read_every_value(storage)}
        bases = sorted({base for facts in good.values() for base in facts.bases})
        for base in rng.sample(bases, min(12, len(bases))):
            directory, bodies = storage._frames[base.lsn]
            with storage.view() as view:
                lengths = [entry[2] for entry in view.entries(base.lsn)]
            at = sum(lengths[: base.ordinal]) + rng.randrange(lengths[base.ordinal])
            storage._frames[base.lsn] = directory, bodies[:at] + bytes([bodies[at] ^ 1 << rng.randrange(8)]) + bodies[at + 1 :]
            for ref, facts in good.items():
                with storage.view() as view:
                    try:
                        raw = Values(0, Activity).raw(view, ref)
                    except CorruptionError:
                        refused += 1
                        based += ref != base
                        continue
                assert (len(raw), crc32(raw)) == (facts.length, facts.crc)
            storage._frames[base.lsn] = directory, bodies
        history.check(Store(storage, OPTIONS))
    assert refused > 12
    assert based


def test_a_value_based_on_itself_is_damage() -> None:
    """A log that nobody of ours wrote; checksums do not find it."""
    storage = MemoryStorage()
    raw = bytes(100)
    ref = commit(storage, encode_patched_value(("bytes", raw), crc32(raw), b"\0\0\0", 1, 2, (Ref(0, 0),), ()))
    with storage.view() as view, pytest.raises(CorruptionError):
        Values(0, Activity).raw(view, ref)


def test_a_chain_longer_than_allowed_is_damage() -> None:
    storage = MemoryStorage()
    raw = bytes(range(100))
    ref = commit(storage, encode_value(("bytes", raw), crc32(raw), 0, raw))
    for _ in range(MOST_FRAMES):
        ref = commit(storage, encode_patched_value(("bytes", raw), crc32(raw), b"\1\0\0\x64\0\0", 0, 2, (ref,), ()))
    with storage.view() as view, pytest.raises(CorruptionError):
        Values(0, Activity).raw(view, ref)


# -- another process -------------------------------------------------------------------------------------------------------

CHILD = """
import json, sys
from ckptstore import LaneName, StoreOptions, Store, open
from tests.values.test_frames import put
store = open(sys.argv[1], durability="process")
for line in sys.stdin:
    what, id, parent, values = json.loads(line)
    if what == "put":
        put(store, id, parent, values)
    elif what == "prune":
        store.prune("t")
    else:
        store.delete("t")
    print("done", flush=True)
store.close()
"""


def test_another_process_writes_in_between(tmp_path: Path) -> None:
    """Two processes take turns on one thread: what each remembers of bases is old half of the time, or was removed."""
    rng = random.Random(3)
    root = Path(__file__).resolve().parent.parent.parent
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert child.stdin is not None
    assert child.stdout is not None
    options = StoreOptions(durability="process")
    kept: dict[str, Any] = {}
    head = None
    with closing(Store(LocalStorage(tmp_path / "s", options), options)) as store:
        value: dict[str, Any] = {"a": [text(rng, 3000)], "b": [text(rng, 3000)]}
        for number in range(120):
            what = rng.choices(["put", "prune", "delete"], [20, 2, 1])[0]
            id = f"c{number:03}"
            if what == "put":
                parent = head if rng.random() < 0.7 or not kept else rng.choice(sorted(kept))
                value = {
                    "a": [*kept.get(parent, value)["a"], text(rng)],
                    "b": rng.choice([value["b"], [text(rng, 3000)], value["a"][:2]]),
                }
                kept[id], head = value, id
            elif what == "prune":
                kept = {head: kept[head]} if head else {}
                parent = None
            else:
                kept, head, parent = {}, None, None
            if rng.random() < 0.5:
                child.stdin.write(json.dumps([what, id, parent, value]) + "\n")
                child.stdin.flush()
                assert child.stdout.readline() == "done\n"
            elif what == "put":
                put(store, id, parent, value)
            elif what == "prune":
                store.prune("t")
            else:
                store.delete("t")
            assert ids_and_values(store) == kept
        child.stdin.close()
        assert child.wait(30) == 0
        few_frames(store)
    with closing(Store(LocalStorage(tmp_path / "s", options), options)) as store:
        assert ids_and_values(store) == kept


def ids_and_values(store: Store) -> dict[str, Any]:
    return {item.id: {channel: msgpack.unpackb(raw) for channel, (_, raw) in item.values.items()} for item in store.list("t", "")}
