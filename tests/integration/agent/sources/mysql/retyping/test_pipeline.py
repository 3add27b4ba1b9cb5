"""Columns that get another type, all the way: from the binlog by way of the record to a Delta table, and SELECT."""

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.errors import DecodeError, TableHeldError
from agent.rows.schema import TableSchema, ZeroDates
from agent.rows.schema_change import Exact
from agent.schema_changes import apply
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table import schema as delta_schema
from agent.sources.mysql.decode.types import arrow_schema
from agent.sources.mysql.retyping.retyping import conversion
from agent.sources.mysql.retyping.terms import RetypeTerms
from capture.embedded import EmbeddedMariaDB
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.tables.table import TableRecord
from tests.integration.agent.sinks.delta.test_sink import sink_at
from tests.integration.agent.sources.mysql.binlog_rig import run
from tests.integration.agent.sources.mysql.ddl.test_statements import Followed, schema_of
from tests.integration.agent.sources.mysql.retyping.conversion_types import Sample
from tests.integration.agent.sources.mysql.retyping.rig import read
from tests.integration.agent.sources.mysql.retyping.test_retyping import types_of
from tests.mysql_server import is_mariadb

_WIDTH = 22
_ROWS = 9
_ZONE = "+05:30"
_FEED = apply.Terms(ChangefeedConfig(), SinkMode.UPSERT)
#: what a statement leaves to the table or to the server's version
_SKIPPED = ("COMPRESSED", "json", "vector", "point")


@pytest.fixture
def database(server: EmbeddedMariaDB, request: pytest.FixtureRequest) -> str:
    name = f"retyped_{abs(hash(request.node.nodeid)) % 10**9}"
    server.create_database(name)
    return name


def loaded(directory: Path, schema: TableSchema, values: pa.Table) -> DeltaSink:
    """A sink with a table of these rows."""
    sink, arrow = sink_at(directory, SinkMode.UPSERT), arrow_schema(schema)
    table = TableRecord(
        table_id=schema.table_id, schema_name=schema.schema_name, name=schema.name, key=("id",), start_ts=Ts(1)
    )
    staged = sink.stage(table, "0", iter(values.to_batches()), Ts(1))
    sink.load(table, schema, arrow, staged)
    return sink


def stored(directory: Path, database: str) -> pa.Table:
    table = pa.table(DeltaTable(str(directory / database / "t")).scan())
    plain = pa.schema([(item.name, delta_schema.plain_type(item.type)) for item in table.schema])
    return table.cast(plain).sort_by("id")


@pytest.mark.parametrize("tables", [2, pytest.param(7, marks=pytest.mark.matrix)])
def test_sampled_pairs_through_the_whole_pipeline(
    server: EmbeddedMariaDB, database: str, tmp_path: Path, tables: int
) -> None:
    dice = random.Random(5)
    types = [sample for sample in types_of(server) if not any(word in sample.definition for word in _SKIPPED)]
    done = 0
    for number in range(tables):
        pairs = [(dice.choice(types), dice.choice(types)) for _ in range(_WIDTH)]
        done += _check(server, database, tmp_path / str(number), pairs)
    assert done > tables * _WIDTH // 3, "most pairs are known"


def _check(server: EmbeddedMariaDB, database: str, directory: Path, pairs: Sequence[tuple[Sample, Sample]]) -> int:
    """How many of them were altered, in one statement."""
    columns = [f"c{at} {old.definition}" for at, (old, _) in enumerate(pairs)]
    rows = [
        f"({row}, " + ", ".join(("NULL", *old.values)[row % (len(old.values) + 1)] for old, _ in pairs) + ")"
        for row in range(_ROWS)
    ]
    run(
        server,
        database,
        "DROP TABLE IF EXISTS t",
        "SET sql_mode = ''",
        f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(columns)}) CHARACTER SET utf8mb4",
        f"INSERT INTO t VALUES {', '.join(rows)}",
    )
    schema, values = read(server, database, "t", ZeroDates.NULL)
    sink, followed = loaded(directory, schema, values), Followed(server, database, looks=True)
    wanted = [at for at, pair in enumerate(pairs) if _is_known(server, database, at, pair, schema, values)]
    if not wanted:
        return 0
    parts = ", ".join(f"MODIFY c{at} {pairs[at][1].definition}" for at in wanted)
    records = followed.run("SET sql_mode = ''", f"SET time_zone = '{_ZONE}'", f"ALTER TABLE t {parts}")
    for record in records:
        apply.apply(sink, record, _FEED)
    _, there = read(server, database, "t", ZeroDates.NULL)
    found = stored(directory, database)
    for at in wanted:
        title = f"{pairs[at][0].definition} → {pairs[at][1].definition}"
        assert found.column(f"c{at}").to_pylist() == there.column(f"c{at}").to_pylist(), title
    return len(wanted)


def _is_known(
    server: EmbeddedMariaDB,
    database: str,
    at: int,
    pair: tuple[Sample, Sample],
    schema: TableSchema,
    values: pa.Table,
) -> bool:
    """Whether we know what the server makes of all values."""
    definition = f"CREATE TABLE probe (id int PRIMARY KEY, c{at} {pair[1].definition}) CHARACTER SET utf8mb4"
    run(server, database, "DROP TABLE IF EXISTS probe", "SET sql_mode = ''", definition)
    after, before = schema_of(server, database, "probe").columns[1], schema.columns[at + 1]
    found = conversion(before, after, RetypeTerms(is_mariadb(server), 0, _ZONE))
    if not isinstance(found, Exact):
        return found is None
    try:
        found.convert(values.column(before.name).combine_chunks())
    except DecodeError:
        return False
    return True


_COLUMNS = "a varchar(20), b int, e enum('a','b','c'), d datetime(6), z int(6) zerofill, w varchar(9), s text"
_KEYED = f"CREATE TABLE t (id int PRIMARY KEY, {_COLUMNS}) CHARACTER SET utf8mb4"
_WIDE, _LATE = "_utf8mb4 x'C3A9E697A5F09F9880'", "'1999-12-31 23:59:59.999999'"
_ONE = (
    f"INSERT INTO t VALUES (1, 'x  ', NULL, 'b', '2024-06-15 12:34:56.789', 42, {_WIDE}, {_WIDE}), "
    f"(2, NULL, 300, 'c', {_LATE}, 7, '', NULL)"
)


def followed_into(
    server: EmbeddedMariaDB, database: str, directory: Path, *statements: str, before: str = "DO 1"
) -> tuple[pa.Table, pa.Table]:
    """The sink's rows and the server's after ``statements``."""
    run(server, database, "SET sql_mode = ''", _KEYED, _ONE, before)
    schema, values = read(server, database, "t", ZeroDates.NULL)
    sink, followed = loaded(directory, schema, values), Followed(server, database, looks=True)
    for record in followed.run(*statements):
        apply.apply(sink, record, _FEED)
    _, there = read(server, database, "t", ZeroDates.NULL)
    return stored(directory, database).select(there.column_names), there


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(
    "parts",
    [
        "MODIFY b bigint NOT NULL, MODIFY a char(20) NOT NULL",
        "MODIFY e enum('c','B') NOT NULL",
        "MODIFY a char(20), MODIFY b tinyint, MODIFY d datetime(1)",
        "CHANGE z n varchar(10), CHANGE d z time",
        "MODIFY a varchar(1) CHARACTER SET ascii, MODIFY d date",
        "MODIFY d timestamp(3) NULL",
    ],
)
def test_values_under_the_same_type_of_the_sink(
    server: EmbeddedMariaDB, database: str, tmp_path: Path, parts: str
) -> None:
    settings = "SET sql_mode = ''", "SET time_zone = '-03:30'"
    found, there = followed_into(server, database, tmp_path, *settings, f"ALTER TABLE t {parts}")
    assert found.to_pylist() == there.to_pylist()


@pytest.mark.parametrize("parts", ["MODIFY b int NOT NULL", "DROP PRIMARY KEY, ADD PRIMARY KEY (b, id)"])
def test_null_in_a_column_that_becomes_not_null_and_keeps_its_type(
    server: EmbeddedMariaDB, database: str, tmp_path: Path, parts: str
) -> None:
    """MariaDB puts the default of before, which nobody knows."""
    statements = "SET sql_mode = ''", f"ALTER TABLE t {parts}"
    default = "ALTER TABLE t ALTER COLUMN b SET DEFAULT 7"
    if is_mariadb(server):
        with pytest.raises(TableHeldError, match="has become NOT NULL"):
            followed_into(server, database, tmp_path, *statements, before=default)
        return
    found, there = followed_into(server, database, tmp_path, *statements, before=default)
    assert found.column("b").to_pylist() == there.column("b").to_pylist() == [0, 300]


def test_another_character_set(server: EmbeddedMariaDB, database: str, tmp_path: Path) -> None:
    convert = "ALTER TABLE t CONVERT TO CHARACTER SET latin1"
    found, there = followed_into(server, database, tmp_path, "SET sql_mode = ''", convert)
    assert found.to_pylist() == there.to_pylist()
    assert found.column("w").to_pylist() == ["é??", ""]


def test_what_nobody_knows_is_refused_and_the_sink_stays(
    server: EmbeddedMariaDB, database: str, tmp_path: Path
) -> None:
    with pytest.raises(TableHeldError, match="zero-dates"):
        followed_into(
            server,
            database,
            tmp_path,
            "SET sql_mode = ''",
            "ALTER TABLE t MODIFY d varchar(30)",
            before="UPDATE t SET d = NULL",
        )
    assert stored(tmp_path, database).column("d").null_count == 2
