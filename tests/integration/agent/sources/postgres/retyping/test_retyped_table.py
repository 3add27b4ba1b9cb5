"""A table whose columns get other types by a real ALTER TABLE: the Delta table holds then what the source does, or it
is held with the reason."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from agent.errors import TableHeldError
from agent.feeds.diff import compare
from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.schema_changes.apply import Terms, apply
from agent.sinks.delta.read import read_rows
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table.schema import delta_table
from agent.sources.common import schema_diff
from agent.sources.common.schema_diff import Columns
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.server.terms import ALL_ROWS
from agent.sources.postgres.snapshot import survivors
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE
from agent.sources.postgres.snapshot.rows import read_chunk
from agent.sources.registry import arrow_schema
from capture.embedded import EmbeddedPostgres
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord
from tests import pgoutput
from tests.integration.agent.sinks.delta.test_sink import sink_at

#: type, values, the type that it gets
_RETYPED = (
    ("char(5)", ("ab", "é  x", ""), "text"),
    ("text", ("ab", "ab  "), "char(3)"),
    ("varchar(9)", ("abc", "abc   "), "varchar(3)"),
    ("json", ('{"b":1e2, "a": [1.0]}', "[]"), "jsonb"),
    ("date", ("2024-02-29", "0044-03-15 BC"), "timestamp"),
    ("timestamp", ("2024-02-29 23:59:59.995", "1960-01-01 00:00:00.005"), "timestamp(2)"),
    ("timestamp", ("2024-02-29 23:59:59.995", "1960-01-01"), "date"),
    ("time", ("23:59:59.4", "00:00:00"), "time(0)"),
    ("time", ("23:59:59.40", "12:00"), "text"),
    ("int", ("1", "-2147483648"), "bigint"),
    ("int", ("1", "-5"), "text"),
    ("bigint", ("9007199254740993", "-5"), "double precision"),
    ("numeric(12,4)", ("1.00500", "-2.345"), "numeric(12,2)"),
    ("numeric(12,2)", ("1.5", "2.5"), "int"),
    ("numeric(12,2)", ("0.1", "123.45"), "double precision"),
    ("numeric(12,2)", ("0.10", "123.45"), "numeric"),
    ("double precision", ("0.1", "1e20"), "numeric"),
    ("real", ("0.1", "16777216"), "double precision"),
    ("boolean", ("t", "f"), "text"),
    ("uuid", ("12345678-1234-5678-1234-567812345678", "00000000-0000-0000-0000-000000000000"), "varchar(36)"),
    ("inet", ("10.0.0.1", "::1/64"), "text"),
    ("mood", ("sad", "ok"), "text"),
    ("int[]", ("{1,NULL}", "{}"), "bigint[]"),
)
#: type, value, the type that it gets by an expression, or in a session's time zone, or from what the sink has bent
_REFUSED = (
    ("text", "5", "int USING 1"),
    ("timestamp", "2024-02-29", "timestamptz"),
    ("double precision", "0.1", "text"),
    ("date", "infinity", "timestamp"),
    ("numeric(5,2)", "NaN", "double precision"),
    ("mood", "sad", "mood2 USING 'glad'"),
)
_MADE = "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE mood2 AS ENUM ('glad')"


class Bed:
    """One table, loaded into a Delta table at Ts 100."""

    def __init__(
        self, postgres: EmbeddedPostgres, directory: Path, mode: SinkMode, create: str, table: str = "t"
    ) -> None:
        name = directory.name.replace("-", "_").lower()[:50]
        self.uri, self._dsn = postgres.uri(name), postgres.dsn(name)
        if not postgres.has_database(name):
            postgres.create_database(name)
            self.execute(_MADE)
        self.execute(create)
        self.table_id = pgoutput.table_id(self._dsn, table)
        self.record = TableRecord(
            table_id=self.table_id, schema_name="public", name=table, key=("id",), start_ts=Ts(100)
        )
        self.sink: DeltaSink = sink_at(directory, mode)
        self.schema = self.read_schema()
        staged = self.sink.stage(self.record, "0", read_chunk(self.uri, None, self.schema, WHOLE_TABLE), Ts(100))
        self.sink.load(self.record, self.schema, arrow_schema(self.schema), staged)

    def execute(self, sql: str) -> None:
        with connect(self.uri) as connection:
            connection.query(sql)

    def read_schema(self) -> TableSchema:
        return pgoutput.read_schema(self.uri, self.table_id)

    def follow(self) -> None:
        """The sink's table becomes what the source's is now."""
        after = self.read_schema()
        change = schema_diff.compare(KnownTable(self.record, self.schema), KnownTable(self.record, after), Columns())
        assert change is not None
        terms = Terms(ChangefeedConfig(), self.sink._owner.mode, partial(survivors.read, self.uri, rows=ALL_ROWS))
        apply(self.sink, DdlRecord(ts=Ts(200), changes=(change,)), terms)

    def differences(self) -> tuple[str, ...]:
        schema, place = self.read_schema(), self.sink.place(self.record)

        def stored() -> list[pa.RecordBatch]:
            return list(read_rows(place, schema, arrow_schema(schema), key=("id",)))

        return compare(
            self.record.name,
            lambda: read_chunk(self.uri, None, schema, WHOLE_TABLE),
            stored,
            key=("id",),
            as_stored=delta_table,
        ).differences


@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_retyped_columns_hold_what_the_source_has_made_of_them(
    postgres: EmbeddedPostgres, tmp_path: Path, mode: SinkMode
) -> None:
    columns = ", ".join(f"c{at} {old}" for at, (old, _, _) in enumerate(_RETYPED))
    rows = ", ".join(f"({row}, {', '.join(repr(values[row]) for _, values, _ in _RETYPED)})" for row in range(2))
    bed = Bed(postgres, tmp_path, mode, f"CREATE TABLE t (id int PRIMARY KEY, {columns}); INSERT INTO t VALUES {rows}")
    assert not bed.differences()
    retyped = ", ".join(f"ALTER c{at} TYPE {new}" for at, (_, _, new) in enumerate(_RETYPED))
    bed.execute(f"SET timezone = 'Asia/Tokyo'; SET datestyle = 'German'; ALTER TABLE t {retyped}")
    bed.follow()
    assert not bed.differences()


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(("old", "value", "new"), _REFUSED)
def test_what_nobody_knows_holds_the_table_as_it_was(
    postgres: EmbeddedPostgres, tmp_path: Path, old: str, value: str, new: str
) -> None:
    create = f"CREATE TABLE t (id int PRIMARY KEY, c {old}); INSERT INTO t VALUES (1, '{value}')"
    bed = Bed(postgres, tmp_path, SinkMode.UPSERT, create)
    bed.execute(f"ALTER TABLE t ALTER c TYPE {new}")
    with pytest.raises(TableHeldError, match=r"column c (has another type|of public\.t has become)"):
        bed.follow()
    assert list(read_rows(bed.sink.place(bed.record), bed.schema, arrow_schema(bed.schema), key=("id",)))
