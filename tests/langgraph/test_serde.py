"""Values, ids and metadata on their way to bytes and back: what the serde gives is kept as it is, and ids are any text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.message import add_messages
from langgraph.types import Interrupt, Overwrite, Send

from ckptstore import LaneName
from ckptstore.codec.records import pack
from ckptstore.storage.local import format as fmt
from tests.helpers import MODES, Driver, checkpoint, config, frames, line, says, thread, written


def _encrypting() -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")


# -- encryption ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", MODES, ids=["full", "delta"])
def test_an_encrypted_thread_reads_back_and_shows_no_text(folder: Path, schema: Any) -> None:
    secret = "a text that must not stand in any file"
    with CkptSaver(folder, serde=_encrypting()) as saver:
        live = line(schema, saver, n=says(secret)).invoke({"log": ["q"]}, thread())
    with CkptSaver(folder, serde=_encrypting()) as saver:
        app = line(schema, saver, n=says(secret))
        assert app.get_state(thread()).values == live == {"log": ["q", secret]}
        assert app.invoke({"log": ["more"]}, thread())["log"] == ["q", secret, "more", secret]
    for path in folder.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes()


def test_names_and_metadata_stand_in_the_clear_under_encryption(folder: Path) -> None:
    """Whoever reads the folder reads them, without a key: compressed, and no more."""
    names = ("some-namespace", "a-thread", "the-id", "this-channel", "said-in-metadata")
    ns, thread_id, id, channel, user = names
    with CkptSaver(folder, serde=_encrypting()) as saver:
        given: Any = {"user": user}
        saver.put(config(None, ns, thread_id), checkpoint(id, {channel: "a-value"}, {channel: 1}), given, {})
    stored = [fmt.decode_frame(at.path.read_bytes()[at.offset :][: at.size])[1] for at in frames(folder)]
    text = b"".join(pack(frame.entries) + b"".join(map(frame.raw, range(len(frame.entries)))) for frame in stored)
    assert [name for name in names if name.encode() not in text] == []
    assert b"a-value" not in text


def test_encrypted_and_plain_values_live_in_one_lineage(folder: Path) -> None:
    """A thread that began in clear goes on encrypted: an encrypting serde reads both, the plain one says that it cannot."""
    kept = ["kept"] * 50
    with CkptSaver(folder) as saver:
        saver.put(config(), checkpoint("1", {"a": kept, "m": [0]}, {"a": 1, "m": 1}), {}, {"a": 1, "m": 1})
        saver.put_writes(config("1"), [("m", "plain")], "t1")
    with CkptSaver(folder, serde=_encrypting()) as saver:
        saver.put_writes(config("1"), [("m", "secret")], "t2")
        # `a` did not change: it is not serialized again, and stays in clear.
        saver.put(config("1"), checkpoint("2", {"a": kept, "b": ["b"]}, {"a": 1, "b": 1, "m": 2}), {}, {"b": 1, "m": 2})
        call = Driver(saver, False)
        assert call.values("2") == {"a": kept, "b": ["b"]}
        assert call.history("2") == {"seed": [0], "writes": [("t1", "m", "plain"), ("t2", "m", "secret")]}
        stored: Any = saver.store.get(LaneName("t"))
        assert {channel: typed[0] for channel, typed in stored.values.items()} == {"a": "msgpack", "b": "msgpack+aes"}
    with CkptSaver(folder) as saver, pytest.raises(NotImplementedError, match=r"msgpack\+aes"):
        saver.get_tuple(config("2"))


def test_metadata_that_needs_the_serde_is_encrypted_too(folder: Path) -> None:
    message = AIMessage("a text that must not stand in any file", id="m")
    metadata: Any = {"writes": {"n": message}}
    with CkptSaver(folder, serde=_encrypting()) as saver:
        saver.put(config(), checkpoint("1"), metadata, {})
    with CkptSaver(folder, serde=_encrypting()) as saver:
        found: Any = saver.get_tuple(config())
        assert found.metadata == metadata
    (segment,) = (folder / "segments").glob("*.seg")
    assert message.text.encode() not in segment.read_bytes()


# -- serializers -----------------------------------------------------------------------------------------------------------------


class _Tagged:
    """A serde of the user's own, with tags that nobody else knows."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return f"mine/{type(obj).__name__}; v=2|+ü", json.dumps(obj).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[0].startswith("mine/")
        assert data[0].endswith("; v=2|+ü")
        return {"read back": json.loads(data[1])}


@pytest.mark.parametrize("size", [1, 5000])
def test_the_type_tag_of_a_serde_is_kept_verbatim(new_saver: Any, size: int) -> None:
    saver = new_saver(serde=_Tagged())
    value = list(range(size))
    saver.put(config(), checkpoint("1", {"a": value}, {"a": 1}), {}, {"a": 1})
    saver.put_writes(config("1"), [("a", value)], "k")
    found = saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"a": {"read back": value}}
    assert found.pending_writes == [("k", "a", {"read back": value})]


class _Untyped:
    """The older kind of serde, without tags of its own."""

    def dumps(self, obj: Any) -> bytes:
        return json.dumps(obj).encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


def test_an_untyped_serde_works(new_saver: Any) -> None:
    saver = new_saver(serde=_Untyped())
    saver.put(config(), checkpoint("1", {"a": [1, {"b": None}]}, {"a": 1}), {}, {"a": 1})
    assert saver.get_tuple(config()).checkpoint["channel_values"] == {"a": [1, {"b": None}]}


class Odd:
    """Something that only pickle knows."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


def test_pickle_fallback(new_saver: Any) -> None:
    saver = new_saver(serde=JsonPlusSerializer(pickle_fallback=True))
    odd = Odd(7)
    saver.put(config(), checkpoint("1", {"a": odd}, {"a": 1}), {}, {"a": 1})
    saver.put_writes(config("1"), [("a", odd)], "k")
    found = saver.get_tuple(config())
    assert found.checkpoint["channel_values"]["a"] == odd
    assert found.checkpoint["channel_values"]["a"] is not odd
    assert found.pending_writes == [("k", "a", odd)]


def test_clones_share_store_writers_and_closing(new_saver: Any) -> None:
    """A run whose calls reach the store through a clone and through the original is one run."""
    saver = new_saver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    clone = saver.with_allowlist([("some.module", "Name")])
    assert clone is not saver
    assert clone.serde is not saver.serde
    clone.put(config(), checkpoint("1", {}, {"m": 1}), {}, {"m": 1})
    one, two = {"run": 1}, {"run": 2}
    for run in (one, two):
        clone.put_writes({**config("1"), "metadata": run}, [("m", run["run"])], "task")
    for run, id in ((one, "2"), (two, "3")):
        saver.put({**config("1"), "metadata": run}, checkpoint(id, {}, {"m": id}), {}, {"m": id})
    for id, expected in (("2", [1]), ("3", [2])):
        assert written(clone.get_delta_channel_history(config=config(id), channels=["m"])["m"]) == expected
    clone.close()
    with pytest.raises(RuntimeError, match="closed"):
        saver.get_tuple(config())


PLAIN: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    "",
    "a\0b",
    b"",
    b"\0\xff",
    [],
    {},
    {"": [{"x": None}]},
    {1: "int key"},
    "é" * 2000,
]
RICH: list[Any] = [
    _DeltaSnapshot([1, 2]),
    _DeltaSnapshot([]),
    Send("node", {"a": 1}),
    [HumanMessage("hi", id="1"), AIMessage("yo", id="2")],
    Interrupt(value="why", id="i"),
    {1, 2},
    frozenset([1]),
]


@pytest.mark.parametrize("value", PLAIN + RICH, ids=lambda value: repr(value)[:20])
def test_values_come_back_equal_and_of_the_same_type(call: Driver, value: Any) -> None:
    call.put(config(), checkpoint("1", {"a": value}, {"a": 1}), {}, {"a": 1})
    call.put_writes(config("1"), [("a", value)], "k")
    found = call.get_tuple(config())
    for read in (found.checkpoint["channel_values"]["a"], found.pending_writes[0][2]):
        assert read == value
        assert type(read) is type(value)


def test_a_write_keeps_its_overwrite_wrapper_and_a_value_loses_it(call: Driver) -> None:
    """In a write the wrapper is an instruction to the reducer; as a channel's value it would be taken for the value."""
    call.put(config(), checkpoint("1", {"a": Overwrite([1])}, {"a": 1}), {}, {"a": 1})
    call.put_writes(config("1"), [("a", Overwrite([2]))], "k")
    call.put(config("1"), checkpoint("2", {}, {"a": 2}), {}, {"a": 2})
    assert call.values("1") == {"a": [1]}
    assert call.history("2", "a") == {"seed": [1], "writes": [("k", "a", Overwrite([2]))]}


# -- message ids ---------------------------------------------------------------------------------------------------------------


def test_messages_get_ids_before_they_are_logged(call: Driver) -> None:
    """In place, so that the running graph and the log hold the same id; an id that is there stays."""
    bare, nested, wrapped, named = AIMessage("a"), HumanMessage("b"), AIMessage("c"), AIMessage("d", id="mine")
    call.put_writes(config("1"), [("m", bare), ("m", [nested, ("x", named)]), ("m", Overwrite([wrapped]))], "k")
    call.put(config(), checkpoint("1"))
    logged = [write[2] for write in call.get_tuple(config()).pending_writes]
    assert logged[0].id == bare.id is not None
    assert logged[1][0].id == nested.id is not None
    assert logged[2].value[0].id == wrapped.id is not None
    assert logged[1][1][1].id == named.id == "mine"
    assert len({bare.id, nested.id, wrapped.id}) == 3


def test_message_ids_can_be_left_alone(new_saver: Any) -> None:
    saver, message = new_saver(message_ids=False), AIMessage("a")
    saver.put_writes(config("1"), [("m", [message])], "k")
    saver.put(config(), checkpoint("1"), {}, {})
    assert message.id is None
    assert saver.get_tuple(config()).pending_writes[0][2][0].id is None


class _Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


def test_a_resumed_chat_sees_the_ids_that_the_live_run_saw(saver: CkptSaver) -> None:
    app = line(_Chat, saver, n=lambda state: {"messages": [AIMessage("answer")]})
    live = app.invoke({"messages": [HumanMessage("question")]}, thread())["messages"]
    assert [message.id for message in app.get_state(thread()).values["messages"]] == [message.id for message in live]
    assert None not in [message.id for message in live]


# -- metadata and ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        {"a": (1, 2)},
        {"counters_since_delta_snapshot": {"log": (3, 4)}, "step": 3, "parents": {"": "x"}},
        {"a": {"b": [None, True, 1.5, {"c": "\0"}]}},
        {"é|:\0": "x", "": ""},
        {"m": AIMessage("hi", id="1"), "t": (1, AIMessage("yo", id="2"))},
        {"big": 2**63, "bytes": b"\0\xff"},
    ],
    ids=["tuple", "counters", "nested", "keys", "objects", "bytes"],
)
def test_metadata_comes_back_whole(call: Driver, metadata: dict[str, Any]) -> None:
    """Tuples come back as lists, as in the savers that keep JSON; nothing else changes."""
    call.put(config(), checkpoint("1"), metadata)
    read = call.get_tuple(config()).metadata
    assert _with_lists(read) == _with_lists(metadata)
    assert [item.metadata for item in call.list(config())] == [read]


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(part) for key, part in value.items()}
    return [_with_lists(part) for part in value] if isinstance(value, list | tuple) else value


def test_a_nul_inside_a_metadata_text_of_the_config_is_removed(call: Driver) -> None:
    """LangGraph's own rule for top-level texts."""
    call.put({**config(), "metadata": {"k": "a\0b"}}, checkpoint("1"), {"own": "c\0d"})
    assert call.get_tuple(config()).metadata == {"own": "cd", "k": "ab"}


def test_filters_compare_as_python_does(call: Driver) -> None:
    """A missing key equals None, True equals 1, nested maps are compared whole, keys are never a path."""
    call.put(config(), checkpoint("1"), {"n": {"a": 1, "b": 2}, "x.y": True, "none": None})
    for matching in ({"n": {"b": 2, "a": 1}}, {"x.y": 1}, {"none": None}, {"missing": None}, {"x.y": True, "none": None}):
        assert call.ids(config(), filter=matching) == ["1"]
    for other in ({"n": {"a": 1}}, {"n.a": 1}, {"x": {"y": True}}, {"none": 0}, {"missing": ""}):
        assert call.ids(config(), filter=other) == []


ODD_TEXT = [
    "|",
    ":",
    "a:b|c:d",
    "a/b",
    "../..",
    "\0",
    "a\0",
    " ",
    "\u00e9",
    "e\u0301",
    "\ud800",
    "\udfff\ud800x",
    "x" * 10_000,
    "\U0001f600",
    "%s",
    "'; drop",
]


@pytest.mark.parametrize("odd", ODD_TEXT, ids=lambda text: ascii(text)[:16])
def test_odd_text_in_every_place_of_an_id(call: Driver, odd: str) -> None:
    """Thread, namespace, checkpoint id, parent, task id, task path and channel, all at once; a plain neighbour stays apart."""
    call.put(config(odd + "0", odd, odd), checkpoint(odd + "1", {odd: [1]}, {odd: "1"}), {"k": 1}, {odd: "1"})
    call.put_writes(config(odd + "1", odd, odd), [(odd, [2])], odd, odd)
    call.put(config(odd + "1", odd, odd), checkpoint(odd + "2", {}, {odd: "2"}), {}, {odd: "2"})
    call.put(config(), checkpoint("plain"))
    found = call.get_tuple(config(odd + "1", odd, odd))
    assert found.config["configurable"] == {"thread_id": odd, "checkpoint_ns": odd, "checkpoint_id": odd + "1"}
    assert found.parent_config["configurable"]["checkpoint_id"] == odd + "0"
    assert found.checkpoint["channel_values"] == {odd: [1]}
    assert found.checkpoint["channel_versions"] == {odd: "1"}
    assert found.pending_writes == [(odd, odd, [2])]
    assert call.ids({"configurable": {"thread_id": odd}}) == [odd + "2", odd + "1"]
    assert [item.config["configurable"]["thread_id"] for item in call.list(None, filter={"k": 1})] == [odd]
    history = call.saver.get_delta_channel_history(config=config(odd + "2", odd, odd), channels=[odd])
    assert history == {odd: {"seed": [1], "writes": [(odd, odd, [2])]}}
    call.copy_thread(odd, odd + "copy")
    call.delete_thread(odd)
    assert call.ids({"configurable": {"thread_id": odd}}) == []
    assert call.ids(config(ns=odd, thread=odd + "copy")) == [odd + "2", odd + "1"]
    assert call.ids(config()) == ["plain"]


@given(st.lists(st.text(st.characters(), min_size=1, max_size=4), min_size=2, max_size=6, unique=True))
@settings(max_examples=60, deadline=None)
def test_different_ids_never_meet(names: list[str]) -> None:
    """Any text at all, as thread, namespace and id: every combination stays its own. Nothing is normalized."""
    with CkptSaver(":memory:") as saver:
        places = [(name, ns, id) for name in names for ns in ("", names[0]) for id in names[:2]]
        for number, (name, ns, id) in enumerate(places):
            saver.put(config(ns=ns, thread=name), checkpoint(id, {"a": number}, {"a": 1}), {}, {"a": 1})
        call = Driver(saver, False)
        for number, (name, ns, id) in enumerate(places):
            assert call.values(id, ns, name) == {"a": number}
        assert len(call.list(None)) == len(places)
        assert sorted(info.thread for info in saver.store.threads()) == sorted(names)


@pytest.mark.parametrize("number", [0, -1, 5, 2**70])
def test_numbers_as_thread_ids(call: Driver, number: int) -> None:
    call.put(config(thread=number), checkpoint("1"))
    assert call.ids(config(thread=str(number))) == ["1"]
    assert [item.config["configurable"]["thread_id"] for item in call.list(None)] == [str(number)]
    assert call.ids(config(thread=number), limit=1) == ["1"]
