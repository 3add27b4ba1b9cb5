"""Row filters and column lists in random stories: snapshot and stream together are what the publication's terms leave.

The rows are those of a snapshot that Weir reads under the terms, then changed by what the server sends and Weir decodes
and folds. In the end they are compared with a second snapshot, and with a plain SELECT.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.ports.source import Position, Scope
from agent.rows.fold import net_changes
from agent.rows.schema import TableSchema
from agent.sources.postgres.decode.decode import decode
from agent.sources.postgres.source import PostgresSource
from capture.embedded import EmbeddedPostgres
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, SinkMode
from tests import pgoutput

Rows = dict[int, tuple[Any, ...]]

#: the server takes a filter on other columns than the key only where whole rows are sent, and no column list with these
_OF_KEY = ["id > 3", "id % 2 = 0", "id <> 4 AND id < 7", "NOT (id BETWEEN 2 AND 4)", "true", "false"]
_OF_ROW = [
    *_OF_KEY,
    "v > 5",
    "v % 3 = 0 OR w IS NULL",
    "w LIKE 'a%'",
    "v IS NULL",
    "(v + id) % 2 = 1",
    "w = ANY ('{a,b}')",
]
_COLUMNS = ["", "(id)", "(id, w)", "(w, id, v)"]
_VALUES = st.integers(0, 12).map(str) | st.just("NULL")
_TEXTS = st.sampled_from(["'a'", "'ab'", "'b'", "NULL", "repeat('a', 9000)", "repeat('b', 9000)"])
_KEYS = st.integers(0, 9)


@dataclass(frozen=True)
class Story:
    """``before`` the first snapshot, and after it."""

    columns: str
    condition: str
    is_whole: bool
    before: list[str]
    after: list[str]


@st.composite
def stories(draw: Callable[..., Any]) -> Story:
    statement = st.one_of(
        st.builds("INSERT INTO t VALUES ({}, {}, {}) ON CONFLICT DO NOTHING".format, _KEYS, _VALUES, _TEXTS),
        st.builds("UPDATE t SET v = {} WHERE id % 3 = {}".format, _VALUES, st.integers(0, 2)),
        st.builds("UPDATE t SET v = v + 1 WHERE id > {}".format, _KEYS),
        st.builds("UPDATE t SET w = {} WHERE id = {}".format, _TEXTS, _KEYS),
        st.builds(
            "UPDATE t SET id = {0} WHERE id = {1} AND NOT EXISTS (SELECT FROM t WHERE id = {0})".format, _KEYS, _KEYS
        ),
        st.builds(
            "UPDATE t SET id = {0}, v = {2} WHERE id = {1} AND NOT EXISTS (SELECT FROM t WHERE id = {0})".format,
            _KEYS,
            _KEYS,
            _VALUES,
        ),
        st.builds("DELETE FROM t WHERE id = {}".format, _KEYS),
        st.just("TRUNCATE t"),
        st.just("BEGIN; UPDATE t SET v = 4 - v; UPDATE t SET v = 4 - v; COMMIT"),
        st.just("BEGIN; UPDATE t SET id = id + 20; UPDATE t SET id = id - 20; COMMIT"),
    )
    is_whole = draw(st.booleans())
    columns = "" if is_whole else draw(st.sampled_from(_COLUMNS))
    condition = draw(st.sampled_from(_OF_ROW if is_whole else _OF_KEY))
    lists = st.lists(statement, min_size=1, max_size=14)
    return Story(columns, condition, is_whole, draw(lists), draw(lists))


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=stories())
def test_snapshot_and_stream_are_what_the_terms_leave(postgres: EmbeddedPostgres, story: Story) -> None:
    name = f"filtered_{uuid.uuid4().hex[:12]}"
    postgres.create_database(name)
    dsn = postgres.dsn(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(b"CREATE TABLE t (id int PRIMARY KEY, v int, w text, hidden text DEFAULT 'h')")
        connection.execute(b"ALTER TABLE t ALTER w SET STORAGE EXTERNAL")
        if story.is_whole:
            connection.execute(b"ALTER TABLE t REPLICA IDENTITY FULL")
        terms = f"{story.columns} WHERE ({story.condition})"
        connection.execute(f"CREATE PUBLICATION mine FOR TABLE t {terms}".encode())
        for statement in story.before:
            connection.execute(statement.encode())
        source = PostgresSource(
            postgres.uri(name),
            Scope(
                "c", name, SinkMode.UPSERT, ChangefeedConfig(publication="mine", filter=FilterConfig(rules=("*.t",)))
            ),
        )
        rows, schema = _snapshot(source)
        pgoutput.create_slot(dsn, name)
        for statement in story.after:
            connection.execute(statement.encode())
        rows = _changed(rows, schema, dsn, name)
        assert rows == _snapshot(source)[0]
        names = [column.name for column in schema.columns]
        sql = f"SELECT {', '.join(names)} FROM t WHERE {story.condition}"
        assert rows == {row[names.index("id")]: row for row in connection.execute(sql.encode())}
        connection.execute(
            b"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [name]
        )


def _snapshot(source: PostgresSource) -> tuple[Rows, TableSchema]:
    [table] = source.check().tables
    snapshot = source.snapshot([table], Position(Ts(0)))
    try:
        schema = snapshot.schema(table)
        names = [column.name for column in schema.columns]
        read = [tuple(row[name] for name in names) for batch in snapshot.read(schema) for row in batch.to_pylist()]
    finally:
        snapshot.close()
    rows = {row[names.index("id")]: row for row in read}
    assert len(rows) == len(read), "each row once"
    return rows, schema


def _changed(rows: Rows, schema: TableSchema, dsn: str, slot: str) -> Rows:
    events = pgoutput.read_events(dsn, slot, "mine", is_binary=True, consume=True).get(schema.table_id, [])
    if not events:
        return rows
    columns = [column.name for column in schema.columns]
    net = net_changes([decode(schema, pgoutput.as_batch(events))], key=["id"])
    after, found = ({} if net.is_truncated else dict(rows)), {}
    origins = net.upserts if net.origin is None else net.origin
    for at, row in enumerate(net.upserts.to_pylist()):
        kept = [name for name in columns if name in net.kept and net.kept[name][at]]
        stored = rows[origins["id"][at].as_py()] if kept else ()
        found[row["id"]] = tuple(stored[columns.index(name)] if name in kept else row[name] for name in columns)
    gone = {key for key in net.deletes.to_pydict().get("id", ()) if key not in found}
    return {key: row for key, row in after.items() if key not in gone} | found
