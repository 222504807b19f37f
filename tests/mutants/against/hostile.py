"""Mutants against the promises about bytes that somebody else wrote, and about awaits that are given up."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = {
    "Whatever bytes stand in the log": [
        Mutant(
            "entries-unchecked",
            "the fields of a record are taken as they are",
            "ckptstore/storage/local/format.py",
            [("        check_entries(entries)\n        bodies = sum(", "        bodies = sum(")],
            by=["test_a_record_with_other_fields_is_damage"],
        ),
        Mutant(
            "claimed-size-allocated",
            "memory is taken for the size that a body claims",
            "ckptstore/codec/compression.py",
            [("    if raw_length > len(body) << 15:\n", "    if False:\n")],
            by=[
                "test_a_body_that_claims_more_than_it_can_hold_takes_no_memory",
                "test_a_patch_that_claims_more_than_it_can_hold_takes_no_memory",
            ],
        ),
        Mutant(
            "fold-raises-what-it-raises",
            "records that do not fit end in an error of Python",
            "ckptstore/storage/local/rebuild.py",
            [
                (
                    "    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, struct.error):\n",
                    "    except ZeroDivisionError:\n",
                )
            ],
            by=["test_records_that_do_not_fit_are_damage"],
        ),
        Mutant(
            "evidence-too-deep",
            "evidence that is nested without an end ends the open",
            "ckptstore/storage/local/layout.py",
            [("    except RecursionError:\n", "    except ZeroDivisionError:\n")],
            by=["test_evidence_that_does_not_read_is_none"],
        ),
        Mutant(
            "inert-imports",
            "showing a value imports the module that it names",
            "ckptstore/codec/inert.py",
            [
                (
                    "    name = _named(payload, 3)\n    return None if name is None else Inert(name, (payload[2],))\n",
                    "    name = _named(payload, 3)\n"
                    "    __import__(payload[0])\n"
                    "    return None if name is None else Inert(name, (payload[2],))\n",
                )
            ],
            by=["test_the_engine_and_its_commands_import_nothing_that_bytes_name"],
        ),
    ],
    "A backup that somebody else made": [
        Mutant(
            "backup-reaches-outside",
            "a backup may name any file",
            "ckptstore/storage/local/backup.py",
            [("isinstance(item.file, str) and _FILE.fullmatch(item.file)", "isinstance(item.file, str)")],
        ),
    ],
}
