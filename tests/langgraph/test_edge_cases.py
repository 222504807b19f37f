"""Edge cases of the saver contract that a simple saver gets wrong: called the sync and the async way, on a folder and in memory.

The number in a docstring is the project's own number of the case. Case 32, `alist` without an await, is how `Driver.list` calls it.
"""

from __future__ import annotations

from collections import ChainMap
from typing import Any

import pytest
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.pregel._checkpoint import put_writes_accepts_task_path
from langgraph.types import Command, interrupt

from tests.helpers import Delta, Driver, Full, checkpoint, config, line, says, thread, written


def test_writes_may_come_before_their_checkpoint(call: Driver) -> None:
    """1."""
    call.put_writes(config("1"), [("a", 1)], "x")
    assert call.get_tuple(config("1")) is None
    call.put(config(), checkpoint("1"), {"step": 0})
    assert call.get_tuple(config()).pending_writes == [("x", "a", 1)]


@pytest.mark.parametrize("nothing", [None, ""])
def test_an_empty_checkpoint_id_means_the_latest(call: Driver, nothing: Any) -> None:
    """2."""
    call.put(config(), checkpoint("1"))
    call.put(config("1"), checkpoint("2"))
    found = call.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": nothing}})
    assert found.checkpoint["id"] == "2"


def test_the_first_of_two_regular_writes_wins(call: Driver) -> None:
    """3."""
    call.put(config(), checkpoint("1"))
    call.put_writes(config("1"), [("a", 1)], "t1")
    call.put_writes(config("1"), [("a", 9)], "t1")
    assert call.get_tuple(config()).pending_writes == [("t1", "a", 1)]


def test_the_last_of_two_special_writes_wins_even_beside_regular_ones(call: Driver) -> None:
    """4. The decision is taken write by write, not call by call."""
    call.put(config(), checkpoint("1"))
    call.put_writes(config("1"), [("a", 1), ("__error__", "e1")], "t")
    call.put_writes(config("1"), [("a", 2), ("__error__", "e2")], "t")
    assert call.get_tuple(config()).pending_writes == [("t", "__error__", "e2"), ("t", "a", 1)]


def test_of_two_answers_to_an_interrupt_the_node_gets_the_second(saver: CkptSaver) -> None:
    """4, in a graph: both answers came while the node could not run, the second with an update. SqliteSaver gives the node the first."""
    down = False

    def ask(state: Any) -> Any:
        if down:
            raise ConnectionError
        return {"log": [f"answer {interrupt('?')}"]}

    app = line(Full, saver, ask=ask)
    app.invoke({"log": ["question"]}, thread())
    down = True
    for answer in (Command(resume="first"), Command(resume="second", update={"log": ["edit"]})):
        with pytest.raises(ConnectionError):
            app.invoke(answer, thread())
    down = False
    assert app.invoke(None, thread())["log"] == ["question", "edit", "answer second"]


def test_pending_writes_are_ordered_by_task_path(call: Driver) -> None:
    """5. Neither by arrival nor by task id; no path comes first."""
    call.put(config(), checkpoint("1"))
    call.put_writes(config("1"), [("a", "z")], "aaa", "~p, 0000000010")
    call.put_writes(config("1"), [("a", "y")], "zzz", "~p, 0000000002")
    call.put_writes(config("1"), [("a", "x")], "zzzz")
    assert [write[2] for write in call.get_tuple(config()).pending_writes] == ["x", "y", "z"]


def test_one_channel_may_be_written_twice_in_one_call(call: Driver) -> None:
    """6."""
    call.put(config(), checkpoint("1"))
    call.put_writes(config("1"), [("m", 1), ("m", 2)], "t")
    assert [write[2] for write in call.get_tuple(config()).pending_writes] == [1, 2]


def test_equal_versions_on_two_branches_keep_their_own_values(call: Driver) -> None:
    """7. Integer versions collide across branches; a store keyed by (channel, version) mixes them."""
    call.put(config("0"), checkpoint("1", {"x": [1] * 50}, {"x": 2}), {}, {"x": 2})
    call.put(config("0"), checkpoint("2", {"x": [2] * 50}, {"x": 2}), {}, {"x": 2})
    assert call.values("1") == {"x": [1] * 50}
    assert call.values("2") == {"x": [2] * 50}


def test_a_value_is_kept_although_new_versions_does_not_name_it(call: Driver) -> None:
    """8. Both where the parent has it, and where nobody stored it before."""
    call.put(config(), checkpoint("1", {"x": [1]}, {"x": 1}), {}, {"x": 1})
    call.put(config("1"), checkpoint("2", {"x": [1], "y": [2]}, {"x": 1, "y": 1}))
    assert call.values("2") == {"x": [1], "y": [2]}


def test_a_cleared_channel_stays_cleared(call: Driver) -> None:
    """9."""
    call.put(config(), checkpoint("1", {"a": [1]}, {"a": 1}), {}, {"a": 1})
    call.put(config("1"), checkpoint("2", {}, {"a": 2}), {}, {"a": 2})
    assert call.values("2") == {}
    assert call.values("1") == {"a": [1]}


def test_what_a_reader_changes_reaches_nobody(call: Driver) -> None:
    """10. Values, versions, metadata and writes, of `get_tuple` and of `list`."""
    call.put(config(), checkpoint("1", {"a": [1]}, {"a": 1}), {"tags": ["x"]}, {"a": 1})
    call.put_writes(config("1"), [("w", [1])], "task")
    reads: list[Any] = [call.get_tuple(config()), call.list(config())[0]]
    for read in reads:
        read.checkpoint["channel_values"]["a"].append(9)
        read.checkpoint["channel_versions"]["a"] = 7
        read.checkpoint["versions_seen"]["n"] = {"a": 1}
        read.metadata["tags"].append("y")
        read.pending_writes[0][2].append(9)
        read.pending_writes.clear()
        again = call.get_tuple(config())
        assert again.checkpoint["channel_values"] == {"a": [1]}
        assert again.checkpoint["channel_versions"] == {"a": 1}
        assert again.checkpoint["versions_seen"] == {}
        assert again.metadata == {"tags": ["x"]}
        assert again.pending_writes == [("task", "w", [1])]


def test_what_a_writer_changes_afterwards_reaches_nobody(call: Driver) -> None:
    """10, the other direction: `put` serializes before it returns."""
    value, metadata = [1] * 50, {"tags": ["x"]}
    given = checkpoint("1", {"a": value}, {"a": 1})
    call.put(config(), given, metadata, {"a": 1})
    value.append(9)
    metadata["tags"].append("y")
    given["channel_versions"]["a"] = 2
    found = call.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"a": [1] * 50}
    assert found.checkpoint["channel_versions"] == {"a": 1}
    assert found.metadata == {"tags": ["x"]}


def test_before_needs_no_thread_id(call: Driver) -> None:
    """11. It need not name a stored checkpoint either."""
    call.put(config(ns="a:1"), checkpoint("3"))
    call.put(config(ns="a:1"), checkpoint("5"))
    assert call.ids(config(ns="a:1"), before={"configurable": {"checkpoint_id": "5"}}, limit=1) == ["3"]
    assert call.ids(config(ns="a:1"), before={"configurable": {"checkpoint_id": "4"}}) == ["3"]
    assert call.ids(config(ns="a:1"), before={"configurable": {}}) == ["5", "3"]


def test_list_covers_all_namespaces_when_none_is_named(call: Driver) -> None:
    """12. Newest id first over several namespaces; an empty namespace is the root alone."""
    call.put(config(ns="a:1"), checkpoint("3"))
    call.put(config(), checkpoint("5"))
    call.put(config(ns="b:1"), checkpoint("4"))
    everywhere = {"configurable": {"thread_id": "t"}}
    assert call.ids(everywhere) == ["5", "4", "3"]
    assert call.ids(everywhere, limit=2) == ["5", "4"]
    assert call.ids(config()) == ["5"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_zero_or_less_gives_nothing(call: Driver, limit: int) -> None:
    """12."""
    call.put(config(), checkpoint("1"))
    assert call.ids(config(), limit=limit) == []


def test_a_paused_list_blocks_no_other_call(saver: CkptSaver) -> None:
    """13. The iterator stays open for the whole test."""
    for id in ("1", "2", "3"):
        saver.put(config(), checkpoint(id), {}, {})
    paused = saver.list(config())
    assert next(paused).checkpoint["id"] == "3"
    saver.put(config("3"), checkpoint("9"), {}, {})
    saver.put_writes(config("9"), [("a", 1)], "t")
    assert next(saver.list(config())).checkpoint["id"] == "9"
    assert [item.checkpoint["id"] for item in saver.list(config())] == ["9", "3", "2", "1"]
    assert [item.checkpoint["id"] for item in paused] == ["2", "1"]


def test_a_config_key_can_be_filtered_for(call: Driver) -> None:
    """14. `configurable` keys become metadata; a filter for an unknown key matches nothing but None."""
    call.put({"configurable": {"thread_id": "t", "checkpoint_ns": "", "user": "u"}}, checkpoint("1"), {"step": 0})
    assert call.ids(None, filter={"user": "u"}) == ["1"]
    assert call.ids(None, filter={"user": "u", "step": 0}) == ["1"]
    assert call.ids(None, filter={"user": "v"}) == []
    assert call.ids(None, filter={"nobody": "u"}) == []
    assert call.ids(None, filter={"nobody": None}) == ["1"]
    assert call.ids(None, filter={}) == ["1"]


def test_metadata_from_the_config_is_cleaned(call: Driver) -> None:
    """15. NUL characters, private keys and objects do not come along."""
    call.put({**config(), "metadata": {"a": "b\0", "__p": 1, "o": {}}}, checkpoint("1"), {"step": 0})
    assert call.get_tuple(config()).metadata == {"step": 0, "a": "b"}


def test_a_number_as_thread_id_is_the_same_thread_as_its_text(call: Driver) -> None:
    """16. In every method; configs that come back carry the caller's own value."""
    stored = call.put(config(thread=5), checkpoint("1"))
    assert stored["configurable"]["thread_id"] == 5
    call.put_writes(config("1", thread=5), [("a", 1)], "x")
    assert call.get_tuple(config(thread="5")).pending_writes == [("x", "a", 1)]
    assert call.get_tuple(config(thread=5)).config["configurable"]["thread_id"] == 5
    assert call.ids(config(thread=5)) == call.ids(config(thread="5")) == ["1"]
    call.copy_thread(5, 6)
    assert call.ids(config(thread="6")) == ["1"]
    call.prune([6])
    call.delete_thread(5)
    assert call.get_tuple(config(thread="5")) is None
    assert call.ids(config(thread="6")) == ["1"]


def test_a_delta_snapshot_comes_back_as_one(call: Driver) -> None:
    """17."""
    call.put(config(), checkpoint("1", {"m": _DeltaSnapshot([1])}, {"m": 1}), {}, {"m": 1})
    found = call.values()["m"]
    assert isinstance(found, _DeltaSnapshot)
    assert found.value == [1]


def _seeded(call: Driver, seed: Any) -> None:
    """A checkpoint with a value, a write on it, and the child which that write made."""
    call.put(config(), checkpoint("1", {"m": seed}, {"m": 1}), {}, {"m": 1})
    call.put_writes(config("1"), [("m", 1)], "t")
    call.put(config("1"), checkpoint("2", {}, {"m": 2}), {}, {"m": 2})


def test_the_seeds_own_writes_belong_to_the_history(call: Driver) -> None:
    """18."""
    _seeded(call, [0])
    assert call.history("2") == {"seed": [0], "writes": [("t", "m", 1)]}


def test_the_targets_own_writes_do_not_belong_to_its_history(call: Driver) -> None:
    """19."""
    _seeded(call, [0])
    call.put_writes(config("2"), [("m", 9)], "u")
    assert written(call.history("2")) == [1]


@pytest.mark.parametrize("seed", [[], 0, "", None, False])
def test_an_empty_value_is_a_seed(call: Driver, seed: Any) -> None:
    """20. None included: it is a value, not an absence."""
    _seeded(call, seed)
    assert call.history("2")["seed"] == seed


def test_the_history_of_an_unknown_checkpoint_is_empty(call: Driver) -> None:
    """21. So is that of an unknown thread; asking for no channel gives nothing."""
    assert call.history("zz") == {"writes": []}
    call.put(config(), checkpoint("1"))
    assert call.history("zz") == {"writes": []}
    assert call.saver.get_delta_channel_history(config=config("1"), channels=[]) == {}


@pytest.mark.parametrize("parents", [{"1": "1"}, {"1": "2", "2": "1"}, {"1": "3", "2": "1", "3": "2"}])
def test_a_loop_of_parents_ends_the_history(call: Driver, parents: dict[str, str]) -> None:
    """22. A re-put can close a loop."""
    for id, parent in parents.items():
        call.put(config(parent), checkpoint(id, {}, {"m": 1}))
    for id in parents:
        assert call.history(id) == {"writes": []}


def test_a_child_whose_id_sorts_below_its_parents(call: Driver) -> None:
    """23. History follows parents and the head is what was put last, whatever the ids say."""
    call.put(config(), checkpoint("5"))
    call.put_writes(config("5"), [("m", 1)], "t")
    call.put(config("5"), checkpoint("3", {}, {"m": 1}), {}, {"m": 1})
    assert written(call.history("3")) == [1]
    assert call.get_tuple(config()).checkpoint["id"] == "3"
    assert call.ids(config()) == ["3", "5"]


def test_task_paths_reach_the_saver(saver: CkptSaver) -> None:
    """24. LangGraph looks at the signature; a wrapper that hides the parameter loses the paths."""

    class Hiding(InMemorySaver):
        def put_writes(self, *args: Any, **named: Any) -> None:
            super().put_writes(*args, **named)

    assert not put_writes_accepts_task_path(Hiding().put_writes)
    assert put_writes_accepts_task_path(saver.put_writes)
    assert put_writes_accepts_task_path(saver.aput_writes)


def test_a_rerun_with_more_writes_does_not_change_the_earlier_child(call: Driver) -> None:
    """25. Runs are told apart by the metadata object of their configs."""
    call.put(config(), checkpoint("1", {}, {"m": 1}))
    for run, count, child in (({"run": 1}, 1, "2"), ({"run": 2}, 3, "3")):
        at = {**config("1"), "metadata": run}
        call.put_writes(at, [("m", f"{child}-{i}") for i in range(count)], "t")
        call.put(at, checkpoint(child, {}, {"m": int(child)}), {}, {"m": int(child)})
    assert written(call.history("2")) == ["2-0"]
    assert written(call.history("3")) == ["3-0", "3-1", "3-2"]


def test_a_clone_with_an_allowlist_shares_the_store(saver: CkptSaver) -> None:
    """26."""
    saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    clone = saver.with_allowlist([("a", "b")])
    assert clone is not saver
    clone.put(config(), checkpoint("1"), {}, {})
    assert saver.get_tuple(config()) is not None


def test_config_metadata_may_be_a_chain_map(call: Driver) -> None:
    """27."""
    call.put({**config(), "metadata": ChainMap({"k": "v"})}, checkpoint("1"), {"step": 0})
    assert call.get_tuple(config()).metadata == {"step": 0, "k": "v"}


def test_versions_seen_comes_back_unchanged(call: Driver) -> None:
    """28. Unknown nodes and keys with separators included; so do unknown keys of the checkpoint."""
    seen = {"__snapshot_bumps__": {"n:c": "1", "n|c": "2"}, "n": {}}
    given = {**checkpoint("1"), "versions_seen": seen, "pending_sends": ["s"], "v": 1, "later": {"x": 1}}
    call.put(config(), given)
    assert call.get_tuple(config()).checkpoint == given


def test_a_thread_started_again_after_deletion_is_empty(call: Driver) -> None:
    """29."""
    call.put(config(), checkpoint("1", {"a": [1]}, {"a": 1}), {}, {"a": 1})
    call.put_writes(config("1"), [("a", 1)], "t")
    call.delete_thread("t")
    assert call.ids(None) == []
    call.put(config(), checkpoint("1", {}, {"a": 1}))
    assert call.get_tuple(config()).pending_writes == []
    assert call.values() == {}


def test_a_put_of_the_same_id_keeps_its_writes(call: Driver) -> None:
    """30."""
    call.put(config(), checkpoint("1"))
    call.put_writes(config("1"), [("a", 1)], "t")
    call.put(config(), checkpoint("1"), {"step": 2})
    found = call.get_tuple(config())
    assert found.pending_writes == [("t", "a", 1)]
    assert found.metadata == {"step": 2}
    assert call.ids(config()) == ["1"]


def test_prune_keeps_what_a_delta_channel_needs(saver: CkptSaver) -> None:
    """31."""
    app = line(Delta, saver, n=says("x"))
    for turn in range(4):
        app.invoke({"log": [turn]}, thread())
    before = app.get_state(thread())
    saver.prune(["t"])
    after = app.get_state(thread())
    assert after.values == before.values == {"log": [0, "x", 1, "x", 2, "x", 3, "x"]}
    assert after.config == before.config
    assert len(list(saver.list(config()))) == 1
    assert app.invoke({"log": ["next"]}, thread())["log"] == [*before.values["log"], "next", "x"]


def test_no_writes_are_no_writes(call: Driver) -> None:
    """33."""
    call.put(config(), checkpoint("1"))
    call.put_writes(config("1"), [], "t")
    call.put_writes(config("nobody"), [], "t", "")
    assert call.get_tuple(config()).pending_writes == []
