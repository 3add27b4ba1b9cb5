"""One table of one sink, whichever it is, as captures and executors use it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agent.ports.capabilities import Capabilities
from agent.ports.sink import Alters, FeedContext, FlushResult, FlushTask, ReadsBack, Sink, TableCopy
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.rows.spans import keep_span
from agent.sinks import capabilities_of, open_sink
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.sink_settings import TableLayout
from reactor.records.tables.schema_change import SchemaChangeKind
from reactor.records.tables.table import TableRecord
from tests.contracts.change_feed import assert_plays_back
from tests.unit.agent.changes_build import ARROW, Change, changes, insert, table_schema

SPAN = TableSpan(16384)
TABLE = TableRecord(table_id=16384, schema_name="public", name="t", key=("id",), start_ts=Ts(100))


@dataclass(frozen=True)
class Implementation:
    """``uri``: with ``{}`` where a directory of its own, or a place of its own in a bucket of ``store``, is named;
    ``{catalog}`` is a file for a catalog, ``{rest}`` the address of a REST catalog whose tables are in the bucket."""

    uri: str
    mode: SinkMode = SinkMode.UPSERT
    store: str = ""
    layouts: tuple[TableLayout, ...] = ()

    @property
    def needs_rest(self) -> bool:
        return "{rest}" in self.uri


_DIVIDED = TableLayout(
    matcher=("*.*",), partition_by=("bucket(3, id)", "truncate(1, name)"), sort_by=("name desc", "id")
)
_BY_NAME = TableLayout(matcher=("*.*",), partition_by=("name",))
IMPLEMENTATIONS = {
    "delta-upsert": Implementation("delta+file://{}/lake"),
    "delta-vectors": Implementation("delta+file://{}/lake?deletion_vectors=true"),
    "delta-changelog": Implementation("delta+file://{}/lake", SinkMode.CHANGELOG),
    "delta-marks": Implementation("delta+file://{}/lake?soft_delete=true&synced_at=true"),
    "delta-vectors-marks": Implementation("delta+file://{}/lake?deletion_vectors=true&soft_delete=true&synced_at=true"),
    "iceberg-marks": Implementation("iceberg+file://{}/lake?soft_delete=true&synced_at=true"),
    "iceberg-upsert": Implementation("iceberg+file://{}/lake"),
    "iceberg-changelog": Implementation("iceberg+file://{}/lake", SinkMode.CHANGELOG),
    "delta-history": Implementation("delta+file://{}/lake", SinkMode.HISTORY),
    "iceberg-history": Implementation("iceberg+file://{}/lake", SinkMode.HISTORY),
    "iceberg-partitioned": Implementation("iceberg+file://{}/lake?soft_delete=true", layouts=(_DIVIDED,)),
    "iceberg-changelog-partitioned": Implementation(
        "iceberg+file://{}/lake", SinkMode.CHANGELOG, layouts=(TableLayout(matcher=("*.*",), partition_by=("id",)),)
    ),
    "delta-partitioned": Implementation("delta+file://{}/lake?soft_delete=true", layouts=(_BY_NAME,)),
    "delta-vectors-partitioned": Implementation("delta+file://{}/lake?deletion_vectors=true", layouts=(_BY_NAME,)),
    "delta-changelog-partitioned": Implementation(
        "delta+file://{}/lake", SinkMode.CHANGELOG, layouts=(TableLayout(matcher=("*.*",), partition_by=("id",)),)
    ),
    "delta-history-partitioned": Implementation("delta+file://{}/lake", SinkMode.HISTORY, layouts=(_BY_NAME,)),
    "delta-vectors-mapped": Implementation("delta+file://{}/lake?deletion_vectors=true&column_mapping=name"),
    "delta-vectors-feed": Implementation("delta+file://{}/lake?change_data_feed=true&deletion_vectors=true"),
    "delta-feed-marks": Implementation("delta+file://{}/lake?change_data_feed=true&soft_delete=true&synced_at=true"),
    "blackhole": Implementation("blackhole://"),
    "none": Implementation("none://"),
    "sqlite": Implementation("sqlite+file://{}/shop.db"),
}
_VECTORS = "delta+{}/lake?deletion_vectors=true"
#: combinations that are tested in the matrix alone
COMBINATIONS = {
    "delta-feed": Implementation("delta+file://{}/lake?change_data_feed=true"),
    "delta-vectors-feed-partitioned": Implementation(
        "delta+file://{}/lake?change_data_feed=true&deletion_vectors=true", layouts=(_BY_NAME,)
    ),
    "delta-mapped": Implementation("delta+file://{}/lake?column_mapping=name"),
    "delta-mapped-marks": Implementation(
        "delta+file://{}/lake?column_mapping=name&deletion_vectors=true&soft_delete=true&synced_at=true"
    ),
    "delta-mapped-changelog": Implementation("delta+file://{}/lake?column_mapping=name", SinkMode.CHANGELOG),
    "delta-mapped-history": Implementation("delta+file://{}/lake?column_mapping=name", SinkMode.HISTORY),
    "delta-mapped-partitioned": Implementation("delta+file://{}/lake?column_mapping=name", layouts=(_BY_NAME,)),
    "iceberg-v3": Implementation("iceberg+file://{}/lake?format_version=3"),
    "iceberg-v3-marks": Implementation("iceberg+file://{}/lake?format_version=3&soft_delete=true&synced_at=true"),
    "iceberg-v3-history": Implementation("iceberg+file://{}/lake?format_version=3", SinkMode.HISTORY),
    "iceberg-v3-changelog": Implementation("iceberg+file://{}/lake?format_version=3", SinkMode.CHANGELOG),
    "iceberg-v3-partitioned": Implementation("iceberg+file://{}/lake?format_version=3", layouts=(_DIVIDED,)),
}
_LAKE = "iceberg+sql://localhost{catalog}?dialect=sqlite&warehouse={}"
_REST = "iceberg+rest://{rest}?tls=false"
#: the same on object stores; the catalog of Iceberg's tables is a file of SQLite, or behind REST
ON_STORES = {
    "delta-vectors-s3": Implementation(_VECTORS, store="s3"),
    "delta-changelog-s3": Implementation("delta+{}/lake", SinkMode.CHANGELOG, store="s3"),
    "delta-history-s3": Implementation("delta+{}/lake", SinkMode.HISTORY, store="s3"),
    "delta-partitioned-s3": Implementation("delta+{}/lake", store="s3", layouts=(_BY_NAME,)),
    "delta-vectors-partitioned-s3": Implementation(_VECTORS, store="s3", layouts=(_BY_NAME,)),
    "delta-changelog-partitioned-s3": Implementation(
        "delta+{}/lake", SinkMode.CHANGELOG, store="s3", layouts=(_BY_NAME,)
    ),
    "delta-mapped-s3": Implementation(f"{_VECTORS}&column_mapping=name", store="s3"),
    "delta-vectors-feed-s3": Implementation(f"{_VECTORS}&change_data_feed=true", store="s3"),
    "delta-marks-s3": Implementation("delta+{}/lake?soft_delete=true&synced_at=true", store="s3"),
    "iceberg-upsert-s3": Implementation(_LAKE, store="s3"),
    "iceberg-changelog-s3": Implementation(_LAKE, SinkMode.CHANGELOG, store="s3"),
    "iceberg-history-s3": Implementation(_LAKE, SinkMode.HISTORY, store="s3"),
    "iceberg-partitioned-s3": Implementation(f"{_LAKE}&soft_delete=true", store="s3", layouts=(_DIVIDED,)),
    "iceberg-upsert-rest": Implementation(_REST, store="s3"),
    "iceberg-history-rest": Implementation(_REST, SinkMode.HISTORY, store="s3", layouts=(_DIVIDED,)),
    "iceberg-v3-rest": Implementation(f"{_REST}&format_version=3", store="s3"),
    "iceberg-partitioned-rest": Implementation(f"{_REST}&synced_at=true", store="s3", layouts=(_DIVIDED,)),
    "iceberg-changelog-rest": Implementation(
        _REST, SinkMode.CHANGELOG, store="s3", layouts=(TableLayout(matcher=("*.*",), partition_by=("id",)),)
    ),
    "delta-vectors-az": Implementation(_VECTORS, store="az"),
    "delta-upsert-gs": Implementation("delta+{}/lake", store="gs"),
}


@dataclass
class Bed:
    uri: str
    mode: SinkMode
    layouts: tuple[TableLayout, ...] = ()

    @classmethod
    def of(cls, implementation: Implementation, directory: Path, place: str = "", rest: str = "") -> "Bed":
        """``place``: in the implementation's object store. ``rest``: address of its REST catalog."""
        uri = implementation.uri.format(place or directory, catalog=directory / "catalog.db", rest=rest)
        return cls(uri, implementation.mode, implementation.layouts)

    @property
    def can(self) -> Capabilities:
        return capabilities_of(self.uri)

    def open(self, changefeed: str = "feed") -> Sink:
        """As another process would: nothing is left of what was opened before."""
        return open_sink(self.uri, changefeed=changefeed, mode=self.mode, layouts=self.layouts)

    def load(self, *rows: tuple[Any, ...]) -> None:
        """The table holds ``rows`` at 100."""
        self.load_as(ARROW, *rows)

    def load_as(self, arrow: pa.Schema, *rows: tuple[Any, ...]) -> None:
        """A sink that maps columns has them under other names in the files of this table than the table has."""
        is_mapped = "column_mapping=name" in self.uri and not self.layouts
        first = pa.schema([(f"{item.name}-1", item.type) for item in arrow]) if is_mapped else arrow
        table = TABLE.with_(key=tuple(f"{name}-1" for name in TABLE.key)) if is_mapped else TABLE
        batch = changes([insert(*row) for row in rows], arrow=first).after
        staged = self.open().writer().stage(table, "1-0", iter([batch]), Ts(100)) if rows else []
        self.open().load(table, table_schema(first), first, staged)
        if is_mapped:
            sink = self.open()
            assert isinstance(sink, Alters)
            moves = tuple(ColumnMove(item.name, item.type, f"{item.name}-1") for item in arrow)
            kind = SchemaChangeKind.ALTER
            sink.alter([SchemaChange(Ts(100), kind, table, TABLE, moves, table_schema(arrow), arrow)])

    def copied(self, ts: int, *rows: tuple[Any, ...], arrow: pa.Schema = ARROW, number: int = 0) -> TableCopy:
        """The table as it is at the source at ``ts``, staged."""
        schema = table_schema(arrow)
        batch = changes([insert(*row) for row in rows], arrow=arrow).after
        staged = self.open().writer().stage(TABLE, f"{ts}-0", iter([batch]), Ts(ts)) if rows else []
        return TableCopy(TABLE.with_(start_ts=Ts(ts)), (SPAN,), schema, arrow, tuple(staged), number=number)

    def task(self, from_ts: int, to_ts: int, *, span: TableSpan = SPAN, table: TableRecord = TABLE) -> FlushTask:
        return FlushTask(FeedContext("feed", self.uri, self.mode), span, table, (), Ts(from_ts), Ts(to_ts))

    def write(self, task: FlushTask, *parts: Sequence[Change], arrow: pa.Schema = ARROW) -> FlushResult:
        """What its executor does."""
        made = [keep_span(changes(part, arrow=arrow), task.span, key=task.table.key) for part in parts]
        return self.open().writer().write(task, made)

    def commit(self, task: FlushTask, result: FlushResult) -> FlushResult:
        [done] = self.open().commit([task], [result])
        return done

    def flush(
        self, from_ts: int, to_ts: int, *parts: Sequence[Change], arrow: pa.Schema = ARROW, **how: Any
    ) -> FlushResult:
        task = self.task(from_ts, to_ts, **how)
        return self.commit(task, self.write(task, *parts, arrow=arrow))

    def at(self, span: TableSpan = SPAN, table: TableRecord = TABLE) -> Ts | None:
        return self.open().committed_ts(table, span)

    def assert_at(self, ts: int, span: TableSpan = SPAN) -> None:
        assert self.at(span) == (ts if self.can.keeps_record else None)

    def assert_holds(self, *rows: tuple[Any, ...], table: TableRecord = TABLE, arrow: pa.Schema = ARROW) -> None:
        """Exactly these, where the sink can say."""
        sink = self.open()
        if isinstance(sink, ReadsBack):
            found = sink.read_rows(table, table_schema(arrow, name=table.name), arrow)
            held = [tuple(row.values()) for batch in found for row in sink.as_stored(batch).to_pylist()]
            missing, extra = (
                [row for row in some if row not in others] for some, others in ((rows, held), (held, rows))
            )
            assert sorted(held, key=shown) == sorted(rows, key=shown), f"lacks {missing}, has {extra}"
            if "change_data_feed=true" in self.uri and self.uri.startswith("delta+file"):
                assert_plays_back(f"{self.uri.partition('?')[0].removeprefix('delta+file://')}/{table.path}", table.key)


def shown(row: Iterable[Any]) -> str:
    """Return a row as a text; a moment is the same one, whatever its zone is called."""
    return repr(tuple(item.replace(tzinfo=UTC) if getattr(item, "tzinfo", None) else item for item in row))


def needs(can: object, what: str) -> None:
    if not can:
        pytest.skip(f"this sink has no {what}")
