"""`make mutants`: break the code behind each promise of docs/guarantees.md, and see that the tests which it names notice.

    python -m tests.mutants.run              all of them
    python -m tests.mutants.run NAME ...     only these

What became of each is kept in docs/results/mutants.json and in the table of docs/mutants.md.
Ends with 1 when a mutant survives, does not end in time or cannot be run, or when a test fails on the code as it is.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutants import results
from tests.mutants.harness import LONGEST, Ran, check_imports, copy_tree, run_tests
from tests.mutants.mutant import Mutant
from tests.mutants.promises import ROOT, Promise, promise_of
from tests.mutants.results import Result
from tests.mutants.table import MUTANTS


class Due(NamedTuple):
    """A mutant, and the promise that it breaks."""

    mutant: Mutant
    promise: Promise


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the code on purpose and see that tests notice.")
    parser.add_argument("names", nargs="*", help="only these mutants")
    parser.add_argument("-j", type=int, default=2, dest="jobs", help="so many at once")
    parser.add_argument("-v", action="store_true", dest="verbose", help="print what the tests said")
    chosen = parser.parse_args()
    due = [Due(mutant, promise_of(words)) for words, mutants in MUTANTS.items() for mutant in mutants]
    unknown = set(chosen.names) - {mutant.name for mutant, _ in due}
    if unknown:
        parser.error(f"no such mutants: {', '.join(sorted(unknown))}")
    due = [item for item in due if not chosen.names or item.mutant.name in chosen.names]
    with tempfile.TemporaryDirectory(prefix="ckptstore-mutants-") as folder:
        template = Path(folder) / "control"
        copy_tree(ROOT, template)
        check_imports(template)
        if not _passes(template, due):
            return 1
        found = _all(template, due, chosen.jobs, chosen.verbose)
    bad = [result for result in found if result.verdict != "killed"]
    print(f"{len(found)} mutants, {len(found) - len(bad)} killed" + "".join(f"\n  {item.verdict}: {item.name}" for item in bad))
    results.write(found)
    return 1 if bad else 0


def _passes(template: Path, due: Sequence[Due]) -> bool:
    """Run all tests in question on the code as it is: `killed` means nothing where one of them fails, or does not run."""
    tests: dict[str, Any] = {repr(test): test for mutant, promise in due for test in mutant.selection(promise)}
    ran = run_tests(template, list(tests.values()), first_failure=False, longest=3 * LONGEST)
    if ran.failed or ran.skipped or ran.unknown or ran.timed_out or not ran.passed:
        print(ran.output)
        print(f"control: failed {ran.failed}, skipped {ran.skipped}, not there {ran.unknown}, timed out {ran.timed_out}")
        return False
    print(f"control: {len(ran.passed)} tests pass on the code as it is, {ran.seconds:.0f} s", flush=True)
    return True


def _all(template: Path, due: Sequence[Due], jobs: int, verbose: bool) -> list[Result]:
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(run_one, template, item): item for item in due}
        for future in as_completed(running):
            mutant = running[future].mutant
            result, ran = future.result()
            print(f"{result.verdict:9} {ran.seconds:5.1f} s  {mutant.name}  {result.by}", flush=True)
            if verbose or result.verdict in ("broken", "timed out"):
                print(ran.output)
        found = {running[future].mutant.name: future.result()[0] for future in running}
    return [found[item.mutant.name] for item in due]


def run_one(template: Path, due: Due) -> tuple[Result, Ran]:
    """Run the tests of one mutant in a copy of its own."""
    mutant, promise = due
    tree = template.with_name(mutant.name)
    copy_tree(template, tree)
    try:
        mutant.apply(tree)
        ran = run_tests(tree, mutant.selection(promise), first_failure=True)
    finally:
        shutil.rmtree(tree)
    return Result(mutant.name, mutant.digest, _verdict(ran), ran.failed[0] if ran.failed else ""), ran


def _verdict(ran: Ran) -> str:
    if ran.failed:
        return "killed"
    if ran.timed_out:
        return "timed out"
    return "survived" if ran.passed and not ran.unknown and not ran.skipped else "broken"


if __name__ == "__main__":
    sys.exit(main())
