"""A damaged index may say what it likes. SQLite raises where it meets damage; LMDB may end the process: one that was cut is not read."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ckptstore
from ckptstore import channels
from ckptstore.errors import StorageIOError
from ckptstore.storage.local.index.kinds import KINDS

ROOT = Path(__file__).resolve().parents[2]
INDEXES = ["lmdb", "sqlite"]

USE = """
import sys
import ckptstore
from ckptstore import channels
for path in sys.argv[1:]:
    try:
        with ckptstore.open(path, lock_timeout=3, auto_compact=False) as store:
            for info in store.threads():
                store.thread(info.thread).state()
            list(store.list())
            store.thread("new", schema={"m": channels.append()}).step({"m": [1]})
    except Exception:  # an index that lies is outside what is promised
        pass
"""


@pytest.fixture
def store(tmp_path: Path, index: str) -> Path:
    """A closed store; CLEAN vouches for its index."""
    with ckptstore.open(tmp_path / "store", durability="process", index=index) as opened:
        for name in range(40):
            thread = opened.thread(f"t{name}", schema={"m": channels.append()})
            for number in range(6):
                thread.step({"m": [number]})
    return tmp_path / "store"


def data_file(store: Path, index: str) -> Path:
    [found] = (store / "index").glob(f"*/{KINDS[index].data_name}")
    return found


def damaged(data: bytes, seed: int) -> bytes:
    rng = random.Random(seed)
    page = rng.randrange(len(data) // 4096) * 4096
    changed = bytearray(data)
    how = seed % 4
    if how == 0:
        return data[: rng.randrange(len(data))]
    if how == 1:
        changed[page : page + 4096] = bytes(4096)
    elif how == 2:
        changed[page : page + 4096] = rng.randbytes(4096)
    else:
        for _ in range(rng.choice((1, 5, 50))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def test_an_lmdb_index_that_is_cut_anywhere_does_not_end_the_process(tmp_path: Path) -> None:
    with ckptstore.open(tmp_path / "store", durability="process") as opened:
        for number in range(300):
            opened.thread(f"t{number}", schema={"m": channels.append()}).step({"m": [number]})
    paths = []
    rng = random.Random()
    pages = data_file(tmp_path / "store", "lmdb").stat().st_size // 4096
    for page in rng.sample(range(pages), 24):
        cut = page * 4096 + rng.choice((0, rng.randrange(4096)))
        path = tmp_path / f"cut at {cut}"
        shutil.copytree(tmp_path / "store", path)
        os.truncate(data_file(path, "lmdb"), cut)
        paths.append(str(path))
    ended = subprocess.run([sys.executable, "-c", USE, *paths], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr) == (0, ""), paths


@pytest.mark.parametrize("index", ["sqlite"])
def test_a_damaged_sqlite_index_does_not_end_the_process(store: Path, tmp_path: Path, index: str) -> None:
    paths = []
    for seed in range(24):
        path = tmp_path / f"damaged {seed}"
        shutil.copytree(store, path)
        file = data_file(path, index)
        file.write_bytes(damaged(file.read_bytes(), seed))
        paths.append(str(path))
    ended = subprocess.run([sys.executable, "-c", USE, *paths], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("index", ["lmdb"])
def test_an_index_whose_end_is_missing_is_built_anew(store: Path, index: str) -> None:
    """Read where the file ends, the map would kill the process."""
    file = data_file(store, index)
    file.write_bytes(file.read_bytes()[:8192])
    assert "the end of the index is missing" in ckptstore.verify(store).index_state
    with ckptstore.open(store) as opened:
        assert len(list(opened.threads())) == 40


@pytest.mark.parametrize("index", INDEXES)
def test_a_view_that_cannot_begin_leaves_no_transaction_open(store: Path, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else closing would wait for it."""
    with ckptstore.open(store) as opened:
        engine = opened._storage._engine  # type: ignore[attr-defined]
        reading = engine._index.read()
        entered, left = [], []

        class Reading:
            def __enter__(self) -> object:
                entered.append(1)
                reading.__enter__()
                return None  # a map that fails at the first question

            def __exit__(self, *error: object) -> None:
                left.append(error[0])
                reading.__exit__(None, None, None)

        monkeypatch.setattr(engine._index, "read", Reading, raising=False)
        with pytest.raises(AttributeError):
            opened.get(ckptstore.LaneName("t1"))
        assert (len(entered), left) == (1, [AttributeError])


@pytest.mark.parametrize("index", ["sqlite"])
def test_an_error_of_the_library_is_an_error_of_ours(store: Path, tmp_path: Path, index: str) -> None:
    """Wherever in a read it is met."""
    data = data_file(store, index).read_bytes()
    said = 0
    for page in range(2, min(12, len(data) // 4096)):
        path = tmp_path / f"damaged {page}"
        shutil.copytree(store, path)
        data_file(path, index).write_bytes(data[: page * 4096] + b"\x05" * 4096 + data[page * 4096 + 4096 :])
        try:
            with ckptstore.open(path, read_only=True) as opened:
                list(opened.threads())
        except StorageIOError:
            said += 1
    assert said
