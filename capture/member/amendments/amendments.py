"""Amendments of a cluster: a changefeed is updated; one table of it is copied again, paused, resumed, skips changes,
is maintained, joins or leaves, while all others flow.
"""

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.filter.tables import TableFilter, rule_of
from capture.api import port as views
from capture.errors import JobRefusedError, StaleRequestError
from capture.member.amendments import amendment, reading_back
from capture.member.copies import CopyPlace, CopyProgress, with_copies
from capture.member.preflight import refuse_resync
from owner import jobs
from owner.tables.sink_names import grouped_by_names
from reactor.errors import WeirError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedConfig, ChangefeedInfo, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.tables.held import HeldTable, HoldOrigin
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord
from reactor.store.port import Compare
from reactor.views import ChangefeedView, HeldView, MaintainedView, TableFilesView, TableView, called

if TYPE_CHECKING:
    from capture.member.services import DataPlane

_NO_JOB = ""


class Amendments(ABC):
    """The operations that change a changefeed, or one table of it; see ``capture.api.port.Cluster``."""

    @abstractmethod
    async def ask(self, job: jobs.Job) -> Any: ...

    @abstractmethod
    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView: ...

    @abstractmethod
    def info_of(self, changefeed_id: str) -> ChangefeedInfo: ...

    @abstractmethod
    def unit_of(self, changefeed_id: str) -> UnitRecord | None: ...

    @abstractmethod
    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]: ...

    @abstractmethod
    def pending_of(self, changefeed_id: str) -> tuple[DdlRecord, ...]: ...

    @abstractmethod
    def head_of(self, changefeed_id: str) -> LogHead: ...

    @abstractmethod
    async def use_cluster_key(self) -> Compare:
        """Seal with what the store's mark says; returns what holds while it says so."""

    @property
    @abstractmethod
    def copies(self) -> Mapping[CopyPlace, CopyProgress]: ...

    @property
    @abstractmethod
    def data_plane(self) -> "DataPlane": ...

    async def tables(
        self, changefeed_id: str, *, after: int | None = None, limit: int | None = None, name: str = ""
    ) -> "builtins.list[TableView]":
        job = jobs.Tables(_NO_JOB, ChangefeedId(changefeed_id), after=after, limit=limit, name=name)
        return [*with_copies(changefeed_id, await self.ask(job), self.copies)]

    async def resync_table(
        self, changefeed_id: str, table: str, *, rows_per_second: int | None = None
    ) -> views.TableResyncView:
        """:raises JobRefusedError: the table is not replicated, is being copied already, or cannot be copied."""
        view = await self.query(changefeed_id, tables=False)
        refuse_resync(view.sink)
        if held := _to_rejoin(view, table):
            for problem in (await self.rejoin(changefeed_id, held, rows_per_second=rows_per_second)).values():
                raise problem
            return views.TableResyncView(changefeed_id=changefeed_id, table=table)
        table_id = await self.table_id(changefeed_id, table)
        await self.ask(
            jobs.ResyncTable(_NO_JOB, ChangefeedId(changefeed_id), table_id, rows_per_second=rows_per_second)
        )
        return views.TableResyncView(changefeed_id=changefeed_id, table=table)

    async def take_in(self, changefeed_id: str, tables: Sequence[HeldTable]) -> dict[int, WeirError]:
        """Have tables copied that are held: together those that the source's stream could not follow. A hold may have
        ended by now, and another table may have the name. Return what prevents it, by the table's number.

        :raises WeirError: source or sink take none of them.
        """
        view = await self.query(changefeed_id, tables=False)
        refuse_resync(view.sink)
        numbers, problems = {one.table_id for one in tables}, dict[int, WeirError]()
        lost = [one for one in view.held if one.table_id in numbers and _leaves(one)]
        if lost:
            problems |= await self._rejoin_in_parts(changefeed_id, grouped_by_names(lost, _names))
        rejoined = {one.table_id for one in lost}
        for one in tables:
            if one.table_id not in rejoined and one.origin is not HoldOrigin.SOURCE:
                try:
                    await self.ask(jobs.ResyncTable(_NO_JOB, ChangefeedId(changefeed_id), one.table_id))
                except JobRefusedError as error:
                    problems[one.table_id] = error
        return problems

    async def read_rows(self, changefeed_id: str, held: HeldTable) -> int:
        """Give a table that is held for a left-out value the source's rows that the sink lacks. Return how many, 0 if
        that does not help.

        :raises WeirError: source, log or sink cannot be read or written.
        """
        return await reading_back.read_back(self, self.data_plane, self.info_of(changefeed_id), held)

    async def cancel_resync(self, changefeed_id: str, table: str) -> views.TableResyncView:
        table_id = await self.table_id(changefeed_id, table, is_held=True)
        await self.ask(jobs.ResyncTable(_NO_JOB, ChangefeedId(changefeed_id), table_id, is_cancelled=True))
        return views.TableResyncView(changefeed_id=changefeed_id, table=table, resyncing=False)

    async def pause_table(self, changefeed_id: str, table: str) -> views.TableStepView:
        table_id = await self.table_id(changefeed_id, table)
        ts = await self.ask(jobs.PauseTable(_NO_JOB, ChangefeedId(changefeed_id), table_id))
        return views.TableStepView(changefeed_id=changefeed_id, table=table, ts=ts)

    async def resume_table(self, changefeed_id: str, table: str) -> views.TableStepView:
        table_id = await self.table_id(changefeed_id, table, is_held=True)
        ts = await self.ask(jobs.ResumeTable(_NO_JOB, ChangefeedId(changefeed_id), table_id))
        return views.TableStepView(changefeed_id=changefeed_id, table=table, ts=ts)

    async def skip_table(
        self, changefeed_id: str, table: str, ts: int, *, confirmed: bool = False
    ) -> views.TableStepView:
        """:raises JobRefusedError: it is not confirmed, or the table's state or log do not allow it."""
        table_id = await self.table_id(changefeed_id, table, is_held=True)
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

    async def update(self, changefeed_id: str, asked: views.ChangefeedUpdate) -> views.UpdateView:
        """What source and sink say against it is found out first. :raises JobRefusedError: it is not stopped."""
        return await self.amend(changefeed_id, lambda _: asked)

    async def amend(
        self, changefeed_id: str, wish: Callable[[ChangefeedConfig], views.ChangefeedUpdate], *, table: str = ""
    ) -> views.UpdateView:
        """Update with what ``wish`` makes of the configuration, also of one that has changed meanwhile."""
        await self.use_cluster_key()

        async def attempt() -> views.UpdateView:
            info = self.info_of(changefeed_id)
            return await amendment.update(self, self.data_plane, info, wish(info.config), table=table)

        return await amendment.on_fresh_records(attempt)

    async def rejoin(
        self, changefeed_id: str, held: Sequence[HeldView], *, rows_per_second: int | None = None
    ) -> dict[int, WeirError]:
        """Have tables leave and join again; return what prevents it, by the table's number."""
        await self.use_cluster_key()

        async def attempt() -> dict[int, WeirError]:
            info = self.info_of(changefeed_id)
            return await amendment.rejoin(self, self.data_plane, info, held, rows_per_second=rows_per_second)

        return await amendment.on_fresh_records(attempt)

    async def _rejoin_in_parts(self, changefeed_id: str, groups: Sequence[Sequence[HeldView]]) -> dict[int, WeirError]:
        """Have tables leave and join again at once, or in halves where the owner refuses them all: they may be too many
        for one transaction, or one of them has to wait."""
        held = [one for group in groups for one in group]
        try:
            return await self.rejoin(changefeed_id, held)
        except JobRefusedError as error:
            if len(groups) == 1 or isinstance(error, StaleRequestError):
                return dict.fromkeys((one.table_id for one in held), error)
        middle = len(groups) // 2
        first = await self._rejoin_in_parts(changefeed_id, groups[:middle])
        return first | await self._rejoin_in_parts(changefeed_id, groups[middle:])

    async def maintain_table(self, changefeed_id: str, table: str) -> MaintainedView:
        """:raises JobRefusedError: it is not replicated, or its sink has no maintenance."""
        record = await self._at_sink(changefeed_id, table)
        done = await self.data_plane.maintain(self.info_of(changefeed_id), record)
        return MaintainedView(changefeed_id=changefeed_id, table=table, **asdict(done))

    async def table_files(self, changefeed_id: str, table: str) -> TableFilesView:
        """:raises JobRefusedError: it is not replicated, or its sink has no data files."""
        record = await self._at_sink(changefeed_id, table)
        found = await self.data_plane.table_files(self.info_of(changefeed_id), record)
        return TableFilesView(changefeed_id=changefeed_id, table=table, **asdict(found))

    async def _at_sink(self, changefeed_id: str, table: str) -> TableRecord:
        table_id, unit = await self.table_id(changefeed_id, table), self.unit_of(changefeed_id)
        record = next((known for known in unit.tables if known.table_id == table_id), None) if unit else None
        if record is None:
            raise JobRefusedError(f"{table} is not at the sink yet; `weir tables -c {changefeed_id}` shows it")
        return record

    async def add_table(self, changefeed_id: str, table: str) -> views.UpdateView:
        """:raises JobRefusedError: it is replicated, or there is no such table."""
        if await self.tables(changefeed_id, name=table):
            raise JobRefusedError(f"changefeed {changefeed_id} has {table} already")
        done = await self.amend(changefeed_id, partial(_with_rule, table=table, adds=True), table=table)
        if table not in done.changefeed.joining and all(known.table != table for known in done.changefeed.tables):
            raise JobRefusedError(
                f"there is no table {table} at the source that could join now; the filter of changefeed "
                f"{changefeed_id} wants it from now on"
            )
        return done

    async def remove_table(self, changefeed_id: str, table: str) -> views.UpdateView:
        """:raises JobRefusedError: it is not replicated, or is the last one."""
        joining = (await self.query(changefeed_id, tables=False)).joining
        if table not in joining:
            await self.table_id(changefeed_id, table)
        return await self.amend(changefeed_id, partial(_with_rule, table=table, adds=False))

    async def table_id(self, changefeed_id: str, table: str, *, is_held: bool = False) -> int:
        """Return a table's number; ``is_held``: of two of one name, of the held one.

        :raises JobRefusedError: the changefeed has no such table.
        """
        found = await self.tables(changefeed_id, name=table)
        held = next((one for one in found if one.held is not None), None) if is_held else None
        if (known := held or called(found, table)) is not None:
            return known.table_id
        text = f"changefeed {changefeed_id} has no table {table}; `weir tables -c {changefeed_id}` shows its tables"
        raise JobRefusedError(text)


def _leaves(held: HeldView) -> bool:
    """Return whether a held table leaves and joins again to be copied: the stream has nothing of it since then, or it
    has another name, and a copy under its old name would be of the table that has that name now."""
    return held.origin == HoldOrigin.SOURCE or (bool(held.renamed_to) and held.origin != HoldOrigin.PAUSE)


def _to_rejoin(view: ChangefeedView, table: str) -> list[HeldView]:
    """Return the held table that leaves and joins again for a copy of ``table``, and the held ones whose names are
    taken by it and by each other. A table that has the name at the source comes before one that had it."""
    leaving = [held for held in view.held if _leaves(held)]
    by_name = {held.table: held for held in reversed(leaving)}
    named = [held for held in leaving if table in (held.table, held.renamed_to)]
    found = sorted(named, key=lambda held: (held.renamed_to or held.table) != table)[:1]
    while found and (other := by_name.get(found[-1].renamed_to)) is not None and other not in found:
        found.append(other)
    return found


def _names(held: HeldView) -> set[str]:
    return {held.table, held.renamed_to or held.table}


def _with_rule(config: ChangefeedConfig, table: str, *, adds: bool) -> views.ChangefeedUpdate:
    """Return an update to the configuration with a rule that takes a table in, or leaves it out."""
    schema, _, name = table.partition(".")
    alone = rule_of(schema, name)
    rule, opposite = (alone, f"!{alone}") if adds else (f"!{alone}", alone)
    rules = tuple(known for known in config.filter.rules if known != opposite)
    if TableFilter(rules).wants(schema, name) is not adds:
        rules = (*rules, rule)
    return views.ChangefeedUpdate(config=config.with_(filter=config.filter.with_(rules=rules)))
