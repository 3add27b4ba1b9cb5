"""Amendment: changes an existing changefeed; source and sink are asked first, then the owner.

*Update*: another sink must hold the changefeed's tables with their records, and another source must be the same server,
since positions of different servers mean nothing to each other. *Rewind*: a sink that records its own Ts takes nothing
twice, so going back behind what it records changes nothing there; what it makes good is a sink that was itself set
back (a restored backup), as far as the log reaches.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from agent.sources.registry import check_settings
from capture.api import port as views
from capture.errors import JobRefusedError
from capture.member.preflight import check_sink_terms
from owner import jobs
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedInfo, FeedState, SealedUri, Unit, UnitRecord
from reactor.records.partitioning import TablePartitioning
from reactor.views import ChangefeedView

if TYPE_CHECKING:
    from capture.member.services import DataPlane

_STANDING = (FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED)


class OwnerJobs(Protocol):
    """Where the owner is asked: the part of ``capture.member.cluster_service`` that an amendment needs."""

    async def ask(self, job: jobs.Job) -> Any: ...

    async def query(self, changefeed_id: str) -> ChangefeedView: ...

    def unit_of(self, changefeed_id: str) -> UnitRecord | None: ...

    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]: ...


async def update(
    operations: OwnerJobs, data_plane: "DataPlane", info: ChangefeedInfo, asked: views.ChangefeedUpdate
) -> views.UpdateView:
    """:raises WeirError: the state does not allow it, or source or sink say why it cannot be."""
    if asked.config is not None:
        check_settings(asked.source_uri or info.source.masked, asked.config)
        check_sink_terms(asked.sink_uri or info.sink.masked, info.sink_mode, asked.config)
    source = _resealed(data_plane, info.source, asked.source_uri)
    sink = _resealed(data_plane, info.sink, asked.sink_uri)
    if info.state in _STANDING:
        await _check(data_plane, info, source, sink, operations)
    target_ts = None if asked.target_ts is None else Ts(asked.target_ts)
    changes = await operations.ask(
        jobs.Update(
            "",
            info.id,
            source=source,
            sink=sink,
            mode=asked.mode,
            target_ts=target_ts,
            config=asked.config,
            is_trial=asked.dry_run,
        )
    )
    return views.UpdateView(
        changefeed=await operations.query(info.id),
        changes=tuple(views.FieldChange.model_validate(change, from_attributes=True) for change in changes),
        dry_run=asked.dry_run,
    )


async def rewind(operations: OwnerJobs, data_plane: "DataPlane", info: ChangefeedInfo, ts: Ts) -> views.RewindView:
    """:raises WeirError: the state or the log does not allow it, or it would have no effect."""
    unit = operations.unit_of(info.id)
    starts: tuple[views.TablePosition, ...] = ()
    if unit is not None and info.state in _STANDING:
        starts = await _starts(data_plane, info, unit, operations.cuts_of(info.id), ts)
    await operations.ask(jobs.Rewind("", info.id, ts))
    return views.RewindView(changefeed=await operations.query(info.id), tables=starts)


async def _check(
    data_plane: "DataPlane",
    info: ChangefeedInfo,
    source: SealedUri | None,
    sink: SealedUri | None,
    operations: OwnerJobs,
) -> None:
    after = info.with_(source=source or info.source, sink=sink or info.sink)
    unit = operations.unit_of(info.id)
    if unit is None:
        return
    if source is not None:
        await data_plane.check_source_again(after, unit)
    if sink is not None and unit.unit is Unit.SYNC:
        await data_plane.recorded(after, unit, operations.cuts_of(info.id))
    elif sink is not None and sink.masked != info.sink.masked:
        raise JobRefusedError(
            f"the snapshot of changefeed {info.id} is on its way to {info.sink.masked}; let it finish there first, or "
            "create another changefeed"
        )


async def _starts(
    data_plane: "DataPlane",
    info: ChangefeedInfo,
    unit: UnitRecord,
    partitionings: Mapping[int, TablePartitioning],
    ts: Ts,
) -> tuple[views.TablePosition, ...]:
    """From where each table will be written again. :raises JobRefusedError: from nowhere before ``ts``."""
    names = [f"{table.schema_name}.{table.name}" for table in unit.tables]
    recorded = await data_plane.recorded(info, unit, partitionings)
    if recorded and all(known > ts for known in recorded):
        lowest, name = min(zip(recorded, names, strict=True))
        raise JobRefusedError(
            f"the sink records {lowest} for {name} and no less for others: it holds every change up to there and takes "
            f"none twice, so going back to {ts} would change nothing; set its tables back first (restore a backup)"
        )
    positions = recorded or (ts,) * len(names)
    return tuple(views.TablePosition(table=name, ts=known) for name, known in zip(names, positions, strict=True))


def _resealed(data_plane: "DataPlane", known: SealedUri, uri: str | None) -> SealedUri | None:
    """None where nothing changes: the same URI sealed again looks different."""
    return None if uri is None or data_plane.keeper.open(known) == uri else data_plane.keeper.seal(uri)
