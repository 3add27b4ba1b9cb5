"""Preflight of PostgreSQL: checks server and tables before a changefeed is created, so that none fails later.

Nothing is changed at the source. The first thing that does not fit is raised, in the order in which a person would mend
it: connection, server settings, privilege, room for one more slot, then the tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import structlog

from agent.errors import SourceAuthError, SourceConfigError, TableIneligibleError
from agent.filter.tables import TableFilter
from agent.ports.source import SourceReport
from agent.sources.postgres.publication import choosing, published
from agent.sources.postgres.publication.published import Catalog, one_moment
from agent.sources.postgres.server.connection import Connection, Row, connect
from agent.sources.postgres.server.identity import read_identity
from agent.sources.postgres.server.keys import Key, key_columns, read_keys
from agent.sources.postgres.server.sql import identifier, is_text, literal, qualified
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord

_log = structlog.get_logger()

_VERSION_MIN = 14
#: tables that an error names beside the first one
_NAMED_MAX = 20
#: ordinary and partitioned tables, and partitions; nothing without WAL
_TABLES_SQL = """
SELECT c.oid::int8, n.nspname, c.relname, c.relreplident,
       -- rows per block times the present size: statistics may be of before a load; 50 as for chunks without any
       (CASE WHEN c.relpages > 0 THEN greatest(c.reltuples, 0)::float8 / c.relpages ELSE 50 END
         * pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::float8)::int8,
       EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
       CASE WHEN pg_catalog.getdatabaseencoding() = 'SQL_ASCII' THEN
         (SELECT string_agg(attname, ' ') FROM pg_catalog.pg_attribute
           WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) END
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
 ORDER BY n.nspname, c.relname
"""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table as the catalog shows it. ``identity`` is PostgreSQL's letter: d, n, f, i."""

    record: TableRecord
    identity: str
    has_primary_key: bool = False
    #: a partition that has no identity, though the table may have one
    leaf: str = ""
    #: a partition whose identity lacks columns of the table's key
    other: str = ""
    has_columns: bool = True

    @property
    def name(self) -> str:
        return f"{self.record.schema_name}.{self.record.name}"

    @property
    def sends_keys(self) -> bool:
        """Updates and deletes say which row they mean (otherwise PostgreSQL refuses to publish them)."""
        return self.identity in ("f", "i") or (self.identity == "d" and self.has_primary_key)


def check_source(
    source: str,
    rules: Iterable[str],
    *,
    force_replicate: bool,
    sink_mode: SinkMode,
    new_slot: str = "",
    new_publication: str = "",
    publication: str = "",
    accepts_unfit: bool = False,
) -> SourceReport:
    """Run all checks; ``new_slot`` and ``new_publication`` will be created: empty if they exist already.
    ``publication``: one of the user's. ``accepts_unfit``: only report tables that cannot be replicated as they are.

    :raises SourceUnreachableError: there is no answer.
    :raises SourceAuthError: user, password or privilege refused.
    :raises SourceConfigError: the server is not set up for capture, or the publication is not.
    :raises TableIneligibleError: a table without a usable key, and ``force_replicate`` is off; or one without columns.
    """
    wanted = TableFilter(rules)
    with connect(source, replication=True) as connection:
        identity = read_identity(connection).identity
        if not new_slot:
            connection.refuse_standby()  # a changefeed that exists waits for the primary
        _check_server(connection)
        if new_slot:
            _check_room(connection, new_slot)
        tables = _find_tables(connection, wanted, publication, is_free=force_replicate)
        unfit: dict[int, str] = {}
        if not accepts_unfit:
            _check_tables(tables, sink_mode, force_replicate=force_replicate)
        else:
            unfit = _unfit(tables, sink_mode, force_replicate=force_replicate)
        _check_rights(connection, [table.record for table in tables], new_publication)
        return SourceReport(identity, tuple(table.record for table in tables), unfit)


def _check_server(connection: Connection) -> None:
    target = connection.target
    if connection.server_version < _VERSION_MIN:
        raise SourceConfigError(
            f"{target} runs PostgreSQL {connection.server_version}; Weir needs {_VERSION_MIN} or newer: upgrade it"
        )
    if (level := _setting(connection, "wal_level")) != "logical":
        raise SourceConfigError(f"{target} has wal_level = {level}; set wal_level = logical and restart PostgreSQL")
    if connection.is_standby():
        raise SourceConfigError(f"{target} is a standby, which cannot hold a publication; name the primary instead")


def _check_room(connection: Connection, slot: str) -> None:
    target = connection.target
    names = [row[0] for row in connection.query("SELECT slot_name FROM pg_catalog.pg_replication_slots")]
    if slot in names:
        raise SourceConfigError(
            f"replication slot {slot} exists already on {target}; drop it, or choose another changefeed id or slot name"
        )
    if len(names) >= int(_setting(connection, "max_replication_slots")):
        raise SourceConfigError(f"{target} has no free replication slot; raise max_replication_slots or drop one")


def _check_rights(connection: Connection, tables: Sequence[TableRecord], new_publication: str) -> None:
    """Reading is needed for the snapshot; publishing a table is its owner's alone."""
    user, target = connection.target.user, connection.target
    ids = ", ".join(str(table.table_id) for table in tables) or "0"
    rows = connection.query(
        "SELECT n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), "
        "pg_has_role(c.relowner, 'USAGE') FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
        f"ON n.oid = c.relnamespace WHERE c.oid IN ({ids}) ORDER BY n.nspname, c.relname"
    )
    for schema, name, may_read, owns in rows:
        table = qualified(str(schema), str(name))
        if may_read is None:  # it is gone
            continue
        if may_read != "t":
            raise SourceAuthError(
                f"role {user} may not read {table} on {target}; run: GRANT USAGE ON SCHEMA {identifier(str(schema))} "
                f"TO {identifier(user)}; GRANT SELECT ON {table} TO {identifier(user)}"
            )
        if new_publication and owns != "t":
            raise SourceAuthError(
                f"role {user} does not own {table}, so it cannot publish it; let its owner run CREATE PUBLICATION "
                f'{new_publication} FOR TABLE {table}, and set publication = "{new_publication}" below [source] in '
                "--config"
            )
    if new_publication:
        [[may_create]] = connection.query("SELECT has_database_privilege(current_database(), 'CREATE')")
        if may_create != "t":
            raise SourceAuthError(
                f"role {user} may not create a publication on {target}; run: GRANT CREATE ON DATABASE "
                f"{identifier(target.database)} TO {identifier(user)}"
            )


def _setting(connection: Connection, name: str) -> str:
    return str(connection.query(f"SELECT pg_catalog.current_setting({literal(name)})")[0][0])


def _find_tables(connection: Connection, wanted: TableFilter, publication: str, *, is_free: bool) -> list[_Table]:
    """May be none: they can come later."""
    with one_moment(connection):
        rows = {int(row[0] or 0): row for row in connection.query(_TABLES_SQL)}
        matching = {table for table, row in rows.items() if _matches(row, wanted)}
        catalog = published.read(connection, [publication] if publication else [], (), others=matching)
        tables = [table for table in rows if table in catalog.tables]  # those, and all that have or are partitions
        if publication:
            _check_publication(connection, catalog, publication, is_free=is_free)
            chosen = choosing.for_theirs(tables, catalog, publication, matching.__contains__)
        else:
            chosen = choosing.for_ours(tables, catalog.parents, matching.__contains__)
        roots = set(catalog.parents.values())
        leaves = {
            table: [leaf for leaf in catalog.leaves(table) if leaf in rows] for table in roots.intersection(chosen)
        }
        keys = read_keys(connection, [str(table) for table in {*chosen, *chain(*leaves.values())}])
    return [_table(rows[table], keys, [rows[leaf] for leaf in leaves.get(table, ())]) for table in chosen]


def _matches(row: Row, wanted: TableFilter) -> bool:
    if not wanted.wants(str(row[1]), str(row[2])):
        return False
    names = [name for name in (*row[1:3], row[6]) if name is not None]
    if not is_text(*names):
        _log.warning("a table is left out, whose names are not UTF-8; rename them", names=ascii(names))
        return False
    return True


def _check_publication(connection: Connection, catalog: Catalog, name: str, *, is_free: bool) -> None:
    """:raises SourceConfigError: it is not there, or does not send everything."""
    found = catalog.publications.get(name)
    if found is None:
        raise SourceConfigError(
            f"there is no publication {name} on {connection.target}; create it, or leave it out of the configuration"
        )
    if found.lacks and not is_free:
        raise SourceConfigError(
            f"publication {name} does not publish {', '.join(found.lacks)}, so such changes would be missing; run: "
            f"ALTER PUBLICATION {identifier(name)} SET (publish = 'insert, update, delete, truncate')"
        )


def _table(row: Row, all_keys: Mapping[int, Sequence[Key]], leaves: Sequence[Row]) -> _Table:
    """``leaves``: of a partitioned table, whose rows say which they are in their partition's way."""
    table_id, schema, name, identity, rows, has_columns, _ = row
    keys = all_keys.get(int(table_id or 0), [])
    record = TableRecord.new(
        int(table_id or 0),
        str(schema),
        str(name),
        key=key_columns(str(identity), keys),
        rows_estimated=max(int(rows or 0), sum(int(leaf[4] or 0) for leaf in leaves)),
    )
    found = _Table(record, str(identity), any(key.is_primary for key in keys), has_columns=has_columns == "t")
    for leaf in leaves:
        theirs = _table(leaf, all_keys, ())
        if not theirs.sends_keys:
            return replace(found, identity=theirs.identity, has_primary_key=False, leaf=theirs.record.name)
        if theirs.identity != "f" and not set(record.key) <= set(theirs.record.key):
            found = replace(found, other=theirs.name)
    return found


def _unfit(tables: Sequence[_Table], sink_mode: SinkMode, *, force_replicate: bool) -> dict[int, str]:
    found = {}
    for table in tables:
        try:
            _check_tables([table], sink_mode, force_replicate=force_replicate)
        except TableIneligibleError as error:
            found[table.record.table_id] = str(error)
    return found


def _check_tables(tables: Sequence[_Table], sink_mode: SinkMode, *, force_replicate: bool) -> None:
    if not force_replicate:
        _check_keys(tables, sink_mode)
    _check_partitions(tables)
    if sink_mode.is_keyed:
        _check_columns(tables)


def _check_keys(tables: Sequence[_Table], sink_mode: SinkMode) -> None:
    if unsent := [table for table in tables if not table.sends_keys]:
        name = unsent[0].name
        raise TableIneligibleError(
            f"table {name} has no primary key{_identity_words(unsent[0])}: its updates and deletes cannot be captured; "
            f"add one, or ALTER TABLE {name} REPLICA IDENTITY FULL, leave it out by a filter rule !{name}, "
            f"or set force-replicate = true to take its inserts only{_likewise(unsent[1:])}"
        )
    if sink_mode.is_keyed and (keyless := [table for table in tables if not table.record.key]):
        name = keyless[0].name
        raise TableIneligibleError(
            f"table {name} has no primary key or unique NOT NULL key to upsert by; add one, use sink mode changelog, "
            f"leave it out by a filter rule !{name}, or set force-replicate = true to append "
            f"only{_likewise(keyless[1:])}"
        )


def _likewise(others: Sequence[_Table]) -> str:
    """Name the tables with the same trouble, so that they can be cured at once."""
    if not others:
        return ""
    names = ", ".join(table.name for table in others[:_NAMED_MAX])
    more = f" and {len(others) - _NAMED_MAX} more" if len(others) > _NAMED_MAX else ""
    return f"; so it is with {names}{more}"


def _check_partitions(tables: Sequence[_Table]) -> None:
    for table in tables:
        if table.other:
            raise TableIneligibleError(
                f"the partition {table.other} of table {table.name} sends updates and deletes with its own key, which "
                f"lacks columns of the table's ({', '.join(table.record.key)}): ALTER TABLE {table.other} REPLICA "
                f"IDENTITY FULL, leave it out by a filter rule !{table.name}, or let a publication with "
                "publish_via_partition_root = false send each partition as a table"
            )


def _check_columns(tables: Sequence[_Table]) -> None:
    for table in tables:
        if not table.has_columns:
            name = table.name
            raise TableIneligibleError(
                f"table {name} has no columns, so there is nothing to write; leave it out by a filter rule !{name}, or "
                "use sink mode changelog"
            )


def _identity_words(table: _Table) -> str:
    if table.leaf:
        return f" or replica identity in its partition {table.leaf}"
    return " as replica identity (it is set to NOTHING)" if table.identity == "n" else " or replica identity"
