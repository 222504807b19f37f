"""The long run of the state machine, behind `make fuzz`: prints what it did, and writes what passed to docs/results/fuzz.json.

python -m tests.model.fuzz --seed 7 --steps 20000 --only lmdb
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from pathlib import Path

from ckptstore.testing.calls import Driver
from ckptstore.testing.engine import StoreDriver
from ckptstore.testing.machine import SaverMachine, campaign

RESULT = Path(__file__).resolve().parents[2] / "docs" / "results" / "fuzz.json"
STEPS = 20_000


class Memory(SaverMachine):
    def driver(self, variant: int) -> Driver:
        return StoreDriver()


class Lmdb(SaverMachine):
    def driver(self, variant: int) -> Driver:
        return StoreDriver("lmdb", small=variant % 2 == 1, handles=1 + variant // 2)


class Sqlite(SaverMachine):
    def driver(self, variant: int) -> Driver:
        return StoreDriver("sqlite", small=variant % 2 == 1, handles=1 + variant // 2)


ENGINES: dict[str, type[SaverMachine]] = {"memory": Memory, "lmdb": Lmdb, "sqlite": Sqlite}


def main(machines: dict[str, type[SaverMachine]] = ENGINES) -> int:
    parser = argparse.ArgumentParser(description="Random programs against the model.")
    parser.add_argument("--seed", type=int, default=None, help="a random one if missing; it is printed")
    parser.add_argument("--steps", type=int, default=STEPS, help="for each storage and index")
    parser.add_argument("--only", choices=sorted(machines), help="one storage and index")
    given = parser.parse_args()
    logging.getLogger("ckptstore").setLevel(logging.ERROR)  # torn tails are what power cuts leave
    seed = random.randrange(1 << 30) if given.seed is None else given.seed
    failed = 0
    for name, machine in machines.items():
        if given.only in (None, name):
            report = campaign(machine, steps=given.steps, seed=seed)
            found = 0 if report.violation is None else 1
            print(
                f"{name}: {report.steps} steps, {report.examples} programs, seed {seed}, {report.seconds:.0f} s, {found} violations",
                flush=True,
            )
            if report.violation is not None:
                print(report.violation, flush=True)
            failed += found
            if not found and report.steps >= STEPS:
                _keep(name, {"steps": report.steps, "programs": report.examples, "seed": seed})
    return 1 if failed else 0


def _keep(name: str, figures: dict[str, int]) -> None:
    """Write down what passed, beside what others passed."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps({**known, name: figures}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
