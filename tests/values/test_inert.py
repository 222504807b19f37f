"""The structural view of foreign bytes: right for what LangGraph writes, harmless for whatever else stands there."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import pickle
import re
import sys
import tracemalloc
import uuid
import zoneinfo
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel, SecretStr

from ckptstore.codec.inert import EXTENSION, MAX_DEPTH, PAIRS, Inert, Opaque, UnreadableValueError, inert
from ckptstore.errors import CkptStoreError

SERDE = JsonPlusSerializer()


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Plan:
    goal: str
    steps: list[str]


class Person(BaseModel):
    name: str
    born: datetime.date


def here(name: str) -> str:
    return f"{__name__}.{name}"


def seen(value: Any) -> Any:
    return inert(SERDE.dumps_typed(value))


# -- what LangGraph writes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HumanMessage, AIMessage, AIMessageChunk, RemoveMessage])
def test_messages_are_trees_with_their_type_names(kind: Any) -> None:
    message = kind(id="m1") if kind is RemoveMessage else kind("hello", id="m1")
    found = seen([message])
    assert isinstance(found[0], Inert)
    assert found[0].type_name == f"{kind.__module__}.{kind.__name__}"
    assert found[0].short_name == kind.__name__
    assert dict(found[0].fields) == message.model_dump()


def test_a_tool_call_and_its_answer() -> None:
    call = AIMessage("", id="a", tool_calls=[{"name": "add", "args": {"a": 1}, "id": "c1"}])
    found = seen({"messages": [call, ToolMessage("3", tool_call_id="c1", id="t")]})
    assert found["messages"][0]["tool_calls"] == [{"name": "add", "args": {"a": 1}, "id": "c1", "type": "tool_call"}]
    assert found["messages"][1]["tool_call_id"] == "c1"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Send("node", {"x": 1}), Inert("langgraph.types.Send", ("node", {"x": 1}))),
        (_DeltaSnapshot([1, 2]), Inert("langgraph.checkpoint.serde.types._DeltaSnapshot", ([1, 2],))),
        (Point(1, 2), Inert(here("Point"), fields={"x": 1, "y": 2})),
        (Plan("g", ["s"]), Inert(here("Plan"), fields={"goal": "g", "steps": ["s"]})),
        (
            Person(name="Ada", born=datetime.date(1815, 12, 10)),
            Inert(here("Person"), fields={"name": "Ada", "born": Inert("datetime.date", (1815, 12, 10))}),
        ),
        (Colour.RED, Inert(here("Colour"), ("red",))),
        (datetime.datetime(2026, 1, 2), Inert("datetime.datetime.fromisoformat", ("2026-01-02T00:00:00",))),
        (datetime.date(2026, 1, 2), Inert("datetime.date", (2026, 1, 2))),
        (datetime.timedelta(days=1, seconds=2), Inert("datetime.timedelta", (1, 2, 0))),
        (zoneinfo.ZoneInfo("Europe/Zurich"), Inert("zoneinfo.ZoneInfo", ("Europe/Zurich",))),
        (uuid.UUID(int=7), Inert("uuid.UUID", (uuid.UUID(int=7).hex,))),
        (decimal.Decimal("1.50"), Inert("decimal.Decimal", ("1.50",))),
        (pathlib.PosixPath("/a/b"), Inert(f"{pathlib.PosixPath.__module__}.PosixPath", ("/", "a", "b"))),
        (re.compile("a+"), Inert("re.compile", ("a+", 32))),
        ({1}, Inert("builtins.set", ([1],))),
        (deque([1, 2]), Inert("collections.deque", ([1, 2],))),
        (ipaddress.IPv4Address("10.0.0.1"), Inert("ipaddress.IPv4Address", ("10.0.0.1",))),
        (SecretStr("s"), Inert("pydantic.types.SecretStr", ("s",))),
        # An exception is stored as its text: there is no structure to show.
        (ValueError("no"), "ValueError('no')"),
        ((1, "a", b"b", None, True, 1.5, -7, 2**63, -(2**63)), [1, "a", b"b", None, True, 1.5, -7, 2**63, -(2**63)]),
        (None, None),
        (b"raw", b"raw"),
        (bytearray(b"raw"), b"raw"),
    ],
)
def test_objects_become_the_name_and_the_arguments(value: Any, expected: Any) -> None:
    assert seen(value) == expected


def test_interrupts_commands_and_overwrites() -> None:
    assert seen(Interrupt(value="more?", id="i1"))["value"] == "more?"
    assert seen(Overwrite(["x"]))["value"] == ["x"]
    assert seen(Command(resume="yes"))["resume"] == "yes"


def test_an_array_of_numbers() -> None:
    payload = ormsgpack.packb(("<f8", (2,), "C", b"\0" * 16))
    found = inert(("msgpack", ormsgpack.packb(ormsgpack.Ext(6, payload))))
    assert found == Inert("numpy.ndarray", fields={"dtype": "<f8", "shape": [2], "order": "C", "data": b"\0" * 16})


def test_keys_that_python_could_not_hold_apart_are_pairs() -> None:
    assert seen({(1, 2): "a"}) == Inert(PAIRS, ([[1, 2], "a"],))
    assert inert(("msgpack", b"\x82\x01\xa1a\xc3\xa1b")) == Inert(PAIRS, ([1, "a"], [True, "b"]))


def test_langchain_objects_in_json() -> None:
    stored = {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "HumanMessage"], "kwargs": {"content": "hi"}}
    found = inert(("json", json.dumps([stored]).encode()))
    assert found == [Inert("langchain.schema.HumanMessage", fields={"content": "hi"})]


# -- what is never opened -------------------------------------------------------------------------------------------------


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("the pickle was loaded",))


def test_pickle_is_never_loaded() -> None:
    data = pickle.dumps(Bomb())
    assert inert(("pickle", data)) == Opaque("pickle", len(data), "pickle is never loaded: that would run what it names")


def test_encrypted_and_foreign_bytes_are_opaque() -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)
    tag, data = serde.dumps_typed({"a": 1})
    assert inert((tag, data)) == Opaque(tag, len(data), "encrypted")
    assert inert(("yaml", b"a: 1")) == Opaque("yaml", 4, "written by another serializer")


def test_nothing_that_the_bytes_name_is_imported() -> None:
    for name in ("antigravity", "this"):
        assert name not in sys.modules
        for code in range(8):
            payload = ormsgpack.packb((name, "x", ["a"] if code == 1 else {"a": 1}, "y")[: 4 if code in (3, 5) else 3])
            inert(("msgpack", ormsgpack.packb([ormsgpack.Ext(code, payload)])))
        assert name not in sys.modules


# -- hostile bytes ---------------------------------------------------------------------------------------------------------


def test_what_is_no_object_of_langgraph_keeps_its_code_and_bytes() -> None:
    for code, payload in ((0, b"\x01"), (1, b"\xc1"), (5, b""), (9, b"\x01"), (127, b"xyz"), (2, b"\x93\x01\x02\x03")):
        assert inert(("msgpack", msgpack.packb(msgpack.ExtType(code, payload)))) == Inert(EXTENSION, (code, payload))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x01",
        b"\xa5hi",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xffx",
        b"\xdd\xff\xff\xff\xff\x01",
        b"\xdf\xff\xff\xff\xff\x01\x01",
        b"\xc9\xff\xff\xff\xff\x01x",
        b"\xcb\x00",
        b"\xa1\xff",
        b"\x91" * 5000 + b"\x01",
        b"\x81\x01" * 5000 + b"\x01",
    ],
)
def test_bad_msgpack_is_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(UnreadableValueError) as raised:
        inert(("msgpack", data))
    assert isinstance(raised.value, CkptStoreError)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[" * 100_000, b'{"a":' * 5000, b"9" * 5000, b"\xff\xfe[\x00]\x00", '["\\"["]'.encode("utf-16"), b"[1,]", b"\xff"],
)
def test_bad_json_is_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(UnreadableValueError):
        inert(("json", data))


def test_brackets_inside_texts_are_not_depth() -> None:
    texts = ["[" * 500, '\\"{' * 500, ", : " * 5]
    assert inert(("json", json.dumps(texts).encode())) == texts


def nested(levels: int, code: int | None) -> bytes:
    data = b"\x01"
    for _ in range(levels):
        data = b"\x91" + data if code is None else msgpack.packb(msgpack.ExtType(code, data))
    return data


@pytest.mark.parametrize("code", [None, 7])
def test_depth_is_bounded(code: int | None) -> None:
    inert(("msgpack", nested(MAX_DEPTH, code)))
    with pytest.raises(UnreadableValueError, match="levels"):
        inert(("msgpack", nested(MAX_DEPTH + 1, code)))


def test_items_and_bytes_are_bounded() -> None:
    data = msgpack.packb([[]] * 999)
    assert len(inert(("msgpack", data), max_items=1000)) == 999
    with pytest.raises(UnreadableValueError, match="items"):
        inert(("msgpack", data), max_items=999)
    with pytest.raises(UnreadableValueError, match="items"):
        inert(("json", json.dumps([[]] * 999).encode()), max_items=999)
    with pytest.raises(UnreadableValueError, match="bytes"):
        inert(("msgpack", data), max_bytes=len(data) - 1)
    assert inert(("bytes", b"x" * 100), max_bytes=1) == b"x" * 100


def test_what_a_header_claims_is_not_allocated() -> None:
    """Each header claims all the bytes that are left: a reader that believes them allocates the square of the size."""
    size = 1 << 20
    data = b"".join(b"\xdd" + (size - 5 * level - 5).to_bytes(4, "big") for level in range(MAX_DEPTH)) + b"\xc1" * size
    data = data[:size]
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableValueError):
            inert(("msgpack", data))
        assert tracemalloc.get_traced_memory()[1] < 4 * size
    finally:
        tracemalloc.stop()


def test_payloads_inside_payloads_are_not_copied() -> None:
    data = msgpack.packb(b"x" * (1 << 20))
    for _ in range(MAX_DEPTH - 1):
        data = msgpack.packb(msgpack.ExtType(7, data))
    tracemalloc.start()
    try:
        inert(("msgpack", data))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def read_or_refused(typed: tuple[str, bytes]) -> None:
    """Anything else than a value that can be shown or the one error fails the test."""
    with contextlib.suppress(UnreadableValueError):
        repr(inert(typed, max_items=200))


TAGS = ["msgpack", "json", "null", "bytes", "bytearray", "pickle", "empty", "msgpack+aes", "x"]


@given(st.sampled_from(TAGS), st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tag: str, data: bytes) -> None:
    read_or_refused((tag, data))


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=5),
    max_leaves=30,
)


@given(PLAIN)
def test_plain_values_come_back_equal(value: Any) -> None:
    assert inert(("msgpack", msgpack.packb(value))) == value
    if not isinstance(value, bytes | None):
        assert seen(value) == value


@given(PLAIN, st.data())
def test_changed_bytes_are_read_or_refused(value: Any, data: st.DataObject) -> None:
    whole = [HumanMessage("hello", id="m"), Send("n", value), {"x": datetime.date(2026, 1, 2), "y": value}]
    changed = bytearray(ormsgpack_bytes(whole))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    read_or_refused(("msgpack", bytes(changed[: data.draw(st.integers(0, len(changed)))])))


def ormsgpack_bytes(value: Any) -> bytes:
    tag, data = SERDE.dumps_typed(value)
    assert tag == "msgpack"
    return data
