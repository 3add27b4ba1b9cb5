"""The tables of readers in the docs are those of the script, and ``readers=`` promises no more than they say."""

import pyarrow as pa
import pytest

from agent.sinks.common.readers import READERS, Format
from tests.architecture.render_readers import KINDS, PAGE, YES, Kind, plain, stored, written

#: the columns that say whether a reader reads what ``readers`` would choose or allow, and the fields that claim it
_CLAIMS = {
    "Delta": {"with deletion vectors": "vectors", "with column mapping": "mapping"},
    "Iceberg": {"version 3": "version_3"},
}


@pytest.fixture(params=KINDS, ids=lambda kind: kind.format)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_the_docs_have_the_table_of_the_script(kind: Kind) -> None:
    page = PAGE.read_text()
    lines = stored(page, kind)
    assert list(lines) == [asked.name for asked in kind.readers], "run: make readers"
    assert written(page, kind, lines) == page, "run: make readers"


def test_readers_are_trusted_with_what_they_were_seen_to_read(kind: Kind) -> None:
    claims = {list(kind.tables.values()).index(title) + 2: claim for title, claim in _CLAIMS[kind.format].items()}
    lines = stored(PAGE.read_text(), kind)
    assert len(lines.keys() & READERS.keys()) >= 5
    for name, cells in ((name, cells) for name, cells in lines.items() if name in READERS):
        assert Format(kind.format) in READERS[name].formats
        assert cells[2] == YES, f"{name} is a reader of tables that are written by default"
        for at, claim in claims.items():
            assert cells[at] == YES or not getattr(READERS[name], claim), (name, claim)


def test_a_line_that_is_written_is_read_again(kind: Kind) -> None:
    lines = {asked.name: ["1.0", "2026-01-02", *[YES] * len(kind.tables)] for asked in kind.readers}
    page = written(f"before\n{kind.begin}\n\nold\n\n{kind.end}\nafter", kind, lines)
    assert stored(page, kind) == lines
    assert page.startswith("before\n")
    assert page.endswith("\nafter")


def test_rows_are_compared_whatever_form_a_reader_gives_them() -> None:
    lists = pa.list_(pa.int64())
    ours = pa.table({"at": pa.array([1_000], pa.timestamp("us", "UTC")), "some": pa.array([None], lists)})
    theirs = pa.table({"some": pa.array([[]], lists), "at": pa.array([1], pa.timestamp("ms", "UTC"))})
    assert plain(ours) == plain(theirs)
    assert plain(ours) != plain(theirs.set_column(1, "at", pa.array([2], pa.timestamp("ms", "UTC"))))
