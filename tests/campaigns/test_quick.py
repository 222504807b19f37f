"""A little of each campaign, and its judges: what they let pass and what they do not. `make campaign` runs the rest."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptstore import LaneName
from ckptstore.storage import Frame
from ckptstore.storage.local import format as fmt
from tests.campaigns import crowd_rounds
from tests.campaigns.crowd import Crowd
from tests.campaigns.crowd_roles import Page
from tests.campaigns.crowd_rounds import Player
from tests.campaigns.cuts import SCENES, Survived
from tests.campaigns.explained import head_is_explained, listing_is_explained
from tests.campaigns.facts import errors, facts, lies
from tests.campaigns.flips import Flip, LieError, every, flipped
from tests.campaigns.samples import Sample, opened_sample, samples
from tests.contract.calls import put
from tests.crash.programs import Seen

# -- crowds -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    player = Player()
    yield player
    player.close()


@pytest.mark.parametrize("row", ["commit:appended", "torn:kept", "written:POISON", "compact:named", "backup:grown"])
def test_a_crowd_goes_on_when_one_of_it_is_killed(tmp_path: Path, player: Player, row: str) -> None:
    """Some rounds pass no such point: where the first frame of a segment is torn, the segment is set aside and no tail is cut."""
    for seed in range(1, 10):
        (tmp_path / str(seed)).mkdir()
        crowded = player.play(tmp_path / str(seed), row, seed)
        assert crowded.problems == []
        if crowded.killed:
            break
    assert crowded.killed
    assert crowded.calls > 10
    assert crowded.reads > 0


def test_a_kill_that_was_not_meant_is_a_problem(tmp_path: Path) -> None:
    page = Page()
    crowd = Crowd(page, tmp_path)
    page[Page.STAGE] = 1
    crowd.start("meant", lambda: os.kill(os.getpid(), signal.SIGKILL))
    crowd.wait("the kill", lambda running: not running)
    assert crowd.problems == []
    crowd.start("not meant", lambda: os.kill(os.getpid(), signal.SIGKILL))
    crowd.wait("the kill", lambda running: not running)
    assert crowd.problems == ["killed: ['meant', 'not meant'], and 1 were meant"]


def test_what_the_program_of_crowds_dies_of_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd_rounds, "_job", lambda *given: {})
    player = Player()
    with pytest.raises(AssertionError, match="KeyError: 'path'"):
        player.play(tmp_path, "commit:appended", 1)
    player.close()


def _lane(*ids: str) -> list[Seen]:
    return [Seen(id, None, id, ()) for id in ids]


def test_what_explains_a_listing() -> None:
    """States of a thread that grows, is written to, and is pruned; a listing may begin in one and end in a later one."""
    states = [_lane("1", "2"), _lane("1", "2", "3"), [_lane("1")[0], Seen("2", None, "2", (("k", "w"),)), *_lane("3")], _lane("3")]
    grown, written = states[1], states[2]
    for items in (
        [grown[1], grown[0]],
        grown[::-1],
        written[::-1],
        [grown[2], written[1], written[0]],
        [grown[2]],
        [grown[2], grown[1]],
    ):
        assert listing_is_explained(items, states), items
    for items in ([grown[0]], [written[1], grown[0], grown[2]], [grown[2], grown[0]], [Seen("3", None, "torn", ())]):
        assert not listing_is_explained(items, states), items
    assert not listing_is_explained([], states[:3])
    # A state that was left before the listing began explains nothing any more.
    assert not listing_is_explained([grown[2], grown[1], grown[0]], states[2:])
    assert listing_is_explained([], [_lane("1"), []])
    assert head_is_explained(grown[2], states)
    assert not head_is_explained(None, states)


# -- power cuts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_of_power_cuts(tmp_path: Path, scene: Callable[[Path, int], Survived]) -> None:
    assert sum(scene(tmp_path, 3).values()) > 5


# -- bit flips ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return samples(tmp_path_factory.mktemp("samples"), 1, "lmdb")


def test_no_flipped_bit_is_returned_as_data(tmp_path: Path, some: list[Sample]) -> None:
    outcomes = set()
    for sample in some:
        for number, flip in enumerate(every(sample, random.Random(2), 2000)):
            (tmp_path / f"{sample.name} {number}").mkdir()
            outcomes.add(flipped(sample, flip, tmp_path / f"{sample.name} {number}").outcome)
            shutil.rmtree(tmp_path / f"{sample.name} {number}")
    assert {"refused", "read", "verify", "unused"} <= outcomes


def test_what_is_a_lie(tmp_path: Path) -> None:
    """Another value, a checkpoint that is missing without an error, and one that was never there."""
    with opened_sample(tmp_path / "one") as store:
        put(store, "1", None, {"m": ["words"]})
        truth = facts(store)
        assert lies(truth, truth) == []
        assert errors(truth, truth) == []
        put(store, "2", "1", {"m": ["more"]})
        more = facts(store, truth)
    assert any("checkpoint" in lie for lie in lies(more, truth))
    assert any("is missing" in lie for lie in lies(truth, more))
    with opened_sample(tmp_path / "other") as store:
        put(store, "1", None, {"m": ["other words"]})
        assert lies(facts(store, truth), truth)
    key = ("checkpoint", *LaneName("t"), "1")
    assert key in truth
    assert any("is missing" in lie for lie in lies({other: truth[other] for other in truth if other != key}, truth))


def test_a_flip_that_nobody_notices_is_one(tmp_path: Path, some: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a read does not look at the checksum of bodies."""
    closed = some[0]
    newest = max((closed.folder / "segments").glob("*.seg"))
    at = newest.read_bytes().index(b"the end words")

    def trusting(data: bytes) -> tuple[fmt.FrameHeader, Frame]:
        header = fmt.decode_frame_header(data)
        assert header is not None
        middle = fmt.FRAME_HEADER + header.directory
        return header, Frame(header.lsn, fmt.decode_directory(header, data[fmt.FRAME_HEADER : middle]), data[middle:])

    monkeypatch.setattr(fmt, "decode_frame", trusting)
    with pytest.raises(LieError):
        flipped(closed, Flip(f"segments/{newest.name}", at, 0), tmp_path)
