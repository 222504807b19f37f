"""The crash filesystem itself: its images are legal, it reaches the bad ones, and a store that does not sync is found out."""

from __future__ import annotations

import random
from errno import ENOSPC
from pathlib import Path

import pytest

from ckptstore.testing.crashfs import CrashVfs, write_image
from tests.crash.programs import assert_prefix, opened, program, run, seen, states


def _write(fs: CrashVfs, path: Path, data: bytes, *, sync: bool) -> None:
    fd = fs.open(path, create=True)
    fs.pwrite(fd, data, 0)
    if sync:
        fs.fdatasync(fd)
    fs.close(fd)


def test_what_was_synced_is_in_every_image(tmp_path: Path) -> None:
    fs = CrashVfs(tmp_path)
    _write(fs, tmp_path / "file", b"a" * 700, sync=True)
    fs.sync_folder(tmp_path)
    fd = fs.open(tmp_path / "file")
    fs.pwrite(fd, b"b" * 2000, 700)
    rng = random.Random(1)
    images = [fs.image(rng)["file"] for _ in range(200)]
    assert all(image is not None and image[:700] == b"a" * 700 for image in images)
    tails = {bytes(image[700:]) for image in images if image is not None}
    assert b"" in tails  # the size did not survive
    assert b"b" * 2000 in tails  # all of it did
    assert bytes(2000) in tails or any(tail.startswith(bytes(324)) for tail in tails)  # zeros
    assert any(set(tail) - set(b"b\0") for tail in tails)  # garbage
    fs.close(fd)


def test_a_truncated_tail_may_come_back_until_it_is_synced(tmp_path: Path) -> None:
    fs = CrashVfs(tmp_path)
    _write(fs, tmp_path / "file", b"a" * 3000, sync=True)
    fs.sync_folder(tmp_path)
    fd = fs.open(tmp_path / "file")
    fs.truncate(fd, 100)
    rng = random.Random(2)
    sizes = {len(fs.image(rng)["file"] or b"") for _ in range(100)}
    assert {100, 3000} <= sizes
    assert any(100 < size < 3000 for size in sizes)
    fs.fdatasync(fd)
    assert {len(fs.image(rng)["file"] or b"") for _ in range(20)} == {100}
    fs.close(fd)


def test_of_unsynced_renames_the_first_happened(tmp_path: Path) -> None:
    fs = CrashVfs(tmp_path)
    _write(fs, tmp_path / "one.tmp", b"1", sync=True)
    fs.rename(tmp_path / "one.tmp", tmp_path / "one")
    _write(fs, tmp_path / "two", b"2", sync=True)
    fs.unlink(tmp_path / "one")
    rng = random.Random(3)
    names = {tuple(sorted(fs.image(rng))) for _ in range(100)}
    assert names == {(), ("one.tmp",), ("one",), ("one", "two"), ("two",)}
    fs.sync_folder(tmp_path)
    assert fs.image(rng) == fs.image(rng, "lost") == fs.image(rng, "live") == {"two": b"2"}


def test_the_same_seed_gives_the_same_image(tmp_path: Path) -> None:
    fs = CrashVfs(tmp_path / "store")
    with opened(tmp_path / "store", "process", fs) as store:
        for call in program(1, 8):
            run(store, call)
        assert fs.image(random.Random(5)) == fs.image(random.Random(5))
        live = fs.image(random.Random(5), "live")
        assert {name: data for name, data in live.items() if data is not None and not name.startswith("index")} == {
            str(path.relative_to(tmp_path / "store")): path.read_bytes()
            for path in (tmp_path / "store").rglob("*")
            if path.is_file() and path.name != "LOCK" and "index" not in path.parts
        }


def test_faults_come_when_they_are_asked_for(tmp_path: Path) -> None:
    fs = CrashVfs(tmp_path)
    fd = fs.open(tmp_path / "file", create=True)
    fs.fail("pwrite", ENOSPC, path="fi*", after=1, times=2, short=3)
    fs.pwrite(fd, b"first", 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space") as caught:
            fs.pwrite(fd, b"second", 5)
        assert caught.value.errno == ENOSPC
    assert (tmp_path / "file").read_bytes() == b"firstsec"
    fs.pwrite(fd, b"second", 5)
    fs.fail("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        fs.fdatasync(fd)
    fs.fdatasync(fd)  # the kernel reports an error once
    assert fs.image(random.Random(1), "lost") == {}
    fs.sync_folder(tmp_path)
    assert fs.image(random.Random(1), "lost") == {"file": b""}
    fs.close(fd)


class _Lying(CrashVfs):
    """A disk on which fdatasync of a segment does nothing once the segment has its name."""

    def fdatasync(self, fd: int) -> None:
        if not self._open[fd][0].endswith(".seg"):
            super().fdatasync(fd)


def test_a_store_on_a_lying_disk_is_found_out(tmp_path: Path) -> None:
    """The check has teeth: without fdatasync, acknowledged calls are missing from an image."""
    calls = program(4, 6)
    fs = _Lying(tmp_path / "store")
    with opened(tmp_path / "store", "commit", fs) as store:
        for call in calls:
            run(store, call)
        image = fs.image(random.Random(1), "lost")
    with pytest.raises(AssertionError), opened(write_image(image, tmp_path / "cut")) as store:
        assert_prefix(seen(store), states(calls), len(calls), len(calls))
