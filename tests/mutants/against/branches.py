"""Mutants against 'Branches'."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COMMITS = "ckptstore/lineage/commits.py"
OWNERSHIP = "ckptstore/lineage/ownership.py"
HISTORY = "ckptstore/lineage/history.py"
THREAD = "ckptstore/thread.py"
ATTRIBUTION = "bindings/langgraph/checkpoint/ckptstore/attribution.py"

MUTANTS = {
    "What is read of every branch": [
        Mutant(
            "no-ownership",
            "each child gets all writes that stand on its parent",
            HISTORY,
            [
                (
                    "    consumed = child.consumed\n",
                    "    lane = read_record(view, parent.ref).lane\n"
                    "    standing = tuple(batch.ref for batch in view.writes(lane, parent.number) if batch.regular)\n"
                    "    consumed = child.consumed._replace(every=standing, newest=(), first=())\n",
                )
            ],
            by=["test_two_runs_at_once_interleaved"],
        ),
        Mutant(
            "runs-not-told-apart",
            "of two runs at one checkpoint the first child takes the writes of both",
            ATTRIBUTION,
            [("        return known[1]\n", '        return b""\n')],
            by=["test_two_runs_at_once_interleaved"],
        ),
        Mutant(
            "input-uses-finished-tasks",
            "a new input after a crash takes the writes of tasks that had finished",
            ATTRIBUTION,
            [
                (
                    "    Source.INPUT: frozenset({Origin.NULL, Origin.INPUT, Origin.EXIT}),\n",
                    "    Source.INPUT: frozenset(Origin),\n",
                )
            ],
            by=["test_a_new_input_does_not_end_the_window_of_a_resumed_run"],
        ),
        Mutant(
            "copies-made-of-nothing",
            "a copy of a checkpoint is not made by what made the original",
            ATTRIBUTION,
            [("                    return sibling.entry.consumed\n", "                    break\n")],
            by=["test_a_copy_of_a_checkpoint"],
        ),
        Mutant(
            "versions-not-compared",
            "an update after a crash takes writes on channels that it did not change",
            COMMITS,
            [("    return any(masks.get(ref, unchanged) & unchanged for ref in consumed.first)\n", "    return False\n")],
            by=["test_an_equal_version_on_both_ends_says_that_nothing_was_used"],
        ),
        Mutant(
            "values-by-version-only",
            "a channel takes the parent's value over although its version moved",
            COMMITS,
            [
                (
                    "    return before is not None and before.value is not None and before.version == version\n",
                    "    return before is not None and before.value is not None\n",
                ),
                (
                    "            elif version is not None and channel not in draft.changed and _unchanged(before, version):\n",
                    "            elif version is not None and _unchanged(before, version):\n",
                ),
            ],
            by=["test_replay_and_edit_of_an_old_checkpoint_leave_all_leaves_exact"],
        ),
    ],
    "A write belongs to the child that it made": [
        Mutant(
            "owned-taken-again",
            "two children take the same writes",
            OWNERSHIP,
            [
                ("        and batch.ref not in edge.owned\n", ""),
                (
                    "        and not any(sibling.entry.place > batch.ref.lsn and can_use(sibling.entry.source, "
                    "batch) for sibling in edge.siblings)\n",
                    "",
                ),
            ],
            by=["test_a_write_belongs_to_the_child_made_after_it"],
        ),
        Mutant(
            "late-batch-lost",
            "writes that come after the child which they made belong to nobody",
            "ckptstore/storage/catalog.py",
            [("        if child is not None:\n            self._own_late(lane, child, ref)\n", "")],
            by=["test_a_late_batch_joins_its_own_child"],
        ),
        Mutant(
            "spent-batch-used-again",
            "writes that made a child which was removed make another one",
            OWNERSHIP,
            [
                (
                    "    spent = frozenset(batch.ref for batch in candidates if batch.spent)\n",
                    "    spent: frozenset[Ref] = frozenset()\n",
                )
            ],
            by=["test_writes_that_made_a_removed_child_make_no_other"],
        ),
        Mutant(
            "owner-decided-outside-the-lock",
            "which writes made a child is decided before its commit holds the lock",
            COMMITS,
            [
                (
                    "        ordinal = 0\n"
                    "\n"
                    "        def resolve(view: View) -> list[Encoded]:\n"
                    "            nonlocal ordinal\n"
                    "            records = list(placed.fresh)\n",
                    "        ordinal = 0\n"
                    "        early: Any = None\n"
                    "        with self._storage.view() as view:\n"
                    "            number, at = view.lane(*lane), None\n"
                    "            at = None if number is None or parent is None else view.number(number, parent)\n"
                    "            if number is not None and parent is not None and at is not None:\n"
                    "                early = ownership.edge(view, number, at, parent, child=view.number(number, id))\n"
                    "\n"
                    "        def resolve(view: View) -> list[Encoded]:\n"
                    "            nonlocal ordinal\n"
                    "            records = list(placed.fresh)\n",
                ),
                (
                    "                edge = ownership.edge(view, number, parent_number, parent, child=own_number)\n",
                    "                edge = early if early is not None else ownership.edge(view, number, "
                    "parent_number, parent, child=own_number)\n",
                ),
            ],
            by=["test_writes_that_come_before_the_lock_is_taken_belong_to_the_child"],
        ),
    ],
    "Random programs of every call": [
        Mutant(
            "put-again-moves",
            "a checkpoint that is put again moves to the front of its list",
            "ckptstore/storage/catalog.py",
            [
                (
                    "            place = old.place\n",
                    "            place = ref.lsn\n"
                    '            self._kv.delete(b"O" + packed + _lsn_key(old.place))\n'
                    '            self._kv.put(b"O" + packed + _lsn_key(place), _U32.pack(number))\n',
                )
            ],
        ),
        Mutant(
            "copy-without-writes",
            "a copy lacks the writes that stand on the checkpoints of its source",
            "ckptstore/storage/catalog.py",
            [
                (
                    '        for prefix in (b"I", b"C", b"O", b"K", b"W", b"R"):\n            for key, value in list',
                    '        for prefix in (b"I", b"C", b"O", b"K", b"R"):\n            for key, value in list',
                )
            ],
        ),
    ],
    "So do random programs made through": [
        Mutant(
            "the-last-write-counts",
            "of two regular writes of a task the last one is read",
            "ckptstore/lineage/reader.py",
            [("            if idx < 0 or (record.task_id, idx) not in chosen:\n", "            if record.task_id:\n")],
        ),
    ],
    "A native thread reads": [
        Mutant(
            "oldest-first-mixed-up",
            "the writes of an ancestor come after those of its descendants",
            HISTORY,
            [("(*older.get(channel, ()), *reversed(newest_first))", "(*older.get(channel, ()), *newest_first)")],
            by=["test_branches_stay_exact_however_they_are_stepped"],
        ),
        Mutant(
            "snapshot-without-its-write",
            "a value that is stored every so many updates lacks the update that it is stored with",
            THREAD,
            [
                (
                    "                values[name] = fold(channel, old, [write])\n",
                    "                values[name] = fold(channel, old, [write] if old is UNSET else [])\n",
                )
            ],
            by=["test_branches_stay_exact_however_they_are_stepped"],
        ),
        Mutant(
            "overwrite-folded",
            "an `Overwrite` is folded into what was before",
            THREAD,
            [
                (
                    "            channel = self._channel(name)\n            known",
                    "            channel = self._channel(name)\n"
                    "            write = write.value if isinstance(write, Overwrite) else write\n"
                    "            known",
                )
            ],
            by=["test_overwrite_and_writes_after_it"],
        ),
        Mutant(
            "unset-keeps-the-value",
            "`UNSET` leaves the value where it was",
            THREAD,
            [
                (
                    "                versions.pop(name)\n"
                    "                values.pop(name, None)\n"
                    "                since.pop(name, None)\n",
                    "                values[name] = self._value(name) if known else None\n",
                )
            ],
            by=["test_unset_and_writes_after_it"],
        ),
        Mutant(
            "fork-shares-its-tip",
            "a fork moves the cursor that it was made from",
            THREAD,
            [
                (
                    "        return Thread(self._store, self._lane, self._tip, self._schema, self._serde, self._frequency)\n",
                    "        return self\n",
                )
            ],
            by=["test_branches_stay_exact_however_they_are_stepped"],
        ),
        Mutant(
            "cadence-not-counted",
            "a step counts the updates of its channels from the start again",
            THREAD,
            [
                (
                    "                values.pop(name, None)\n                since[name] = count\n",
                    "                values.pop(name, None)\n                since[name] = count - 1\n",
                )
            ],
            by=["test_a_value_is_stored_every_so_many_updates"],
        ),
        Mutant(
            "step-takes-any-writes",
            "a step takes whatever writes stand on its parent",
            COMMITS,
            [
                (
                    "                consumed = Consumed(every=(Ref(0, len(records)),))\n",
                    "                standing = [] if parent_number is None else view.writes(number, parent_number)\n"
                    "                consumed = Consumed(every=(*(batch.ref for batch in standing), Ref(0, "
                    "len(records))))\n",
                )
            ],
            by=["test_branches_stay_exact_however_they_are_stepped"],
        ),
    ],
    "Of two steps that expect the same head": [
        Mutant(
            "head-decided-outside-the-lock",
            "the expected head is compared before the commit lock is taken",
            COMMITS,
            [
                ("            if draft.expect_head:\n                self._refuse_conflict(view, lane, number, parent, id)\n", ""),
                (
                    "        lsn = self._storage.commit(resolve)\n        self._remember(Ref(lsn, ordinal)",
                    "        if draft.expect_head:\n"
                    "            with self._storage.view() as view:\n"
                    "                self._refuse_conflict(view, lane, view.lane(*lane) or 0, parent, id)\n"
                    "        lsn = self._storage.commit(resolve)\n"
                    "        self._remember(Ref(lsn, ordinal)",
                ),
            ],
            by=["test_a_head_that_moves_before_the_lock_is_taken_is_seen"],
        ),
        Mutant(
            "head-decided-when-the-step-begins",
            "the expected head is compared when a step begins",
            THREAD,
            [
                (
                    '        _check_mapping("writes", writes)\n        _check_mapping("metadata"',
                    "        if expect_head:\n"
                    "            head = self._store.outline(self._lane)\n"
                    "            if (None if head is None else head.id) != self._tip:\n"
                    "                raise __import__('ckptstore').errors.ConflictError('another was faster')\n"
                    '        _check_mapping("writes", writes)\n'
                    '        _check_mapping("metadata"',
                ),
                ("            expect_head=expect_head,\n", "            expect_head=False,\n"),
            ],
            by=["test_when_another_is_faster_in_the_middle_of_a_step"],
        ),
        Mutant(
            "the-loser-is-stored-too",
            "a step that lost against another is stored all the same",
            COMMITS,
            [("            if draft.expect_head:\n", "            if draft.expect_head and parent is None:\n")],
            by=["test_when_another_is_faster_in_the_middle_of_a_step"],
        ),
    ],
    "A step that fails stores nothing": [
        Mutant(
            "good-writes-of-a-bad-step",
            "a step that cannot take one write stores the others",
            THREAD,
            [
                (
                    "        for name in writes:\n            self._channel(name)\n        before",
                    "        taken = {}\n"
                    "        for name, write in writes.items():\n"
                    "            try:\n"
                    "                fold(self._channel(name), UNSET, [write])\n"
                    "                taken[name] = write\n"
                    "            except Exception:\n"
                    "                pass\n"
                    "        writes = taken\n"
                    "        before",
                )
            ],
            by=["test_a_step_that_fails_stores_nothing_and_the_cursor_stays"],
        ),
        Mutant(
            "bad-write-found-out-later",
            "whether a channel can take a write is found out when the state is next read",
            THREAD,
            [('                fold(channel, self._value(name) if channel.kind[0] == "reduce" else UNSET, [write])\n', "")],
            by=["test_a_step_that_fails_stores_nothing_and_the_cursor_stays"],
        ),
        Mutant(
            "tuples-taken-for-lists",
            "a tuple is stored, and comes back as a list",
            "ckptstore/state/plain.py",
            [("msgpack.packb(obj, strict_types=True, unicode_errors", "msgpack.packb(obj, strict_types=False, unicode_errors")],
            by=["test_what_is_not_plain_is_refused_with_its_path"],
        ),
    ],
    "A state that needs a missing reducer": [
        Mutant(
            "missing-reducer-takes-the-last",
            "without its reducer a channel reads as its last write",
            "ckptstore/state/materializer.py",
            [
                ("        if name not in reducers:\n", "        if False:\n"),
                (
                    "        value = reducers[name](seed, [loads(write.value) for write in history.writes])\n",
                    "        fold = reducers.get(name, lambda value, writes: writes[-1] if writes else value)\n"
                    "        value = fold(seed, [loads(write.value) for write in history.writes])\n",
                ),
            ],
        ),
    ],
    "A task that had finished": [
        Mutant(
            "pending-writes-not-read",
            "a checkpoint is read without the writes of tasks that had finished on it",
            "ckptstore/lineage/reader.py",
            [("    if not batches:\n        return []\n", "    return []\n")],
        ),
    ],
}
