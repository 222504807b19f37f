"""Real processes killed by SIGKILL: at every named fault point and at random moments, at every durability level.

A kill takes nothing that was written, so the promise is the same at all levels: nothing acknowledged is lost, a call is there whole or
not at all, the store opens and works, and other processes that have it open go on. What a power cut takes is in test_power_cut.py.
"""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckptstore
from tests.crash.killing import LENGTH, Died, Killer, append_junk, checked, counted, drop_index
from tests.crash.programs import LEVELS, Call, Level, opened, program, run, seen, states

LAST = Call("put", "last", "last", None, "last")
# At which level a store is open makes no difference to its index, so the other kind is tried at one of them.
LEVELS_AND_INDEXES = [*((level, "lmdb") for level in LEVELS), ("process", "sqlite")]


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    killer = Killer()
    yield killer
    killer.close()


# Point, and how often it is passed before the kill. `segment:*` is passed once when the store is created.
WRITING = [
    ("commit:resolved", 5),
    ("commit:appended", 5),
    ("commit:indexed", 5),
    ("commit:published", 5),
    ("fsync:before", 2),
    ("fsync:after", 2),
    ("rotate:sealed", 1),
    ("segment:before-create", 2),
    ("written:*2.seg.tmp", 1),
    ("renamed:*2.seg", 1),
    ("segment:created", 2),
    ("written:*1.hint.tmp", 1),
    ("renamed:*1.hint", 1),
]
CREATING = [
    ("segment:before-create", 1),
    ("written:*1.seg.tmp", 1),
    ("renamed:*1.seg", 1),
    ("segment:created", 1),
    ("written:STORE.tmp", 1),
    ("renamed:STORE", 1),
]
CLOSING = [("close:packed", 1), ("close:index-synced", 1), ("written:CLEAN.tmp", 1), ("renamed:CLEAN", 1)]
CUTTING = [("written:0*-*.tmp", 1), ("renamed:0*-*", 1), ("torn:kept", 1), ("torn:cut", 1)]
POISONING = [("written:POISON.tmp", 1), ("renamed:POISON", 1)]
COMPACTING = [
    ("compact:written", 2),
    ("compact:synced", 1),
    ("compact:checked", 1),
    ("compact:named", 1),
    ("compact:published", 1),
    ("compact:portion", 1),
    ("compact:repointed", 1),
    ("compact:unlinked", 1),
]
COMPACTING_ALONE_AND_BESIDE = [(point, nth, beside) for point, nth in COMPACTING for beside in (True, False)]
HEALING = [("segment:before-create", 1), ("written:*.seg.tmp", 1), ("renamed:*.seg", 1), ("segment:created", 1)]


def test_every_point_of_the_source_is_killed_at() -> None:
    """Those of backup and restore are killed at in tests/upkeep/test_backup.py."""
    sources = (Path(ckptstore.__file__).parent / "storage" / "local").rglob("*.py")
    points = {name for path in sources for name in re.findall(r"\.point\(f?\"([^\"]+)\"\)", path.read_text())}
    here = {point for point, _ in WRITING + CREATING + CLOSING + CUTTING + POISONING + COMPACTING + HEALING}
    points = {point for point in points if not point.startswith(("backup:", "restore:"))}
    assert points == {point for point in here if "*" not in point and point.split(":")[0] not in ("written", "renamed")} | {
        "written:{path.name}.tmp",
        "renamed:{path.name}",
    }


@pytest.mark.parametrize(("level", "index"), LEVELS_AND_INDEXES)
@pytest.mark.parametrize(("point", "nth"), WRITING)
def test_killed_while_writing(tmp_path: Path, killer: Killer, point: str, nth: int, level: Level, index: str) -> None:
    died = killer.run(tmp_path / "store", level, seed=1, point=point, nth=nth, index=index)
    assert died.status == -signal.SIGKILL
    checked(tmp_path / "store", level, 1, died)


@pytest.mark.parametrize(("level", "index"), LEVELS_AND_INDEXES)
@pytest.mark.parametrize(("point", "nth"), [(point, nth) for point, nth in WRITING if "hint" not in point])
def test_others_go_on_when_a_writer_is_killed(
    tmp_path: Path, killer: Killer, point: str, nth: int, level: Level, index: str
) -> None:
    """This process has the store open all the time: it reads and writes on at once, and without opening anything anew."""
    calls = program(2, LENGTH)
    expected = states(calls)
    with opened(tmp_path / "store", level, index=index) as store:
        for call in calls[:2]:
            run(store, call)
        nth = 1 if point.startswith("segment:") else nth
        died = killer.run(tmp_path / "store", level, seed=2, point=point, nth=nth, first=2)
        assert died.status == -signal.SIGKILL
        count = len(calls) if died.acknowledged == len(calls) else counted(seen(store), expected, died.acknowledged)
        for call in calls[count:]:
            run(store, call)
        assert seen(store) == expected[-1]
    with opened(tmp_path / "store") as store:
        assert seen(store) == expected[-1]


def test_the_number_of_a_segment_that_was_begun_in_vain_is_not_given_again(tmp_path: Path, killer: Killer) -> None:
    """This process looked at the segment that a killed writer began; another one set it aside, and rotated anew."""
    calls = program(2, 40)
    with opened(tmp_path / "store", "process", cache_bytes=0) as store:
        for call in calls[:2]:
            run(store, call)
        died = killer.run(tmp_path / "store", "process", seed=2, point="segment:created", nth=3, first=2, length=40)
        assert died.status == -signal.SIGKILL
        assert store.stats().segments > 3
        killer.run(tmp_path / "store", "process", seed=2, first=died.acknowledged, length=40)
        assert seen(store) == states(calls)[-1]


@pytest.mark.parametrize("index", ["lmdb", "sqlite"])
@pytest.mark.parametrize(("point", "nth"), CREATING)
def test_killed_while_creating(tmp_path: Path, killer: Killer, point: str, nth: int, index: str) -> None:
    died = killer.run(tmp_path / "store", "commit", seed=3, point=point, nth=nth, index=index)
    assert died == Died(0, -signal.SIGKILL, ["pid", "end"])
    checked(tmp_path / "store", "commit", 3, died)


@pytest.mark.parametrize(("level", "index"), LEVELS_AND_INDEXES)
@pytest.mark.parametrize(("point", "nth"), CLOSING)
def test_killed_while_closing(tmp_path: Path, killer: Killer, point: str, nth: int, level: Level, index: str) -> None:
    # A small index is not packed, and that of SQLite grows slower.
    length = LENGTH if point != "close:packed" else 200 if index == "lmdb" else 400
    died = killer.run(tmp_path / "store", level, seed=4, point=point, nth=nth, length=length, index=index)
    assert (died.status, died.acknowledged) == (-signal.SIGKILL, length)
    checked(tmp_path / "store", level, 4, died, length)


@pytest.mark.parametrize("index", ["lmdb", "sqlite"])
@pytest.mark.parametrize(("point", "nth", "beside"), COMPACTING_ALONE_AND_BESIDE)
def test_killed_while_compacting(tmp_path: Path, killer: Killer, point: str, nth: int, beside: bool, index: str) -> None:
    """The program is through, and everything of it acknowledged; a process beside goes on without opening anything anew."""
    calls = program(9, 60)
    expected = states([*calls, LAST])
    with opened(tmp_path / "store", "process", index=index):
        pass
    if beside:
        with opened(tmp_path / "store", "process") as store:
            died = killer.run(tmp_path / "store", "process", seed=9, point=point, nth=nth, length=60)
            assert (died.status, died.acknowledged) == (-signal.SIGKILL, 60)
            assert seen(store) == expected[-2]
            store.compact()
            run(store, LAST)
            assert seen(store) == expected[-1]
    else:
        died = killer.run(tmp_path / "store", "process", seed=9, point=point, nth=nth, length=60)
        assert (died.status, died.acknowledged) == (-signal.SIGKILL, 60)
        with opened(tmp_path / "store") as store:
            assert seen(store) == expected[-2]
            run(store, LAST)
            store.compact()
            assert seen(store) == expected[-1]
    drop_index(tmp_path / "store")
    with opened(tmp_path / "store") as store:
        assert seen(store) == expected[-1]


@pytest.mark.parametrize("lost_index", [False, True])
@pytest.mark.parametrize(("point", "nth"), CUTTING)
def test_killed_while_cutting_a_torn_tail(tmp_path: Path, killer: Killer, point: str, nth: int, lost_index: bool) -> None:
    """A writer was killed after its bytes went out; who opens next is killed while it cuts them."""
    first = killer.run(tmp_path / "store", "commit", seed=5, point="commit:appended", nth=6)
    assert first.acknowledged == 5
    if lost_index:
        append_junk(tmp_path / "store")
        drop_index(tmp_path / "store")
    died = killer.run(tmp_path / "store", "commit", seed=5, point=point, nth=nth, first=5)
    assert died.lines == ["pid", "end"]
    assert died.status == -signal.SIGKILL
    checked(tmp_path / "store", "commit", 5, died)
    assert list((tmp_path / "store" / "torn").iterdir())


@pytest.mark.parametrize(("point", "nth"), POISONING)
def test_killed_while_poisoning(tmp_path: Path, killer: Killer, point: str, nth: int) -> None:
    """The fsync of call 4 fails, so that one is not acknowledged; it may be there."""
    died = killer.run(tmp_path / "store", "commit", seed=6, point=point, nth=nth, fail_fsync=7)
    assert died.status == -signal.SIGKILL
    assert 0 < died.acknowledged < LENGTH
    checked(tmp_path / "store", "commit", 6, died)


@pytest.mark.parametrize("index", ["lmdb", "sqlite"])
@pytest.mark.parametrize(("point", "nth"), HEALING)
def test_killed_while_recovering_from_a_failed_fsync(tmp_path: Path, killer: Killer, point: str, nth: int, index: str) -> None:
    with opened(tmp_path / "store", index=index):
        pass
    first = killer.run(tmp_path / "store", "commit", seed=7, fail_fsync=8)
    assert "raised" in first.lines
    assert (tmp_path / "store" / "POISON").exists()
    died = killer.run(tmp_path / "store", "commit", seed=7, point=point, nth=nth, first=first.acknowledged)
    assert (died.status, died.lines) == (-signal.SIGKILL, ["pid", "end"])
    checked(tmp_path / "store", "commit", 7, died)
    assert not (tmp_path / "store" / "POISON").exists()


@pytest.mark.parametrize(("level", "index"), LEVELS_AND_INDEXES)
def test_killed_at_random_moments(tmp_path: Path, killer: Killer, level: Level, index: str) -> None:
    """One store, killed over and over, each time a little further on; another process has it open half of the time."""
    rng = random.Random(f"{level} 8")
    length = 150
    calls = program(8, length)
    expected = states(calls)
    count = kills = 0
    with opened(tmp_path / "store", index=index):
        pass
    while count < length and kills < 12:
        died = killer.run(tmp_path / "store", level, seed=8, first=count, length=length, kill_after=rng.uniform(0, 0.012))
        kills += died.status == -signal.SIGKILL
        with opened(tmp_path / "store", level) as store:
            count = length if died.acknowledged == length else counted(seen(store), expected, died.acknowledged)
            if kills % 2 and count < length:
                again = killer.run(tmp_path / "store", level, seed=8, first=count, length=length, kill_after=rng.uniform(0, 0.006))
                count = length if again.acknowledged == length else counted(seen(store), expected, again.acknowledged)
                if count < length:
                    run(store, calls[count])
                    count += 1
            assert seen(store) == expected[count]
    assert kills
