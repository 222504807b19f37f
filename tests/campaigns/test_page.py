"""The committed table of what was survived: it names every fault point of the source, and the page says what it says."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from tests.campaigns import page
from tests.campaigns.points import FILES, in_source, pattern, row, rows, whole_files_in_source


def test_the_table_names_every_point_of_the_source_and_each_was_survived() -> None:
    found = page.result()["points"]
    assert sorted(found) == rows()
    assert [name for name, counts in found.items() if not all(counts.values())] == []


def test_every_kind_of_file_that_is_written_whole_has_its_rows() -> None:
    # STORE is written in two places.
    assert whole_files_in_source() == len(FILES) + 1
    assert {name for name in in_source() if "{" in name} == {"written:{path.name}.tmp", "renamed:{path.name}"}


def test_the_page_is_made_from_the_result() -> None:
    assert page.PAGE.read_text() == page.rendered(page.PAGE.read_text(), page.result())


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("commit:appended", "commit:appended"),
        ("written:00000000000000000002.seg.tmp", "written:segment"),
        ("renamed:00000000000000000002.hint", "renamed:hint"),
        ("written:00000000000000000001-316.tmp", "written:torn"),
        ("renamed:STORE", "renamed:STORE"),
    ],
)
def test_a_point_finds_its_row_and_a_row_its_points(point: str, expected: str) -> None:
    assert row(point) == expected
    assert [name for name in rows() if fnmatch(point, pattern(name))] == [expected]
