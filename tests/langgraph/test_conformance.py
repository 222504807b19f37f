"""LangGraph's published conformance suite: every capability is there and passes, the extended ones included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability


@pytest.fixture(scope="module", params=["folder", "memory"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("conformance")
    made = iter(range(1000))

    @checkpointer_test(name=request.param)
    async def savers() -> AsyncIterator[CkptSaver]:
        async with CkptSaver(":memory:" if request.param == "memory" else folder / f"{next(made)}.ckpt") as saver:
            yield saver

    run: Callable[..., object] = validate
    return asyncio.run(run(savers))  # type: ignore[arg-type]


@pytest.mark.parametrize("capability", [capability.value for capability in Capability])
def test_capability_is_complete(report: object, capability: str) -> None:
    result = report.results[capability]  # type: ignore[attr-defined]
    assert result.detected
    assert not result.failures
    assert result.tests_failed == 0
    assert result.tests_passed > 0
