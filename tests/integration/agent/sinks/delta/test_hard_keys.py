"""Keys in a Delta table that are hard to find: 0 and -0, which are one key, NaN, and dates far from today."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.rows.changes import BEFORE_KEY, BEFORE_NONE, INSERT, UPDATE, Changes
from agent.rows.schema import Column, TableSchema
from agent.sinks.delta.upsert import by_vectors
from agent.sources.postgres.decode import types
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord
from tests.integration.agent.sinks.delta.test_sink import flush, sink_at, task

_TABLE = TableRecord(table_id=16384, schema_name="public", name="t", key=("k", "id"), start_ts=Ts(100))


def _changes(schema: TableSchema, before: Sequence[float | None], after: Sequence[float], op: int) -> Changes:
    arrow = types.arrow_schema(schema)
    count = len(after)
    ids = pa.array(range(count), pa.int32())
    kind = BEFORE_NONE if before[0] is None else BEFORE_KEY
    return Changes(
        schema=schema,
        op=np.full(count, op, np.int8),
        commit_ts=np.full(count, 150, np.int64),
        seq=np.arange(count),
        after=pa.record_batch([pa.array(after, arrow.field(0).type), ids], schema=arrow),
        before=None
        if kind == BEFORE_NONE
        else pa.record_batch([pa.array(before, arrow.field(0).type), ids], schema=arrow),
        before_kind=np.full(count, kind, np.int8),
        unchanged={},
    )


@pytest.mark.parametrize("type_id", [700, 701])
@pytest.mark.parametrize("is_merged", [False, True])
def test_a_key_that_becomes_an_equal_one_leaves_no_row_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_id: int, is_merged: bool
) -> None:
    if is_merged:
        monkeypatch.setattr(by_vectors, "can_apply", lambda *_: False)
    schema = TableSchema(16384, "public", "t", (Column("k", type_id, -1, "", True), Column("id", 23, -1, "", True)))
    sink = sink_at(tmp_path)
    sink.load(_TABLE, schema, types.arrow_schema(schema), [])
    nan, zeros, ends = float("nan"), [0.0, -0.0], [float("inf"), float("-inf")]
    old = [*zeros, nan, *ends]
    new = [-0.0, 0.0, nan, *ends]
    flush(sink, task(sink, 100, 200, table=_TABLE), _changes(schema, [None] * 5, old, INSERT))
    flush(sink, task(sink, 200, 300, table=_TABLE), _changes(schema, old, new, UPDATE))
    rows = DeltaTable(sink.place(_TABLE).location).to_pyarrow_table()
    found = sorted(zip(rows.column("id").to_pylist(), map(repr, rows.column("k").to_pylist()), strict=True))
    assert found == [(at, repr(value)) for at, value in enumerate(new)]


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("type_id", [1082, 1114, 1184])
def test_keys_far_from_today_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_id: int, is_merged: bool
) -> None:
    """Statistics and readers have trouble with years before 1 and after 9999 (delta-rs refuses those after 262143)."""
    if is_merged:
        monkeypatch.setattr(by_vectors, "can_apply", lambda *_: False)
    schema = TableSchema(16384, "public", "t", (Column("k", type_id, -1, "", True), Column("id", 23, -1)))
    arrow = types.arrow_schema(schema)
    sink, table = sink_at(tmp_path), _TABLE.with_(key=("k",))
    sink.load(table, schema, arrow, [])
    unit = 1 if type_id == 1082 else 86_400_000_000
    days = np.array(
        [-800_000, -719_163, -719_162, 0, 2_932_896, 2_932_897, 3_800_000, 106_000_000][: -1 if is_merged else None]
    )
    keys = pa.array(days * unit, pa.int64()).cast(pa.int32() if unit == 1 else pa.int64()).cast(arrow.field(0).type)

    def changes(ids: Sequence[int], op: int) -> Changes:
        count = len(ids)
        after = pa.record_batch([keys, pa.array(ids, pa.int32())], schema=arrow)
        none, at = np.full(count, BEFORE_NONE, np.int8), np.full(count, 150, np.int64)
        return Changes(schema, np.full(count, op, np.int8), at, np.arange(count), after, None, none, {})

    flush(sink, task(sink, 100, 200, table=table), changes(range(len(keys)), INSERT))
    flush(sink, task(sink, 200, 300, table=table), changes(range(10, 10 + len(keys)), UPDATE))
    flush(sink, task(sink, 300, 400, table=table), changes(range(20, 20 + len(keys)), UPDATE))
    rows = pa.RecordBatchReader.from_stream(DeltaTable(sink.place(_TABLE).location).scan()).read_all()
    assert sorted(rows.column("id").to_pylist()) == list(range(20, 20 + len(keys)))
