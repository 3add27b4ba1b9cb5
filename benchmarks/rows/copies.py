"""copies: every one of many small tables is copied again (``resume --resync``), while readers see them as they were.

The peer is the changefeed's first snapshot of the same tables, in the same run.
"""

import time
from typing import Any

from benchmarks.support.bed import bed
from reactor.records.changefeed import FeedState, SinkMode
from reactor.views import ChangefeedView

TABLES = 500
_ROWS = 10
_STATEMENTS = 100
_FEED = "copies"


def run(tables: int = TABLES) -> dict[str, Any]:
    with bed() as found:
        creations = [
            f"CREATE TABLE t{number} (id int PRIMARY KEY, v text); "
            f"INSERT INTO t{number} SELECT i, 'row ' || i FROM generate_series(1, {_ROWS}) AS i"
            for number in range(tables)
        ]
        for first in range(0, tables, _STATEMENTS):
            found.execute("; ".join(creations[first : first + _STATEMENTS]))
        started = time.monotonic()
        found.create(_FEED, sink_mode=SinkMode.UPSERT)
        found.wait_sync(_FEED)
        snapshot_s = time.monotonic() - started
        found.client.pause(_FEED)
        started = time.monotonic()
        found.client.resume(_FEED, resync=True)
        found.wait(_FEED, _flows)
        copies_s = time.monotonic() - started
        differing = [one.table for one in found.client.diff(_FEED) if not one.equal]
    return {
        "what": f"{tables:,} tables of {_ROWS} rows are copied again; peer: their first snapshot",
        "tables_per_second": round(tables / copies_s, 1),
        "copies_s": round(copies_s, 1),
        "snapshot_s": round(snapshot_s, 1),
        "differing_tables": differing,
        "ratio": copies_s / snapshot_s,
    }


def _flows(view: ChangefeedView) -> bool:
    return view.state is FeedState.NORMAL and not (view.resyncs or view.held or view.lost_tables)
