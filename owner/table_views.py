"""Views of tables: fills ``TableView`` and its parts from the records and the owner's own knowledge.

A changefeed may have twenty thousand tables, and each view takes time: requests name a table or a page where they can.
"""

from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest

from owner import jobs
from owner.feed import renewal
from owner.feed.holds.table_causes import table_causes
from owner.feed.run import Run
from owner.progress.facts import Facts
from owner.scheduler.replication import ReplicationSet
from owner.scheduler.spans import even_spans
from owner.tables.departures import away_of
from reactor.records.tables.held import HeldTable, HoldStage
from reactor.records.tables.resync import TableResync
from reactor.records.tables.schema_change import pending_tables
from reactor.records.tables.table import TableRecord
from reactor.views import HeldView, LeftView, ResyncView, SpanView, TableView

#: the state of spans that the sink does not have yet
REPARTITIONING = "repartitioning"


def asked_for(job: jobs.Tables, run: Run | None, facts: Facts) -> tuple[TableView, ...]:
    """Return the tables that the job asks for."""
    tables: Sequence[TableRecord] = facts.record.tables if facts.record else ()
    if job.name:
        tables = [table for table in tables if f"{table.schema_name}.{table.name}" == job.name]
    if job.after is not None:
        tables = [table for table in tables if table.table_id > job.after]
    if job.limit is not None:
        tables = nsmallest(job.limit, tables, key=lambda table: table.table_id)
    return tables_of(tables, run, facts, held_tables(facts))


def all_tables(run: Run | None, facts: Facts, held: Mapping[int, HeldView]) -> tuple[TableView, ...]:
    """``held``: as ``held_tables`` returns them."""
    return tables_of(facts.record.tables if facts.record else (), run, facts, held)


def left_tables(facts: Facts) -> tuple[LeftView, ...]:
    """Return the tables that have left, and have not come again."""
    if facts.record is None or not facts.record.left:
        return ()
    return tuple(
        LeftView(
            table=f"{one.schema_name}.{one.name}",
            table_id=one.table_id,
            since=one.time,
            ts=one.ts,
            marked=one.marked,
            message=one.message,
        )
        for one in away_of(facts, facts.record.left)
    )


def span_counts(run: Run | None) -> dict[str, int]:
    """Return how many table spans each capture replicates."""
    counts = run.coordinator.span_index.writer_counts() if run else {}
    return {capture: count for capture, count in sorted(counts.items()) if count}


def tables_of(
    tables: Sequence[TableRecord], run: Run | None, facts: Facts, held: Mapping[int, HeldView]
) -> tuple[TableView, ...]:
    sets = _sets(run, {table.table_id for table in tables})
    causes = table_causes(run, facts) if run else {}
    return tuple(
        TableView(
            table=f"{table.schema_name}.{table.name}",
            table_id=table.table_id,
            key=table.key,
            checkpoint_ts=_checkpoint(facts, table, sets.get(table.table_id, ())),
            resolved_ts=min((s.checkpoint.resolved_ts for s in sets.get(table.table_id, ())), default=0),
            spans=tuple(_span(replication) for replication in sets.get(table.table_id, ())) or _cut(facts, table),
            held=held.get(table.table_id),
            resync=resync_view(facts, facts.resyncs[table.table_id]) if table.table_id in facts.resyncs else None,
            waiting_for=causes.get(table.table_id, ""),
            skipped_ts=table.skipped_ts,
            location=table.path,
        )
        for table in tables
    )


def _sets(run: Run | None, ids: Collection[int]) -> dict[int, list[ReplicationSet]]:
    """Return the spans of tables, in order."""
    known = run.coordinator.sets if run else {}
    found: dict[int, list[ReplicationSet]] = {}
    for span in sorted(span for span in known if span.table_id in ids):
        found.setdefault(span.table_id, []).append(known[span])
    return found


def _checkpoint(facts: Facts, table: TableRecord, sets: Sequence[ReplicationSet]) -> int:
    """Return a table's checkpoint; for a held table the certain one, since its last writer may have advanced
    further."""
    held = facts.held.get(table.table_id)
    if held is not None and held.stage is not HoldStage.TRIED:
        return held.ts
    return min((s.checkpoint.checkpoint_ts for s in sets), default=0)


def held_tables(facts: Facts) -> dict[int, HeldView]:
    """Return the held tables by id, with those that the next rounds hold because their rows are in no log."""
    held = {**facts.held, **_to_be_copied(facts)}
    if not held:
        return {}
    names = {table.table_id: f"{table.schema_name}.{table.name}" for table in facts.tables or ()}
    pending = pending_tables(facts.pending_ddl)
    return {id: _held_table(table, names.get(id, table.name), pending.get(id)) for id, table in held.items()}


def _to_be_copied(facts: Facts) -> dict[int, HeldTable]:
    ids = frozenset() if facts.needs_position else facts.lost - facts.held.keys()
    status = facts.status
    return {
        table.table_id: renewal.lost_table(table, status.checkpoint_ts, time=status.checkpoint_time)
        for table in (facts.tables or () if ids else ())
        if table.table_id in ids
    }


def _held_table(table: HeldTable, name: str, pending: TableRecord | None) -> HeldView:
    """``name``: the sink's. A table that was held because of a rename has its new name in its record."""
    newest_name = f"{pending.schema_name}.{pending.name}" if pending else name
    return HeldView(
        table=name,
        table_id=table.table_id,
        stage=table.stage,
        origin=table.origin,
        since=table.since,
        ts=table.ts,
        code=table.error.code,
        message=table.error.message,
        tries=table.tries,
        retry_at=table.retry_at,
        renamed_to=newest_name if newest_name != name else "",
    )


def resync_view(facts: Facts, resync: TableResync) -> ResyncView:
    """The copy's progress is missing: only its capture knows it."""
    error = resync.error
    limits = [limit for limit in (resync.rows_per_second, facts.info.config.read_rows_per_second) if limit is not None]
    return ResyncView(
        table=resync.name,
        table_id=resync.table_id,
        stage=resync.stage,
        since=resync.since,
        ts=resync.table.start_ts if resync.table else 0,
        rows_done=resync.rows,
        rows_total=resync.rows,
        limit=min(limits, default=0),
        tries=resync.tries,
        retry_at=resync.retry_at,
        code=error.code if error else "",
        message=error.message if error else "",
    )


def _span(replication: ReplicationSet) -> SpanView:
    at = replication.checkpoint
    return SpanView(
        span=str(replication.span),
        capture=replication.primary or "",
        state=replication.state,
        checkpoint_ts=at.checkpoint_ts,
        resolved_ts=at.resolved_ts,
    )


def _cut(facts: Facts, table: TableRecord) -> tuple[SpanView, ...]:
    """Return the spans that a table is being given, while it is not written."""
    partitioning = facts.partitionings.get(table.table_id)
    if partitioning is None or partitioning.under_way is None:
        return ()
    spans, ts = even_spans(table.table_id, partitioning.under_way.spans), partitioning.under_way.ts
    return tuple(SpanView(span=str(span), state=REPARTITIONING, checkpoint_ts=ts, resolved_ts=ts) for span in spans)
