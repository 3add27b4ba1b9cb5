"""Table causes: what each table needs before it can continue, as far as the owner knows."""

from collections.abc import Iterator

from owner.feed.run import Run
from owner.progress.facts import Facts
from owner.scheduler.replication import SetState
from reactor.ids import Ts


def table_causes(run: Run, facts: Facts) -> dict[int, str]:
    """Return the causes by table id, without tables of unknown cause, and held ones, which have their own reason."""
    found = dict([*_spans(run), *_warnings(facts), *_new_spans(run, facts), *_schema_changes(run, facts)])
    return {table: cause for table, cause in found.items() if table not in facts.held}


def _spans(run: Run) -> Iterator[tuple[int, str]]:
    for span, known in run.coordinator.sets.items():
        if known.primary is None:
            yield span.table_id, f"span {span} has no writer yet"
        elif known.state is not SetState.REPLICATING:
            yield span.table_id, f"span {span} on capture {known.primary} is in {known.state}"


def _warnings(facts: Facts) -> Iterator[tuple[int, str]]:
    warning = facts.info.warning
    if warning is not None and warning.table_id is not None:
        yield warning.table_id, f"{warning.code}: {warning.message}"


def _new_spans(run: Run, facts: Facts) -> Iterator[tuple[int, str]]:
    for table in facts.partitionings:
        if cause := run.repartitions.waiting({table: facts.partitionings[table]}):
            yield table, cause


def _schema_changes(run: Run, facts: Facts) -> Iterator[tuple[int, str]]:
    """Yield tables that wait at a schema change, with the first one."""
    pending = facts.pending_ddl[::-1]
    at = _positions(run) if pending else {}
    for record in pending:
        trouble = run.schemas.trouble.get(record.ts)
        for table in record.pending_ids:
            if at.get(table, Ts(0)) >= record.barrier_ts:
                yield table, f"schema change at {record.ts} is not in the sink yet{f': {trouble}' if trouble else ''}"


def _positions(run: Run) -> dict[int, Ts]:
    """Return the position of each table's slowest span."""
    at: dict[int, Ts] = {}
    for span, known in run.coordinator.sets.items():
        ts = known.checkpoint.checkpoint_ts
        at[span.table_id] = min(ts, at.get(span.table_id, ts))
    return at
