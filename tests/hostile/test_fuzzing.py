"""Hostile bytes in a few seconds; `make fuzz-bytes` takes its time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.fuzzing import DECODERS, Campaign, check
from tests.hostile.targets import TARGETS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is bounded as Linux does it")

ROOT = Path(__file__).resolve().parents[2]


def test_no_input_breaks_a_decoder() -> None:
    """In a process of its own, whose memory is bounded. The seed is another one each time and is in the output of a failure."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.hostile.fuzzing", "--seconds", "8"], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise KeyError(1)", "KeyError"),
        ("import this", "import"),
        ("return compile", "builtin_function_or_method"),
        ("pickle.loads(b'cos\\nsystem\\n.')", "pickle.find_class"),
        ("while True: pass", "HangError"),
        ("return len(bytearray(1 << 40))", "MemoryError"),
    ],
)
def test_what_must_not_happen_is_found(source: str, said: str) -> None:
    """The campaign is no use if it overlooks what it is there for."""
    program = f"""
import pickle
import tests.hostile.fuzzing as fuzzing
from tests.hostile.targets import Target
fuzzing.SECONDS = 1
fuzzing.limit()
def read(data):
    if data == b"good":
        return data
    {source}
campaign = fuzzing.Campaign(1)
campaign.run(0.2, [Target("bad", lambda tree: tree, read, lambda: [b"good"])])
print(campaign.result()["findings"])
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert said in ended.stdout, ended.stdout + ended.stderr


def test_an_index_without_memory_is_no_refusal() -> None:
    """Else a use of stores that always ends there would seem to be tried."""
    program = """
import tests.hostile.fuzzing as fuzzing
from tests.hostile.targets import TARGETS
[salvage] = [target for target in TARGETS if target.name == "store, salvage"]
[seed] = salvage.seeds()
fuzzing.MEMORY = 400 << 20
fuzzing.limit()
fuzzing.check(salvage, seed)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.stderr.splitlines()[-1].startswith("MemoryError: the index failed"), ended.stderr


def test_a_campaign_that_leaves_a_decoder_out_fails() -> None:
    campaign = Campaign(1)
    campaign.run(0, [target for target in TARGETS if target.name == "segment header"])
    assert set(campaign.unreached()) == set(DECODERS) - {"storage/local/format.py"}


def test_the_result_is_of_these_decoders_and_targets_and_came_to_each() -> None:
    result = json.loads((ROOT / "docs" / "results" / "fuzz-bytes.json").read_text())
    assert list(result["lines"]) == DECODERS
    assert list(result["inputs"]) == [target.name for target in TARGETS]
    assert [name for name, (reached, _) in result["lines"].items() if not reached] == []
    assert result["findings"] == []


def test_inputs_that_reach_new_code_are_kept() -> None:
    campaign = Campaign(1)
    target = next(target for target in TARGETS if target.name == "segment header")
    campaign.run(0.5, [target])
    assert len(campaign.corpus[target.name]) > len(target.seeds())


def test_what_the_seeds_reach_is_not_new() -> None:
    campaign = Campaign(1)
    target = next(target for target in TARGETS if target.name == "segment header")
    campaign.run(0, [target])
    for seed in target.seeds():
        check(target, seed, campaign.coverage)
        assert not campaign.coverage.is_new()
