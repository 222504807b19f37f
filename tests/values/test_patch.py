"""Patches: what `diff` makes `apply` undoes, for values as LangGraph packs them, and bytes that are no patch never do harm."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from ckptstore.activity import Activity
from ckptstore.codec.compression import RAW, ZSTD, ZSTD_SHIPPED_1, compress, decompress
from ckptstore.codec.patch import BASED, apply, container_header, diff
from ckptstore.codec.records import PATCH, encode_value
from ckptstore.errors import CorruptionError
from ckptstore.lineage.values import Choice, Values
from ckptstore.model import Ref
from ckptstore.storage.memory import MemoryStorage

SERDE = JsonPlusSerializer()
LARGE = 1 << 24
"""Bytes that no test here comes near: a stated length that does not bound what it is about."""


def packed(value: Any) -> bytes:
    return SERDE.dumps_typed(value)[1]


def message(seed: int, size: int = 120) -> dict[str, Any]:
    """An item of a conversation, the same one for the same seed."""
    rng = random.Random(seed)
    words = (rng.choice(("alpha", "beta", "gamma", "delta", "omega")) + str(rng.randrange(1000)) for _ in range(size // 7))
    return {"id": f"m{seed}", "type": "human", "content": " ".join(words)}


def round_trip(base: bytes, target: bytes) -> None:
    for thorough in (True, False):
        patch = diff(base, target, thorough=thorough)
        if patch is not None:
            assert apply(base, patch, len(target)) == target


# -- values that LangGraph packs -------------------------------------------------------------------------------------------

ITEMS = st.integers(0, 40).map(message) | st.integers(0, 3).map(lambda seed: message(seed, 3000)) | st.text(max_size=40)
LISTS = st.lists(ITEMS, max_size=30)
PLACES: list[Callable[[Any], Any]] = [
    lambda value: value,
    lambda value: _DeltaSnapshot(value),
    lambda value: {"messages": value},
    lambda value: [value],
    lambda value: ("before", value, {"after": value}),
    lambda value: {"before": "x" * 200, "deeper": {"messages": value}},
]


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """A list, and what became of it."""
    before = draw(LISTS)
    after = list(before)
    for edit in draw(st.lists(st.sampled_from(["grow", "shrink", "change", "insert", "reorder", "replace", "double"]), max_size=3)):
        at = draw(st.integers(0, max(0, len(after) - 1)))
        if edit == "grow":
            after += draw(st.lists(ITEMS, min_size=1, max_size=4))
        elif edit == "shrink":
            del after[at:]
        elif edit == "change" and after:
            after[at] = draw(ITEMS)
        elif edit == "insert":
            after.insert(at, draw(ITEMS))
        elif edit == "reorder":
            after = draw(st.permutations(after))
        elif edit == "replace":
            after = draw(LISTS)
        else:
            after += after
    return before, after


@given(pair=edited(), place=st.sampled_from(PLACES), moved=st.sampled_from(PLACES))
@settings(max_examples=250, deadline=None)
def test_a_list_that_changed_and_moved(pair: tuple[list[Any], list[Any]], place: Any, moved: Any) -> None:
    before, after = pair
    round_trip(packed(place(before)), packed(moved(after)))


@given(
    entries=st.dictionaries(st.text(max_size=8), ITEMS, max_size=20),
    changed=st.dictionaries(st.text(max_size=8), ITEMS, min_size=1, max_size=2),
)
@settings(max_examples=80, deadline=None)
def test_a_map_with_changed_entries(entries: dict[str, Any], changed: dict[str, Any]) -> None:
    round_trip(packed(entries), packed({**entries, **changed}))


@given(
    whole=st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    times=st.integers(1, 5),
    cut=st.integers(0, 400),
    new=st.binary(max_size=600),
)
@settings(max_examples=250, deadline=None)
def test_any_bytes(whole: bytes, times: int, cut: int, new: bytes) -> None:
    base = whole * times
    for target in (base[:cut] + new + base[cut:], new + base, base + new, base[cut:] + base[:cut], new, b"", base):
        round_trip(packed([base]), packed([target]))
        round_trip(base, target)
        round_trip(target, base)


@pytest.mark.parametrize("place", [PLACES[at] for at in (0, 1, 2, 3, 5)])
@pytest.mark.parametrize("count", [13, 14, 15, 16, 17, 255, 256])
def test_an_appended_list_costs_its_tail_wherever_headers_change_their_size(place: Callable[[Any], Any], count: int) -> None:
    """Array headers grow at 16 items, extension headers at 256 bytes and at 64 KiB."""
    items = [message(number, 300) for number in range(count)]
    base, target = packed(place(items[:-1])), packed(place(items))
    patch = diff(base, target)
    assert patch is not None
    assert apply(base, patch, len(target)) == target
    assert len(patch) < len(packed(items[-1])) + 40


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("unchanged", 16),
        ("one entry of a map", 120),
        ("one item in the middle", 200),
        ("two items in different places", 400),
        ("the first half", 16),
        ("the last half", 24),
        ("into a map", 48),
        ("into a snapshot", 24),
        ("reordered", 700),
    ],
)
def test_what_a_change_costs(name: str, most: int) -> None:
    """Bytes of the patch against 200 items of about 160 bytes: the change, and not the value."""
    items = [message(number) for number in range(200)]
    changed = list(items)
    base = packed(items)
    if name == "unchanged":
        target = base
    elif name == "one entry of a map":
        entries = {f"key {number}": item for number, item in enumerate(items)}
        base, target = packed(entries), packed({**entries, "key 77": "changed"})
    elif name == "one item in the middle":
        changed[77] = message(1000)
        target = packed(changed)
    elif name == "two items in different places":
        changed[50], changed[150] = message(1000), message(1001)
        target = packed(changed)
    elif name == "the first half":
        target = packed(items[:100])
    elif name == "the last half":
        target = packed(items[100:])
    elif name == "into a map":
        target = packed({"thread": "t", "state": {"messages": items, "title": None}})
    elif name == "into a snapshot":
        target = packed(_DeltaSnapshot(items))
    else:
        target = packed(changed[100:150] + changed[:50] + changed[150:] + changed[50:100])
    patch = diff(base, target)
    assert patch is not None
    assert apply(base, patch, len(target)) == target
    assert len(patch) <= most


def test_values_that_have_nothing_in_common_get_no_patch() -> None:
    assert diff(random.Random(1).randbytes(5000), random.Random(2).randbytes(5000)) is None


@pytest.mark.parametrize("raw", [b"\xdd", b"\xdc\x00", b"\xdf\x00\x00", b"\xd4\x05\xdd", b"\xc7\x01\x05\xde\x00"])
def test_a_container_header_lies_inside_the_value(raw: bytes) -> None:
    """Values need not be msgpack, and what folded writes leave as a base may be a few bytes of anything."""
    assert container_header(raw) <= len(raw)
    assert diff(raw, bytes(600)) is None, "it ends, and finds nothing"


# -- compression alone -----------------------------------------------------------------------------------------------------


@given(raw=st.binary(max_size=300) | LISTS.map(packed) | st.integers(0, 200_000).map(lambda size: b"abc" * (size // 3)))
@settings(max_examples=100, deadline=None)
def test_nothing_grows_by_compression(raw: bytes) -> None:
    codec, body = compress(raw)
    assert len(body) <= len(raw)
    assert decompress(codec, body, len(raw)) == raw


# -- the wrong base --------------------------------------------------------------------------------------------------------


def stored(storage: MemoryStorage, raw: bytes, base: Ref | None = None) -> Ref:
    """Store a value alone, based on another where that pays."""
    with storage.view() as view:
        record = Values(0, Activity).encode(view, ("msgpack", raw), crc32(raw), Choice(base))
    return Ref(storage.commit(lambda view: [record]), 0)


@given(pair=edited(), wrong=LISTS, flipped=st.none() | st.integers(0, 1 << 20))
@settings(max_examples=150, deadline=None)
@example(pair=([message(1)] * 20, [message(1)] * 21), wrong=[message(2)] * 20, flipped=None)
def test_a_wrong_base_never_gives_a_wrong_value(pair: tuple[list[Any], list[Any]], wrong: list[Any], flipped: int | None) -> None:
    """The base is exchanged under the value: either the patch used nothing that differs, or it is an error."""
    storage = MemoryStorage()
    before, target = packed(pair[0]), packed(pair[1])
    other = bytearray(packed(wrong) if flipped is None else before)
    if flipped is not None:
        other[flipped % len(other)] ^= 1 << flipped % 8
    base = stored(storage, before)
    ref = stored(storage, target, base)
    instead = MemoryStorage()
    stored(instead, bytes(other))
    storage._frames[base.lsn] = instead._frames[1]
    with storage.view() as view:
        try:
            assert Values(0, Activity).raw(view, ref) == target
        except CorruptionError:
            assert view.frame(ref.lsn).entries[0][1] == PATCH


# -- bytes that are no patch -----------------------------------------------------------------------------------------------

BASE = packed([message(number) for number in range(30)])
TARGET = packed([message(number) for number in (*range(10), 77, *range(12, 25), 99, 98)])


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def assert_harmless(patch: bytes, length: int, base: bytes = BASE) -> None:
    """It is refused with the one error there is for it, or makes no more than it may; and memory stays within that, too."""
    tracemalloc.start()
    try:
        made = apply(base, patch, length)
    except CorruptionError:
        made = b""
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(made) <= length
    # The new bytes, the pieces and the result; and some hundred bytes of objects for each copy, of which 3 bytes name one.
    assert peak < 3 * length + 200 * len(patch) + (64 << 10)


@given(patch=st.binary(max_size=2000), length=st.integers(0, 1 << 16))
@settings(max_examples=200, deadline=None)
def test_random_bytes(patch: bytes, length: int) -> None:
    assert_harmless(patch, length)


def real_patches() -> list[bytes]:
    """One of each codec of the new bytes."""
    rng = random.Random(5)
    noise = BASE + rng.randbytes(300)
    text = BASE + b"Please answer in English. The user asks for the weather in the city, and whether there will be rain."
    moved = b"".join(BASE[at : at + 160] for at in rng.sample(range(0, len(BASE) - 160, 160), len(BASE) // 160 - 1))
    large = BASE * 40 + b"".join(packed({"n": number, "who": rng.choice(["Ann", "Bob"])}) for number in range(5000))
    return [patch for target in (noise, text, moved, large) if (patch := diff(BASE, target)) is not None]


def parts(patch: bytes) -> tuple[int, bytes]:
    """Codec of the new bytes, and what stands there for them."""
    copies, at = number_at(patch, 0)
    for _ in range(3 * copies):
        _, at = number_at(patch, at)
    codec = patch[at]
    _, at = number_at(patch, at + 1)
    return codec, patch[at:]


def number_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


PATCHES = real_patches()


def test_the_patches_that_are_damaged_here_are_of_every_codec() -> None:
    assert [parts(patch)[0] for patch in PATCHES] == [RAW, ZSTD_SHIPPED_1, BASED, ZSTD]


@pytest.mark.parametrize("number", range(4))
def test_a_truncated_patch_is_refused(number: int) -> None:
    patch = PATCHES[number]
    for end in {*range(min(len(patch), 400)), *range(max(0, len(patch) - 100), len(patch))}:
        with pytest.raises(CorruptionError):
            apply(BASE, patch[:end], LARGE)


@given(
    number=st.integers(0, 3), at=st.integers(0, 1 << 16), mask=st.integers(1, 255), base=st.sampled_from([BASE, b"", b"x", TARGET])
)
@settings(max_examples=300, deadline=None)
def test_a_changed_patch_or_base(number: int, at: int, mask: int, base: bytes) -> None:
    patch = bytearray(PATCHES[number])
    # Half of the changes in the numbers at the front.
    patch[at // 2 % (min(len(patch), 24) if at % 2 else len(patch))] ^= mask
    assert_harmless(bytes(patch), 1 << 16, base)


NUMBERS = st.integers(0, 300) | st.sampled_from([len(BASE), len(BASE) + 1, 1 << 20, 1 << 31, (1 << 49) - 1, 1 << 60, 1 << 200])


@given(
    copies=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=6),
    more=st.integers(0, 2) | NUMBERS,
    codec=st.sampled_from([RAW, ZSTD, ZSTD_SHIPPED_1, BASED, 3, 17]),
    fresh=NUMBERS,
    rest=st.binary(max_size=60),
    length=st.integers(0, 20_000),
)
@settings(max_examples=300, deadline=None)
def test_any_numbers(copies: list[tuple[int, int, int]], more: int, codec: int, fresh: int, rest: bytes, length: int) -> None:
    patch = varint(len(copies) + more) + b"".join(varint(number) for copy in copies for number in copy)
    patch += bytes([codec]) + varint(fresh) + rest
    assert_harmless(patch, length)


def test_many_copies_of_everything_stay_within_the_stated_length() -> None:
    """A bomb: each three bytes ask for the whole base again."""
    copies = 5000
    patch = varint(copies) + (varint(0) + varint(0) + varint(len(BASE))) * copies + bytes([RAW]) + varint(0)
    assert_harmless(patch, len(BASE) * 3)
    with pytest.raises(CorruptionError):
        apply(BASE, patch, len(BASE) * 3)


def test_a_compressed_bomb_stays_within_the_stated_length() -> None:
    packing = zstandard.ZstdCompressionParameters.from_level(
        19, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=False, write_checksum=False, write_dict_id=False
    )
    bomb = zstandard.ZstdCompressor(compression_params=packing).compress(bytes(LARGE))
    assert len(bomb) < 4000
    for codec in (ZSTD, ZSTD_SHIPPED_1, BASED):
        patch = varint(0) + bytes([codec]) + varint(1000) + bomb
        assert_harmless(patch, 1000)
        with pytest.raises(CorruptionError):
            apply(BASE, patch, 1000)


@pytest.mark.parametrize("size", [1 << 26, 1 << 44])
@pytest.mark.parametrize("codec", [ZSTD, ZSTD_SHIPPED_1, BASED])
def test_a_frame_that_states_a_huge_content_allocates_nothing_for_it(codec: int, size: int) -> None:
    """No writer of this format states the size; a decoder that finds one must not make room for it."""
    frame = bytes([0xE0]) + struct.pack("<Q", size) + bytes([1, 0, 0])
    assert_harmless(varint(0) + bytes([codec]) + varint(1000) + frame, 1000)


def test_a_whole_value_is_bounded_by_its_stated_length_too() -> None:
    raw = bytes(100_000)
    codec, body = compress(raw)
    record = encode_value(("bytes", raw), crc32(raw), codec, body)
    for length in (0, 10, len(raw) - 1, len(raw) + 1):
        with pytest.raises(CorruptionError):
            decompress(codec, record.body, length)
