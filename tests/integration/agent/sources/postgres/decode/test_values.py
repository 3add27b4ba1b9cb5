"""Values that psycopg cannot show, and updates that leave large values out, as a real server sends them."""

import uuid
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from agent.rows.changes import UPDATE, Changes
from agent.rows.spans import key_changes
from agent.sources.postgres.decode.decode import decode
from capture.embedded import EmbeddedPostgres
from tests import pgoutput
from tests.shared_postgres import give_back

#: type, PostgreSQL's spelling, what Weir makes of it (as Arrow's text)
_SPECIAL = [
    ("date", "infinity", "9999-12-31"),
    ("date", "-infinity", "0001-01-01"),
    ("date", "0044-03-15 BC", "-0043-03-15"),
    ("date", "12345-06-07", "12345-06-07"),
    ("time", "24:00:00", "23:59:59.999999"),
    ("timestamp", "infinity", "9999-12-31 23:59:59.999999"),
    ("timestamp", "-infinity", "0001-01-01 00:00:00.000000"),
    ("timestamp", "0044-03-15 12:00:00.5 BC", "-0043-03-15 12:00:00.500000"),
    ("timestamp", "294276-12-31 23:59:59", "9999-12-31 23:59:59.999999"),
    ("timestamptz", "infinity", "9999-12-31 23:59:59.999999Z"),
    ("timestamptz", "2024-02-29 23:30:00-05:30", "2024-03-01 05:00:00.000000Z"),
    ("timestamptz", "0001-01-01 00:00:00+00 BC", "0000-01-01 00:00:00.000000Z"),
    ("numeric(12,2)", "NaN", None),
    ("numeric", "NaN", "NaN"),
    ("numeric", "-Infinity", "-Infinity"),
    ("numeric", "0.000", "0.000"),
    ("float8", "NaN", "nan"),
    ("float4", "-Infinity", "-inf"),
    ("char(5)", "ab", "ab   "),
]


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[str]:
    name = f"values_{uuid.uuid4().hex[:8]}"
    postgres.create_database(name)
    postgres.execute("CREATE PUBLICATION p FOR ALL TABLES", database=name)
    pgoutput.create_slot(postgres.dsn(name), name)
    yield name
    postgres.execute(f"SELECT pg_drop_replication_slot('{name}')")
    give_back(postgres, name)


def _run(postgres: EmbeddedPostgres, database: str, *statements: str) -> None:
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def _changes(postgres: EmbeddedPostgres, database: str, table: str, *, is_binary: bool = True) -> Changes:
    table_id = pgoutput.table_id(postgres.dsn(database), table)
    schema = pgoutput.read_schema(postgres.uri(database), table_id)
    events = pgoutput.read_events(postgres.dsn(database), database, "p", is_binary=is_binary)
    return decode(schema, pgoutput.as_batch(events[table_id]))


@pytest.mark.parametrize("is_binary", [True, False])
def test_special_values_become_what_the_document_says(
    postgres: EmbeddedPostgres, database: str, is_binary: bool
) -> None:
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _, _) in enumerate(_SPECIAL))
    values = ", ".join(f"'{spelling}'" for _, spelling, _ in _SPECIAL)
    _run(postgres, database, f"CREATE TABLE special ({columns})", f"INSERT INTO special VALUES ({values})")
    after = _changes(postgres, database, "special", is_binary=is_binary).after
    assert [column.cast(pa.string())[0].as_py() for column in after.columns] == [shown for _, _, shown in _SPECIAL]


_TOAST = (
    "CREATE TABLE large (id int PRIMARY KEY, v int, body text)",
    "ALTER TABLE large ALTER body SET STORAGE EXTERNAL",
)
_TOAST_STEPS = (
    "INSERT INTO large VALUES (1, 0, repeat('x', 10000)), (2, 0, 'small')",
    "UPDATE large SET v = 1",
    "UPDATE large SET id = 9 WHERE id = 1",
)


@pytest.mark.parametrize("is_binary", [True, False])
def test_a_large_value_that_an_update_left_alone_is_unchanged(
    postgres: EmbeddedPostgres, database: str, is_binary: bool
) -> None:
    _run(postgres, database, *_TOAST, *_TOAST_STEPS)
    changes = _changes(postgres, database, "large", is_binary=is_binary)
    # insert 1, insert 2, update 1 (left out), update 2 (small: sent again), key change of 1 (left out)
    assert changes.unchanged["body"].tolist() == [False, False, True, False, True]
    assert changes.after.column("body").to_pylist() == ["x" * 10000, "small", None, "small", None]
    assert key_changes(changes, ["id"]).tolist() == [False] * 4 + [True]


def test_with_replica_identity_full_nothing_is_left_out(postgres: EmbeddedPostgres, database: str) -> None:
    _run(postgres, database, *_TOAST, "ALTER TABLE large REPLICA IDENTITY FULL", *_TOAST_STEPS)
    changes = _changes(postgres, database, "large")
    assert changes.unchanged == {}
    updates = changes.after.filter(pa.array(changes.op == UPDATE))
    assert updates.column("body").to_pylist() == ["x" * 10000, "small", "x" * 10000]


def test_a_large_key_is_sent_with_every_update_and_is_no_key_change(postgres: EmbeddedPostgres, database: str) -> None:
    _run(
        postgres,
        database,
        "CREATE TABLE keyed (k text PRIMARY KEY, v int)",
        "ALTER TABLE keyed ALTER k SET STORAGE EXTERNAL",
        "INSERT INTO keyed VALUES (repeat('k', 2500), 0)",
        "UPDATE keyed SET v = 1",
    )
    changes = _changes(postgres, database, "keyed")
    assert changes.unchanged == {}
    assert changes.after.column("k").to_pylist() == ["k" * 2500] * 2
    assert not key_changes(changes, ["k"]).any()
