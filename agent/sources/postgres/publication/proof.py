"""Proof of a position: the catalog's rows about the publications when the head last moved.

A catalog row that exists now, and existed at the last proof, has existed all the time: removing or changing it writes a
new row, with another number or by another transaction. So a proof need not contain the catalog, but only identify the
rows it has seen: those of transactions below its ``horizon``, and the few others by name.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from json import dumps, loads
from typing import Self
from zlib import compress, decompress

from agent.sources.postgres.publication.sightings import PartitionSighting
from reactor.ids import MAX_TS

#: a row of the catalog: its letter (see ``published``) and number
RowKey = str
#: maximum characters of files and columns in a changefeed's first proof, which is stored in etcd; beyond it, rewrites
#: are only checked from the next proof on
FIRST_MAX = 262_144
#: later than any
UNKNOWN_TS = int(MAX_TS)

#: a column's type, its modifier, and a hash of what else is said of it
ColumnFacts = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Proof:
    """``digest``: of all rows that count (see ``digest``). ``horizon``: every transaction below it had ended when the
    catalog was read. ``recent``: existing rows, of other transactions. ``since``: of rows that publish tables
    which are yet to come, the first transaction that had not begun when they were first seen. ``terms``: row filter and
    columns of the tables that have such. ``leaves``: of each partitioned table that is sent as one its partitions and
    their files. ``held``: tables that are lost already. ``clean``: tables without rows that are published from here on.
    ``newcomers``: names under which tables were held that the stream never had.
    ``types``: facts of the user-made types in the tables (see ``type_facts``). ``files``: of each table, its file;
    ``columns``: facts of its columns, by number (see ``rewrites``). ``unseen``: partitions that the stream named in
    transactions that the catalog did not show yet. ``passed_over``: tables whose rows the stream had under names that
    no rule wants, of those that may look as if the stream had all their rows. ``empty``: partitions whose files had no
    page. ``read_ts``: the last position of the server's log when the catalog was read; ``timeline``: the server's.
    Earlier versions did not note these two.
    """

    digest: str = ""
    horizon: int = 0
    recent: dict[RowKey, int] = field(default_factory=dict)
    since: dict[RowKey, int] = field(default_factory=dict)
    terms: dict[int, str] = field(default_factory=dict)
    leaves: dict[int, dict[int, int]] = field(default_factory=dict)
    held: frozenset[int] = frozenset()
    newcomers: dict[int, tuple[str, str]] = field(default_factory=dict)
    clean: frozenset[int] = frozenset()
    types: dict[str, str] = field(default_factory=dict)
    files: dict[int, int] = field(default_factory=dict)
    columns: dict[int, dict[int, ColumnFacts]] = field(default_factory=dict)
    unseen: tuple[PartitionSighting, ...] = ()
    passed_over: frozenset[int] = frozenset()
    empty: frozenset[int] = frozenset()
    read_ts: int = UNKNOWN_TS
    timeline: int = 0

    def has_seen(self, row: RowKey, xid: int) -> bool:
        """The row as this transaction wrote it was there."""
        return xid < self.horizon or self.recent.get(row) == xid

    def to_text(self, packed_max: int | None = None) -> str:
        """``packed_max``: see ``FIRST_MAX``."""
        fields = {name: value for name, value in asdict(self).items() if value}
        if self.read_ts == UNKNOWN_TS:
            del fields["read_ts"]
        for name in ("held", "clean", "passed_over", "empty"):
            if name in fields:
                fields[name] = sorted(fields[name])
        if self.unseen:
            fields["unseen"] = [astuple(sighting) for sighting in self.unseen]
        for name in ("files", "columns"):
            fields.pop(name, None)
        files, columns = _packed(_file_lines(self.files)), _packed(_column_lines(self.columns))
        if self.columns and (packed_max is None or len(files) + len(columns) <= packed_max):
            fields |= {"files": files, "columns": columns}
        return dumps(fields, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        fields = loads(text)
        return cls(
            digest=fields.get("digest", ""),
            horizon=fields.get("horizon", 0),
            recent=fields.get("recent", {}),
            since=fields.get("since", {}),
            terms={int(table): terms for table, terms in fields.get("terms", {}).items()},
            leaves={
                int(table): {int(leaf): file for leaf, file in leaves.items()}
                for table, leaves in fields.get("leaves", {}).items()
            },
            held=frozenset(fields.get("held", ())),
            newcomers={int(table): (schema, name) for table, (schema, name) in fields.get("newcomers", {}).items()},
            clean=frozenset(fields.get("clean", ())),
            passed_over=frozenset(fields.get("passed_over", ())),
            empty=frozenset(fields.get("empty", ())),
            types=fields.get("types", {}),
            files=_files(_unpacked(fields.get("files", ""))),
            columns=_columns(_unpacked(fields.get("columns", ""))),
            unseen=tuple(PartitionSighting(*sighting) for sighting in fields.get("unseen", ())),
            read_ts=fields.get("read_ts", UNKNOWN_TS),
            timeline=fields.get("timeline", 0),
        )


def _packed(lines: Iterable[str]) -> str:
    """Lines that are alike take little room."""
    return b64encode(compress("\n".join(lines).encode())).decode()


def _unpacked(text: str) -> list[list[str]]:
    return [line.split() for line in decompress(b64decode(text)).decode().splitlines()] if text else []


def _file_lines(files: Mapping[int, int]) -> Iterator[str]:
    """Yield one line per table: its number minus the previous one, and its file's number minus its own. A table that
    was never rewritten has a file of its own number."""
    before = 0
    for table, file in sorted(files.items()):
        yield f"{table - before} {file - table}"
        before = table


def _files(lines: Iterable[Sequence[str]]) -> dict[int, int]:
    found, table = {}, 0
    for step, distance in lines:
        table += int(step)
        found[table] = table + int(distance)
    return found


def _column_lines(columns: Mapping[int, Mapping[int, ColumnFacts]]) -> Iterator[str]:
    before = 0
    for table, of_table in sorted(columns.items()):
        facts = (f"{number}:" + ":".join(map(str, facts)) for number, facts in of_table.items())
        yield " ".join([str(table - before), *facts])
        before = table


def _columns(lines: Iterable[Sequence[str]]) -> dict[int, dict[int, ColumnFacts]]:
    found: dict[int, dict[int, ColumnFacts]] = {}
    table = 0
    for step, *columns in lines:
        table += int(step)
        numbers = (map(int, column.split(":")) for column in columns)
        found[table] = {number: (kind, modifier, others) for number, kind, modifier, others in numbers}
    return found
