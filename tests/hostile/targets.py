"""The decoders, each as a function of a tree: what is fed to it, and what it may answer."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

import ckptstore
from ckptstore import LaneName, Source, Store
from ckptstore.activity import Activity
from ckptstore.codec import patch
from ckptstore.codec.compression import compress, decompress
from ckptstore.codec.inert import Inert, Opaque, inert
from ckptstore.codec.records import (
    Kind,
    checkpoint_id,
    checkpoint_refs,
    checkpoint_run,
    decode_checkpoint,
    decode_history,
    decode_writes,
    entry_name,
    hashed_entry,
    history_refs,
    value_facts,
    writes_mask,
    writes_refs,
)
from ckptstore.lineage.values import Values
from ckptstore.model import Ref
from ckptstore.storage import Frame
from ckptstore.storage.local import backup
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.hints import read_hint
from ckptstore.storage.local.layout import Layout, read_clean, read_identity
from ckptstore.storage.local.recovery import End, replay
from ckptstore.storage.local.segment import Segments
from ckptstore.storage.local.vfs import OS
from ckptstore.storage.memory import MemoryStorage, _MemoryView
from tests.golden.make import FOLDER as GOLDEN
from tests.golden.make import WRITTEN, put, write
from tests.hostile.mutating import Tree
from tests.hostile.stores import (
    TIMELINE,
    USES,
    UUID,
    attempt,
    frame_trees,
    pack,
    sealed_frame,
    sealed_hint,
    sealed_record,
    sealed_segment,
    store_tree,
    use_tree,
    write_store,
)

Answer = Any


class Target(NamedTuple):
    """Something that reads bytes."""

    name: str
    build: Callable[[Tree], Any]
    """The bytes of a tree; whatever it raises means that this tree is no input."""
    read: Callable[[Any], Answer]
    """Feeds them in. Raises what is not an error of ours."""
    seeds: Callable[[], list[Tree]]
    weight: int = 1
    """Share of a campaign's time."""


def same(tree: Tree) -> Any:
    return tree


def as_bytes(tree: Tree) -> bytes:
    assert isinstance(tree, bytes)
    return tree


# -- what seeds are made of ------------------------------------------------------------------------------------------------


@cache
def golden_segments() -> list[bytes]:
    return [path.read_bytes() for folder in (WRITTEN, "compacted") for path in sorted((GOLDEN / folder / "segments").glob("*.seg"))]


@cache
def golden_frames() -> list[Tree]:
    return [frame for segment in golden_segments() for frame in frame_trees(segment)]


def _every_kind() -> list[Tree]:
    """Golden frames, until each kind of record was there a few times."""
    seen: dict[Any, int] = {}
    chosen = []
    for frame in golden_frames():
        kinds = [(entry[0], entry[1], len(entry)) for entry, _ in frame[2]]
        if any(seen.get(kind, 0) < 2 for kind in kinds):
            chosen.append(frame)
            for kind in kinds:
                seen[kind] = seen.get(kind, 0) + 1
    return chosen


def _fill(store: Store) -> None:
    rng = random.Random(3)
    lane = LaneName("t")
    said: list[str] = []
    for number in range(6):
        said = [*said, rng.randbytes(300).hex()]
        put(store, lane, f"c{number}", f"c{number - 1}" if number else None, {"messages": said, "title": number}, run="run 1")
        write(store, lane, f"c{number}", "task", [f"said {number}"], channel="messages")
    log = [rng.randbytes(100).hex()]
    put(store, LaneName("d", "inner"), "d0", None, {"log": log})
    for number in range(3):
        log = [*log, rng.randbytes(100).hex()]
        write(store, LaneName("d", "inner"), f"d{number}", "task", log[-1:])
        put(store, LaneName("d", "inner"), f"d{number + 1}", f"d{number}", {}, ("log",))
    put(store, LaneName("d", "inner"), "fork", "d2", {"log": log[:-1]}, source=Source.FORK)
    store.set_head(lane, "c3")
    store.copy("t", "copy")
    put(store, LaneName("gone"), "g0", None, {"messages": said})
    store.delete("gone")
    store.prune("d")


@cache
def small_stores() -> tuple[Tree, Tree]:
    """A small store with every kind of record: as written, and compacted."""
    found = []
    with tempfile.TemporaryDirectory() as root:
        for name in ("written", "compacted"):
            folder = Path(root) / name
            with ckptstore.open(folder, mode="full", auto_compact=False, durability="process", segment_bytes=4096) as store:
                _fill(store)
                if name == "compacted":
                    store.compact()
            tree = store_tree(folder)
            tree["STORE"] |= {"uuid": UUID.hex(), "timelines": [TIMELINE.hex()], "created_ms": 0}
            found.append(tree)
    return found[0], found[1]


# -- the decoders ----------------------------------------------------------------------------------------------------------


def _read_record(lsn: int, entry: list[Any], raw: Callable[[], bytes]) -> Iterator[Any]:
    """All that is ever asked of a record."""
    ref = Ref(lsn, 0)
    kind = entry[0]
    yield attempt(lambda: hashed_entry(entry))
    if kind in (Kind.THREAD, Kind.LANE):
        yield attempt(lambda: entry_name(entry))
    elif kind == Kind.VALUE:
        yield attempt(lambda: value_facts(lsn, entry))
        yield attempt(raw)
    elif kind == Kind.CHECKPOINT:
        yield attempt(lambda: (checkpoint_id(entry), checkpoint_run(entry), checkpoint_refs(lsn, entry)))
        yield attempt(lambda: decode_checkpoint(ref, entry, raw()))
    elif kind == Kind.WRITES:
        yield attempt(lambda: (writes_mask(entry), writes_refs(lsn, entry)))
        yield attempt(lambda: decode_writes(ref, entry, raw()))
    elif kind == Kind.HISTORY:
        yield attempt(lambda: history_refs(entry))
        yield attempt(lambda: decode_history(entry, raw()))


def read_frame(data: bytes) -> Answer:
    found = attempt(lambda: fmt.decode_frame(data))
    if not isinstance(found, tuple):
        assert len(data) < fmt.FRAME_HEADER or fmt.directory_at(memoryview(data), 0, 5) is None or "bodies" in str(found)
        return found
    header, frame = found
    answers = [
        list(_read_record(frame.lsn, entry, lambda number=number: frame.raw(number)))  # type: ignore[misc]
        for number, entry in enumerate(frame.entries)
    ]
    return header, frame.entries, answers


def read_segment_header(data: bytes) -> Answer:
    return attempt(lambda: fmt.decode_segment_header(data))


def build_segment_header(tree: Tree) -> bytes:
    segment, base, end, salt, replaces = tree
    return fmt.encode_segment_header(fmt.SegmentHeader(segment, bytes(16), bytes(8), base, end, 0, salt, tuple(replaces)))


def read_body(given: tuple[int, bytes, int]) -> Answer:
    return attempt(lambda: decompress(*given))


def build_body(tree: Tree) -> tuple[int, bytes, int]:
    codec, body, length = tree
    assert isinstance(body, bytes)
    assert type(codec) is type(length) is int
    assert length >= 0
    return codec, body, length


def body_seeds() -> list[Tree]:
    raws = [b"", b"x" * 100, random.Random(1).randbytes(300).hex().encode(), bytes(100_000), json.dumps(list(range(3000))).encode()]
    return [[*compress(raw), len(raw)] for raw in raws]


def read_patch(given: tuple[bytes, bytes, int]) -> Answer:
    return attempt(lambda: patch.apply(*given))


def build_patch(tree: Tree) -> tuple[bytes, bytes, int]:
    base, body, length = tree
    assert isinstance(base, bytes)
    assert isinstance(body, bytes)
    assert type(length) is int
    assert length >= 0
    return base, body, length


def patch_seeds() -> list[Tree]:
    rng = random.Random(2)
    items = [rng.randbytes(60).hex() for _ in range(20)]
    base = pack(items)
    targets = [pack([*items, "more"]), pack([*items[:9], *items[12:]]), pack(rng.sample(items, 20)), pack({"archive": items})]
    return [[base, body, len(target)] for target in targets if (body := patch.diff(base, target)) is not None]


def read_values(given: dict[int, tuple[bytes, bytes]]) -> Answer:
    """Every value of a log in memory, through its bases."""
    storage = MemoryStorage()
    view = _MemoryView(storage._kv, given)
    found = []
    for lsn, (directory, bodies) in given.items():
        try:
            frame = Frame(lsn, ckptstore_entries(directory, bodies), bodies)
        except ckptstore.CkptStoreError:
            continue
        for number, entry in enumerate(frame.entries):
            if entry[0] == Kind.VALUE:
                ref = Ref(lsn, number)
                found.append(attempt(lambda ref=ref: Values(1 << 20, Activity).raw(view, ref)))  # type: ignore[misc]
    return found


def ckptstore_entries(directory: bytes, bodies: bytes) -> list[Any]:
    header, _ = fmt.encode_frame(0, 1, 0, directory, bodies)
    found = fmt.decode_frame_header(header)
    assert found is not None
    return fmt.decode_directory(found, directory)


def build_values(tree: Tree) -> dict[int, tuple[bytes, bytes]]:
    found = {}
    for lsn, _, records in tree:
        sealed = [sealed_record(record) for record in records]
        directory, bodies = pack([entry for entry, _ in sealed]), b"".join(body for _, body in sealed)
        ckptstore_entries(directory, bodies)
        found[lsn] = directory, bodies
    return found


def value_seeds() -> list[Tree]:
    frames = [frame for segment in small_stores()[0]["segments"] for frame in segment[1]]
    golden = frame_trees(b"".join(golden_segments()[:1]))
    return [frames, golden[:12]]


def read_hint_file(data: bytes) -> Answer:
    header = fmt.SegmentHeader(1, bytes(16), bytes(8), 1, 0, 0, 7, ())
    with tempfile.TemporaryDirectory(prefix="ckptstore-hostile-") as root:
        layout = Layout(Path(root))
        layout.segments.mkdir()
        layout.segment(1).write_bytes(bytes(5000))
        layout.hint(1).write_bytes(data)
        return attempt(lambda: read_hint(OS, layout, header))


def build_hint(tree: Tree) -> bytes:
    return sealed_hint(tree)


def hint_seeds() -> list[Tree]:
    return [segment[2] for small in small_stores() for segment in small["segments"] if segment[2] is not None]


def read_inert(given: tuple[str, bytes]) -> Answer:
    return attempt(lambda: inert(given))


def build_inert(tree: Tree) -> tuple[str, bytes]:
    tag, data = tree
    assert isinstance(data, bytes)
    assert isinstance(tag, str)
    return tag, data


def inert_seeds() -> list[Tree]:
    named = [
        msgpack.ExtType(code, pack(["os", "system", argument, "run"][: 4 if code in (3, 5) else 3]))
        for code, argument in ((0, "x"), (1, ["x"]), (2, {"a": 1}), (3, 1), (4, {"a": 1}), (5, {"a": 1}))
    ]
    array = msgpack.ExtType(6, pack(["<f8", [2], "C", bytes(16)]))
    snapshot = msgpack.ExtType(7, pack([1, {"a": [2]}]))
    constructor = {"lc": 1, "type": "constructor", "id": ["app", "User"], "kwargs": {"name": "x"}}
    trees: list[Tree] = [["msgpack", pack(item)] for item in (*named, array, snapshot, [1, "a", {2: [None, True, 0.5]}])]
    return [*trees, ["json", json.dumps([constructor, [1.5, "a"]]).encode()], ["pickle", b"cos\nsystem\n(S'true'\ntR."]]


def read_identity_file(data: bytes) -> Answer:
    with tempfile.TemporaryDirectory(prefix="ckptstore-hostile-") as root:
        layout = Layout(Path(root))
        layout.store.write_bytes(data)
        layout.index.mkdir()
        layout.clean.write_bytes(data)
        return attempt(lambda: read_identity(OS, layout)), attempt(lambda: read_clean(layout))


def build_json(tree: Tree) -> bytes:
    return tree if isinstance(tree, bytes) else json.dumps(tree).encode()


def identity_seeds() -> list[Tree]:
    return [small_stores()[0]["STORE"], build_json(small_stores()[0]["STORE"])]


def build_backup(tree: Tree) -> bytes:
    if isinstance(tree, bytes):
        return tree
    return json.dumps({**tree, "crc": backup._facts_crc(tree)}).encode()


def read_backup(data: bytes) -> Answer:
    """A backup folder whose list of files says this; its files are those of a good one."""
    with tempfile.TemporaryDirectory(prefix="ckptstore-hostile-") as root:
        folder = Path(root) / "backup"
        (folder / "segments").mkdir(parents=True)
        for name, file in _backup_folder().items():
            (folder / name).write_bytes(file)
        (folder / backup.MANIFEST).write_bytes(data)
        found = attempt(lambda: ckptstore.restore(folder, Path(root) / "inside" / "restored"))
        outside = sorted(path.name for path in Path(root).iterdir())
        assert outside in (["backup"], ["backup", "inside"]), outside
        for path in (Path(root) / "inside").rglob("*"):
            assert path.is_relative_to(Path(root) / "inside" / "restored") or ".restored.restoring" in path.parts, path
        return found


@cache
def _backup_folder() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as root:
        with ckptstore.open(Path(root) / "s", auto_compact=False, segment_bytes=4096) as store:
            _fill(store)
            store.backup(Path(root) / "b")
        folder = Path(root) / "b"
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def backup_seeds() -> list[Tree]:
    data = _backup_folder()[backup.MANIFEST]
    facts = json.loads(data)
    del facts["crc"]
    return [facts, data]


def build_recovery(tree: Tree) -> bytes:
    header, frames, tail = tree
    return sealed_segment([header, frames, None]) + tail


def read_recovery(data: bytes) -> Answer:
    """The end of a log of one segment."""
    with tempfile.TemporaryDirectory(prefix="ckptstore-hostile-") as root:
        write_store({**small_stores()[0], "segments": []}, Path(root) / "s")
        layout = Layout(Path(root) / "s")
        layout.segment(1).write_bytes(data)
        segments = Segments(OS, layout, read_identity(OS, layout))
        try:

            def run() -> End:
                return replay(segments, [segments.header(1)], lambda found: None)

            return attempt(run)
        finally:
            segments.close()


def recovery_seeds() -> list[Tree]:
    segment = small_stores()[0]["segments"][0]
    return [[segment[0], segment[1][:5], tail] for tail in (b"", bytes(100), sealed_frame(0, segment[1][5])[0])]


def build_store(tree: Tree) -> Tree:
    """A store of these segments, sealed once before, so that a tree that is no input is told from an error."""
    whole = {**small_stores()[0], "segments": tree}
    with tempfile.TemporaryDirectory(prefix="ckptstore-hostile-") as root:
        write_store(whole, Path(root) / "s")
    return whole


def store_targets() -> Iterator[Target]:
    """Each thing that is done with a store, as it was written and compacted."""
    for number, name in enumerate(("store", "compacted store")):
        for use in USES:
            yield Target(
                f"{name}, {use.__name__}",
                build_store,
                partial(use_tree, use),
                lambda number=number: [small_stores()[number]["segments"]],  # type: ignore[misc]
                2,
            )


TARGETS = [
    Target("frame", as_bytes, read_frame, lambda: [sealed_frame(0, frame)[0] for frame in _every_kind()]),
    Target("sealed frame", lambda tree: sealed_frame(0, tree)[0], read_frame, _every_kind, 3),
    Target("segment header", as_bytes, read_segment_header, lambda: [golden[:200] for golden in golden_segments()]),
    Target("sealed segment header", build_segment_header, read_segment_header, lambda: [[3, 1, 9, 7, [1, 2]], [1, 1, 0, 7, []]]),
    Target("body", build_body, read_body, body_seeds),
    Target("patch", build_patch, read_patch, patch_seeds, 2),
    Target("values", build_values, read_values, value_seeds, 2),
    Target("hint", build_hint, read_hint_file, hint_seeds),
    Target("inert", build_inert, read_inert, inert_seeds, 2),
    Target("identity", build_json, read_identity_file, identity_seeds),
    Target("backup", build_backup, read_backup, backup_seeds),
    Target("recovery", build_recovery, read_recovery, recovery_seeds),
    *store_targets(),
]

_PLAIN = (type(None), bool, int, float, str, bytes)
_OURS = (Inert, Opaque, msgpack.ExtType, msgpack.Timestamp, ckptstore.CkptStoreError)


def assert_plain(answer: Answer) -> None:
    """Nothing came out but plain types and records of this package."""
    waiting = [answer]
    while waiting:
        item = waiting.pop()
        if type(item) in _PLAIN:
            continue
        if isinstance(item, Inert):
            waiting += [item.type_name, *item.args, *item.fields.items()]
        elif isinstance(item, _OURS) or type(item).__module__.startswith("ckptstore."):
            if isinstance(item, tuple):
                waiting += item
        elif type(item) in (list, tuple):
            waiting += item
        elif type(item) is dict:
            waiting += [*item, *item.values()]
        else:
            raise AssertionError(f"an object of type {type(item)} came out")
