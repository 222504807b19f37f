"""The promises of docs/guarantees.md, read from the page: nothing that stands there is written twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guarantees.md"

MIXINS = {
    "tests/contract/mixins.py": ("tests/contract/test_memory.py", "tests/contract/test_local.py"),
    "tests/native/mixins.py": ("tests/native/test_contract.py",),
}
"""Where the tests run that stand in files which pytest does not collect."""


class Named(NamedTuple):
    """A test that the page names."""

    file: str
    name: str


class Promise(NamedTuple):
    """An item of the second part of the page."""

    section: str
    text: str
    tests: Sequence[Named]


def named_tests(text: str) -> list[Named]:
    """The tests that a piece of the page names."""
    return [Named(file, name) for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)]


def promises() -> list[Promise]:
    """All promises, in the order of the page."""
    text = PAGE.read_text().partition("\n## Promises\n")[2]
    found = []
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        for item in re.findall(r"^- (.*?)(?=^- |\Z)", body, re.DOTALL | re.MULTILINE):
            found.append(Promise(title.strip(), item, named_tests(item)))
    return found


def promise_of(words: str) -> Promise:
    """The one promise that begins with these words.

    Raises:
        ValueError: there is none, or several.
    """
    found = [promise for promise in promises() if " ".join(promise.text.split()).startswith(words)]
    if len(found) != 1:
        raise ValueError(f"{len(found)} promises of {PAGE.name} begin with {words!r}: one is needed")
    return found[0]
