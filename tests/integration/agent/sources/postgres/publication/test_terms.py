"""Terms of a publication: snapshot and comparison read what it sends, columns, rows and generated columns."""

import itertools
import tomllib

import pyarrow as pa
import pytest

from agent.errors import SourceConfigError
from agent.ports.source import Position, Scope
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.server.terms import read_terms
from agent.sources.postgres.source import PostgresSource
from capture.embedded import EmbeddedPostgres
from reactor.ids import Ts
from reactor.records.changefeed import NO_FILTER, ChangefeedConfig, ColumnSelector, FilterConfig, SinkMode

_numbers = itertools.count()
_SCHEMA = """
CREATE TABLE t (id int PRIMARY KEY, a int, b text, s int GENERATED ALWAYS AS (id * 2) STORED, gone int);
ALTER TABLE t DROP gone;
ALTER TABLE t ADD last text;
INSERT INTO t (id, a, b, last) SELECT i, i % 3, 'b' || i, 'l' FROM generate_series(1, 30) i;
"""
#: made by somebody, and what it sends
_PUBLICATIONS = [
    ("FOR TABLE t WITH (publish_generated_columns = stored)", ("id", "a", "b", "s", "last"), 30),
    ("FOR TABLE t WHERE (id > 20) WITH (publish_generated_columns = stored)", ("id", "a", "b", "s", "last"), 10),
    ("FOR TABLE t (id, b)", ("id", "b"), 30),
    ("FOR TABLE t (id, s, last) WHERE (id <= 5 OR id = 30)", ("id", "s", "last"), 6),
    ("FOR ALL TABLES WITH (publish_generated_columns = stored)", ("id", "a", "b", "s", "last"), 30),
    ("FOR TABLE t WHERE (id > 20), TABLES IN SCHEMA public", ("id", "a", "b", "last"), 30),
    ("", ("id", "a", "b", "s", "last"), 30),
]


def make(postgres: EmbeddedPostgres, publication: str, filter: FilterConfig = NO_FILTER) -> PostgresSource:
    name = f"terms{next(_numbers)}"
    postgres.create_database(name)
    with connect(postgres.uri(name)) as connection:
        connection.query(_SCHEMA)
        if publication:
            connection.query(f"CREATE PUBLICATION mine {publication}")
    config = ChangefeedConfig(publication="mine" if publication else "", filter=filter)
    return PostgresSource(postgres.uri(name), Scope("c", name, SinkMode.UPSERT, config))


@pytest.mark.parametrize(("publication", "columns", "rows"), _PUBLICATIONS)
def test_a_comparison_reads_what_the_stream_sends(
    postgres: EmbeddedPostgres, publication: str, columns: tuple[str, ...], rows: int
) -> None:
    no_s = FilterConfig(column_selectors=(ColumnSelector(matcher=("public.t",), columns=("*", "!s")),))
    source = make(postgres, publication, NO_FILTER if "s" in columns else no_s)
    tables = source.check().tables
    source.prepare(tables)
    snapshot = source.snapshot(tables, Position(Ts(0)))
    try:
        schema = snapshot.schema(tables[0])
        assert tuple(column.name for column in schema.columns) == columns
        assert schema == source.read_schemas(tables[:1])[tables[0].table_id]
        read = pa.Table.from_batches(snapshot.read(schema))
        assert (read.num_rows, tuple(read.column_names)) == (rows, columns)
    finally:
        snapshot.close()
        source.drop()


@pytest.mark.parametrize(
    ("column", "publication", "words"),
    [
        ("v int GENERATED ALWAYS AS (id * 2) VIRTUAL", "", "the virtual generated column v, whose values the source"),
        ("v int GENERATED ALWAYS AS (id * 2) STORED", "FOR TABLE t", r"SET \(publish_generated_columns = stored\)"),
    ],
)
def test_a_generated_column_that_is_not_sent_is_left_out_only_on_request(
    postgres: EmbeddedPostgres, column: str, publication: str, words: str
) -> None:
    source = make(postgres, publication)
    with connect(source._uri) as connection:
        connection.query(f"ALTER TABLE t DROP s; ALTER TABLE t ADD {column}")
    with pytest.raises(SourceConfigError, match=words) as raised:
        source.check()
    assert 'columns = ["*", "!v"]' in str(raised.value)
    selected = FilterConfig(column_selectors=(ColumnSelector(matcher=("public.t",), columns=("*", "!v")),))
    config = ChangefeedConfig(publication="mine" if publication else "", filter=selected)
    [table] = PostgresSource(source._uri, Scope("c", "f", SinkMode.UPSERT, config)).check().tables
    snapshot = source.snapshot([table], Position(Ts(0)))
    try:
        with pytest.raises(SourceConfigError, match="generated column v"):  # which a comparison shows
            snapshot.schema(table)
    finally:
        snapshot.close()


def test_all_generated_columns_that_are_not_sent_are_named_at_once(postgres: EmbeddedPostgres) -> None:
    """With the selectors that leave them out, each as it may be copied into the changefeed's file."""
    source = make(postgres, "")
    with connect(source._uri) as connection:
        connection.query("ALTER TABLE t DROP s; ALTER TABLE t ADD v int GENERATED ALWAYS AS (id * 2) VIRTUAL")
        connection.query("ALTER TABLE t ADD w int GENERATED ALWAYS AS (id * 3) VIRTUAL")
        connection.query("CREATE TABLE u (id int PRIMARY KEY, x int GENERATED ALWAYS AS (id * 2) VIRTUAL)")
    with pytest.raises(SourceConfigError) as raised:
        source.check()
    what, _, cure = str(raised.value).partition(", whose values the source does not send; ")
    assert [f"table public.{table} has the virtual generated column" in what for table in "tu"] == [True, True]
    cures = cure.removeprefix("leave them out by column selectors: ").split("; ")
    selectors = [ColumnSelector.model_validate(tomllib.loads(one.replace("], ", "]\n"))) for one in cures]
    found = {selector.matcher: selector.columns for selector in selectors}
    assert found == {("public.t",): ("*", "!v", "!w"), ("public.u",): ("*", "!x")}
    config = ChangefeedConfig(filter=FilterConfig(column_selectors=tuple(selectors)))
    report = PostgresSource(source._uri, Scope("c", "f", SinkMode.UPSERT, config)).check()
    assert {table.name for table in report.tables} >= {"t", "u"}


def test_a_server_that_has_no_publication_of_ours_yet_is_read_as_it_will_be_sent(postgres: EmbeddedPostgres) -> None:
    source = make(postgres, "")
    with connect(source._uri) as connection:
        [(oid,)] = connection.query("SELECT 't'::regclass::oid::int8")
        schemas = read_schemas(connection, [int(oid or 0)], read_terms(connection, [source.names.publication]))
    assert [column.name for column in schemas[int(oid or 0)].columns] == ["id", "a", "b", "s", "last"]
