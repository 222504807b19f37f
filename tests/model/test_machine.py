"""Random programs of everything a saver can be asked, on the engine: each answer is the plain model's (ckptstore/testing/model.py).

A small share of what `make fuzz` does. What it found once has a test of its own, named for the behaviour, where the behaviour belongs.
"""

from __future__ import annotations

import pytest

from ckptstore.testing.machine import campaign
from tests.model.fuzz import ENGINES


@pytest.mark.parametrize(("index", "steps"), [("memory", 1200), ("lmdb", 500), ("sqlite", 500)])
def test_random_programs_answer_what_the_model_says(index: str, steps: int) -> None:
    report = campaign(ENGINES[index], steps=steps, seed=20261201)
    assert report.steps >= steps
    if report.violation is not None:
        raise report.violation


def test_the_programs_of_a_campaign_are_those_that_ran() -> None:
    ran = []

    class Counted(ENGINES["memory"]):  # type: ignore[misc]
        def teardown(self) -> None:
            ran.append(self)
            super().teardown()
            assert len(ran) < 3

    report = campaign(Counted, steps=300, seed=1, each=10, shrink=False)
    assert report.violation is not None
    assert report.examples == len(ran) < 30
