"""The two kinds of index: one ordered map with two makers, and the rules of which one a store has."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptstore
from ckptstore import Store
from ckptstore.errors import IndexUnusableError, InvalidArgumentError, StorageIOError
from ckptstore.storage.catalog import Kv
from ckptstore.storage.local.index import IndexEnv, IndexFullError, IndexIOError
from ckptstore.storage.local.index.kinds import KINDS
from tests.contract.calls import everything, logical_view, open_at, put, write

BOTH = sorted(KINDS)


class Refuse(Exception):
    """Raised inside a transaction."""


@pytest.fixture(params=BOTH)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IndexEnv]:
    made = KINDS[request.param](tmp_path / "index")
    yield made
    made.close()


def _all(index: IndexEnv) -> dict[bytes, bytes]:
    with index.read() as kv:
        return dict(kv.scan(b"k"))


# -- the map ---------------------------------------------------------------------------------------------------------------


def test_what_is_committed_is_read_and_what_is_aborted_is_not(index: IndexEnv) -> None:
    with index.write() as kv:
        kv.put(b"k1", b"one")
        kv.put(b"k2", b"")
        assert kv.get(b"k1") == b"one"

    def refused(kv: Kv) -> None:
        kv.put(b"k1", b"other")
        kv.delete(b"k2")
        raise Refuse

    with pytest.raises(Refuse), index.write() as kv:
        refused(kv)
    assert _all(index) == {b"k1": b"one", b"k2": b""}
    with index.write() as kv:
        kv.delete(b"k1")
        kv.delete(b"never there")
    assert _all(index) == {b"k2": b""}


def test_a_reader_sees_one_state_while_a_writer_goes_on(index: IndexEnv) -> None:
    with index.write() as kv:
        kv.put(b"k", b"0")
    with index.read() as before:
        assert before.get(b"k") == b"0"
        for number in range(200):
            with index.write() as kv:
                kv.put(b"k", str(number).encode())
                kv.put(f"k{number}".encode(), bytes(500))
        assert before.get(b"k") == b"0"
        assert list(before.scan(b"k")) == [(b"k", b"0")]
    assert len(_all(index)) == 201


def test_readers_in_many_threads(index: IndexEnv) -> None:
    """Every one of them sees whole transactions; more of them than connections are kept."""
    problems: list[object] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with index.read() as kv:
                first = kv.get(b"k1")
                if first != kv.get(b"k2"):
                    problems.append(first)

    readers = [threading.Thread(target=read) for _ in range(12)]
    for reader in readers:
        reader.start()
    for number in range(150):
        with index.write() as kv:
            kv.put(b"k1", str(number).encode())
            kv.put(b"k2", str(number).encode())
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []


def test_a_packed_copy_and_a_reopened_index_hold_the_same(index: IndexEnv, tmp_path: Path) -> None:
    for start in range(0, 3000, 500):
        with index.write() as kv:
            for number in range(start, start + 500):
                kv.put(b"k" + (number * 7919 % 3000).to_bytes(4, "big"), bytes(30))
    expected = _all(index)
    assert len(expected) == 3000
    packed = index.copy_packed(tmp_path / "packed")
    assert _all(packed) == expected
    with packed.read() as before:
        assert before.get(b"k new") is None
        with packed.write() as kv:
            kv.put(b"k new", b"")
        assert before.get(b"k new") is None
    expected[b"k new"] = b""
    with index.write() as kv:
        kv.put(b"k new", b"")
    for env in (packed, index):
        env.sync()
        env.close()
    assert packed.data_file().stat().st_size < index.data_file().stat().st_size
    for folder in (tmp_path / "packed", tmp_path / "index"):
        again = KINDS[index.kind](folder)
        assert _all(again) == expected
        again.close()


def test_an_index_that_is_synced_stands_in_its_data_file_alone(index: IndexEnv, tmp_path: Path) -> None:
    """Or a write-ahead log of before could come back after a power cut, over a data file that is newer."""
    with index.write() as kv:
        for number in range(500):
            kv.put(f"k{number}".encode(), b"value")
    expected = _all(index)
    index.sync()
    (tmp_path / "copy").mkdir()
    shutil.copy(index.data_file(), tmp_path / "copy")
    copy = KINDS[index.kind](tmp_path / "copy")
    assert _all(copy) == expected
    copy.close()
    assert _all(index) == expected


@pytest.mark.parametrize("kind", BOTH)
def test_a_damaged_file_is_an_error_of_the_store_and_not_of_a_library(tmp_path: Path, kind: str) -> None:
    index = KINDS[kind](tmp_path / "index")
    with index.write() as kv:
        kv.put(b"k", b"v")
    index.sync()
    index.close()
    index.data_file().write_bytes(b"\x17" * index.data_file().stat().st_size)
    with pytest.raises(IndexIOError, match="can be made anew from the log"):
        KINDS[kind](tmp_path / "index")


@pytest.mark.parametrize(("kind", "raised"), [("lmdb", lmdb.CorruptedError), ("sqlite", apsw.CorruptError)])
@pytest.mark.parametrize("transaction", ["read", "write"])
def test_an_error_inside_a_transaction_is_translated(tmp_path: Path, kind: str, raised: type[Exception], transaction: str) -> None:
    index = KINDS[kind](tmp_path / "index")
    with pytest.raises(StorageIOError, match=r"the index failed: .*broken"), getattr(index, transaction)():
        raise raised("broken")
    with index.write() as kv:
        kv.put(b"k", b"v")
    assert _all(index) == {b"k": b"v"}
    index.close()


KEYS = st.binary(max_size=2).map(lambda tail: b"k" + tail)
STEPS = st.lists(st.tuples(st.sampled_from(["put", "delete", "next", "next"]), KEYS), max_size=12)


class _Model:
    """What a scan gives when the map is changed between its steps: each step finds the next key of the map as it is then."""

    def __init__(self, items: dict[bytes, bytes]) -> None:
        self.items = dict(items)

    def scan(self, before: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        last: bytes | None = before if reverse else None
        while True:
            if reverse:
                keys = [key for key in self.items if last is None or key < last]
            else:
                keys = [key for key in self.items if last is None or key > last]
            if not keys:
                return
            last = max(keys) if reverse else min(keys)
            yield last, self.items[last]


@pytest.fixture(scope="module", params=BOTH)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexEnv]:
    """One index for all examples: each is rolled back."""
    made = KINDS[request.param](tmp_path_factory.mktemp("shared") / "index")
    yield made
    made.close()


@given(
    items=st.dictionaries(KEYS, st.binary(max_size=3), max_size=40),
    steps=STEPS,
    before=st.none() | KEYS,
    reverse=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_scan_sees_what_its_own_transaction_changes(
    shared: IndexEnv, items: dict[bytes, bytes], steps: Any, before: bytes | None, reverse: bool
) -> None:
    def changed(kv: Kv) -> None:
        for key, _ in list(kv.scan(b"k")):
            kv.delete(key)
        for key, value in items.items():
            kv.put(key, value)
        kv.put(b"j", b"not under the prefix")
        kv.put(b"l", b"not under the prefix")
        model = _Model(items)
        scan, expected = kv.scan(b"k", before=before, reverse=reverse), model.scan(before, reverse)
        for step, key in steps:
            if step == "put":
                kv.put(key, b"new")
                model.items[key] = b"new"
            elif step == "delete":
                kv.delete(key)
                model.items.pop(key, None)
            else:
                assert next(scan, None) == next(expected, None)
        assert list(scan) == list(expected)

        raise Refuse

    with pytest.raises(Refuse), shared.write() as kv:
        changed(kv)


def test_long_scans_give_every_key_once(index: IndexEnv) -> None:
    keys = [b"k" + number.to_bytes(4, "big") for number in range(5000)]
    try:
        with index.write() as kv:
            for key in keys:
                kv.put(key, key)
    except IndexFullError:
        pytest.fail("the first map is large enough for this")
    with index.read() as kv:
        assert [key for key, _ in kv.scan(b"k")] == keys
        assert [key for key, _ in kv.scan(b"k", reverse=True)] == keys[::-1]
        assert [key for key, _ in kv.scan(b"k", before=keys[700], reverse=True)] == keys[699::-1]
        assert list(kv.between(keys[3], keys[4000])) == [(key, key) for key in keys[3:4000]]
        # Other keys may be looked up meanwhile, and it may be left in the middle.
        both = zip(kv.between(b"k", b"l"), kv.between(keys[1], b"l"), strict=False)
        assert [(one[0], two[0]) for one, two in both if kv.get(one[0])] == list(pairwise(keys))
        assert next(iter(kv.between(b"k", b"l"))) == (keys[0], keys[0])
        assert list(kv.between(b"l", b"m")) == []


# -- which kind a store has ----------------------------------------------------------------------------------------------------


def _kind(path: Path) -> str:
    """What the index of a closed store is, by the file that is there."""
    owner = json.loads((path / "index" / "OWNER").read_text())
    found = [kind for kind in BOTH if (path / "index" / f"{owner['epoch']:08}" / KINDS[kind].data_name).exists()]
    assert found == [owner["kind"]]
    return found[0]


def _use(path: Path, **options: Any) -> str:
    with open_at(path, **options):
        pass
    return _kind(path)


def test_a_store_keeps_the_kind_it_was_given(tmp_path: Path) -> None:
    assert _use(tmp_path / "a") == "lmdb"
    assert _use(tmp_path / "a") == "lmdb"
    assert _use(tmp_path / "b", index="sqlite") == "sqlite"
    assert _use(tmp_path / "b") == "sqlite"
    assert _use(tmp_path / "b", read_only=True) == "sqlite"
    assert _use(tmp_path / "c", index="lmdb") == "lmdb"


def test_another_kind_is_built_by_whoever_is_alone_and_answers_the_same(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_at(path) as store:
        for number in range(20):
            put(store, str(number), str(number - 1) if number else None, {"m": [number] * 40})
            write(store, str(number), number)
        store.copy("t", "u")
        store.prune("t")
        answers, keys = everything(store), logical_view(store)
    for asked, kind in [("sqlite", "sqlite"), (None, "sqlite"), ("lmdb", "lmdb"), (None, "lmdb"), ("sqlite", "sqlite")]:
        with open_at(path, **({} if asked is None else {"index": asked})) as store:
            assert everything(store) == answers
            assert logical_view(store) == keys
        assert _kind(path) == kind


@pytest.mark.parametrize("kind", BOTH)
def test_a_session_that_only_reads_leaves_the_index_as_it_is(tmp_path: Path, kind: str) -> None:
    """Or CLEAN, which stays while nothing is written, would vouch for something else."""
    path = tmp_path / "s"
    with open_at(path, index=kind) as store:
        put(store, "1", None, {"m": 1})
        answers = everything(store)
    before = {file: file.read_bytes() for file in (path / "index").rglob("data*")}
    with open_at(path) as store:
        assert everything(store) == answers
    assert {file: file.read_bytes() for file in (path / "index").rglob("data*")} == before


def _lose_owner(path: Path) -> None:
    """As a power cut soon after an open, or a kill in the middle of a rebuild, leaves it."""
    (path / "index" / "OWNER").unlink()


def _lose_evidence(path: Path) -> None:
    owner = json.loads((path / "index" / "OWNER").read_text())
    (path / "index" / "OWNER").write_text(json.dumps({**owner, "boot": "another boot"}))
    (path / "index" / "CLEAN").unlink(missing_ok=True)


@pytest.mark.parametrize("lose", [_lose_owner, _lose_evidence])
def test_the_kind_is_kept_through_a_rebuild(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    path = tmp_path / "s"
    with open_at(path, index="sqlite") as store:
        put(store, "1", None, {"m": 1})
        answers = everything(store)
    lose(path)
    with open_at(path) as store:
        assert everything(store) == answers
    assert _kind(path) == "sqlite"


def test_an_index_deleted_by_hand_comes_back_as_the_default_kind(tmp_path: Path) -> None:
    assert _use(tmp_path / "s", index="sqlite") == "sqlite"
    shutil.rmtree(tmp_path / "s" / "index")
    assert _use(tmp_path / "s") == "lmdb"


@pytest.mark.parametrize("content", [b"", b"mysql\n", b"\xff\xfe"])
def test_a_kept_kind_that_does_not_read_is_the_default(tmp_path: Path, content: bytes) -> None:
    assert _use(tmp_path / "s", index="sqlite") == "sqlite"
    (tmp_path / "s" / "index" / "KIND").write_bytes(content)
    assert _use(tmp_path / "s") == "lmdb"


def test_a_kind_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"index='mysql': .*'lmdb' or 'sqlite'"):
        ckptstore.open(tmp_path / "s", index="mysql")
    assert not (tmp_path / "s").exists()


def test_another_kind_is_refused_while_this_process_has_the_store_open(tmp_path: Path) -> None:
    with open_at(tmp_path / "s", index="lmdb"), pytest.raises(IndexUnusableError, match="index='lmdb'"):
        open_at(tmp_path / "s", index="sqlite").close()


def test_a_store_whose_folder_cannot_be_written_is_read_through_either_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    with open_at(path) as store:
        put(store, "1", None, {"m": 1})
        answers = everything(store)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "LOCK"}
    monkeypatch.setattr("os.access", lambda *args: False)
    for kind in BOTH:
        found: Store
        with open_at(path, read_only=True, index=kind) as found:
            assert everything(found) == answers
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "LOCK"} == before
