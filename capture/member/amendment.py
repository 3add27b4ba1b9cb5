"""Amendment: changes an existing changefeed after checking with source and sink, and then with the owner.

*Update*: another sink must hold the changefeed's tables with their records, and another source must be the same server,
since positions of different servers are not comparable. *Rewind*: a sink that records its own Ts applies nothing twice,
so going back behind its records changes nothing there; it only repairs a sink that was itself set back (a restored
backup), as far as the log reaches. *One table* is copied again, paused, resumed, or skips changes, while all others
flow.
"""

import builtins
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agent.filter import events
from agent.filter.tables import TableFilter
from agent.sources.registry import check_settings
from capture.api import port as views
from capture.errors import JobRefusedError
from capture.member.preflight import check_sink_terms, refuse_resync, refuse_too_many
from owner import jobs
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import (
    ChangefeedConfig,
    ChangefeedInfo,
    FeedState,
    SealedUri,
    TableRecord,
    Unit,
    UnitRecord,
)
from reactor.records.held import HoldOrigin
from reactor.records.partitioning import TablePartitioning
from reactor.views import ChangefeedView, HeldView, TableView

if TYPE_CHECKING:
    from capture.member.services import DataPlane

_NO_JOB = ""
_STANDING = (FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED)


class OwnerJobs(Protocol):
    """Access to the owner: the part of ``capture.member.cluster_service`` that an amendment needs."""

    async def ask(self, job: jobs.Job) -> Any: ...

    async def query(self, changefeed_id: str) -> ChangefeedView: ...

    def unit_of(self, changefeed_id: str) -> UnitRecord | None: ...

    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]: ...


class TableAmendments(ABC):
    """The operations on one table; see ``capture.api.port.Cluster``."""

    @abstractmethod
    async def ask(self, job: jobs.Job) -> Any: ...

    @abstractmethod
    async def query(self, changefeed_id: str) -> ChangefeedView: ...

    async def tables(self, changefeed_id: str) -> "builtins.list[TableView]":
        return [*(await self.query(changefeed_id)).tables]

    async def resync_table(
        self, changefeed_id: str, table: str, *, rows_per_second: int | None = None
    ) -> views.TableResyncView:
        """:raises JobRefusedError: the table is not replicated, is being copied already, or cannot be copied."""
        view = await self.query(changefeed_id)
        refuse_resync(view.sink)
        if (held := _held_by_source(view, table)) is not None:
            await self.rejoin(changefeed_id, [held], rows_per_second=rows_per_second)
            return views.TableResyncView(changefeed_id=changefeed_id, table=table)
        table_id = await self.table_id(changefeed_id, table)
        await self.ask(
            jobs.ResyncTable(_NO_JOB, ChangefeedId(changefeed_id), table_id, rows_per_second=rows_per_second)
        )
        return views.TableResyncView(changefeed_id=changefeed_id, table=table)

    async def take_in(self, changefeed_id: str, tables: Sequence[str]) -> None:
        """Have tables copied that are held, since the source's stream could not follow them.

        :raises JobRefusedError: one cannot be copied.
        """
        view = await self.query(changefeed_id)
        refuse_resync(view.sink)
        if held := [found for table in tables if (found := _held_by_source(view, table)) is not None]:
            await self.rejoin(changefeed_id, held)

    async def cancel_resync(self, changefeed_id: str, table: str) -> views.TableResyncView:
        table_id = await self.table_id(changefeed_id, table)
        await self.ask(jobs.ResyncTable(_NO_JOB, ChangefeedId(changefeed_id), table_id, is_cancelled=True))
        return views.TableResyncView(changefeed_id=changefeed_id, table=table, resyncing=False)

    async def pause_table(self, changefeed_id: str, table: str) -> views.TableStepView:
        table_id = await self.table_id(changefeed_id, table)
        ts = await self.ask(jobs.PauseTable(_NO_JOB, ChangefeedId(changefeed_id), table_id))
        return views.TableStepView(changefeed_id=changefeed_id, table=table, ts=ts)

    async def resume_table(self, changefeed_id: str, table: str) -> views.TableStepView:
        table_id = await self.table_id(changefeed_id, table)
        ts = await self.ask(jobs.ResumeTable(_NO_JOB, ChangefeedId(changefeed_id), table_id))
        return views.TableStepView(changefeed_id=changefeed_id, table=table, ts=ts)

    async def skip_table(
        self, changefeed_id: str, table: str, ts: int, *, confirmed: bool = False
    ) -> views.TableStepView:
        """:raises JobRefusedError: it is not confirmed, or the table's state or log do not allow it."""
        table_id = await self.table_id(changefeed_id, table)
        if not confirmed:
            raise JobRefusedError(
                f"changes of {table} up to {ts} that the sink lacks would be left out for good: confirm that "
                "(command line: --yes; HTTP and Python: confirmed)"
            )
        at = await self.ask(jobs.SkipTable(_NO_JOB, ChangefeedId(changefeed_id), table_id, Ts(ts)))
        notice = (
            f"changes of {table} after {at} and up to {ts} that the sink lacks are left out: it differs from its "
            f"source until `weir table resync -c {changefeed_id} --table {table}`"
        )
        return views.TableStepView(changefeed_id=changefeed_id, table=table, ts=at, notices=(notice,))

    @abstractmethod
    def info_of(self, changefeed_id: str) -> ChangefeedInfo: ...

    @abstractmethod
    async def rejoin(self, changefeed_id: str, held: Sequence[HeldView], *, rows_per_second: int | None = None) -> None:
        """Take in again tables that the stream could not follow."""

    @abstractmethod
    async def update(
        self, changefeed_id: str, asked: views.ChangefeedUpdate, *, table: str = ""
    ) -> views.UpdateView: ...

    async def add_table(self, changefeed_id: str, table: str) -> views.UpdateView:
        """:raises JobRefusedError: it is replicated, or there is no such table."""
        if any(known.table == table for known in await self.tables(changefeed_id)):
            raise JobRefusedError(f"changefeed {changefeed_id} has {table} already")
        config = self.info_of(changefeed_id).config
        asked = views.ChangefeedUpdate(config=_with_rule(config, table, adds=True))
        done = await self.update(changefeed_id, asked, table=table)
        if table not in done.changefeed.joining and all(known.table != table for known in done.changefeed.tables):
            raise JobRefusedError(
                f"there is no table {table} at the source that could join now; the filter of changefeed "
                f"{changefeed_id} wants it from now on"
            )
        return done

    async def remove_table(self, changefeed_id: str, table: str) -> views.UpdateView:
        """:raises JobRefusedError: it is not replicated, or is the last one."""
        joining = (await self.query(changefeed_id)).joining
        if table not in joining:
            await self.table_id(changefeed_id, table)
        config = self.info_of(changefeed_id).config
        return await self.update(changefeed_id, views.ChangefeedUpdate(config=_with_rule(config, table, adds=False)))

    async def table_id(self, changefeed_id: str, table: str) -> int:
        """:raises JobRefusedError: the changefeed has no such table."""
        for known in await self.tables(changefeed_id):
            if known.table == table:
                return known.table_id
        text = f"changefeed {changefeed_id} has no table {table}; `weir tables -c {changefeed_id}` shows its tables"
        raise JobRefusedError(text)


async def update(
    operations: OwnerJobs,
    data_plane: "DataPlane",
    info: ChangefeedInfo,
    asked: views.ChangefeedUpdate,
    *,
    table: str = "",
) -> views.UpdateView:
    """``table``: one that joins whatever the rules were.

    :raises WeirError: the state does not allow it, or source or sink refuse.
    """
    source = _resealed(data_plane, info.source, asked.source_uri)
    sink = _resealed(data_plane, info.sink, asked.sink_uri)
    data_plane.check_reach(source=asked.source_uri if source else None, sink=asked.sink_uri if sink else None)
    if asked.config is not None:
        check_settings(asked.source_uri or info.source.masked, asked.config)
        events.check_words(asked.config.filter)
        check_sink_terms(asked.sink_uri or info.sink.masked, info.sink_mode, asked.config)
    if info.state in _STANDING:
        await _check(data_plane, info, source, sink, operations)
    joining, leaving = await _moves(operations, data_plane, info.with_(source=source or info.source), asked, table)
    target_ts = None if asked.target_ts is None else Ts(asked.target_ts)
    changes = await operations.ask(
        jobs.Update(
            _NO_JOB,
            info.id,
            source=source,
            sink=sink,
            mode=asked.mode,
            target_ts=target_ts,
            config=asked.config,
            is_trial=asked.dry_run,
            joining=joining,
            leaving=leaving,
        )
    )
    return views.UpdateView(
        changefeed=await operations.query(info.id),
        changes=tuple(views.FieldChange.model_validate(change, from_attributes=True) for change in changes),
        dry_run=asked.dry_run,
    )


async def rejoin(
    operations: OwnerJobs,
    data_plane: "DataPlane",
    info: ChangefeedInfo,
    held: Sequence[HeldView],
    *,
    rows_per_second: int | None = None,
) -> None:
    """Let tables that the source's stream could not follow leave and join at once: the stream follows them again, as
    they are now, from a position behind which they are copied. ``rows_per_second``: that each copy reads at most.

    :raises WeirError: the source has no such table, or does not send it.
    """
    unit, names = operations.unit_of(info.id), {one.renamed_to or one.table: one.table for one in held}
    rules = TableFilter(info.config.filter.rules)
    wanted = await data_plane.discover(_only(info, [_whole(name) for name in names]))
    found = [one for one in wanted if rules.wants(*_name(one))]
    missing = sorted(names.keys() - {".".join(_name(one)) for one in found})
    if unit is None or unit.unit is not Unit.SYNC or missing:
        name = next(iter(missing or names))
        raise JobRefusedError(
            f"there is no table {name} at the source of changefeed {info.id} that could be copied again; if it was "
            f"renamed out of the filter, `weir table add` takes it in, and `weir table remove` leaves {names[name]} out"
        )
    _refuse_keyless(found)
    await data_plane.publish(info, found)
    leaving = tuple(one.table_id for one in unit.tables if one.table_id in {one.table_id for one in held})
    again = [_name(one) for one in found]
    joining = tuple(dict.fromkeys((*unit.joining, *again)))
    limits = tuple(limit for limit in unit.copy_limits if limit[:2] not in again)
    if rows_per_second is not None:
        limits = (*limits, *((*name, rows_per_second) for name in again))
    await operations.ask(
        jobs.Update(_NO_JOB, info.id, config=info.config, joining=joining, leaving=leaving, copy_limits=limits)
    )


def _held_by_source(view: ChangefeedView, table: str) -> HeldView | None:
    """Return the table's hold if the stream has nothing of it since then. A table that has the name at the source comes
    before one that had it."""
    wanted = [held for held in view.held if table in (held.table, held.renamed_to) and held.origin == HoldOrigin.SOURCE]
    return min(wanted, key=lambda held: (held.renamed_to or held.table) != table, default=None)


def _refuse_keyless(tables: Iterable[TableRecord]) -> None:
    """:raises JobRefusedError: one has no key, by which a copy and the changes behind it are told apart."""
    for table in tables:
        if not table.key:
            raise JobRefusedError(
                f"{table.schema_name}.{table.name} has no key, and cannot join a changefeed that exists: give it one, "
                "leave it out by a rule, or create another changefeed for it"
            )


async def _moves(
    operations: OwnerJobs, data_plane: "DataPlane", info: ChangefeedInfo, asked: views.ChangefeedUpdate, table: str
) -> tuple[tuple[tuple[str, str], ...] | None, tuple[int, ...]]:
    """Return the tables that another filter takes in, by name, and the ones that it leaves out, by id; None: there is
    no other filter, or no log is followed yet. The source is told to send the former.

    :raises JobRefusedError: a table cannot be taken in, or none would be left.
    """
    unit = operations.unit_of(info.id)
    if asked.config is None or (asked.config.filter.rules == info.config.filter.rules and not table):
        return None, ()
    if unit is None or unit.unit is not Unit.SYNC:
        return None, ()
    rules = TableFilter(asked.config.filter.rules)
    leaving = tuple(one.table_id for one in unit.tables if not rules.wants(*_name(one)))
    if len(leaving) == len(unit.tables):
        raise JobRefusedError(f"these rules leave changefeed {info.id} none of its tables; let one stay, or remove it")
    after = info.with_(config=asked.config)
    known, before = {_name(one) for one in unit.tables}, TableFilter(info.config.filter.rules)
    if table:
        asked_for = _only(after, [_whole(table), *(_whole(".".join(name)) for name in unit.joining)])
    else:
        # what holds a table, as that it has no key, refuses no other
        held = {one.table for one in (await operations.query(info.id)).held} - {*map(".".join, unit.joining)}
        asked_for = _only(after, [*after.config.filter.rules, *(f"!{_whole(name)}" for name in sorted(held))])
    found = [
        one
        for one in await data_plane.discover(asked_for)
        if rules.wants(*_name(one))
        and _name(one) not in known
        and (_name(one) in unit.joining or ".".join(_name(one)) == table or not before.wants(*_name(one)))
    ]
    if found:
        refuse_resync(info.sink.masked)
    _refuse_keyless(found)
    refuse_too_many((*(one for one in unit.tables if one.table_id not in leaving), *found))
    if found and not asked.dry_run:
        await data_plane.publish(after, found)
    return tuple(map(_name, found)), leaving


def _only(info: ChangefeedInfo, rules: Sequence[str]) -> ChangefeedInfo:
    """Return the changefeed with other rules, so that its source checks no other table."""
    return info.with_(config=info.config.with_(filter=info.config.filter.with_(rules=tuple(rules))))


def _whole(name: str) -> str:
    """Return the rule that selects one table. ``name``: ``schema.table``, of which both may contain a point."""
    escaped = re.escape(name).replace("/", r"\/")
    return f"/{escaped}/"


def _name(table: TableRecord) -> tuple[str, str]:
    return table.schema_name, table.name


async def rewind(operations: OwnerJobs, data_plane: "DataPlane", info: ChangefeedInfo, ts: Ts) -> views.RewindView:
    """:raises WeirError: the state or the log does not allow it, or it would have no effect."""
    unit = operations.unit_of(info.id)
    starts: tuple[views.TablePosition, ...] = ()
    if unit is not None and info.state in _STANDING:
        starts = await _starts(data_plane, info, unit, operations.cuts_of(info.id), ts)
    await operations.ask(jobs.Rewind(_NO_JOB, info.id, ts))
    return views.RewindView(changefeed=await operations.query(info.id), tables=starts)


def _with_rule(config: ChangefeedConfig, table: str, *, adds: bool) -> ChangefeedConfig:
    """Return the configuration with a rule that takes a table in, or leaves it out."""
    schema, _, name = table.partition(".")
    alone = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name))
    rule, opposite = (alone, f"!{alone}") if adds else (f"!{alone}", alone)
    rules = tuple(known for known in config.filter.rules if known != opposite)
    if TableFilter(rules).wants(schema, name) is not adds:
        rules = (*rules, rule)
    return config.with_(filter=config.filter.with_(rules=rules))


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
    """Return the position from which each table will be written again.

    :raises JobRefusedError: no table starts before ``ts``.
    """
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
    """None if nothing changes: the same URI sealed again looks different."""
    return None if uri is None or data_plane.keeper.open(known) == uri else data_plane.keeper.seal(uri)
