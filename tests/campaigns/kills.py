"""One process killed at one point: what was acknowledged is there, a call is there whole or not at all, and the store goes on."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import ckptstore
from tests.campaigns.points import pattern
from tests.crash.killing import Died, Killer, append_junk, checked, drop_index
from tests.crash.programs import LEVELS, opened, program, run, seen, states

_CUTTING = ("torn:", "written:torn", "renamed:torn")
_POISONING = ("written:POISON", "renamed:POISON")
_HEALING = ("segment:", "written:segment", "renamed:segment")
_BACKING_UP = ("backup:", "written:BACKUP", "renamed:BACKUP")
_ONCE = (
    *_BACKING_UP,
    "restore:",
    "close:",
    "written:CLEAN",
    "renamed:CLEAN",
    "written:STORE",
    "renamed:STORE",
    "written:KIND",
    "renamed:KIND",
    *_CUTTING,
    *_POISONING,
)


def killed(killer: Killer, folder: Path, row: str, seed: int) -> bool:
    """Kill a process at a point and check what it left.

    The seed chooses level, index and program, and how often the point is passed before. Where it is not passed that often, nobody
    is killed, and False is returned.
    """
    rng = random.Random(f"{row} {seed}")
    store, level, index = folder / "store", rng.choice(LEVELS), rng.choice(("lmdb", "sqlite"))
    # An index is packed at close when it is large, and a compaction needs something that is dead.
    length = 900 if row == "close:packed" else 60 if row.startswith("compact:") else 24
    nth = 1 if row.startswith(_ONCE) else rng.randint(1, 5 if row.startswith(("commit:", "fsync:")) else 2)
    if row.startswith(("restore:", "written:KIND", "renamed:KIND")):
        index = "sqlite"  # the kind of the index is noted where it is another than the default
    first = Died(0, 0, [])
    if row.startswith(_CUTTING):
        first = killer.run(store, "commit", seed=seed, point="commit:appended", nth=rng.randint(2, 8), index=index)
        if rng.random() < 0.5:
            append_junk(store)
            drop_index(store)
    elif row.startswith(_HEALING) and rng.random() < 0.5:
        first = killer.run(store, "commit", seed=seed, fail_fsync=rng.randint(6, 9), index=index)
        nth = 1
    elif row.startswith((*_BACKING_UP, "restore:")):
        first = Died(rng.randint(5, 20), 0, [])
        with opened(store, level, index=index) as source:
            for call in program(seed, length)[: first.acknowledged]:
                run(source, call)
            if row.startswith("restore:") or row == "backup:grown" or rng.random() < 0.7:
                source.backup(folder / "backup")
    fail = rng.randint(6, 9) if row.startswith(_POISONING) else 0
    died = killer.run(
        store,
        "commit" if fail else level,
        seed=seed,
        point=pattern(row),
        nth=nth,
        first=first.acknowledged,
        length=length,
        fail_fsync=fail,
        index=index,
    )
    checked(store, level, seed, died, length)
    _backup_checked(folder, seed, length)
    assert ckptstore.verify(store).problems == []
    return died.status == -signal.SIGKILL


def _backup_checked(folder: Path, seed: int, length: int) -> None:
    """A backup is whole, or is not there; a restored store is whole, or is not there, and can be made then."""
    backup, restored = folder / "backup", folder / "restored"
    if not (backup / "BACKUP").exists():
        assert not restored.exists()
        return
    if not restored.exists():
        ckptstore.restore(backup, restored)
    assert ckptstore.verify(restored).problems == []
    with opened(restored) as store:
        assert seen(store) in states(program(seed, length))
