"""Patches: a value's bytes as copies out of earlier bytes, and what is new.

A value of an agent's state mostly repeats its predecessor: a list grew, an entry changed, a text moved into another container. msgpack
puts the length of a container in front of it, so a list that grew differs in its first bytes and then runs equal almost to its end:
the comparison starts behind the headers. What it looks for, cheapest first: an equal run behind the headers, an equal run at the end,
and, where both are short, a run found by a probe out of the middle of the base. What is left over is compressed, against the part of
the base that was not copied where that is likely to help.

Patch body:

    varint  number of operations
    then for each: varint length of new bytes, varint offset of the copy in the base, varint length of the copy
    1 byte  codec of the new bytes (compression.py), or BASED: zstd with the base as raw-content dictionary
    varint  raw length of the new bytes
    ...     the new bytes, all of them in order
"""

from __future__ import annotations

from typing import NamedTuple

import zstandard

from ckptstore.codec.compression import check_compressed, compress, decompress
from ckptstore.errors import CorruptionError

BASED = 255
# zstd finds repetitions in a raw-content dictionary only from level 3 on.
_BASED_LEVEL = 3
# Fewer new bytes gain nothing from the base; a larger base costs more time than serializing the value did.
_BASED_FROM, _BASED_TO = 256, 512 << 10
_SAMPLES, _SAMPLE = 6, 40
_PROBE = 48
_SHORTEST_COPY = 24


class _Copy(NamedTuple):
    fresh: int
    offset: int
    length: int


def container_header(data: bytes) -> int:
    """Bytes in front of the first element: the headers of a msgpack extension and of an array or map, where the value begins with such."""
    at = 0
    if data[:1] and data[0] in _EXTENSION:
        at = _EXTENSION[data[0]]
    if at >= len(data):
        return 0
    first = data[at]
    if 0x80 <= first <= 0x9F:
        at += 1
    elif first in (0xDC, 0xDE):
        at += 3
    elif first in (0xDD, 0xDF):
        at += 5
    return min(at, len(data))  # bytes that are no msgpack may begin like it


# ext 8, 16, 32 and fixext 1 to 16: length of the header including the type byte.
_EXTENSION = {0xC7: 3, 0xC8: 4, 0xC9: 6, 0xD4: 2, 0xD5: 2, 0xD6: 2, 0xD7: 2, 0xD8: 2}


def diff(base: bytes, target: bytes, *, thorough: bool = True) -> bytes | None:
    """A patch that makes `target` out of `base`, or None where they have too little in common for one to pay.

    Args:
        thorough: whether to look for what has in common more than a few runs: costs about what serializing did.
    """
    copies = _ends(base, target)
    covered = sum(copy.length for copy in copies)
    if covered * 2 < len(target):
        probed = _probe(base, target)
        if sum(copy.length for copy in probed) > covered:
            copies = probed
            covered = sum(copy.length for copy in copies)
    fresh = _fresh(target, copies)
    searched = thorough and len(fresh) >= _BASED_FROM
    spread = covered * 2 < min(len(base), len(target))
    if spread and not (searched and _related(base, fresh)):
        return None  # stored whole it costs as little, and is compressed once instead of twice
    codec, body = compress(fresh)
    if searched and len(body) > len(target) // 16 and (spread or _related(base, fresh)):
        based = _Against(base).compress(fresh)
        if len(based) < len(body):
            codec, body = BASED, based
    if len(body) >= len(target):
        return None
    packed = bytearray()
    _varint(packed, len(copies))
    for fresh_length, offset, length in copies:
        _varint(packed, fresh_length)
        _varint(packed, offset)
        _varint(packed, length)
    packed.append(codec)
    _varint(packed, len(fresh))
    return bytes(packed) + body


def apply(base: bytes, patch: bytes, length: int) -> bytes:
    """Undo `diff`.

    Args:
        length: bytes the result must have; also the bound of what is allocated.

    Raises:
        CorruptionError: the patch is not one, or does not fit this base.
    """
    reader = _Reader(patch)
    copies = [_Copy(reader.varint(), reader.varint(), reader.varint()) for _ in range(reader.count())]
    codec = reader.byte()
    fresh_length = reader.varint()
    if fresh_length > length:
        raise CorruptionError("a patch holds more than the value it makes")
    if codec == BASED:
        body = reader.rest()
        check_compressed(body, fresh_length)
        try:
            fresh = _Against(base).decompress(body, fresh_length)
        except zstandard.ZstdError as error:
            raise CorruptionError(f"the new bytes of a patch do not decode: {error}") from None
        if len(fresh) != fresh_length:
            raise CorruptionError("the new bytes of a patch have the wrong length")
    else:
        fresh = decompress(codec, reader.rest(), fresh_length)
    pieces: list[memoryview] = []
    new, old = memoryview(fresh), memoryview(base)
    at, total = 0, fresh_length
    for fresh_part, offset, copied in copies:
        total += copied
        if at + fresh_part > fresh_length or offset + copied > len(base) or total > length:
            raise CorruptionError("a patch reaches outside its base")
        pieces += (new[at : at + fresh_part], old[offset : offset + copied])
        at += fresh_part
    pieces.append(new[at:])
    return b"".join(pieces)


def _ends(base: bytes, target: bytes) -> list[_Copy]:
    """The equal run behind the headers and the equal run at the end."""
    base_at, target_at = container_header(base), container_header(target)
    front = _equal_front(base, base_at, target, target_at)
    longest = min(len(base) - base_at, len(target) - target_at) - front
    back = _equal_back(base, target, longest)
    copies = []
    if front >= _SHORTEST_COPY:
        copies.append(_Copy(target_at, base_at, front))
        done = target_at + front
    else:
        done = 0
    if back >= _SHORTEST_COPY:
        copies.append(_Copy(len(target) - back - done, len(base) - back, back))
    return copies


def _probe(base: bytes, target: bytes) -> list[_Copy]:
    """One run anywhere, found by a piece out of the base's middle: a value that moved into, or out of, another container."""
    best: list[_Copy] = []
    found = 0
    for part in (3,) if len(base) > _BASED_TO else (3, 5, 1):
        at = len(base) * part // 6
        piece = base[at : at + _PROBE]
        if len(piece) < _PROBE:
            continue
        hit = target.find(piece)
        if hit < 0:
            continue
        back = _equal_back(base[:at], target[:hit], min(at, hit))
        front = _equal_front(base, at, target, hit)
        if back + front > found:
            found = back + front
            best = [_Copy(hit - back, at - back, back + front)]
    return best


def _related(base: bytes, fresh: bytes) -> bool:
    """Whether most samples of the new bytes stand somewhere in the base: the change is spread over the middle, or things moved.

    Samples are longer than what every message has in common with every other.
    """
    if len(base) > _BASED_TO or len(fresh) > _BASED_TO:
        return False
    step = max(1, len(fresh) // _SAMPLES)
    places = range(step // 2, max(1, len(fresh) - _SAMPLE), step)
    # A search for what is not there goes through the whole base: stop as soon as the rest cannot change the answer.
    needed, missing = len(places) // 2 + 1, 0
    for place in places:
        if base.find(fresh[place : place + _SAMPLE]) >= 0:
            needed -= 1
        else:
            missing += 1
        if not needed or missing * 2 >= len(places):
            break
    return not needed


def _fresh(target: bytes, copies: list[_Copy]) -> bytes:
    pieces, at = [], 0
    for fresh, _, length in copies:
        pieces.append(target[at : at + fresh])
        at += fresh + length
    pieces.append(target[at:])
    return b"".join(pieces)


def _equal_front(left: bytes, left_at: int, right: bytes, right_at: int) -> int:
    """Length of the equal run from these places on. Doubling steps, then halving: slices compare at the speed of memory."""
    limit = min(len(left) - left_at, len(right) - right_at)
    same, step = 0, 64
    while step:
        end = min(same + step, limit)
        if end > same and left[left_at + same : left_at + end] == right[right_at + same : right_at + end]:
            same = end
            if same == limit:
                return same
            step *= 2
        else:
            step = min(step, limit - same) // 2
            break
    while step:
        end = min(same + step, limit)
        if left[left_at + same : left_at + end] == right[right_at + same : right_at + end]:
            same = end
            if same == limit:
                return same
        else:
            step //= 2
    return same


def _equal_back(left: bytes, right: bytes, limit: int) -> int:
    """Length of the equal run at the end, at most `limit`."""
    same, step, growing = 0, 64, True
    while step and same < limit:
        end = min(same + step, limit)
        if left[len(left) - end : len(left) - same] == right[len(right) - end : len(right) - same]:
            same = end
            if growing:
                step *= 2
        else:
            growing = False
            step //= 2
    return same


class _Against:
    """zstd with raw bytes as dictionary. Magic and sizes are left out, as in compression.py."""

    def __init__(self, base: bytes) -> None:
        self._dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)

    def compress(self, data: bytes) -> bytes:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            _BASED_LEVEL,
            source_size=len(data) + len(self._dictionary),
            format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            write_content_size=False,
            write_checksum=False,
            write_dict_id=False,
        )
        return zstandard.ZstdCompressor(dict_data=self._dictionary, compression_params=parameters).compress(data)

    def decompress(self, data: bytes, length: int) -> bytes:
        decompressor = zstandard.ZstdDecompressor(
            dict_data=self._dictionary, format=zstandard.FORMAT_ZSTD1_MAGICLESS, max_window_size=1 << 27
        )
        return decompressor.decompress(data, max_output_size=length)


class _Reader:
    """Bounded reading of a patch."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        if self._at >= len(self._data):
            raise CorruptionError("a patch ends early")
        self._at += 1
        return self._data[self._at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 42:
                raise CorruptionError("a number in a patch is too long")

    def count(self) -> int:
        count = self.varint()
        if count * 3 > len(self._data):
            raise CorruptionError("a patch names more copies than it can hold")
        return count

    def rest(self) -> bytes:
        return self._data[self._at :]


def _varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
