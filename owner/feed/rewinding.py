"""Rewind: validates a position that a changefeed is set back to, and returns all records that go back with it.

The sink's own records decide what is written, so a rewind has an effect only where they are lower than they were: the
sink was set back (a restored backup). Held tables go back with all others, as far as the table's last copy: the log has
what came after it. Sync points behind the new position are removed, because a sink that was set back may give their
versions to other rows.
"""

from dataclasses import dataclass

from owner.errors import JobRefusedError
from owner.feed.amendment import cure
from owner.progress.facts import Facts
from owner.tables import repartition
from owner.tables.sink_names import names_of
from reactor import keys, patches
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedStatus, FeedState
from reactor.records.tables.held import HeldTable

#: ``finished`` does not run either, but a finished changefeed can only be inspected, or continue in another mode
_REWINDABLE = (FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED)


@dataclass(frozen=True, slots=True)
class SetBack:
    """Records that change with the position: ``held`` tables that are past it, by id; ``removals`` of the sync points
    behind it."""

    status: ChangefeedStatus
    held: dict[int, HeldTable]
    removals: tuple[patches.Patch, ...]


def set_back(facts: Facts, ts: Ts, *, cluster: str) -> SetBack:
    """Return the changefeed's records if it continues from ``ts``, which is in the past or within what has been read.

    :raises JobRefusedError: the log does not cover the range from there, or a schema change would be replayed.
    """
    repartition.refuse_while_repartitioning(facts)
    _refuse_replay(facts, ts)
    info, status, head = facts.info, facts.status, facts.head
    known = max(status.checkpoint_ts, head.resolved_ts if head else Ts(0))
    if ts > known:
        raise JobRefusedError(
            f"changefeed {info.id} has read up to {known}: starting at {ts} would lose changes; give a smaller Ts"
        )
    first = max(head.removed_ts if head else Ts(0), facts.record.start_ts if facts.record else info.start_ts)
    if ts < first:
        raise JobRefusedError(
            f"the log of changefeed {info.id} reaches back to {first} only, not to {ts}: give a larger Ts, "
            "or copy all tables again (changefeed resume --resync)"
        )
    back = ((id, held, _position(facts, id, ts)) for id, held in facts.held_with_log.items())
    place = (cluster, info.namespace, info.id)
    return SetBack(
        status.with_(checkpoint_ts=ts, checkpoint_time=0.0, min_table_barrier_ts=ts),
        {id: held.with_(ts=at) for id, held, at in back if at < held.ts},
        tuple(patches.delete(keys.SyncPointKey(*place, point.ts)) for point in facts.sync_points if point.ts > ts),
    )


def refuse_rewind(facts: Facts, ts: Ts) -> None:
    """:raises JobRefusedError: it is not stopped, has no checkpoint to rewind, or is not past ``ts``."""
    info, status = facts.info, facts.status
    if info.state not in _REWINDABLE:
        raise JobRefusedError(f"changefeed {info.id} is {info.state}: rewind is not possible{cure(info.state)}")
    if facts.tables is None:
        raise JobRefusedError(f"changefeed {info.id} has not replicated anything yet: there is nothing to go back to")
    if ts >= status.checkpoint_ts:
        raise JobRefusedError(f"changefeed {info.id} is at {status.checkpoint_ts}: {ts} is not before that; resume it")


def _position(facts: Facts, table_id: int, ts: Ts) -> Ts:
    table = facts.by_id.get(table_id)
    return max(ts, table.start_ts) if table is not None else ts


def _refuse_replay(facts: Facts, ts: Ts) -> None:
    """:raises JobRefusedError: continuing from ``ts`` would replay a schema change that the sink has applied."""
    past = [at for at, record in sorted(facts.ddl.items()) if record.done and at > ts]
    if past:
        raise JobRefusedError(
            f"the schema of {names_of(facts, facts.ddl[past[-1]])} was changed at {past[-1]}, behind {ts}: what was "
            f"written under the old one does not fit the sink any more; continue at {past[-1]} or later, "
            "or copy all tables again (changefeed resume --resync)"
        )
