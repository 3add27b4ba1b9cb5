"""Copies of small tables from real servers: together they are what each would be alone, whatever happens to one."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import anyio
import pytest

from agent.errors import JobError, SourceConfigError, SourceUnreachableError, StatementRefusedError
from agent.feeds import copies
from agent.feeds.copies import CopyOrder
from agent.feeds.runtime import Feed
from agent.ports.executor import Executor
from agent.ports.source import Dumper
from agent.sources.postgres.server.uri import parse_uri
from agent.units.dump import DumpProgress
from agent.units.manifest import Manifest
from capture.embedded import EmbeddedMariaDB, EmbeddedPostgres
from reactor.errors import WeirError
from reactor.ids import TableSpan
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord
from tests.integration.agent.feeds.test_copies import Site, site_of
from tests.integration.agent.units.test_dump import InlineExecutor

NAMES = [f"t{number}" for number in range(5)]
Results = dict[str, tuple[TableRecord, int] | WeirError]


@pytest.fixture(params=["postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def server(request: pytest.FixtureRequest) -> EmbeddedPostgres | EmbeddedMariaDB:
    return cast("EmbeddedPostgres | EmbeddedMariaDB", request.getfixturevalue(request.param))


@pytest.fixture
def site(server: EmbeddedPostgres | EmbeddedMariaDB, tmp_path: Path) -> Site:
    """Table ``t2`` has two rows, ``t3`` three."""
    site = site_of(server, tmp_path, SinkMode.UPSERT)
    for number, name in enumerate(NAMES):
        site.run(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(20))")
        if number:
            site.run(f"INSERT INTO {name} VALUES {', '.join(f'({id}, {number})' for id in range(number))}")
    site.tables = {table.name: table for table in site.feed.open_source().discover().tables}
    return site


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tables each snapshot was of."""
    found: list[int] = []
    dumper = Feed.open_source

    def open_source(feed: Feed):  # type: ignore[no-untyped-def]
        source = dumper(feed)
        kind = type(source)
        inner = source.dumper

        class Noted:
            settle = staticmethod(inner.settle)

            @staticmethod
            def open(order, *rest):  # type: ignore[no-untyped-def]
                found.append(len(order.tables))
                return inner.open(order, *rest)

        class Source(kind):  # type: ignore[misc,valid-type]
            dumper = property(lambda _: cast("Dumper", Noted))

        source.__class__ = Source
        return source

    monkeypatch.setattr(Feed, "open_source", open_source)
    return found


def copied(site: Site, *, number: int = 1, epoch: int = 1, executor: InlineExecutor | None = None) -> Results:
    orders = [CopyOrder(site.tables[name], number, epoch, site.log) for name in NAMES]
    seen: list[DumpProgress] = []
    results = anyio.run(
        partial(copies.copy_together, site.feed, cast("Executor", executor or InlineExecutor()), orders, seen.append)
    )
    return dict(zip(NAMES, results, strict=True))


def place(site: Site, results: Results, *, number: int = 1) -> None:
    for result in results.values():
        assert not isinstance(result, WeirError), result
        table, _ = result
        copies.place(site.feed, table, (TableSpan(table.table_id),), number, timeline=1)


def rows(site: Site) -> dict[str, list[tuple[int, str]]]:
    return {name: [(row["id"], row["v"]) for row in site.rows(name)] for name in NAMES}


EXPECTED = {f"t{number}": [(id, str(number)) for id in range(number)] for number in range(5)}


@pytest.mark.matrix
def test_small_tables_share_a_snapshot_and_their_jobs(site: Site, opened: list[int]) -> None:
    executor = InlineExecutor()
    results = copied(site, executor=executor)
    assert opened == [5]
    assert len(executor.descriptions) == 3, "one of half of what is left, as long as there are others to read it"
    assert {result[0].start_ts for result in results.values() if isinstance(result, tuple)} != {0}
    assert [result[1] for result in results.values() if isinstance(result, tuple)] == [0, 1, 2, 3, 4]
    assert [result[0].table_id for result in results.values() if isinstance(result, tuple)] == [
        site.tables[name].table_id for name in NAMES
    ]
    place(site, results)
    assert rows(site) == EXPECTED
    site.run("DELETE FROM t4 WHERE id > 0")
    place(site, copied(site, number=2, epoch=2), number=2)
    assert rows(site) == EXPECTED | {"t4": [(0, "4")]}


@pytest.mark.matrix
def test_what_was_begun_before_continues_alone(site: Site, opened: list[int]) -> None:
    def lose(_: str) -> None:
        raise JobError("the executor is gone")

    with pytest.raises(WeirError):
        copied(site, executor=InlineExecutor(before=lose))
    assert opened == [5]
    results = copied(site, epoch=2)
    assert opened[1:] == [1] * 5
    place(site, results)
    assert rows(site) == EXPECTED


@pytest.mark.matrix
def test_each_table_is_a_suspect_when_its_group_has_ended_a_process(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed process leaves is with each table, and the next run reads it apart from all others."""

    def lose(_: str) -> None:
        raise JobError("the executor is gone")

    monkeypatch.setattr(Manifest, "remove_attempts", lambda *_: None)
    with pytest.raises(WeirError):
        copied(site, executor=InlineExecutor(before=lose))
    for name in NAMES:
        id = site.tables[name].table_id
        assert site.feed.manifest(copies.source_name(id, 1)).read_attempts() == [((id,), False)]
    monkeypatch.undo()
    place(site, copied(site, epoch=2))
    assert rows(site) == EXPECTED


def test_a_table_that_is_gone_or_unfit_leaves_the_others_together(site: Site, opened: list[int]) -> None:
    site.run("DROP TABLE t1")
    site.run(f"ALTER TABLE t3 DROP {'CONSTRAINT t3_pkey' if site.schema == 'public' else 'PRIMARY KEY'}")
    results = copied(site)
    assert opened == [3]
    assert isinstance(results["t1"], SourceConfigError)
    assert isinstance(results["t3"], WeirError)
    assert [result[1] for result in results.values() if isinstance(result, tuple)] == [0, 2, 4]


def test_a_table_that_the_source_refuses_leaves_the_others_together(
    postgres: EmbeddedPostgres, tmp_path: Path, opened: list[int]
) -> None:
    """One without a privilege, or that a publication of the user's lacks, is refused together with all that it is
    looked for with."""
    site = site_of(postgres, tmp_path, SinkMode.UPSERT)
    for name in NAMES:
        site.run(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(20))")
    site.tables = {table.name: table for table in site.feed.open_source().discover().tables}
    role = f"reader_{uuid4().hex[:8]}"
    site.run(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'secret'")
    site.run(f"GRANT SELECT ON {', '.join(name for name in NAMES if name != 't3')} TO {role}")
    target = parse_uri(site.feed.source_uri)
    uri = f"postgresql://{role}:secret@{target.host}:{target.port}/{target.database}"
    site.feed = replace(site.feed, source_uri=uri)
    found = copies.measure(site.feed, list(site.tables.values()))
    assert found.keys() == {site.tables[name].table_id for name in NAMES if name != "t3"}
    results = copied(site)
    assert opened == [4]
    assert "may not read" in str(results["t3"])
    assert [name for name, result in results.items() if isinstance(result, tuple)] == ["t0", "t1", "t2", "t4"]


@pytest.mark.matrix
def test_a_table_that_goes_while_the_group_begins_is_none_of_the_others_trouble(
    site: Site, monkeypatch: pytest.MonkeyPatch, opened: list[int]
) -> None:
    copy_new = copies._copy_new

    async def gone_first(*args: object) -> object:
        site.run("DROP TABLE t3")
        return await copy_new(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(copies, "_copy_new", gone_first)
    results = copied(site)
    assert isinstance(results["t3"], WeirError)
    assert [result[1] for result in results.values() if isinstance(result, tuple)] == [0, 1, 2, 4]


class Damaged(InlineExecutor):
    """Table ``t2`` cannot be read."""

    def map(self, function: Any, descriptors: Any, *, description: str, **_: object) -> list[Any]:
        [staged] = super().map(function, descriptors, description=description)
        names = [task.table.name for task in descriptors[0]]
        error = StatementRefusedError("could not read block 7")
        return [[error if name == "t2" else one for name, one in zip(names, staged, strict=True)]]


def test_rows_that_the_source_refuses_are_of_their_table_alone(site: Site, opened: list[int]) -> None:
    results = copied(site, executor=Damaged())
    assert opened == [5]
    assert "could not read block 7" in str(results["t2"])
    assert [result[1] for result in results.values() if isinstance(result, tuple)] == [0, 1, 3, 4]
    again = site.feed.manifest(copies.source_name(site.tables["t2"].table_id, 1))
    assert again.directory.names() == [], "its next run begins again"


def test_a_source_that_is_away_is_asked_once_for_all(site: Site, opened: list[int], server: EmbeddedPostgres) -> None:
    def leave(_: str) -> None:
        raise SourceUnreachableError("connection refused")

    with pytest.raises(SourceUnreachableError):
        copied(site, executor=InlineExecutor(before=leave))
    assert opened == [5]


def test_sizes_are_the_servers_estimates(site: Site, server: EmbeddedPostgres | EmbeddedMariaDB) -> None:
    """Of a table that was filled just now too."""
    values = ", ".join(f"({id}, 'v')" for id in range(30_000))
    site.run(f"INSERT INTO t0 VALUES {values}")
    if site.schema != "public":
        site.run("ANALYZE TABLE t0")  # the server does that by itself, a moment later
    site.run("DROP TABLE t4")
    site.run("ALTER TABLE t3 RENAME TO t9")
    found = copies.measure(site.feed, list(site.tables.values()))
    by_name = {name: found.get(table.table_id) for name, table in site.tables.items()}
    assert by_name.keys() - {name for name, size in by_name.items() if size is None} == {
        "shop",
        "other",
        "t0",
        "t1",
        "t2",
    }
    assert 3_000 < (by_name["t0"] or 0) < 200_000
    assert (by_name["t1"] or 0) < 1_000


def test_the_size_of_a_partitioned_table_is_that_of_its_partitions(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    site = site_of(postgres, tmp_path, SinkMode.UPSERT)
    site.run("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    for low in (0, 10_000):
        site.run(f"CREATE TABLE p{low} PARTITION OF p FOR VALUES FROM ({low}) TO ({low + 10_000})")
    site.run("INSERT INTO p SELECT generate_series(0, 19999)")
    found = {table.name: table for table in site.feed.open_source().discover().tables}
    for statistics in ("", "ANALYZE p0", "ANALYZE p"):
        if statistics:
            site.run(statistics)
        [size] = copies.measure(site.feed, [found["p"]]).values()
        assert 2_000 < size < 100_000, statistics
