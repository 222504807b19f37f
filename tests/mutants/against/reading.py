"""Mutants against 'What is read'."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FORMAT = "ckptstore/storage/local/format.py"
LISTING = "ckptstore/lineage/listing.py"
COMMITS = "ckptstore/lineage/commits.py"
SAVER = "bindings/langgraph/checkpoint/ckptstore/saver.py"

MUTANTS = {
    "A changed byte in the log": [
        Mutant(
            "bad-bodies-accepted",
            "the checksum of a frame's bodies is not looked at",
            FORMAT,
            [
                (
                    "    if len(bodies) != header.bodies or crc32(bodies) != header.bodies_crc:\n",
                    "    if len(bodies) != header.bodies:\n",
                )
            ],
            by=["test_r45_every_byte_of_record_5_with_a_trusted_index"],
        ),
        Mutant(
            "bad-header-accepted",
            "the checksum of a frame header is not looked at",
            FORMAT,
            [("    if crc32(data[8:FRAME_HEADER], _PREFIX_CRC) != crc:\n        return None\n", "")],
            by=["test_r45_every_byte_of_record_5_with_a_trusted_index"],
        ),
        Mutant(
            "bad-directory-accepted",
            "the checksum of a frame's directory is not looked at",
            FORMAT,
            [
                (
                    "    if len(directory) != header.directory or crc32(directory) != header.directory_crc:\n",
                    "    if len(directory) != header.directory:\n",
                )
            ],
            by=["test_r45_every_byte_of_record_5_with_a_trusted_index"],
        ),
        Mutant(
            "bad-base-accepted",
            "a patched value is not compared with the checksum of its decoded bytes",
            "ckptstore/lineage/values.py",
            [("        if crc32(raw) != facts.crc or len(raw) != facts.length:\n", "        if len(raw) != facts.length:\n")],
            by=["test_a_flipped_bit_in_a_base_never_gives_a_wrong_value"],
        ),
        Mutant(
            "damage-read-as-nothing",
            "a checkpoint whose record is damaged is not there",
            "ckptstore/lineage/reader.py",
            [('        raise CorruptionError(f"{lane}, checkpoint {name}: {error}") from None\n', "        return None\n")],
            by=["test_a_changed_byte_inside_a_stored_text_is_an_error"],
        ),
    ],
    "Only what needs the damaged bytes": [
        Mutant(
            "damage-left-out-of-lists",
            "a list leaves damaged checkpoints out without a word",
            LISTING,
            [
                (
                    "            item = self._read(step)\n",
                    "            try:\n"
                    "                item = self._read(step)\n"
                    "            except CorruptionError:\n"
                    "                continue\n",
                )
            ],
            by=["test_damage_is_reported_by_those_who_need_it_and_by_nobody_else"],
        ),
        Mutant(
            "damage-ends-a-list",
            "a list over several namespaces ends at a damaged checkpoint",
            LISTING,
            [
                (
                    '            unreadable.append(CorruptionError(f"{name}, checkpoint number {known}: {error}"))\n'
                    "            continue\n",
                    "            raise\n",
                )
            ],
            by=["test_damage_in_one_of_two_namespaces"],
        ),
        Mutant(
            "names-need-whole-frames",
            "whoever needs a name reads all bodies of the frame that it stands in",
            "ckptstore/storage/local/engine.py",
            [
                (
                    "            self._directories[lsn] = self._engine.read_directory(self._kv, lsn)\n",
                    "            self._directories[lsn] = self.frame(lsn).entries\n",
                )
            ],
            by=["test_damage_in_a_listing_over_all_namespaces"],
        ),
    ],
    "A history whose ancestors are lost": [
        Mutant(
            "removed-ancestor-is-the-end",
            "a walk ends in silence at an ancestor that was removed without a history record",
            "ckptstore/lineage/history.py",
            [
                (
                    "        if parent.removed:\n            if admit_loss:\n",
                    "        if parent.removed:\n            break\n            if admit_loss:\n",
                )
            ],
            by=["test_a_child_of_a_removed_id_says_that_its_past_is_lost"],
        ),
        Mutant(
            "counters-not-believed",
            "a head without its ancestors is an empty list, although its counters speak of updates",
            "ckptstore/lineage/reader.py",
            [("        _refuse_loss(view, lane, entry, found)\n", "        pass\n")],
            by=["test_a_head_without_its_ancestors_is_an_error_and_not_an_empty_list"],
        ),
    ],
    "Every read gives fresh objects": [
        Mutant(
            "cached-object-handed-out",
            "a read hands out the object that an earlier read got",
            "ckptstore/lineage/reader.py",
            [
                (
                    "    record = read_record(view, entry.ref)\n    if record.lane",
                    "    record = values_of.setdefault((view._engine if hasattr(view, '_engine') else view._kv, "
                    "entry.ref), read_record(view, entry.ref))\n"
                    "    if record.lane",
                ),
                ("def outline(view", "values_of: dict[object, CheckpointRecord] = {}\n\n\ndef outline(view"),
            ],
            by=["test_what_a_reader_changes_reaches_nobody"],
        ),
        Mutant(
            "put-keeps-the-writers-metadata",
            "a put keeps the writer's own objects and hands them to readers",
            SAVER,
            [
                (
                    '        run = merged.get("run_id")\n',
                    '        run = merged.get("run_id")\n        self.__dict__.setdefault("kept", {})[lane, id] = metadata\n',
                ),
                (
                    "            cast(CheckpointMetadata, self._metadata(stored.metadata)),\n",
                    '            self.__dict__.get("kept", {}).get((stored.lane, stored.id), self._metadata(stored.metadata)),\n',
                ),
            ],
            by=["test_what_a_writer_changes_afterwards_reaches_nobody"],
        ),
        Mutant(
            "serialized-after-returning",
            "a put serializes when the checkpoint is next read",
            SAVER,
            [
                (
                    "        self._store.put_checkpoint(\n            lane,\n",
                    '        self.__dict__["due"] = __import__("functools").partial(\n'
                    "            self._store.put_checkpoint,\n"
                    "            lane,\n",
                ),
                (
                    "        lane, thread_id = checks.lane(config)\n        if config[",
                    '        self.__dict__.pop("due", lambda: None)()\n'
                    "        lane, thread_id = checks.lane(config)\n"
                    "        if config[",
                ),
            ],
            by=["test_what_a_writer_changes_afterwards_reaches_nobody"],
        ),
    ],
    "Anything the serde takes": [
        Mutant(
            "tag-replaced",
            "the type tag of a large value is that of LangGraph's serde",
            "ckptstore/lineage/values.py",
            [
                (
                    "        return facts_of(view, value).tag, self.raw(view, value)\n",
                    '        return "msgpack", self.raw(view, value)\n',
                )
            ],
            by=["test_the_type_tag_of_a_serde_is_kept_verbatim"],
        ),
        Mutant(
            "tuples-become-lists",
            "a value is made plain before it is serialized",
            SAVER,
            [
                (
                    "        return dump(self.serde, channel, unwrapped(value))\n",
                    "        return dump(self.serde, channel, list(value) if type(value) in (tuple, set) else unwrapped(value))\n",
                )
            ],
            by=["test_values_come_back_equal_and_of_the_same_type"],
        ),
    ],
    "A value the serde refuses": [
        Mutant(
            "refused-write-left-out",
            "a batch is stored without the write that the serde refused",
            COMMITS,
            [
                (
                    "            typed = encode(channel, value)\n"
                    "            self._check_size(lane, channel, typed[1])\n"
                    "            serialized.append((idx, channel, typed))\n",
                    "            try:\n"
                    "                typed = encode(channel, value)\n"
                    "            except Exception:\n"
                    "                continue\n"
                    "            self._check_size(lane, channel, typed[1])\n"
                    "            serialized.append((idx, channel, typed))\n",
                )
            ],
            by=["test_a_value_the_serde_refuses_is_named_and_the_thread_stays"],
        ),
        Mutant(
            "refused-value-without-its-path",
            "the error about a refused value names the channel only",
            "ckptstore/codec/serde.py",
            [("        path, culprit = _refused(serde, value)\n", '        path, culprit = "", value\n')],
            by=["test_a_value_the_serde_refuses_is_named_and_the_thread_stays"],
        ),
        Mutant(
            "no-limit-of-size",
            "a value of any size is stored",
            COMMITS,
            [("        if len(raw) > self._options.max_value_bytes:\n", "        if False:\n")],
            by=["test_a_value_above_the_limit_is_named_with_thread_channel_and_size"],
        ),
    ],
    "Whatever bytes stand in the log": [
        Mutant(
            "claims-believed",
            "memory is taken for what a compressed body only claims to hold",
            "ckptstore/codec/compression.py",
            [("    if raw_length > len(body) << 15:\n", "    if raw_length < 0:\n")],
            by=["test_a_body_that_claims_more_than_it_can_hold_takes_no_memory"],
        ),
    ],
    "A backup that somebody else made": [
        Mutant(
            "any-file-restored",
            "a restore takes whatever files a backup names",
            "ckptstore/storage/local/backup.py",
            [('            raise ValueError("it names what no backup holds")\n', "            pass\n")],
        ),
    ],
}
