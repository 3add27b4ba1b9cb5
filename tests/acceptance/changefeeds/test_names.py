"""Tables with the names that make bad paths, on a real cluster: all are followed, and none leaves its directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.sources.mysql.server import sql as mysql
from agent.sources.postgres.server import sql as postgres
from reactor.records.changefeed import FeedState, SinkMode
from reactor.records.tables.table import TableRecord
from tests.acceptance.changefeeds.test_no_tables import EmptyBed, EmptyMariaBed
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT, follows

pytestmark = [pytest.mark.acceptance, pytest.mark.matrix, pytest.mark.spark, pytest.mark.timeout(300)]

NAMES = [
    "../../../../x",
    "..",
    ".",
    "a",
    "a/b",
    "%41",
    "a\\b",
    "a\nb",
    "_delta_log",
    "☃ 雪",
    "'\"`",
    "$(x)",
    "Data",
    "?#*",
]
#: as long as the server allows; MariaDB needs five bytes of a file's name for such a letter
LONGEST = {EmptyBed: ["😀" * 15, "ü" * 31 + "x", "x" * 63], EmptyMariaBed: ["☃" * 50, "名" * 50, "x" * 64]}

AnyBed = EmptyBed | EmptyMariaBed


@pytest.fixture(scope="module", params=[EmptyBed, EmptyMariaBed], ids=["postgres", "mariadb"])
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBed]:
    with request.param(tmp_path_factory.mktemp("bed"), captures=1) as bed:
        yield bed


def quoted(bed: AnyBed, name: str) -> str:
    return postgres.qualified(bed.schema, name) if isinstance(bed, EmptyBed) else mysql.qualified(bed.schema, name)


def rename(bed: AnyBed, old: str, new: str) -> None:
    if isinstance(bed, EmptyBed):
        bed.execute(f"ALTER TABLE {quoted(bed, old)} RENAME TO {postgres.identifier(new)}")
    else:
        bed.execute(f"RENAME TABLE {quoted(bed, old)} TO {quoted(bed, new)}")


def check(bed: AnyBed, names: set[str]) -> None:
    bed.wait_for("both changefeeds follow", follows(bed), timeout_s=120.0)
    for feed in FEEDS:
        view = bed.query(feed)
        assert (view.state, view.error, view.held) == (FeedState.NORMAL, None, ())
        found = bed.ask(lambda client, feed=feed: client.diff(feed), timeout_s=60.0)  # type: ignore[misc]
        assert [(feed, one.table, one.differences) for one in found if not one.equal] == []
        assert len(found) == len(names)
    tables = {TableRecord.new(1, bed.schema, name).path for name in names}
    found_at = {Path(above) for above, inner, _ in os.walk(bed.directory) if "_delta_log" in inner}
    assert {path for path in found_at if ".dropped-" not in path.name} == {
        bed.lake(feed) / path for feed in FEEDS for path in tables
    }
    assert not any((above / "x").exists() for above in bed.lake(UPSERT).parents)


def test_tables_whose_names_are_bad_paths_are_followed(bed: AnyBed) -> None:
    names = {*NAMES, *LONGEST[type(bed)]}
    for name in sorted(names):
        bed.execute(f"CREATE TABLE {quoted(bed, name)} (id int PRIMARY KEY, v varchar(100))")
        bed.execute(f"INSERT INTO {quoted(bed, name)} VALUES (1, 'first'), (2, 'second'), (3, 'third')")
    for feed, mode in ((UPSERT, SinkMode.UPSERT), (CHANGELOG, SinkMode.CHANGELOG)):
        bed.create_feed(feed, mode, config=bed.config)
    for name in sorted(names):
        table = quoted(bed, name)
        bed.execute(f"INSERT INTO {table} VALUES (4, 'x')")
        bed.execute(f"UPDATE {table} SET v = 'changed' WHERE id = 2")
        bed.execute(f"DELETE FROM {table} WHERE id = 3")
    check(bed, names)

    for old, new in (("a/b", "between"), ("..", "a/b"), ("between", ".."), ("%41", "a%2Fb"), ("_delta_log", "data")):
        rename(bed, old, new)
        bed.execute(f"INSERT INTO {quoted(bed, new)} VALUES ({5 if new != '..' else 6}, 'after')")
    bed.execute(f"ALTER TABLE {quoted(bed, 'a/b')} ADD n int")
    bed.execute(f"INSERT INTO {quoted(bed, 'a/b')} VALUES (9, 'n', 9)")
    names = names - {"%41", "_delta_log"} | {"a%2Fb", "data"}
    check(bed, names)

    bed.execute(f"DROP TABLE {quoted(bed, '../../../../x')}")
    bed.execute(f"CREATE TABLE {quoted(bed, '../../../../x')} (id int PRIMARY KEY, w int)")
    bed.execute(f"INSERT INTO {quoted(bed, '../../../../x')} VALUES (1, 2)")
    bed.execute(f"CREATE TABLE {quoted(bed, '_change_data')} (id int PRIMARY KEY, w int)")
    bed.execute(f"INSERT INTO {quoted(bed, '_change_data')} VALUES (1, 2)")
    check(bed, names | {"_change_data"})
