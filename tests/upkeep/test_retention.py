"""Retention: what each limit removes, what stays whatever a policy says, and that all that stays reads and resumes as before."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import ckptstore
from ckptstore import LaneName, PruneReport, RetentionPolicy, Store, channels
from ckptstore.errors import CkptStoreError, InvalidArgumentError, ReadOnlyError
from ckptstore.testing.crashfs import CrashVfs, Image, write_image
from tests.contract.calls import ids, open_at, put, values, write
from tests.crash.programs import SEGMENT, UNSYNCED, opened
from tests.helpers import concat, config, flip, frames, thread
from tests.upkeep.lives import CHANNELS, Life, Move, lived, moves, opened_life, told
from tests.upkeep.test_compaction import child, rebuilt

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DAY = 86400


def stamped(days: float) -> dict[str, str]:
    """The skeleton of a checkpoint that was made so many days ago."""
    return {"ts": (datetime.now(UTC) - timedelta(days=days)).isoformat()}


def chain(
    store: Store, count: int, *, days: float = 0, of: str = "t", first: int = 0, parent: str | None = None, size: int = 300
) -> None:
    """A lineage of checkpoints, one value of its own in each."""
    for number in range(first, first + count):
        id = f"{number:03}"
        text = os.urandom(size // 2).hex()
        put(store, id, parent, {"m": text}, lane=LaneName(of), skeleton=stamped(days))
        parent = id


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    path = tmp_path / "store" if request.param == "folder" else ":memory:"
    with open_at(path, auto_compact=False) as made:
        yield made


# -- limits -----------------------------------------------------------------------------------------------------------------


def test_keep_last_is_counted_for_each_leaf(store: Store) -> None:
    chain(store, 10)
    chain(store, 4, first=20, parent="004")
    report = store.prune(RetentionPolicy(keep_last=3))
    assert ids(store) == ["023", "022", "021", "009", "008", "007"]
    assert (report.removed, report.deleted, report.threads[0].kept) == (8, 0, 6)
    assert store.prune(RetentionPolicy(keep_last=3)).threads == []


def test_keep_last_goes_by_parents_and_not_by_ids(store: Store) -> None:
    chain(store, 6)
    chain(store, 1, first=20, parent="002")
    store.prune(RetentionPolicy(keep_last=2))
    # 002 is the last but one of the branch's lineage.
    assert ids(store) == ["020", "005", "004", "002"]


def test_older_than(store: Store) -> None:
    chain(store, 3, days=40)
    chain(store, 3, days=20, first=3, parent="002")
    store.prune(RetentionPolicy(older_than=timedelta(days=30)))
    assert ids(store) == ["005", "004", "003"]
    store.prune(RetentionPolicy(older_than=10 * DAY))
    assert ids(store) == ["005"]  # the head, however old


def test_limits_are_limits_together(store: Store) -> None:
    chain(store, 3, days=40)
    chain(store, 3, days=20, first=3, parent="002")
    store.prune(RetentionPolicy(keep_last=5, older_than=30 * DAY))
    assert ids(store) == ["005", "004", "003"]


def test_a_checkpoint_without_a_time_is_never_too_old(store: Store) -> None:
    put(store, "a", None, {"m": 1}, skeleton={"ts": "not a time"})
    put(store, "b", "a", {"m": 1}, skeleton={"created_ms": 5})
    put(store, "c", "b", {"m": 1}, skeleton={})
    store.prune(RetentionPolicy(older_than=1, idle=1))
    assert ids(store) == ["c", "a"]


def test_idle_threads_go_whole_and_are_named(store: Store) -> None:
    chain(store, 3, days=40, of="old")
    chain(store, 3, days=40, of="waits")
    write(store, "002", "a finished task", lane=LaneName("waits"))
    chain(store, 2, days=40, of="came back")
    chain(store, 1, days=1, first=5, parent="001", of="came back")
    chain(store, 3, days=40, of="pinned")
    report = store.prune(RetentionPolicy(idle=30 * DAY, pinned=frozenset({"pinned"})))
    assert {info.thread for info in store.threads()} == {"waits", "came back", "pinned"}
    assert [(item.thread, item.removed, item.deleted) for item in report.threads] == [("old", 3, True)]
    assert report.deleted == 1


def test_max_bytes_per_thread(tmp_path: Path) -> None:
    with open_at(tmp_path / "store", auto_compact=False) as store:
        chain(store, 30, size=2000)
        report = store.prune(RetentionPolicy(max_bytes_per_thread=20_000))
        kept = ids(store)
        assert kept == [f"{number:03}" for number in range(29, 29 - len(kept), -1)]
        assert 14 <= len(kept) <= 16  # a thousand bytes each, and what goes around them
        before = store.stats().log_bytes
        store.compact()
        assert store.stats().log_bytes <= 21_000
        assert report.bytes is not None
        assert abs((before - store.stats().log_bytes) - report.bytes) < before / 10
        # What cannot be met leaves the heads.
        store.prune(RetentionPolicy(max_bytes_per_thread=0))
        assert ids(store) == ["029"]


def test_max_bytes_begins_with_the_longest_idle(tmp_path: Path) -> None:
    with open_at(tmp_path / "store", auto_compact=False) as store:
        for number, days in enumerate((10, 30, 20)):
            chain(store, 10, days=days, of=f"{number}", size=2000)
        live = store.stats().live_bytes
        report = store.prune(RetentionPolicy(max_bytes=live - 1000))
        assert [item.thread for item in report.threads] == ["1"]
        assert [len(ids(store, name)) for name in ("0", "1", "2")] == [10, 1, 10]
        report = store.prune(RetentionPolicy(max_bytes=1000))
        assert [len(ids(store, name)) for name in ("0", "1", "2")] == [1, 1, 1]
        assert [line for line in report.unmet if line.startswith("max_bytes=1000")]


def test_a_dry_run_says_what_would_go_and_removes_nothing(tmp_path: Path) -> None:
    with open_at(tmp_path / "store", auto_compact=False) as store:
        chain(store, 20, size=2000)
        chain(store, 5, days=90, of="old", size=2000)
        policy = RetentionPolicy(keep_last=2, idle=30 * DAY, max_bytes=1)
        last = store.stats().last_lsn
        said = store.prune(policy, dry_run=True)
        assert store.stats().last_lsn == last
        done = store.prune(policy)
        assert [item[:4] for item in said.threads] == [item[:4] for item in done.threads]
        assert (said.removed, said.deleted, len(said.unmet)) == (done.removed, done.deleted, len(done.unmet))
        assert said.bytes is not None
        assert done.bytes is not None
        assert abs(said.bytes - done.bytes) < done.bytes / 20
        assert (done.removed, done.deleted) == (24, 1)
        before = store.stats().log_bytes
        store.compact()
        assert abs((before - store.stats().log_bytes) - done.bytes) < before / 10
    with open_at(tmp_path / "store", read_only=True) as store:
        assert store.prune(policy, dry_run=True).removed == 0
        with pytest.raises(ReadOnlyError):
            store.prune(policy)


def test_only_some_threads(store: Store) -> None:
    for name in ("a", "b", "c"):
        chain(store, 3, of=name)
    store.prune(RetentionPolicy(keep_last=1, pinned=frozenset({"b"})), threads=["a", "b", "nobody"])
    assert [len(ids(store, name)) for name in ("a", "b", "c")] == [1, 3, 3]


def test_native_threads(store: Store) -> None:
    """Their time is `created_ms`, their growing channels are rebuilt from what is kept of the past."""
    cursor = store.thread("t", schema={"log": channels.append()})
    for number in range(25):
        cursor.step({"log": [number]})
    old = store.thread("t").at(ids(store)[10]).fork()
    old.step({"log": ["branch"]})
    states = {id: store.thread("t").at(id).state() for id in ids(store)}
    store.prune(RetentionPolicy(keep_last=4))
    kept = ids(store)
    assert len(kept) == 8
    assert {id: store.thread("t").at(id).state() for id in kept} == {id: states[id] for id in kept}
    assert store.prune(RetentionPolicy(idle=DAY)).removed == 0


# -- what stays ---------------------------------------------------------------------------------------------------------------


policies = st.builds(
    RetentionPolicy,
    keep_last=st.none() | st.integers(1, 4),
    older_than=st.none() | st.sampled_from([15 * DAY, 45 * DAY]),
    idle=st.none() | st.just(50 * DAY),
    max_bytes_per_thread=st.none() | st.sampled_from([0, 2000, 20_000]),
    max_bytes=st.none() | st.sampled_from([0, 30_000]),
    pinned=st.sampled_from([frozenset(), frozenset({"a"})]),
)


def each(store: Store) -> dict[tuple[LaneName, str], Any]:
    """Each checkpoint with the past of its channels, by lane and id."""
    found = {}
    for stored in store.list():
        try:
            # Of a channel whose value stands in the checkpoint nobody needs the past, and prune does not keep it.
            past: Any = store.history(stored.lane, stored.id, [name for name in CHANNELS if name not in stored.values])
        except CkptStoreError as error:
            past = type(error)
        found[stored.lane, stored.id] = (stored, past)
    return found


@FEW
@given(moves, policies)
def test_everything_that_stays_reads_as_before(given: Sequence[Move], policy: RetentionPolicy) -> None:
    """Values, writes and the past of each channel: pruned, compacted, opened again with an index built anew."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        life = lived(opened_life(path), given)
        store = life.store
        before, heads = each(store), {info.thread: info.head for info in store.threads()}
        pinned = list(store.list("a")) if "a" in policy.pinned else []
        report = store.prune(policy)
        _assert_kept(store, before, heads, report)
        assert list(store.list("a"))[: len(pinned)] == pinned
        store.compact()
        after = told(store)
        _assert_kept(store, before, heads, report)
        store.close()
        with rebuilt(path) as store:
            assert told(store) == after
        assert ckptstore.verify(path).problems == []


def _assert_kept(store: Store, before: dict[tuple[LaneName, str], Any], heads: dict[str, str | None], report: PruneReport) -> None:
    after = each(store)
    assert {key: before[key] for key in after} == after
    assert len(after) == len(before) - report.removed
    deleted = {item.thread for item in report.threads if item.deleted}
    assert {info.thread: info.head for info in store.threads()} == {
        name: head for name, head in heads.items() if name not in deleted
    }


def test_what_changes_between_plan_and_commit_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking and removing, another handle writes on a checkpoint, makes one the head, and wakes an idle thread."""
    with open_at(tmp_path / "store", auto_compact=False) as store, open_at(tmp_path / "store") as other:
        chain(store, 6)
        chain(store, 3, days=90, of="idle")
        commit = store._storage.commit
        due = ["t", "idle"]

        def meanwhile(resolve: Any) -> int:
            if due:
                now = due.pop(0)
                if now == "t":
                    write(other, "001", "came meanwhile")
                    other.set_head(LaneName("t"), "003")
                else:
                    put(other, "awake", "002", {"m": 1}, lane=LaneName("idle"))
            return commit(resolve)

        monkeypatch.setattr(store._storage, "commit", meanwhile)
        report = store.prune(RetentionPolicy(keep_last=1, idle=30 * DAY))
        assert ids(store) == ["005", "003", "001"]
        assert ids(store, "idle") == ["awake", "002", "001", "000"]
        assert (report.removed, report.deleted) == (3, 0)


def test_a_thread_that_cannot_be_read_is_left_and_the_others_are_pruned(tmp_path: Path) -> None:
    with open_at(tmp_path / "store", auto_compact=False) as store:
        chain(store, 4, of="a")
        chain(store, 4, of="b")
    frame = list(frames(tmp_path / "store"))[3]
    flip(frame.path, frame.offset + frame.size - 3)
    with open_at(tmp_path / "store", auto_compact=False) as store:
        report = store.prune(RetentionPolicy(idle=DAY, keep_last=1))
        assert [item.thread for item in report.threads] == ["b"]
        assert len(report.unmet) == 1
        assert "'a'" in report.unmet[0]


# -- kills and power cuts -------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from ckptstore import RetentionPolicy
from ckptstore.storage.local.vfs import Vfs
from tests.crash.programs import opened

class Deadly(Vfs):
    left = 2
    def point(self, name):
        if name == sys.argv[2]:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)

with opened(sys.argv[1], vfs=Deadly(), auto_compact=False) as store:
    store.prune(RetentionPolicy(keep_last=2, older_than=86400))
"""

POLICY = RetentionPolicy(keep_last=2, older_than=DAY)


def three_threads(path: Path) -> tuple[dict[tuple[LaneName, str], Any], Any]:
    """A store, each checkpoint of it, and everything that is left when the policy was applied without a break."""
    with open_at(path, segment_bytes=SEGMENT, auto_compact=False) as store:
        for name in ("a", "b", "c"):
            chain(store, 6, days=2, of=name, size=100)
            chain(store, 3, of=name, first=6, parent="005", size=100)
            for number in range(9, 12):
                write(store, f"{number - 1:03}", f"write {number}", lane=LaneName(name))
                put(
                    store,
                    f"{number:03}",
                    f"{number - 1:03}",
                    {},
                    versions={"m": f"{number}"},
                    lane=LaneName(name),
                    skeleton=stamped(0),
                )
        before = each(store)
    shutil.copytree(path, path.with_name("whole"))
    with open_at(path.with_name("whole"), segment_bytes=SEGMENT, auto_compact=False) as store:
        assert store.prune(POLICY).removed == 30
        return before, told(store)


def assert_going_on(store: Store, before: dict[tuple[LaneName, str], Any], done: Any) -> None:
    """Each thread is as it was or pruned, all of it reads as before, and pruning again ends where one without a break does."""
    found = each(store)
    assert {key: before[key] for key in found} == found
    assert {len(ids(store, name)) for name in ("a", "b", "c")} <= {12, 2}
    store.prune(POLICY)
    assert told(store) == done


@pytest.mark.parametrize("point", ["commit:resolved", "commit:appended", "commit:indexed", "commit:published", "fsync:before"])
def test_killed_while_pruning(tmp_path: Path, point: str) -> None:
    before, done = three_threads(tmp_path / "store")
    assert child(KILLED, tmp_path / "store", point).wait() == -9
    with open_at(tmp_path / "store", auto_compact=False) as store:
        assert_going_on(store, before, done)
    assert ckptstore.verify(tmp_path / "store").problems == []


def test_power_cuts_while_pruning(tmp_path: Path) -> None:
    before, done = three_threads(tmp_path / "store")
    fs = CrashVfs(tmp_path / "store")
    rng = random.Random(1)
    images: list[Image] = []
    with opened(tmp_path / "store", vfs=fs, auto_compact=False) as store:
        fs.watch = lambda call, name: images.append(fs.image(rng))
        store.prune(POLICY)
        fs.watch = None
        images.append(fs.image(rng, "lost"))
    for number, image in enumerate(images):
        folder = write_image(image, tmp_path / f"cut {number}", garbage_index=number % 3 == 0)
        with opened(folder, vfs=UNSYNCED, auto_compact=False) as store:
            if number == len(images) - 1:
                assert told(store) == done
            assert_going_on(store, before, done)


# -- LangGraph: approvals, subgraphs ------------------------------------------------------------------------------------------


class State(TypedDict):
    log: Annotated[list[Any], DeltaChannel(concat, snapshot_frequency=1000)]


def approving(saver: CkptSaver, ran: list[str], *, inside: bool) -> Any:
    """Two tasks side by side, of which one asks a human; in a subgraph or not."""

    def works(state: State) -> Any:
        ran.append("works")
        return {"log": ["worked"]}

    def asks(state: State) -> Any:
        answer = interrupt("may I?")
        ran.append("asks")
        return {"log": [f"answer {answer}"]}

    below: Any = StateGraph(State)
    below.add_node("works", works)
    below.add_node("asks", asks)
    below.add_edge(START, "works")
    below.add_edge(START, "asks")
    if not inside:
        return below.compile(checkpointer=saver)
    above: Any = StateGraph(State)
    above.add_node("below", below.compile())
    above.add_edge(START, "below")
    return above.compile(checkpointer=saver)


@pytest.mark.parametrize("inside", [False, True])
def test_a_paused_run_resumes_without_running_finished_tasks_again(tmp_path: Path, inside: bool) -> None:
    with CkptSaver(tmp_path / "store") as saver:
        ran: list[str] = []
        graph = approving(saver, ran, inside=inside)
        for turn in range(3):
            graph.invoke({"log": [f"turn {turn}"]}, thread())
            graph.invoke(Command(resume="yes"), thread())
        graph.invoke({"log": ["last"]}, thread())
        before = graph.get_state(thread(), subgraphs=True)
        assert before.interrupts
        ran.clear()
        for policy in (RetentionPolicy(keep_last=1), RetentionPolicy(idle=0.001, max_bytes_per_thread=0, max_bytes=0)):
            time.sleep(0.01)
            assert saver.store.prune(policy).deleted == 0
        saver.store.compact()
        assert graph.get_state(thread(), subgraphs=True) == before
        done = graph.invoke(Command(resume="no"), thread())
        assert ran == ["asks"]
        assert done["log"][-2:] == ["worked", "answer no"] or done["log"][-2:] == ["answer no", "worked"]
        assert len([item for item in done["log"] if str(item).startswith(("turn", "last"))]) >= 4


def test_an_interrupt_that_a_fork_went_around_can_still_be_answered(tmp_path: Path) -> None:
    """As if nothing had been pruned."""
    found = []
    for name in ("pruned", "whole"):
        with CkptSaver(tmp_path / name) as saver:
            ran: list[str] = []
            graph = approving(saver, ran, inside=False)
            graph.invoke({"log": ["first"]}, thread())
            paused = graph.get_state(thread()).config
            graph.update_state(paused, {"log": ["went around"]}, as_node="works")
            for turn in range(3):
                graph.update_state(graph.get_state(thread()).config, {"log": [turn]}, as_node="works")
            ran.clear()
            if name == "pruned":
                assert saver.store.prune(RetentionPolicy(keep_last=1)).removed > 2
            assert graph.get_state(paused).interrupts
            done = graph.invoke(Command(resume="no"), paused)
            found.append((sorted(ran), done["log"]))
    assert found[0] == found[1]
    assert "answer no" in found[0][1]


def test_subgraphs_of_the_root_checkpoints_that_stay(tmp_path: Path) -> None:
    """Of a namespace that lives on over turns, what a kept root checkpoint belongs together with is kept too."""
    with CkptSaver(tmp_path / "store") as saver:
        for number in range(8):
            at = config(None if number == 0 else f"{number - 1:02}")
            saver.put(at, _checkpoint(f"{number:02}"), {"source": "loop", "step": number, "parents": {}}, {})
            for step in "ab":
                below = config(None, "below")
                saver.put(below, _checkpoint(f"{number:02}{step}"), {"parents": {"": f"{number:02}"}}, {})  # type: ignore[typeddict-item]
        saver.store.prune(RetentionPolicy(keep_last=3))
        assert ids(saver.store) == ["07", "06", "05"]
        # Its checkpoints have no parents here, so each is a leaf of its own: what limits it is the age.
        saver.store.prune(RetentionPolicy(max_bytes_per_thread=1))
        assert ids(saver.store) == ["07"]
        assert ids(saver.store, ns="below") == ["07b"]


def _checkpoint(id: str) -> Any:
    return {
        "v": 4,
        "id": id,
        "ts": datetime.now(UTC).isoformat(),
        "channel_values": {"m": id * 100},
        "channel_versions": {"m": id},
        "versions_seen": {},
        "updated_channels": None,
    }


def test_a_waiting_subgraph_keeps_what_it_names(tmp_path: Path) -> None:
    with open_at(tmp_path / "store", auto_compact=False) as store:
        chain(store, 6)
        below = LaneName("t", "below")
        put(store, "x", None, {"m": 1}, lane=below, metadata={"parents": {"": "002"}})
        put(store, "y", "x", {"m": 1}, lane=below, metadata={"parents": {"": "004"}})
        put(store, "z", "x", {"m": 1}, lane=below, metadata={"parents": {"": "005"}})
        write(store, "y", "finished", lane=below)
        store.prune(RetentionPolicy(keep_last=1))
        assert ids(store) == ["005", "004"]
        assert ids(store, ns="below") == ["z", "y"]


def test_a_finished_subgraph_keeps_its_head_and_not_the_root_checkpoint_it_names(tmp_path: Path) -> None:
    """Each call of a subgraph may have a namespace of its own: kept for their sake, root checkpoints would never go."""
    with open_at(tmp_path / "store", auto_compact=False) as store:
        chain(store, 6)
        below = LaneName("t", "below:1")
        put(store, "x", None, {"m": 1}, lane=below, metadata={"parents": {"": "002"}})
        put(store, "y", "x", {"m": 2}, lane=below, metadata={"parents": {"": "002"}})
        store.prune(RetentionPolicy(keep_last=1))
        assert ids(store) == ["005"]
        assert ids(store, ns="below:1") == ["y"]
        assert values(store, "y", below) == {"m": 2}


# -- in the background --------------------------------------------------------------------------------------------------------


def until(holds: Any) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_saver_prunes_as_its_threads_grow(tmp_path: Path) -> None:
    with CkptSaver(tmp_path / "store", durability="process", retention=RetentionPolicy(keep_last=5, idle=30 * DAY)) as saver:
        chain(saver.store, 3, days=60, of="idle")
        at: Any = config()
        for number in range(200):
            at = saver.put(at, _checkpoint(f"{number:03}"), {"step": number}, {})
        until(lambda: len(ids(saver.store)) < 5 + 64 + 64)
        assert ids(saver.store)[:5] == [f"{number:03}" for number in range(199, 194, -1)]
        assert saver.get_tuple(config()).checkpoint["id"] == "199"  # type: ignore[union-attr]
        # Idle threads are met in turn.
        until(lambda: [info.thread for info in saver.store.threads()] == ["t"])
    assert ckptstore.verify(tmp_path / "store").problems == []


def test_a_put_does_not_wait_for_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at, on = threading.Event(), threading.Event()

    def slow(*given: Any, **named: Any) -> Any:
        at.set()
        on.wait(10)
        return PruneReport([], 0, 0, None, [], False)

    monkeypatch.setattr("ckptstore.upkeep.retention.prune", slow)
    with open_at(tmp_path / "store") as store:
        sweeper = store.sweeper(RetentionPolicy(keep_last=1))
        for _ in range(64):
            sweeper.put("t")
        assert at.wait(10)
        running = threading.active_count()
        for _ in range(500):
            sweeper.put("t")
        # One sweep at a time.
        assert threading.active_count() == running
        on.set()
        sweeper.close()


def test_a_process_with_an_unclosed_saver_exits(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from langgraph.checkpoint.ckptstore import CkptSaver\n"
        "from ckptstore import RetentionPolicy\n"
        "import ckptstore.upkeep.retention as retention\n"
        "from tests.upkeep.test_retention import _checkpoint, config\n"
        "retention._Prune.run = lambda *given: time.sleep(60)\n"
        "saver = CkptSaver(sys.argv[1], retention=RetentionPolicy(keep_last=1))\n"
        "for n in range(70): saver.put(config(), _checkpoint(f'{n}'), {}, {})\n"
        "print('done', flush=True)\n"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")], env=environment, capture_output=True, text=True, timeout=30
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    with open_at(tmp_path / "store") as store:
        assert len(ids(store)) == 70


# -- wrong calls --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keep_last", 0),
        ("keep_last", "5"),
        ("keep_last", True),
        ("older_than", 0),
        ("older_than", -5),
        ("idle", "soon"),
        ("max_bytes", -1),
        ("max_bytes_per_thread", 1.5),
        ("pinned", "a name"),
        ("pinned", [7]),
        ("keep_first", 3),
    ],
)
def test_a_wrong_limit(name: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        RetentionPolicy(**{name: value})


def test_wrong_calls(store: Store, tmp_path: Path) -> None:
    chain(store, 2)
    with pytest.raises(InvalidArgumentError, match="thread=7"):
        store.prune(7)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgumentError, match="dry_run"):
        store.prune("t", dry_run=True)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgumentError, match="threads='t'"):
        store.prune(RetentionPolicy(keep_last=1), threads="t")
    with pytest.raises(InvalidArgumentError, match="retention="):
        CkptSaver(tmp_path / "other", retention={"keep_last": 1})  # type: ignore[arg-type]
    assert values(store)
    assert store.prune("t") == 1


def test_lives_are_as_long_as_they_say(tmp_path: Path) -> None:
    """The moves of these tests make stores in which there is something to prune."""
    life = Life(open_at(tmp_path / "store", auto_compact=False), {})
    lived(life, [("delta", number) for number in range(40)])
    assert life.store.prune(RetentionPolicy(keep_last=1)).removed > 10
    life.store.close()
