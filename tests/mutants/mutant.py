"""One way to break the code on purpose, and the tests that have to notice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from tests.mutants.promises import MIXINS, Promise


class Mutant(NamedTuple):
    """A small edit of one file that breaks a promise."""

    name: str
    what: str
    """What is wrong with the store then."""
    file: str
    edits: Sequence[tuple[str, str]]
    """(old text, new text). Each old text stands exactly once in the file: a mutant that the code has left behind is an error."""
    by: Sequence[str] = ()
    """Of the tests that the promise names, those that have to kill it; all of them when empty. `name[parameters]` is one case of a test."""

    def apply(self, root: Path) -> None:
        """Edit the file in a tree.

        Raises:
            ValueError: an old text is not there exactly once.
        """
        path = root / self.file
        path.write_text(self.applied(path.read_text()))

    def applied(self, text: str) -> str:
        """The text of the file after the edits."""
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"mutant {self.name}: {self.file} holds this text {text.count(old)} times, not once:\n{old}")
            text = text.replace(old, new)
        return text

    def selection(self, promise: Promise) -> list[dict[str, object]]:
        """The tests to run, for plugin.py.

        Raises:
            ValueError: the promise does not name a test that is to kill it.
        """
        chosen = []
        for wanted in self.by or [test.name for test in promise.tests]:
            name, bracket, case = wanted.partition("[")
            files = [file for test in promise.tests if test.name == name for file in MIXINS.get(test.file, (test.file,))]
            if not files:
                raise ValueError(f"mutant {self.name}: its promise does not name {name}")
            chosen.append({"files": files, "name": name, "case": case.removesuffix("]") if bracket else None})
        return chosen

    @property
    def digest(self) -> str:
        """Tells one edit from another of the same name."""
        return f"{crc32(repr((self.file, list(self.edits), list(self.by))).encode()):08x}"
