"""Coverage-guided fuzzing of the decoders: inputs that reach new lines, in a new order, are kept and changed again.

    python -m tests.hostile.fuzzing --seconds 300 --seed 1 --result docs/results/fuzz-bytes.json

Each input has to be answered, or refused with an error of ours, in time, in bounded memory, and without anything that bytes could use to
name code: an import, a pickle, a compilation, a process.
"""

from __future__ import annotations

import argparse
import encodings
import gc
import importlib
import json
import logging
import os
import pkgutil
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import ckptstore
from tests.hostile.mutating import Tree, mutated
from tests.hostile.targets import TARGETS, Target, assert_plain

MEMORY = 1 << 30
"""Address space that the inputs may take, besides what is taken before. A salvage has two stores open, and an index maps 256 MiB."""
SECONDS = 20
"""Of the processor, so that a busy machine is no finding. A few kilobytes take thousandths of one."""

_PACKAGE = Path(ckptstore.__file__).parent
DECODERS = [
    "codec/compression.py",
    "codec/inert.py",
    "codec/names.py",
    "codec/patch.py",
    "codec/records.py",
    "lineage/history.py",
    "lineage/listing.py",
    "lineage/reach.py",
    "lineage/reader.py",
    "lineage/values.py",
    "storage/__init__.py",
    "storage/catalog.py",
    "storage/local/backup.py",
    "storage/local/checking.py",
    "storage/local/format.py",
    "storage/local/frames.py",
    "storage/local/hints.py",
    "storage/local/inspection.py",
    "storage/local/layout.py",
    "storage/local/opening.py",
    "storage/local/rebuild.py",
    "storage/local/recovery.py",
    "storage/local/segment.py",
    "upkeep/checker.py",
    "upkeep/compaction.py",
    "upkeep/salvage.py",
    "upkeep/verify.py",
]
"""Files that read what is in a log; nobody else writes an index."""
_FORBIDDEN = (
    "import",
    "pickle.find_class",
    "exec",
    "compile",
    "marshal.loads",
    "os.system",
    "os.exec",
    "subprocess.Popen",
    "ctypes.dlopen",
)


class HangError(BaseException):
    """An input took too long."""


class Edge(NamedTuple):
    """Two lines of one function that were executed one after the other."""

    code: CodeType
    before: int
    line: int


class Coverage:
    """Which edges an input takes through the decoders."""

    def __init__(self) -> None:
        self._files = {str(_PACKAGE / name): name for name in DECODERS}
        self._codes: dict[CodeType, bool] = {}
        self.seen: set[tuple[CodeType, int, int]] = set()
        self._now: set[tuple[CodeType, int, int]] = set()

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        ours = self._codes.get(code)
        if ours is None:
            ours = self._codes[code] = code.co_filename in self._files
        if not ours:
            return None
        now, last = self._now, 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                now.add((code, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line

    def run(self, work: Callable[[], Any]) -> Any:
        self._now.clear()
        sys.settrace(self._call)
        try:
            return work()
        finally:
            sys.settrace(None)

    def is_new(self) -> bool:
        """Whether the last run took an edge that none took before."""
        known = len(self.seen)
        self.seen |= self._now
        return len(self.seen) > known

    def lines(self) -> dict[str, tuple[int, int]]:
        """Of each decoder: lines reached, and lines there are."""
        reached: dict[str, set[int]] = {name: set() for name in DECODERS}
        for code, _, line in self.seen:
            reached[self._files[code.co_filename]].add(line)
        found = {}
        for path, name in self._files.items():
            found[name] = (len(reached[name]), len(_lines(compile(Path(path).read_text(), path, "exec"))))
        return found


def _lines(module: CodeType) -> set[int]:
    """Lines inside functions."""
    found: set[int] = set()
    for constant in module.co_consts:
        if isinstance(constant, CodeType):
            if not constant.co_flags & 0x2:  # a class body: executed at import
                found |= _lines(constant)
                continue
            found |= {line for _, _, line in constant.co_lines() if line is not None and line != constant.co_firstlineno}
            found |= _lines(constant)
    return found


class _Watch:
    """Notes forbidden events while an input is read. An audit hook cannot be taken back, so there is one for the process."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.on = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event in _FORBIDDEN:
            self.events.append(f"{event} {arguments[:1]}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.events.clear()
        self.on = True
        try:
            yield
        finally:
            self.on = False


_watch = _Watch()


@contextmanager
def in_time() -> Iterator[None]:
    """After `limit`: raises HangError here when it takes too long."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def check(target: Target, tree: Tree, coverage: Coverage | None = None) -> bool:
    """Feed one input; returns whether it was one.

    Raises:
        Whatever a decoder must not raise; HangError; AssertionError for an object or a forbidden event.
    """
    try:
        built = target.build(tree)
    except Exception:
        return False
    with _watch.watching(), in_time():
        answer = target.read(built) if coverage is None else coverage.run(lambda: target.read(built))
    assert_plain(answer)
    assert not _watch.events, _watch.events[:3]
    return True


class Finding(NamedTuple):
    """An input that broke something."""

    target: str
    what: str
    tree: Tree


class Campaign:
    """One run over all targets."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.coverage = Coverage()
        self.corpus: dict[str, list[Tree]] = {}
        self.inputs: dict[str, int] = {}
        self.findings: dict[tuple[str, str], Finding] = {}

    def run(self, seconds: float, targets: list[Target]) -> None:
        """Give each target its share of the time; a target without time left still reads its seeds."""
        for target in targets:
            corpus = self.corpus[target.name] = list(target.seeds())
            self.inputs[target.name] = 0
            for tree in corpus:
                assert self._try(target, tree), f"a seed of {target.name} is no input"
                self.coverage.is_new()  # what seeds reach is known
        whole = sum(target.weight for target in targets)
        for target in targets:
            stop = time.monotonic() + seconds * target.weight / whole
            while time.monotonic() < stop:
                self._step(target)

    def _step(self, target: Target) -> None:
        corpus = self.corpus[target.name]
        # What was kept last is nearest to what nobody reached.
        at = max(self._rng.randrange(len(corpus)), self._rng.randrange(len(corpus)))
        tree = mutated(self._rng, corpus[at], corpus)
        if self._try(target, tree) and self.coverage.is_new():
            corpus.append(tree)

    def _try(self, target: Target, tree: Tree) -> bool:
        try:
            was_one = check(target, tree, self.coverage)
        except (Exception, HangError) as error:
            where = traceback.extract_tb(error.__traceback__)
            inside = [frame for frame in where if str(_PACKAGE) in frame.filename] or where
            place = f"{inside[-1].filename.rpartition('ckptstore/')[2]}:{inside[-1].lineno}"
            what = f"{type(error).__name__} at {place}: {str(error)[:200]}"
            self.findings.setdefault((type(error).__name__, place), Finding(target.name, what, tree))
            return False
        self.inputs[target.name] += was_one
        return was_one

    def unreached(self) -> list[str]:
        """Decoders that no input came to: what is written of them in a result would be nothing."""
        return [name for name, (reached, _) in self.coverage.lines().items() if not reached]

    def result(self) -> dict[str, Any]:
        lines = self.coverage.lines()
        return {
            "inputs": self.inputs,
            "kept": {name: len(trees) for name, trees in self.corpus.items()},
            "edges": len(self.coverage.seen),
            "lines": {name: list(count) for name, count in lines.items()},
            "findings": [f"{finding.target}: {finding.what}" for finding in self.findings.values()],
        }


def limit() -> None:
    """Bound the memory of this process from here on, and end what hangs."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise HangError(f"more than {SECONDS} s")

    signal.signal(signal.SIGPROF, hang)
    os.fsync = os.fdatasync = lambda fd: None  # nothing here has to survive anything
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))


def _warm(targets: list[Target]) -> None:
    """What is imported and cached once, and the codecs that Python looks for by itself: what comes later is the input's doing."""
    for module in pkgutil.iter_modules(encodings.__path__, "encodings."):
        with suppress(ImportError):
            importlib.import_module(module.name)
    for target in targets:
        for tree in target.seeds():
            target.read(target.build(tree))


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=300)
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options.add_argument("--only", help="name of one target")
    options.add_argument("--result", type=Path, help="where figures are written")
    options.add_argument("--found", type=Path, help="where inputs that broke something are written")
    given = options.parse_args()
    print(f"seed {given.seed}", flush=True)
    logging.disable(logging.CRITICAL)
    targets = [target for target in TARGETS if given.only in (None, target.name)]
    _warm(targets)
    gc.collect()
    limit()
    campaign = Campaign(given.seed)
    campaign.run(given.seconds, targets)
    result = {"seconds": given.seconds, "seed": given.seed, **campaign.result()}
    print(json.dumps(result, indent=1))
    if given.result is not None:
        given.result.write_text(json.dumps(result, indent=1) + "\n")
    if given.found is not None and campaign.findings:
        given.found.write_text("\n".join(f"{item.target!r}, {item.tree!r},  # {item.what}" for item in campaign.findings.values()))
    unreached = campaign.unreached() if given.only is None else []
    if unreached:
        print(f"no input came to {unreached}")
    return 1 if campaign.findings or unreached else 0


if __name__ == "__main__":
    sys.exit(main())
