"""Table jobs of one changefeed: operators' requests about a single table, as the commit that stores them."""

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from owner.jobs import PauseTable, Repartition, ResumeTable, ResyncTable, SkipTable, TableStep
from owner.progress.units import SOURCE
from owner.tables import holding, repartition, resync_requests
from reactor import keys, patches
from reactor.effects import Commit, Effect, Log, WakeAt
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import UnitRecord
from reactor.records.tables.held import HeldTable
from reactor.records.tables.partitioning import TablePartitioning

if TYPE_CHECKING:
    from owner.progress.facts import Facts


class Held(Protocol):
    """The changefeed's held tables."""

    def again(self, facts: "Facts", now: float) -> list[patches.Patch]:
        """Return the patches by which all of them are retried."""
        ...

    def wished(self, before: HeldTable | None, after: HeldTable) -> tuple[patches.Patch, list[Effect]]:
        """Return what an operator's wish about one of them writes and logs."""
        ...


class TableJobs:
    """The table jobs of one changefeed."""

    def __init__(self, id: ChangefeedId, *, cluster: str, namespace: str, wall_offset_s: float, held: Held) -> None:
        self._place = (cluster, namespace, id)
        self._wall_offset_s = wall_offset_s
        self._held = held

    def repartition(self, facts: "Facts", wish: Repartition, now: float) -> tuple[list[Effect], int]:
        """Store the request; return also the current number of spans.

        :raises JobRefusedError: there is no such table, or it has no key.
        """
        before, after = repartition.asked(facts, wish.table_id, wish.spans)
        if after == before:
            return [], after.spans
        return [Commit(patches.group([self.put_partitioning(before, after)])), WakeAt(now)], after.spans

    def resync(self, facts: "Facts", job: ResyncTable, now: float) -> list[Effect]:
        """Request that a table be copied again.

        :raises JobRefusedError: it cannot be.
        """
        wall = now + self._wall_offset_s
        wish = resync_requests.asked(facts, job.table_id, wall=wall, rows_per_second=job.rows_per_second)
        put = patches.replace_record(keys.ResyncKey(*self._place, job.table_id), None, wish)
        return [Commit(patches.group([put])), WakeAt(now)]

    def cancel_resync(self, facts: "Facts", table_id: int, now: float) -> list[Effect]:
        """Cancel a resync: the table is left as it is, and continues.

        :raises JobRefusedError: the copy may already have replaced it.
        """
        doomed = resync_requests.given_up(facts, table_id)
        alone = {id: table for id, table in facts.held.items() if id == table_id}
        again = self._held.again(replace(facts, resyncs={}, held=alone), now)
        delete = patches.delete_record(keys.ResyncKey(*self._place, table_id), doomed)
        return [Commit(patches.group([delete, *again])), WakeAt(now)]

    def step(self, facts: "Facts", wish: TableStep, now: float) -> tuple[list[Effect], Ts]:
        """Pause a table, resume it, or let it skip changes; return also the Ts that it has surely reached before.

        :raises JobRefusedError: it cannot be.
        """
        wall, before = now + self._wall_offset_s, facts.held.get(wish.table_id)
        others: list[patches.Patch] = []
        logs: list[Effect] = []
        match wish:
            case PauseTable():
                after = holding.paused(facts, wish.table_id, wall=wall)
            case ResumeTable():
                after = holding.resumed(facts, wish.table_id, wall=wall)
            case SkipTable():
                after = holding.skipped(facts, wish.table_id, wish.ts, wall=wall)
                unit = keys.UnitKey(*self._place, SOURCE)
                others.append(
                    patches.patch_record(unit, UnitRecord, lambda old: holding.leaving_out(old, wish.table_id, wish.ts))
                )
                logs.append(_left_out(facts, before or after, wish.ts))
        put, said = self._held.wished(before, after)
        return [Commit(patches.group([put, *others])), *said, *logs, WakeAt(now)], (before or after).ts

    def put_partitioning(self, before: TablePartitioning | None, after: TablePartitioning) -> patches.Patch:
        """Return a patch that replaces ``before`` by ``after``."""
        return patches.replace_record(keys.PartitioningKey(*self._place, after.table_id), before, after)


def _left_out(facts: "Facts", held: HeldTable, ts: Ts) -> Log:
    fields = (("changefeed", facts.info.id), ("table", held.name), ("after_ts", held.ts), ("to_ts", ts))
    return Log("warning", "an operator has changes of a table left out", fields)
