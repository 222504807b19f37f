"""Codecs of record bodies, each with a tag that stands in the record's directory entry.

Old tags stay readable for ever. A body never grows by compression: one that zstd does not shrink by 5 % is stored raw.
"""

from __future__ import annotations

import threading
from importlib.resources import files

import zstandard

from ckptstore.errors import CorruptionError

RAW = 0
ZSTD = 1
ZSTD_SHIPPED_1 = 2
"""zstd with the dictionary of dictionary-1.zdict, which is part of the format and never changes (bench/train_dictionary.py)."""

# Below this size the zstd block header eats what is saved.
_SMALLEST = 24
# Level 1 against 3 on chat-like msgpack: 3 saves 6 % more bytes at twice the time; most bodies are small, so bytes win, until the
# body is so large that its time would be felt beside that of serializing it.
_LEVEL = 3
_LARGE, _LARGE_LEVEL = 32 << 10, 1
# Above this the dictionary costs time and gains nothing.
_DICTIONARY_UP_TO = 8 << 10
_SHIPPED_1 = zstandard.ZstdCompressionDict(files("ckptstore.codec").joinpath("dictionary-1.zdict").read_bytes())


class _Coders(threading.local):
    """zstd contexts are costly to build (12 us) and not thread-safe: one pair a thread."""

    def __init__(self) -> None:
        self.small = zstandard.ZstdCompressor(dict_data=_SHIPPED_1, compression_params=_parameters(_LEVEL))
        self.medium = zstandard.ZstdCompressor(compression_params=_parameters(_LEVEL))
        self.large = zstandard.ZstdCompressor(compression_params=_parameters(_LARGE_LEVEL))
        self.plain = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)
        self.shipped_1 = zstandard.ZstdDecompressor(dict_data=_SHIPPED_1, format=zstandard.FORMAT_ZSTD1_MAGICLESS)


def _parameters(level: int) -> zstandard.ZstdCompressionParameters:
    # Magic number, content size, dictionary id and checksum would cost 4 to 12 bytes a record; the directory entry already holds
    # codec and raw length, and the frame its own checksum.
    return zstandard.ZstdCompressionParameters.from_level(
        level,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        write_content_size=False,
        write_checksum=False,
        write_dict_id=False,
    )


_coders = _Coders()


def compress(raw: bytes) -> tuple[int, bytes]:
    """Return (codec, body) for `raw`, whichever of the known codecs is smaller."""
    size = len(raw)
    if size < _SMALLEST:
        return RAW, raw
    if size <= _DICTIONARY_UP_TO:
        codec, packed = ZSTD_SHIPPED_1, _coders.small.compress(raw)
    elif size < _LARGE:
        codec, packed = ZSTD, _coders.medium.compress(raw)
    else:
        codec, packed = ZSTD, _coders.large.compress(raw)
    return (codec, packed) if len(packed) <= size * 0.95 else (RAW, raw)


def decompress(codec: int, body: bytes, raw_length: int) -> bytes:
    """Undo `compress`.

    Args:
        codec: the tag of the directory entry.
        body: the stored bytes.
        raw_length: length the raw bytes must have; also the bound of what is allocated.

    Raises:
        CorruptionError: an unknown codec, or bytes that do not decode to that length.
    """
    if codec == RAW:
        raw = body
    elif codec in (ZSTD, ZSTD_SHIPPED_1):
        check_compressed(body, raw_length)
        coder = _coders.plain if codec == ZSTD else _coders.shipped_1
        try:
            raw = coder.decompress(body, max_output_size=raw_length)
        except zstandard.ZstdError as error:
            raise CorruptionError(f"a compressed body does not decode: {error}") from None
    else:
        raise CorruptionError(f"unknown codec {codec}: the record was written by a newer version")
    if len(raw) != raw_length:
        raise CorruptionError(f"a body decodes to {len(raw)} bytes, its directory entry says {raw_length}")
    return raw


def check_compressed(body: bytes, raw_length: int) -> None:
    """Refuse what zstd would allocate memory for and could not fill.

    No writer of this format states the content size in the header of a zstd frame. And a block of 128 KB takes 4 bytes at least.

    Raises:
        CorruptionError
    """
    if body and body[0] & 0xE0:
        raise CorruptionError("a compressed body states its size: it was not written by this format")
    if raw_length > len(body) << 15:
        raise CorruptionError(f"a compressed body of {len(body)} bytes cannot hold {raw_length}")
