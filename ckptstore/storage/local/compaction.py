"""Compaction: rewrite sealed segments without their dead records, beside running readers and writers.

Neighbouring segments are rewritten together, into one new segment that lists all it replaces. Per group, and what a kill or a power cut
leaves behind:

    write      `<id>.seg.tmp`, fsynced: nothing happened; swept at the next open
    check      under the commit lock: what was appended since the survey must not need what falls away, else the group is left alone
    name       rename, folder fsynced: from here on a recovery takes the new segment and deletes the old ones
    publish    the index points into the new segment with all frames that change, and forgets those that fall away, in the same
               transaction that counts the compaction. A process that dies between
               name and publish leaves a segment that nobody knows; the next holder of the commit lock takes it back (engine.py),
               a recovery believes it: both are right, since nothing was appended in between
    repoint    the rest of the index, in portions; those frames are the same in both, so readers may use either
    unlink     the old segments. Readers that hold them open go on; whoever comes late finds the file gone and asks the index again

Frames keep their LSNs, and records their ordinals: a dead record leaves a void entry. Extra space is one new segment at a time.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.codec.records import VOID, Kind, checkpoint_refs, pack, value_facts, writes_refs
from ckptstore.errors import CorruptionError, LockTimeoutError, NoSpaceError
from ckptstore.model import Ref
from ckptstore.storage import Compaction, Rewrite, Survey, View
from ckptstore.storage.catalog import Kv
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.frames import drop_location, get_location, located, publish, put_location
from ckptstore.storage.local.hints import write_hint
from ckptstore.storage.local.index import IndexEnv, IndexFullError
from ckptstore.storage.local.locks import FolderLock
from ckptstore.storage.local.recovery import End
from ckptstore.storage.local.segment import Location

if TYPE_CHECKING:
    from ckptstore.storage.local.engine import Engine

# LSNs repointed in one hold of the commit lock: a few milliseconds.
_PORTION = 2000
_SPARE = 4 << 20
# Of a smaller segment the scan is as fast as its hint, which takes a block of its own on the disk.
_HINTED_FROM = 64 << 10


class _Written(NamedTuple):
    """A rewritten group, not yet named."""

    header: fmt.SegmentHeader
    locations: dict[int, Location]
    size: int
    kept: frozenset[Ref]
    """Records of the group that live on."""
    altered: frozenset[int]
    """LSNs of frames that fall away or are not what they were."""


class Compactor:
    """One compaction."""

    def __init__(self, engine: Engine, index: IndexEnv, timeout: float) -> None:
        self._engine = engine
        self._index = index
        self._timeout = timeout
        self._segments = engine.segments
        self._vfs = engine.vfs

    def run(self, survey: Callable[[View], Survey], least_dead: float, stop: Callable[[], bool]) -> Compaction:
        with self._alone():
            end = self._engine.begin_segment(self._timeout)
            headers = self._sealed(end)
            dead = self._dead_bytes()
            with self._engine.view() as view:
                surveyed = survey(view)
            groups = self._groups(headers, dead, least_dead)
            before = sum(self._size(header) for group in groups for header in group)
            after = dropped = written = 0
            damage: CorruptionError | None = None
            for group in groups:
                try:
                    done = None if stop() else self._compact(group, surveyed, end.next_lsn)
                except CorruptionError as error:
                    # The group stays as it is; the others do not depend on it.
                    damage, done = damage or error, None
                if done is None:
                    after += sum(self._size(header) for header in group)
                    continue
                written += 1
                after += done[0]
                dropped += done[1]
            if damage is not None:
                raise damage
            return Compaction(sum(map(len, groups)), written, before, after, dropped)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One compaction a store: an flock that dies with the process."""
        lock = FolderLock(self._engine.layout.compact, create=True)
        try:
            if not lock.try_exclusive():
                raise LockTimeoutError(f"{self._engine.layout.root} is being compacted by another process or thread")
            yield
        finally:
            lock.close()

    # -- what to rewrite ------------------------------------------------------------------------------------------------

    def _sealed(self, end: End) -> list[fmt.SegmentHeader]:
        """Sealed segments in LSN order; first ends the work of a compaction that was killed after it published."""
        headers = {number: self._segments.header(number) for number in self._segments.numbers()}
        replaced = {old for header in headers.values() for old in header.replaces} & headers.keys()
        for header in headers.values():
            left = [old for old in header.replaces if old in replaced]
            if left:
                self._repoint(header, self._locations(header), left)
        # Others commit meanwhile: what was active may be full by now, and have successors. All of these stay out.
        active = headers[end.segment].base_lsn
        return sorted(
            (header for number, header in headers.items() if number not in replaced and header.base_lsn < active),
            key=lambda header: header.base_lsn,
        )

    def _dead_bytes(self) -> dict[int, int]:
        """Bytes of frames known to be wholly dead, by segment."""
        dead: dict[int, int] = {}
        with self._index.read() as kv:
            for lsn in View(kv).dead():
                location = get_location(kv, lsn)
                if location is not None:
                    dead[location.segment] = dead.get(location.segment, 0) + location.length
        return dead

    def _groups(self, headers: list[fmt.SegmentHeader], dead: dict[int, int], least_dead: float) -> list[list[fmt.SegmentHeader]]:
        """Runs of neighbours worth rewriting, each about one segment when rewritten. Runs, so that LSNs stay in file order."""
        groups: list[list[fmt.SegmentHeader]] = []
        run: list[fmt.SegmentHeader] = []
        for header in headers:
            size = self._size(header)
            live = size - dead.get(header.segment, 0)
            worth = dead.get(header.segment, 0) >= max(1, size * least_dead) if least_dead else True
            room = sum(self._size(other) - dead.get(other.segment, 0) for other in run) + live
            if run and (not worth or room > self._engine.options.segment_bytes):
                groups.append(run)
                run = []
            if worth:
                run.append(header)
        if run:
            groups.append(run)
        return groups

    def _size(self, header: fmt.SegmentHeader) -> int:
        return self._vfs.size(self._segments.fd(header.segment))

    # -- one group ------------------------------------------------------------------------------------------------------

    def _compact(self, group: list[fmt.SegmentHeader], survey: Survey, surveyed: int) -> tuple[int, int] | None:
        """Rewrite a group; None where it stays as it is. Returns the new size and the number of frames that fell away."""
        end = self._end_of(group)
        rewrite = survey.rewriter(group[0].base_lsn, end)
        self._refuse_without_space(sum(map(self._size, group)))
        number = self._reserve()
        temporary = self._engine.layout.segments / f"{number:020d}.seg.tmp"
        try:
            written = self._write(number, group, end, rewrite)
            if written is None or not self._publish(written, group, surveyed):
                self._vfs.unlink(temporary)
                return None
        except CorruptionError:
            self._vfs.unlink(temporary)
            raise
        except OSError as error:
            if self._vfs.exists(temporary):
                self._vfs.unlink(temporary)
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and not isinstance(error, NoSpaceError):
                raise NoSpaceError(f"no space to compact {self._engine.layout.root}: nothing was changed") from None
            raise
        self._vfs.point("compact:published")
        self._repoint(written.header, written.locations, [header.segment for header in group])
        return written.size, (end - group[0].base_lsn) - len(written.locations)

    def _end_of(self, group: list[fmt.SegmentHeader]) -> int:
        """The LSN after the last one that the group covers: where its successor begins."""
        last = group[-1]
        following = [
            header.base_lsn
            for number in self._segments.numbers()
            if (header := self._segments.header(number)).base_lsn > last.base_lsn
        ]
        return min(following)

    def _refuse_without_space(self, needed: int) -> None:
        free = shutil.disk_usage(self._engine.layout.root).free
        if free < needed + _SPARE:
            raise NoSpaceError(
                f"compaction needs up to {needed} bytes beside what is there, {free} are free: nothing was changed. Free some space"
            )

    def _reserve(self) -> int:
        """An id for the new segment, held by its temporary file."""
        with self._engine.commit_lock(self._timeout):
            number = self._engine.new_segment_number()
            self._vfs.close(self._vfs.open(self._engine.layout.segments / f"{number:020d}.seg.tmp", create=True))
            return number

    def _write(self, number: int, group: list[fmt.SegmentHeader], end: int, rewrite: Rewrite) -> _Written | None:
        """Write the new segment under its temporary name, durably; None where nothing would be gained."""
        replaces = tuple(sorted({old for header in group for old in (header.segment, *header.replaces)}))
        header = self._segments.new_header(number, group[0].base_lsn, end, replaces)
        fd = self._vfs.open(self._engine.layout.segments / f"{number:020d}.seg.tmp", create=True)
        locations: dict[int, Location] = {}
        kept: set[Ref] = set()
        altered: set[int] = set()
        changed = len(group) > 1
        try:
            data = fmt.encode_segment_header(header)
            self._vfs.pwrite(fd, data, 0)
            offset, chain = len(data), header.salt
            read: set[int] = set()
            for old in group:
                for found in self._segments.scan(old.segment, old.length, old.salt):
                    read.add(found.header.lsn)
                    records = rewrite(found.frame)
                    changed = (
                        changed
                        or records is None
                        or any(
                            record is None and entry[0] != Kind.VOID
                            for record, entry in zip(records, found.frame.entries, strict=True)
                        )
                    )
                    lsn = found.header.lsn
                    if records is None:
                        altered.add(lsn)
                        continue
                    entries = [VOID if record is None else record.entry() for record in records]
                    if [list(entry) for entry in entries] != found.frame.entries:
                        altered.add(lsn)
                    bodies = b"".join(record.body for record in records if record is not None)
                    frame, chain = fmt.encode_frame(chain, lsn, found.header.durable, pack(entries), bodies)
                    self._vfs.pwrite(fd, frame, offset)
                    locations[lsn] = Location(number, offset, len(frame))
                    kept.update(Ref(lsn, ordinal) for ordinal, record in enumerate(records) if record is not None)
                    offset += len(frame)
            self._refuse_damage(group[0].base_lsn, end, read)
            if not changed:
                return None
            self._vfs.point("compact:written")
            self._vfs.fdatasync(fd)
        finally:
            self._vfs.close(fd)
        self._vfs.point("compact:synced")
        return _Written(header, locations, offset, frozenset(kept), frozenset(altered))

    def _refuse_damage(self, first: int, end: int, read: set[int]) -> None:
        """A scan ends at a bad frame: what stands behind it would be lost with the old segment."""
        with self._index.read() as kv:
            lsn = min((lsn for lsn in located(kv, first, end - first) if lsn not in read), default=None)
            location = None if lsn is None else get_location(kv, lsn)
        if location is not None:
            raise CorruptionError(
                f"{self._engine.layout.segment(location.segment)}: the frame of LSN {lsn} at offset {location.offset} cannot be "
                "read. This segment and its neighbours were not compacted, nothing was changed in them: `ckpt verify` "
                "names all that is damaged, `ckpt salvage` makes a store of what is whole"
            )

    def _publish(self, written: _Written, group: list[fmt.SegmentHeader], surveyed: int) -> bool:
        """Name the new segment and let the index point into it; False where a later commit needs what fell away."""
        path = self._engine.layout.segment(written.header.segment)
        while True:
            try:
                with self._engine.commit_lock(self._timeout), self._index.write() as kv:
                    if not self._suffices(kv, written, surveyed):
                        return False
                    view = View(kv)
                    view.count_compaction()
                    publish(kv, written.header.segment)
                    # What falls away or changes does so in the moment that counts: whoever looks before sees an older count, and chooses
                    # anew at its commit; whoever looks after sees what is left. Frames that stay as they are move later, in portions.
                    self._move(kv, written.altered, written.locations, {old.segment for old in group})
                    if not self._vfs.exists(path):
                        self._vfs.point("compact:checked")
                        self._vfs.rename(path.with_name(path.name + ".tmp"), path)
                        self._vfs.sync_folder(self._engine.layout.segments)
                        self._vfs.point("compact:named")
                return True
            except IndexFullError:
                continue

    def _suffices(self, kv: Kv, written: _Written, surveyed: int) -> bool:
        """Whether all that was appended since the survey finds what it references in the new segment."""
        end_lsn = written.header.end_lsn
        lsn = surveyed
        while (location := get_location(kv, lsn)) is not None:
            _, entries = self._segments.read_directory(location)
            for entry in entries:
                for ref in _references(lsn, entry):
                    if written.header.base_lsn <= ref.lsn < end_lsn and ref not in written.kept:
                        return False
            lsn += 1
        return True

    def _locations(self, header: fmt.SegmentHeader) -> dict[int, Location]:
        return {found.header.lsn: found.location for found in self._segments.scan(header.segment, header.length, header.salt)}

    def _move(self, kv: Kv, lsns: Iterable[int], locations: dict[int, Location], replaced: set[int]) -> None:
        """Let the index point at the new place of frames that stood in old segments, or forget those that have none."""
        view = View(kv)
        for lsn in lsns:
            known = get_location(kv, lsn)
            if known is None or known.segment not in replaced:
                continue
            if lsn in locations:
                put_location(kv, lsn, locations[lsn])
            else:
                drop_location(kv, lsn)
                view.drop_dead(lsn)

    def _repoint(self, header: fmt.SegmentHeader, locations: dict[int, Location], old: list[int]) -> None:
        """Move the index over, in portions, and delete the old segments."""
        replaced = set(old)
        first, end = header.base_lsn, header.end_lsn
        while True:
            try:
                with self._engine.commit_lock(self._timeout), self._index.write() as kv:
                    portion = list(islice(located(kv, first, end - first), _PORTION))
                    self._move(kv, portion, locations, replaced)
            except IndexFullError:
                continue
            if not portion:
                break
            end = portion[-1]
            self._vfs.point("compact:portion")
        self._vfs.point("compact:repointed")
        for number in old:
            self._vfs.unlink(self._engine.layout.segment(number))
            if self._vfs.exists(self._engine.layout.hint(number)):
                self._vfs.unlink(self._engine.layout.hint(number))
        self._vfs.sync_folder(self._engine.layout.segments)
        self._segments.retire(old)
        self._vfs.point("compact:unlinked")
        if self._size(header) >= _HINTED_FROM:
            with suppress(CorruptionError, OSError):  # nothing depends on it
                write_hint(self._segments, header.segment)


def _references(lsn: int, entry: list[object]) -> Iterable[Ref]:
    """Records that a record of a new frame references."""
    kind = entry[0]
    if kind == Kind.CHECKPOINT:
        return checkpoint_refs(lsn, entry)
    if kind == Kind.WRITES:
        return writes_refs(lsn, entry)
    if kind == Kind.VALUE:
        facts = value_facts(lsn, entry)
        return (*facts.bases, *facts.folds)
    return ()
