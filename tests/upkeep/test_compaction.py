"""Compaction changes nothing that anybody reads: not in random lives, at power cuts, beside other processes, or in damaged logs.

Kills at each of its points are in tests/crash/test_kill.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import ckptstore
from ckptstore import LaneName, Store, StoreOptions
from ckptstore.errors import CkptStoreError, CorruptionError, StorageIOError
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.vfs import Vfs
from ckptstore.testing.crashfs import CrashVfs, Image, write_image
from tests.contract.calls import LANE, ids, open_at, pending, put, values, write
from tests.crash.programs import SEGMENT, UNSYNCED, opened
from tests.helpers import flip, frames
from tests.upkeep.lives import Life, Move, lived, make, moves, opened_life, told

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ROOT = Path(__file__).resolve().parents[2]


def folder_bytes(path: Path) -> int:
    """What a folder takes on disk: LMDB's lock file is mostly a hole."""
    return sum(min(file.stat().st_size, file.stat().st_blocks * 512) for file in path.rglob("*") if file.is_file())


def rebuilt(path: Path, **options: Any) -> Store:
    """Open a store with an index built anew."""
    shutil.rmtree(path / "index")
    return open_at(path, **{"segment_bytes": SEGMENT, "auto_compact": False, **options})


@FEW
@given(moves)
def test_readers_see_no_difference(given: Sequence[Move]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = lived(opened_life(Path(folder) / "store"), given)
        before = told(life.store)
        life.store.compact()
        assert told(life.store) == before
        life.store.compact()
        assert told(life.store) == before
        life.store.close()


@FEW
@given(moves, moves)
def test_it_is_opened_rebuilt_written_to_and_compacted_again(first: Sequence[Move], then: Sequence[Move]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        life = lived(opened_life(path), first)
        before = told(life.store)
        life.store.compact()
        life.store.close()
        again = Life(rebuilt(path), life.ids)
        assert told(again.store) == before
        for number, move in enumerate(then, 100):
            make(again, move, number)
        before = told(again.store)
        again.store.compact()
        assert told(again.store) == before
        again.store.close()
        with rebuilt(path) as store:
            assert told(store) == before
        report = ckptstore.verify(path)
        assert (report.problems, report.index_state) == ([], "agrees")


@FEW
@given(moves)
def test_in_memory_too(given: Sequence[Move]) -> None:
    life = lived(Life(ckptstore.open(":memory:"), {}), given)
    before = told(life.store)
    life.store.compact()
    assert told(life.store) == before
    assert life.store.verify().problems == []


def test_r09_a_deleted_thread_gives_its_space_back(tmp_path: Path) -> None:
    """R09: 200 turns, deleted, compacted. What is left are 8 bytes for each id, so that late calls are refused, and the hint of that."""
    with open_at(tmp_path / "store", auto_compact=False) as store:
        text = random.Random(1).randbytes(60000).hex()
        for number in range(200):
            log = [text[at * 500 : at * 500 + 500] for at in range(number + 1)]
            put(store, f"{number:03}", f"{number - 1:03}" if number else None, {"m": log})
        full = folder_bytes(tmp_path / "store" / "segments")
        store.delete("t")
        done = store.compact()
        assert done.bytes_before > 100_000
        assert folder_bytes(tmp_path / "store" / "segments") < full / 50
    assert folder_bytes(tmp_path / "store") < 64 << 10


def test_two_hundred_turns_pruned_to_the_head(tmp_path: Path) -> None:
    with open_at(tmp_path / "store", auto_compact=False) as store:
        for number in range(200):
            put(
                store,
                f"{number:03}",
                f"{number - 1:03}" if number else None,
                {"m": [f"a message, number {at} " * 6 for at in range(number)]},
            )
        before = values(store)
        store.prune("t")
        store.compact()
        assert values(store) == before
    assert folder_bytes(tmp_path / "store") <= 64 << 10


# -- power cuts, and what is left behind ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_power_cut_at_any_call(tmp_path: Path, seed: int) -> None:
    """R47: at every stop the same is read, the store compacts again, and no file is left that nothing names."""
    rng = random.Random(seed)
    given = [
        (rng.choice(("put", "delta", "delta", "write", "copy", "prune", "runs", "delete")), rng.randrange(1 << 16))
        for _ in range(40)
    ]
    path = tmp_path / "store"
    with opened(path, vfs=UNSYNCED, auto_compact=False) as store:
        before = told(lived(Life(store, {}), given).store)
    fs = CrashVfs(path)
    images: list[tuple[str, Image]] = []
    with opened(path, vfs=fs, auto_compact=False) as store:
        fs.watch = lambda call, name: images.append((f"{call} {name}", fs.image(rng)))
        store.compact()
        fs.watch = None
        images.append(("end", fs.image(rng, "lost")))
    assert {"point compact:synced", "point compact:named", "point compact:unlinked"} <= {at for at, _ in images}
    for number, (_, image) in enumerate(images):
        folder = write_image(image, tmp_path / f"cut {number}", garbage_index=number % 3 == 0)
        with opened(folder, vfs=UNSYNCED, auto_compact=False) as store:
            assert told(store) == before
            assert store.verify().problems == []
            store.compact()
            assert told(store) == before
        names = sorted(item.name for item in (folder / "segments").iterdir())
        assert [name for name in names if name.endswith(".tmp")] == []
        report = ckptstore.verify(folder)
        assert report.problems == []
        assert [remark for remark in report.remarks if "replaced" in remark] == []
        assert report.segments == len([name for name in names if name.endswith(".seg")])


# -- beside others ----------------------------------------------------------------------------------------------------------

WRITER = """
import sys
from tests.contract.calls import open_at, put, write
from ckptstore import LaneName
lane = LaneName(sys.argv[2])
store = open_at(sys.argv[1], segment_bytes=4096, auto_compact=False)
print("going", flush=True)
sys.stdin.readline()
for n in range(300):
    put(store, f"{n:04}", f"{n - 1:04}" if n else None, {"m": [f"{n} words"] * (n % 60), "n": n}, lane=lane)
    write(store, f"{n:04}", f"a write on {n}", lane=lane)
    if n % 50 == 49:
        store.prune(sys.argv[2])
store.close()
"""


def child(program: str, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize("index", ["lmdb", "sqlite"])
def test_beside_writers_in_other_processes(tmp_path: Path, index: str) -> None:
    """All finish, what they stored is there, and verify finds nothing."""
    path = tmp_path / "store"
    with open_at(path, segment_bytes=SEGMENT, auto_compact=False, index=index) as store:
        writers = [child(WRITER, path, name) for name in ("a", "b")]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "going\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        rewritten = 0
        while any(writer.poll() is None for writer in writers):
            rewritten += store.compact().segments_before
            for name in ("a", "b"):
                for stored in store.list(name, ""):
                    assert len(stored.values["n"][1]) > 0
        assert [writer.wait() for writer in writers] == [0, 0]
        assert rewritten > 5
        store.compact()
        for name in ("a", "b"):
            assert ids(store, name) == ["0299"]
            assert values(store, lane=LaneName(name)) == {"m": ["299 words"] * 59, "n": 299}
            assert pending(store, lane=LaneName(name)) == [("k", "m", "a write on 299")]
        assert store.verify().problems == []
    report = ckptstore.verify(path)
    assert (report.problems, report.index_state) == ([], "agrees")


def test_a_reader_in_the_middle_of_a_list(tmp_path: Path) -> None:
    """A list that began before a compaction goes on behind it; what was removed meanwhile is left out."""
    with open_at(tmp_path / "store", segment_bytes=SEGMENT, auto_compact=False) as store:
        for number in range(40):
            put(store, f"{number:02}", f"{number - 1:02}" if number else None, {"m": "word " * 50})
        put(store, "other", None, {"m": 1}, lane=LaneName("u"))
        listed = store.list("t", "")
        assert next(listed).id == "39"
        store.delete("u")
        store.compact()
        assert [item.id for item in listed] == [f"{number:02}" for number in range(38, -1, -1)]


class _Busy(Vfs):
    """As soon as compaction has begun a segment, and looks at which there are, others commit."""

    meanwhile: Callable[[], object] | None = None
    begun = False

    def point(self, name: str) -> None:
        self.begun = self.begun or name == "segment:created"

    def listdir(self, path: Path) -> list[str]:
        if self.begun and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().listdir(path)


def test_others_fill_segments_as_soon_as_compaction_begins(tmp_path: Path) -> None:
    """The segment that it began is full and has a successor when it looks at what is sealed: it leaves both alone."""
    busy = _Busy()
    chosen = StoreOptions(segment_bytes=SEGMENT, auto_compact=False)
    with Store(LocalStorage(tmp_path / "store", chosen, busy), chosen) as store:
        for number in range(12):
            put(store, f"{number:02}", None, {"m": f"{number} " * 300})
        store.prune("t")
        busy.begun = False
        busy.meanwhile = lambda: [put(store, f"{number:02}", None, {"m": os.urandom(800).hex()}) for number in range(12, 24)]
        store.compact()
        assert busy.meanwhile is None
        assert ids(store) == [f"{number:02}" for number in range(23, 10, -1)]
        assert store.verify().problems == []
    with rebuilt(tmp_path / "store") as store:
        assert ids(store) == [f"{number:02}" for number in range(23, 10, -1)]


REMOVER = """
import sys
from ckptstore import LaneName
from tests.contract.calls import open_at
with open_at(sys.argv[1], segment_bytes=4096, auto_compact=False) as store:
    store.delete("t") if sys.argv[2] == "delete" else store.prune("t")
    assert store.compact().segments_before
"""


class _Slow(Vfs):
    """While it opens a segment, another process removes and compacts."""

    meanwhile: Callable[[], object] | None = None

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        if path.suffix == ".seg" and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().open(path, create=create, read_only=read_only)


READS: list[tuple[str, Callable[[Store], object], object]] = [
    ("prune", lambda store: values(store), {"m": "5" * 900}),  # stands elsewhere now
    ("prune", lambda store: ids(store), ["5"]),
    ("prune", lambda store: values(store, "0") if store.get(LANE, "0") else "gone", "gone"),  # its frame names the thread, too
    ("delete", lambda store: store.get(LANE), None),
    ("delete", lambda store: store.outline(LANE), None),
    ("delete", lambda store: store.history(LANE, "5", ["m"])["m"].seed, None),
    ("delete", lambda store: ids(store, None, None), []),
    ("delete", lambda store: ids(store, id="4"), []),
    ("delete", lambda store: list(store.threads()), []),
    ("prune", lambda store: put(store, "6", "4", {"m": "6" * 900}) and ids(store), ["6", "5"]),
]


@pytest.mark.parametrize(("removal", "read", "expected"), READS)
def test_a_read_that_is_overtaken_by_a_compaction_in_another_process(
    tmp_path: Path, removal: str, read: Callable[[Store], object], expected: object
) -> None:
    """Its snapshot names segments that are gone by the time it opens them: it reads again, and no error is shown."""
    path = tmp_path / "store"
    with open_at(path, segment_bytes=SEGMENT, auto_compact=False) as store:
        for number in range(6):
            put(store, f"{number}", f"{number - 1}" if number else None, {"m": f"{number}" * 900})
    slow = _Slow()
    chosen = StoreOptions(segment_bytes=SEGMENT, auto_compact=False, cache_bytes=0)
    with Store(storage := LocalStorage(path, chosen, slow), chosen) as store:
        slow.meanwhile = lambda: child(REMOVER, path, removal).wait()
        storage._live().segments.close()
        assert read(store) == expected
        assert slow.meanwhile is None


def growing(store: Store, number: int) -> None:
    """One more turn of a list that grows: version n is stored as a patch of version n with its lowest set bit cleared."""
    log = [f"message {at} of a chat that grows and grows" for at in range(20 + number)]
    put(store, f"{number}", f"{number - 1}" if number else None, {"m": log})


def assert_whole(path: Path, number: int) -> None:
    """The newest turn is read without anything that a cache may still hold."""
    with open_at(path, auto_compact=False) as store:
        assert values(store) == {"m": [f"message {at} of a chat that grows and grows" for at in range(20 + number)]}
    assert ckptstore.verify(path).problems == []


def test_what_is_stored_after_a_compaction_rests_on_what_it_left(tmp_path: Path) -> None:
    """Version 6 would go by version 4 if the chain of bases were not that of the compacted log, but one that was read before."""
    path = tmp_path / "store"
    with open_at(path, auto_compact=False) as store:
        for number in range(6):
            growing(store, number)
        store.prune("t")
        store.compact()
        growing(store, 6)
    assert_whole(path, 6)


@pytest.mark.parametrize("moment", ["compact:synced", "compact:published", "compact:portion"])
def test_what_is_stored_while_a_compaction_writes_keeps_what_it_rests_on(tmp_path: Path, moment: str) -> None:
    """After the survey, version 6 is stored as a patch of version 4, which nothing needed when the survey was made."""
    path = tmp_path / "store"
    due: list[int] = []

    class Meanwhile(Vfs):
        def point(self, name: str) -> None:
            if name == moment and due:
                growing(store, due.pop())

    with opened(path, "process", Meanwhile(), segment_bytes=1 << 20, auto_compact=False) as store:
        for number in range(6):
            growing(store, number)
        store.prune("t")
        due.append(6)
        store.compact()
        assert due == []
    assert_whole(path, 6)


def test_a_death_is_dealt_with_though_the_first_to_hear_of_it_fails(tmp_path: Path) -> None:
    """A compaction dies when its segment has its name: whoever comes next has to take it back, or a recovery believes it."""
    path = tmp_path / "store"

    class Once(UNSYNCED.__class__):
        left = 1

        def unlink(self, path: Path) -> None:
            if self.left and path.suffix == ".seg":
                self.left = 0
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().unlink(path)

    with opened(path, "process", Once(), segment_bytes=1 << 20, auto_compact=False) as store:
        for number in range(6):
            growing(store, number)
        store.prune("t")
        died = subprocess.run([sys.executable, "-c", DIES_NAMED, str(path)], cwd=ROOT, timeout=60)
        assert died.returncode == -signal.SIGKILL
        with pytest.raises(StorageIOError):
            growing(store, 6)
        growing(store, 6)
    assert_whole(path, 6)


DIES_NAMED = """
import os, signal, sys
from pathlib import Path
from ckptstore.storage.local.vfs import Vfs
from tests.crash.programs import opened

class Dies(Vfs):
    def point(self, name):
        if name == "compact:named":
            os.kill(os.getpid(), signal.SIGKILL)

with opened(Path(sys.argv[1]), "process", Dies(), segment_bytes=1 << 20, auto_compact=False) as store:
    store.compact()
"""


# -- faults that were found ---------------------------------------------------------------------------------------------------


def test_a_damaged_segment_loses_no_more_by_compaction(tmp_path: Path) -> None:
    """One frame of a sealed segment is bad. Compaction refuses, or keeps all the others."""
    with open_at(tmp_path / "store", segment_bytes=SEGMENT, auto_compact=False) as store:
        for number in range(30):
            put(store, f"{number:02}", None, {"m": random.Random(number).randbytes(200).hex()}, lane=LaneName(f"t{number}"))
        store.delete("t0")
        frame = list(frames(tmp_path / "store"))[3]
        flip(frame.path, frame.offset + 60)
        with contextlib.suppress(CorruptionError):
            store.compact()
        unreadable = []
        for number in range(1, 30):
            try:
                values(store, f"{number:02}", LaneName(f"t{number}"))
            except CkptStoreError:
                unreadable.append(number)
        assert set(unreadable) <= {3}


def test_a_compacted_segment_survives_the_death_of_a_writer(tmp_path: Path) -> None:
    """Compacted, closed, opened again; then another process dies with the commit lock in its hands."""
    path = tmp_path / "store"
    with open_at(path, segment_bytes=SEGMENT, auto_compact=False) as store:
        for number in range(30):
            put(store, f"{number:02}", None, {"m": random.Random(number).randbytes(200).hex()})
        store.prune("t")
        store.compact()
    program = (
        "import os, signal, sys\n"
        "from ckptstore.storage.local.vfs import Vfs\n"
        "from tests.contract.calls import put\n"
        "from tests.crash.programs import opened\n"
        "class Deadly(Vfs):\n"
        "    def point(self, name):\n"
        "        if name == 'commit:appended': os.kill(os.getpid(), signal.SIGKILL)\n"
        "with opened(sys.argv[1], vfs=Deadly()) as store:\n"
        "    put(store, 'more', None, {'m': 1})\n"
    )
    with open_at(path, segment_bytes=SEGMENT, auto_compact=False) as store:
        kept = sorted((path / "segments").glob("*.seg"))
        dying = child(program, path)
        assert dying.wait() == -signal.SIGKILL
        put(store, "after", None, {"m": 2}, lane=LaneName("u"))
        assert sorted((path / "segments").glob("*.seg")) == kept
    with open_at(path) as store:
        assert ids(store) == ["29"]


def test_the_head_after_a_removal_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_at(path, auto_compact=False) as store:
        put(store, "a", None, {"m": 1})
        put(store, "b", "a", {"m": 2})
        store.set_head(LANE, "a")
        put(store, "c", "b", {"m": 3}, run="r")
        store.delete_for_runs(["r"])
        head = store.outline(LANE)
        store.compact()
        assert store.outline(LANE) == head
    with rebuilt(path) as store:
        assert store.outline(LANE) == head


def test_a_checkpoint_stored_again_is_not_the_head(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_at(path, auto_compact=False) as store:
        put(store, "a", None, {"m": 1})
        put(store, "b", "a", {"m": 2})
        put(store, "a", None, {"m": 3})
        store.compact()
        assert ids(store)[0] == "b"
    with rebuilt(path) as store:
        head = store.outline(LANE)
        assert head is not None
        assert head.id == "b"


def test_writes_on_a_removed_checkpoint_stay_removed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_at(path, auto_compact=False) as store:
        put(store, "a", None, {"n": 1}, run="r")
        write(store, "a", "made b")
        put(store, "b", "a", {"n": 2}, versions={"m": "b", "n": "b"})
        store.delete_for_runs(["r"])
        store.compact()
    with rebuilt(path) as store:
        put(store, "a", None, {"n": 3})
        assert pending(store, "a") == []


def test_a_put_on_a_parent_that_was_removed_and_compacted_away(tmp_path: Path) -> None:
    """The handle that stored the parent remembers its table, which names values that are gone."""
    with open_at(tmp_path / "store") as store:
        put(store, "1", None, {"m": "text " * 300}, run="r")
        store.delete_for_runs(["r"])
        store.compact()
        put(store, "2", "1", {"m": "other " * 300})
        assert values(store) == {"m": "other " * 300}
