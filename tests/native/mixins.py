"""What native threads must do wherever they are stored. A concrete class gives the fixture `home`, with a fresh and empty store."""

from __future__ import annotations

import datetime
import enum
import operator
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pytest

from ckptstore import Change, LaneName, channels
from ckptstore.errors import (
    CheckpointParentMissingError,
    CkptStoreError,
    ConflictError,
    InvalidArgumentError,
    MissingReducerError,
    ReducerError,
    SchemaError,
    SerializationError,
    StoreClosedError,
    ThreadDeletedError,
    ThreadExistsError,
    ValueTooLargeError,
)
from tests.native.calls import GIVEN_AGAIN, LANE, SCHEMA, TOTAL, UNSET, Cursor, Home, Meddling, Overwrite, reducers


class Stepping:
    def test_opening_a_thread_stores_nothing(self, home: Home) -> None:
        cursor = home.thread()
        assert (cursor.tip, cursor.state(), cursor.checkpoint(), cursor.head(), cursor.lineage()) == (None, {}, None, None, [])
        assert (home.threads(), home.frames()) == ([], 0)

    def test_a_step_is_one_commit_whatever_it_writes(self, home: Home) -> None:
        cursor = home.thread()
        cursor.log("a")
        before = home.frames()
        cursor.step({"log": ["x" * 3000], "title": "y" * 3000, "facts": {"a": "z" * 3000}, "chat": [{"id": 1}], "total": 1})
        assert home.frames() == before + 1
        cursor.step({"log": ["x" * 3000], "title": "y" * 3000, "facts": {"a": "w" * 3000}, "chat": [{"id": 2}], "total": 1})
        assert home.frames() == before + 2

    def test_what_a_step_returns_is_what_is_stored(self, home: Home) -> None:
        cursor = home.thread("u", "n:1")
        before = time.time_ns() // 1_000_000
        first = cursor.log("a", metadata={"by": "me", "tags": ["x"]})
        second = cursor.log("b")
        assert (first.thread, first.ns, first.parent, first.step, first.metadata) == (
            "u",
            "n:1",
            None,
            0,
            {"by": "me", "tags": ["x"]},
        )
        assert (second.parent, second.step, second.metadata) == (first.id, 1, {})
        assert before <= first.created_ms <= second.created_ms <= time.time_ns() // 1_000_000
        assert cursor.lineage() == [second, first]
        assert cursor.checkpoint() == cursor.head() == second
        assert (cursor.tip, cursor.thread.id, cursor.thread.ns) == (second.id, "u", "n:1")
        assert cursor.at(first).checkpoint() == first
        assert cursor.at(first.id).checkpoint() == first

    def test_every_kind_of_channel(self, home: Home) -> None:
        cursor = home.thread()
        cursor.step({"log": ["a"], "title": "one", "facts": {"x": 1}, "chat": [{"id": "m1", "n": 1}], "total": 1})
        cursor.step({"log": ["b", "c"], "title": "two", "facts": {"y": 2}, "chat": [{"id": "m2", "n": 2}], "total": 2})
        third = cursor.step({"log": [], "facts": {"x": 3}, "chat": [{"id": "m1", "n": 3}, channels.remove("m2")], "total": 4})
        expected = {"log": ["a", "b", "c"], "title": "two", "facts": {"x": 3, "y": 2}, "chat": [{"id": "m1", "n": 3}], "total": 7}
        assert cursor.state() == home.again().state() == home.replayed(third) == expected

    def test_states_of_every_step_of_a_long_thread(self, home: Home) -> None:
        cursor, expected, checkpoints = home.thread(), [], []
        for number in range(60):
            writes: dict[str, Any] = {"log": [f"line {number} " * 8]}
            if number % 3 == 0:
                writes["facts"] = {str(number % 7): number}
            if number % 5 == 0:
                writes["title"] = f"title {number}"
            checkpoints.append(cursor.step(writes))
            expected.append(cursor.state())
        assert expected[-1]["log"] == [f"line {number} " * 8 for number in range(60)]
        again = home.again()
        for checkpoint, state in zip(checkpoints, expected, strict=True):
            assert len(state["log"]) == checkpoint.step + 1
            assert again.at(checkpoint).state() == home.replayed(checkpoint) == state
        assert home.listed() == [checkpoint.id for checkpoint in reversed(checkpoints)] == again.ids()

    def test_a_step_without_writes_is_a_checkpoint_too(self, home: Home) -> None:
        cursor = home.thread()
        cursor.step({"log": ["a"], "title": "t"})
        cursor.log("b")
        empty = cursor.step({}, metadata={"only": "metadata"})
        assert cursor.state() == {"log": ["a", "b"], "title": "t"}
        assert cursor.lineage()[0] == empty
        assert home.thread("new").step({}).step == 0
        assert home.thread("new").state() == {}

    def test_lanes_do_not_mix(self, home: Home) -> None:
        cursors = [home.thread("t"), home.thread("t", "sub"), home.thread("u")]
        for round in range(3):
            for number, cursor in enumerate(cursors):
                cursor.log(f"{number}.{round}")
        for number, (id, ns) in enumerate((("t", ""), ("t", "sub"), ("u", ""))):
            assert home.again(id, ns).state()["log"] == [f"{number}.{round}" for round in range(3)]
        assert home.threads() == ["t", "u"]
        with pytest.raises(InvalidArgumentError):
            cursors[0].at(cursors[1].tip)

    @pytest.mark.parametrize("name", ["\udcff\n", "a/b@HEAD~1", "é" * 3000, " ", "\0"])
    def test_odd_names(self, home: Home, name: str) -> None:
        schema = {name: channels.append()}
        home.thread(name, name, schema=schema).step({name: ["a"]})
        home.thread(name, name, schema=None).step({name: ["b"]}, metadata={name: name})
        cursor = home.thread(name, name, schema=None)
        assert cursor.state() == {name: ["a", "b"]}
        assert cursor.checkpoint().metadata == {name: name}
        assert home.threads() == [name]

    def test_a_step_that_fails_stores_nothing_and_the_cursor_stays(self, home: Home) -> None:
        cursor = home.thread()
        first = cursor.step({"log": ["a"], "title": "t"})
        frames = home.frames()
        for writes, error in (
            ({"title": "new", "nobody": 1}, SchemaError),
            ({"title": "new", "log": "text"}, ReducerError),
            ({"title": "new", "facts": []}, ReducerError),
            ({"title": "new", "log": [object()]}, SerializationError),
            ({"log": ["b"], "title": {1, 2}}, SerializationError),
        ):
            with pytest.raises(error):
                cursor.step(writes)
            assert (home.frames(), cursor.tip, cursor.state()) == (frames, first.id, {"log": ["a"], "title": "t"})
        assert cursor.log("b").parent == first.id
        assert cursor.state() == {"log": ["a", "b"], "title": "t"}

    def test_checkpoints_are_listed_by_their_order_and_not_by_their_ids(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        """A clock that goes back gives ids that go back, since they begin with its time."""
        cursor = home.thread()
        made = [cursor.log("a")]
        hour_ago = time.time_ns() - 3600 * 10**9
        monkeypatch.setattr(time, "time_ns", lambda: hour_ago)
        made += [cursor.log("b"), cursor.log("c")]
        assert made[1].id < made[0].id
        assert made[1].created_ms < made[0].created_ms
        assert home.listed() == cursor.ids() == [made[2].id, made[1].id, made[0].id]
        assert cursor.head() == made[2]
        assert home.again().state() == {"log": ["a", "b", "c"]}


class Cursors:
    def test_a_cursor_moves_nobody_else(self, home: Home) -> None:
        one = home.thread()
        first = one.log("a")
        two, three = home.again(), one.fork()
        one.log("b")
        assert (two.tip, three.tip) == (first.id, first.id)
        assert two.state() == three.state() == {"log": ["a"]}

    def test_branches_stay_exact_however_they_are_stepped(self, home: Home) -> None:
        root = home.thread()
        root.log("root")
        branches = [root.fork() for _ in range(3)]
        made: dict[str, Any] = {}
        for round in range(12):
            for number, branch in enumerate(branches):
                made[branch.log(f"{number}.{round}").id] = ["root", *(f"{number}.{at}" for at in range(round + 1))]
        for id, log in made.items():
            assert home.again().at(id).state() == home.replayed(id) == {"log": log}
        for number, branch in enumerate(branches):
            assert branch.state()["log"] == ["root", *(f"{number}.{round}" for round in range(12))]
            assert len(branch.ids()) == 13
        assert root.state() == {"log": ["root"]}
        assert len(home.listed()) == 37

    def test_a_branch_of_a_branch(self, home: Home) -> None:
        cursor = home.thread()
        first = cursor.step({"log": ["a"], "facts": {"at": "a"}})
        branch = cursor.at(first).fork()
        second = branch.step({"log": ["b"], "facts": {"at": "b"}})
        inner = branch.at(second).fork()
        third = inner.step({"log": ["c"], "facts": {"of": "c"}})
        branch.step({"log": ["d"], "facts": {"at": "d"}})
        cursor.log("e")
        assert inner.state() == {"log": ["a", "b", "c"], "facts": {"at": "b", "of": "c"}}
        assert branch.state() == {"log": ["a", "b", "d"], "facts": {"at": "d"}}
        assert cursor.state() == {"log": ["a", "e"], "facts": {"at": "a"}}
        assert inner.ids() == [third.id, second.id, first.id]

    def test_forking_an_empty_thread_begins_another_root(self, home: Home) -> None:
        one = home.thread()
        two = one.fork()
        assert (one.log("a").parent, two.log("b").parent) == (None, None)
        assert (one.state(), two.state()) == ({"log": ["a"]}, {"log": ["b"]})

    def test_the_head_is_the_newest_checkpoint_until_it_is_moved(self, home: Home) -> None:
        cursor = home.thread()
        first = cursor.log("a")
        second = cursor.log("b")
        branch = cursor.at(first)
        third = branch.log("c")
        assert cursor.head() == branch.head() == third
        assert cursor.tip == second.id
        branch.set_head(second)
        assert (branch.tip, cursor.head().id, home.again().tip) == (second.id, second.id, second.id)
        assert home.listed() == [third.id, second.id, first.id]
        fork = cursor.at(first)
        fork.set_head()
        assert home.again().state() == {"log": ["a"]}
        assert home.again().log("d").parent == first.id
        assert home.again().state() == {"log": ["a", "d"]}

    def test_setting_the_head_of_a_lane_to_what_it_does_not_hold(self, home: Home) -> None:
        cursor, other = home.thread(), home.thread("other")
        with pytest.raises(InvalidArgumentError, match="checkpoint=None on an empty thread"):
            cursor.set_head()
        first, foreign = cursor.log("a"), other.log("b")
        frames = home.frames()
        for wrong in ("nobody", foreign, foreign.id, ""):
            with pytest.raises(InvalidArgumentError):
                cursor.set_head(wrong)
            with pytest.raises(InvalidArgumentError):
                cursor.at(wrong)
        assert (cursor.tip, home.frames()) == (first.id, frames)

    def test_diff(self, home: Home) -> None:
        cursor = home.thread()
        with pytest.raises(CheckpointParentMissingError, match="empty thread has no parent"):
            cursor.diff()
        first = cursor.step({"log": ["a"], "title": "t", "total": 1})
        with pytest.raises(CheckpointParentMissingError, match=first.id):
            cursor.diff()
        cursor.step({"log": ["b"], "title": UNSET, "facts": {"x": 1}})
        assert cursor.diff() == {
            "facts": Change(UNSET, {"x": 1}),
            "log": Change(["a"], ["a", "b"]),
            "title": Change("t", UNSET),
        }
        assert cursor.diff(first) == cursor.diff(first.id) == cursor.diff()
        branch = cursor.at(first).fork()
        third = branch.log("c")
        assert cursor.diff(third)["log"] == Change(["a", "c"], ["a", "b"])
        assert branch.diff(third) == {}

    def test_a_paused_lineage_blocks_nobody(self, home: Home) -> None:
        cursor = home.thread()
        made = [cursor.log(str(number)) for number in range(4)]
        walk = cursor.thread.lineage()
        assert next(walk) == made[3]
        branch = home.again().at(made[0])
        branch.log("branch")
        home.thread("other").log("x")
        assert [checkpoint.id for checkpoint in walk] == [made[2].id, made[1].id, made[0].id]

    def test_two_handles_see_each_others_steps_at_once(self, home: Home) -> None:
        one, other = home.thread(), home.another()
        for number in range(15):
            one.log(f"one {number}")
            theirs = other.thread("t", schema=GIVEN_AGAIN)
            assert theirs.tip == one.tip
            theirs.step({"log": [f"other {number}"]})
            assert one.head().id == theirs.tip
            one = home.again()
        assert one.state()["log"] == [f"{who} {number}" for number in range(15) for who in ("one", "other")]


class Cadence:
    @pytest.mark.parametrize("frequency", [1, 2, 10])
    def test_a_value_is_stored_every_so_many_updates(self, home: Home, frequency: int) -> None:
        cursor = home.thread(snapshot_frequency=frequency)
        valued = []
        for number in range(23):
            id = cursor.step({"log": [number], "title": str(number)} if number % 2 == 0 else {"log": [number]}).id
            outline = home.store.outline(LANE, id)
            assert outline is not None
            assert outline.versions.keys() == {"log", "title"}
            assert "title" in outline.valued
            valued.append("log" in outline.valued)
            assert cursor.state()["log"] == home.again().state()["log"] == list(range(number + 1))
        assert valued == [number % frequency == 0 for number in range(23)]

    def test_only_a_channels_own_updates_count(self, home: Home) -> None:
        cursor = home.thread(snapshot_frequency=3)
        for number in range(9):
            cursor.step({"log": [number]} if number % 3 == 0 else {"facts": {"n": number}})
        outlines = [home.store.outline(LANE, id) for id in reversed(cursor.ids())]
        # The first update, and each third after it; a channel that is not written keeps the value that its parent holds.
        assert [number for number, outline in enumerate(outlines) if outline and "log" in outline.valued] == [0, 1, 2]
        assert [number for number, outline in enumerate(outlines) if outline and "facts" in outline.valued] == [1, 5, 6]
        assert cursor.state() == {"log": [0, 3, 6], "facts": {"n": 8}}

    def test_each_branch_counts_for_itself(self, home: Home) -> None:
        cursor = home.thread(snapshot_frequency=4)
        for number in range(3):
            cursor.log(number)
        branches = [cursor.fork(), cursor.fork()]
        for number in range(3, 9):
            for branch in branches:
                id = branch.log(number).id
                outline = home.store.outline(LANE, id)
                assert outline is not None
                assert ("log" in outline.valued) == (number % 4 == 0)
        assert [branch.state()["log"] for branch in branches] == [list(range(9))] * 2

    def test_the_frequency_may_change_with_each_open(self, home: Home) -> None:
        for number in range(30):
            home.again(**({"schema": SCHEMA} if number == 0 else {}), snapshot_frequency=(1, 7, 3)[number % 3]).log(number)
        assert home.again().state() == {"log": list(range(30))}

    def test_the_default_is_ten(self, home: Home) -> None:
        cursor = home.thread()
        for number in range(21):
            cursor.log(number)
        outlines = [home.store.outline(LANE, id) for id in reversed(cursor.ids())]
        assert [number for number, outline in enumerate(outlines) if outline and outline.valued] == [0, 10, 20]

    @pytest.mark.parametrize("frequency", [0, -1, 1.0, "10", True, None, 2.5])
    def test_it_is_a_whole_number_from_one(self, home: Home, frequency: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=f"snapshot_frequency={frequency!r}: a whole number from 1"):
            home.thread(snapshot_frequency=frequency)


START: dict[str, Any] = {"log": ["a"], "title": "t", "facts": {"x": 1}, "chat": [{"id": 1}], "total": 5}
OTHER: dict[str, Any] = {"log": ["z"], "title": "z", "facts": {"z": 26}, "chat": [{"id": 26}], "total": 26}
MORE: dict[str, tuple[Any, Any]] = {
    # channel: (a write, what it makes of the value in OTHER)
    "log": (["b"], ["z", "b"]),
    "title": ("b", "b"),
    "facts": ({"b": 2}, {"z": 26, "b": 2}),
    "chat": ([{"id": 2}], [{"id": 26}, {"id": 2}]),
    "total": (2, 28),
}


@pytest.mark.parametrize("frequency", [1, 2, 10])
@pytest.mark.parametrize("name", SCHEMA)
class Replacing:
    """Overwrite and UNSET, and what is written after them; in a new thread, and where there is something to replace."""

    def test_overwrite_and_writes_after_it(self, home: Home, name: str, frequency: int) -> None:
        cursor = home.thread(snapshot_frequency=frequency)
        for _ in range(3):
            cursor.step({name: START[name]})
        before = cursor.state()
        replaced = cursor.step({name: Overwrite(OTHER[name])})
        assert cursor.state() == {name: OTHER[name]}
        cursor.step({name: MORE[name][0]})
        for read in (cursor.state(), home.again().state(), home.replayed(str(cursor.tip))):
            assert read == {name: MORE[name][1]}
        assert cursor.at(replaced).state() == {name: OTHER[name]}
        assert cursor.at(str(replaced.parent)).state() == before

    def test_overwrite_as_the_first_write(self, home: Home, name: str, frequency: int) -> None:
        cursor = home.thread(snapshot_frequency=frequency)
        cursor.step({name: Overwrite(OTHER[name])})
        cursor.step({name: MORE[name][0]})
        assert cursor.state() == home.again().state() == {name: MORE[name][1]}

    def test_unset_and_writes_after_it(self, home: Home, name: str, frequency: int) -> None:
        cursor = home.thread(snapshot_frequency=frequency)
        cursor.step(START)
        cursor.step({name: START[name]})
        unset = cursor.step({name: UNSET})
        rest = {other: value for other, value in START.items() if other != name}
        for read in (cursor.state(), home.again().state(), home.replayed(unset)):
            assert read == rest
        again = cursor.step({name: OTHER[name]})
        last = cursor.step({name: MORE[name][0]})
        assert home.again().at(again).state() == {**rest, name: OTHER[name]}
        for read in (cursor.state(), home.again().state(), home.replayed(last)):
            assert read == {**rest, name: MORE[name][1]}
        assert home.again().at(unset).state() == rest

    def test_unset_of_what_has_no_value(self, home: Home, name: str, frequency: int) -> None:
        cursor = home.thread(snapshot_frequency=frequency)
        cursor.step({name: UNSET})
        assert cursor.state() == {}
        cursor.step({name: UNSET, **({"title": "t"} if name != "title" else {})})
        cursor.step({name: OTHER[name]})
        assert cursor.state()[name] == home.again().state()[name] == OTHER[name]

    def test_on_one_branch_only(self, home: Home, name: str, frequency: int) -> None:
        cursor = home.thread(snapshot_frequency=frequency)
        cursor.step({name: START[name]})
        before = cursor.step({name: OTHER[name]})
        expected = cursor.state()
        replaced, unset = cursor.fork(), cursor.fork()
        replaced.step({name: Overwrite(OTHER[name])})
        unset.step({name: UNSET})
        same = cursor.step({})
        replaced.step({name: MORE[name][0]})
        assert replaced.state() == {name: MORE[name][1]}
        assert unset.state() == {}
        for checkpoint in (before, same):
            assert home.again().at(checkpoint).state() == home.replayed(checkpoint) == expected


class Kinds:
    def test_keyed_items_keep_their_order_and_their_place(self, home: Home) -> None:
        cursor = home.thread()
        cursor.step({"chat": [{"id": key, "n": 0} for key in "abc"]})
        cursor.step({"chat": [{"id": "b", "n": 1}, {"id": "d", "n": 1}]})
        cursor.step({"chat": [channels.remove("a"), channels.remove("nobody")]})
        cursor.step({"chat": [{"id": "a", "n": 2}, channels.remove("c"), {"id": "c", "n": 2}]})
        expected = [{"id": "b", "n": 1}, {"id": "d", "n": 1}, {"id": "a", "n": 2}, {"id": "c", "n": 2}]
        assert cursor.state() == home.again().state() == home.replayed(str(cursor.tip)) == {"chat": expected}

    def test_keys_of_another_name_are_remembered(self, home: Home) -> None:
        home.thread(schema={"rows": channels.keyed("row")}).step({"rows": [{"row": 1, "id": "x"}]})
        cursor = home.thread(schema=None)
        cursor.step({"rows": [{"row": 1, "id": "y"}, {"row": 2}]})
        assert cursor.state() == {"rows": [{"row": 1, "id": "y"}, {"row": 2}]}

    @pytest.mark.parametrize(
        ("name", "write"),
        [
            ("log", "text"),
            ("log", None),
            ("log", {"a": 1}),
            ("facts", [("a", 1)]),
            ("facts", None),
            ("chat", {"id": 1}),
            ("chat", [{"no": "id"}]),
            ("chat", ["text"]),
            ("chat", [None]),
            pytest.param("chat", [{"id": [1]}]),
            pytest.param("log", Overwrite("text")),
            pytest.param("facts", Overwrite([1])),
            pytest.param("chat", Overwrite([{}])),
        ],
    )
    def test_a_write_that_a_channel_cannot_take_is_refused_at_once(self, home: Home, name: str, write: Any) -> None:
        """As the first write, as a later one, and where the cadence asks for a snapshot."""
        cursor = home.thread(snapshot_frequency=2)
        for _ in range(3):
            frames, state = home.frames(), cursor.state()
            with pytest.raises(ReducerError):
                cursor.step({name: write})
            assert (home.frames(), cursor.state()) == (frames, state)
            cursor.step({name: START[name]})
        assert home.again().state() == cursor.state()


def join(value: str, write: str) -> str:
    return f"{value}, {write}"


class Functions:
    def test_a_function_is_remembered_by_name_and_has_to_be_given_again(self, home: Home) -> None:
        schema = {"text": channels.reduce(join), "log": channels.append()}
        cursor = home.thread(schema=schema)
        cursor.step({"text": "a", "log": ["a"]})
        cursor.step({"text": "b"})
        without = home.thread(schema=None)
        for call in (without.state, lambda: without.step({"text": "c"})):
            with pytest.raises(MissingReducerError, match="'text'"):
                call()
        frames = home.frames()
        with pytest.raises(MissingReducerError, match="'join', which has to be given again"):
            without.step({"log": ["b"], "text": "c"})
        assert home.frames() == frames
        assert home.thread(schema={"text": channels.reduce(join)}).state() == {"text": "a, b", "log": ["a"]}

    def test_steps_that_leave_it_alone_need_no_function(self, home: Home) -> None:
        cursor = home.thread()
        cursor.step({"total": 1})
        cursor.step({"total": 2, "log": ["a"]})
        home.thread(schema=None).step({"log": ["b"]})
        home.thread(schema=None).step({"title": "t"})
        assert home.again().state() == {"total": 3, "log": ["a", "b"], "title": "t"}

    def test_a_stored_value_needs_no_function(self, home: Home) -> None:
        cursor = home.thread(snapshot_frequency=1)
        cursor.step({"total": 1})
        cursor.step({"total": 2})
        assert home.thread(schema=None).state() == {"total": 3}

    def test_another_function_under_another_name_is_refused(self, home: Home) -> None:
        home.thread().step({"total": 1})
        with pytest.raises(SchemaError, match="written as reduce/total and is opened as reduce/join"):
            home.thread(schema={"total": channels.reduce(join)})

    def test_the_engine_says_so_too(self, home: Home) -> None:
        cursor = home.thread()
        cursor.step({"total": 1})
        last = cursor.step({"total": 1})
        with pytest.raises(MissingReducerError, match="'total'"):
            home.store.state(LANE, last.id, reducers={})
        assert home.store.state(LANE, reducers=reducers()) == {"total": 2}
        assert home.store.state(LANE, reducers={}, channels=["log"]) == {}

    def test_a_channel_of_a_users_own(self, home: Home) -> None:
        class Most:
            kind: tuple[str, ...] = ("most", "ever")
            whole = False

            def reduce(self, value: Any, writes: Sequence[Any]) -> Any:
                return max(writes) if value is UNSET else max(value, *writes)

        for write in (3, 9, 4):
            home.thread(schema={"most": Most()}).step({"most": write})
        assert home.thread(schema={"most": Most()}).state() == {"most": 9}
        with pytest.raises(MissingReducerError, match="'most'"):
            home.thread(schema=None).state()
        with pytest.raises(MissingReducerError, match="'ever'"):
            home.thread(schema=None).step({"most": 1})

    def test_a_kind_of_one_word(self, home: Home) -> None:
        class Most:
            kind: tuple[str, ...] = ("most",)
            whole = False

            def reduce(self, value: Any, writes: Sequence[Any]) -> Any:
                return max(writes) if value is UNSET else max(value, *writes)

        home.thread(schema={"most": Most()}).step({"most": 1})
        with pytest.raises(MissingReducerError, match="'most'"):
            home.thread(schema=None).step({"most": 1})

    def test_a_write_that_a_function_cannot_take(self, home: Home) -> None:
        cursor = home.thread()
        cursor.step({"total": 1})
        with pytest.raises(ReducerError, match="'total'"):
            cursor.step({"total": "text"})
        assert cursor.state() == {"total": 1}


class Schemas:
    def test_a_new_thread_needs_one(self, home: Home) -> None:
        for schema in (None, {}):
            with pytest.raises(SchemaError, match="thread 't' is new: give it a schema"):
                home.thread(schema=schema)

    def test_it_is_remembered(self, home: Home) -> None:
        home.thread().step({"log": ["a"], "title": "t", "facts": {"x": 1}, "chat": [{"id": 1}]})
        cursor = home.thread(schema=None)
        cursor.step({"log": ["b"], "title": "u", "facts": {"y": 2}, "chat": [{"id": 2}]})
        expected = {"log": ["a", "b"], "title": "u", "facts": {"x": 1, "y": 2}, "chat": [{"id": 1}, {"id": 2}]}
        assert home.thread(schema=None).state() == cursor.state() == expected

    def test_also_of_channels_that_were_never_written(self, home: Home) -> None:
        home.thread().step({})
        home.thread(schema=None).step({"facts": {"x": 1}})
        assert home.thread(schema=None).state() == {"facts": {"x": 1}}

    def test_it_may_be_extended(self, home: Home) -> None:
        home.thread(schema={"log": channels.append()}).log("a")
        cursor = home.thread(schema={"facts": channels.merge()})
        cursor.step({"log": ["b"], "facts": {"x": 1}})
        home.thread(schema=None).step({"facts": {"y": 2}})
        assert home.thread(schema=None).state() == {"log": ["a", "b"], "facts": {"x": 1, "y": 2}}

    def test_a_channel_keeps_its_kind(self, home: Home) -> None:
        home.thread().step({"log": ["a"], "chat": []})
        for name, channel in (
            ("log", channels.last_value()),
            ("chat", channels.keyed("key")),
            ("title", channels.append()),
            ("total", channels.append()),
        ):
            with pytest.raises(SchemaError, match=f"channel '{name}' was written as"):
                home.thread(schema={name: channel})
        assert home.again().state() == {"log": ["a"], "chat": []}

    def test_a_channel_that_it_does_not_name(self, home: Home) -> None:
        with pytest.raises(SchemaError, match="no channel 'nobody' in the schema, which has"):
            home.thread().step({"nobody": 1})

    def test_changing_the_mapping_afterwards_changes_nothing(self, home: Home) -> None:
        schema = {"log": channels.append()}
        cursor = home.thread(schema=schema)
        schema["log"] = channels.last_value()
        cursor.log("a")
        cursor.log("b")
        assert cursor.state() == {"log": ["a", "b"]}

    def test_a_thread_of_another_framework_has_none(self, home: Home) -> None:
        home.store.put_checkpoint(
            LANE,
            "1",
            None,
            skeleton={"v": 4},
            metadata={},
            versions={},
            values={},
            changed=(),
            encode=lambda name, value: ("x", b""),
        )
        for schema in (None, SCHEMA):
            with pytest.raises(SchemaError, match="was not written by a native thread"):
                home.thread(schema=schema)

    @pytest.mark.parametrize("opened", ["before it was extended", "at a head without it"])
    def test_what_another_cursor_added_is_remembered_wherever_it_was_added(self, home: Home, opened: str) -> None:
        cursor = home.thread(schema={"log": channels.append()})
        first = cursor.log("a")
        extended = home.thread(schema={"facts": channels.merge()})
        extended.step({"facts": {"x": 1}})
        tip = extended.step({"facts": {"y": 2}})
        if opened != "before it was extended":
            extended.set_head(first)
            cursor = home.thread(schema=None)
        there = cursor.at(tip)
        assert there.state() == {"log": ["a"], "facts": {"x": 1, "y": 2}}
        there.step({"facts": {"z": 3}})
        assert home.thread(schema=None).state() == {"log": ["a"], "facts": {"x": 1, "y": 2, "z": 3}}

    def test_no_step_forgets_a_channel(self, home: Home) -> None:
        cursor = home.thread(schema={"log": channels.append()})
        cursor.log("a")
        extended = home.thread(schema={"facts": channels.merge()})
        extended.step({"facts": {"x": 1}})
        tip = extended.step({"facts": {"y": 2}})
        cursor.at(tip).log("b")
        assert home.thread(schema=None).state() == {"log": ["a", "b"], "facts": {"x": 1, "y": 2}}


class Expecting:
    def test_of_two_cursors_at_the_head_one_wins(self, home: Home) -> None:
        one = home.thread()
        one.log("a", expect_head=True)
        two = home.again()
        won = one.log("b", expect_head=True)
        frames = home.frames()
        with pytest.raises(ConflictError, match=f"the head is '{won.id}'"):
            two.log("c", expect_head=True)
        assert (home.frames(), two.state()) == (frames, {"log": ["a"]})
        two = home.again()
        two.log("c", expect_head=True)
        assert home.again().state() == {"log": ["a", "b", "c"]}

    def test_of_two_first_steps_one_wins(self, home: Home) -> None:
        one, two = home.thread(), home.thread()
        one.log("a", expect_head=True)
        with pytest.raises(ConflictError):
            two.log("b", expect_head=True)
        assert home.again().state() == {"log": ["a"]}

    def test_without_it_both_are_branches(self, home: Home) -> None:
        one = home.thread()
        one.log("a")
        two = home.again()
        one.log("b")
        two.log("c")
        assert (one.state(), two.state()) == ({"log": ["a", "b"]}, {"log": ["a", "c"]})
        assert home.again().tip == two.tip

    def test_a_branch_that_is_not_the_head_is_refused(self, home: Home) -> None:
        cursor = home.thread()
        first = cursor.log("a")
        cursor.log("b")
        with pytest.raises(ConflictError):
            cursor.at(first).log("c", expect_head=True)
        cursor.at(first).set_head()
        with pytest.raises(ConflictError):
            cursor.log("d", expect_head=True)
        home.again().log("e", expect_head=True)
        assert home.again().state() == {"log": ["a", "e"]}

    def test_when_another_is_faster_in_the_middle_of_a_step(self, home: Home) -> None:
        """Decided under the commit lock, not when the step begins."""
        serde = Meddling()
        one, two = home.thread(serde=serde), home.thread()
        one.log("a")
        two = home.again()
        serde.meanwhile = lambda: two.log("faster", expect_head=True)
        with pytest.raises(ConflictError):
            one.log("slower", expect_head=True)
        assert home.again().state() == {"log": ["a", "faster"]}
        assert len(home.listed()) == 2


def _thread(home: Home, length: int = 25, id: str = "t") -> list[dict[str, Any]]:
    """Some steps of all kinds; the states they lead to."""
    cursor, states = home.thread(id), []
    for number in range(length):
        writes: dict[str, Any] = {"log": [f"line {number} " * 20], "facts": {f"{number % 4}": number}, "total": 1}
        writes["chat"] = [{"id": number % 5, "text": f"message {number} " * 10}]
        if number == 11:
            writes["log"] = Overwrite(["new"])
        if number == 13:
            writes["facts"] = UNSET
        cursor.step(writes)
        states.append(cursor.state())
    return states


class Removing:
    def test_prune_keeps_the_heads_state_and_what_steps_need(self, home: Home) -> None:
        for length in (1, 2, 7, 11, 13, 14, 15, 25):
            id = f"t{length}"
            states = _thread(home, length, id)
            assert home.prune(id) == length - 1
            cursor = home.again(id)
            assert cursor.state() == home.store.state(LaneName(id), reducers=reducers()) == states[-1]
            assert cursor.ids() == home.listed(id) == [cursor.tip]
            for number in range(12):
                cursor.step({"log": [number], "facts": {"n": number}, "total": 1})
            expected = {
                **states[-1],
                "log": states[-1]["log"] + list(range(12)),
                "facts": {**states[-1].get("facts", {}), "n": 11},
                "total": length + 12,
            }
            assert cursor.state() == home.again(id).state() == expected
            assert home.prune(id) == 12
            assert home.again(id).state() == expected

    def test_prune_of_branches_keeps_the_one_that_is_head(self, home: Home) -> None:
        cursor = home.thread()
        cursor.log("a")
        kept, other = cursor.fork(), cursor.fork()
        kept.log("kept")
        other.log("other")
        kept.set_head()
        assert home.prune() == 2
        assert home.again().state() == kept.state() == {"log": ["a", "kept"]}
        assert home.listed() == [kept.tip]

    def test_prune_of_namespaces_keeps_a_head_of_each(self, home: Home) -> None:
        for number in range(3):
            home.thread().log(number)
            home.thread(ns="sub").log(-number)
        assert home.prune() == 4
        assert home.again().state() == {"log": [0, 1, 2]}
        assert home.again(ns="sub").state() == {"log": [0, -1, -2]}

    def test_a_step_on_a_pruned_tip_fails_clearly_and_stores_nothing(self, home: Home) -> None:
        cursor = home.thread()
        first = cursor.step({"log": ["a"], "title": "t"})
        cursor.log("b")
        behind = cursor.at(first)
        home.prune()
        frames = home.frames()
        for call in (
            lambda: behind.log("c"),
            lambda: behind.step({}),
            lambda: behind.log("c", expect_head=True),
            behind.state,
            behind.checkpoint,
            behind.diff,
            lambda: behind.set_head(),
            lambda: cursor.at(first),
            lambda: cursor.diff(first),
            cursor.diff,
        ):
            with pytest.raises(InvalidArgumentError, match=first.id):
                call()
        assert (home.frames(), behind.tip) == (frames, first.id)
        assert cursor.state() == home.again().state() == {"log": ["a", "b"], "title": "t"}

    def test_the_lineage_of_a_pruned_tip_is_an_error(self, home: Home) -> None:
        cursor = home.thread()
        first = cursor.log("a")
        cursor.log("b")
        behind = cursor.at(first)
        home.prune()
        with pytest.raises(CkptStoreError, match=first.id):
            behind.lineage()

    @pytest.mark.parametrize(
        "schema",
        [
            pytest.param("rebuilt"),
            "stored",
        ],
    )
    def test_a_tip_that_is_pruned_in_the_middle_of_a_step(self, home: Home, schema: str) -> None:
        """Whether or not the step has to look at stored values of its parent, it must not be stored without its past."""
        serde = Meddling()
        cursor = home.thread(serde=serde)
        first = cursor.step({"log": ["a"]} if schema == "rebuilt" else {"log": ["a"], "title": "t"})
        kept = cursor.log("b")
        behind = cursor.at(first)
        serde.meanwhile = lambda: home.store.prune("t")
        with pytest.raises(CkptStoreError, match=first.id):
            behind.log("c")
        assert home.listed() == [kept.id]
        assert home.again().state()["log"] == ["a", "b"]

    @pytest.mark.parametrize(
        "window",
        [
            1.0,
            pytest.param(0.0),
        ],
    )
    def test_a_thread_that_is_deleted_in_the_middle_of_a_step(self, home: Home, window: float) -> None:
        store = home.another(late_window=window) if home.kind != "memory" else None
        if store is None:
            home.close()
            home = Home("memory", home.path, late_window=window)
            store = home.store
        serde = Meddling()
        cursor = store.thread("t", schema=SCHEMA, serde=serde)
        cursor.step({"log": ["a"]})
        serde.meanwhile = lambda: home.store.delete("t")
        with pytest.raises(CkptStoreError):
            cursor.step({"log": ["b"]})
        assert list(store.threads()) == []

    def test_a_paused_lineage_ends_where_the_rest_was_pruned(self, home: Home) -> None:
        cursor = home.thread()
        for number in range(4):
            cursor.log(number)
        walk = cursor.thread.lineage()
        newest = next(walk)
        home.prune()
        assert list(walk) == []
        assert cursor.lineage() == [newest]

    def test_a_copy_reads_alike_and_goes_its_own_way(self, home: Home) -> None:
        states = _thread(home)
        home.thread(ns="sub").log("sub")
        ids = home.listed()
        assert home.copy("t", "copy") == len(ids) + 1
        assert home.listed("copy") == ids
        assert [home.again("copy").at(id).state() for id in reversed(ids)] == states
        assert [checkpoint[2:] for checkpoint in home.again("copy").lineage()] == [
            checkpoint[2:] for checkpoint in home.again().lineage()
        ]
        assert home.again("copy", "sub").state() == {"log": ["sub"]}
        copied, original = home.again("copy"), home.again()
        for number in range(12):
            copied.log(f"copy {number}")
            original.log(f"original {number}")
        assert copied.state()["log"] == states[-1]["log"] + [f"copy {number}" for number in range(12)]
        assert original.state()["log"] == states[-1]["log"] + [f"original {number}" for number in range(12)]
        with pytest.raises(InvalidArgumentError):
            original.at(str(copied.tip))

    def test_a_copy_outlives_its_source(self, home: Home) -> None:
        states = _thread(home, 13)
        ids = home.listed()
        home.copy("t", "copy")
        home.prune()
        home.delete()
        assert home.threads() == ["copy"]
        assert [home.again("copy").at(id).state() for id in reversed(ids)] == states
        home.copy("copy", "t")
        assert home.again("t").state() == states[-1]
        assert home.prune("copy") == 12
        assert [home.again("t").at(id).state() for id in reversed(ids)] == states
        assert home.again("copy").state() == states[-1]

    def test_a_copy_of_a_pruned_thread(self, home: Home) -> None:
        states = _thread(home, 12)
        home.prune()
        assert home.copy("t", "copy") == 1
        home.delete()
        cursor = home.again("copy")
        assert cursor.state() == states[-1]
        assert len(cursor.ids()) == 1
        assert cursor.log("more").step == 12

    def test_the_head_of_a_copy_is_that_of_its_source(self, home: Home) -> None:
        cursor = home.thread()
        first = cursor.log("a")
        cursor.log("b")
        cursor.set_head(first)
        home.copy("t", "copy")
        assert home.again("copy").state() == {"log": ["a"]}
        home.again("copy").log("c")
        assert cursor.head() == first

    def test_copies_that_are_refused(self, home: Home) -> None:
        home.thread().log("a")
        home.thread("u").log("b")
        assert home.copy("nobody", "new") == 0
        with pytest.raises(ThreadExistsError, match="'u'"):
            home.copy("t", "u")
        with pytest.raises(InvalidArgumentError, match="onto itself"):
            home.copy("t", "t")
        assert home.threads() == ["t", "u"]
        assert home.again("u").state() == {"log": ["b"]}

    def test_a_deleted_threads_cursor_is_refused(self, home: Home) -> None:
        cursor = home.thread()
        first = cursor.step({"log": ["a"], "title": "t"})
        cursor.log("b")
        assert home.delete()
        assert not home.delete()
        frames = home.frames()
        for call in (
            lambda: cursor.log("c"),
            lambda: cursor.step({}),
            lambda: cursor.log("c", expect_head=True),
            cursor.state,
            cursor.checkpoint,
            cursor.lineage,
            cursor.diff,
            cursor.set_head,
            lambda: cursor.at(first),
        ):
            with pytest.raises(CkptStoreError):
                call()
        assert (home.threads(), home.frames(), cursor.head()) == ([], frames, None)
        with pytest.raises(SchemaError):
            home.again("t", schema=None)

    def test_a_deleted_thread_may_be_started_anew(self, home: Home) -> None:
        cursor = home.thread()
        cursor.log("old")
        empty = home.thread("never used")
        home.delete()
        anew = home.thread(schema={"log": channels.last_value()})
        assert anew.state() == {}
        anew.step({"log": "new"})
        for call in (lambda: cursor.log("late"), cursor.state, lambda: anew.at(str(cursor.tip))):
            with pytest.raises(CkptStoreError):
                call()
        assert home.thread(schema=None).state() == {"log": "new"}
        assert empty.log("first").step == 0

    def test_a_step_that_began_before_the_deletion_is_late(self, home: Home) -> None:
        serde = Meddling()
        cursor = home.thread(serde=serde)
        cursor.log("a")
        serde.meanwhile = lambda: home.store.delete("t")
        with pytest.raises(ThreadDeletedError):
            cursor.log("b")
        assert home.threads() == []


class FreshObjects:
    def test_a_reader_reaches_nobody(self, home: Home) -> None:
        cursor = home.thread()
        for number in range(12):
            cursor.step({"log": [[number]], "title": {"n": [number]}, "chat": [{"id": number}]}, metadata={"tags": ["x"]})
        expected = home.again().state()
        for read in (cursor.state, home.again().state, lambda: home.replayed(str(cursor.tip))):
            state = read()
            state["log"][0].append("changed")
            state["log"].append("changed")
            state["title"]["n"].clear()
            state["chat"][0]["id"] = "changed"
            state.clear()
            assert cursor.state() == home.again().state() == home.replayed(str(cursor.tip)) == expected
        for read in (cursor.checkpoint, cursor.head, lambda: cursor.lineage()[0]):
            read().metadata["tags"].append("changed")
            assert read().metadata == {"tags": ["x"]}
        change = cursor.diff()["log"]
        change.before.clear()
        change.after.clear()
        outline = home.store.outline(LANE)
        assert outline is not None
        outline.skeleton.clear()
        outline.versions.clear()
        cursor.log("more")
        assert home.again().state() == {**expected, "log": [*expected["log"], "more"]}

    def test_a_writer_reaches_nobody_afterwards(self, home: Home) -> None:
        cursor = home.thread()
        item: list[Any] = [1]
        writes: dict[str, Any] = {"log": [item], "title": item, "facts": {"x": item}, "chat": [{"id": 1, "v": item}]}
        metadata: dict[str, Any] = {"tags": item}
        for _ in range(3):
            made = cursor.step(writes, metadata=metadata)
        assert (item, list(writes)) == ([1], ["log", "title", "facts", "chat"])
        item.append(2)
        writes["log"].append(3)
        writes.clear()
        assert cursor.state() == {"log": [[1]] * 3, "title": [1], "facts": {"x": [1]}, "chat": [{"id": 1, "v": [1]}]}
        assert cursor.checkpoint().metadata == {"tags": [1]}
        assert made.metadata.keys() == {"tags"}

    def test_an_overwritten_value_too(self, home: Home) -> None:
        cursor = home.thread()
        cursor.log("a")
        value: list[Any] = ["b"]
        cursor.step({"log": Overwrite(value)})
        value.append("c")
        cursor.log("d")
        assert cursor.state() == {"log": ["b", "d"]}


class Text(str):
    __slots__ = ()


class Colour(enum.IntEnum):
    RED = 1


class Values:
    @pytest.mark.parametrize(
        "value",
        [
            *(None, True, False, 0, -(2**63), 2**64 - 1, 0.1, float("inf"), "", "\udcff\0é", b"", bytes(range(256))),
            *([], {}, [[]], {"": {}}, {1: "a", b"b": 2, None: 3, 1.5: 4, False: 5}, [1, True, 1.0]),
            *({"id": {"__remove__": 1}}, ["x" * 100_000], {"b": b"y" * 100_000}),
        ],
    )
    def test_plain_values_come_back_equal_and_of_the_same_type(self, home: Home, value: Any) -> None:
        def typed(value: Any) -> Any:
            if isinstance(value, dict):
                return [(typed(key), typed(part)) for key, part in value.items()]
            return [typed(part) for part in value] if isinstance(value, list) else (type(value), value)

        cursor = home.thread()
        for _ in range(3):
            cursor.step({"title": value, "log": [value], "facts": {"x": value}})
        for state in (cursor.state(), home.again().state()):
            assert typed(state) == typed({"title": value, "log": [value] * 3, "facts": {"x": value}})

    def test_deep_nesting_is_refused_or_comes_back(self, home: Home) -> None:
        cursor = home.thread()
        refused = 0
        for depth in (100, 400, 480, 500, 520, 2000):
            value: list[Any] = []
            for _ in range(depth):
                value = [value]
            try:
                cursor.step({"title": value, "log": [value]})
            except SerializationError:
                refused += 1
                continue
            assert cursor.state()["title"] == home.again().state()["title"] == value
        assert 0 < refused < 6

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (object(), "builtins.object"),
            ((1, 2), "builtins.tuple"),
            ({1}, "builtins.set"),
            (Text("a"), "mixins.Text"),
            (OrderedDict(a=1), "collections.OrderedDict"),
            (2**64, "builtins.int"),
            (1j, "builtins.complex"),
            (datetime.datetime(2020, 1, 1), "datetime.datetime"),
            (Overwrite(1), "channels.Overwrite"),
            (UNSET, "channels._Unset"),
            pytest.param(bytearray(b"a"), "builtins.bytearray"),
            pytest.param(memoryview(b"a"), "builtins.memoryview"),
            pytest.param(Colour.RED, "mixins.Colour"),
        ],
        ids=lambda value: type(value).__name__ if not isinstance(value, str) or isinstance(value, Text) else "",
    )
    def test_what_is_not_plain_is_refused_with_its_path(self, home: Home, value: Any, shown: str) -> None:
        cursor = home.thread(snapshot_frequency=3)
        for round in range(4):  # first write, two that are rebuilt, and a snapshot
            frames, state = home.frames(), cursor.state()
            for writes, path in (
                ({"title": {"a": [0, value]}}, "title.a[1]"),
                ({"log": ["ok", {"b c": value}]}, f"log[{1 + (round == 3) * 3}]['b c']"),
                ({"facts": {"x": [value]}}, "facts.x[0]"),
                ({"log": Overwrite([value])}, "log[0]"),
            ):
                with pytest.raises(SerializationError) as caught:
                    cursor.step(writes)
                message = str(caught.value)
                assert message.startswith(f"{path}: a value of type "), message
                assert shown in message
                assert "nothing was stored" in message
            assert (home.frames(), cursor.state()) == (frames, state)
            cursor.step({"log": ["ok"], "title": "ok", "facts": {"ok": 1}})
        assert home.again().state() == cursor.state()

    @pytest.mark.parametrize(
        "name",
        ["title", pytest.param("log")],
    )
    def test_a_value_that_is_too_large_is_named(self, home: Home, name: str) -> None:
        home.close()
        small = Home(home.kind, home.path / "small", max_value_bytes=1000)
        try:
            cursor = small.thread()
            cursor.step({"title": "t", "log": ["a"]})
            frames = small.frames()
            with pytest.raises(ValueTooLargeError, match=f"thread 't', channel '{name}': a value of 2"):
                cursor.step({name: ["x" * 2000]})
            assert small.frames() == frames
            assert cursor.state() == {"title": "t", "log": ["a"]}
        finally:
            small.close()

    def test_a_serde_of_ones_own(self, home: Home) -> None:
        class Reprs:
            def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
                return "repr", repr(obj).encode()

            def loads_typed(self, data: tuple[str, bytes]) -> Any:
                assert data[0] == "repr"
                return eval(data[1])

        schema = {"seen": channels.reduce(operator.or_, name="union")}
        cursor = home.thread(schema=schema, serde=Reprs())
        for number in range(12):
            cursor.step({"seen": {(number,)}})
        assert home.thread(schema=schema, serde=Reprs()).state() == {"seen": {(number,) for number in range(12)}}
        assert home.store.state(LANE, reducers=reducers(schema), serde=Reprs()) == cursor.state()


class Arguments:
    @pytest.mark.parametrize(
        ("id", "ns", "named"), [("", "", "id=''"), (3, "", "id=3"), (None, "", "id=None"), ("t", None, "ns=None"), ("t", 3, "ns=3")]
    )
    def test_of_a_thread(self, home: Home, id: Any, ns: Any, named: str) -> None:
        with pytest.raises(InvalidArgumentError, match=named):
            home.thread(id, ns)

    @pytest.mark.parametrize(
        ("method", "arguments", "named"),
        [
            pytest.param("step", (None,), {}, id="writes=None"),
            pytest.param("step", (["log"],), {}, id="writes=list"),
            pytest.param("step", ({1: []},), {}, id="writes={1: []}"),
            pytest.param("step", ({"log": []},), {"metadata": 3}, id="metadata=3"),
            pytest.param("step", ({"log": []},), {"metadata": {"x": object()}}, id="metadata.x"),
            pytest.param("at", (3,), {}, id="at(3)"),
            pytest.param("at", (None,), {}, id="at(None)"),
            pytest.param("set_head", (3,), {}, id="set_head(3)"),
            pytest.param("diff", (3,), {}, id="diff(3)"),
        ],
    )
    def test_of_a_cursor(self, home: Home, method: str, arguments: Any, named: Any) -> None:
        cursor = home.thread()
        first = cursor.log("a")
        frames = home.frames()
        with pytest.raises(CkptStoreError):
            getattr(cursor, method)(*arguments, **named)
        assert (home.frames(), cursor.tip, cursor.state()) == (frames, first.id, {"log": ["a"]})

    def test_expect_head_is_a_bool(self, home: Home) -> None:
        with pytest.raises(InvalidArgumentError, match="expect_head='no'"):
            home.thread().log("a", expect_head="no")

    @pytest.mark.parametrize(
        "schema",
        [3, ["log"], {"log": 3}, {"log": channels.append}, {3: channels.append()}],
        ids=["number", "list", "no kind", "function", "number as name"],
    )
    def test_of_a_schema(self, home: Home, schema: Any) -> None:
        with pytest.raises(CkptStoreError, match="schema"):
            home.thread(schema=schema)

    @pytest.mark.parametrize(
        ("method", "arguments"),
        [("delete", (3,)), ("prune", (3,)), ("copy", (3, "u")), ("copy", ("t", 3)), ("copy", ("t", ""))],
        ids=repr,
    )
    def test_of_a_store(self, home: Home, method: str, arguments: Any) -> None:
        home.thread().log("a")
        with pytest.raises(InvalidArgumentError):
            getattr(home.store, method)(*arguments)

    @pytest.mark.parametrize("make", [lambda: channels.keyed(3), lambda: channels.reduce(3), lambda: channels.reduce(max, name=3)])  # type: ignore[arg-type]
    def test_of_a_channel(self, home: Home, make: Any) -> None:
        with pytest.raises(CkptStoreError):
            make()

    @pytest.mark.parametrize("metadata", [{"a": (1, 2)}, {"a": {1, 2}}])
    def test_metadata_comes_back_as_it_was_given_or_is_refused(self, home: Home, metadata: Any) -> None:
        class Reprs:
            def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
                return "repr", repr(obj).encode()

            def loads_typed(self, data: tuple[str, bytes]) -> Any:
                return eval(data[1])

        cursor = home.thread(serde=Reprs())
        try:
            cursor.log("a", metadata=metadata)
        except CkptStoreError:
            return
        assert cursor.checkpoint().metadata == metadata

    def test_a_checkpoint_of_the_engine_that_is_not_there(self, home: Home) -> None:
        home.thread().log("a")
        for lane, id in ((LANE, "nobody"), (LaneName("nobody"), None), (LaneName("t", "nobody"), None)):
            with pytest.raises(InvalidArgumentError, match=r"holds no checkpoint id="):
                home.store.state(lane, id, reducers={})
            assert home.store.outline(lane, id) is None

    def test_a_closed_store(self, home: Home) -> None:
        cursor = home.thread()
        cursor.log("a")
        home.close()
        for call in (
            lambda: cursor.log("b"),
            cursor.state,
            cursor.lineage,
            cursor.head,
            cursor.set_head,
            lambda: cursor.at(str(cursor.tip)),
            home.threads,
            home.again,
            home.prune,
            home.delete,
        ):
            with pytest.raises(StoreClosedError):
                call()


class NativeContract(Stepping, Cursors, Cadence, Kinds, Functions, Schemas, Expecting, Removing, FreshObjects, Values, Arguments):
    """All of it but `Replacing`, whose tests take parameters."""


__all__ = ["TOTAL", "Cursor", "NativeContract", "Replacing"]
