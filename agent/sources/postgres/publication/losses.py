"""Losses: finds what changes the stream may lack, from two readings of the catalog. Pure.

Between two readings a table's changes were all sent if the rows that publish it are the same in both, and say the same.
What else has become of the publication meanwhile (another table that came or went) does not matter to it.
"""

from collections.abc import Callable, Collection, Mapping

from agent.errors import NEW_POSITION, RESYNC, PositionLostError
from agent.sources.postgres.publication.proof import UNKNOWN_TS, Proof
from agent.sources.postgres.publication.published import PUBLICATION, Catalog
from agent.sources.postgres.publication.sightings import PartitionSighting
from agent.sources.postgres.server import xids
from agent.sources.postgres.server.lsn import format_lsn
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

#: the cure of a table that has lost changes
CURE = f"{RESYNC}, or leave it out by a filter rule"


def lost(
    before: Proof,
    now: Catalog,
    known: Mapping[int, TableRecord],
    *,
    absorbed: Collection[int] = (),
    is_ours: bool = False,
) -> dict[int, str]:
    """Why, by table; tables that are gone or ``absorbed``, or are lost already, are none of them. ``is_ours``: Weir has
    made the publications, one of them for the inserts of tables without a replica identity."""
    found = {}
    for table_id in known.keys() & now.tables.keys() - before.held - set(absorbed):
        record = known[table_id]
        reason = _reason(before, now, record)
        if not reason and is_ours and now.sends_inserts_only(table_id):
            reason = "has a replica identity now, and only its inserts are sent: updates and deletes may be missing"
        if reason:
            found[table_id] = f"table {record.schema_name}.{record.name} {reason}; {CURE}"
    return found


def absorbed(now: Catalog, known: Collection[int], wants: Callable[[str, str], bool]) -> set[int]:
    """Return the tables that have become partitions of one that ``wants`` selects: their rows are sent as rows of that
    one, which is judged by the partitions that it gets."""
    found = set()
    for table_id in known:
        if table_id in now.tables and not now.ways(table_id):
            above = [now.tables[one] for one in now.lineage(table_id)[1:] if now.ways(one)]
            if any(wants(relation.schema_name, relation.name) for relation in above):
                found.add(table_id)
    return found


def refuse_other_publications(before: Proof, now: Catalog, names: Collection[str], *, behind: Ts) -> None:
    """:raises PositionLostError: a publication was dropped or altered, and none that has tables is unchanged: every
    table may have a gap."""
    unchanged = [one for one in now.publications.values() if _is_old(before, now, (one.row,))]
    is_gone = any(row.startswith(PUBLICATION) and row not in now.xids for row in before.since)
    if (is_gone or len(unchanged) < len(names)) and not any(one.has_tables for one in unchanged):
        raise PositionLostError(
            f"publication {' and '.join(names)} was dropped or altered behind {format_lsn(behind)}, so changes may be "
            f"in no stream; {NEW_POSITION}"
        )


def refuse_other_history(before: Proof, digest: str, branches: Mapping[int, Ts]) -> None:
    """Check a proof that may be of another server, in whose place this one was promoted. ``digest``: of this one's
    catalog; ``branches``: see ``server.identity.Timelines``.

    A reading from behind there may have seen what this server never had, and transactions whose numbers it gives to
    others. It counts only if this server has all that it saw.

    :raises PositionLostError: it has not.
    """
    branch_ts = branches.get(before.timeline)
    if branch_ts is not None and before.read_ts >= branch_ts and before.digest != digest:
        raise PositionLostError(
            "a standby was promoted, and has another catalog than its primary had when that was read last, at "
            f"{_shown(before.read_ts)}; they have the same log up to {format_lsn(branch_ts)} only, so changes may be "
            f"in no stream; {NEW_POSITION}"
        )


def _shown(read_ts: int) -> str:
    return "an unknown position" if read_ts == UNKNOWN_TS else format_lsn(Ts(read_ts))


def first(now: Catalog, digest: str, known: Collection[int]) -> Proof:
    """Return the first proof, without an earlier one."""
    return following(Proof(horizon=now.horizon), now, digest, known=known)


def following(
    before: Proof,
    now: Catalog,
    digest: str,
    *,
    known: Collection[int],
    held: Collection[int] = (),
    clean: Collection[int] = (),
    unseen: Collection[PartitionSighting] = (),
) -> Proof:
    """The proof that this reading makes. ``known``: the tables that are replicated from here on."""
    return Proof(
        digest=digest,
        horizon=now.horizon,
        recent={row: xid for row, xid in now.xids.items() if xid >= now.horizon},
        since={row: _since(before, now, row) for row in _opening(now, known)},
        terms={table: terms for table in now.tables if (terms := now.terms(table))},
        leaves={table: now.leaves(table) for table in roots(now)},
        files={table: now.tables[table].file for table in known if table in now.tables},
        columns={table: dict(now.tables[table].columns) for table in known if table in now.tables},
        held=frozenset(held),
        clean=frozenset(clean),
        unseen=tuple(unseen),
        read_ts=now.end_ts,
    )


def is_whole(before: Proof, now: Catalog, table_id: int, created_by: int) -> bool:
    """A new table was published from its very first row on: each row that publishes it came with the table, or was seen
    before the table's transaction had begun. ``created_by``: that transaction."""
    return any(all(_precedes(before, now, row, created_by) for row in way) for way in now.ways(table_id))


def _precedes(before: Proof, now: Catalog, row: str, created_by: int) -> bool:
    xid = now.xids[row]
    return xid == created_by or (before.has_seen(row, xid) and before.since.get(row, xids.NEVER) <= created_by)


def _reason(before: Proof, now: Catalog, record: TableRecord) -> str:
    table_id = record.table_id
    relation = now.tables[table_id]
    ways = now.ways(table_id)
    if not relation.is_logged:
        return "was set UNLOGGED, so its changes are in no log any more"
    if not ways:
        return "is not published any more, so its changes are not sent"
    if not any(_is_old(before, now, way) for way in ways):
        return "was taken out of its publication for a time, or the publication was altered: changes may be missing"
    if before.terms.get(table_id, "") != now.terms(table_id):
        return "has another row filter or column list in its publication now"
    if relation.sends_whole_rows and record.key and not _has_key(before, now, record):
        return f"has had no key ({', '.join(record.key)}) for a time, by which its rows are distinguished"
    return ""


def _has_key(before: Proof, now: Catalog, record: TableRecord) -> bool:
    keys = now.tables[record.table_id].keys
    return any(columns == set(record.key) and _is_old(before, now, rows) for columns, rows in keys)


def _is_old(before: Proof, now: Catalog, rows: Collection[str]) -> bool:
    return all(before.has_seen(row, now.xids[row]) for row in rows)


def _opening(now: Catalog, known: Collection[int]) -> list[str]:
    """The rows that may publish tables which are yet to come."""
    named = frozenset(known)
    found = [publication.row for publication in now.publications.values()]
    found += [f"i{table}" for table in now.parents if now.is_partitioned(table)]
    for publication in now.publications.values():
        found += publication.schemas.values()
        members = publication.members.items()
        found += [row for table, row in members if table not in named or now.is_partitioned(table)]
    return found


def _since(before: Proof, now: Catalog, row: str) -> int:
    if before.has_seen(row, now.xids[row]) and row in before.since:
        return before.since[row]
    return now.ahead


def roots(now: Catalog) -> list[int]:
    """Return the partitioned tables that are sent as one."""
    return [table for table in now.tables if now.is_partitioned(table) and now.ways(table)]
