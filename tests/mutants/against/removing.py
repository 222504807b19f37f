"""Mutants against 'Removing' and 'Late writes'."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REMOVAL = "ckptstore/upkeep/removal.py"
LIVENESS = "ckptstore/upkeep/compaction.py"
COMPACTOR = "ckptstore/storage/local/compaction.py"
CATALOG = "ckptstore/storage/catalog.py"
COMMITS = "ckptstore/lineage/commits.py"
RETENTION = "ckptstore/upkeep/retention.py"
ERASURE = "ckptstore/upkeep/erasure.py"

MUTANTS = {
    "`prune`, `copy_thread` and `delete_for_runs`": [
        Mutant(
            "prune-forgets-writes",
            "what a survivor keeps of removed ancestors is their values, not their writes",
            REMOVAL,
            [
                (
                    "    return encode_history(lane, read_record(view, entry.ref).id, needed)\n",
                    "    return encode_history(lane, read_record(view, entry.ref).id, {name: "
                    "past._replace(edges=()) for name, past in needed.items()})\n",
                )
            ],
            by=["test_prune_keeps_what_a_delta_channel_needs"],
        ),
        Mutant(
            "prune-forgets-values",
            "what a survivor keeps of removed ancestors is their writes, not their values",
            REMOVAL,
            [
                (
                    "    return encode_history(lane, read_record(view, entry.ref).id, needed)\n",
                    "    return encode_history(lane, read_record(view, entry.ref).id, {name: "
                    "past._replace(seed=None) for name, past in needed.items()})\n",
                )
            ],
            by=["test_prune_keeps_the_heads_and_their_past"],
        ),
        Mutant(
            "prune-without-history",
            "a survivor gets no history record",
            REMOVAL,
            [
                (
                    "                    histories.append(_survivor(view, lane, entry, kept))\n",
                    "                    _survivor(view, lane, entry, kept)\n",
                )
            ],
            by=["test_prune_copy_and_delete_for_runs_keep_every_state"],
        ),
        Mutant(
            "prune-takes-the-head",
            "prune keeps the oldest checkpoint in place of the head",
            REMOVAL,
            [
                (
                    "            chosen[lane] = {known for _, known in view.newest_first(lane)} - {keep}\n",
                    "            chosen[lane] = {known for _, known in view.newest_first(lane) if known != 1}\n",
                )
            ],
            by=["test_prune_copy_and_delete_for_runs_keep_every_state"],
        ),
        Mutant(
            "runs-by-half",
            "of a run only the first checkpoint is deleted",
            REMOVAL,
            [("            for lane, number in view.of_run(run):\n", "            for lane, number in view.of_run(run)[:1]:\n")],
            by=["test_prune_copy_and_delete_for_runs_keep_every_state"],
        ),
    ],
    "Of a native thread too": [
        Mutant(
            "pruned-tip-accepted",
            "a step is stored on a checkpoint that was removed",
            COMMITS,
            [("            if draft.require_parent and parent is not None and parent_ref is None:\n", "            if False:\n")],
            by=["test_a_tip_that_is_pruned_in_the_middle_of_a_step"],
        ),
        Mutant(
            "copies-go-with-their-source",
            "deleting a thread takes its copies away",
            CATALOG,
            [
                (
                    "        for lane in self.lanes(thread):\n            lane_key",
                    "        for lane in [*self.lanes(thread), *(copy for copy, _ in self.copied_lanes())]:\n            lane_key",
                )
            ],
            by=["test_a_copy_outlives_its_source"],
        ),
        Mutant(
            "copy-without-histories",
            "a copy lacks what its source kept of removed ancestors",
            CATALOG,
            [
                (
                    '        for prefix in (b"I", b"C", b"O", b"K", b"W", b"R"):\n'
                    "            for key, value in list(self._kv.scan(prefix + old)):\n",
                    '        for prefix in (b"I", b"C", b"O", b"K", b"W"):\n'
                    "            for key, value in list(self._kv.scan(prefix + old)):\n",
                )
            ],
            by=["test_a_copy_of_a_pruned_thread"],
        ),
        Mutant(
            "prune-forgets-what-steps-need",
            "prune keeps the past of one channel only",
            REMOVAL,
            [
                (
                    "    pasts = past(view, lane, entry, history_channels(view, lane, entry), admit_loss=True)\n",
                    "    pasts = past(view, lane, entry, history_channels(view, lane, entry)[:1], admit_loss=True)\n",
                )
            ],
            by=["test_prune_keeps_the_heads_state_and_what_steps_need"],
        ),
        Mutant(
            "deleted-cursor-accepted",
            "a cursor of a deleted thread steps on",
            COMMITS,
            [
                ("        if ago <= self._options.late_window:\n", "        if False:\n"),
                ("            if draft.require_parent and parent is not None and parent_ref is None:\n", "            if False:\n"),
            ],
            by=["test_a_thread_that_is_deleted_in_the_middle_of_a_step"],
        ),
    ],
    "A thread that is started again": [
        Mutant(
            "deleted-thread-stays",
            "a thread started again goes on where the deleted one was",
            CATALOG,
            [
                ("        for lane in self.lanes(thread):\n            lane_key", "        for lane in []:\n            lane_key"),
                (
                    '        self._clear(b"L" + packed)\n'
                    '        self._kv.delete(b"t" + packed)\n'
                    '        self._kv.delete(b"T" + hashed)\n',
                    "",
                ),
            ],
            by=["test_a_thread_started_again_after_deletion_is_empty"],
        ),
        Mutant(
            "thread-numbers-reused",
            "a thread started again gets the number of the deleted one",
            CATALOG,
            [("        return threads + 1, lanes + 1\n", "        return max(self.threads(), default=0) + 1, lanes + 1\n")],
            by=["test_a_number_is_never_given_again"],
        ),
        Mutant(
            "numbers-forgotten-by-compaction",
            "compaction takes away what says which numbers were given",
            LIVENESS,
            [('    return [encode_meta({"numbers": [thread - 1, lane - 1]})]\n', "    return []\n")],
            by=["test_a_number_is_never_given_again"],
        ),
    ],
    "Compaction changes no answer": [
        Mutant(
            "compaction-forgets-writes",
            "writes that stand on a checkpoint and made no child fall away",
            LIVENESS,
            [
                (
                    "            self._batches.update(batch.ref for batch in view.writes(lane, number))\n"
                    "            if entry is None:\n"
                    "                continue\n",
                    "            if entry is None:\n                continue\n",
                )
            ],
            by=["test_readers_see_no_difference"],
        ),
        Mutant(
            "compaction-forgets-histories",
            "history records fall away",
            LIVENESS,
            [("                self._records.add(history)\n", "")],
            by=["test_readers_see_no_difference"],
        ),
        Mutant(
            "compaction-forgets-the-head",
            "the record of a head that was moved falls away",
            LIVENESS,
            [
                (
                    "            return ref.lsn in self._choices\n        if kind == Kind.TOMBSTONE",
                    "            return False\n        if kind == Kind.TOMBSTONE",
                )
            ],
            by=["test_it_is_opened_rebuilt_written_to_and_compacted_again"],
        ),
        Mutant(
            "compaction-forgets-what-made-a-child",
            "writes that made a checkpoint fall away",
            LIVENESS,
            [
                ("                    self._batches.update(entry.consumed.refs())\n", "                    pass\n"),
                (
                    "            self._batches.update(batch.ref for batch in view.writes(lane, number))\n"
                    "            if entry is None:\n"
                    "                continue\n",
                    "            if entry is None:\n                continue\n",
                ),
            ],
            by=["test_readers_see_no_difference"],
        ),
        Mutant(
            "compaction-forgets-tombstones",
            "tombstones fall away while older records may be left",
            LIVENESS,
            [("            return self._still_says_something(ref.lsn, fields, oldest)\n", "            return False\n")],
            by=["test_it_is_opened_rebuilt_written_to_and_compacted_again"],
        ),
        Mutant(
            "compaction-forgets-bases",
            "the base of a value falls away and the value stays as it was",
            LIVENESS,
            [("            return self._encoded_anew(ref)\n", "            return kept(entry, frame.stored(ref.ordinal))\n")],
            by=["test_what_is_stored_after_a_compaction_rests_on_what_it_left"],
        ),
        Mutant(
            "compacted-segment-not-flushed",
            "a compacted segment gets its name before its content is flushed",
            COMPACTOR,
            [
                (
                    '            self._vfs.point("compact:written")\n            self._vfs.fdatasync(fd)\n',
                    '            self._vfs.point("compact:written")\n',
                )
            ],
            by=["test_a_power_cut_at_any_call"],
        ),
        Mutant(
            "unlinked-before-it-is-named",
            "old segments are deleted before the new one has its name",
            COMPACTOR,
            [
                (
                    '                        self._vfs.point("compact:checked")\n',
                    '                        self._vfs.point("compact:checked")\n'
                    "                        for header in group:\n"
                    "                            self._vfs.unlink(self._engine.layout.segment(header.segment))\n"
                    "                        self._vfs.sync_folder(self._engine.layout.segments)\n",
                ),
                (
                    "        for number in old:\n            self._vfs.unlink(self._engine.layout.segment(number))\n",
                    "        for number in old:\n",
                ),
            ],
            by=["test_a_power_cut_at_any_call"],
        ),
        Mutant(
            "later-commits-not-asked",
            "what was committed since the survey may lose what it rests on",
            COMPACTOR,
            [("                    if not self._suffices(kv, written, surveyed):\n                        return False\n", "")],
            by=["test_what_is_stored_while_a_compaction_writes_keeps_what_it_rests_on"],
        ),
        Mutant(
            "readers-keep-old-frames",
            "a reader goes on with frames that it cached before a compaction",
            COMPACTOR,
            [("                    view.count_compaction()\n", "")],
            by=["test_what_is_stored_after_a_compaction_rests_on_what_it_left"],
        ),
        Mutant(
            "a-death-takes-compacted-segments",
            "when a writer dies, compacted segments that are in use are taken for unfinished ones",
            "ckptstore/storage/local/engine.py",
            [("                if header.replaces and not is_published(kv, number):\n", "                if header.replaces:\n")],
            by=["test_a_compacted_segment_survives_the_death_of_a_writer"],
        ),
    ],
    "What was deleted gives its space back": [
        Mutant(
            "old-segments-stay",
            "compaction leaves the old segments where they are",
            COMPACTOR,
            [
                (
                    "        for number in old:\n            self._vfs.unlink(self._engine.layout.segment(number))\n",
                    "        for number in old:\n",
                )
            ],
            by=["test_r09_a_deleted_thread_gives_its_space_back"],
        ),
        Mutant(
            "dead-values-kept",
            "compaction keeps every value",
            LIVENESS,
            [
                (
                    "        if kind == Kind.VALUE:\n            return ref in self._direct\n",
                    "        if kind == Kind.VALUE:\n            return True\n",
                )
            ],
            by=["test_r09_a_deleted_thread_gives_its_space_back"],
        ),
    ],
    "Compaction of a log with damage": [
        Mutant(
            "compaction-stops-at-damage",
            "what stands behind a bad frame is lost with the old segment",
            COMPACTOR,
            [("            self._refuse_damage(group[0].base_lsn, end, read)\n", "")],
        ),
    ],
    "After `erase` returned": [
        Mutant(
            "erase-leaves-torn",
            "what a recovery cut off of the thread stays in torn/",
            "ckptstore/storage/local/erasing.py",
            [
                (
                    "            if not _is_free_of(engine.vfs.read_file(path), may_hold):\n"
                    "                engine.vfs.unlink(path)\n",
                    "            pass\n",
                )
            ],
            by=["test_torn_bytes"],
        ),
        Mutant(
            "erase-without-compaction",
            "erasing only deletes",
            ERASURE,
            [("        _compact(storage, values, traces, thread, frames, timeout)\n    return", "        pass\n    return")],
            by=["test_nothing_is_left_in_any_file"],
        ),
        Mutant(
            "erase-keeps-bases",
            "bytes of the thread stay as the base of what others hold",
            LIVENESS,
            [
                (
                    "        if entry[0] == Kind.VALUE and ref in self._anew and ref not in needed:\n"
                    "            return self._encoded_anew(ref)\n"
                    "        if not self._lives(ref, entry, oldest) and ref not in needed:\n",
                    "        if not self._lives(ref, entry, oldest) and entry[0] != Kind.VALUE:\n",
                )
            ],
            by=["test_nothing_is_left_in_any_file"],
        ),
        Mutant(
            "copies-not-named",
            "a thread is erased although copies still hold its bytes",
            ERASURE,
            [("        if sharing and not with_copies:\n", "        if False:\n")],
            by=["test_copies_are_named_and_nothing_is_done"],
        ),
    ],
    "Whatever a retention policy says": [
        Mutant(
            "pins-ignored",
            "pinned threads are pruned too",
            RETENTION,
            [("        return [name for name in names if name not in self._policy.pinned]\n", "        return names\n")],
            by=["test_idle_threads_go_whole_and_are_named"],
        ),
        Mutant(
            "waiting-tasks-ignored",
            "a checkpoint that a paused run waits on is pruned",
            "ckptstore/upkeep/planning.py",
            [
                (
                    "        self.waiting = {number for number in self.entries if self._waits(number, number in special)}\n",
                    "        self.waiting = set[int]()\n",
                )
            ],
            by=["test_a_paused_run_resumes_without_running_finished_tasks_again"],
        ),
        Mutant(
            "heads-ignored",
            "what became the head between looking and removing goes all the same",
            RETENTION,
            [
                (
                    "entry.ref != lane.entries[number].ref or (head is not None and head.number == number):\n",
                    "entry.ref != lane.entries[number].ref:\n",
                )
            ],
            by=["test_what_changes_between_plan_and_commit_stays"],
        ),
        Mutant(
            "pruned-by-the-plan",
            "what changed between looking and removing goes all the same",
            RETENTION,
            [
                (
                    "            if tuple(batch.ref for batch in view.writes(lane.number, number)) == "
                    "lane.batches[number]:\n"
                    "                going",
                    "            if True:\n                going",
                )
            ],
            by=["test_what_changes_between_plan_and_commit_stays"],
        ),
        Mutant(
            "pruned-by-halves",
            "a prune removes the checkpoints of a thread one commit at a time",
            RETENTION,
            [
                (
                    "                removed = removal._remove(self._storage, lambda view: _still_to_go(view, plan))\n",
                    "                removed = 0\n"
                    "                while more := removal._remove(self._storage, lambda view: {n: [min(g)] for "
                    "n, g in _still_to_go(view, plan).items()}):\n"
                    "                    removed += more\n",
                )
            ],
            by=["test_killed_while_pruning"],
        ),
    ],
    "A call that names a checkpoint of a deleted thread": [
        Mutant(
            "late-calls-accepted",
            "a late call brings a deleted thread back",
            COMMITS,
            [("        if ago <= self._options.late_window:\n", "        if False:\n")],
            by=["test_late_calls_do_not_bring_a_deleted_thread_back"],
        ),
        Mutant(
            "tombstone-forgets-ids",
            "a deletion does not remember the ids that it removed",
            REMOVAL,
            [
                (
                    '        return [encode_tombstone(THREAD_SCOPE, number, now_ms(), b"".join(hashes), dead - kept)]\n',
                    '        return [encode_tombstone(THREAD_SCOPE, number, now_ms(), b"", dead - kept)]\n',
                )
            ],
            by=["test_a_late_call_after_a_reopen_is_still_late"],
        ),
        Mutant(
            "late-for-ever",
            "ids of deleted threads are remembered for ever",
            COMMITS,
            [("        if ago <= self._options.late_window:\n", "        if True:\n")],
            by=["test_ids_of_a_deleted_thread_are_remembered_for_a_week"],
        ),
        Mutant(
            "late-for-a-minute",
            "ids of deleted threads are forgotten after a minute",
            COMMITS,
            [("        if ago <= self._options.late_window:\n", "        if ago <= min(60, self._options.late_window):\n")],
            by=["test_ids_of_a_deleted_thread_are_remembered_for_a_week"],
        ),
        Mutant(
            "new-start-refused",
            "a put without a parent is late, too",
            COMMITS,
            [
                (
                    "            if parent is not None and parent_ref is None:\n"
                    "                self._refuse_late(view, lane, parent)\n",
                    "            if parent_ref is None:\n                self._refuse_late(view, lane, parent or id)\n",
                )
            ],
            by=["test_a_thread_started_again_after_deletion_is_empty"],
        ),
    ],
}
