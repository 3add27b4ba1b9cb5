"""Copies of single tables from real servers: what is put in a table's place is the source, whatever interrupts."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from deltalake import DeltaTable

from agent import pacing
from agent.errors import CopyLostError, JobError, SourceConfigError
from agent.feeds import copies
from agent.feeds.copies import CopyOrder
from agent.feeds.runtime import Feed
from agent.ports.executor import Executor
from agent.sources.mysql.position.positions import SourcePosition, next_epoch
from agent.units.dump import DumpProgress
from capture.embedded import EmbeddedMariaDB, EmbeddedPostgres
from reactor.errors import WeirError
from reactor.ids import ChangefeedId, TableSpan, Ts
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, SinkMode
from reactor.records.tables.table import TableRecord
from tests.integration.agent.units.test_dump import InlineExecutor

ROWS = 90


@dataclass
class Site:
    """A database with two tables, ``shop`` and ``other``, and a changefeed over them."""

    feed: Feed
    run: Callable[[str], Any]
    log: str
    tables: dict[str, TableRecord]
    schema: str

    def copy(
        self,
        executor: InlineExecutor | None = None,
        *,
        number: int = 1,
        epoch: int = 1,
        rows_per_second: int | None = None,
        on_progress: Callable[[DumpProgress], None] = lambda _: None,
    ) -> tuple[TableRecord, int]:
        order = CopyOrder(self.tables["shop"], number, epoch, self.log, rows_per_second)
        return anyio.run(
            partial(copies.copy, self.feed, cast("Executor", executor or InlineExecutor()), order, on_progress)
        )

    def place(self, table: TableRecord, number: int = 1, *, timeline: int = 1) -> None:
        copies.place(self.feed, table, (TableSpan(table.table_id),), number, timeline=timeline)

    def rows(self, name: str = "shop") -> list[dict[str, Any]]:
        table = DeltaTable(self.feed.sink_uri.partition("//")[2] + f"/{self.schema}/{name}")
        return sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: (row["id"] is not None, row["id"]))


def site_of(server: EmbeddedPostgres | EmbeddedMariaDB, directory: Path, mode: SinkMode) -> Site:
    name = f"copies_{uuid.uuid4().hex[:8]}"
    server.create_database(name)
    for table in ("shop", "other"):
        server.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(20))", database=name)
    feed = Feed(
        id=ChangefeedId(name.replace("_", "-")),
        cluster="test",
        namespace="default",
        source_uri=server.uri(name),
        sink_uri=f"delta+file://{directory}/lake",
        sink_mode=mode,
        config=ChangefeedConfig(dump_chunk_rows=1_000, filter=FilterConfig(rules=(f"{name}.*", "public.*"))),
        start_ts=Ts(0),
        log_uri=str(directory / "log"),
    )
    source = feed.open_source()
    found = source.discover().tables
    log = source.begin(found).text
    tables = {table.name: table for table in found}
    return Site(feed, lambda sql: server.execute(sql, database=name), log, tables, found[0].schema_name)


def fill(site: Site, rows: int = ROWS) -> None:
    values = ", ".join(f"({number}, 'v{number}')" for number in range(rows))
    site.run(f"INSERT INTO shop VALUES {values}")


@pytest.fixture(params=["postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def server(request: pytest.FixtureRequest) -> EmbeddedPostgres | EmbeddedMariaDB:
    return cast("EmbeddedPostgres | EmbeddedMariaDB", request.getfixturevalue(request.param))


@pytest.fixture
def site(server: EmbeddedPostgres | EmbeddedMariaDB, tmp_path: Path) -> Site:
    return site_of(server, tmp_path, SinkMode.UPSERT)


@pytest.mark.matrix
def test_a_table_that_took_the_name_is_not_copied_for_the_one_that_had_it(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """The stream may be behind the swap. MySQL has no numbers of tables; the owner refuses such a copy there."""
    site = site_of(postgres, tmp_path, SinkMode.UPSERT)
    fill(site)
    site.run("BEGIN; ALTER TABLE shop RENAME TO old; ALTER TABLE other RENAME TO shop; COMMIT")
    with pytest.raises(SourceConfigError, match=r"no table public\.shop .* has another name .* resync --cancel"):
        site.copy()


def test_what_is_put_in_place_is_the_source_and_nothing_is_made_there(site: Site) -> None:
    fill(site)
    before = site.feed.open_source().current_ts()
    table, rows = site.copy()
    assert rows == ROWS
    assert table.table_id == site.tables["shop"].table_id
    assert table.start_ts >= before - 1
    site.place(table)
    assert [row["v"] for row in site.rows()] == [f"v{number}" for number in range(ROWS)]
    site.run("DELETE FROM shop WHERE id < 80")
    again, rows = site.copy(number=2, epoch=2)
    assert (rows, again.start_ts > table.start_ts) == (10, True)
    site.place(again, number=2)
    site.place(again, number=2)
    assert [row["id"] for row in site.rows()] == [*range(80, 90)]
    sink = site.feed.open_sink()
    assert sink.committed_ts(again, TableSpan(again.table_id)) == again.start_ts


def test_a_copy_that_was_lost_continues_with_what_is_finished(site: Site) -> None:
    fill(site, 3_000)

    with pytest.raises(WeirError):
        site.copy(InlineExecutor(before=_lose_all_but_one))
    second = InlineExecutor()
    table, rows = site.copy(second, epoch=5)
    site.place(table)
    assert rows == 3_000
    assert len(site.rows()) == 3_000
    assert not any(description.endswith((" 1/3", " 1/4")) for description in second.descriptions)


def test_a_limit_is_kept(site: Site) -> None:
    fill(site, 4_000)
    site.feed = replace(site.feed, config=site.feed.config.with_(read_rows_per_second=8_000))
    began, seen = time.monotonic(), list[tuple[int, int]]()
    assert (
        site.copy(rows_per_second=50_000, on_progress=lambda at: seen.append((at.rows_done, at.rows_total)))[1] == 4_000
    )
    assert time.monotonic() - began >= 3 * 1_000 / 8_000, "the fourth chunk waits for those before it"
    assert seen[0][0] == 0
    assert seen[-1] == (4_000, 4_000)
    assert all(done <= total for done, total in seen)


def test_chunks_that_are_too_large_for_a_limit_are_read_row_by_row_and_by_no_task(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(site, 3_000)
    with pytest.raises(WeirError):
        site.copy(InlineExecutor(before=_lose_all_but_one))
    monkeypatch.setattr(pacing.Pace, "chunk_rows", lambda _self, _unlimited: 100)
    second, began = InlineExecutor(), time.monotonic()
    table, rows = site.copy(second, epoch=5, rows_per_second=10_000)
    assert second.descriptions == []
    assert time.monotonic() - began >= 1_000 / 10_000
    site.place(table)
    assert rows == len(site.rows()) == 3_000


def _lose_all_but_one(description: str) -> None:
    if not description.endswith((" 1/3", " 1/4")):
        raise JobError("the executor is gone")


def test_rows_that_change_meanwhile_are_of_the_copys_position_or_mended_from_the_log(site: Site) -> None:
    """A change behind the position is in the copy only where the log brings it again (``consistent_ts``)."""
    fill(site, 2_000)
    changed: list[str] = []

    def change(description: str) -> None:
        if not changed:
            changed.append(description)
            site.run("UPDATE shop SET v = 'later' WHERE id = 1999")

    table, rows = site.copy(InlineExecutor(before=change))
    site.place(table)
    [row] = [row for row in site.rows() if row["id"] == 1999]
    assert rows == 2_000
    assert row["v"] == "v1999" or table.consistent_ts > table.start_ts


def test_a_table_that_is_not_there_any_more_is_refused(site: Site) -> None:
    site.run("DROP TABLE shop")
    with pytest.raises(SourceConfigError, match=r"there is no table \w+\.shop at the source to copy"):
        site.copy()


def test_a_copy_without_its_notes_is_lost(site: Site) -> None:
    fill(site)
    table, _ = site.copy()
    directory = site.feed.manifest(copies.source_name(table.table_id, 1)).directory
    directory.remove(directory.names())
    with pytest.raises(CopyLostError):
        site.place(table)


def test_what_is_wrong_with_other_tables_does_not_matter(site: Site) -> None:
    """One without a key makes a new changefeed impossible, and no copy."""
    site.run("ALTER TABLE other DROP CONSTRAINT other_pkey" if site.schema == "public" else "DROP TABLE other")
    fill(site)
    assert site.copy()[1] == ROWS


def test_a_changelog_gets_a_truncate_and_the_rows_behind_it(
    server: EmbeddedPostgres | EmbeddedMariaDB, tmp_path: Path
) -> None:
    site = site_of(server, tmp_path, SinkMode.CHANGELOG)
    fill(site, 3)
    first, _ = site.copy()
    site.place(first)
    site.run("DELETE FROM shop WHERE id = 0")
    second, _ = site.copy(number=2)
    site.place(second, number=2)
    rows = sorted(site.rows(), key=lambda row: (row["_commit_version"], row["_commit_seq"]))
    shown = [(row["_change_type"], row["id"], row["_commit_version"]) for row in rows]
    assert sorted(shown[:3]) == [("insert", number, first.start_ts) for number in range(3)]
    assert shown[3] == ("truncate", None, second.start_ts)
    assert sorted(shown[4:]) == [("insert", number, second.start_ts) for number in (1, 2)]


def test_a_copy_of_a_server_in_whose_place_another_was_promoted_is_lost(site: Site) -> None:
    """It may have rows that the other one never had."""
    fill(site)
    table, _ = site.copy()
    with pytest.raises(CopyLostError, match=r"another server has taken the place .*shop was copied"):
        site.place(table, timeline=2)
    site.place(table)


def test_a_log_that_went_over_to_another_server_gives_the_copy_its_epoch(
    mariadb: EmbeddedMariaDB, tmp_path: Path
) -> None:
    site = site_of(mariadb, tmp_path, SinkMode.UPSERT)
    fill(site)
    first, _ = site.copy()
    position = SourcePosition.from_json(site.log)
    site.log = next_epoch(position, position.epoch.server, position.binlog).to_json()
    second, _ = site.copy(number=2)
    assert second.start_ts >> 56 == (first.start_ts >> 56) + 1
