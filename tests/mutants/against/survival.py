"""Mutants against 'What survives'."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ENGINE = "ckptstore/storage/local/engine.py"
HANDLE = "ckptstore/storage/local/handle.py"
OPENING = "ckptstore/storage/local/opening.py"
RECOVERY = "ckptstore/storage/local/recovery.py"

MUTANTS = {
    "After `kill -9` at any moment": [
        Mutant(
            "frame-written-later",
            "a call returns before its frame was written",
            ENGINE,
            [
                (
                    "                vfs.pwrite(fd, frame, end.tail)",
                    "                threading.Timer(0.05, vfs.pwrite, (fd, frame, end.tail)).start()",
                )
            ],
            by=["test_killed_while_writing"],
        ),
        Mutant(
            "frame-published-too-long",
            "the published end lies one byte before that of the frame",
            ENGINE,
            [
                (
                    "after = End(end.segment, end.tail + len(frame), lsn + 1, crc)",
                    "after = End(end.segment, end.tail + len(frame) - 1, lsn + 1, crc)",
                )
            ],
            by=["test_killed_while_writing"],
        ),
        Mutant(
            "a-point-nobody-is-killed-at",
            "the source has a step at which no test kills a process",
            ENGINE,
            [('vfs.point("commit:indexed")', 'vfs.point("commit:indexed")\n                vfs.point("commit:another")')],
            by=["test_every_point_of_the_source_is_killed_at"],
        ),
    ],
    "[survival.md](survival.md) says": [
        Mutant(
            "a-point-not-in-the-table",
            "the source has a step that the page says nothing of",
            ENGINE,
            [('vfs.point("commit:published")', 'vfs.point("commit:published")\n        vfs.point("commit:later")')],
            by=["test_the_table_names_every_point_of_the_source_and_each_was_survived"],
        ),
    ],
    "So also while a store is created": [
        Mutant(
            "store-named-before-its-segment",
            "a new store gets its name before its first segment",
            OPENING,
            [
                (
                    "        Segments(vfs, layout, identity).create(1, 1)\n        write_identity(vfs, layout, identity)",
                    "        write_identity(vfs, layout, identity)\n        Segments(vfs, layout, identity).create(1, 1)",
                )
            ],
            by=["test_killed_while_creating"],
        ),
        Mutant(
            "closing-cuts-too-much",
            "the last one out cuts the last frame off",
            ENGINE,
            [
                (
                    "self.vfs.truncate(self.segments.fd(end.segment), end.tail)",
                    "self.vfs.truncate(self.segments.fd(end.segment), end.tail - 1)",
                )
            ],
            by=["test_killed_while_closing"],
        ),
        Mutant(
            "healing-deletes-first",
            "a recovery from a failed fsync deletes the old segment before the copy has its name",
            RECOVERY,
            [
                (
                    "    header, chain, size = segments.create(number, old.base_lsn, (old.segment, "
                    "*old.replaces), end.next_lsn, seal)\n"
                    "    segments.vfs.unlink(segments.layout.segment(old.segment))\n",
                    "    segments.vfs.unlink(segments.layout.segment(old.segment))\n"
                    "    header, chain, size = segments.create(number, old.base_lsn, (old.segment, "
                    "*old.replaces), end.next_lsn, seal)\n",
                )
            ],
            by=["test_killed_while_recovering_from_a_failed_fsync"],
        ),
    ],
    'With `durability="commit"` a power cut': [
        Mutant(
            "no-fdatasync",
            "a commit is not flushed",
            ENGINE,
            [("            self.vfs.fdatasync(self.segments.fd(segment))\n            taken", "            taken")],
            by=["test_commit_keeps_every_acknowledged_call_whenever_the_power_goes"],
        ),
        Mutant(
            "acknowledged-before-the-fsync",
            "a call returns while its fsync is still going on",
            HANDLE,
            [
                (
                    "                    engine.make_durable(lsn, segment)",
                    "                    threading.Timer(0.05, engine.make_durable, (lsn, segment)).start()",
                )
            ],
            by=["test_commit_keeps_every_acknowledged_call_whenever_the_power_goes"],
        ),
        Mutant(
            "new-segment-without-folder-fsync",
            "the folder is flushed before a new segment has its name in it",
            "ckptstore/storage/local/vfs.py",
            [
                (
                    "        self.rename(temporary, path)\n"
                    '        self.point(f"renamed:{path.name}")\n'
                    "        self.sync_folder(path.parent)\n",
                    "        self.sync_folder(path.parent)\n"
                    "        self.rename(temporary, path)\n"
                    '        self.point(f"renamed:{path.name}")\n',
                )
            ],
            by=["test_commit_keeps_every_acknowledged_call_whenever_the_power_goes"],
        ),
        Mutant(
            "new-segment-without-fdatasync",
            "the content of a new segment is not flushed before it gets its name",
            "ckptstore/storage/local/vfs.py",
            [("            self.pwrite(fd, data, 0)\n            self.fdatasync(fd)\n", "            self.pwrite(fd, data, 0)\n")],
            by=["test_commit_keeps_every_acknowledged_call_whenever_the_power_goes"],
        ),
        Mutant(
            "torn-frame-accepted",
            "a frame counts as whole though its end is missing",
            "ckptstore/storage/local/format.py",
            [("        and crc32(data[middle:]) == header.bodies_crc\n", "")],
            by=["test_commit_keeps_every_acknowledged_call_whenever_the_power_goes"],
        ),
        Mutant(
            "an-earlier-fsync-covers-it",
            "an fsync counts for calls that were published after it began",
            ENGINE,
            [
                (
                    "                target = self._published if self._published.segment == segment else None\n"
                    "                self._fsync(segment)\n",
                    "                self._fsync(segment)\n"
                    "                target = self._published if self._published.segment == segment else None\n",
                )
            ],
            by=["test_an_fsync_that_began_before_a_call_does_not_cover_it"],
        ),
        Mutant(
            "recovered-and-not-flushed",
            "what a recovery shows to readers is called durable and was not flushed",
            OPENING,
            [("            self.vfs.fdatasync(self.segments.fd(end.segment))\n        except", "            pass\n        except")],
            by=["test_what_is_read_after_a_kill_survives_a_power_cut"],
        ),
        Mutant(
            "index-of-another-boot",
            "an index is opened after a reboot although it was not closed in order",
            OPENING,
            [("        if not same_boot and not tidy:\n            return None\n", "")],
            by=["test_a_store_that_was_not_closed_is_trusted_on_the_same_boot_only"],
        ),
        Mutant(
            "clean-stays",
            "the index is written to while CLEAN still vouches for it",
            ENGINE,
            [
                (
                    "                self.layout.clean.unlink()\n"
                    "                self.vfs.sync_folder(self.layout.index)\n"
                    "        self._session_began",
                    "                pass\n        self._session_began",
                )
            ],
            by=["test_clean_is_gone_before_the_first_write_of_a_session"],
        ),
    ],
    "With the other levels a power cut": [
        Mutant(
            "rotation-without-fsync",
            "a full segment is called durable without an fsync when the next one begins",
            ENGINE,
            [
                (
                    "        self._fsync(end.segment)\n        self._page.raise_durable(end.next_lsn - 1)",
                    "        self._page.raise_durable(end.next_lsn - 1)",
                )
            ],
        ),
        Mutant(
            "sync-does-nothing",
            "`sync` returns without a flush",
            ENGINE,
            [("            self.make_durable(end.next_lsn - 1, end.segment)", "            pass")],
        ),
        Mutant(
            "watermark-lies",
            "each frame says that the ones before it are durable",
            ENGINE,
            [
                (
                    "fmt.encode_frame(end.chain, end.next_lsn, self._page.durable, pack(entries), bodies)",
                    "fmt.encode_frame(end.chain, end.next_lsn, end.next_lsn - 1, pack(entries), bodies)",
                )
            ],
        ),
    ],
    "A full disk fails the call": [
        Mutant(
            "refused-bytes-stay",
            "what went out of a call that found no space stays in the log",
            ENGINE,
            [("                self.vfs.truncate(fd, written.tail)\n", "")],
            by=["test_no_space_keeps_nothing_of_the_call_and_everything_else"],
        ),
        Mutant(
            "only-enospc-is-no-space",
            "a quota or a file size limit is not taken for a full disk",
            "ckptstore/storage/local/failures.py",
            [("NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)", "NO_SPACE = (errno.ENOSPC,)")],
            by=["test_no_space_keeps_nothing_of_the_call_and_everything_else"],
        ),
        Mutant(
            "no-space-poisons",
            "after a full disk nobody may write any more",
            ENGINE,
            [
                (
                    "        if written is None:\n            return\n        try:",
                    '        if written is None:\n            return\n        self._poison("no space")\n        try:',
                )
            ],
            by=["test_a_full_disk_loses_nothing_and_the_step_resumes"],
        ),
    ],
    "A failed fsync is reported": [
        Mutant(
            "failed-fsync-swallowed",
            "a call whose fsync failed returns as if it had not",
            ENGINE,
            [("                raise self._unknown(lsn, str(error)) from None", "                return")],
            by=["test_a_failed_fsync_is_said_and_stops_all_writing"],
        ),
        Mutant(
            "no-poison",
            "a failed fsync does not stop anybody from writing on",
            ENGINE,
            [('            self._poison(f"fsync of segment {segment} failed: {error}")\n', "")],
            by=["test_a_failed_fsync_is_said_and_stops_all_writing"],
        ),
        Mutant(
            "second-fsync-believed",
            "after a failed fsync a second one that succeeds is believed",
            ENGINE,
            [
                (
                    "                if self._page.poisoned:\n"
                    '                    raise self._unknown(lsn, "an fsync failed earlier")\n',
                    "",
                )
            ],
            by=["test_a_failed_fsync_is_said_and_stops_all_writing"],
        ),
        Mutant(
            "poison-lifted-without-copying",
            "the recovery from a failed fsync goes on in the old file",
            OPENING,
            [
                (
                    "            end = recovery.rewrite_last(self.segments, headers, end)\n"
                    "            relocate(self._index, self.segments, headers[-1], end)\n",
                    "",
                )
            ],
            by=["test_recovery_after_a_failed_fsync_does_not_trust_the_old_file"],
        ),
        Mutant(
            "poison-not-looked-for",
            "an open after a failed fsync does not look for POISON",
            OPENING,
            [("        poisoned = vfs.exists(layout.poison)\n", "        poisoned = False\n")],
            by=["test_recovery_after_a_failed_fsync_does_not_trust_the_old_file"],
        ),
    ],
    "All this holds for the steps": [
        Mutant(
            "last-step-not-flushed",
            "an fsync is left out when only the newest call needs it",
            ENGINE,
            [("        while self._page.durable < lsn:", "        while self._page.durable < lsn - 1:")],
            by=["test_a_power_cut_takes_no_acknowledged_step"],
        ),
        Mutant(
            "step-moves-first",
            "the cursor moves before its step is stored",
            "ckptstore/thread.py",
            [
                (
                    "        self._store.put_checkpoint(\n            self._lane,\n            id,\n            self._tip,\n",
                    "        parent, self._tip = self._tip, id\n"
                    "        self._store.put_checkpoint(\n"
                    "            self._lane,\n"
                    "            id,\n"
                    "            parent,\n",
                ),
                ("        parent, self._tip = self._tip, id\n        return", "        return"),
            ],
            by=["test_a_full_disk_keeps_nothing_of_the_step_and_the_cursor_goes_on"],
        ),
        Mutant(
            "step-in-two-frames",
            "the writes of a step and its checkpoint are two commits",
            "ckptstore/lineage/commits.py",
            [
                ("                consumed = Consumed(every=(Ref(0, len(records)),))\n", ""),
                (
                    '                records.append(_batch(step, number, parent, draft.token, Origin.TASK, "", '
                    "channels, regular=True, child=None))\n",
                    "                consumed = Consumed(every=tuple(batch.ref for batch in view.writes(number, "
                    "parent_number or 0)))\n",
                ),
                (
                    "        lsn = self._storage.commit(resolve)\n        self._remember(Ref(lsn, ordinal)",
                    "        if step is not None and parent is not None:\n"
                    "            channels = _mask(channel for channel, _ in draft.step)\n"
                    "            self._storage.commit(\n"
                    "                lambda view: [\n"
                    "                    _batch(step, view.lane(*lane), parent, draft.token, Origin.TASK, '', "
                    "channels, regular=True, child=None)\n"
                    "                ]\n"
                    "            )\n"
                    "        lsn = self._storage.commit(resolve)\n"
                    "        self._remember(Ref(lsn, ordinal)",
                ),
            ],
            by=["test_killed_in_the_middle_of_a_step"],
        ),
    ],
    "An error of the disk in an open": [
        Mutant(
            "errors-of-the-system",
            "an error of the system is raised as it is",
            "ckptstore/storage/local/failures.py",
            [("        if isinstance(error, CkptStoreError):\n            raise\n", "        raise\n")],
            by=["test_an_error_anywhere_in_an_open_a_read_or_a_compaction_is_one_of_ours"],
        ),
    ],
    "A wall clock that jumps by years": [
        Mutant(
            "late-calls-by-the-clock",
            "a call is not late while the clock says that the deletion is still to come",
            "ckptstore/lineage/commits.py",
            [("        if ago <= self._options.late_window:\n", "        if 0 <= ago <= self._options.late_window:\n")],
            by=["test_a_late_call_is_refused_while_the_clock_is_behind"],
        ),
        Mutant(
            "lists-by-the-time-in-ids",
            "one namespace is listed by ids, and ids begin with the time",
            "ckptstore/lineage/listing.py",
            [("    elif len(lanes) == 1:\n", "    elif not lanes:\n")],
            by=["test_native_threads_do_not_go_by_the_time_in_their_ids"],
        ),
        Mutant(
            "held-for-less-than-nothing",
            "the error about a held lock says how long by whatever the clock says",
            "ckptstore/storage/local/locks.py",
            [("        held = max(0.0, (time.time_ns() - since) / 1e9)\n", "        held = (time.time_ns() - since) / 1e9\n")],
            by=["test_a_lock_times_out_by_a_clock_that_does_not_jump"],
        ),
    ],
    "`index/` can be deleted": [
        Mutant(
            "hint-forgets-records",
            "a hint holds only the first record of each frame",
            "ckptstore/storage/local/hints.py",
            [
                (
                    "[hashed_entry(entry) for entry in found.frame.entries])",
                    "[hashed_entry(entry) for entry in found.frame.entries[:1]])",
                )
            ],
            by=["test_a_lost_index_is_rebuilt_equal"],
        ),
        Mutant(
            "rebuild-forgets-locations",
            "a rebuilt index does not know where every second frame stands",
            "ckptstore/storage/local/rebuild.py",
            [
                (
                    "        put_location(kv, lsn, location)\n        catalog.apply(",
                    "        if lsn % 2:\n            put_location(kv, lsn, location)\n        catalog.apply(",
                )
            ],
            by=["test_a_reopened_store_gives_the_same_answers"],
        ),
        Mutant(
            "head-by-position-only",
            "a rebuild forgets that a head was moved",
            "ckptstore/storage/local/rebuild.py",
            [
                (
                    "if entry[0] == Kind.TOMBSTONE else entry for entry in entries])",
                    "if entry[0] == Kind.TOMBSTONE else entry for entry in entries if entry[0] != Kind.HEAD])",
                )
            ],
            by=["test_a_reopened_store_gives_the_same_answers"],
        ),
    ],
    "A torn tail is cut": [
        Mutant(
            "damage-taken-for-a-torn-tail",
            "a bad frame in the newest segment is a torn tail, whatever says that it was durable",
            RECOVERY,
            [("    if last and max(durable, later) < expected:\n", "    if last:\n")],
            by=["test_r45_every_byte_of_record_5_with_the_index_lost"],
        ),
        Mutant(
            "sealed-segment-torn",
            "damage at the end of a segment that has a successor is a torn tail",
            RECOVERY,
            [("    if last and max(durable, later) < expected:\n", "    if max(durable, later) < expected or not last:\n")],
            by=["test_damage_in_a_sealed_segment_is_never_a_torn_tail"],
        ),
        Mutant(
            "clean-not-compared",
            "nobody compares the end of the log with what CLEAN says",
            OPENING,
            [("            if next_lsn > end.next_lsn:\n", "            if False:\n")],
            by=["test_every_cut_of_a_record_that_something_vouches_for_is_refused"],
        ),
        Mutant(
            "truncation-not-noticed",
            "nobody compares the size of the newest segment with what the index says",
            OPENING,
            [("        if size < end.tail:\n", "        if False:\n")],
            by=["test_every_cut_of_a_record_that_something_vouches_for_is_refused"],
        ),
        Mutant(
            "torn-not-kept",
            "what is cut off a torn tail is thrown away",
            RECOVERY,
            [("        vfs.write_file(kept, extra)\n", "")],
            by=["test_r44_every_cut_of_the_last_record_of_a_killed_store"],
        ),
        Mutant(
            "torn-not-logged",
            "a torn tail is cut in silence",
            RECOVERY,
            [
                (
                    '        logger.warning("%s: cut %d bytes after offset %d; kept in %s", '
                    "layout.segment(segment), len(extra), tail, kept)\n",
                    "",
                )
            ],
            by=["test_r44_every_cut_of_the_last_record_of_a_killed_store"],
        ),
        Mutant(
            "torn-cut-before-it-is-kept",
            "a torn tail is cut before its copy is durable",
            RECOVERY,
            [
                (
                    '        vfs.write_file(kept, extra)\n        vfs.point("torn:kept")\n',
                    "        vfs.truncate(segments.fd(segment), tail)\n"
                    "        vfs.fdatasync(segments.fd(segment))\n"
                    "        vfs.write_file(kept, extra)\n"
                    '        vfs.point("torn:kept")\n',
                )
            ],
            by=["test_what_a_recovery_cuts_is_kept_whenever_the_power_goes"],
        ),
    ],
}
