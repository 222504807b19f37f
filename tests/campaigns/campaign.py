"""Runs the campaigns and writes what they found: docs/results/survival.json and the tables of docs/survival.md.

python -m tests.campaigns.campaign [--rounds N] [--seed N]

A round is one kill of a process alone and one crowd for each fault point, some scenes of power cuts, and a share of the bits to flip.

Every failure is printed with the seed that repeats it, and then nothing is written.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import platform
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.campaigns import page
from tests.campaigns.crowd_rounds import Player
from tests.campaigns.cuts import BETWEEN, SCENES
from tests.campaigns.flips import every, flipped
from tests.campaigns.kills import killed
from tests.campaigns.points import rows
from tests.campaigns.samples import samples
from tests.crash.killing import Killer

Found = dict[str, Any]
_SCENES_A_ROUND = 4
"""Power cuts take no process: more of them cost little."""


class Failed:
    """Failures of one campaign, each with what repeats it."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def tried(self, what: str, work: Callable[[Path], Any], otherwise: Any) -> Any:
        """What a piece of work gives, in a folder of its own."""
        try:
            with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
                return work(Path(folder))
        except Exception:
            self.texts.append(f"{what}\n{traceback.format_exc()}")
            print(self.texts[-1], file=sys.stderr, flush=True)
            return otherwise


def kills(rounds: int, seed: int) -> Found:
    """One process at a time, at every point."""
    failed, counts, killer = Failed(), Counter[str](), Killer()
    for row in rows():
        for number in range(seed, seed + rounds):
            counts[row] += failed.tried(f"kill at {row}, seed {number}", lambda folder: killed(killer, folder, row, number), False)  # noqa: B023
    killer.close()
    return {"kills": dict(counts), "failed": failed.texts}


def crowds(rounds: int, seed: int) -> Found:
    """Four writers, two readers, a compactor and a keeper of backups, at every point."""
    failed, counts, player = Failed(), Counter[str](), Player()
    totals: Counter[str] = Counter()

    def played(folder: Path, row: str, number: int) -> None:
        crowded = player.play(folder, row, number)
        assert not crowded.problems, "\n".join(crowded.problems)
        counts[row] += crowded.killed
        totals.update(rounds=1, calls=crowded.calls, reads=crowded.reads, compactions=crowded.compactions, backups=crowded.backups)

    for row in rows():
        for number in range(seed, seed + rounds):
            failed.tried(f"crowd at {row}, seed {number}", lambda folder: played(folder, row, number), None)  # noqa: B023
    player.close()
    return {"crowd_kills": dict(counts), "crowd": dict(totals), "failed": failed.texts}


def power_cuts(rounds: int, seed: int) -> Found:
    """Images of everything that a store does."""
    failed, counts = Failed(), Counter[str]()
    for scene in SCENES:
        for number in range(seed, seed + _SCENES_A_ROUND * rounds):
            counts += failed.tried(f"{scene.__name__}, seed {number}", lambda folder: scene(folder, number), Counter())  # noqa: B023
    return {"images": dict(counts), "failed": failed.texts}


def bit_flips(rounds: int, seed: int) -> Found:
    """Flips of one bit in every file of stores of every kind."""
    failed, counts = Failed(), dict[str, dict[str, Counter[str]]]()
    index = ("lmdb", "sqlite")[seed % 2]
    step = max(1, 200 // rounds)
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        for sample in samples(Path(folder), seed, index):
            for flip in every(sample, random.Random(seed), step):
                outcome = failed.tried(f"{sample.name}: {flip}, seed {seed}", lambda folder: flipped(sample, flip, folder), None)  # noqa: B023
                if outcome is not None:
                    counts.setdefault(sample.name, {}).setdefault(outcome.kind, Counter())[outcome.outcome] += 1
    return {
        "flips": {name: {kind: dict(found) for kind, found in sorted(kinds.items())} for name, kinds in counts.items()},
        "failed": failed.texts,
    }


def campaign(rounds: int, seed: int) -> Found:
    """Run everything, two parts at a time."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), initializer=logging.disable) as pool:
        parts = [pool.submit(part, rounds, seed) for part in (crowds, power_cuts, bit_flips, kills)]
        found: Found = {"failed": []}
        for part in parts:
            done = part.result()
            found["failed"] += done.pop("failed")
            found |= done
    return found


def table(found: Found, rounds: int, seed: int) -> Found:
    """What is kept of a campaign."""
    return {
        "seed": seed,
        "rounds": rounds,
        "python": platform.python_version(),
        "system": platform.system(),
        "points": {
            row: {
                "kills": found["kills"].get(row, 0),
                "crowd": found["crowd_kills"].get(row, 0),
                "images": found["images"].get(row, 0),
            }
            for row in rows()
        },
        "between": found["images"].get(BETWEEN, 0),
        "crowd": found["crowd"],
        "flips": found["flips"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.rounds} rounds", flush=True)
    found = campaign(given.rounds, given.seed)
    if found["failed"]:
        sys.exit(f"{len(found['failed'])} failed; nothing was written")
    page.write(table(found, given.rounds, given.seed))


if __name__ == "__main__":
    main()
