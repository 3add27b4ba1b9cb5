"""From segments of raw events to Delta tables, through real Spark jobs."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.control.runtime import Flushed, FlushLimits, SpanPosition
from agent.errors import JobError, JobTimeoutError
from agent.flush.job import FlushContext, flush
from agent.flush.plan import Weights
from agent.flush.task import read_changes, run_flush
from agent.log.reader import LogReader
from agent.log.storage import LogDirectory
from agent.ports.sink import FeedContext, FlushTask
from agent.rows.schema import Column
from agent.sinks import open_sink
from agent.sinks.common.changelog import changelog_rows
from agent.sinks.delta.table.schema import FORMS
from agent.sinks.delta.upsert import by_vectors
from agent.sources.postgres.decode.types import arrow_schema
from agent.spark.executor import SparkExecutor
from reactor.errors import Scope, WeirError
from reactor.ids import TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import ColumnSelector, EventFilter, FilterConfig, SinkMode
from reactor.records.log_head import Era, LogHead
from reactor.records.tables.schema_change import SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from tests.integration.agent.flush.pgoutput_build import (
    INT8,
    TABLE,
    TEXT,
    Event,
    deleted,
    inserted,
    truncated,
    updated,
    write_segment,
)
from tests.patience import patient

RECORD = TableRecord(table_id=TABLE.table_id, schema_name="public", name="t", key=("id",), start_ts=Ts(100))


class Inline:
    """An executor that runs tasks where it stands: everything but Spark."""

    def cores(self) -> int:
        return 1

    def map(
        self, function: Callable[[Any], Any], descriptors: Sequence[Any], *, description: str, **_: object
    ) -> list[Any]:
        return [function(item) for item in descriptors]


class Rig:
    """One changefeed with one table that starts empty at Ts 100, and its change log."""

    def __init__(self, root: Path, mode: SinkMode, executor: Any, *, record: TableRecord = RECORD) -> None:
        self.lake, self.log = root / "lake", LogDirectory(str(root / "log"), changefeed="feed", source="main")
        uri = f"delta+file://{self.lake}"
        sink = open_sink(uri, changefeed="feed", mode=mode)
        sink.load(record, TABLE, arrow_schema(TABLE), [])
        self.context = FlushContext(
            FeedContext("feed", uri, mode),
            sink=sink,
            reader=LogReader(self.log),
            executor=executor,
            weights=Weights(part_bytes_min=1, part_bytes_max=1, parts_max=1 << 30),
        )
        self.position = SpanPosition(TableSpan(TABLE.table_id), record, Ts(100), Ts(100))
        self.seq, self.resolved = 0, 100

    def filter(self, config: FilterConfig, *, was_filtered: bool = False) -> None:
        feed = replace(self.context.feed, filter=config, was_filtered=was_filtered)
        self.context = replace(self.context, feed=feed)

    def append(self, resolved_ts: int, *events: Event, commit_time: float = 0.0) -> None:
        self.seq, self.resolved = self.seq + 1, resolved_ts
        write_segment(self.log, self.seq, resolved_ts, events, commit_time=commit_time)

    def limits(self, resolved_ts: int = 0) -> FlushLimits:
        head = LogHead(
            epoch=1,
            last_seq=self.seq,
            complete_seq=self.seq,
            resolved_ts=Ts(resolved_ts or self.resolved),
            resolved_time=7.0,
            eras=(Era(epoch=1, first_seq=1),),
        )
        return FlushLimits(head, Barrier())

    def flush(self) -> Flushed:
        flushed = flush(self.context, [self.position], self.limits())
        for item in flushed.spans:
            self.position = item.position
        return flushed

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        names = list(columns) or ["id", "name", "big"]
        table = DeltaTable(self.lake / "public" / "t").to_pyarrow_table(columns=names)
        return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


@pytest.mark.spark
def test_upserts_and_changelog_through_spark(tmp_path: Path, spark_executor: SparkExecutor) -> None:
    for mode in (SinkMode.UPSERT, SinkMode.CHANGELOG):
        rig = Rig(tmp_path / mode, mode, spark_executor)
        rig.append(120, inserted(110, 1, "a", "x"), inserted(110, 2, "b", None), commit_time=5.0)
        rig.append(140, updated(130, 1, "c", ...), deleted(135, 2, None, None))
        [span] = rig.flush().spans
        assert span.error is None
        assert (span.rows, span.commit_time) == (4, 7.0)
        assert (span.position.committed_ts, span.position.checkpoint_ts) == (140, 140)
        if mode == SinkMode.UPSERT:
            assert rig.rows() == [(1, "c", "x")]
        else:
            assert [row[0] for row in rig.rows("_commit_version", "_change_type")] == [110, 110, 130, 135]


class Failing(Inline):
    """Flushes fail with ``error``; so does everything else if ``is_down``."""

    def __init__(self, error: WeirError, *, is_down: bool = False) -> None:
        self.error, self.is_down = error, is_down

    def cores(self) -> int:
        return 1

    def map(
        self, function: Callable[[Any], Any], descriptors: Sequence[Any], *, description: str, **_: object
    ) -> list[Any]:
        if self.is_down or description.startswith("flush"):
            raise self.error
        return super().map(function, descriptors, description=description)


@pytest.mark.parametrize(
    ("executor", "scope"),
    [
        (Failing(JobError("a task has ended its executor")), Scope.TABLE),
        (Failing(JobError("no executor"), is_down=True), Scope.CHANGEFEED),
        (Failing(JobTimeoutError("cancelled")), Scope.CHANGEFEED),
    ],
    ids=["alone", "nothing works", "a hang may be of all"],
)
def test_a_job_of_one_table_that_fails_while_others_work_is_its_own(
    tmp_path: Path, executor: Failing, scope: Scope
) -> None:
    rig = Rig(tmp_path, SinkMode.UPSERT, executor)
    rig.append(120, inserted(110, 1, "a", "x"))
    with pytest.raises(JobError) as failed:
        rig.flush()
    assert failed.value.scope is scope
    assert failed.value.table_id == (TABLE.table_id if scope is Scope.TABLE else None)


@pytest.mark.spark
def test_a_lost_process_is_not_blamed_on_the_only_table(tmp_path: Path, spark_executor: SparkExecutor) -> None:
    """The machine may have run out of memory: the flusher, and then another capture, find out whose fault it is."""

    class Killing(Inline):
        def cores(self) -> int:
            return 1

        def map(
            self, function: Callable[[Any], Any], descriptors: Sequence[Any], *, description: str, **more: Any
        ) -> list[Any]:
            def die(_: object) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

            wanted = die if description.startswith("flush") else function
            return spark_executor.map(wanted, descriptors, description=description, **more)

    rig = Rig(tmp_path, SinkMode.UPSERT, Killing())
    rig.append(120, inserted(110, 1, "a", "x"))
    with pytest.raises(JobError) as failed:
        rig.flush()
    assert failed.value.code == "WorkerLost"
    assert (failed.value.scope, failed.value.table_id) == (Scope.CHANGEFEED, None)


def test_what_is_about_to_be_written_is_said_before_it_is(tmp_path: Path) -> None:
    said: list[tuple[frozenset[int], bool]] = []
    rig = Rig(tmp_path, SinkMode.UPSERT, Failing(JobError("a task has ended its executor")))
    rig.context = replace(rig.context, begin=lambda tables, is_trial: said.append((tables, is_trial)))
    flush(rig.context, [rig.position], rig.limits(100))
    rig.append(140, inserted(130, 1, "a", "x"))
    for suspects in (frozenset[int](), frozenset({TABLE.table_id})):
        with pytest.raises(JobError):
            flush(rig.context, [rig.position], replace(rig.limits(), suspects=suspects))
    id = frozenset({TABLE.table_id})
    assert said == [(frozenset(), False), (id, False), (id, True)]


@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_what_a_changefeed_leaves_out_never_arrives(tmp_path: Path, mode: SinkMode) -> None:
    """By kind and by condition, and columns by name: what streams in too, not the snapshot alone."""
    drafts = EventFilter(matcher=("*.*",), ignore_event=("delete",), ignore_insert_value_expr="name = 'draft'")
    columns = ColumnSelector(matcher=("*.*",), columns=("*", "!big"))
    rig = Rig(tmp_path, mode, Inline())
    rig.filter(FilterConfig(event_filters=(drafts,), column_selectors=(columns,)))
    rig.append(120, inserted(110, 1, "a", "secret"), inserted(110, 2, "draft", "x"))
    rig.append(140, updated(130, 1, "b", "secret"), deleted(135, 1, None, None))
    rig.flush()
    if mode is SinkMode.UPSERT:
        assert rig.rows() == [(1, "b", None)]
    else:
        found = rig.rows("_commit_version", "_change_type", "id", "name", "big")
        assert [(row[0], *row[2:]) for row in found] == [(110, 1, "a", None), (130, 1, "b", None)]


@pytest.mark.parametrize(
    ("ignored", "events"),
    [
        (EventFilter(ignore_event=("delete",)), [deleted(110, 1, None, None)]),
        (EventFilter(ignore_event=("truncate table",)), [truncated(110)]),
        (EventFilter(ignore_delete_value_expr="id = 1"), [deleted(110, 1, None, None)]),
        (EventFilter(ignore_update_new_value_expr="id = 2"), [updated(110, 2, "a", "x", old_key=(1, None, None))]),
    ],
    ids=["deletes", "truncate", "some deletes", "a key that changes"],
)
@pytest.mark.parametrize("small_bytes", [by_vectors._SMALL_BYTES, 0], ids=["small", "merged"])
def test_a_row_that_a_filter_leaves_is_replaced_when_its_key_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: EventFilter, events: list[Event], small_bytes: int
) -> None:
    monkeypatch.setattr(by_vectors, "_SMALL_BYTES", small_bytes)
    rig = Rig(tmp_path, SinkMode.UPSERT, Inline())
    rig.filter(FilterConfig(event_filters=(ignored,)))
    rig.append(105, inserted(103, 1, "a", "x"), inserted(103, 3, "c", "z"))
    rig.flush()
    rig.append(140, *events, inserted(120, 1, "b", "y"))
    rig.flush()
    assert rig.rows() == [(1, "b", "y"), (3, "c", "z")]


def test_a_row_that_an_earlier_filter_left_is_replaced_too(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SinkMode.UPSERT, Inline())
    rig.filter(FilterConfig(event_filters=(EventFilter(ignore_event=("delete",)),)))
    rig.append(105, inserted(103, 1, "a", "x"))
    rig.flush()
    rig.append(115, deleted(110, 1, None, None), inserted(112, 2, "a", "x"))
    rig.flush()
    rig.filter(FilterConfig(), was_filtered=True)
    rig.append(140, inserted(120, 1, "b", "y"))
    rig.flush()
    assert rig.rows() == [(1, "b", "y"), (2, "a", "x")]


def test_a_flush_is_incremental(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SinkMode.UPSERT, Inline())
    rig.append(120, inserted(110, 1, "a", "x"))
    rig.flush()
    assert rig.flush().spans == ()
    rig.append(140, updated(130, 9, "c", ..., old_key=(1, None, None)))
    rig.flush()
    assert rig.rows() == [(9, "c", "x")]
    rig.append(160, truncated(150), inserted(155, 3, "d", "y"))
    assert rig.flush().spans[0].rows == 2
    assert rig.rows() == [(3, "d", "y")]


def test_a_range_without_events_moves_the_checkpoint_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SinkMode.UPSERT, Inline())
    rig.resolved = 150
    [span] = rig.flush().spans
    assert (span.position.committed_ts, span.position.checkpoint_ts) == (100, 150)
    rig.append(170, inserted(160, 1, "a", "x"))
    [span] = rig.flush().spans
    assert (span.position.committed_ts, span.position.checkpoint_ts, span.error) == (170, 170, None)


def test_a_late_writer_is_reported_and_stays_where_it_was(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SinkMode.UPSERT, Inline())
    rig.append(120, inserted(110, 1, "a", "x"))
    late = rig.position
    rig.flush()
    rig.append(140, inserted(130, 2, "b", "y"))
    [span] = flush(rig.context, [late], rig.limits()).spans
    assert span.error is not None
    assert (span.error.code, span.error.retryable, span.position) == ("SinkFenced", False, late)
    assert rig.rows() == [(1, "a", "x")]


def test_a_damaged_event_is_an_error_of_its_span(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SinkMode.CHANGELOG, Inline())
    rig.append(120, inserted(110, 1, "a", "x"))
    rig.append(140, Event(130, b"I\x00\x00"))
    [span] = rig.flush().spans
    assert span.error is not None
    assert (span.error.code, span.error.retryable) == ("Decode", False)
    assert rig.rows() == []


def test_spans_of_one_table_share_its_rows(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SinkMode.CHANGELOG, Inline())
    rig.append(120, *(inserted(110, at, "a", "x") for at in range(50)), truncated(110))
    half = 1 << 63
    halves = [TableSpan(TABLE.table_id, 0, half), TableSpan(TABLE.table_id, half)]
    read = []
    for span in halves:
        segments = rig.context.reader.segments(rig.limits().head, Ts(100), Ts(120))
        task = FlushTask(rig.context.feed, span, RECORD, segments, Ts(100), Ts(120))
        read.append(
            [key for part in read_changes(task) for key in part.after.column("id").to_pylist() if key is not None]
        )
    assert sorted(read[0] + read[1]) == list(range(50))
    assert 10 < len(read[0]) < 40
    refused = run_flush(FlushTask(FeedContext("feed", "nope://", SinkMode.UPSERT), halves[0], RECORD, (), Ts(1), Ts(2)))
    assert (refused.error_code, refused.retryable) == ("SinkUri", False)


def test_small_segments_are_decoded_together_and_every_row_keeps_its_commit_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SinkMode.CHANGELOG, Inline())
    rig.append(120, inserted(110, 1, "a", "x"), inserted(115, 2, "b", "x"), commit_time=5.0)
    rig.append(140, inserted(130, 3, "c", "x"), commit_time=6.5)
    rig.append(160, inserted(150, 4, "d", "x"))
    segments = rig.context.reader.segments(rig.limits().head, Ts(100), Ts(160))
    span = rig.position.span
    task = FlushTask(rig.context.feed, span, RECORD, segments, Ts(110), Ts(160))
    [changes] = read_changes(task)
    assert changes.after.column("id").to_pylist() == [2, 3, 4]
    written = changelog_rows(changes.where(changes.seq >= 0), span, key=RECORD.key, forms=FORMS)
    moments = written.column("_commit_timestamp").to_pylist()
    assert [moment and moment.timestamp() for moment in moments] == [5.0, 6.5, None]
    assert changes.commit_time == 6.5


def test_rows_behind_a_change_have_the_new_names(tmp_path: Path) -> None:
    """Two columns have swapped their names: an old name is another column's now."""
    key, text, number = TABLE.columns[0], Column("name", TEXT, -1, "text"), Column("big", INT8, -1, "int8")
    before = replace(TABLE, columns=(key, text, number))
    after = replace(TABLE, columns=(key, replace(text, name="big"), replace(number, name="name")))
    change = TableChange(
        kind=SchemaChangeKind.ALTER,
        table_id=TABLE.table_id,
        table=RECORD,
        before=before.to_json(),
        after=after.to_json(),
        renames={"big": "name", "name": "big"},
    )
    log = LogDirectory(str(tmp_path), changefeed="feed", source="main")
    segment = write_segment(log, 1, 120, [inserted(110, 1, "12", 34, table=after)], table=after)
    context = FeedContext("feed", "", SinkMode.UPSERT)
    task = FlushTask(context, TableSpan(TABLE.table_id), RECORD, (segment,), Ts(100), Ts(120))
    [found] = read_changes(replace(task, change=change.model_dump_json(), change_ts=Ts(105)))
    assert found.after.to_pylist() == [{"id": 1, "big": "12", "name": 34}]


@pytest.mark.spark
def test_a_small_flush_is_quick(tmp_path: Path, spark_executor: SparkExecutor) -> None:
    rig = Rig(tmp_path, SinkMode.CHANGELOG, spark_executor)
    seconds = []
    for at in range(8):
        base = 200 + 100 * at
        rig.append(base + 50, *(inserted(base + 10, key, "a", "x") for key in range(200)))
        start = time.monotonic()
        rig.flush()
        seconds.append(time.monotonic() - start)
    assert len(rig.rows()) == 1600
    assert min(seconds) < patient(1.0)
    assert pa.table(DeltaTable(rig.lake / "public" / "t").scan(predicate="id = 7")).num_rows == 8


def test_rows_that_came_and_went_before_a_key_changed_stay_gone(tmp_path: Path) -> None:
    """A flush that leaves nothing is not recorded, and the next one read it again: it was deleted by another key."""
    rig = Rig(tmp_path, SinkMode.UPSERT, Inline())
    rig.append(120, inserted(110, 1, "a", "x"), deleted(115, 1, None, None))
    rig.flush()
    assert rig.position.committed_ts == 100
    record, schema = RECORD.with_(key=("name",)), TABLE.to_json()
    change = TableChange(
        kind=SchemaChangeKind.ALTER, table_id=TABLE.table_id, table=record, before=schema, after=schema
    )
    rig.append(140, inserted(130, 2, "b", None))
    limits = replace(rig.limits(), changes={TABLE.table_id: (Ts(125), change)})
    [span] = flush(rig.context, [replace(rig.position, table=record)], limits).spans
    assert span.error is None
    assert rig.rows() == [(2, "b", None)]
