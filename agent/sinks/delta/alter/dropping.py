"""Tables that are written no more: the marks of those that are gone at their source, and of those that have left their
changefeed, in the table's description.

A departure is recorded by its time in milliseconds, ``weir/{changefeed}/left``, so that it marks the table once. What
takes the table's place records its Ts, ``weir/{changefeed}/placed``, whatever its number: a departure or a copy of
before, asked for late, finds it. It ends the records of spans that were written there, so that no writer of before
continues.
"""

import json
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable

from agent.errors import RESYNC, SinkFencedError, TableHeldError
from agent.rows.schema_change import SchemaChange
from agent.sinks.delta.table import commit
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.place import OWNER, TableOwner, TablePlace
from reactor.ids import TableSpan, Ts

_DROPPED, _LEFT = "dropped", "left"


def description(table: DeltaTable, ts: Ts) -> str:
    """Return the table's description with the mark that it was dropped at ``ts``."""
    return _with(table, _DROPPED, int(ts))


def dropped_ts(table: DeltaTable) -> Ts | None:
    """Return when the table was dropped at its source; None if it was not."""
    ts = _marks(table).get(_DROPPED)
    return None if ts is None else Ts(ts)


def gone_ts(table: DeltaTable) -> Ts | None:
    """Return when the table was dropped, or left its changefeed: another one may take its place."""
    left = _marks(table).get(_LEFT)
    return dropped_ts(table) if left is None else Ts(left["ts"])


def placed_record_id(changefeed: str) -> str:
    """Return the name of the record of when something took the place of the table that was there."""
    return f"{delta_table.record_prefix(changefeed)}placed"


def refuse_before(table: DeltaTable, ts: Ts, *, name: str) -> None:
    """:raises SinkFencedError: a copy of ``ts`` is of before the table was dropped, or left."""
    gone = gone_ts(table)
    if gone is not None and gone > ts:
        raise SinkFencedError(f"{name} was dropped, or left its changefeed, at {gone}: a copy of it at {ts} is stale")


def placed_ts(table: DeltaTable, changefeed: str) -> Ts:
    """Return when the table came here; 0 if it does not say."""
    return Ts(table.transaction_version(placed_record_id(changefeed)) or 0)


def refuse_made_before(table: DeltaTable, change: SchemaChange) -> None:
    """:raises TableHeldError: the table has left later than ``change`` made another one, which never came here."""
    left = _marks(table).get(_LEFT)
    if left is not None and left["ts"] > change.ts and dropped_ts(table) is None:
        raise TableHeldError(
            f"table {change.name} was made when another one of its name had not left the changefeed yet; {RESYNC}"
        )


def mark_left(place: TablePlace, owner: TableOwner, table_id: int, ts: Ts, time: float) -> None:
    """See ``agent.ports.sink.MarksLeft``."""
    departure, placed = f"{delta_table.record_prefix(owner.changefeed)}left", placed_record_id(owner.changefeed)
    said = {"ts": int(ts), "time": datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")}
    number = round(time * 1000)

    def attempt(table: DeltaTable) -> None:
        owner.refuse_foreign(table, place)
        is_there = delta_table.committed_ts(table, owner.changefeed, TableSpan(table_id)) is not None
        last = max(table.transaction_version(placed) or 0, _marks(table).get(_LEFT, said)["ts"])
        is_late = last > ts or table.transaction_version(departure) == number
        if is_there and not is_late and dropped_ts(table) is None:
            properties = delta_table.commit_properties(table, {departure: number})
            table.alter.set_table_description(_with(table, _LEFT, said), commit_properties=properties)

    if place.open() is not None:
        commit.with_retries(place, attempt)


def taken_over(table: DeltaTable, owner: TableOwner) -> str:
    """Return the description of a table without these marks. A dropped table has nothing in common with what takes its
    place."""
    found = json.loads(table.metadata().description)
    if _DROPPED in found[OWNER]:
        return owner.description()
    del found[OWNER][_LEFT]
    return json.dumps(found)


def _marks(table: DeltaTable) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(table.metadata().description)[OWNER]
    return found


def _with(table: DeltaTable, mark: str, value: object) -> str:
    found = json.loads(table.metadata().description)
    found[OWNER][mark] = value
    return json.dumps(found)
