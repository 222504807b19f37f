"""Codecs of record bodies, each with a tag that stands in the record's directory entry.

Old tags stay readable for ever. A body never grows by compression: one that zstd does not shrink by 5 % is stored raw.
"""

from __future__ import annotations

import threading

import zstandard

from ckptstore.errors import CorruptionError

RAW = 0
ZSTD = 1

# Below this size the zstd block header eats what is saved.
_SMALLEST = 48
# Level 1 against 3 on chat-like msgpack: 3 saves 6 % more bytes at twice the time; bodies are small, so bytes win.
_LEVEL = 3


class _Coders(threading.local):
    """zstd contexts are costly to build (12 us) and not thread-safe: one pair a thread."""

    def __init__(self) -> None:
        # Magic number, content size, dictionary id and checksum would cost 4 to 12 bytes a record; the directory entry
        # already holds codec and raw length, and the frame its own checksum.
        parameters = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL,
            format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            write_content_size=False,
            write_checksum=False,
            write_dict_id=False,
        )
        self.compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self.decompressor = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)


_coders = _Coders()


def compress(raw: bytes) -> tuple[int, bytes]:
    """Return (codec, body) for `raw`, whichever of the known codecs is smaller."""
    if len(raw) >= _SMALLEST:
        packed = _coders.compressor.compress(raw)
        if len(packed) <= len(raw) * 0.95:
            return ZSTD, packed
    return RAW, raw


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
    elif codec == ZSTD:
        try:
            raw = _coders.decompressor.decompress(body, max_output_size=raw_length)
        except zstandard.ZstdError as error:
            raise CorruptionError(f"a compressed body does not decode: {error}") from None
    else:
        raise CorruptionError(f"unknown codec {codec}: the record was written by a newer version")
    if len(raw) != raw_length:
        raise CorruptionError(f"a body decodes to {len(raw)} bytes, its directory entry says {raw_length}")
    return raw
