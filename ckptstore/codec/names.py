"""Ids and names as bytes: the short form in the log, the hash in the index.

The index and the hint files hold no user text: threads, namespaces and checkpoint ids appear there as hashes, so that erasing
the log erases the names. 128 bits of BLAKE2b: a collision is not to be had by accident nor on purpose.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from zlib import crc32

IdForm = bytes | str


@lru_cache(maxsize=4096)
def id_form(text: str) -> IdForm:
    """The form an id has in the log: 16 bytes for a canonical UUID (20 bytes saved on each mention), else the text itself."""
    if len(text) == 36:
        try:
            packed = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            return text
        if len(packed) == 16 and id_text(packed) == text:
            return packed
    return text


def id_text(form: IdForm) -> str:
    """Undo `id_form`."""
    if isinstance(form, str):
        return form
    digits = form.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@lru_cache(maxsize=4096)
def name_hash(text: str) -> bytes:
    """16-byte key of a name in the index. Any characters, lone surrogates included; no Unicode normalization."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@lru_cache(maxsize=4096)
def task_hash(task_id: str) -> bytes:
    """8-byte key of a task id, to tell the tasks of one checkpoint apart."""
    return blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def late_hash(thread: bytes, ns: bytes, checkpoint: bytes) -> bytes:
    """8-byte key under which a removed id is remembered, from three name hashes."""
    return blake2b(thread + ns + checkpoint, digest_size=8).digest()


@lru_cache(maxsize=4096)
def channel_bit(channel: str) -> int:
    """One of 64 bits for a channel name.

    Masks of these bits stand in the directory and the index: a bit that is not set proves absence, a set one proves nothing.
    """
    return 1 << (crc32(channel.encode("utf-8", "surrogatepass")) & 63)


def run_hash(run: str) -> bytes:
    """8-byte key of a run id, for deleting by run."""
    return blake2b(run.encode("utf-8", "surrogatepass"), digest_size=8).digest()
