"""Amendment: changes an existing changefeed after checking with source and sink, and then with the owner.

Another sink must hold the changefeed's tables with their records, and another source must be the same server, since
positions of different servers are not comparable. Which tables join and leave is found out from the stored records; the
owner refuses it where these have changed meanwhile, and it is found out again (``on_fresh_records``).
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agent.errors import TableLockedError
from agent.filter import events
from agent.filter.tables import TableFilter
from agent.sinks import formats_of
from agent.sources.registry import check_settings
from capture.api import port as views
from capture.errors import JobRefusedError, StaleRequestError
from capture.member.preflight import check_sink_terms, refuse_resync
from owner import jobs
from reactor.errors import WeirError
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedInfo, FeedState, SealedUri, Unit, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind
from reactor.records.tables.table import TableRecord
from reactor.views import ChangefeedView, HeldView

if TYPE_CHECKING:
    from capture.member.services import DataPlane

T = TypeVar("T")

_NO_JOB = ""
#: how often a request is made whose records change meanwhile
_ATTEMPTS_MAX = 20
STANDING = (FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED)


class OwnerJobs(Protocol):
    """Access to the owner: the part of ``capture.member.cluster_service`` that an amendment needs."""

    async def ask(self, job: jobs.Job) -> Any: ...

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView: ...

    def unit_of(self, changefeed_id: str) -> UnitRecord | None: ...

    def head_of(self, changefeed_id: str) -> LogHead: ...

    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]: ...

    def pending_of(self, changefeed_id: str) -> tuple[DdlRecord, ...]: ...


async def update(
    operations: OwnerJobs,
    data_plane: "DataPlane",
    info: ChangefeedInfo,
    asked: views.ChangefeedUpdate,
    *,
    table: str = "",
) -> views.UpdateView:
    """``table``: one that joins whatever the rules were.

    :raises StaleRequestError: the records have changed meanwhile.
    :raises WeirError: the state does not allow it, or source or sink refuse.
    """
    source = _resealed(data_plane, info.source, asked.source_uri)
    sink = _resealed(data_plane, info.sink, asked.sink_uri)
    data_plane.check_reach(source=asked.source_uri if source else None, sink=asked.sink_uri if sink else None)
    if asked.config is not None:
        check_settings(asked.source_uri or info.source.masked, asked.config)
        events.check_words(asked.config.filter)
        check_sink_terms(asked.sink_uri or info.sink.masked, info.sink_mode, asked.config)
    if info.state in STANDING:
        await _check(data_plane, info, source, sink, operations)
    unit, pending = operations.unit_of(info.id), operations.pending_of(info.id)
    after = info.with_(source=source or info.source)
    joining, leaving = await _moves(operations, data_plane, after, unit, pending, asked, table)
    target_ts = None if asked.target_ts is None else Ts(asked.target_ts)
    outdated = _outdated(info, unit, asked, leaving)
    copied = tuple(one.table_id for one in outdated) if asked.resync else ()
    if copied:
        refuse_resync(info.sink.masked)
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
            copied=copied,
            needs=() if asked.sink_uri is None else tuple(formats_of(asked.sink_uri).items()),
            basis=None if joining is None and not copied else jobs.Basis.of(info.config, unit, pending),
        )
    )
    return views.UpdateView(
        changefeed=await operations.query(info.id),
        changes=tuple(views.FieldChange.model_validate(change, from_attributes=True) for change in changes),
        outdated=tuple(".".join(_name(one)) for one in outdated),
        dry_run=asked.dry_run,
    )


async def rejoin(
    operations: OwnerJobs,
    data_plane: "DataPlane",
    info: ChangefeedInfo,
    held: Sequence[HeldView],
    *,
    rows_per_second: int | None = None,
) -> dict[int, WeirError]:
    """Let tables leave and join at once that cannot be copied in their places, since the source's stream could not
    follow them or they have other names now: the stream follows them again, as they are now, from a position behind
    which they are copied. ``rows_per_second``: that each copy reads at most.
    Return what prevents it, by the table's number: such a table keeps no other back.

    :raises StaleRequestError: the records have changed meanwhile.
    :raises WeirError: the source cannot be asked.
    """
    unit, rules = operations.unit_of(info.id), TableFilter(info.config.filter.rules)
    basis = jobs.Basis.of(info.config, unit, operations.pending_of(info.id))
    names = {one.table_id: one.renamed_to or one.table for one in held} | dict(basis.tables)
    wanted = [one for one in held if names[one.table_id]]  # a dropped one has no name
    if unit is None or unit.unit is not Unit.SYNC or not wanted:
        return {one.table_id: _absent(info, one, one.table) for one in held}
    problems: dict[int, WeirError] = {
        one.table_id: _absent(info, one, one.table) for one in held if not names[one.table_id]
    }
    report = await data_plane.discover(_only(info, [_whole(names[one.table_id]) for one in wanted]))
    there = {".".join(_name(one)): one for one in report.tables if rules.wants(*_name(one))}
    fit: dict[int, TableRecord] = {}
    for one in wanted:
        name = names[one.table_id]
        try:
            if (table := there.get(name)) is None:
                raise _absent(info, one, name)
            report.refuse_unfit([table])
            _refuse_keyless([table], info)
            fit[one.table_id] = table
        except WeirError as error:
            problems[one.table_id] = error
    problems |= await _publish(data_plane, info, fit)
    if not (fit := {id: table for id, table in fit.items() if id not in problems}):
        return problems
    leaving = tuple(one.table_id for one in unit.tables if one.table_id in fit)
    again = [_name(one) for one in fit.values()]
    joining = tuple(dict.fromkeys((*unit.joining, *again)))
    limits = tuple(limit for limit in unit.copy_limits if limit[:2] not in again)
    if rows_per_second is not None:
        limits = (*limits, *((*name, rows_per_second) for name in again))
    await operations.ask(
        jobs.Update(
            _NO_JOB,
            info.id,
            config=info.config,
            joining=joining,
            leaving=leaving,
            copy_limits=limits,
            basis=basis,
        )
    )
    return problems


def _absent(info: ChangefeedInfo, held: HeldView, name: str) -> JobRefusedError:
    return JobRefusedError(
        f"there is no table {name} at the source of changefeed {info.id} that could be copied again; if it was renamed "
        f"out of the filter, `weir table add` takes it in, and `weir table remove` leaves {held.table} out"
    )


async def _publish(
    data_plane: "DataPlane", info: ChangefeedInfo, tables: Mapping[int, TableRecord]
) -> dict[int, WeirError]:
    """Have the source send these tables; return what prevents it, by number. Those that are refused are found by
    halving, if the error does not name them: a lock is waited for each time.

    :raises WeirError: the source does not answer.
    """
    cause: WeirError
    try:
        if tables:
            await data_plane.publish(info, [*tables.values()])
    except TableLockedError as error:
        cause, refused = error, [id for id, table in tables.items() if _name(table) == error.table]
    except WeirError as error:
        if error.retryable:
            raise
        cause, refused = error, []
    else:
        return {}
    ids = [*tables]
    if refused or len(ids) == 1:
        refused = refused or ids
        rest = {id: table for id, table in tables.items() if id not in refused}
        return dict.fromkeys(refused, cause) | await _publish(data_plane, info, rest)
    first, second = ({id: tables[id] for id in half} for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]))
    return await _publish(data_plane, info, first) | await _publish(data_plane, info, second)


async def on_fresh_records(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what ``attempt`` returns, made again where the records that it was made of have changed meanwhile.

    :raises StaleRequestError: they have changed each time.
    """
    for _ in range(_ATTEMPTS_MAX - 1):
        try:
            return await attempt()
        except StaleRequestError:
            continue
    return await attempt()


def _refuse_keyless(tables: Iterable[TableRecord], info: ChangefeedInfo) -> None:
    """:raises JobRefusedError: one has no key to upsert by."""
    if not info.sink_mode.is_keyed or info.config.force_replicate:
        return
    for table in tables:
        if not table.key:
            raise JobRefusedError(
                f"{table.schema_name}.{table.name} has no key to upsert by, so it cannot join: give it one, leave it "
                "out by a rule, or create another changefeed for it, with sink mode changelog or force-replicate = true"
            )


async def _moves(
    operations: OwnerJobs,
    data_plane: "DataPlane",
    info: ChangefeedInfo,
    unit: UnitRecord | None,
    pending: Iterable[DdlRecord],
    asked: views.ChangefeedUpdate,
    table: str,
) -> tuple[tuple[tuple[str, str], ...] | None, tuple[int, ...]]:
    """Return the tables that a new filter takes in, by name, and those that it leaves out, by id. The source begins to
    send the former. None instead of names: the filter does not change, or no log is followed yet.

    :raises JobRefusedError: a table cannot be taken in, or none would be left.
    """
    if asked.config is None or (asked.config.filter.rules == info.config.filter.rules and not table):
        return None, ()
    if unit is None or unit.unit is not Unit.SYNC:
        return None, ()
    rules = TableFilter(asked.config.filter.rules)
    tables = _after_pending(unit, pending)
    leaving = tuple(id for id, one in tables.items() if not rules.wants(*_name(one)))
    if len(leaving) == len(tables):
        raise JobRefusedError(f"these rules leave changefeed {info.id} none of its tables; let one stay, or remove it")
    after = info.with_(config=asked.config)
    known = {_name(one) for one in (*unit.tables, *tables.values())}
    before = TableFilter(info.config.filter.rules)
    if table:
        asked_for = _only(after, [_whole(table), *(_whole(".".join(name)) for name in unit.joining)])
    else:
        # what holds a table, as that it has no key, refuses no other
        held = {one.table for one in (await operations.query(info.id, tables=False)).held} - {
            *map(".".join, unit.joining)
        }
        asked_for = _only(after, [*after.config.filter.rules, *(f"!{_whole(name)}" for name in sorted(held))])
    report = await data_plane.discover(asked_for)
    found = [
        one
        for one in report.tables
        if rules.wants(*_name(one))
        and _name(one) not in known
        and (_name(one) in unit.joining or ".".join(_name(one)) == table or not before.wants(*_name(one)))
    ]
    if found:
        refuse_resync(info.sink.masked)
    report.refuse_unfit(found)
    _refuse_keyless(found, after)
    if found and not asked.dry_run:
        await data_plane.publish(after, found)
    return tuple(map(_name, found)), leaving


def _after_pending(unit: UnitRecord, pending: Iterable[DdlRecord]) -> dict[int, TableRecord]:
    """Return the tables by id as the schema changes leave them that the sink does not have yet, which were read under
    the present filter: with those that they create, under the names that they give. Dropped ones are as they are."""
    tables = {table.table_id: table for table in unit.tables}
    for record in pending:
        for change in record.alterations:
            is_known = change.table_id in tables or change.kind is SchemaChangeKind.CREATE
            if change.table is not None and is_known:
                tables[change.table_id] = change.table
    return tables


def _outdated(
    info: ChangefeedInfo, unit: UnitRecord | None, asked: views.ChangefeedUpdate, leaving: Iterable[int]
) -> list[TableRecord]:
    """Return the tables whose rows and columns in the sink are those of another filter than is asked for."""
    if asked.config is None or unit is None or unit.unit is not Unit.SYNC:
        return []
    stay = {_name(one): one for one in unit.tables if one.table_id not in set(leaving)}
    return [stay[name] for name in events.selected_otherwise(info.config.filter, asked.config.filter, stay)]


def _only(info: ChangefeedInfo, rules: Sequence[str]) -> ChangefeedInfo:
    """Return the changefeed with other rules, so that its source checks no other table."""
    return info.with_(config=info.config.with_(filter=info.config.filter.with_(rules=tuple(rules))))


def _whole(name: str) -> str:
    """Return the rule that selects one table. ``name``: ``schema.table``; both parts may contain a point."""
    escaped = re.escape(name).replace("/", r"\/")
    return f"/{escaped}/"


def _name(table: TableRecord) -> tuple[str, str]:
    return table.schema_name, table.name


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
        await data_plane.check_source_again(after, unit, operations.head_of(info.id))
    if sink is not None and unit.unit is Unit.SYNC:
        await data_plane.recorded(after, unit, operations.cuts_of(info.id))
    elif sink is not None and sink.masked != info.sink.masked:
        raise JobRefusedError(
            f"the snapshot of changefeed {info.id} is on its way to {info.sink.masked}; let it finish there first, or "
            "create another changefeed"
        )


def _resealed(data_plane: "DataPlane", known: SealedUri, uri: str | None) -> SealedUri | None:
    """None if nothing changes: the same URI sealed again looks different."""
    return None if uri is None or data_plane.keeper.open(known) == uri else data_plane.keeper.seal(uri)
