"""Rewind: a stopped changefeed continues from an earlier Ts, after checking with its sink.

A sink that records its own Ts applies nothing twice, so going back behind its records changes nothing there; it only
repairs a sink that was itself set back (a restored backup), as far as the log reaches.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from capture.api import port as views
from capture.errors import JobRefusedError
from capture.member.amendments.amendment import STANDING, OwnerJobs
from owner import jobs
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedInfo, UnitRecord
from reactor.records.tables.partitioning import TablePartitioning

if TYPE_CHECKING:
    from capture.member.services import DataPlane

_NO_JOB = ""


async def rewind(operations: OwnerJobs, data_plane: "DataPlane", info: ChangefeedInfo, ts: Ts) -> views.RewindView:
    """:raises WeirError: the state or the log does not allow it, or it would have no effect."""
    unit = operations.unit_of(info.id)
    starts: tuple[views.TablePosition, ...] = ()
    if unit is not None and info.state in STANDING:
        starts = await _starts(data_plane, info, unit, operations.cuts_of(info.id), ts)
    await operations.ask(jobs.Rewind(_NO_JOB, info.id, ts))
    return views.RewindView(changefeed=await operations.query(info.id), tables=starts)


async def _starts(
    data_plane: "DataPlane",
    info: ChangefeedInfo,
    unit: UnitRecord,
    partitionings: Mapping[int, TablePartitioning],
    ts: Ts,
) -> tuple[views.TablePosition, ...]:
    """Return the position from which each table will be written again.

    :raises JobRefusedError: no table starts before ``ts``, or one of them has lost what is before it.
    """
    names = [f"{table.schema_name}.{table.name}" for table in unit.tables]
    recorded = await data_plane.recorded(info, unit, partitionings)
    if not recorded:
        return tuple(views.TablePosition(table=name, ts=ts) for name in names)
    back = [(record.back_ts, name) for record, name in zip(recorded, names, strict=True) if record.back_ts is not None]
    if back and min(back)[0] < ts:
        lowest, name = min(back)
        raise JobRefusedError(
            f"{name} was set back to {lowest} at the sink: what it lacks up to {ts} would not be written again; rewind "
            f"to {lowest} or less"
        )
    if all(record.ts > ts for record in recorded):
        lowest, name = min((record.ts, name) for record, name in zip(recorded, names, strict=True))
        raise JobRefusedError(
            f"the sink records {lowest} for {name} and no less for others: it holds every change up to there and takes "
            f"none twice, so going back to {ts} would change nothing; set its tables back first (restore a backup)"
        )
    return tuple(views.TablePosition(table=name, ts=at.ts) for at, name in zip(recorded, names, strict=True))
