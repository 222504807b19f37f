"""A whole log checked against itself and against its index, whether the store is closed, open elsewhere, or damaged.

    files      held open as they are (inspection.py)
    present    the index that the store uses: a snapshot of it while others have the store open; a copy in a temporary folder, if
               evidence says that it may be opened, while nobody has
    fresh      an index built from the held files, in a temporary folder

The log is consistent with a snapshot of a store in use if no compaction was published between taking it and holding the files. A
segment that was named and not yet published is left out then, as readers leave it out: all that it holds stands in those it replaces.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ckptstore.codec.names import name_hash
from ckptstore.codec.records import HEADER, Entry, Kind, encode_lane, encode_thread, hashed_entry, pack, unpack
from ckptstore.errors import CkptStoreError, LockTimeoutError, StaleIndexError
from ckptstore.options import StoreOptions
from ckptstore.progress import Progress
from ckptstore.storage import View
from ckptstore.storage.catalog import Catalog
from ckptstore.storage.local.comparing import Difference, differences, locations
from ckptstore.storage.local.frames import get_end, is_published
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.hints import read_hint
from ckptstore.storage.local.index import IndexEnv, IndexFullError
from ckptstore.storage.local.index.kinds import KINDS
from ckptstore.storage.local.index.lmdb import LmdbIndex
from ckptstore.storage.local.inspection import Fault, Held, HeldView, Log, Piece
from ckptstore.storage.local.layout import Layout, boot_id, read_clean, read_owner
from ckptstore.storage.local.locks import FolderLock
from ckptstore.storage.local.rebuild import fold
from ckptstore.storage.local.recovery import End
from ckptstore.storage.local.segment import Location
from ckptstore.storage.local.vfs import OS

_CHUNK = 5000
# Frames between two words to whoever wants to know how far it is.
_TOLD_EVERY = 256
_OF_LANE = frozenset({Kind.CHECKPOINT, Kind.WRITES, Kind.HISTORY})
# Numbers that no thread of the log has.
_FIRST_FOUND = 1 << 31
# How often a compaction may come in between before the index is left out of the comparison.
_TRIES = 5


class _Present(NamedTuple):
    """The index in use, and what is known of the log without reading it."""

    view: HeldView | None
    end: End | None
    in_use: bool
    """Others have the store open."""
    why_not: str
    """Why there is no view; empty where there is one."""


class Checked:
    """A log that was read from end to end."""

    def __init__(self, log: Log, present: _Present, fresh: IndexEnv, repair: bool, progress: Progress | None) -> None:
        self.log = log
        self._progress = progress
        self.faults: list[Fault] = list(log.faults)
        self.remarks: list[str] = []
        """What is legal and worth knowing."""
        self.present = present.view
        self.present_missing = present.why_not
        self.segments = 0
        self.frames = 0
        self.log_bytes = 0
        self.bad: list[Piece] = []
        """Pieces that are no good frames, below the end of the log."""
        self.end_lsn = 1
        self._view: HeldView | None = None
        self._known_end = present.end
        self._in_use = present.in_use
        self._fold = _Fold(fresh, self.faults, repair)
        self._walk(present)
        self._fold.flush()

    @property
    def damaged(self) -> bool:
        """Whether something of the log is missing or bad, so that an index built from it says less than the store held."""
        return bool(self.faults)

    def _walk(self, present: _Present) -> None:
        void = self._void(present)
        ordered = [(held.header.base_lsn, held) for held in self.log.in_order(void) if held.header is not None]
        if self._fold.repair:
            ordered = sorted([*ordered, *self.log.found_frames(void)])
        expected, after_gap = 1, False
        for number, (base, held) in enumerate(ordered):
            if base > expected:
                self.faults.append(
                    Fault(
                        f"segment {held.number} begins at LSN {base}, the log before it ends at LSN {expected - 1}: a segment is missing",
                        held.number,
                        0,
                        expected,
                    )
                )
                after_gap = True
            elif base < expected:
                self.faults.append(
                    Fault(f"segment {held.number} begins at LSN {base}, which another segment holds too", held.number, 0)
                )
            last = number == len(ordered) - 1
            covered = 0 if held.header is None else held.header.end_lsn
            expected = max(expected, covered, self._segment(held, base, last))
            self.segments += 1
        self.end_lsn = expected
        known = self._known_end
        if known is not None and known.next_lsn > expected and not after_gap:
            self.faults.append(
                Fault(
                    f"the log ends at LSN {expected - 1}, but records up to LSN {known.next_lsn - 1} are known to have been stored",
                    known.segment,
                    known.tail,
                    expected,
                )
            )
        for (_, held), (following, _) in pairwise(ordered):
            if held.header is not None:
                self._check_hint(held, following)

    def _void(self, present: _Present) -> set[int]:
        if present.view is not None and present.in_use:
            return void_in(self.log, present.view)
        if present.view is not None and present.end is not None:
            begun = {
                held.number for held in self.log.held if held.header is not None and held.header.base_lsn >= present.end.next_lsn
            }
            begun.discard(present.end.segment)
            if begun:
                self.remarks.append(f"segments {sorted(begun)} were begun and not published: the next open moves them aside")
            return begun
        if self.log.void:
            self.remarks.append(f"segments {sorted(self.log.void)} are replaced and not deleted yet: the next open does that")
        return set(self.log.void)

    def _segment(self, held: Held, lsn: int, last: bool) -> int:
        """Check one segment; the LSN after its last good frame."""
        replacing = held.header is None or bool(held.header.replaces)
        stop = None
        end = held.size
        if last and self.present is not None and self._known_end is not None and self._known_end.segment == held.number:
            # Behind the published end somebody may be writing right now, or was killed before the index named the frame.
            end = self._known_end.tail
            if self._in_use:
                stop = end
            else:
                self._remark_unpublished(held, end)
        durable = 0
        waiting: list[tuple[Piece, int]] = []
        total = sum(other.size for other in self.log.held)
        for piece in self.log.pieces(held, stop):
            if piece.location.offset >= end:
                break
            self.log_bytes += piece.location.length
            if self._progress is not None and not self.frames % _TOLD_EVERY:
                self._progress(self.log_bytes, total)
            header = piece.header
            if piece.frame is None or header is None:
                waiting.append((piece, lsn if header is None else header.lsn))
                lsn = lsn + 1 if header is None else max(lsn, header.lsn + 1)
                continue
            if header.lsn < lsn or (header.lsn > lsn and not replacing and not waiting):
                self._fault(piece, f"LSN {header.lsn} stands where LSN {lsn} is due", header.lsn)
                continue
            if header.durable >= header.lsn:
                self._fault(piece, f"LSN {header.lsn} says that LSN {header.durable} was durable before it", header.lsn)
            durable = max(durable, header.durable)
            self._report(waiting)
            waiting = []
            lsn = header.lsn + 1
            self.frames += 1
            self._fold.add(header.lsn, piece.location, piece.frame.entries)
        if waiting:
            first, due = waiting[0]
            known = self._known_end
            promised = known is not None and (known.segment > held.number or known.tail > first.location.offset)
            if last and durable < due and not promised:
                self.remarks.append(
                    f"segment {held.number}, offset {first.location.offset}: a torn tail of "
                    f"{sum(piece.location.length for piece, _ in waiting)} bytes, which nobody was told was safe: the next open cuts it"
                )
                return due
            self._report(waiting)
        return lsn

    def _remark_unpublished(self, held: Held, stop: int) -> None:
        """What stands behind the end that the index knows: the room that was made for frames to come is all zeros."""
        behind = os.pread(held.fd, max(0, held.size - stop), stop).rstrip(b"\0")
        if behind:
            self.remarks.append(
                f"segment {held.number}, offset {stop}: a torn tail of {len(behind)} bytes, which nobody was told was safe: "
                "the next open cuts it"
            )

    def _report(self, pieces: list[tuple[Piece, int]]) -> None:
        for piece, due in pieces:
            self._fault(piece, piece.why, due)

    def _fault(self, piece: Piece, text: str, lsn: int) -> None:
        self.bad.append(piece)
        self.faults.append(Fault(text, piece.location.segment, piece.location.offset, lsn))

    def _check_hint(self, held: Held, end: int) -> None:
        """A hint that says something else than its segment, where a rebuild would believe it: one that reaches to the next segment."""
        assert held.header is not None
        try:
            hint = read_hint(OS, self.log.layout, held.header)
        except (CkptStoreError, OSError, ValueError):
            hint = None
        if hint is None or max(held.header.end_lsn, hint[-1].lsn + 1 if hint else 0) != end:
            return
        said = {item.lsn: (item.offset, item.length, pack(item.entries)) for item in hint}
        for piece in self.log.pieces(held):
            if piece.frame is None or piece.header is None:
                continue
            stands = (piece.location.offset, piece.location.length, unpacked_hint(piece.frame.entries))
            if said.pop(piece.header.lsn, None) != stands:
                self.faults.append(
                    Fault(
                        f"the hint of segment {held.number} does not agree with it: delete {self.log.layout.hint(held.number).name}",
                        held.number,
                        piece.location.offset,
                        piece.header.lsn,
                    )
                )
                return

    def differences(self) -> Iterator[Difference]:
        """What the index in use says otherwise than the log. Nothing where there is no such index, or the log is damaged."""
        if self.present is not None and not self.damaged:
            compacted = any(held.header is not None and held.header.replaces for held in self.log.held)
            yield from differences(self.present, self.fresh(), compacted=compacted)
            if not self._in_use:
                yield from locations(self.present, self.fresh())

    def best_view(self) -> HeldView:
        """The view that knows most: the index in use where the log is damaged, else one built from the log."""
        return self.present if self.damaged and self.present is not None else self.fresh()

    def directory(self, lsn: int) -> list[Entry] | None:
        """The directory of a bad frame, where that is good."""
        return next((piece.entries for piece in self.bad if piece.header is not None and piece.header.lsn == lsn), None)

    def late(self) -> dict[bytes, int]:
        """Hashes of ids that thread deletions removed -> unix time in ms, from whatever index says most."""
        return {key[1:]: int.from_bytes(value, "big") for key, value in self.best_view().kv.scan(b"X")}

    def fresh(self) -> HeldView:
        """The index built from the files, in a view that is open as long as this is."""
        if self._view is None:
            self._view = self._fold.view(self.log)
        return self._view


def unpacked_hint(entries: list[Entry]) -> bytes:
    """A directory as a hint gives it back."""
    return pack(unpack(pack([hashed_entry(entry) for entry in entries])))


class _Fold:
    """Builds an index of whatever frames are there. A frame that cannot be applied, because one before it is lost, is a fault."""

    def __init__(self, index: IndexEnv, faults: list[Fault], repair: bool) -> None:
        self._index = index
        self._faults = faults
        self.repair = repair
        self._waiting: list[tuple[int, Location, list[Entry]]] = []
        self._reading = ExitStack()

    def add(self, lsn: int, location: Location, entries: list[Entry]) -> None:
        self._waiting.append((lsn, location, entries))
        if len(self._waiting) >= _CHUNK:
            self.flush()

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not self._apply(waiting):
            for item in waiting:
                if not self._apply([item]):
                    lsn, location, _ = item
                    self._faults.append(
                        Fault(
                            "the records of this frame rest on records that are not there: it cannot be used",
                            location.segment,
                            location.offset,
                            lsn,
                        )
                    )

    def _apply(self, items: list[tuple[int, Location, list[Entry]]]) -> bool:
        while True:
            try:
                with self._index.write() as kv:
                    catalog = Catalog(kv)
                    for lsn, location, entries in items:
                        if self.repair:
                            _introduce(catalog, entries)
                        fold(kv, catalog, lsn, location, entries)
                return True
            except IndexFullError:
                continue
            except Exception:  # whatever a directory that checksums cannot vouch for makes of the fold
                return False

    def view(self, log: Log) -> HeldView:
        return log.view(self._reading.enter_context(self._index.read()))

    def close(self) -> None:
        self._reading.close()


def _introduce(catalog: Catalog, entries: list[Entry]) -> None:
    """Give a lane whose own record is lost a thread of its own, so that what it holds can be reached; LSN 0 stands for no record."""
    here = {entry[HEADER] for entry in entries if entry[0] == Kind.LANE}
    for entry in entries:
        if entry[0] in _OF_LANE and entry[HEADER] not in here and catalog.address(entry[HEADER]) is None:
            lane: int = entry[HEADER]
            thread = _FIRST_FOUND + lane
            name = f"found {lane}"
            catalog.apply(
                0, [encode_thread(thread, name_hash(name), name).entry(), encode_lane(lane, name_hash(""), thread, "").entry()]
            )


@contextmanager
def checked(path: Path, lock_timeout: float = 5.0, *, repair: bool = False, progress: Progress | None = None) -> Iterator[Checked]:
    """Read a whole store from its files, and its index beside it.

    Args:
        path: the folder, resolved.
        lock_timeout: seconds to wait for a process that opens or recovers the store.
        repair: put records whose namespace is lost into threads of their own, in the index that is built from the files.
        progress: told how many bytes of the log of how many were read.

    Raises:
        StoreMissingError, NotAStoreError, FormatVersionError: there is nothing to read, or nothing that this version knows.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ckptstore-verify-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        log, present = _held(stack, path, folder, lock_timeout)
        index = LmdbIndex(folder / "fresh")
        stack.callback(index.close)
        done = Checked(log, present, index, repair, progress)
        stack.callback(done._fold.close)
        yield done


def _held(stack: ExitStack, path: Path, folder: Path, lock_timeout: float) -> tuple[Log, _Present]:
    layout = Layout(path)
    lock = FolderLock(layout.lock, create=False, reading=True) if layout.lock.exists() else None
    if lock is None:
        log = stack.enter_context(_log(path))
        return log, _Present(None, None, False, "it has no LOCK file, so nobody ever opened it")
    try:
        deadline = time.monotonic() + lock_timeout
        while True:
            if lock.try_exclusive():
                # Nobody has it open, and nobody gets in before the index was copied and the files are held.
                log = stack.enter_context(_log(path))
                return log, _copied(stack, log, folder)
            if lock.try_shared():
                # As long as this lock is held nobody is alone inside, so opening joins and recovers nothing.
                stack.callback(lock.close)
                held, lock = lock, None
                return _joined(stack, path, lock_timeout, held)
            if time.monotonic() > deadline:
                log = stack.enter_context(_log(path))
                return log, _Present(None, None, True, f"process {lock.owner()} was opening the store all the time")
            time.sleep(0.005)
    finally:
        if lock is not None:
            lock.close()


@contextmanager
def _log(path: Path) -> Iterator[Log]:
    log = Log(path)
    try:
        yield log
    finally:
        log.close()


def _joined(stack: ExitStack, path: Path, lock_timeout: float, lock: FolderLock) -> tuple[Log, _Present]:
    try:
        storage = LocalStorage(path, StoreOptions(read_only=True, lock_timeout=lock_timeout))
    except (CkptStoreError, OSError) as error:
        log = stack.enter_context(_log(path))
        if isinstance(error, StaleIndexError):
            log.faults.append(Fault(str(error)))
        return log, _Present(None, None, True, str(error))
    stack.callback(storage.close)
    try:
        log, view = hold(storage, stack, stack)
    except LockTimeoutError as error:
        log = stack.enter_context(_log(path))
        return log, _Present(None, None, True, str(error))
    return log, _Present(view, get_end(view.kv), True, "")


def hold(storage: LocalStorage, files: ExitStack, snapshot: ExitStack) -> tuple[Log, HeldView]:
    """The files of an open store and a snapshot of its index that belong together, each held until its stack is left.

    Raises:
        LockTimeoutError: compactions came in between all the time.
    """
    for _ in range(_TRIES):
        with ExitStack() as holding, ExitStack() as viewing:
            before = viewing.enter_context(storage.view())
            log = holding.enter_context(_log(storage.path))
            with storage.view() as after:
                same = before.compactions() == after.compactions()
            if same:
                files.push(holding.pop_all())
                snapshot.push(viewing.pop_all())
                return log, _view_of(before, log)
    raise LockTimeoutError(f"{storage.path} was being compacted all the time")


def void_in(log: Log, view: HeldView) -> set[int]:
    """Segments that do not count in a snapshot of a store in use: replaced ones, a replacing one that is not published, and those that
    were begun since."""
    void: set[int] = set()
    end = get_end(view.kv)
    for held in log.held:
        if end is not None and held.header is not None and held.header.base_lsn >= end.next_lsn and held.number != end.segment:
            void.add(held.number)
        elif held.header is not None and held.header.replaces:
            there = log.void.intersection(held.header.replaces)
            void.update(there if not there or is_published(view.kv, held.number) else {held.number})
    return void


def _view_of(view: View, log: Log) -> HeldView:
    return log.view(view._kv)


def _copied(stack: ExitStack, log: Log, folder: Path) -> _Present:
    """The index of a store that nobody has open, copied, if it may be opened at all: see opening.py for the evidence."""
    layout = log.layout
    owner, clean = read_owner(layout), read_clean(layout)
    end = None
    if clean is not None and log.identity is not None and clean.get("uuid") == log.identity.uuid.hex():
        end = End(*clean["end"])
    kind = KINDS.get(str((owner or {}).get("kind")))
    if owner is None or kind is None or owner.get("version") != kind.version:
        return _Present(None, end, False, "there is no index that this version may use: the next open builds one")
    source = layout.epoch(int(owner["epoch"]))
    try:
        status = (source / kind.data_name).stat()
    except OSError:
        return _Present(None, end, False, "the index is missing: the next open builds it")
    same_boot = boot_id() is not None and owner.get("boot") == boot_id() and [status.st_dev, status.st_ino] == owner.get("file")
    tidy = end is not None and clean is not None and clean.get("epoch") == owner.get("epoch")
    if owner.get("stale") or not (same_boot or tidy):
        return _Present(None, end, False, "nothing vouches for the index: the next open builds it anew")
    if log.void or layout.poison.exists():
        return _Present(None, end, False, "the store was not left in order: the next open recovers it and builds the index anew")
    copy = folder / "present"
    copy.mkdir()
    for name in (kind.data_name, f"{kind.data_name}-wal"):
        if (source / name).exists():
            shutil.copyfile(source / name, copy / name)
    try:
        index = kind(copy)
        stack.callback(index.close)
        if index.is_cut():
            return _Present(None, end, False, "the end of the index is missing: the next open builds it anew")
        kv = stack.enter_context(index.read())
        known = get_end(kv)
    except CkptStoreError as error:
        return _Present(None, end, False, f"the index cannot be read: {error}")
    if known is None or (tidy and not same_boot and known != end):
        return _Present(None, end, False, "the index does not agree with what vouches for it: the next open builds it anew")
    return _Present(log.view(kv), known, False, "")
