"""What is looked at before a changefeed is created, so that it does not fail an hour later: the server and its tables.

Nothing is changed at the source. The first thing that does not fit is raised, in the order in which a person would mend
it: connection, server settings, privilege, room for one more slot, then the tables.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from agent.errors import SourceAuthError, SourceConfigError, TableIneligibleError
from agent.filter.tables import TableFilter
from agent.ports.source import SourceReport
from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.server.identity import read_identity
from agent.sources.postgres.server.sql import identifier, literal, qualified
from reactor.records.changefeed import SinkMode, TableRecord

_VERSION_MIN = 14
#: ordinary and partitioned tables (these appear as one table); no partitions, nothing without WAL
_TABLES_SQL = """
SELECT c.oid::int8, n.nspname, c.relname, c.relreplident, greatest(c.reltuples, 0)::int8
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
   AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
 ORDER BY n.nspname, c.relname
"""
#: columns of every index that can be a key, best first: the replica identity, the primary key, then by name
_KEYS_SQL = """
SELECT i.indrelid::int8, i.indexrelid::int8, i.indisprimary, i.indisreplident, a.attname
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
 CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid IN ({ids}) AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
   AND k.place <= i.indnkeyatts
   AND NOT EXISTS (SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY e(attnum, place)
                     LEFT JOIN pg_catalog.pg_attribute b ON b.attrelid = i.indrelid AND b.attnum = e.attnum
                    WHERE e.place <= i.indnkeyatts AND b.attnotnull IS NOT TRUE)
 ORDER BY i.indrelid, i.indisreplident DESC, i.indisprimary DESC, x.relname, k.place
"""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table as the catalog shows it. ``identity`` is PostgreSQL's letter: d, n, f, i."""

    record: TableRecord
    identity: str
    has_primary_key: bool = False

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
) -> SourceReport:
    """Look at everything; ``new_slot`` and ``new_publication`` are still to be made: empty where that has happened.

    :raises SourceUnreachableError: nobody answers.
    :raises SourceAuthError: user, password or privilege refused.
    :raises SourceConfigError: the server is not set up for capture, or no table matches the rules.
    :raises TableIneligibleError: a table without a usable key, and ``force_replicate`` is off.
    """
    wanted = TableFilter(rules)
    with connect(source, replication=True) as connection:
        identity = read_identity(connection).identity
        _check_server(connection)
        if new_slot:
            _check_room(connection, new_slot)
        tables = _find_tables(connection, wanted)
        if not force_replicate:
            _check_keys(tables, sink_mode)
        _check_rights(connection, [table.record for table in tables], new_publication)
        return SourceReport(identity, tuple(table.record for table in tables))


def _check_server(connection: Connection) -> None:
    target = connection.target
    if connection.server_version < _VERSION_MIN:
        raise SourceConfigError(
            f"{target} runs PostgreSQL {connection.server_version}; Weir needs {_VERSION_MIN} or newer: upgrade it"
        )
    if (level := _setting(connection, "wal_level")) != "logical":
        raise SourceConfigError(f"{target} has wal_level = {level}; set wal_level = logical and restart PostgreSQL")
    if connection.query("SELECT pg_is_in_recovery()")[0][0] == "t":
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
    ids = ", ".join(str(table.table_id) for table in tables)
    rows = connection.query(
        "SELECT n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), "
        "pg_has_role(c.relowner, 'USAGE') FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
        f"ON n.oid = c.relnamespace WHERE c.oid IN ({ids}) ORDER BY n.nspname, c.relname"
    )
    for schema, name, may_read, owns in rows:
        table = qualified(str(schema), str(name))
        if may_read != "t":
            raise SourceAuthError(
                f"role {user} may not read {table} on {target}; run: GRANT USAGE ON SCHEMA {identifier(str(schema))} "
                f"TO {identifier(user)}; GRANT SELECT ON {table} TO {identifier(user)}"
            )
        if new_publication and owns != "t":
            raise SourceAuthError(
                f"role {user} does not own {table}, so it cannot publish it; let its owner run CREATE PUBLICATION "
                f'{new_publication} FOR TABLE {table}, and set publication = "{new_publication}" in --config'
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


def _find_tables(connection: Connection, wanted: TableFilter) -> list[_Table]:
    rows = connection.query(_TABLES_SQL)
    matching = [row for row in rows if wanted.wants(str(row[1]), str(row[2]))]
    if not matching:
        raise SourceConfigError(
            f"no table of {connection.target} matches the filter rules (of {len(rows)}); write them as schema.table, "
            'for example "public.*"'
        )
    keys = _read_keys(connection, [str(row[0]) for row in matching])
    return [_table(row, keys.get(int(row[0] or 0), [])) for row in matching]


@dataclass(frozen=True, slots=True)
class _Key:
    columns: tuple[str, ...]
    is_primary: bool
    is_identity: bool


def _read_keys(connection: Connection, table_ids: Sequence[str]) -> dict[int, list[_Key]]:
    rows = connection.query(_KEYS_SQL.format(ids=", ".join(table_ids)))
    keys: dict[int, list[_Key]] = {}
    for (table, _, is_primary, is_identity), columns in groupby(rows, key=lambda row: row[:4]):
        key = _Key(tuple(str(row[4]) for row in columns), is_primary == "t", is_identity == "t")
        keys.setdefault(int(table or 0), []).append(key)
    return keys


def key_of(connection: Connection, table_id: int) -> tuple[str, ...]:
    """What updates and deletes of a table carry; empty where they carry nothing to upsert by, or the table is gone."""
    rows = connection.query(f"SELECT relreplident FROM pg_catalog.pg_class WHERE oid = {int(table_id)}")
    keys = _read_keys(connection, [str(int(table_id))]).get(table_id, [])
    return _key_columns(str(rows[0][0]), keys) if rows else ()


def _table(row: Sequence[str | None], keys: Sequence[_Key]) -> _Table:
    table_id, schema, name, identity, rows = row
    record = TableRecord(
        table_id=int(table_id or 0),
        schema_name=str(schema),
        name=str(name),
        key=_key_columns(str(identity), keys),
        rows_estimated=int(rows or 0),
    )
    return _Table(record, str(identity), any(key.is_primary for key in keys))


def _key_columns(identity: str, keys: Sequence[_Key]) -> tuple[str, ...]:
    """The key that updates and deletes will carry; with a full identity every key is carried."""
    match identity:
        case "i":
            usable = [key for key in keys if key.is_identity]
        case "d":
            usable = [key for key in keys if key.is_primary]
        case "f":
            usable = list(keys)
        case _:
            usable = []
    return usable[0].columns if usable else ()


def _check_keys(tables: Sequence[_Table], sink_mode: SinkMode) -> None:
    for table in tables:
        name = f"{table.record.schema_name}.{table.record.name}"
        if not table.sends_keys:
            raise TableIneligibleError(
                f"table {name} has no primary key{_identity_words(table)}: its updates and deletes cannot be captured; "
                f"add one, or ALTER TABLE {name} REPLICA IDENTITY FULL, leave it out by a filter rule !{name}, "
                "or set force_replicate = true to take its inserts only"
            )
        if sink_mode is SinkMode.UPSERT and not table.record.key:
            raise TableIneligibleError(
                f"table {name} has no primary key or unique NOT NULL key to upsert by; add one, use sink mode "
                f"changelog, leave it out by a filter rule !{name}, or set force_replicate = true to append only"
            )


def _identity_words(table: _Table) -> str:
    return " as replica identity (it is set to NOTHING)" if table.identity == "n" else " or replica identity"
