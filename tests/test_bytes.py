"""What conversations cost on disk: the budgets of docs/benchmarks.md, as sizes of closed folders. No times are measured."""

from __future__ import annotations

import json
import operator
import random
import runpy
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

import ckptstore
from tests.helpers import checkpoint, config

CONFIG: Any = {"configurable": {"thread_id": "chat"}}
# Common words, so that texts compress as chat does.
WORDS = """
    about after again all and are because been before but by can could did do each even find first for from get give go good great
    had has have he her here him his how if in into is it just know last like little long made make many may me men more most much
    my never new no not now of old on one only or other our out over own people place said same see she should so some still such
    take tell than that the their them then there these they thing think this time to two under up upon us use very was way we well
    were what when where which while who will with without work world would year you your
""".split()  # noqa: SIM905


def say(rng: random.Random, characters: int = 128) -> str:
    text = ""
    while len(text) < characters:
        text += rng.choice(WORDS) + (str(rng.randrange(100)) if rng.random() < 0.2 else "") + " "
    return text[:characters]


def extend(messages: list[Any], writes: Any) -> list[Any]:
    return [*(messages or []), *(message for write in writes for message in write)]


class Full(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Delta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(extend, list, snapshot_frequency=10)]


class SeldomDelta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(extend, list, snapshot_frequency=1000)]


class WithBlob(TypedDict):
    blob: bytes
    log: Annotated[list[str], operator.add]


class FullLog(TypedDict):
    log: Annotated[list[str], operator.add]


class DeltaLog(TypedDict):
    log: Annotated[list[str], DeltaChannel(extend, list, snapshot_frequency=10)]


def nothing(state: Any) -> dict[str, Any]:
    return {}


def app(schema: Any, saver: CkptSaver) -> Any:
    """A graph that does nothing: an update is its input."""
    builder: Any = StateGraph(schema)
    builder.add_node("node", nothing)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


def opened(path: Path) -> CkptSaver:
    return CkptSaver(path, durability="process")


def on_disk(path: Path) -> int:
    """Bytes of all files of a closed store: what the disk gave them, where they are sparse."""
    stats = [file.stat() for file in path.rglob("*") if file.is_file()]
    return sum(min(stat.st_size, stat.st_blocks * 512) for stat in stats)


@pytest.mark.parametrize("schema", [Full, Delta], ids=["full", "delta"])
def test_500_updates_of_one_message(tmp_path: Path, schema: Any) -> None:
    rng = random.Random(1)
    sent = [say(rng) for _ in range(500)]
    with opened(tmp_path / "s") as saver:
        graph = app(schema, saver)
        for number, text in enumerate(sent):
            message = AIMessage(text, id=f"m{number}") if number % 2 else HumanMessage(text, id=f"m{number}")
            graph.invoke({"messages": [message]}, CONFIG)
    assert on_disk(tmp_path / "s") <= 1_300_000
    with opened(tmp_path / "s") as saver:
        assert [message.content for message in app(schema, saver).get_state(CONFIG).values["messages"]] == sent


@pytest.mark.parametrize("again", [False, True], ids=["given once", "sent each turn"])
def test_an_unchanged_value_of_1_mb_over_21_turns(tmp_path: Path, again: bool) -> None:
    blob = random.Random(2).randbytes(1_000_000)
    with opened(tmp_path / "s") as saver:
        graph = app(WithBlob, saver)
        for turn in range(21):
            graph.invoke({"log": [f"turn {turn}"], **({"blob": blob} if again or turn == 0 else {})}, CONFIG)
    assert on_disk(tmp_path / "s") <= 1_200_000
    with opened(tmp_path / "s") as saver:
        found = app(WithBlob, saver).get_state(CONFIG).values
        assert (found["blob"], len(found["log"])) == (blob, 21)


@pytest.mark.parametrize("schema", [Delta, SeldomDelta], ids=["cadence 10", "cadence 1000"])
def test_another_answer_at_390_turns(tmp_path: Path, schema: Any) -> None:
    """Ten runs from the checkpoints before the last answers, each of which LangGraph begins with a snapshot of all messages."""
    rng = random.Random(3)
    said: list[AnyMessage] = []

    def ask(state: Any) -> dict[str, Any]:
        said.append(HumanMessage(say(rng), id=f"m{len(said)}"))
        return {"messages": [said[-1]]}

    def answer(state: Any) -> dict[str, Any]:
        said.append(AIMessage(say(rng), id=f"m{len(said)}"))
        return {"messages": [said[-1]]}

    def conversation(saver: CkptSaver) -> Any:
        """All turns in one run: LangGraph would read the whole history again at the beginning of each."""
        builder: Any = StateGraph(schema)
        builder.add_node("ask", ask)
        builder.add_node("answer", answer)
        builder.add_edge(START, "ask")
        builder.add_edge("ask", "answer")
        builder.add_conditional_edges("answer", lambda state: "ask" if len(said) < 2 * 390 else END)
        return builder.compile(checkpointer=saver)

    with opened(tmp_path / "s") as saver:
        conversation(saver).invoke({"messages": []}, {**CONFIG, "recursion_limit": 1000})
    before = on_disk(tmp_path / "s")
    with opened(tmp_path / "s") as saver:
        graph = conversation(saver)
        waiting = [state.config for state in graph.get_state_history(CONFIG, limit=40) if state.next == ("answer",)][:10]
        assert len(waiting) == 10
        for back, config in enumerate(waiting):
            forked = graph.invoke(None, config)["messages"]
            assert len(forked) == 2 * (390 - back)
            assert forked[-1].content == said[-1].content
            assert graph.get_state(CONFIG).values["messages"] == forked
    assert (on_disk(tmp_path / "s") - before) / 10 <= 8_000


def test_where_every_answer_is_made_again_a_turn_costs_the_same(tmp_path: Path) -> None:
    """Each turn begins a branch, with a snapshot of all messages that folds what was written since the one before."""
    rng = random.Random(6)

    def answer(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(say(rng), id=f"a{rng.randrange(1 << 40)}")]}

    builder: Any = StateGraph(Delta)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    sizes = []
    with opened(tmp_path / "s") as saver:
        graph = builder.compile(checkpointer=saver)
        for turn in range(120):
            graph.invoke({"messages": [HumanMessage(say(rng), id=f"q{turn}")]}, CONFIG)
            waiting = next(state.config for state in graph.get_state_history(CONFIG, limit=3) if state.next)
            graph.invoke(None, waiting)
            sizes.append(saver._store.stats().log_bytes)
        assert len(graph.get_state(CONFIG).values["messages"]) == 2 * 120
    assert sizes[119] - sizes[59] < 1.3 * (sizes[59] - sizes[0])


def test_five_edits_of_a_thread_of_500_kb(tmp_path: Path) -> None:
    rng = random.Random(4)
    with opened(tmp_path / "s") as saver:
        graph = app(DeltaLog, saver)
        graph.invoke({"log": [rng.randbytes(50).hex() for _ in range(5000)]}, CONFIG)
        middle = next(state.config for state in graph.get_state_history(CONFIG) if state.next == ("node",))
    before = on_disk(tmp_path / "s")
    with opened(tmp_path / "s") as saver:
        graph = app(DeltaLog, saver)
        for number in range(5):
            edited = graph.update_state(middle, {"log": [f"edit {number}"]})
            found = graph.get_state(edited).values["log"]
            assert (len(found), found[-1]) == (5001, f"edit {number}")
    log = (tmp_path / "s" / "segments" / f"{1:020d}.seg").stat().st_size
    assert log < 500_000
    # The index grows by pages of 4 KiB: the edits may touch each of some.
    assert on_disk(tmp_path / "s") - before < 10_000


@pytest.mark.parametrize("schema", [FullLog, DeltaLog], ids=["full", "delta"])
def test_a_large_input_is_stored_about_once(tmp_path: Path, schema: Any) -> None:
    """LangGraph gives it four times: as the input, as a write, and in the channel of two checkpoints."""
    text = random.Random(5).randbytes(50_000).hex()
    packs_to = 50_000
    with opened(tmp_path / "s") as saver:
        app(schema, saver).invoke({"log": [text]}, CONFIG)
        assert app(schema, saver).get_state(CONFIG).values["log"] == [text]
    log = sum(path.stat().st_size for path in (tmp_path / "s" / "segments").glob("*.seg"))
    assert packs_to < log < 1.25 * packs_to


def test_200_turns_pruned_to_the_last_and_compacted(tmp_path: Path) -> None:
    """Whole values put by hand: the head reads the same, and neither the bytes nor the blocks of the disk are more than 64 KB."""
    rng = random.Random(4)
    messages: list[str] = []
    with CkptSaver(tmp_path / "s", durability="process") as saver:
        at: Any = config()
        for turn in range(200):
            messages.append(say(rng))
            at = saver.put(
                at, checkpoint(f"{turn:04}", {"messages": messages}, {"messages": turn + 1}), {"step": turn}, {"messages": turn + 1}
            )
            saver.put_writes(at, [("messages", [messages[-1]])], f"task {turn}")
        before = saver.get_tuple(config())
        report = saver.store.prune(ckptstore.RetentionPolicy(keep_last=1))
        assert report.removed == 199
        saver.store.compact()
    files = [tmp_path / "s", *(tmp_path / "s").rglob("*")]
    assert sum(path.stat().st_size for path in files) <= 64 << 10
    assert sum(path.stat().st_blocks * 512 for path in files) <= 64 << 10
    with CkptSaver(tmp_path / "s") as saver:
        assert saver.get_tuple(config()) == before


@pytest.mark.parametrize("name", ["bytes", "growth", "scale"])
def test_the_tables_of_the_page_are_those_of_the_result_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parent.parent
    monkeypatch.syspath_prepend(root / "bench")
    bench = runpy.run_path(str(root / "bench" / f"{name}.py"))
    table = bench["table"](json.loads((root / "docs" / "results" / f"{name}.json").read_text()))
    assert f"{bench['BEGIN']}{table}<!-- end -->" in (root / "docs" / "benchmarks.md").read_text()
