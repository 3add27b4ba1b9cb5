"""Resync requests: what operators ask of resyncs, checked, as the records that it writes or removes."""

from owner.errors import JobRefusedError
from owner.jobs import Update
from owner.progress.facts import Facts
from reactor import keys, patches
from reactor.records.changefeed import FeedState
from reactor.records.tables.held import HoldOrigin
from reactor.records.tables.resync import ResyncStage, TableResync


def asked(facts: Facts, table_id: int, *, wall: float, rows_per_second: int | None = None) -> TableResync:
    """Return the record of a table that an operator wants copied again.

    :raises JobRefusedError: it cannot be.
    """
    info = facts.info
    table = next((table for table in facts.tables or () if table.table_id == table_id), None)
    if info.state in (FeedState.FINISHED, FeedState.REMOVED):
        raise JobRefusedError(f"changefeed {info.id} is {info.state}: its tables are not written any more")
    if table is None:
        why = f"has no table {table_id}" if facts.tables else "is not replicating yet, its tables are being copied"
        raise JobRefusedError(f"changefeed {info.id} {why}; see `weir tables -c {info.id}`")
    name = f"{table.schema_name}.{table.name}"
    if info.target_ts is not None:
        raise JobRefusedError(
            f"changefeed {info.id} ends at target {info.target_ts}, and a copy of {name} would be of a later Ts; "
            "remove the target first (changefeed update --target-ts 0)"
        )
    if table_id in facts.resyncs:
        stage = facts.resyncs[table_id].stage
        raise JobRefusedError(f"{name} is being copied again already ({stage}); see `weir changefeed query`")
    held = facts.held.get(table_id)
    if held is not None and held.origin is HoldOrigin.SOURCE:
        raise JobRefusedError(
            f"{name} has just been held, as its source cannot follow it ({held.error.message}); ask for its copy again"
        )
    return TableResync(
        table_id=table_id, name=name, number=int(wall * 1000), since=wall, rows_per_second=rows_per_second
    )


def filtered_otherwise(facts: Facts, change: Update, *, cluster: str, wall: float) -> list[patches.Patch]:
    """Return what another filter of rows and columns changes: tables are copied again as ``change`` says, and copies
    begin again that the earlier filter was applied to. A table that its source does not follow is copied later anyhow.

    :raises JobRefusedError: a table cannot be copied again, or not yet.
    """
    if change.config is None or not change.config.filter.selects_otherwise(facts.info.config.filter):
        return []
    place = cluster, facts.info.namespace, facts.info.id
    stale = [one for one in facts.resyncs.values() if one.stage in (ResyncStage.COPYING, ResyncStage.PLACING)]
    found = [patches.replace_record(keys.ResyncKey(*place, one.table_id), one, begun_again(one)) for one in stale]
    begins = {one.table_id for one in facts.resyncs.values() if one.stage in (ResyncStage.ASKED, ResyncStage.STOPPING)}
    lost = {id for id, held in facts.held.items() if held.origin is HoldOrigin.SOURCE}
    for id in sorted(set(change.copied) & facts.table_ids - begins - lost - {one.table_id for one in stale}):
        wish = asked(facts, id, wall=wall)
        found.append(patches.replace_record(keys.ResyncKey(*place, id), None, wish))
    return found


def begun_again(resync: TableResync) -> TableResync:
    """Return the resync with another copy."""
    return resync.with_(
        stage=ResyncStage.STOPPING, number=resync.number + 1, table=None, rows=0, tries=resync.tries + 1
    )


def given_up(facts: Facts, table_id: int) -> TableResync:
    """Return the record to delete when an operator cancels a resync.

    :raises JobRefusedError: there is none, or the sink may already have the copy.
    """
    resync = facts.resyncs.get(table_id)
    if resync is None:
        raise JobRefusedError(f"{facts.name_of(table_id)} is not being copied again; there is nothing to cancel")
    if table_id in facts.lost:
        raise JobRefusedError(f"{resync.name} cannot be left as it is: the log behind it is lost; wait until it flows")
    if not resync.is_before_sink:
        raise JobRefusedError(
            f"the copy of {resync.name} is {resync.stage}, and cannot be given up any more; wait until it flows"
        )
    return resync
