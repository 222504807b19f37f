"""Records that no writer makes, with every checksum right: refused, before memory is taken for them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from ckptstore.activity import Activity
from ckptstore.codec import patch
from ckptstore.codec.compression import RAW, ZSTD, compress, decompress
from ckptstore.codec.records import (
    PATCH,
    Encoded,
    Kind,
    decode_checkpoint,
    decode_history,
    decode_writes,
    encode_patched_value,
    encode_value,
    encode_writes,
    pack,
    prepare_writes,
    value_facts,
)
from ckptstore.errors import CorruptionError, StaleIndexError
from ckptstore.lineage.values import MOST_FRAMES, Values, next_in_chain, shallow_base
from ckptstore.model import Ref, WriteEntry
from ckptstore.storage.local import format as fmt
from ckptstore.storage.memory import MemoryStorage

ID, RUN = b"0" * 16, b"r" * 8
CHECKPOINT = [Kind.CHECKPOINT, RAW, 0, 0, 1, ID, None, b"", 0, 0, [], RUN, 0, []]
WRITES = [Kind.WRITES, RAW, 0, 0, 1, ID, b"", 0, b"", 0, True, None, []]
HISTORY = [Kind.HISTORY, RAW, 0, 0, 1, ID, [], []]
TOMBSTONE = [Kind.TOMBSTONE, RAW, 0, 0, 1, 1, 0, b"", [], None, []]
VALUE = [Kind.VALUE, RAW, 0, 0, 0, 0]
PATCHED = [Kind.VALUE, PATCH, 0, 0, 0, 0, 1, 2, [1, 0], b""]


def frame(*entries: Any) -> bytes:
    return fmt.encode_frame(7, 5, 0, pack(list(entries)), b"")[0]


def with_field(entry: list[Any], at: int, value: Any) -> list[Any]:
    return [*entry[:at], value, *entry[at + 1 :]]


@pytest.mark.parametrize("entry", [CHECKPOINT, WRITES, HISTORY, TOMBSTONE, VALUE, PATCHED], ids=lambda entry: Kind(entry[0]).name)
def test_the_right_fields_are_taken(entry: list[Any]) -> None:
    assert fmt.decode_frame(frame(entry))[1].entries == [entry]
    found = fmt.directory_at(memoryview(frame(entry)), 0, 5)
    assert found is not None
    assert found[0] == [entry]


@pytest.mark.parametrize(
    "entry",
    [
        5,
        [],
        [77, 0, 0, 0],
        [[], 0, 0, 0],
        CHECKPOINT[:-1],
        [*CHECKPOINT, 0],
        with_field(CHECKPOINT, 1, b""),
        with_field(CHECKPOINT, 2, -1),
        with_field(CHECKPOINT, 3, -1),
        with_field(CHECKPOINT, 3, 2.0),
        with_field(CHECKPOINT, 4, 1 << 32),
        with_field(CHECKPOINT, 5, 1),
        with_field(CHECKPOINT, 6, []),
        with_field(CHECKPOINT, 8, 4),
        with_field(CHECKPOINT, 10, [0, [], []]),
        with_field(CHECKPOINT, 10, [False, [1, 0], [1], []]),
        with_field(CHECKPOINT, 11, b"r"),
        with_field(CHECKPOINT, 13, [1, []]),
        with_field(CHECKPOINT, 13, [1, -1]),
        with_field(CHECKPOINT, 13, [1 << 48, 0]),
        with_field(CHECKPOINT, 13, [1, 0, 2, 0, 3]),
        with_field(WRITES, 7, 4),
        with_field(WRITES, 10, 1),
        with_field(WRITES, 12, [0.5, 0]),
        with_field(HISTORY, 6, [1]),
        with_field(TOMBSTONE, 8, [1]),
        with_field(TOMBSTONE, 8, [1, -1]),
        with_field(TOMBSTONE, 10, [[ID]]),
        with_field(TOMBSTONE, 10, [[5, []]]),
        with_field(VALUE, 3, (1 << 30) + 1),
        with_field(VALUE, 4, 7),
        with_field(VALUE, 4, -1),
        with_field(PATCHED, 8, [1, 0, 2, 0]),
        [Kind.META, RAW, 0, 0, []],
        [Kind.LANE, RAW, 0, 0, -1, b"", 1, ""],
    ],
    ids=repr,
)
def test_a_record_with_other_fields_is_damage(entry: Any) -> None:
    with pytest.raises(CorruptionError, match="LSN 5 does not decode"):
        fmt.decode_frame(frame(entry))
    assert fmt.directory_at(memoryview(frame(entry)), 0, 5) is None


@pytest.mark.parametrize("directory", [5, None, {"a": 1}, "abc", [None]], ids=repr)
def test_a_directory_that_is_none_is_damage(directory: Any) -> None:
    with pytest.raises(CorruptionError):
        fmt.decode_frame(fmt.encode_frame(7, 5, 0, pack(directory), b"")[0])


def decoded_checkpoint(body: Any) -> Any:
    return decode_checkpoint(Ref(5, 0), [*CHECKPOINT[:-1], [3, 0]], pack(body))


def decoded_writes(body: Any) -> Any:
    return decode_writes(Ref(5, 0), [*WRITES[:-1], [3, 0]], pack(body))


def decoded_history(body: Any) -> Any:
    return decode_history([*HISTORY[:-2], [3, 0], [4, 0]], pack(body))


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        *(
            (decoded_checkpoint, body)
            for body in (0, [], [{}, {}, []], [{}, {}, {"a": 1}], [{}, {}, {"a": [1, 9]}], [{}, {}, {1: [1, 0]}])
        ),
        *(
            (decoded_checkpoint, body)
            for body in ([{}, {}, {"a": [1, [99, b""]]}], [{}, {}, {"a": [1, ["x", "text"]]}], [5, {}, {}], [{}, [1, 2], {}])
        ),
        *(
            (decoded_writes, body)
            for body in ({}, ["t", "p", [[0, "c"]]], ["t", "p", [["0", "c", 0]]], ["t", "p", [[0, 1, 0]]], ["t", 1, []])
        ),
        *((decoded_writes, body) for body in (["t", "p", [[0, "c", 5]]], [1, "p", []], ["t", "p", [[0, "c", None]]])),
        *(
            (decoded_history, body)
            for body in ([], {1: None}, {"c": [0]}, {"c": [5, []]}, {"c": [0, [[[0], [0]]]]}, {"c": [0, [[[1], [], []]]]})
        ),
    ],
)
def test_a_body_that_is_something_else_is_damage(decode: Callable[[Any], Any], body: Any) -> None:
    with pytest.raises(CorruptionError):
        decode(body)


def test_a_body_nested_too_deeply_is_damage() -> None:
    with pytest.raises(CorruptionError):
        decode_writes(Ref(5, 0), WRITES, b"\x91" * 100_000)


@pytest.mark.parametrize("folds", [b"\x80", b"\x02", b"\xff" * 8 + b"\x01\x00", b"\x80" * 1_000_000])
def test_references_without_an_end_are_damage(folds: bytes) -> None:
    with pytest.raises(CorruptionError):
        value_facts(5, [*PATCHED[:-1], folds])


# -- sizes that are only claimed -------------------------------------------------------------------------------------------


def refused_without_memory(work: Callable[[], Any]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            work()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [1 << 22, 1 << 32, 1 << 62, 1 << 80])
def test_a_body_that_claims_more_than_it_can_hold_takes_no_memory(length: int) -> None:
    codec, body = compress(bytes(100_000))
    assert codec == ZSTD
    assert len(body) < 100
    refused_without_memory(lambda: decompress(codec, body, length))


def test_a_body_of_zeros_is_what_compresses_best() -> None:
    raw = bytes(64 << 20)
    assert decompress(*compress(raw), len(raw)) == raw


@pytest.mark.parametrize("codec", [ZSTD, patch.BASED])
def test_a_patch_that_claims_more_than_it_can_hold_takes_no_memory(codec: int) -> None:
    body = compress(bytes(100_000))[1] if codec == ZSTD else patch._Against(b"base" * 100).compress(bytes(100_000))
    claimed = b"\0" + bytes([codec]) + b"\x80\x80\x80\x80\x04" + body
    refused_without_memory(lambda: patch.apply(b"base" * 100, claimed, 1 << 30))


def commit(storage: MemoryStorage, *records: Encoded) -> int:
    return storage.commit(lambda view: list(records))


def test_a_value_that_rests_on_more_than_memory_holds_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of writes can name one large value again and again."""
    monkeypatch.setattr("ckptstore.lineage.values._MOST_MATERIAL", 10 << 20)
    storage = MemoryStorage()
    large = bytes(1 << 20)
    value = Ref(commit(storage, encode_value(("bytes", large), crc32(large), *compress(large))), 0)
    prepared = prepare_writes("task", "", [WriteEntry(number, "c", value) for number in range(1000)])
    batch = encode_writes(prepared, lane=1, target="c", token=b"", origin=0, task=b"", mask=0, regular=True, child=None)
    folds = [Ref(commit(storage, batch), 0)]
    record = encode_patched_value(("bytes", b"x"), crc32(b"x"), b"\0\0\1x", 0, 2, (), folds)
    ref = Ref(commit(storage, record), 0)
    tracemalloc.start()
    try:
        with storage.view() as view, pytest.raises(CorruptionError, match="rests on writes of more than"):
            Values(0, Activity).raw(view, ref)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_folds_in_folds_do_not_multiply() -> None:
    """Each value rests on ten writes of the one before: read one by one that were 10**14 reads."""
    storage = MemoryStorage()
    raw = b"x" * 600
    ref = Ref(commit(storage, encode_value(("bytes", raw), crc32(raw), RAW, raw)), 0)
    for _ in range(14):
        prepared = prepare_writes("task", "", [WriteEntry(number, "c", ref) for number in range(10)])
        batch = encode_writes(prepared, lane=1, target="c", token=b"", origin=0, task=b"", mask=0, regular=True, child=None)
        folds = [Ref(commit(storage, batch), 0)]
        ref = Ref(commit(storage, encode_patched_value(("bytes", raw), crc32(raw), b"\1\0\0\xd8\x04\0\0", 0, 2, (), folds)), 0)
    activity = Activity()
    with storage.view() as view:
        assert Values(0, lambda: activity).raw(view, ref) == raw


@pytest.mark.parametrize("frames", [9, MOST_FRAMES])
def test_a_value_based_on_itself_ends_no_search_for_a_base(frames: int) -> None:
    storage = MemoryStorage()
    raw = b"x" * 600
    ref = Ref(
        commit(storage, encode_patched_value(("bytes", raw), crc32(raw), b"\1\0\0\xd8\x04\0\0", 9, frames, (Ref(1, 0),), ())), 0
    )
    with storage.view() as view:
        for search in (shallow_base, next_in_chain):
            with pytest.raises(CorruptionError, match="came after it"):
                search(view, ref)


def test_a_reference_to_another_kind_of_record_or_to_none_is_said() -> None:
    storage = MemoryStorage()
    lsn = commit(storage, encode_value(("bytes", b"x"), crc32(b"x"), RAW, b"x"))
    with storage.view() as view:
        assert view.entry(Ref(lsn, 0), Kind.VALUE)[0] == Kind.VALUE
        for ref, kind in ((Ref(lsn, 0), Kind.WRITES), (Ref(lsn, 1), Kind.VALUE)):
            with pytest.raises(StaleIndexError, match="is not of kind"):
                view.entry(ref, kind)


# -- segments --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("segment", "base", "end", "replaces"),
    [(0, 1, 0, ()), (1 << 31, 1, 0, ()), (3, 1 << 48, 0, ()), (3, 1, 1 << 48, (2,)), (3, 1, 9, (3,)), (3, 1, 9, (4,))],
)
def test_a_segment_that_cannot_be_is_damage(segment: int, base: int, end: int, replaces: tuple[int, ...]) -> None:
    data = fmt.encode_segment_header(fmt.SegmentHeader(segment, bytes(16), bytes(8), base, end, 0, 7, replaces))
    with pytest.raises(CorruptionError):
        fmt.decode_segment_header(data)
