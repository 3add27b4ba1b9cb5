"""Leaving of an Iceberg table: its state says that its changefeed no longer replicates it (see ``MarksLeft``)."""

from dataclasses import replace
from datetime import UTC, datetime

from pyiceberg.table import Table

from agent.sinks.iceberg.table import commit
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.state import State, TableOwner
from reactor.ids import Ts


def mark_left(place: TablePlace, owner: TableOwner, table_id: int, ts: Ts, time: float) -> None:
    """Mark the table, unless a copy or another table has taken its place since."""
    said = datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")

    def mark(table: Table) -> None:
        owner.refuse_foreign(table, place)
        state = State.of(table)
        is_done = (state.left, state.left_at) == (ts, said)
        if state.tells_of(table_id) and not (state.dropped or is_done) and max(state.copy, state.ddl, state.left) <= ts:
            commit.commit(table, Step(replace(state, left=int(ts), left_at=said), is_same=True))

    if place.open() is not None:
        commit.on_newest(place, mark)
