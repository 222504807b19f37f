"""What every storage must do, seen through `Store`. A concrete class gives the fixture `store`, a fresh and empty one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ckptstore import LaneName, Origin, Source, Store
from ckptstore.errors import (
    CheckpointLineageIntegrityError,
    ConflictError,
    InvalidArgumentError,
    ThreadDeletedError,
    ThreadExistsError,
)
from tests.contract.calls import (
    LANE,
    OTHER,
    SUB,
    as_json,
    dead,
    everything,
    history,
    ids,
    late_of,
    never,
    of_token,
    pending,
    put,
    values,
    write,
    written_bytes,
)

A6, B6 = b"writeA", b"writeB"


def before_the_lock(store: Store, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Let something happen when the next call has made up its mind, and has not taken the commit lock yet."""
    commit = store._storage.commit

    def late(resolve: Any) -> int:
        monkeypatch.setattr(store._storage, "commit", commit)
        meanwhile()
        return commit(resolve)

    monkeypatch.setattr(store._storage, "commit", late)


class PutAndGet:
    def test_an_empty_store_answers_everything_with_nothing(self, store: Store) -> None:
        assert store.get(LANE) is None
        assert store.get(LANE, "1") is None
        assert ids(store, None, None) == []
        assert list(store.threads()) == []
        assert history(store, "1") == (None, [])
        assert history(store, None) == (None, [])

    def test_a_checkpoint_comes_back_whole(self, store: Store) -> None:
        put(
            store,
            "2",
            "1",
            {"m": [1] * 40, "n": None},
            skeleton={"v": 4, "ts": "now", "later": {"x": [1]}},
            metadata={"step": 3},
            versions={"m": 7, "n": "a", "empty": 1.5},
        )
        stored = store.get(LANE, "2")
        assert stored is not None
        assert stored.lane == LANE
        assert (stored.id, stored.parent) == ("2", "1")
        assert stored.skeleton == {"v": 4, "ts": "now", "later": {"x": [1]}}
        assert stored.metadata == {"step": 3}
        assert stored.versions == {"m": 7, "n": "a", "empty": 1.5}
        assert stored.values == {"m": as_json("m", [1] * 40), "n": as_json("n", None)}
        assert stored.writes == []

    def test_the_head_is_what_was_put_last_whatever_its_id(self, store: Store) -> None:
        for id in ("5", "3", "9", "1"):
            put(store, id)
            head = store.get(LANE)
            assert head is not None
            assert head.id == id

    def test_lanes_do_not_mix(self, store: Store) -> None:
        for number, lane in enumerate((LANE, SUB, OTHER)):
            put(store, "1", None, {"m": number}, lane=lane)
        assert [values(store, "1", lane)["m"] for lane in (LANE, SUB, OTHER)] == [0, 1, 2]

    def test_a_value_without_a_version_is_kept(self, store: Store) -> None:
        put(store, "1", None, {"m": 1}, versions={})
        stored = store.get(LANE)
        assert stored is not None
        assert stored.versions == {}
        assert values(store) == {"m": 1}

    def test_a_channel_that_goes_stays_away(self, store: Store) -> None:
        put(store, "1", None, {"m": 1, "n": 2})
        put(store, "2", "1", {"m": 1})
        put(store, "3", "2", {}, versions={"m": 9})
        assert values(store, "2") == {"m": 1}
        assert values(store, "3") == {}
        assert values(store, "1") == {"m": 1, "n": 2}

    def test_an_unchanged_value_is_not_serialized(self, store: Store) -> None:
        put(store, "1", None, {"m": ["x"] * 100}, versions={"m": 1})
        put(store, "2", "1", {"m": ["x"] * 100}, versions={"m": 1}, changed=(), encode=never)
        assert values(store, "2") == {"m": ["x"] * 100}

    @pytest.mark.parametrize("changed", [(), ("m",)])
    def test_a_value_sent_again_costs_next_to_nothing(self, store: Store, changed: Any) -> None:
        """With the same version, and with a new one for the same bytes."""
        value = [str(number) for number in range(2000)]
        put(store, "1", None, {"m": value}, versions={"m": 1})
        before = written_bytes(store)
        put(store, "2", "1", {"m": value}, versions={"m": 2 if changed else 1}, changed=changed)
        assert 0 < written_bytes(store) - before < 400
        assert values(store, "2") == {"m": value}

    def test_equal_versions_on_two_branches_keep_their_own_values(self, store: Store) -> None:
        put(store, "0")
        for number in (1, 2):
            put(store, str(number), "0", {"m": [number] * 50}, versions={"m": 1})
        assert values(store, "1") == {"m": [1] * 50}
        assert values(store, "2") == {"m": [2] * 50}

    def test_positions_grow_within_a_thread(self, store: Store) -> None:
        lsns = [put(store, "1"), write(store, "1", 1), put(store, "2", "1"), write(store, "2", 1)]
        assert lsns == sorted(lsns, key=lambda lsn: lsn or 0)
        assert len(set(lsns)) == 4
        assert write(store, "1") is None

    def test_a_serializer_that_fails_stores_nothing(self, store: Store) -> None:
        def fails(channel: str, value: Any) -> tuple[str, bytes]:
            raise ZeroDivisionError

        put(store, "1", None, {"m": 1})
        before = everything(store)
        with pytest.raises(ZeroDivisionError):
            put(store, "2", "1", {"n": 1}, encode=fails)
        with pytest.raises(ZeroDivisionError):
            write(store, "1", 1, encode=fails)
        assert everything(store) == before

    def test_a_rule_that_fails_stores_nothing(self, store: Store) -> None:
        """It runs under the commit lock; the lock must be free again afterwards."""

        def fails(edge: Any) -> Any:
            raise ZeroDivisionError

        put(store, "1", None, {"m": 1})
        before, frames = everything(store), store.stats().frames
        with pytest.raises(ZeroDivisionError):
            put(store, "2", "1", {"m": 2}, rule=fails, lane=LANE)
        with pytest.raises(ZeroDivisionError):
            put(store, "2", "1", {"m": 2}, rule=fails)
        assert everything(store) == before
        assert store.stats().frames == frames
        put(store, "2", "1", {"m": 2})
        assert ids(store) == ["2", "1"]


class FreshObjects:
    def test_a_reader_cannot_reach_the_store(self, store: Store) -> None:
        put(store, "1", None, {"m": [1]}, metadata={"tags": ["x"]}, skeleton={"seen": {"n": {}}})
        write(store, "1", 1)
        for _ in range(2):
            listed = next(store.list("t"))
            gotten = store.get(LANE)
            assert gotten is not None
            assert listed == gotten
            for stored in (listed, gotten):
                assert isinstance(stored.metadata, dict)
                stored.metadata["tags"].append("y")
                stored.skeleton["seen"]["n"]["m"] = 1
                stored.versions["m"] = "changed"
                stored.values.clear()
                stored.writes.clear()

    def test_a_writer_cannot_reach_the_store_afterwards(self, store: Store) -> None:
        value, metadata, versions = [1] * 50, {"tags": ["x"]}, {"m": 1}
        put(store, "1", None, {"m": value}, metadata=metadata, versions=versions)
        value.append(2)
        metadata["tags"].append("y")
        versions["m"] = 2
        put(store, "2", "1", {"m": value}, versions={"m": 1}, changed=(), encode=never)
        stored = store.get(LANE, "1")
        assert stored is not None
        assert stored.metadata == {"tags": ["x"]}
        assert stored.versions == {"m": 1}
        assert values(store, "2") == {"m": [1] * 50}


class Lists:
    def test_one_lane_is_listed_by_place(self, store: Store) -> None:
        for id in ("5", "3", "9"):
            put(store, id)
        assert ids(store) == ["9", "3", "5"]
        assert ids(store, before="3") == ["5"]
        assert ids(store, before="5") == []
        assert ids(store, id="3") == ["3"]
        assert ids(store, id="3", before="9") == ["3"]
        assert ids(store, id="3", before="5") == []
        assert ids(store, id="nobody") == []

    def test_before_an_id_that_is_not_there_goes_by_id(self, store: Store) -> None:
        for id in ("5", "3", "9"):
            put(store, id)
        assert ids(store, before="6") == ["3", "5"]
        assert ids(store, before="0") == []
        write(store, "7", 1)
        assert ids(store, before="7") == ["3", "5"]

    def test_several_lanes_are_listed_by_id(self, store: Store) -> None:
        for id, lane in (("5", LANE), ("9", SUB), ("3", LANE), ("7", OTHER), ("1", SUB)):
            put(store, id, lane=lane)
        assert ids(store, "t", None) == ["9", "5", "3", "1"]
        assert ids(store, None, None) == ["9", "7", "5", "3", "1"]
        assert ids(store, None, "") == ["7", "5", "3"]
        assert ids(store, "t", "sub:1") == ["1", "9"]
        assert ids(store, "nobody", None) == []
        assert ids(store, "t", "nobody") == []
        assert ids(store, "t", None, before="5") == ["1"]
        assert ids(store, "t", None, "9") == ["9"]

    def test_accept_sees_the_metadata(self, store: Store) -> None:
        for id in ("1", "2", "3"):
            put(store, id)
        assert ids(store, accept=lambda metadata: metadata["id"] != "2") == ["3", "1"]

    @pytest.mark.parametrize("ns", ["", None])
    def test_a_list_goes_on_while_others_write_and_remove(self, store: Store, ns: str | None) -> None:
        for id in ("1", "2", "3", "4"):
            put(store, id, run=id)
        put(store, "0", lane=SUB)
        items = store.list("t", ns)
        assert next(items).id == "4"
        put(store, "5", "4")
        store.delete_for_runs(["2"])
        assert [item.id for item in items if item.lane == LANE] == ["3", "1"]
        items = store.list("t", ns)
        next(items)
        store.delete("t")
        assert list(items) == []

    def test_orphan_writes_make_no_thread_and_no_checkpoint(self, store: Store) -> None:
        write(store, "1", 1)
        write(store, "1", 1, lane=SUB)
        assert list(store.threads()) == []
        assert ids(store, None, None) == []
        assert store.get(LANE, "1") is None
        assert store.copy("t", "u") == 0
        assert list(store.threads()) == []

    def test_threads_are_listed_with_head_and_counts(self, store: Store) -> None:
        put(store, "1", lane=OTHER)
        for id in ("1", "2"):
            put(store, id)
        put(store, "9", lane=SUB)
        assert [tuple(info) for info in store.threads()] == [("u", 1, 1, "1"), ("t", 3, 2, "2")]
        store.set_head(LANE, "1")
        assert next(info for info in store.threads() if info.thread == "t").head == "1"
        store.delete("u")
        assert [info.thread for info in store.threads()] == ["t"]

    def test_many_threads_and_namespaces(self, store: Store) -> None:
        """More than one byte counts: keys end in every byte value."""
        for number in range(300):
            lane = LaneName("t", f"ns:{number}") if number % 2 else LaneName(f"thread-{number}")
            put(store, "1", None, {"m": number}, lane=lane)
            assert ids(store, *lane) == ["1"]
        assert len(ids(store, None, None)) == 300
        assert len(list(store.threads())) == 151

    def test_many_checkpoints_and_children(self, store: Store) -> None:
        for number in range(300):
            put(store, f"{number}", "0" if number else None, {"m": number})
            write(store, f"{number}", number)
        assert ids(store) == [str(number) for number in reversed(range(300))]
        assert values(store, "255") == {"m": 255}
        assert pending(store, "255") == [("k", "m", 255)]
        assert history(store, "299", "m") == (0, [])


class Writes:
    def test_a_batch_comes_back_in_order(self, store: Store) -> None:
        put(store, "1")
        write(store, "1", "z", task="a", task_path="~2")
        write(store, "1", "y", "x", task="b", task_path="~1")
        write(store, "1", "w", task="c")
        assert pending(store) == [("c", "m", "w"), ("b", "m", "y"), ("b", "m", "x"), ("a", "m", "z")]

    def test_regular_writes_are_first_wins_and_special_ones_last_wins(self, store: Store) -> None:
        put(store, "1")
        for value in (1, 2):
            store.put_writes(LANE, "1", [(0, "m", value), (-1, "error", value), (value, "n", value)], task_id="k", encode=as_json)
        assert pending(store) == [("k", "error", 2), ("k", "m", 1), ("k", "n", 1), ("k", "n", 2)]

    def test_large_writes(self, store: Store) -> None:
        put(store, "1")
        write(store, "1", ["x" * 1000] * 10, ["y"] * 1000)
        assert [value for _, _, value in pending(store)] == [["x" * 1000] * 10, ["y"] * 1000]

    def test_writes_before_their_checkpoint(self, store: Store) -> None:
        write(store, "1", 1)
        put(store, "1")
        assert pending(store) == [("k", "m", 1)]


class RePut:
    def test_it_keeps_place_head_writes_and_children(self, store: Store) -> None:
        for id, parent in (("1", None), ("2", "1"), ("3", "2")):
            put(store, id, parent, {"n": id})
        write(store, "2", 1)
        put(store, "2", "1", {"n": "new"}, metadata={"new": True})
        assert ids(store) == ["3", "2", "1"]
        head, again = store.get(LANE), store.get(LANE, "2")
        assert head is not None
        assert again is not None
        assert head.id == "3"
        assert again.metadata == {"new": True}
        assert values(store, "2") == {"n": "new"}
        assert pending(store, "2") == [("k", "m", 1)]
        assert store.stats().frames == 5
        assert next(store.threads()).checkpoints == 3

    def test_under_the_same_parent_it_keeps_what_made_it(self, store: Store) -> None:
        put(store, "1")
        write(store, "1", "mine", task="a")
        put(store, "2", "1")
        write(store, "1", "later", task="b")
        put(store, "2", "1")
        put(store, "3", "1")
        assert history(store, "2") == (None, ["mine"])
        assert history(store, "3") == (None, ["later"])

    def test_under_another_parent_it_has_that_ones_past(self, store: Store) -> None:
        put(store, "1", None, {"m": ["one"]})
        put(store, "2", None, {"m": ["two"]})
        put(store, "3", "1")
        put(store, "3", "2")
        assert history(store, "3") == (["two"], [])
        stored = store.get(LANE, "3")
        assert stored is not None
        assert stored.parent == "2"

    def test_a_loop_of_parents_ends_every_walk(self, store: Store) -> None:
        for id, parent in (("1", None), ("2", "1"), ("3", "2"), ("1", "3")):
            put(store, id, parent)
            write(store, id, id, task=id)
        for id in ("1", "2", "3"):
            assert set(history(store, id)[1]) <= {"1", "2", "3"}
        assert store.prune("t") == 2
        assert ids(store) == ["3"]

    def test_the_run_it_names_last_counts(self, store: Store) -> None:
        put(store, "1", run="old")
        put(store, "1", run="new")
        assert store.delete_for_runs(["old"]) == 0
        assert store.delete_for_runs(["new"]) == 1


class Heads:
    def test_a_head_moves_without_a_checkpoint(self, store: Store) -> None:
        for id in ("1", "2", "3"):
            put(store, id)
        store.set_head(LANE, "1")
        head = store.get(LANE)
        assert head is not None
        assert head.id == "1"
        assert ids(store) == ["3", "2", "1"]
        put(store, "4", "1")
        assert next(store.threads()).head == "4"

    def test_prune_keeps_the_head_that_was_set(self, store: Store) -> None:
        for id in ("1", "2", "3"):
            put(store, id)
        store.set_head(LANE, "2")
        assert store.prune("t") == 2
        assert ids(store) == ["2"]

    def test_removing_the_head_makes_the_newest_one_head(self, store: Store) -> None:
        for id in ("1", "2", "3"):
            put(store, id, run=id)
        store.set_head(LANE, "1")
        store.delete_for_runs(["1"])
        assert next(store.threads()).head == "3"

    def test_only_a_stored_checkpoint_can_be_head(self, store: Store) -> None:
        put(store, "1", run="r")
        write(store, "orphan", 1)
        put(store, "2")
        store.delete_for_runs(["r"])
        for id in ("1", "orphan", "nobody"):
            with pytest.raises(InvalidArgumentError, match=repr(id)):
                store.set_head(LANE, id)
        with pytest.raises(InvalidArgumentError):
            store.set_head(OTHER, "2")

    def test_expect_head(self, store: Store) -> None:
        put(store, "1", None, expect_head=True)
        with pytest.raises(ConflictError):
            put(store, "x", None, expect_head=True)
        put(store, "2", "1", expect_head=True)
        with pytest.raises(ConflictError, match="'2'"):
            put(store, "3", "1", expect_head=True)
        put(store, "2", "1", {"m": 1}, expect_head=True)
        store.set_head(LANE, "1")
        put(store, "3", "1", expect_head=True)
        assert ids(store) == ["3", "2", "1"]

    def test_a_head_that_moves_before_the_lock_is_taken_is_seen(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        put(store, "1")
        before_the_lock(store, monkeypatch, lambda: put(store, "faster", "1"))
        with pytest.raises(ConflictError, match="'faster'"):
            put(store, "slower", "1", expect_head=True)
        assert ids(store) == ["faster", "1"]

    def test_expect_head_refuses_a_parent_that_an_empty_lane_does_not_hold(self, store: Store) -> None:
        """And the refused call introduces neither thread nor lane."""
        frames = store.stats().frames
        with pytest.raises(ConflictError, match="'1'"):
            put(store, "2", "1", expect_head=True)
        assert store.stats().frames == frames
        assert list(store.threads()) == []


class Ownership:
    def test_windows(self, store: Store) -> None:
        """Without tokens, a batch belongs to the next child."""
        put(store, "0")
        for child in ("1", "2", "3"):
            write(store, "0", f"for {child}", task=child)
            put(store, child, "0")
        write(store, "0", "for nobody", task="x")
        for child in ("1", "2", "3"):
            assert history(store, child) == (None, [f"for {child}"])

    def test_writes_that_come_before_the_lock_is_taken_belong_to_the_child(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(store, "0")
        before_the_lock(store, monkeypatch, lambda: write(store, "0", "in time"))
        put(store, "1", "0")
        write(store, "0", "too late")
        assert history(store, "1") == (None, ["in time"])

    def test_tokens_beat_windows(self, store: Store) -> None:
        """Writes, writes, child, child."""
        put(store, "0")
        write(store, "0", "a", task="k", token=A6)
        write(store, "0", "b", task="k", token=B6)
        put(store, "1", "0", token=A6, rule=of_token(A6))
        put(store, "2", "0", token=B6, rule=of_token(B6))
        assert history(store, "1") == (None, ["a"])
        assert history(store, "2") == (None, ["b"])

    def test_a_writer_without_own_batches_reuses_what_stands_there(self, store: Store) -> None:
        """A resumed run: A finished before the crash, the new run brings B."""
        put(store, "0")
        write(store, "0", "A", task="a", token=A6)
        write(store, "0", "B", task="b", token=B6)
        put(store, "1", "0", token=B6, rule=of_token(B6))
        assert history(store, "1") == (None, ["A", "B"])

    def test_of_a_tasks_own_batches_the_newest_counts_whole(self, store: Store) -> None:
        put(store, "0")
        write(store, "0", "a1", "a2", "a3", task="k", token=A6)
        write(store, "0", "b1", task="k", token=A6)
        put(store, "1", "0", token=A6, rule=of_token(A6))
        assert history(store, "1") == (None, ["b1"])

    def test_the_newest_batch_of_a_task_counts_alone_though_it_writes_another_channel(self, store: Store) -> None:
        put(store, "0")
        write(store, "0", "a", task="k", token=A6)
        write(store, "0", "b", task="k", channel="n", token=A6)
        put(store, "1", "0", {}, versions={"m": 1, "n": 1}, token=A6, rule=of_token(A6))
        put(store, "2", "1", {}, versions={"m": 2, "n": 2})
        for _ in range(2):
            assert (history(store, "2", "m"), history(store, "2", "n")) == ((None, []), (None, ["b"]))
            store.prune("t")

    def test_of_others_batches_the_first_write_of_an_idx_counts_though_it_is_of_another_channel(self, store: Store) -> None:
        put(store, "0")
        write(store, "0", "shown", task="k")
        write(store, "0", "hidden", "shown too", task="k", channel="n")
        assert pending(store) == [("k", "m", "shown"), ("k", "n", "shown too")]
        put(store, "1", "0", {}, versions={"m": 1, "n": 1})
        put(store, "2", "1", {}, versions={"m": 2, "n": 2})
        for _ in range(2):
            assert (history(store, "2", "m"), history(store, "2", "n")) == ((None, ["shown"]), (None, ["shown too"]))
            store.prune("t")

    def test_of_an_update_every_batch_counts(self, store: Store) -> None:
        put(store, "0")
        for value in ("p", "q"):
            write(store, "0", value, task="k", token=A6)
        put(store, "1", "0", token=A6, source=Source.UPDATE, rule=of_token(A6, Source.UPDATE))
        assert history(store, "1") == (None, ["p", "q"])

    def test_a_late_batch_joins_its_own_child(self, store: Store) -> None:
        put(store, "0")
        put(store, "1", "0", token=A6, rule=of_token(A6))
        put(store, "2", "0", token=B6, rule=of_token(B6))
        write(store, "0", "late", token=A6, late=late_of(A6))
        put(store, "3", "0", token=B6, rule=of_token(B6))
        assert history(store, "1") == (None, ["late"])
        assert history(store, "2") == history(store, "3") == (None, [])

    def test_no_two_children_share_a_batch(self, store: Store) -> None:
        put(store, "0")
        write(store, "0", "once", task="k", token=A6)
        put(store, "1", "0", token=A6, rule=of_token(A6))
        put(store, "2", "0", token=A6, rule=of_token(A6))
        assert history(store, "1") == (None, ["once"])
        assert history(store, "2") == (None, [])

    def test_a_twin_can_take_over_the_originals_list(self, store: Store) -> None:
        def twin(edge: Any) -> Any:
            return edge.siblings[0].entry.consumed

        put(store, "0")
        write(store, "0", "once", task="k")
        put(store, "1", "0", versions={"m": 2})
        put(store, "2", "0", versions={"m": 2}, source=Source.FORK, rule=twin)
        assert history(store, "2") == history(store, "1") == (None, ["once"])

    def test_special_writes_are_nobodys_history(self, store: Store) -> None:
        put(store, "0")
        store.put_writes(LANE, "0", [(-1, "m", "error"), (0, "m", 1)], task_id="k", encode=as_json)
        store.put_writes(LANE, "0", [(-3, "m", "interrupt")], task_id="l", encode=as_json, origin=Origin.TASK)
        put(store, "1", "0")
        assert history(store, "1") == (None, [1])

    def test_an_equal_version_on_both_ends_says_that_nothing_was_used(self, store: Store) -> None:
        """A finished task of a crashed run stays on the parent; a child whose channel did not move did not use it."""
        put(store, "0", None, {}, versions={"m": 1})
        write(store, "0", "unused")
        put(store, "1", "0", {}, versions={"m": 1}, changed=())
        put(store, "2", "1", {}, versions={"m": 2})
        assert history(store, "1") == (None, [])
        assert history(store, "2") == (None, [])

    def test_the_past_crosses_checkpoints_oldest_first(self, store: Store) -> None:
        put(store, "0", None, {"m": ["seed"]})
        for number in range(1, 5):
            write(store, str(number - 1), number, number + 0.5, task=f"k{number}")
            put(store, str(number), str(number - 1))
        assert history(store, "4") == (["seed"], [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5])
        assert history(store, "2") == (["seed"], [1, 1.5, 2, 2.5])
        assert history(store, "0") == (None, [])


def _chain(store: Store, length: int = 6, lane: LaneName = LANE, first: int = 0) -> None:
    """A seed and then one write a step; channel m holds no value after the first."""
    for number in range(first, first + length):
        if number:
            write(store, str(number - 1), number, lane=lane)
            put(store, str(number), str(number - 1), versions={"m": number}, lane=lane, run=f"r{number}")
        else:
            put(store, "0", None, {"m": ["seed"]}, lane=lane, run="r0")


class Removal:
    def test_prune_keeps_the_heads_and_their_past(self, store: Store) -> None:
        _chain(store)
        _chain(store, 3, SUB)
        write(store, "5", "pending")
        write(store, "orphan", "of a put still to come")
        assert store.prune("t") == 5 + 2
        assert ids(store, "t", None) == ["5", "2"]
        assert history(store, "5") == (["seed"], [1, 2, 3, 4, 5])
        assert history(store, "2", lane=SUB) == (["seed"], [1, 2])
        assert pending(store) == [("k", "m", "pending")]
        put(store, "orphan", "5")
        assert pending(store, "orphan") == [("k", "m", "of a put still to come")]
        assert store.prune("nobody") == 0

    def test_history_records_end_the_walk_of_those_after_them(self, store: Store) -> None:
        _chain(store)
        for round in range(3):
            store.prune("t")
            _chain(store, 2, first=6 + 2 * round)
        assert history(store, "11") == (["seed"], list(range(1, 12)))
        assert store.prune("t") == 2
        assert history(store, "11") == (["seed"], list(range(1, 12)))
        assert store.prune("t") == 0

    def test_a_value_of_the_survivor_ends_the_walk_of_its_children(self, store: Store) -> None:
        _chain(store)
        put(store, "snapshot", "5", {"m": ["all"]})
        store.prune("t")
        write(store, "snapshot", "new")
        put(store, "child", "snapshot")
        assert history(store, "child") == (["all"], ["new"])

    def test_delete_for_runs_removes_from_the_middle(self, store: Store) -> None:
        _chain(store)
        assert store.delete_for_runs(["r2", "r3", "nobody"]) == 2
        assert ids(store) == ["5", "4", "1", "0"]
        assert history(store, "5") == (["seed"], [1, 2, 3, 4, 5])
        assert history(store, "1") == (["seed"], [1])
        assert store.get(LANE, "2") is None
        assert store.delete_for_runs([]) == 0
        assert store.delete_for_runs(["r2"]) == 0

    def test_delete_for_runs_reaches_every_thread_and_namespace(self, store: Store) -> None:
        for lane in (LANE, SUB, OTHER):
            put(store, "1", lane=lane, run="r")
            put(store, "2", "1", lane=lane)
        assert store.delete_for_runs(["r"]) == 3
        assert ids(store, None, None) == ["2", "2", "2"]

    def test_delete_for_runs_reaches_copies(self, store: Store) -> None:
        """A copy's checkpoints name the run in their metadata as the originals do."""
        put(store, "1", run="r")
        put(store, "2", "1")
        store.copy("t", "u")
        assert store.delete_for_runs(["r"]) == 2
        assert ids(store, "u", None) == ids(store, "t", None) == ["2"]

    def test_all_branches_of_what_is_removed_keep_their_own_past(self, store: Store) -> None:
        put(store, "0", None, {"m": ["seed"]}, run="gone")
        for branch in ("a", "b"):
            write(store, "0", branch, task=branch)
            put(store, branch, "0", versions={"m": branch}, run="gone")
            write(store, branch, branch * 2, task=branch)
            put(store, f"{branch}-leaf", branch, versions={"m": f"{branch}-leaf"})
        assert store.delete_for_runs(["gone"]) == 3
        assert history(store, "a-leaf") == (["seed"], ["a", "aa"])
        assert history(store, "b-leaf") == (["seed"], ["b", "bb"])

    def test_a_parent_that_goes_before_the_lock_is_taken_takes_no_value_along(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The child does not name a value that was its parent's and that compaction took away."""
        held = {"m": "a text that is long enough to stand by itself " * 20}
        put(store, "1", None, held, versions={"m": 1}, run="gone")
        put(store, "other", None, {"n": 1})

        def meanwhile() -> None:
            store.delete_for_runs(["gone"])
            store.compact()

        before_the_lock(store, monkeypatch, meanwhile)
        put(store, "2", "1", held, versions={"m": 1}, changed=())
        assert values(store, "2") == held

    def test_a_removed_id_can_be_put_again(self, store: Store) -> None:
        _chain(store)
        store.delete_for_runs(["r2"])
        put(store, "2", "1", {"m": ["again"]})
        assert ids(store) == ["2", "5", "4", "3", "1", "0"]
        assert values(store, "2") == {"m": ["again"]}
        assert pending(store, "2") == []

    def test_a_child_of_a_removed_id_says_that_its_past_is_lost(self, store: Store) -> None:
        """Prune and delete_for_runs never refuse a late call; what it cannot know any more is an error, not an empty list."""
        _chain(store)
        store.delete_for_runs(["r2"])
        put(store, "late", "2", versions={"m": "late"})
        with pytest.raises(CheckpointLineageIntegrityError, match="'late'"):
            history(store, "late")
        assert history(store, "5") == (["seed"], [1, 2, 3, 4, 5])

    def test_delete_removes_all_and_refuses_late_calls(self, store: Store) -> None:
        _chain(store)
        put(store, "1", lane=SUB)
        write(store, "orphan", 1)
        put(store, "1", lane=OTHER)
        assert store.delete("t")
        assert not store.delete("t")
        assert [item.lane for item in store.list()] == [OTHER]
        late_calls: list[Callable[[], Any]] = [
            lambda: write(store, "5", 1),
            lambda: write(store, "orphan", 1),
            lambda: write(store, "1", 1, lane=SUB),
            lambda: put(store, "6", "5"),
        ]
        for late in late_calls:
            with pytest.raises(ThreadDeletedError):
                late()
        assert store.get(LANE) is None
        write(store, "unknown", 1)
        put(store, "5", None, {"m": ["new"]})
        write(store, "5", 1)
        put(store, "6", "5", versions={"m": 6})
        assert history(store, "6") == (["new"], [1])
        assert ids(store) == ["6", "5"]

    def test_ids_of_a_deleted_thread_are_remembered_for_a_week(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        put(store, "1")
        store.delete("t")
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 7 * 86400 - 60)
        with pytest.raises(ThreadDeletedError):
            put(store, "2", "1")
        monkeypatch.setattr(time, "time", lambda: now + 7 * 86400 + 60)
        put(store, "2", "1")
        assert ids(store) == ["2"]

    def test_what_was_copied_since_its_thread_was_deleted_is_not_late(self, store: Store) -> None:
        """Prune never makes a call late, whichever way the checkpoint came back."""
        _chain(store)
        store.copy("t", "u")
        store.delete("u")
        store.copy("t", "u")
        store.prune("u")
        write(store, "2", "welcome", lane=OTHER)
        put(store, "late", "3", lane=OTHER)
        assert ids(store, "u") == ["late", "5"]

    def test_late_ids_are_forgotten_after_the_window(self, make_store: Any) -> None:
        store = make_store(late_window=0.0)
        put(store, "1")
        store.delete("t")
        write(store, "1", 1)
        put(store, "2", "1")
        assert ids(store) == ["2"]


class Copies:
    def test_a_copy_is_equal_and_costs_no_data(self, store: Store) -> None:
        _chain(store, 40)
        put(store, "big", "39", {"n": ["x" * 100] * 100})
        _chain(store, 3, SUB)
        write(store, "big", "pending")
        store.set_head(LANE, "7")
        before = written_bytes(store)
        assert store.copy("t", "u") == 44
        assert 0 < written_bytes(store) - before < 600
        for lane, copied in ((LANE, OTHER), (SUB, LaneName("u", "sub:1"))):
            originals, copies = list(store.list(*lane)), list(store.list(*copied))
            assert [item._replace(lane=lane) for item in copies] == originals
            for item in originals:
                assert history(store, item.id, lane=copied) == history(store, item.id, lane=lane)
        head = store.get(OTHER)
        assert head is not None
        assert head.id == "7"

    def test_both_go_on_apart(self, store: Store) -> None:
        _chain(store, 3)
        store.copy("t", "u")
        for lane in (LANE, OTHER):
            write(store, "2", lane.thread, lane=lane)
            put(store, "3", "2", versions={"m": 3}, lane=lane)
        assert history(store, "3") == (["seed"], [1, 2, "t"])
        assert history(store, "3", lane=OTHER) == (["seed"], [1, 2, "u"])
        assert [write_[2] for write_ in pending(store, "2")] == ["t"]

    @pytest.mark.parametrize("remove", ["delete", "prune"])
    def test_removing_one_leaves_the_other(self, store: Store, remove: str) -> None:
        _chain(store)
        store.copy("t", "u")
        store.copy("u", "v")
        expected = history(store, "5", lane=OTHER)
        getattr(store, remove)("t")
        assert history(store, "5", lane=OTHER) == expected == history(store, "5", lane=LaneName("v"))
        assert len(ids(store, "u")) == 6
        getattr(store, remove)("u")
        assert history(store, "5", lane=LaneName("v")) == expected
        put(store, "1", None, {"m": ["new"]}, lane=OTHER)
        assert values(store, "0", LaneName("v")) == {"m": ["seed"]}

    def test_what_cannot_be_copied(self, store: Store) -> None:
        put(store, "1")
        put(store, "1", lane=OTHER)
        with pytest.raises(ThreadExistsError, match="'u'"):
            store.copy("t", "u")
        with pytest.raises(InvalidArgumentError, match="'t'"):
            store.copy("t", "t")
        assert store.copy("nobody", "v") == 0
        assert [info.thread for info in store.threads()] == ["t", "u"]
        store.delete("u")
        assert store.copy("t", "u") == 1


class DeadFrames:
    def test_frames_die_with_the_last_who_needs_them(self, store: Store) -> None:
        lsns = {put(store, "1", None, {"m": ["x"] * 50}), write(store, "1", 1)}
        store.copy("t", "u")
        store.delete("t")
        assert not dead(store) & lsns
        store.delete("u")
        assert dead(store) >= lsns

    def test_a_value_that_a_survivor_still_holds_lives(self, store: Store) -> None:
        first = put(store, "1", None, {"m": ["x"] * 50}, versions={"m": 1})
        put(store, "2", "1", {"m": ["x"] * 50}, versions={"m": 1}, changed=())
        store.prune("t")
        assert first not in dead(store)
        assert values(store) == {"m": ["x"] * 50}

    def test_what_a_history_record_holds_lives_as_long_as_the_survivor(self, store: Store) -> None:
        first = put(store, "0", None, {"m": ["seed"] * 20})
        batch = write(store, "0", 1)
        put(store, "1", "0", versions={"m": 2})
        store.prune("t")
        assert not {first, batch} & dead(store)
        store.delete("t")
        assert dead(store) >= {first, batch}

    def test_the_frame_that_names_a_live_thread_lives(self, store: Store) -> None:
        first = put(store, "1")
        put(store, "2", "1")
        store.prune("t")
        assert first not in dead(store)
        store.delete("t")
        assert first in dead(store)

    def test_pruning_gives_frames_back(self, store: Store) -> None:
        for number in range(20):
            put(store, str(number), str(number - 1) if number else None, {"n": [number] * 50})
        assert store.stats().dead_bytes == 0
        store.prune("t")
        assert len(dead(store)) >= 18
        assert 0 < store.stats().dead_bytes < store.stats().log_bytes


class StorageContract(PutAndGet, FreshObjects, Lists, Writes, RePut, Heads, Ownership, Removal, Copies, DeadFrames):
    """All of it."""
