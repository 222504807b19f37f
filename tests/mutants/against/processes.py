"""Mutants against 'Several processes', 'What it costs' and 'Looking inside'."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ENGINE = "ckptstore/storage/local/engine.py"
OPENING = "ckptstore/storage/local/opening.py"
LOCKS = "ckptstore/storage/local/locks.py"
SAVER = "bindings/langgraph/checkpoint/ckptstore/saver.py"

MUTANTS = {
    "Several processes and threads": [
        Mutant(
            "end-from-memory",
            "a writer goes by the end of the log that this process knows",
            ENGINE,
            [
                (
                    "                end = get_end(kv)\n"
                    "                assert end is not None\n"
                    "                view = _LocalView(kv, self)\n",
                    "                end = self._published\n                view = _LocalView(kv, self)\n",
                )
            ],
            by=["test_commits_are_seen_by_the_others_at_once"],
        ),
        Mutant(
            "parent-not-looked-at-again",
            "a put names values of a parent that is gone by the time of its commit",
            "ckptstore/lineage/commits.py",
            [
                (
                    "            if (parent_ref, own) != (known.parent, known.own) or not (placed.spot is None "
                    "or placed.spot.holds(view)):\n",
                    "            if False:\n",
                )
            ],
            by=["test_a_parent_that_goes_before_the_lock_is_taken_takes_no_value_along"],
        ),
        Mutant(
            "view-of-the-first-read",
            "a reader keeps its first snapshot of the index",
            ENGINE,
            [
                (
                    "        return _Viewing(self, self._index.read())\n",
                    "        self.__dict__.setdefault('first', _Viewing(self, self._index.read()).__enter__())\n"
                    "        return contextlib.nullcontext(self.__dict__['first'])\n",
                )
            ],
            by=["test_commits_are_seen_by_the_others_at_once"],
        ),
    ],
    "Any number may look": [
        Mutant(
            "looks-exclude-each-other",
            "who looks at a picture of a damaged log lets nobody look beside",
            OPENING,
            [("self._lock.try_shared() and self._look_beside():\n", "self._lock.try_shared() and False:\n")],
        ),
    ],
    "A killed writer stops nobody": [
        Mutant(
            "begun-segment-stays",
            "a segment that a killed writer began stays, and claims the next frames",
            ENGINE,
            [("                self._after_death()\n", "")],
            by=["test_others_go_on_after_a_writer_was_killed_while_it_rotated"],
        ),
        Mutant(
            "name-in-lock-believed",
            "an open waits for the process that is named in LOCK, dead or alive",
            OPENING,
            [
                (
                    "        if self._lock.try_exclusive():\n            self._lock.name_owner()\n",
                    '        if self._lock.owner() not in ("unknown", str(os.getpid())):\n'
                    "            raise LockTimeoutError(self._lock.owner())\n"
                    "        if self._lock.try_exclusive():\n"
                    "            self._lock.name_owner()\n",
                )
            ],
            by=["test_another_process_opens_while_the_first_lives_and_after_it_was_killed"],
        ),
    ],
    "A forked child may go on": [
        Mutant(
            "inherited-files-used",
            "a forked child goes on with the descriptors and the index that it inherited",
            "ckptstore/storage/local/handle.py",
            [
                (
                    "        if self._engine.pid != process_id():\n            with _table_lock:\n",
                    "        if self._engine is None:\n            with _table_lock:\n",
                )
            ],
            by=["test_a_child_writes_and_reads_while_the_parent_reads"],
        ),
        Mutant(
            "inherited-locks-kept",
            "a forked child keeps its parent's locks",
            "ckptstore/storage/local/handle.py",
            [("            engine.release_locks()\n", "            pass\n")],
            by=["test_a_child_does_not_keep_the_commit_lock_of_a_parent_that_was_killed"],
        ),
    ],
    "A lock that is held too long": [
        Mutant(
            "lock-without-timeout",
            "a call waits for the commit lock for ever",
            LOCKS,
            [
                (
                    "                if time.monotonic() > deadline:\n"
                    "                    raise self._timed_out(timeout) from None\n",
                    "",
                )
            ],
            by=["test_a_lock_timeout_names_the_holder_and_readers_go_on"],
        ),
        Mutant(
            "holder-not-named",
            "the error does not say who holds the lock",
            LOCKS,
            [('        who = f"process {pid}" + (" (this process)" if pid == self._pid else "")\n', '        who = "somebody"\n')],
            by=["test_a_lock_timeout_names_the_holder_and_readers_go_on"],
        ),
        Mutant(
            "readers-take-the-lock",
            "a read takes the commit lock",
            ENGINE,
            [
                (
                    "        return _Viewing(self, self._index.read())\n",
                    "        self._page.acquire(0.2)\n"
                    "        self._page.release()\n"
                    "        return _Viewing(self, self._index.read())\n",
                )
            ],
            by=["test_a_held_commit_lock_gives_a_named_error_and_reads_go_on"],
        ),
    ],
    "Two pid namespaces": [
        Mutant(
            "lmdb-across-namespaces",
            "an lmdb store is shared with another pid namespace",
            OPENING,
            [
                (
                    '        if not index.across_namespaces and owner.get("pid_namespace") != pid_namespace():\n',
                    "        if False:\n",
                )
            ],
            by=["test_an_open_store_is_refused_in_another_pid_namespace"],
        ),
        Mutant(
            "sqlite-not-across-namespaces",
            "an sqlite store is refused in another pid namespace",
            "ckptstore/storage/local/index/sqlite.py",
            [("across_namespaces: ClassVar[bool] = True", "across_namespaces: ClassVar[bool] = False")],
            by=["test_an_sqlite_store_is_shared_with_another_pid_namespace"],
        ),
    ],
    "The other kind of index": [
        Mutant(
            "other-kind-shared",
            "another kind of index than the one in use is asked for, and not refused",
            OPENING,
            [("        if self.options.index not in (None, index.kind):\n", "        if False:\n")],
            by=["test_another_kind_is_refused_while_others_have_the_store_open"],
        ),
        Mutant(
            "kind-not-kept",
            "a store forgets its kind of index",
            OPENING,
            [("            keep_kind(self.vfs, self.layout.index, self._kind)\n", "            pass\n")],
            by=["test_the_kind_is_kept_through_a_rebuild"],
        ),
        Mutant(
            "other-kind-not-built",
            "another kind of index is asked for by whoever is alone, and not built",
            OPENING,
            [("        self._kind = self.options.index or kept\n", "        self._kind = kept\n")],
            by=["test_another_kind_is_built_by_whoever_is_alone_and_answers_the_same"],
        ),
    ],
    "A paused `list` blocks no call": [
        Mutant(
            "snapshot-held-across-a-yield",
            "a list holds a snapshot of the index between two items",
            "ckptstore/lineage/listing.py",
            [
                (
                    "        except FrameGoneError:\n"
                    "            continue\n"
                    "        place, found = step\n"
                    "        if wanted:\n"
                    "            yield _Item(lane, number, found)\n",
                    "                place, found = step\n"
                    "                if wanted:\n"
                    "                    yield _Item(lane, number, found)\n"
                    "        except FrameGoneError:\n"
                    "            continue\n",
                )
            ],
            by=["test_a_paused_list_does_not_keep_the_index_from_growing"],
        ),
    ],
    "Sync calls work inside a running loop": [
        Mutant(
            "fsync-on-the-event-loop",
            "an async put runs on the event loop, fsync included",
            SAVER,
            [
                (
                    "        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)\n",
                    "        return self.put(config, checkpoint, metadata, new_versions)\n",
                )
            ],
            by=["test_a_slow_fsync_does_not_stop_the_loop"],
        ),
        Mutant(
            "sync-calls-start-a-loop",
            "a sync read starts an event loop",
            SAVER,
            [
                (
                    "        lane, thread_id = checks.lane(config)\n        if config[",
                    "        asyncio.run(asyncio.sleep(0))\n        lane, thread_id = checks.lane(config)\n        if config[",
                )
            ],
            by=["test_sync_calls_inside_a_running_loop"],
        ),
        Mutant(
            "ticker-keeps-the-process",
            "the thread that syncs in the background keeps a process alive",
            ENGINE,
            [('args=(interval,), name="ckptstore-sync", daemon=True)', 'args=(interval,), name="ckptstore-sync", daemon=False)')],
            by=["test_a_process_with_an_unclosed_saver_exits[interval]"],
        ),
    ],
    "An await that is cancelled": [
        Mutant(
            "await-writes-one-by-one",
            "an async call stores its writes one after the other",
            "bindings/langgraph/checkpoint/ckptstore/saver.py",
            [
                (
                    "        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)\n",
                    "        for write in writes:\n"
                    "            await asyncio.to_thread(self.put_writes, config, [write], task_id, task_path)\n",
                )
            ],
            by=["test_awaits_that_time_out"],
        ),
        Mutant(
            "threads-left-behind",
            "each async put leaves a thread behind",
            SAVER,
            [
                (
                    "        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)\n",
                    "        threading = __import__('threading')\n"
                    "        threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()\n"
                    "        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)\n",
                )
            ],
            by=["test_awaits_that_time_out"],
        ),
    ],
    "Waiting puts do not pile up": [
        Mutant(
            "put-not-awaited",
            "an async put returns before it is stored, and others pile up behind it",
            SAVER,
            [
                (
                    "        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)\n",
                    "        self.__dict__.setdefault('tasks', "
                    "[]).append(asyncio.create_task(asyncio.to_thread(self.put, config, checkpoint, metadata, "
                    "new_versions)))\n"
                    "        return _config(config['configurable']['thread_id'], "
                    "config['configurable'].get('checkpoint_ns', ''), checkpoint['id'])\n",
                )
            ],
        ),
    ],
    "Commands that look change nothing": [
        Mutant(
            "looking-opens-for-writing",
            "a command that looks opens the store for writing",
            "ckptstore/inspect/opened.py",
            [
                (
                    "    options = checked_options(read_only=True, lock_timeout=lock_timeout)\n",
                    "    options = checked_options(lock_timeout=lock_timeout)\n",
                )
            ],
            by=["test_looking_writes_no_byte_outside_index_and_lock"],
        ),
        Mutant(
            "looking-sweeps",
            "whoever looks deletes what a killed compaction left behind",
            "ckptstore/storage/local/recovery.py",
            [('        if name.endswith(".tmp") and not read_only:\n', '        if name.endswith(".tmp"):\n')],
            by=["test_looking_alone_deletes_nothing_that_a_kill_left_behind"],
        ),
        Mutant(
            "secrets-not-masked",
            "secrets in metadata are shown",
            "ckptstore/inspect/masking.py",
            [("    return isinstance(name, str) and _SECRET.search(name) is not None\n", "    return False\n")],
            by=["test_r31_secrets_in_metadata_are_masked"],
        ),
        Mutant(
            "objects-built",
            "a command loads the package of the objects that a value names",
            "ckptstore/inspect/show.py",
            [
                (
                    "from ckptstore.codec.inert import DELTA_SNAPSHOT",
                    "import langchain_core.messages\n\nfrom ckptstore.codec.inert import DELTA_SNAPSHOT",
                )
            ],
            by=["test_nothing_of_an_application_is_loaded"],
        ),
        Mutant(
            "threads-shows-values",
            "`threads` shows the head itself in place of its id",
            "ckptstore/inspect/threads.py",
            [
                (
                    "            found.append(info)\n",
                    "            found.append(info._replace(head=str(next(here.store.list(info.thread)))))\n",
                )
            ],
            by=["test_values_metadata_and_secrets_are_not_printed"],
        ),
        Mutant(
            "inspect-decodes-bodies",
            "`inspect` decodes the bodies of records that it only counts",
            "ckptstore/inspect/stats.py",
            [
                (
                    "                tally.add(view, found)\n",
                    "                tally.add(view, found)\n                found.frame().raw(0)\n",
                )
            ],
            by=["test_no_body_is_decoded"],
        ),
    ],
    "docs/format.md is enough": [
        Mutant(
            "checksum-of-another-range",
            "the header checksum covers other bytes than the page says",
            "ckptstore/storage/local/format.py",
            [('_PREFIX_CRC = crc32(MARK + b"\\0")\n', "_PREFIX_CRC = crc32(MARK)\n")],
        ),
        Mutant(
            "tags-in-another-order",
            "the numbers of type tags are others than the page says",
            "ckptstore/codec/records.py",
            [
                (
                    "_TAG_NUMBERS = {tag: number for number, tag in enumerate(TAGS)}\n",
                    "TAGS = TAGS[::-1]\n_TAG_NUMBERS = {tag: number for number, tag in enumerate(TAGS)}\n",
                )
            ],
        ),
    ],
}
