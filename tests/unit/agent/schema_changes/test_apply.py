"""Schema changes and event filters: the parts that are left out."""

from dataclasses import replace
from typing import cast

import pytest

from agent.ports.sink import Sink
from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable, SchemaChange, known_tables
from agent.schema_changes import apply
from agent.schema_changes.apply import Terms
from agent.sources.common import schema_diff
from agent.sources.common.schema_diff import Columns
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, EventFilter, FilterConfig, SinkMode
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from tests.unit.agent.sources.mysql.ddl.parser.test_parse import table

BEFORE = table()


class Altered:
    """A sink that takes down what it is asked."""

    def __init__(self) -> None:
        self.changes: list[SchemaChange] = []

    def alter(self, changes: list[SchemaChange]) -> None:
        self.changes += changes


def known(schema: TableSchema) -> KnownTable:
    return KnownTable(TableRecord(table_id=7, schema_name="d", name="t", key=("id",)), schema)


def changed(schema: TableSchema, columns: Columns) -> TableChange:
    change = schema_diff.compare(known(BEFORE), known(schema), columns)
    assert change is not None
    return change


def without(name: str) -> TableSchema:
    return replace(BEFORE, columns=tuple(column for column in BEFORE.columns if column.name != name))


def respelt(old: str, **fields: object) -> TableSchema:
    columns = (replace(column, **fields) if column.name == old else column for column in BEFORE.columns)  # type: ignore[arg-type]
    return replace(BEFORE, columns=tuple(columns))


CASES = [
    ("modify column", changed(respelt("b", is_unsigned=False), Columns()), "ALTER TABLE t MODIFY b BIGINT"),
    ("rename column", changed(respelt("a", name="c"), Columns({"c": "a"})), "ALTER TABLE t RENAME COLUMN a TO c"),
    ("drop column", changed(without("a"), Columns()), "ALTER TABLE t DROP a"),
    ("add column", changed(BEFORE, Columns(added=("a",))), "ALTER TABLE t DROP a, ADD a VARCHAR(20)"),
    ("drop table", schema_diff.dropped(known(BEFORE)), "DROP TABLE t"),
    ("drop database", schema_diff.dropped(known(BEFORE)), "/* x */ DROP SCHEMA d"),
    ("create table", schema_diff.created(known(BEFORE)), "CREATE TABLE t (…)"),
]


@pytest.mark.parametrize(("event", "change", "statement"), CASES, ids=[event for event, _, _ in CASES])
def test_a_change_goes_by_its_name(event: str, change: TableChange, statement: str) -> None:
    record = DdlRecord(ts=Ts(9), changes=(change,), statement=statement)
    for ignored, *_ in CASES:
        filters = FilterConfig(event_filters=(EventFilter(matcher=("d.*",), ignore_event=(ignored,)),))
        sink = Altered()
        apply.apply(cast("Sink", sink), record, Terms(ChangefeedConfig(filter=filters), SinkMode.UPSERT))
        is_also = ignored == "drop column" and event == "add column"  # it did both
        assert bool(sink.changes) is not (ignored == event or is_also), ignored


def test_the_sink_is_asked_for_nothing_of_a_table_that_the_source_cannot_follow() -> None:
    """Others of the same transaction follow; what is known of the held one stays as it is, but for its name."""
    lost = TableRecord(table_id=8, schema_name="d", name="u")
    hold = TableChange(kind=SchemaChangeKind.HOLD, table_id=8, table=lost, reason="no row metadata; set FULL")
    record = DdlRecord(ts=Ts(5), changes=(hold, changed(without("a"), Columns())))
    assert [change.table_id for change in record.holds] == [8]
    sink = Altered()
    apply.apply(cast("Sink", sink), record, Terms(ChangefeedConfig(), SinkMode.UPSERT))
    assert [change.name for change in sink.changes] == ["d.t"]
    known_before = known_tables([known(BEFORE).record, lost], {7: BEFORE, 8: BEFORE}, [record], at=Ts(5))
    assert known_before[8] == KnownTable(lost, replace(BEFORE, name="u"), hold.reason)
    assert "a" not in {column.name for column in known_before[7].schema.columns}  # type: ignore[union-attr]
