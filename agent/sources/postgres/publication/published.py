"""Published tables: the catalog's rows that make publications send each table, read at one moment.

Rows are named by a letter and their number: ``p`` a publication, ``r`` a table of one, ``n`` a schema of one, ``d`` a
table's place in its schema, ``i`` a partition's place in its parent, ``k`` an index, ``a`` a column of one, ``c`` any
column of a table that is replicated. No table is waited for for long (``one_moment``).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from agent.errors import SourceError
from agent.sources.postgres.publication.proof import ColumnFacts, RowKey
from agent.sources.postgres.server import xids
from agent.sources.postgres.server.connection import Connection, Row
from agent.sources.postgres.server.lsn import END_SQL, last_ts
from agent.sources.postgres.server.sql import literal, qualified
from agent.sources.postgres.server.terms import TERMS_VERSION
from reactor.ids import Ts

#: as others wait behind whoever waits for a lock
_LOCK_MS: Final = 500
#: locks are few at a server: if more tables were rewritten at once, the others are read as they are
_LOCKED_MAX: Final = 64
_MOVED_SQL: Final = (
    "SELECT c.oid::int8, n.nspname, c.relname FROM unnest({tables}, {files}) known(id, file) "
    "JOIN pg_catalog.pg_class c ON c.oid = known.id AND c.relfilenode::int8 <> known.file "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r'"
)
_KINDS: Final = ("insert", "update", "delete", "truncate")
_NOW_SQL: Final = f"SELECT pg_catalog.pg_current_snapshot()::text, {END_SQL}"
_PUBLICATIONS_SQL: Final = (
    "SELECT oid::int8, xmin::text, pubname, puballtables, pubviaroot, pubinsert, pubupdate, pubdelete, pubtruncate "
    "FROM pg_catalog.pg_publication "
    "WHERE pubname IN ({names})"
)
_MEMBERS_SQL: Final = (
    "SELECT oid::int8, xmin::text, prpubid::int8, prrelid::int8, {terms} "
    "FROM pg_catalog.pg_publication_rel WHERE prpubid IN ({publications})"
)
_NAMESPACES_SQL: Final = (
    "SELECT oid::int8, xmin::text, pnpubid::int8, pnnspid::int8 FROM pg_catalog.pg_publication_namespace "
    "WHERE pnpubid IN ({publications})"
)
_PARTITIONS_SQL: Final = (
    "SELECT i.inhrelid::int8, i.xmin::text, i.inhparent::int8 FROM pg_catalog.pg_inherits i "
    "JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition"
)
_TABLES_SQL: Final = (
    "SELECT c.oid::int8, n.nspname, c.relname, c.relnamespace::int8, c.relkind, c.relpersistence, c.relreplident, "
    "c.relfilenode::int8, c.xmin::text, d.xmin::text, c.relreplident IN ('f', 'i') OR c.relreplident = 'd' AND EXISTS "
    "(SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) FROM pg_catalog.pg_class c "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_catalog.pg_depend d ON d.classid = 1259 "
    "AND d.objid = c.oid AND d.objsubid = 0 AND d.refclassid = 2615 WHERE c.oid IN ({ids})"
)
#: what another type leaves as it is comes last
_COLUMNS_SQL: Final = (
    "SELECT attrelid::int8, attnum::int4, xmin::text, atttypid::int8, atttypmod, hashtext(ROW(attname, attnotnull, "
    "atthasdef, atthasmissing, attidentity, attgenerated, attstattarget, attoptions, attacl::text)::text || CASE WHEN "
    "attislocal AND attinhcount = 0 THEN '' ELSE ROW(attislocal, attinhcount)::text END), attname "
    "FROM pg_catalog.pg_attribute WHERE attrelid IN ({ids}) AND attnum > 0 AND NOT attisdropped ORDER BY 1, 2"
)
_KEYS_SQL: Final = (
    "SELECT i.indrelid::int8, i.indexrelid::int8, i.xmin::text, i.indisprimary, a.attnum::int4, a.xmin::text, "
    "a.attname, i.indnkeyatts FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid "
    "AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) AND a.attnotnull "
    "WHERE i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indrelid IN ({ids})"
)
#: first letter of the rows that are publications
PUBLICATION: Final = "p"


@dataclass(frozen=True, slots=True)
class Publication:
    row: RowKey
    #: kinds of changes that it does not send
    lacks: tuple[str, ...]
    is_all: bool
    via_root: bool
    #: table, or schema, → the row that has it in the publication
    members: Mapping[int, RowKey]
    schemas: Mapping[int, RowKey]
    #: row filter and columns of its tables that have such
    terms: Mapping[int, str]

    @property
    def has_tables(self) -> bool:
        return self.is_all or bool(self.members or self.schemas)


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is. ``written_by``: the transaction that wrote its row last: a new file or name, another number of
    columns, a place as a partition. ``keys``: of one that sends whole rows, the columns of each of its keys, and the
    rows that make it. ``has_identity``: its updates and deletes can be sent. ``columns``: by number, of one that is
    replicated: see ``ColumnFacts``; ``numbers``: by name."""

    table_id: int
    schema_name: str
    name: str
    schema_id: int
    is_partitioned: bool
    is_logged: bool
    sends_whole_rows: bool
    file: int
    written_by: int = xids.ANCIENT
    keys: tuple[tuple[frozenset[str], tuple[RowKey, ...]], ...] = ()
    columns: Mapping[int, ColumnFacts] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    has_identity: bool = False

    @property
    def qualified_name(self) -> str:
        return f"{self.schema_name}.{self.name}"


@dataclass(frozen=True, slots=True)
class Catalog:
    """``xids``: by which transaction each row was written. ``end_ts``: the last position of the server's log when the
    catalog was read. ``parents``: of each partition."""

    horizon: int
    ahead: int
    end_ts: Ts
    publications: Mapping[str, Publication]
    tables: Mapping[int, Relation]
    parents: Mapping[int, int]
    xids: Mapping[RowKey, int]
    running: frozenset[int] = frozenset()

    def shows(self, xid: int) -> bool:
        """Return whether the transaction's effects are visible; a commit is sent slightly before."""
        return xid < self.ahead and xid not in self.running

    def ways(self, table_id: int) -> list[tuple[RowKey, ...]]:
        """Return each way in which the table's changes are sent under its name, as the rows that make it up."""
        found: list[tuple[RowKey, ...]] = []
        for publication in self.publications.values():
            found += self._ways(publication, table_id)
        return found

    def sends_inserts_only(self, table_id: int) -> bool:
        """Return whether no publication sends its updates, though it has a replica identity. A partitioned table must
        have one itself: partitions that it gets have no other."""
        parts = (table_id, *self.leaves(table_id)) if self.is_partitioned(table_id) else (table_id,)
        sending = [one for one in self.publications.values() if any(self._ways(one, table_id))]
        has_identity = all(part in self.tables and self.tables[part].has_identity for part in parts)
        return bool(sending) and has_identity and all("update" in one.lacks for one in sending)

    def terms(self, table_id: int) -> str:
        """Row filter and columns, of every publication that sends only a part of the table."""
        parts = []
        for name, publication in sorted(self.publications.items()):
            relation = self.tables.get(table_id)
            is_whole = publication.is_all or (relation is not None and relation.schema_id in publication.schemas)
            if not is_whole and table_id in publication.terms:
                parts.append(f"{name}: {publication.terms[table_id]}")
        return "; ".join(parts)

    def is_partitioned(self, table_id: int) -> bool:
        return table_id in self.tables and self.tables[table_id].is_partitioned

    def lineage(self, table_id: int) -> list[int]:
        """The table, then what it is a partition of, up to the root."""
        found = [table_id]
        while found[-1] in self.parents:
            found.append(self.parents[found[-1]])
        return found

    def leaves(self, table_id: int) -> dict[int, int]:
        """The partitions that hold a partitioned table's rows, and their files."""
        children: dict[int, list[int]] = defaultdict(list)
        for child, parent in self.parents.items():
            children[parent].append(child)
        found, waiting = {}, list(children[table_id])
        while waiting:
            child = waiting.pop()
            relation = self.tables.get(child)
            if relation is not None and not relation.is_partitioned:
                found[child] = relation.file
            waiting += children[child]
        return found

    def holders(self, relation: Relation) -> list[Relation]:
        """The tables that have the relation's rows: its partitions, or itself."""
        return [self.tables[leaf] for leaf in self.leaves(relation.table_id)] if relation.is_partitioned else [relation]

    def is_empty_tree(self, table_id: int) -> bool:
        """Return whether it is a partitioned table without a partition that could hold rows."""
        return self.is_partitioned(table_id) and not self.leaves(table_id)

    def is_published(self, table_id: int) -> bool:
        """Return whether a publication has the table, or one that it is a partition of, whatever it sends."""
        above = self.lineage(table_id)
        return any(self._own(publication, one) for publication in self.publications.values() for one in above)

    def _ways(self, publication: Publication, table_id: int) -> Iterator[tuple[RowKey, ...]]:
        relation = self.tables.get(table_id)
        if relation is None or not relation.is_logged or (relation.is_partitioned and not publication.via_root):
            return
        lineage = self.lineage(table_id)
        if publication.via_root and any(self._own(publication, above) for above in lineage[1:]):
            return  # what is sent of it is sent under that name
        path: tuple[RowKey, ...] = ()
        for at, above in enumerate(lineage):
            if at == 0 or not publication.via_root:
                for rows in self._own(publication, above):
                    yield (publication.row, *rows, *path)
            path = (*path, f"i{above}")

    def _own(self, publication: Publication, table_id: int) -> list[tuple[RowKey, ...]]:
        """The ways in which the publication has the table itself."""
        relation = self.tables.get(table_id)
        found: list[tuple[RowKey, ...]] = []
        if publication.is_all and (table_id not in self.parents or not publication.via_root):
            found.append(())
        if table_id in publication.members:
            found.append((publication.members[table_id],))
        if relation is not None and relation.schema_id in publication.schemas:
            found.append((publication.schemas[relation.schema_id], f"d{table_id}"))
        return found


@contextmanager
def one_moment(connection: Connection, files: Mapping[int, int] = MappingProxyType({})) -> Iterator[None]:
    """All queries in this context see the catalog as of the first one. ``files``: the known ones of tables. A table
    that has another one keeps it meanwhile, so that the rows that are read are in the file that the catalog shows."""
    moved: dict[int, str] = {}
    # the locks precede the first query, which makes the snapshot; if that shows another such table, all begins again
    for is_last in (False, False, True):
        connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            _lock(connection, moved)
            now = _moved(connection, files)
            if is_last or now.keys() <= moved.keys():
                yield
                return
            moved |= now
        finally:
            connection.query("ROLLBACK")


def _moved(connection: Connection, files: Mapping[int, int]) -> dict[int, str]:
    """Return the names of tables that have other files than these."""
    if not files:
        return {}
    rows = connection.query(_MOVED_SQL.format(tables=_array(files.keys()), files=_array(files.values())))
    return {int(table or 0): qualified(str(schema), str(name)) for table, schema, name in rows}


def _lock(connection: Connection, tables: Mapping[int, str]) -> None:
    """Keep others from replacing the files of these tables. One that is altered just now stays as it is."""
    for name in list(tables.values())[:_LOCKED_MAX]:
        connection.query(f"SAVEPOINT weir; SET LOCAL lock_timeout = {_LOCK_MS}")
        try:
            connection.query(f"LOCK TABLE ONLY {name} IN ACCESS SHARE MODE; RELEASE SAVEPOINT weir")
        except SourceError:
            connection.query("ROLLBACK TO SAVEPOINT weir")


def _array(numbers: Iterable[int]) -> str:
    return "'{" + ",".join(str(int(number)) for number in numbers) + "}'::pg_catalog.int8[]"


def read(
    connection: Connection, names: Iterable[str], table_ids: Collection[int], *, others: Collection[int] = ()
) -> Catalog:
    """The publications of these names, and what concerns these tables; inside ``one_moment``. ``others``: tables that
    need no columns and keys."""
    [[snapshot, *end]] = connection.query(_NOW_SQL)
    horizon, ahead, running = xids.parse_snapshot(str(snapshot))
    reader = _Reader(connection, ahead, {})
    publications = reader.publications(names)
    parents = reader.parents()
    members = [table for publication in publications.values() for table in publication.members]
    tables = reader.tables({*table_ids, *others, *members, *parents, *parents.values()}, table_ids)
    end_ts = last_ts(*(int(number or 0) for number in end))
    return Catalog(horizon, ahead, end_ts, publications, tables, parents, reader.xids, running)


@dataclass(frozen=True, slots=True)
class _Reader:
    connection: Connection
    ahead: int
    xids: dict[RowKey, int]

    def publications(self, names: Iterable[str]) -> dict[str, Publication]:
        query = self.connection.query
        has_terms = self.connection.server_version >= TERMS_VERSION
        rows = query(_PUBLICATIONS_SQL.format(names=", ".join(literal(name) for name in names) or "NULL"))
        ids = ", ".join(str(row[0]) for row in rows) or "0"
        terms = "prqual::text, prattrs::text" if has_terms else "NULL, NULL"
        members = query(_MEMBERS_SQL.format(terms=terms, publications=ids))
        schemas = query(_NAMESPACES_SQL.format(publications=ids)) if has_terms else []
        return {
            str(name): Publication(
                row=self._seen(PUBLICATION, oid, xmin),
                lacks=tuple(kind for kind, is_sent in zip(_KINDS, sends, strict=True) if is_sent != "t"),
                is_all=is_all == "t",
                via_root=via_root == "t",
                members={_number(row[3]): self._seen("r", row[0], row[1]) for row in members if row[2] == oid},
                schemas={_number(row[3]): self._seen("n", row[0], row[1]) for row in schemas if row[2] == oid},
                terms={_number(row[3]): _terms(row) for row in members if row[2] == oid and any(row[4:])},
            )
            for oid, xmin, name, is_all, via_root, *sends in rows
        }

    def parents(self) -> dict[int, int]:
        rows = self.connection.query(_PARTITIONS_SQL)
        for child, xmin, _ in rows:
            self._seen("i", child, xmin)
        return {_number(child): _number(parent) for child, _, parent in rows}

    def tables(self, table_ids: Collection[int], known: Collection[int]) -> dict[int, Relation]:
        rows = self.connection.query(_TABLES_SQL.format(ids=_list(table_ids)))
        for row in rows:
            if row[9] is not None:
                self._seen("d", row[0], row[9])
        whole = {_number(row[0]) for row in rows if row[6] == "f"}
        keys = self._keys(whole.intersection(known))
        columns, numbers = self._columns(known)
        found = {_number(row[0]): _relation(row, keys.get(_number(row[0]), []), self.ahead) for row in rows}
        return {
            table: replace(one, columns=columns.get(table, {}), numbers=numbers.get(table, {}))
            for table, one in found.items()
        }

    def _columns(
        self, table_ids: Collection[int]
    ) -> tuple[dict[int, dict[int, ColumnFacts]], dict[int, dict[str, int]]]:
        found: dict[int, dict[int, ColumnFacts]] = defaultdict(dict)
        numbers: dict[int, dict[str, int]] = defaultdict(dict)
        for table, number, xmin, *facts, name in self.connection.query(_COLUMNS_SQL.format(ids=_list(table_ids))):
            self._seen("c", f"{table}.{number}", xmin)
            kind, modifier, others = map(_number, facts)
            found[_number(table)][_number(number)] = kind, modifier, others
            numbers[_number(table)][str(name)] = _number(number)
        return found, numbers

    def _keys(self, table_ids: Collection[int]) -> dict[int, list[tuple[frozenset[str], tuple[RowKey, ...]]]]:
        by_index: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in self.connection.query(_KEYS_SQL.format(ids=_list(table_ids))) if table_ids else ():
            by_index[_number(row[0]), _number(row[1])].append(row)
        found: dict[int, list[tuple[frozenset[str], tuple[RowKey, ...]]]] = defaultdict(list)
        for (table, index), rows in by_index.items():
            if len(rows) < _number(rows[0][7]):
                continue  # of an expression, or of a column that may be NULL
            key = [self._seen("k", str(index), rows[0][2])]
            if rows[0][3] != "t":  # the columns of a primary key cannot lose their NOT NULL
                key += [self._seen("a", f"{table}.{row[4]}", row[5]) for row in rows]
            found[table].append((frozenset(str(row[6]) for row in rows), tuple(key)))
        return found

    def _seen(self, letter: str, number: str | None, xmin: str | None) -> RowKey:
        key = f"{letter}{number}"
        self.xids[key] = xids.full(int(xmin or 0), self.ahead)
        return key


def _relation(row: Row, keys: Sequence[tuple[frozenset[str], tuple[RowKey, ...]]], ahead: int) -> Relation:
    table_id, schema_name, name, schema_id, kind, persistence, identity, file, xmin, _, has_identity = row
    return Relation(
        table_id=_number(table_id),
        schema_name=str(schema_name),
        name=str(name),
        schema_id=_number(schema_id),
        is_partitioned=kind == "p",
        is_logged=persistence == "p",
        sends_whole_rows=identity == "f",
        file=_number(file),
        written_by=xids.full(_number(xmin), ahead),
        keys=tuple(keys),
        has_identity=has_identity == "t",
    )


def _terms(row: Sequence[str | None]) -> str:
    return f"columns {row[5] or 'all'}, rows {row[4] or 'all'}"


def _number(text: str | None) -> int:
    return int(text or 0)


def _list(table_ids: Iterable[int]) -> str:
    return ", ".join(str(int(table)) for table in sorted(table_ids)) or "0"
