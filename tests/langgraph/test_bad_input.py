"""Bad input: each wrong argument and each wrong thing at the path has its own error. Nothing is lost and the saver stays usable.

Broken chains, late writes, damage, full disks and held locks are in `test_public_reports`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from langgraph.checkpoint.ckptstore import CkptSaver

import ckptstore
from ckptstore import LaneName
from ckptstore.errors import (
    CkptStoreError,
    CorruptionError,
    ForeignSegmentError,
    FormatVersionError,
    InvalidArgumentError,
    MissingConfigError,
    ModeMismatchError,
    NotAStoreError,
    NotWritableError,
    ReadOnlyError,
    SerializationError,
    StoreClosedError,
    StoreMissingError,
    ThreadExistsError,
    TimelineError,
    UnsupportedFilesystemError,
    ValueTooLargeError,
)
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local import layout
from tests.helpers import Driver, checkpoint, config, overwrite

# -- options -------------------------------------------------------------------------------------------------------------------

_GIB = 1 << 30
NAN, INFINITE = float("nan"), float("inf")

WRONG_FOR_BOTH: list[tuple[str, Any]] = [
    *[("durability", value) for value in ("full", "", None, 1)],
    *[("index", value) for value in ("memory", "", 1)],
    *[("read_only", value) for value in (1, "yes", None)],
    *[("mode", value) for value in ("half", "", 1)],
    *[("max_value_bytes", value) for value in (0, -1, _GIB + 1, "1", 1.5, True, None)],
    *[("lock_timeout", value) for value in (0, 0.0, -1, 3601, NAN, INFINITE, "1", None)],
]
WRONG_FOR_STORES: list[tuple[str, Any]] = [
    *[("late_window", value) for value in (-1, 367 * 86400, NAN, "1")],
    *[("sync_interval", value) for value in (0, -1, 61, "1")],
    *[("segment_bytes", value) for value in (4095, -1, _GIB + 1, "1")],
    *[("cache_bytes", value) for value in (-1, "1")],
    ("allow_network_filesystem", "yes"),
    ("no_such_option", 1),
]
WRONG_FOR_SAVERS: list[tuple[str, Any]] = [
    *[("expect_head", value) for value in (1, None, "yes")],
    *[("message_ids", value) for value in (1, None)],
    *[("drop_metadata", value) for value in ("key", [1], ["a", None], 5, None)],
    ("serde", 5),
]


@pytest.mark.parametrize(("name", "value"), [*WRONG_FOR_BOTH, *WRONG_FOR_SAVERS])
def test_a_wrong_option_of_a_saver_is_named_with_its_value(folder: Path, name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        CkptSaver(folder, **{name: value})
    assert isinstance(raised.value, ValueError)
    wrong = [value, *(value if isinstance(value, list) else [])]
    assert any(f"{name}={part!r}" in str(raised.value) for part in wrong)
    assert not folder.exists()


@pytest.mark.parametrize(("name", "value"), [*WRONG_FOR_BOTH, *WRONG_FOR_STORES])
def test_a_wrong_option_of_a_store_is_named_with_its_value(folder: Path, name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        ckptstore.open(folder, **{name: value})
    assert f"{name}={value!r}" in str(raised.value)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("max_value_bytes", 0, "1"),
        ("max_value_bytes", _GIB + 1, str(_GIB)),
        ("lock_timeout", 0, "0"),
        ("lock_timeout", 3601, "3600"),
        ("durability", "x", "'commit', 'interval' or 'process'"),
        ("mode", "x", "'full' or 'delta'"),
    ],
)
def test_the_error_says_what_the_range_is(name: str, value: Any, bound: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        CkptSaver(":memory:", **{name: value})
    assert bound in str(raised.value).split(":", 1)[1]


WRONG_PATHS: list[Any] = ["", None, 5, b"bytes", ["list"], "nul\0inside", "x" * 300]


@pytest.mark.parametrize("opened", [CkptSaver, CkptSaver.from_conn_string, ckptstore.open])
@pytest.mark.parametrize("path", WRONG_PATHS)
def test_a_wrong_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Any, path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CkptStoreError) as raised:
        opened(path)
    assert repr(path) in str(raised.value) or str(path) in str(raised.value)
    assert list(tmp_path.iterdir()) == []


# -- arguments of the saver's methods -----------------------------------------------------------------------------------------------

Call = Callable[[Any], Any]


def _without(key: str) -> Any:
    return {name: value for name, value in checkpoint("2").items() if name != key}


def _with(**parts: Any) -> Any:
    return {**checkpoint("2"), **parts}


def _reads(value: Any) -> list[tuple[str, Any, Call]]:
    """Every method that takes a config, called with this one."""
    return [
        ("put", value, lambda s: s.put(value, checkpoint("2"), {}, {})),
        ("put_writes", value, lambda s: s.put_writes(value, [("a", 1)], "k")),
        ("get_tuple", value, lambda s: s.get_tuple(value)),
        ("history", value, lambda s: s.get_delta_channel_history(config=value, channels=["m"])),
    ]


@pytest.mark.parametrize(
    ("value", "call"), [pytest.param(value, call, id=name) for name, value, call in _reads({"configurable": {}}) + _reads({})]
)
def test_a_config_without_a_thread_id(saver: CkptSaver, value: Any, call: Call) -> None:
    with pytest.raises(MissingConfigError, match=r"config\['configurable'\]\['thread_id'\] is missing") as raised:
        call(saver)
    assert isinstance(raised.value, KeyError)
    assert str(raised.value)[0] == "c", "KeyError shows the repr of its message; this error does not"


def test_writes_without_a_checkpoint_id(call: Driver) -> None:
    with pytest.raises(MissingConfigError, match=r"\['checkpoint_id'\] is missing"):
        call.put_writes(config(), [("a", 1)], "k")


# (id of the test, argument as the message should name it, value, call)
WRONG: list[tuple[str, str, Any, Call]] = [
    *[(f"config-{name}", "config", value, call) for name, value, call in _reads(None) + _reads("t")],
    *[(f"ns-{name}", "checkpoint_ns", 5, call) for name, _, call in _reads(config(ns=5))],  # type: ignore[arg-type]
    ("configurable", "configurable", "t", lambda s: s.get_tuple({"configurable": "t"})),
    ("thread_id", "thread_id", ["t"], lambda s: s.put(config(thread=["t"]), checkpoint("2"), {}, {})),
    ("checkpoint", "checkpoint", None, lambda s: s.put(config(), None, {}, {})),
    *[
        (f"no-{key}", key, "missing", lambda s, key=key: s.put(config(), _without(key), {}, {}))
        for key in ("channel_values", "channel_versions")
    ],
    ("values", "channel_values", None, lambda s: s.put(config(), _with(channel_values=None), {}, {})),
    ("versions", "channel_versions", ["a"], lambda s: s.put(config(), _with(channel_versions=["a"]), {}, {})),
    ("version", "channel_versions", None, lambda s: s.put(config(), _with(channel_versions={"a": None}), {}, {})),
    ("big-version", "channel_versions", 2**70, lambda s: s.put(config(), _with(channel_versions={"a": 2**70}), {}, {})),
    ("metadata", "metadata", "x", lambda s: s.put(config(), checkpoint("2"), "x", {})),
    ("no-metadata", "metadata", None, lambda s: s.put(config(), checkpoint("2"), None, {})),
    ("new_versions", "new_versions", None, lambda s: s.put(config(), checkpoint("2", {"a": 1}, {"a": 1}), {}, None)),
    ("no-writes", "writes", None, lambda s: s.put_writes(config("1"), None, "k")),
    ("writes-text", "writes", "ab", lambda s: s.put_writes(config("1"), "ab", "k")),
    ("writes-short", "writes", ("a",), lambda s: s.put_writes(config("1"), [("a",)], "k")),
    ("writes-channel", "writes", 5, lambda s: s.put_writes(config("1"), [(5, 1)], "k")),
    ("limit", "limit", "2", lambda s: list(s.list(config(), limit="2"))),
    ("limit-float", "limit", 1.5, lambda s: list(s.list(config(), limit=1.5))),
    ("filter", "filter", "x", lambda s: list(s.list(config(), filter="x"))),
    ("before", "before", "x", lambda s: list(s.list(config(), before="x"))),
    ("list-config", "config", "t", lambda s: list(s.list("t"))),
    ("list-id", "checkpoint_id", 5, lambda s: list(s.list(config(5)))),  # type: ignore[arg-type]
    ("channels", "channels", "m", lambda s: s.get_delta_channel_history(config=config(), channels="m")),
    ("channels-number", "channels", 5, lambda s: s.get_delta_channel_history(config=config(), channels=[5])),
    ("delete-none", "thread_id", None, lambda s: s.delete_thread(None)),
    ("copy-none", "source_thread_id", None, lambda s: s.copy_thread(None, "u")),
    ("prune-text", "thread_ids", "t", lambda s: s.prune("t")),
    ("prune-none", "thread_ids", None, lambda s: s.prune(None)),
    ("runs-text", "run_ids", "r", lambda s: s.delete_for_runs("r")),
    ("runs-none", "run_ids", None, lambda s: s.delete_for_runs(None)),
    *[(f"checkpoint_id-{name}", "checkpoint_id", 5, call) for name, _, call in _reads(config(5))],  # type: ignore[arg-type]
    ("before-id", "checkpoint_id", 5, lambda s: list(s.list(config(), before=config(5)))),  # type: ignore[arg-type]
    *[(f"id-{id}", "checkpoint['id']", id, lambda s, id=id: s.put(config(), _with(id=id), {}, {})) for id in (None, 5, "")],
    ("task_id", "task_id", 5, lambda s: s.put_writes(config("1"), [("a", 1)], 5)),
    *[
        (f"task_path-{path}", "task_path", path, lambda s, path=path: s.put_writes(config("1"), [("a", 1)], "k", path))
        for path in (None, 5, ["a"])
    ],
    ("strategy", "strategy", "all", lambda s: s.prune(["t"], strategy="all")),
    ("copy-onto-itself", "destination", "t", lambda s: s.copy_thread("t", "t")),
]


@pytest.mark.parametrize(("name", "value", "call"), [item[1:] for item in WRONG], ids=[item[0] for item in WRONG])
def test_a_wrong_argument_is_named_with_its_value(saver: CkptSaver, name: str, value: Any, call: Call) -> None:
    """Nothing of the call is stored, and the next call works."""
    saver.put(config(), checkpoint("1", {"m": [1]}, {"m": 1}), {}, {"m": 1})
    before, frames = list(saver.list(None)), saver.store.stats().frames
    with pytest.raises(CkptStoreError) as raised:
        call(saver)
    assert isinstance(raised.value, ValueError | TypeError)
    assert name in str(raised.value)
    assert str(value) in str(raised.value)
    assert list(saver.list(None)) == before
    assert saver.store.stats().frames == frames
    saver.put(config("1"), checkpoint("2"), {}, {})
    assert len(list(saver.list(None))) == 2


@pytest.mark.parametrize("path", [None, 5, ["a"]])
def test_a_task_path_that_is_no_text_does_not_make_the_checkpoint_unreadable(call: Driver, path: Any) -> None:
    call.put(config(), checkpoint("1"))
    call.put_writes(config("1"), [("a", 1)], "k1", "~p")
    with pytest.raises(InvalidArgumentError, match="task_path"):
        call.put_writes(config("1"), [("a", 2)], "k2", path)
    assert call.get_tuple(config()).pending_writes == [("k1", "a", 1)]


# -- values ------------------------------------------------------------------------------------------------------------------------


def test_a_value_that_the_serde_refuses_is_named_with_its_path(call: Driver) -> None:
    call.put(config(), checkpoint("1"))
    with pytest.raises(SerializationError, match=r"^log\.deep\[1\]: a value of type builtins\.object") as raised:
        call.put(config("1"), checkpoint("2", {"log": {"deep": [0, object()]}}, {"log": 1}), {}, {"log": 1})
    assert isinstance(raised.value, TypeError)
    with pytest.raises(SerializationError, match=r"^log\[0\]: "):
        call.put_writes(config("1"), [("fine", 1), ("log", [object()])], "k")
    with pytest.raises(SerializationError, match=r"^metadata\.run\[0\]: "):
        call.put(config("1"), checkpoint("2"), {"run": [object()]})
    assert call.ids(config()) == ["1"]
    assert call.get_tuple(config()).pending_writes == []


def test_a_value_above_the_limit_is_named_with_thread_channel_and_size(new_saver: Any) -> None:
    saver = new_saver(max_value_bytes=1000)
    saver.put(config(), checkpoint("1", {"small": "x" * 900}, {"small": 1}), {}, {"small": 1})
    stores: list[Callable[[], Any]] = [
        lambda: saver.put(config("1"), checkpoint("2", {"big": "x" * 1000}, {"big": 1}), {}, {"big": 1}),
        lambda: saver.put_writes(config("1"), [("fine", 1), ("big", "x" * 1000)], "k"),
    ]
    for store in stores:
        with pytest.raises(
            ValueTooLargeError, match=r"thread 't', channel 'big': .* 100[0-9] bytes .*max_value_bytes=1000"
        ) as raised:
            store()
        assert isinstance(raised.value, ValueError)
    assert [(item.checkpoint["id"], item.pending_writes) for item in saver.list(None)] == [("1", [])]
    saver.put(config("1"), checkpoint("2", {"big": "x" * 900}, {"big": 1}), {}, {"big": 1})
    assert len(list(saver.list(None))) == 2


def test_the_limit_counts_the_bytes_of_the_value(new_saver: Any) -> None:
    """Exactly at the limit is stored, one byte above it is not."""
    saver = new_saver(max_value_bytes=200)
    for extra, fits in ((0, True), (1, False)):
        value = "x" * (200 - 2 + extra)  # msgpack puts two bytes in front of a text of this length
        if fits:
            saver.put(config(), checkpoint("1", {"a": value}, {"a": 1}), {}, {"a": 1})
        else:
            with pytest.raises(ValueTooLargeError):
                saver.put(config(), checkpoint("2", {"a": value}, {"a": 1}), {}, {"a": 1})
    assert [item.checkpoint["id"] for item in saver.list(None)] == ["1"]


# -- threads -------------------------------------------------------------------------------------------------------------------------


def test_a_copy_onto_a_thread_that_exists(call: Driver) -> None:
    call.put(config(), checkpoint("1"))
    call.put(config(thread="u"), checkpoint("2"))
    with pytest.raises(ThreadExistsError, match="'u'"):
        call.copy_thread("t", "u")
    assert call.ids(config(thread="u")) == ["2"]
    call.copy_thread("nobody", "v")
    assert call.ids(config(thread="v")) == []


def test_operations_on_what_is_not_there(call: Driver) -> None:
    call.put(config(), checkpoint("1"))
    call.delete_thread("nobody")
    call.delete_for_runs([])
    call.delete_for_runs(["nobody"])
    call.prune([])
    call.prune(["nobody"])
    call.prune(["nobody"], strategy="delete")
    assert call.ids(None) == ["1"]


# -- closed and read-only ----------------------------------------------------------------------------------------------------------

EVERY_METHOD: list[Any] = [
    pytest.param(lambda s: s.put(config("1"), checkpoint("2"), {}, {}), id="put"),
    pytest.param(lambda s: s.put_writes(config("1"), [("a", 1)], "k"), id="put_writes"),
    pytest.param(lambda s: s.delete_thread("t"), id="delete_thread"),
    pytest.param(lambda s: s.delete_for_runs(["r"]), id="delete_for_runs"),
    pytest.param(lambda s: s.copy_thread("t", "u"), id="copy_thread"),
    pytest.param(lambda s: s.prune(["t"]), id="prune"),
    pytest.param(lambda s: s.prune(["t"], strategy="delete"), id="prune-delete"),
]
READS: list[Any] = [
    pytest.param(lambda s: s.get_tuple(config()), id="get_tuple"),
    pytest.param(lambda s: s.get(config()), id="get"),
    pytest.param(lambda s: list(s.list(None)), id="list"),
    pytest.param(lambda s: s.get_delta_channel_history(config=config(), channels=["m"]), id="history"),
    pytest.param(lambda s: list(s.store.threads()), id="threads"),
    pytest.param(lambda s: s.store.stats(), id="stats"),
]


def _filled(saver: CkptSaver) -> None:
    at: Any = {**config(), "metadata": {"run_id": "r"}}
    for number in ("1", "2"):
        saver.put(at, checkpoint(number, {"m": [1]}, {"m": 1}), {}, {"m": 1})


@pytest.mark.parametrize("call", EVERY_METHOD + READS)
def test_a_closed_saver_says_so(saver: CkptSaver, call: Call) -> None:
    _filled(saver)
    saver.close()
    saver.close()
    with pytest.raises(StoreClosedError, match="closed") as raised:
        call(saver)
    assert isinstance(raised.value, RuntimeError)


def test_a_list_that_is_open_when_the_saver_closes(saver: CkptSaver) -> None:
    _filled(saver)
    items = saver.list(None)
    next(items)
    saver.close()
    with pytest.raises(StoreClosedError):
        next(items)


def test_async_calls_on_a_closed_saver(saver: CkptSaver) -> None:
    saver.close()

    async def main() -> None:
        with pytest.raises(StoreClosedError):
            await saver.aget_tuple(config())
        with pytest.raises(StoreClosedError):
            await anext(aiter(saver.alist(None)))
        with pytest.raises(StoreClosedError):
            await saver.aput(config(), checkpoint("1"), {}, {})

    asyncio.run(main())


@pytest.mark.parametrize("call", EVERY_METHOD)
def test_a_read_only_saver_writes_nothing(folder: Path, call: Call) -> None:
    with CkptSaver(folder) as saver:
        _filled(saver)
        expected = list(saver.list(None))
    with CkptSaver(folder, read_only=True) as saver:
        with pytest.raises(ReadOnlyError, match="read_only=True") as raised:
            call(saver)
        assert isinstance(raised.value, RuntimeError)
        assert list(saver.list(None)) == expected


def test_read_only_creates_no_store(folder: Path) -> None:
    with pytest.raises(StoreMissingError, match="read_only=True") as raised:
        CkptSaver(folder, read_only=True)
    assert isinstance(raised.value, FileNotFoundError)
    assert not folder.exists()
    folder.mkdir()
    with pytest.raises(StoreMissingError):
        CkptSaver(folder, read_only=True)
    assert list(folder.iterdir()) == []


def test_another_mode_than_the_store_keeps(folder: Path) -> None:
    with CkptSaver(folder, mode="delta") as saver:
        _filled(saver)
    with pytest.raises(ModeMismatchError, match=r"'delta'.*mode='full'"):
        CkptSaver(folder, mode="full")
    for mode in ("delta", None):
        with CkptSaver(folder, mode=mode) as saver:
            assert len(list(saver.list(None))) == 2


def test_a_refused_open_leaves_the_store_free(folder: Path) -> None:
    """A mode that does not fit must not keep the folder locked, in this process or for others."""
    with CkptSaver(folder, mode="delta") as saver:
        _filled(saver)
    for _ in range(3):
        with pytest.raises(ModeMismatchError):
            CkptSaver(folder, mode="full")
    moved = folder.with_name("moved")
    folder.rename(moved)
    with CkptSaver(moved) as saver:
        assert len(list(saver.list(None))) == 2


# -- what stands at the path ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def closed(folder: Path) -> Path:
    """A closed store with two checkpoints."""
    with CkptSaver(folder) as saver:
        _filled(saver)
    return folder


def _picture(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _still_whole(store: Path) -> None:
    with CkptSaver(store) as saver:
        assert [item.checkpoint["id"] for item in saver.list(None)] == ["2", "1"]


def test_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(NotAStoreError, match=r"notes\.txt is a file") as raised:
        CkptSaver(path)
    assert isinstance(raised.value, ValueError)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.txt", "data.mdb", ".hidden"])
def test_a_foreign_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / name).write_text("mine")
    with pytest.raises(NotAStoreError, match=f"holds other files.*{name}"):
        CkptSaver(tmp_path / "home")
    assert _picture(tmp_path / "home") == {name: b"mine"}


def _edit_identity(store: Path, **facts: Any) -> None:
    known = json.loads((store / "STORE").read_text())
    (store / "STORE").write_text(json.dumps({**known, **facts}))


def test_a_newer_format_of_the_store(closed: Path) -> None:
    kept = (closed / "STORE").read_bytes()
    _edit_identity(closed, ckptstore=fmt.MAJOR + 1)
    with pytest.raises(FormatVersionError, match=f"format {fmt.MAJOR + 1}, this version knows {fmt.MAJOR}"):
        CkptSaver(closed)
    (closed / "STORE").write_bytes(kept)
    _still_whole(closed)


def test_an_unknown_feature_that_forbids_opening(closed: Path) -> None:
    kept = (closed / "STORE").read_bytes()
    _edit_identity(closed, features={"incompatible": ["time-travel"]})
    for read_only in (False, True):
        with pytest.raises(FormatVersionError, match="time-travel"):
            CkptSaver(closed, read_only=read_only)
    (closed / "STORE").write_bytes(kept)
    _still_whole(closed)


def test_an_unknown_feature_that_forbids_writing(closed: Path) -> None:
    _edit_identity(closed, features={"read_compatible": ["time-travel"]})
    with pytest.raises(FormatVersionError, match=r"time-travel.*read_only=True"):
        CkptSaver(closed)
    with CkptSaver(closed, read_only=True) as saver:
        assert len(list(saver.list(None))) == 2


def test_an_unknown_feature_that_forbids_nothing(closed: Path) -> None:
    _edit_identity(closed, features={"compatible": ["time-travel"]})
    _still_whole(closed)


@pytest.mark.parametrize("text", ["", "{}", "null", "\0\0", '{"ckptstore": 1}', '{"ckptstore": "1"}'])
def test_a_damaged_identity(closed: Path, text: str) -> None:
    kept = (closed / "STORE").read_bytes()
    (closed / "STORE").write_text(text)
    with pytest.raises(CkptStoreError, match=r"STORE|store format"):
        CkptSaver(closed)
    (closed / "STORE").write_bytes(kept)
    _still_whole(closed)


def _segment(store: Path, number: int = 1) -> Path:
    return store / "segments" / f"{number:020d}.seg"


def _edit_header(path: Path, **facts: Any) -> None:
    """Change a segment's header, with a checksum that fits."""
    data = path.read_bytes()
    header = fmt.decode_segment_header(data)
    overwrite(path, 0, fmt.encode_segment_header(header._replace(**facts)))


def test_a_newer_format_of_a_segment(closed: Path) -> None:
    path = _segment(closed)
    kept = path.read_bytes()
    length = fmt.segment_header_length(kept)
    header = bytearray(kept[: length - 4])
    header[8] = fmt.MAJOR + 1
    overwrite(path, 0, bytes(header) + crc32(header).to_bytes(4, "little"))
    with pytest.raises(FormatVersionError, match=f"seg: format {fmt.MAJOR + 1}, this version reads format {fmt.MAJOR}"):
        CkptSaver(closed)
    path.write_bytes(kept)
    _still_whole(closed)


@pytest.mark.parametrize("number", [1, 2])
def test_a_segment_of_another_store(closed: Path, tmp_path: Path, number: int) -> None:
    """Dropped in beside the own one, and in its place."""
    with CkptSaver(tmp_path / "other") as saver:
        _filled(saver)
    kept = _segment(closed).read_bytes()
    shutil.copy(_segment(tmp_path / "other"), _segment(closed, number))
    with pytest.raises(ForeignSegmentError, match=f"{number:020d}.seg belongs to store"):
        CkptSaver(closed)
    _segment(closed, 2).unlink(missing_ok=True)
    _segment(closed).write_bytes(kept)
    _still_whole(closed)


def test_a_renamed_segment(closed: Path) -> None:
    shutil.copy(_segment(closed), _segment(closed, 2))
    with pytest.raises(ForeignSegmentError, match="says it is segment 1"):
        CkptSaver(closed)
    _segment(closed, 2).unlink()
    _still_whole(closed)


def test_a_segment_of_a_foreign_timeline(closed: Path) -> None:
    kept = _segment(closed).read_bytes()
    _edit_header(_segment(closed), timeline=b"elsewher")
    with pytest.raises(TimelineError, match=b"elsewher".hex()):
        CkptSaver(closed)
    _segment(closed).write_bytes(kept)
    _still_whole(closed)


@pytest.mark.parametrize("drop", ["STORE", "segments"])
def test_a_store_without_an_essential_part(closed: Path, drop: str) -> None:
    aside = closed.with_name("aside")
    (closed / drop).rename(aside)
    if drop == "STORE":
        overwrite(_segment(closed), _segment(closed).stat().st_size, b"\0" * 5000)
    with pytest.raises(CorruptionError):
        CkptSaver(closed)
    shutil.rmtree(closed / drop, ignore_errors=True)
    aside.rename(closed / drop)
    if drop == "segments":
        _still_whole(closed)


def test_a_small_store_without_its_identity_is_not_overwritten(closed: Path) -> None:
    """Acknowledged checkpoints stand in the segment, however small it is."""
    kept = _segment(closed).read_bytes()
    identity = (closed / "STORE").read_bytes()
    (closed / "STORE").unlink()
    try:
        with pytest.raises(CorruptionError, match="no STORE file"):
            CkptSaver(closed).close()
        assert _segment(closed).read_bytes() == kept
    finally:
        (closed / "STORE").write_bytes(identity)


# -- where the path is -----------------------------------------------------------------------------------------------------------------

MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:36 / /mnt/share rw,relatime - nfs4 server:/x rw
41 40 0:37 / /mnt/share/local rw,relatime shared:2 - tmpfs tmpfs rw
42 22 0:38 / /mnt/two\\040words rw - cifs //host/x rw
43 22 0:39 / /mnt/ssh rw master:1 - fuse.sshfs u@h:/ rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/chat.ckpt", "ext4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/a/b", "nfs4"),
        ("/mnt/shared", "ext4"),
        ("/mnt/share/local/a", "tmpfs"),
        ("/mnt/two words/a", "cifs"),
        ("/mnt/ssh/a", "fuse.sshfs"),
    ],
)
def test_the_mount_a_path_is_on(path: str, kind: str) -> None:
    assert layout.mount_type(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_filesystem_is_refused_unless_forced(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    real = layout.mount_type
    mounts = f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {folder.parent} rw - {kind} server:/x rw\n"
    monkeypatch.setattr(layout, "mount_type", lambda path, _: real(path, mounts))
    with pytest.raises(UnsupportedFilesystemError, match=rf"network filesystem \({kind}\)") as raised:
        CkptSaver(folder)
    assert isinstance(raised.value, OSError)
    assert not folder.exists()
    with CkptSaver.from_store(ckptstore.open(folder, allow_network_filesystem=True)) as saver:
        _filled(saver)
        assert len(list(saver.list(None))) == 2
    with CkptSaver(":memory:") as saver:
        _filled(saver)


@contextmanager
def _unwritable(folder: Path) -> Iterator[None]:
    """A folder that this process cannot write. Root ignores permissions, so for root it is a read-only mount."""
    if os.geteuid() != 0:
        modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        try:
            yield
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        return
    at = str(folder)
    for command in (["mount", "--bind", at, at], ["mount", "-o", "remount,ro,bind", at]):
        if subprocess.run(command, check=False, capture_output=True).returncode:
            subprocess.run(["umount", at], check=False, capture_output=True)
            pytest.skip("root without the right to mount: nothing here is unwritable")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def test_a_store_that_cannot_be_written(closed: Path) -> None:
    with _unwritable(closed), pytest.raises(NotWritableError, match=str(closed)) as raised:
        CkptSaver(closed)
    assert isinstance(raised.value, PermissionError)
    _still_whole(closed)


def test_a_store_that_cannot_be_written_can_be_read(closed: Path) -> None:
    before = _picture(closed)
    with _unwritable(closed), CkptSaver(closed, read_only=True) as saver:
        assert [item.checkpoint["id"] for item in saver.list(None)] == ["2", "1"]
        assert saver.get_tuple(config()) is not None
    assert _picture(closed) == before
    _still_whole(closed)


def test_a_folder_in_which_no_store_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with _unwritable(tmp_path / "home"), pytest.raises(NotWritableError, match="home"):
        CkptSaver(tmp_path / "home" / "chat.ckpt")
    assert list((tmp_path / "home").iterdir()) == []


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CkptStoreError, match="file"):
        CkptSaver(tmp_path / "file" / "chat.ckpt")
    assert (tmp_path / "file").read_text() == "mine"


def test_the_engine_names_a_head_that_is_not_there(saver: CkptSaver) -> None:
    _filled(saver)
    with pytest.raises(InvalidArgumentError, match="'nobody'"):
        saver.store.set_head(LaneName("t"), "nobody")
    with pytest.raises(InvalidArgumentError, match="'u'"):
        saver.store.set_head(LaneName("u"), "1")
    assert [item.checkpoint["id"] for item in saver.list(None)] == ["2", "1"]
