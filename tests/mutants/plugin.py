"""A pytest plugin for runs of mutants: it picks the tests, bounds each in time, and writes down what became of them.

Hypothesis runs with the same examples every time and does not shrink what it finds: a run is only asked whether anything fails.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import Phase, settings

TESTS, REPORT = "CKPTSTORE_MUTANT_TESTS", "CKPTSTORE_MUTANT_REPORT"
"""Environment: what to run, as JSON; and where to write the report."""
LONGEST, AGAIN = 45, 3
"""Seconds that a test may take, those that are run here take less than 5; and seconds after which it is told so again: what it closes on
its way out may wait for the same thing."""

_report: dict[str, list[str]] = {"passed": [], "skipped": [], "failed": [], "unknown": []}


def pytest_configure(config: pytest.Config) -> None:
    # Not when this is imported: whoever collects doctests imports it, too.
    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], derandomize=True, database=None)
    settings.load_profile("mutants")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = []
    for test in json.loads(os.environ[TESTS]):
        found = [item for item in items if _is(item, config.rootpath, test)]
        if not found:
            _report["unknown"].append(f"{test['files']} {test['name']} {test['case']}")
        chosen += [item for item in found if item not in chosen]
    items[:] = chosen


def _is(item: Any, root: Path, test: dict[str, Any]) -> bool:
    case = item.callspec.id if hasattr(item, "callspec") else None
    return (
        str(item.path.relative_to(root)) in test["files"]
        and getattr(item, "originalname", None) == test["name"]
        and test["case"] in (None, case)
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test did not end within {LONGEST} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, LONGEST, AGAIN)
    try:
        return (yield)  # type: ignore[return-value]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _report[report.outcome].append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    Path(os.environ[REPORT]).write_text(json.dumps(_report))
