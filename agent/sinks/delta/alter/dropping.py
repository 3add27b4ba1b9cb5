"""Dropped tables: the mark of a table that is gone at its source, in the table's description."""

import json

from deltalake import DeltaTable

from agent.sinks.delta.table.place import OWNER
from reactor.ids import Ts

_DROPPED = "dropped"


def description(table: DeltaTable, ts: Ts) -> str:
    """Return the table's description with the mark that it was dropped at ``ts``."""
    found = json.loads(table.metadata().description)
    found[OWNER][_DROPPED] = int(ts)
    return json.dumps(found)


def dropped_ts(table: DeltaTable) -> Ts | None:
    """Return when the table was dropped at its source; None if it was not."""
    ts = json.loads(table.metadata().description)[OWNER].get(_DROPPED)
    return None if ts is None else Ts(ts)
