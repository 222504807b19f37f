"""Long work says how far it is: never backwards within a part, never beyond the end, and all of it at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import ckptstore
from ckptstore import LaneName, RetentionPolicy
from ckptstore.inspect.stats import store_report
from ckptstore.inspect.threads import threads_report
from tests.contract.calls import put, write


class Told:
    """What a caller was told, part by part."""

    def __init__(self) -> None:
        self.parts: list[list[tuple[int, int]]] = []

    def __call__(self, done: int, total: int) -> None:
        if not self.parts or self.parts[-1][-1][1] != total or done < self.parts[-1][-1][0]:
            self.parts.append([])
        self.parts[-1].append((done, total))

    def check(self, *totals: int) -> None:
        """These are the ends of the parts, each reached."""
        assert [part[-1] for part in self.parts] == [(total, total) for total in totals]
        assert all(0 <= done <= total for part in self.parts for done, total in part)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with ckptstore.open(tmp_path / "s", durability="process", auto_compact=False, segment_bytes=32768) as store:
        for at in range(300):
            lane = LaneName(f"t{at % 3}")
            put(store, f"{at}", f"{at - 3}" if at >= 3 else None, {"m": f"{at} " * 30}, lane=lane)
            write(store, f"{at}", at, lane=lane)
    return tmp_path / "s"


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "segments").glob("*.seg"))


def test_verify_tells_of_bytes_and_then_of_checkpoints(folder: Path) -> None:
    told = Told()
    assert ckptstore.verify(folder, progress=told).ok
    read, checked = told.parts
    assert all(done <= total == log_bytes(folder) for done, total in read)
    assert read[-1][0] > log_bytes(folder) // 2
    assert checked[-1] == (300, 300)
    assert len(read) > 1
    assert len(checked) > 3


def test_salvage_tells_of_bytes_and_then_of_checkpoints(folder: Path, tmp_path: Path) -> None:
    told = Told()
    ckptstore.salvage(folder, tmp_path / "saved", progress=told)
    assert [part[-1][1] for part in told.parts] == [log_bytes(folder), 300]
    assert told.parts[1] == [(done, 300) for done in range(1, 301)]


def test_backup_and_restore_tell_of_bytes(folder: Path, tmp_path: Path) -> None:
    first, again, restored = Told(), Told(), Told()
    size = ckptstore.backup(folder, tmp_path / "b", progress=first).bytes
    first.check(size)
    assert len(first.parts[0]) > 3
    with ckptstore.open(folder) as store:
        put(store, "new", lane=LaneName("t0"))
        more = store.backup(tmp_path / "b", progress=again)
    assert more.copied_bytes < size
    again.check(more.bytes)
    ckptstore.restore(tmp_path / "b", tmp_path / "r", progress=restored)
    restored.check(more.bytes)


def test_prune_tells_of_threads_and_compact_of_the_log(folder: Path) -> None:
    pruned, shrunk, compacted = Told(), Told(), Told()
    with ckptstore.open(folder, auto_compact=False) as store:
        store.prune(RetentionPolicy(keep_last=1), dry_run=True, progress=pruned)
        pruned.check(3)
        store.prune(RetentionPolicy(max_bytes=0), progress=shrunk)
        shrunk.check(3, 3)
        last = store.stats().last_lsn
        store.compact(progress=compacted)
    compacted.check(last + 1)
    assert len(compacted.parts[0]) > 2


def test_inspect_tells_of_the_log_and_threads_of_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptstore.inspect.stats._STRETCH", 100)
    monkeypatch.setattr("ckptstore.inspect.threads._TOLD_EVERY", 1)
    read, listed = Told(), Told()
    last = store_report(folder, progress=read).last_lsn
    assert read.parts == [[(at, last) for at in range(0, last, 100)]]
    threads_report(folder, progress=listed)
    listed.check(3)


def test_the_async_twins_tell_too(folder: Path, tmp_path: Path) -> None:
    async def main() -> list[Told]:
        tolds = [Told() for _ in range(4)]
        async with ckptstore.open(folder, auto_compact=False) as store:
            await store.averify(progress=tolds[0])
            await store.abackup(tmp_path / "b", progress=tolds[1])
            await store.aprune(RetentionPolicy(keep_last=1), progress=tolds[2])
            await store.acompact(progress=tolds[3])
        return tolds

    assert all(told.parts for told in asyncio.run(main()))


def test_what_it_raises_ends_the_work(folder: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        ckptstore.verify(folder, progress=stop)
    with pytest.raises(Enough):
        ckptstore.backup(folder, tmp_path / "b", progress=stop)
    with ckptstore.open(folder) as store:
        store.delete("t1")
        with pytest.raises(Enough):
            store.compact(progress=stop)
    assert not (tmp_path / "b" / "BACKUP").exists()
    assert ckptstore.verify(folder).ok
