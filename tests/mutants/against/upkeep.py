"""Mutants against 'Checking and copying the store'."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BACKUP = "ckptstore/storage/local/backup.py"
SALVAGE = "ckptstore/upkeep/salvage.py"
CHECKING = "ckptstore/storage/local/checking.py"

MUTANTS = {
    "`verify` names segment": [
        Mutant(
            "verify-skips-bodies",
            "verify does not compare bodies with their checksum",
            "ckptstore/storage/local/inspection.py",
            [("        if crc32(data[middle:]) != header.bodies_crc:\n", "        if False:\n")],
            by=["test_a_flipped_bit_is_named"],
        ),
        Mutant(
            "verify-names-nobody",
            "verify does not say whom damage hits",
            "ckptstore/upkeep/checker.py",
            [("        return self._from_index(problem, fault.lsn)\n", "        return problem\n")],
            by=["test_a_flipped_bit_is_named"],
        ),
        Mutant(
            "verify-believes-the-index",
            "verify does not compare the index with the log",
            CHECKING,
            [
                (
                    "        if self.present is not None and not self.damaged:\n            compacted",
                    "        if False:\n            compacted",
                )
            ],
            by=["test_an_index_that_lies"],
        ),
        Mutant(
            "verify-opens-the-store",
            "verify opens a store that nobody has open, and closes it again",
            "ckptstore/folders.py",
            [
                (
                    '    with checking.checked(named_folder("store", store), progress=progress) as log:\n',
                    '    open(named_folder("store", store)).close()\n'
                    '    with checking.checked(named_folder("store", store), progress=progress) as log:\n',
                )
            ],
            by=["test_nothing_is_written"],
        ),
        Mutant(
            "verify-reads-what-is-being-written",
            "verify reads behind the published end while others write",
            CHECKING,
            [
                (
                    "            if self._in_use:\n                stop = end\n            else:",
                    "            if self._in_use:\n                end = held.size\n            else:",
                )
            ],
            by=["test_a_frame_that_is_not_published_yet_is_not_read"],
        ),
    ],
    "A restored backup answers": [
        Mutant(
            "backup-behind-the-end",
            "a backup holds what stands behind the published end",
            BACKUP,
            [("        stop = self._end.tail if last else held.size\n", "        stop = held.size\n")],
            by=["test_only_what_is_new_is_copied"],
        ),
        Mutant(
            "backup-misses-the-newest",
            "a backup lacks the newest segment",
            BACKUP,
            [
                (
                    "        for held in self._held:\n            items.append",
                    "        for held in self._held[:-1] or self._held:\n            items.append",
                )
            ],
            by=["test_only_what_is_new_is_copied"],
        ),
        Mutant(
            "backup-not-flushed",
            "a backup counts before its files are flushed",
            BACKUP,
            [
                (
                    '        fd = self._vfs.open(self._layout.segments / f"{name}.seg", create=True)\n'
                    "        try:\n"
                    "            crc = self._copy(held, fd, 0, stop, 0)\n"
                    "            self._vfs.fdatasync(fd)\n",
                    '        fd = self._vfs.open(self._layout.segments / f"{name}.seg", create=True)\n'
                    "        try:\n"
                    "            crc = self._copy(held, fd, 0, stop, 0)\n",
                )
            ],
            by=["test_power_cuts_in_a_backup"],
        ),
        Mutant(
            "backup-swept-first",
            "files of the old backup are deleted before the new one counts",
            BACKUP,
            [
                (
                    "        index = kept_kind(self._log.layout.index)\n",
                    "        self._sweep({item.file for item in items})\n        index = kept_kind(self._log.layout.index)\n",
                )
            ],
            by=["test_a_killed_backup_is_the_old_one_or_the_new_one"],
        ),
        Mutant(
            "damage-backed-up",
            "a damaged store replaces a good backup",
            BACKUP,
            [
                (
                    "            if piece.frame is None:\n                raise CorruptionError(\n",
                    "            if piece.frame is None and piece.location.segment < 0:\n                raise CorruptionError(\n",
                )
            ],
            by=["test_a_damaged_store_does_not_replace_a_good_backup"],
        ),
        Mutant(
            "compacted-meanwhile",
            "a backup takes segments and index of two moments",
            CHECKING,
            [("                same = before.compactions() == after.compactions()\n", "                same = True\n")],
            by=["test_a_compaction_between_looking_and_copying"],
        ),
    ],
    "Where a store is being restored": [
        Mutant(
            "restored-in-place",
            "a store is restored where it is to be, piece by piece",
            BACKUP,
            [
                ('    beside = path.with_name(f".{path.name}.restoring")\n', "    beside = path\n"),
                ("            vfs.rename(beside, path)\n", ""),
            ],
            by=["test_a_killed_restore_leaves_nothing_or_all"],
        ),
        Mutant(
            "restored-and-not-flushed",
            "a restored store gets its name before its segments are flushed",
            BACKUP,
            [("                copied(data)\n            vfs.fdatasync(out)\n", "                copied(data)\n")],
            by=["test_power_cuts_in_a_restore"],
        ),
        Mutant(
            "damaged-backup-restored",
            "a backup is restored without a look at its checksums",
            BACKUP,
            [("    if (size, crc) != (item.bytes, item.crc):\n", "    if False:\n")],
            by=["test_a_damaged_backup_restores_nothing"],
        ),
        Mutant(
            "timeline-kept",
            "a restored store goes on with the timeline of the one that was backed up",
            BACKUP,
            [("    identity = before._replace(timelines=(*before.timelines, os.urandom(8)))\n", "    identity = before\n")],
            by=["test_a_new_timeline"],
        ),
    ],
    "`salvage` saves every checkpoint": [
        Mutant(
            "salvage-lost-ancestor-empty",
            "a checkpoint whose ancestor is lost reads as one without a past",
            SALVAGE,
            [("                lane.lost.add(lane.hashes[entry.number])\n", "                pass\n")],
            by=["test_a_lost_ancestor_is_an_error_and_not_an_empty_past"],
        ),
        Mutant(
            "salvage-lost-writes-empty",
            "a checkpoint that lost writes were made by reads without them",
            SALVAGE,
            [("            return self._lost_past(record, self._channels_of(lane, entry.parent))\n", "            return None\n")],
            by=["test_lost_writes_are_an_error_where_they_are_needed"],
        ),
        Mutant(
            "salvage-names-nothing",
            "what is lost is not named",
            SALVAGE,
            [
                (
                    "        self._lost.append(Problem(text, lsn=lsn, thread=lane.name.thread, ns=lane.name.ns, "
                    "checkpoint=checkpoint))\n",
                    "",
                )
            ],
            by=["test_a_lost_ancestor_is_an_error_and_not_an_empty_past"],
        ),
        Mutant(
            "salvage-in-another-order",
            "what is saved comes newest first",
            SALVAGE,
            [
                (
                    "        for _, _, step in sorted(steps, key=lambda item: item[:2]):\n",
                    "        for _, _, step in sorted(steps, key=lambda item: item[:2], reverse=True):\n",
                )
            ],
            by=["test_a_lost_ancestor_is_an_error_and_not_an_empty_past"],
        ),
        Mutant(
            "salvage-ends-at-damage",
            "a thread is saved up to its first damaged checkpoint",
            SALVAGE,
            [
                (
                    "            step()\n        for lane in lanes:\n",
                    "            if self._lost:\n                break\n            step()\n        for lane in lanes:\n",
                )
            ],
            by=["test_a_lost_ancestor_is_an_error_and_not_an_empty_past"],
        ),
    ],
}
