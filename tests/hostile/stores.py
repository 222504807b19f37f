"""A store folder as a tree and back, every checksum and length made right: what somebody writes who knows the format and means harm."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb
import msgpack
import zstandard

import ckptstore
from ckptstore import CkptStoreError, Store
from ckptstore.codec.compression import compress
from ckptstore.codec.records import PATCH, Kind, decode_body
from ckptstore.storage.local import format as fmt
from tests.hostile.mutating import Tree

UUID, TIMELINE = bytes(range(16)), bytes(range(8))
"""Of every store that is written here."""
_SALT = 7
_TREES = (Kind.CHECKPOINT, Kind.WRITES, Kind.HISTORY)
_HINT_MAGIC = b"\x89CKHT\r\n\x1a"


def pack(tree: Tree) -> bytes:
    return bytes(msgpack.packb(tree, unicode_errors="surrogatepass"))


def unpack(data: bytes) -> Tree:
    return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)


# -- from bytes to trees ---------------------------------------------------------------------------------------------------


def record_tree(entry: list[Any], stored: bytes) -> Tree:
    """[entry, body]: the body as a tree where it is msgpack, else decompressed, or as it is stored where it is a patch."""
    if entry[1] == PATCH:
        return [entry, stored]
    raw = decode_body(entry, stored)
    return [entry, unpack(raw) if entry[0] in _TREES else raw]


def frame_trees(segment: bytes) -> list[Tree]:
    """[LSN, durable LSN, records] of each frame."""
    at, found = fmt.segment_header_length(segment), []
    while (header := fmt.decode_frame_header(segment[at : at + fmt.FRAME_HEADER])) is not None:
        frame = fmt.decode_frame(segment[at : at + header.size])[1]
        records = [record_tree(entry, frame.stored(number)) for number, entry in enumerate(frame.entries)]
        found.append([header.lsn, header.durable, records])
        at += header.size
    return found


def store_tree(folder: Path) -> Tree:
    """A closed store."""
    segments = []
    for path in sorted((folder / "segments").glob("*.seg")):
        data = path.read_bytes()
        header = fmt.decode_segment_header(data)
        hint = path.with_suffix(".hint")
        items = None
        if hint.exists():
            items = unpack(zstandard.ZstdDecompressor().decompress(hint.read_bytes()[12:]))[1]
        segments.append([[header.segment, header.base_lsn, header.end_lsn, list(header.replaces)], frame_trees(data), items])
    return {"STORE": json.loads((folder / "STORE").read_bytes()), "segments": segments}


# -- from trees to bytes ---------------------------------------------------------------------------------------------------


def sealed_record(tree: Tree) -> tuple[list[Any], bytes]:
    """Entry and stored body, with the codec and the lengths that fit, as far as the entry has them; numbers too large stay."""
    entry, body = tree
    if isinstance(body, bytes) and isinstance(entry, list) and len(entry) > 3 and entry[1] == PATCH:
        return [*entry[:2], len(body), *entry[3:]], body
    raw = body if isinstance(body, bytes) else pack(body)
    if not isinstance(entry, list) or len(entry) < 4 or entry[1] not in (0, 1, 2):
        return entry, raw
    codec, stored = compress(raw)
    # A length that was made absurd is the test.
    length = entry[3] if not isinstance(entry[3], int) or entry[3] < 0 or entry[3] > 1 << 24 else len(raw)
    return [entry[0], codec, len(stored), length, *entry[4:]], stored


def sealed_frame(chain: int, tree: Tree) -> tuple[bytes, int]:
    lsn, durable, records = tree
    sealed = [sealed_record(record) for record in records]
    directory = pack([entry for entry, _ in sealed])
    return fmt.encode_frame(chain, lsn, durable, directory, b"".join(body for _, body in sealed))


def sealed_segment(tree: Tree) -> bytes:
    (segment, base, end, replaces), frames, _ = tree
    data = fmt.encode_segment_header(fmt.SegmentHeader(segment, UUID, TIMELINE, base, end, 0, _SALT, tuple(replaces)))
    chain = _SALT
    for frame in frames:
        sealed, chain = sealed_frame(chain, frame)
        data += sealed
    return data


def sealed_hint(items: Tree) -> bytes:
    packed = items if isinstance(items, bytes) else zstandard.ZstdCompressor(level=3).compress(pack([_SALT, items]))
    return _HINT_MAGIC + crc32(packed).to_bytes(4, "little") + packed


def write_store(tree: Tree, folder: Path) -> None:
    (folder / "segments").mkdir(parents=True)
    identity = tree["STORE"]
    (folder / "STORE").write_bytes(identity if isinstance(identity, bytes) else json.dumps(identity).encode())
    for item in tree["segments"]:
        path = folder / "segments" / f"{item[0][0]:020d}.seg"
        path.write_bytes(sealed_segment(item))
        if item[2] is not None:
            path.with_suffix(".hint").write_bytes(sealed_hint(item[2]))


# -- what a user does with it ----------------------------------------------------------------------------------------------


def attempt(work: Callable[[], Any]) -> Any:
    """What a call returns, or the error of ours that it raises; every other error comes out.

    Raises:
        MemoryError: the index could not be mapped in the memory that there is, so nothing was tried.
    """
    try:
        return work()
    except CkptStoreError as error:
        if isinstance(error.__cause__, lmdb.MemoryError):
            raise MemoryError(str(error)) from error
        return error


def read_everything(store: Store) -> list[str]:
    """Every public way to read; each may fail on its own. Returns names of threads."""
    attempt(store.stats)
    infos = attempt(lambda: list(store.threads()))
    names = [info.thread for info in infos] if isinstance(infos, list) else []
    listing = iter(store.list())
    for _ in range(200):
        found = attempt(lambda: next(listing, None))
        if found is None:
            break
        if isinstance(found, CkptStoreError):
            continue
        lane = found.lane
        names.append(lane.thread)
        attempt(lambda lane=lane, id=found.id: store.get(lane, id))  # type: ignore[misc]
        attempt(lambda lane=lane, id=found.id: store.outline(lane, id))  # type: ignore[misc]
        channels = [name for name in found.versions if isinstance(name, str)]
        attempt(lambda lane=lane, id=found.id: store.history(lane, id, channels))  # type: ignore[misc] # noqa: B023
    for name in dict.fromkeys(names):
        attempt(lambda name=name: list(store.list(name, "")))  # type: ignore[misc]
        attempt(lambda name=name: store.thread(name).state())  # type: ignore[misc]
    return list(dict.fromkeys(names))


def _open(folder: Path, **options: Any) -> Store | None:
    store = attempt(lambda: ckptstore.open(folder, auto_compact=False, durability="process", **options))
    return store if isinstance(store, Store) else None


def verify(folder: Path) -> None:
    attempt(lambda: ckptstore.verify(folder))


def salvage(folder: Path) -> None:
    attempt(lambda: ckptstore.salvage(folder, folder.with_name("saved")))


def look(folder: Path) -> None:
    store = _open(folder, read_only=True)
    if store is not None:
        read_everything(store)
        attempt(store.close)


def work(folder: Path) -> None:
    """Read, back up and restore, prune, compact, delete."""
    store = _open(folder)
    if store is None:
        return
    named = read_everything(store)
    report = attempt(lambda: ckptstore.backup(store, folder.with_name("backup")))
    if not isinstance(report, CkptStoreError):
        attempt(lambda: ckptstore.restore(folder.with_name("backup"), folder.with_name("restored")))
    for name in named[:3]:
        attempt(lambda name=name: store.prune(name))  # type: ignore[misc]
    attempt(store.compact)
    for name in named[:1]:
        attempt(lambda: store.delete(name, erase=True))  # noqa: B023
    attempt(store.close)


USES: tuple[Callable[[Path], None], ...] = (verify, salvage, look, work)


def use_tree(use: Callable[[Path], None], tree: Tree) -> None:
    """Write a store, and do one thing with it."""
    with tempfile.TemporaryDirectory(prefix="ckptstore-hostile-") as root:
        folder = Path(root) / "store"
        write_store(tree, folder)
        use(folder)
