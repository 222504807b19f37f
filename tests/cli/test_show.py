"""`ckpt show`: the state of any checkpoint without the application, with it, and what it says where it has to guess."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages

import ckptstore
from ckptstore import channels
from ckptstore.channels import UNSET
from ckptstore.codec.inert import Inert, inert
from ckptstore.inspect.show import folded_messages, rebuilt
from tests.cli import agents
from tests.cli.stores import put
from tests.helpers import checkpoint, config, flip, frames

KEYS = [
    "thread",
    "ns",
    "id",
    "parent",
    "head",
    "children",
    "step",
    "source",
    "time",
    "metadata",
    "channels",
    "pending",
    "interrupts",
    "problems",
]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """An application's store, and what the application reads of each checkpoint."""
    path = tmp_path_factory.mktemp("show") / "chat.ckpt"
    return path, agents.fill(path)


def shown(ckpt: Callable[..., Any], *arguments: object, code: int = 0) -> dict[str, Any]:
    ran = ckpt("show", *arguments, "--json")
    assert (ran.code, ran.err) == (code, "")
    found = json.loads(ran.out)
    assert isinstance(found, dict)
    return found


def channel(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in found["channels"] if item["name"] == name)


def message_texts(value: Any) -> list[tuple[str, str]]:
    """(id, text) of messages: as LangChain has them, as this command shows them, and as plain maps."""
    fields = [
        item["fields"] if isinstance(item, dict) and "fields" in item else item if isinstance(item, dict) else item.model_dump()
        for item in value
    ]
    return [(item["id"], item["content"]) for item in fields]


def test_every_state_is_what_the_application_reads(ckpt: Callable[..., Any], chat: tuple[Path, dict[str, Any]]) -> None:
    path, states = chat
    assert len(states) > 12
    for id, state in states.items():
        found = shown(ckpt, path, f"chat@{id}")
        assert list(found) == KEYS
        assert found["id"] == id
        for name in ("messages", "log", "cost", "title"):
            if name not in state or not state[name]:
                continue
            item = channel(found, name)
            if name == "messages":
                assert item["how"] in ("messages", "snapshot", "stored")
                assert message_texts(item["value"]) == message_texts(state[name])
            elif name == "cost":
                # No reducer could be guessed, so none was.
                assert item["how"] == "unfolded"
                assert item["value"] is None
                assert agents.total(item["seed"], [write["value"] for write in item["writes"]]) == state[name]
            else:
                assert item["value"] == state[name]


def test_with_the_graph_the_states_are_the_application_s(ckpt: Callable[..., Any], chat: tuple[Path, dict[str, Any]]) -> None:
    path, states = chat
    id, state = next((id, state) for id, state in states.items() if state.get("cost", 0) > 2)
    for name in ("graph", "make"):
        found = shown(ckpt, path, f"chat@{id}", "--graph", f"tests.cli.agents:{name}")
        assert (channel(found, "cost")["how"], channel(found, "cost")["value"]) == ("graph", state["cost"])
        assert message_texts(channel(found, "messages")["value"]) == message_texts(state["messages"])


@pytest.mark.parametrize(
    ("graph", "code", "words"),
    [
        ("tests.cli.agents", 2, "a module and a name in it are needed, such as"),
        ("tests.cli.nowhere:graph", 3, "cannot be loaded"),
        ("tests.cli.agents:nothing", 3, "cannot be loaded"),
        ("tests.cli.agents:broken", 3, "no settings"),
        ("tests.cli.agents:not_a_graph", 3, "a int is no graph"),
    ],
)
def test_a_graph_that_cannot_be_used(
    ckpt: Callable[..., Any], chat: tuple[Path, dict[str, Any]], graph: str, code: int, words: str
) -> None:
    ran = ckpt("show", chat[0], "chat", "--graph", graph)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.count("\n") == 1
    assert words in ran.err


def test_it_is_said_plainly_what_is_a_guess(ckpt: Callable[..., Any], chat: tuple[Path, dict[str, Any]]) -> None:
    text = ckpt("show", chat[0], "chat").out
    assert "so folded by id" in text
    assert "which is a guess" in text
    assert "its reducer is not known" in text


def test_interrupts_wait_until_somebody_went_on(ckpt: Callable[..., Any], chat: tuple[Path, dict[str, Any]]) -> None:
    path, _ = chat
    head = shown(ckpt, path, "chat")
    assert [(item["value"], item["open"]) for item in head["interrupts"]] == [({"question": "send it?"}, True)]
    assert "waiting for an answer" in ckpt("show", path, "chat").out
    log = json.loads(ckpt("log", path, "chat", "--json").out)["checkpoints"]
    asked = [shown(ckpt, path, f"chat@{item['id']}") for item in log if item["batches"] and not item["leaf"]]
    assert any(item["interrupts"] and not item["interrupts"][0]["open"] for item in asked)


@pytest.mark.parametrize("options", [[], ["--json"], ["--full"]])
def test_r31_secrets_in_metadata_are_masked(ckpt: Callable[..., Any], tmp_path: Path, options: list[str]) -> None:
    with CkptSaver(tmp_path / "s") as saver:
        saver.put(
            config(),
            checkpoint("c1"),
            {"api_key": "sk-never-shown", "nested": [{"Token": "t-hidden"}], "user": "ada", "empty_password": None},
            {},
        )
    ran = ckpt("show", tmp_path / "s", "t", *options)
    assert ran.code == 0
    assert "ada" in ran.out
    assert "sk-never-shown" not in ran.out
    assert "t-hidden" not in ran.out
    assert ran.out.count("***") == 2
    unmasked = ckpt("show", tmp_path / "s", "t", "--unmask", *options).out
    assert "sk-never-shown" in unmasked
    assert "t-hidden" in unmasked


def test_r39_values_that_the_new_code_cannot_read_are_shown_as_they_are(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    """Also R34 and R38: no schema is needed, and channels that no code knows any more are listed."""
    with CkptSaver(tmp_path / "s") as saver:
        saver.put(
            config(),
            checkpoint("c1", {"note": None, "branch:to:b": [1, None]}, {"note": 1, "branch:to:b": 2}),
            {},
            {"note": 1, "branch:to:b": 2},
        )
    found = shown(ckpt, tmp_path / "s", "t")
    assert [(item["name"], item["value"]) for item in found["channels"]] == [("branch:to:b", [1, None]), ("note", None)]


# -- native threads ------------------------------------------------------------------------------------------------------


def test_native_threads_are_folded_with_the_schema_that_the_store_remembers(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    schema = {
        "items": channels.append(),
        "facts": channels.merge(),
        "chat": channels.keyed(),
        "title": channels.last_value(),
        "count": channels.reduce(lambda a, b: a + b, name="add"),
    }
    with ckptstore.open(tmp_path / "s") as store:
        thread = store.thread("t", schema=schema)
        for number in range(4):
            thread.step(
                {
                    "items": [number],
                    "facts": {f"k{number}": number},
                    "chat": [{"id": f"m{number % 2}", "n": number}],
                    "count": number,
                }
            )
        thread.step({"chat": [channels.remove("m0")], "facts": channels.Overwrite({"only": 1}), "title": "five"})
        state = thread.state()
    found = shown(ckpt, tmp_path / "s", "t")
    for name in ("items", "facts", "chat", "title"):
        assert channel(found, name)["value"] == state[name], name
    assert channel(found, "items")["how"] == "schema"
    count = channel(found, "count")
    assert (count["how"], count["seed"], [write["value"] for write in count["writes"]]) == ("unfolded", 0, [1, 2, 3])


# -- folding messages ------------------------------------------------------------------------------------------------------

SERDE = JsonPlusSerializer()


def seen(value: Any) -> Any:
    return inert(SERDE.dumps_typed(value))


@pytest.mark.parametrize(
    "writes",
    [
        [[HumanMessage("hi", id="1")], [AIMessage("yes", id="2")]],
        [[HumanMessage("hi", id="1"), AIMessage("yes", id="2")], [HumanMessage("changed", id="1")]],
        [[HumanMessage("hi", id="1"), AIMessage("yes", id="2")], [RemoveMessage(id="1")], [HumanMessage("again", id="1")]],
        [HumanMessage("single", id="1"), AIMessage("yes", id="2")],
        [[HumanMessage("hi", id="1")], [RemoveMessage(id=REMOVE_ALL_MESSAGES), AIMessage("fresh", id="3")]],
        [[HumanMessage("hi", id="1")], [AIMessage("a", id="2"), RemoveMessage(id=REMOVE_ALL_MESSAGES)]],
        [[{"role": "user", "content": "plain", "id": "1"}], [{"role": "user", "content": "changed", "id": "1"}]],
    ],
)
def test_messages_are_folded_as_langgraph_folds_them(writes: list[Any]) -> None:
    expected: Any = []
    for write in writes:
        expected = add_messages(expected, write)
    how, folded = rebuilt(None, UNSET, [seen(write) for write in writes])
    assert how == "messages"
    fields = [item.fields if isinstance(item, Inert) else item for item in folded]
    assert [(item["id"], item["content"]) for item in fields] == [(message.id, message.content) for message in expected]


def test_messages_without_an_id_never_replace_one_another() -> None:
    pair = seen([HumanMessage("a"), HumanMessage("a")])
    assert folded_messages(pair, [pair, seen([["human", "short"]])]) == [*pair, *pair, ["human", "short"]]


def test_overwrites_start_anew() -> None:
    old, new = seen([HumanMessage("old", id="1")]), seen([HumanMessage("new", id="2")])
    assert rebuilt(None, old, [channels.Overwrite(new)]) == ("messages", new)
    assert rebuilt(None, [1], [[2], channels.Overwrite([3]), [4]]) == ("appended", [3, 4])
    assert rebuilt(None, UNSET, [1, [2]]) == ("unfolded", None)
    assert rebuilt(["append"], 5, [[1]]) == ("unfolded", None)
    assert rebuilt(["keyed"], [], [[1]]) == ("unfolded", None)


def test_hostile_ids_do_not_stop_the_fold() -> None:
    odd = [Inert("x.HumanMessage", fields={"content": "", "id": id}) for id in ([1], {}, None, 7)]
    gone = [Inert("x.RemoveMessage", fields={"content": "", "id": [1]})]
    assert folded_messages(odd, [gone]) == odd


# -- damage, and what is not for us to read ----------------------------------------------------------------------------------


def test_a_damaged_value_is_said_and_the_others_are_shown(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    with CkptSaver(tmp_path / "s") as saver:
        saver.put(config(), checkpoint("c1", {"bad": "x" * 3000}, {"bad": 1}), {}, {"bad": 1})
        saver.put(config("c1"), checkpoint("c2", {"bad": "x" * 3000, "good": "fine"}, {"bad": 1, "good": 1}), {}, {"good": 1})
    first = next(frame for frame in frames(tmp_path / "s") if frame.lsn == 1)
    flip(first.path, first.offset + first.size - 1)
    found = shown(ckpt, tmp_path / "s", "t", code=1)
    assert channel(found, "good")["value"] == "fine"
    assert channel(found, "bad")["how"] == "unread"
    assert "'bad'" in found["problems"][0]
    ran = ckpt("show", tmp_path / "s", "t@c1")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "LSN 1" in ran.err
    assert ckpt("diff", tmp_path / "s", "t@c2", "t@c2", "--json").code == 1


def test_pickled_and_encrypted_values_stay_closed(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    secret = EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)
    with CkptSaver(tmp_path / "s", serde=secret) as saver:
        saver.put(config(), checkpoint("c1", {"v": ["hidden"]}, {"v": 1}), {}, {"v": 1})
    found = channel(shown(ckpt, tmp_path / "s", "t"), "v")["value"]
    assert (found["$opaque"], found["why"]) == ("msgpack+aes", "encrypted")
    with CkptSaver(tmp_path / "p", serde=JsonPlusSerializer(pickle_fallback=True)) as saver:
        saver.put(config(), checkpoint("c1", {"v": {1j}}, {"v": 1}), {}, {"v": 1})
    found = channel(shown(ckpt, tmp_path / "p", "t"), "v")["value"]
    assert found["$opaque"] == "pickle"
    assert "pickle is never loaded" in ckpt("show", tmp_path / "p", "t").out


def test_a_value_that_is_not_what_its_tag_says_is_no_crash(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        store.put_checkpoint(
            ckptstore.LaneName("t"),
            "c1",
            None,
            skeleton={},
            metadata={},
            versions={"deep": 1, "text": 1},
            values={"deep": b"\x91" * 5000 + b"\x01", "text": b"\xa5x"},
            changed={"deep", "text"},
            encode=lambda name, value: ("msgpack", value),
        )
    found = shown(ckpt, tmp_path / "s", "t")
    assert "levels" in channel(found, "deep")["value"]["why"]
    assert channel(found, "text")["value"]["$opaque"] == "msgpack"


def test_metadata_nested_deeply_is_no_crash(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(400):
        deep = {"in": deep}
    with ckptstore.open(tmp_path / "s") as store:
        for id, parent in (("c1", None), ("c2", "c1")):
            store.put_checkpoint(
                ckptstore.LaneName("t"),
                id,
                parent,
                skeleton={},
                metadata={"deep": deep, "step": 1},
                versions={},
                values={},
                changed=set(),
                encode=lambda name, value: ("msgpack", value),
            )
    assert shown(ckpt, tmp_path / "s", "t")["metadata"] == {"deep": "(deeper than the 100 levels that are shown)", "step": 1}
    for command in ("show", "log", "diff"):
        assert ckpt(command, tmp_path / "s", "t").code == 0


def test_nothing_of_an_application_is_loaded(folder: Path, chat: tuple[Path, dict[str, Any]]) -> None:
    import subprocess

    program = (
        "import sys; from ckptstore.cli.app import run; "
        f"code = [run([command, {str(chat[0])!r}, 'chat']) for command in ('log', 'show', 'diff', 'writes')]; "
        "print(code, sorted({'langgraph', 'langchain_core', 'ormsgpack', 'tests'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == "[0, 0, 0, 0] []", ran.stderr


def test_texts_and_lists_are_shortened_unless_all_is_asked_for(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    with CkptSaver(tmp_path / "s") as saver:
        values = {"text": "x" * 2000, "items": [f"item {number} " + "y" * 90 for number in range(60)]}
        saver.put(config(), checkpoint("c1", values, {"text": 1, "items": 1}), {}, {"text": 1, "items": 1})
    short, full = ckpt("show", tmp_path / "s", "t").out, ckpt("show", tmp_path / "s", "t", "--full").out
    assert "(2,000 characters)" in short
    assert "40 before these" in short
    assert "x" * 2000 not in short
    assert "x" * 2000 in full
    assert "item 0 " in full
    assert "item 0 " not in short


def test_only_the_channels_that_were_asked_for(ckpt: Callable[..., Any], folder: Path) -> None:
    put_more(folder)
    found = shown(ckpt, folder, "two", "--channel", "b")
    assert [item["name"] for item in found["channels"]] == ["b"]
    assert shown(ckpt, folder, "two", "--channel", "nothing", code=1)["problems"] == ["channel 'nothing': the checkpoint has none"]


def put_more(folder: Path) -> None:
    with ckptstore.open(folder) as store:
        store.put_checkpoint(
            ckptstore.LaneName("two"),
            "c1",
            None,
            skeleton={},
            metadata={},
            versions={"a": 1, "b": 1},
            values={"a": 1, "b": 2},
            changed={"a", "b"},
            encode=lambda name, value: ("json", json.dumps(value).encode()),
        )


def test_text_that_could_drive_a_terminal_is_escaped(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "s") as store:
        put(store, "t", "c\x1b[31m", None, "v")
    for command in ("show", "log", "writes"):
        ran = ckpt(command, tmp_path / "s", "t")
        assert ran.code == 0
        assert ran.out.replace("\n", "").isprintable()
