"""Verify: everything that a store promises to read is read, and everything that two places say is compared.

Three layers. The files, frame by frame, are the business of the storage. In checker.py: the records that are live, each decoded, with its
references, its values through all their bases down to the checksum of the decoded bytes, its place, parent and writes; and the index
against one built from the log. Records that nothing live needs were checked as bytes only.

A *problem* is something that cannot be as it was written. A *remark* is legal, and worth knowing: writes on a checkpoint that was never
stored, a walk that ends where ancestors were removed.
"""

from __future__ import annotations

from typing import NamedTuple

from ckptstore.progress import Progress
from ckptstore.storage import View
from ckptstore.upkeep.checker import CheckedLog, Checker, Problem

MOST_PROBLEMS = 1000
"""Problems that a report names; the others are counted."""


class VerifyReport(NamedTuple):
    """What `verify` found. Sizes are in bytes."""

    problems: list[Problem]
    more_problems: int
    """Found beyond those that are named."""
    remarks: list[str]
    index_state: str
    """`agrees`, `differs`, or why it was not compared."""
    segments: int
    frames: int
    log_bytes: int
    threads: int
    namespaces: int
    checkpoints: int
    batches: int
    """Batches of writes on checkpoints, and on ids that are no checkpoint (yet)."""
    values: int
    histories: int
    orphans: int
    """Batches of writes on ids that are not stored."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_log(log: CheckedLog, progress: Progress | None = None) -> VerifyReport:
    """Check what the files hold.

    Args:
        progress: told how many live checkpoints of how many were looked at.
    """
    view = log.best_view()
    checker = Checker(view, progress)
    found = _Found()
    for fault in log.faults:
        found.add(checker.located(fault, log))
    for problem in checker.problems():
        found.add(problem)
    index = log.present_missing
    if not index:
        index = "not compared, since the log is damaged" if log.damaged else "agrees"
        for difference in log.differences():
            index = "differs"
            found.add(checker.named(difference))
    return found.report(checker, [*log.remarks, *checker.remarks], index, log.segments, log.frames, log.log_bytes)


def verify_view(view: View, progress: Progress | None = None) -> VerifyReport:
    """Check the live records of a store that has no files; see `verify_log`."""
    checker = Checker(view, progress)
    found = _Found()
    for problem in checker.problems():
        found.add(problem)
    return found.report(checker, checker.remarks, "not compared: there is no index beside the records", 0, 0, 0)


class _Found:
    """Problems up to a bound, each once."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}
        self._more = 0

    def add(self, problem: Problem) -> None:
        if len(self._problems) < MOST_PROBLEMS:
            self._problems[problem] = None
        else:
            self._more += problem not in self._problems

    def report(self, checker: Checker, remarks: list[str], index: str, segments: int, frames: int, log_bytes: int) -> VerifyReport:
        return VerifyReport(
            list(self._problems),
            self._more,
            remarks,
            index,
            segments,
            frames,
            log_bytes,
            checker.threads,
            checker.namespaces,
            checker.checkpoints,
            checker.batches,
            len(checker.seen_values),
            checker.histories,
            checker.orphans,
        )
