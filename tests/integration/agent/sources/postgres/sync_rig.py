"""A sync unit on a real PostgreSQL, its log in a directory, its head in the in-memory etcd; and an oracle beside it.

The oracle is a second slot on the same database: what the server gives for it through SQL must be what the log holds,
event for event and byte for byte.
"""

import itertools
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from agent.log import segment
from agent.log.head import LogWriter
from agent.log.head_store import MetaHeadStore
from agent.log.reader import LogReader
from agent.log.retention import Needs
from agent.log.storage import LogDirectory
from agent.ports.source import Identity, Position, Scope, StreamOrder
from agent.rows.schema import TableSchema
from agent.settings import SyncSettings
from agent.sources.postgres.publication.prover import first_proof
from agent.sources.postgres.publication.slots import (
    Names,
    all_publications,
    create_slot,
    ensure_publications,
    names_for,
)
from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.server.keys import key_of
from agent.sources.postgres.server.lsn import parse_lsn
from agent.sources.postgres.streams import PostgresStreams
from agent.units.sync import SyncUnit
from capture.embedded import EmbeddedPostgres
from reactor.errors import WeirError
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, Ts
from reactor.keys import LogKey, ddl_prefix
from reactor.records.changefeed import ChangefeedConfig, EventFilter, FilterConfig, SinkMode
from reactor.records.log_head import LogHead
from reactor.records.source_settings import Setting
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord
from reactor.store.memory import MemoryClient, MemoryEtcd
from tests.newest import newest_etcd
from tests.patience import patient
from tests.shared_postgres import give_back

_numbers = itertools.count()
_KEY = LogKey("c", "default", ChangefeedId("feed"), "postgresql")

#: table id, commit Ts, ordinal, the message's bytes
LoggedEvent = tuple[int, int, int, bytes]


@dataclass
class SyncRig:
    """One database with publications, a slot for the unit and one for the oracle."""

    database: EmbeddedPostgres
    name: str
    uri: str
    names: Names
    tables: tuple[TableRecord, ...]
    start: Position
    directory: LogDirectory
    binary: bool = True
    etcd: MemoryEtcd = field(default_factory=newest_etcd)
    settings: SyncSettings = field(default_factory=SyncSettings)
    checkpoint_ts: int = 0
    retention_s: float = 600.0
    #: where a held table is, and how long, and how much, is kept for it
    held_ts: int = MAX_TS
    held_retention_s: float = 86_400.0
    held_bytes: int = 10 << 30
    #: the tables as they begin; without them, as the stream first declares them
    first_schemas: dict[int, TableSchema] = field(default_factory=dict)
    #: which new tables are wanted
    rules: tuple[str, ...] = ("!*.*",)
    #: tables that a changed filter adds
    joining: frozenset[tuple[str, str]] = frozenset()
    #: events that filters ignore
    ignored: tuple[str, ...] = ()
    #: of a database that no other test uses
    encoding: str = ""
    sink_mode: SinkMode = SinkMode.UPSERT
    #: settings below [source]
    source: dict[str, Setting] = field(default_factory=dict)

    @property
    def scope(self) -> Scope:
        filters = (EventFilter(ignore_event=self.ignored),) if self.ignored else ()
        config = ChangefeedConfig(filter=FilterConfig(rules=self.rules, event_filters=filters), source=self.source)
        return Scope("c", "feed", self.sink_mode, config)

    def ddl(self) -> list[DdlRecord]:
        """What the log has found to have changed."""
        prefix = ddl_prefix(_KEY.cluster, _KEY.namespace, _KEY.changefeed)
        return [DdlRecord.decode(item.value, key=item.key) for item in self.etcd.get_prefix(prefix).items]

    def execute(self, sql: str) -> None:
        with connect(self.uri) as connection:
            connection.query(sql)

    def store(self) -> MetaHeadStore:
        return MetaHeadStore(MemoryClient(self.etcd), _KEY)

    def unit(self, capture: str = "a", *, system_id: str = "", timeline: int = 1) -> SyncUnit:
        return SyncUnit(
            PostgresStreams(
                self.uri,
                self.names,
                StreamOrder(self.tables, Identity(system_id, timeline), self.first_schemas, joining=self.joining),
                self.scope,
            ),
            self.start,
            writer=LogWriter(self.store(), capture=CaptureId(capture)),
            directory=self.directory,
            needs=lambda: Needs(
                Ts(self.checkpoint_ts), self.retention_s, Ts(self.held_ts), self.held_retention_s, self.held_bytes
            ),
            settings=self.settings,
        )

    @asynccontextmanager
    async def running(self, unit: SyncUnit | None = None) -> AsyncIterator[SyncUnit]:
        unit = unit or self.unit()
        async with anyio.create_task_group() as group:
            group.start_soon(unit.run)
            yield unit
            group.cancel_scope.cancel()

    @asynccontextmanager
    async def ending(self, unit: SyncUnit) -> AsyncIterator[list[WeirError]]:
        """Until it ends with an error, which is then in the list."""
        failures: list[WeirError] = []

        async def run() -> None:
            try:
                await unit.run()
            except WeirError as error:
                failures.append(error)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                yield failures

    @property
    def head_key(self) -> LogKey:
        return _KEY

    def head(self) -> LogHead:
        item = self.etcd.get(str(_KEY))
        return LogHead.decode(item.value, key=str(_KEY)) if item else LogHead()

    async def wait_resolved(self, *, timeout_s: float = 60.0) -> LogHead:
        """Until the log has everything that is committed now."""
        with connect(self.uri) as connection:
            # a record of our own behind everything: the server says nothing about positions without one
            (lsn,) = connection.query("SELECT pg_logical_emit_message(false, 'test', 'x')")[0]
        return await self.wait_head(lambda head: head.resolved_ts >= parse_lsn(lsn or "") - 1, timeout_s=timeout_s)

    async def wait_head(self, condition: Callable[[LogHead], bool], *, timeout_s: float = 60.0) -> LogHead:
        with anyio.fail_after(patient(timeout_s)):
            async with MemoryClient(self.etcd).watch_prefix(str(_KEY), start_revision=1) as batches:
                async for batch in batches:
                    if batch.events and condition(head := self.head()):
                        return head
        raise AssertionError("the watch ended")

    async def kill_walsender(self) -> None:
        """End the unit's session at the server, as soon as there is one."""
        with connect(self.uri) as connection:
            await wait_until(
                lambda: bool(
                    connection.query(
                        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                        f"WHERE slot_name = '{self.names.slot}' AND active_pid IS NOT NULL"
                    )
                )
            )

    def logged(self) -> list[LoggedEvent]:
        """Every event of the log up to its resolved Ts, in log order."""
        head = self.head()
        found = []
        for ref in LogReader(self.directory).segments(head, head.removed_ts, head.resolved_ts):
            events = _events_of(ref.path)
            assert events, "no segment is empty"
            assert ref.tables == {event[0] for event in events}
            assert ref.first_ts == min(event[1] for event in events)
            assert ref.last_ts == max(event[1] for event in events)
            found += [event for event in events if event[1] <= head.resolved_ts]
        return sorted(found, key=lambda event: event[1:3])

    def schemas(self) -> list[TableSchema]:
        """The schema of every batch of the log, in log order."""
        names = sorted(name for name in self.directory.names() if name.endswith(".arrow"))
        paths = (self.directory.path_of(name) for name in names)
        return [schema for path in paths for schema, _, _ in segment.read_batches(path)]

    def expected(self) -> list[LoggedEvent]:
        """The same, as the oracle's slot tells it; may be asked once."""
        publications = ",".join(
            name for name in (self.names.publication, self.names.publication + "_append") if self._has(name)
        )
        with connect(self.uri) as connection:
            rows = connection.query(
                "SELECT data FROM pg_logical_slot_get_binary_changes('oracle_" + self.name + "', NULL, NULL, "
                f"'proto_version', '1', 'publication_names', '{publications}', 'binary', '{str(self.binary).lower()}')",
                timeout_s=120,
            )
        return _oracle_events(bytes.fromhex((row[0] or "")[2:]) for row in rows)

    def _has(self, publication: str) -> bool:
        with connect(self.uri) as connection:
            return bool(connection.query(f"SELECT 1 FROM pg_publication WHERE pubname = '{publication}'"))


async def wait_until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    """For what happens in another process or thread, where there is no event to wait for."""
    with anyio.fail_after(patient(timeout_s)):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)


def make_rig(
    postgres: EmbeddedPostgres,
    path: Path,
    schema_sql: str,
    tables: Sequence[str],
    *,
    binary: bool = True,
    publication: str = "",
    encoding: str = "",
) -> SyncRig:
    """``schema_sql`` makes the tables; ``tables`` names those that are replicated. ``publication``: one of the user's,
    for what and how. ``encoding``: another than UTF-8."""
    name = f"sync{next(_numbers)}_{path.name}".replace("-", "_").lower()[:40]
    if encoding:
        postgres.execute(f"CREATE DATABASE \"{name}\" ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    else:
        postgres.create_database(name)
    uri = postgres.uri(name)
    names = names_for("t", name.replace("_", "-"), publication="mine" if publication else "")
    with connect(uri) as connection:
        connection.query(schema_sql)
        records = tuple(_record(connection, table) for table in tables)
        if publication:
            connection.query(f"CREATE PUBLICATION mine {publication}")
        ensure_publications(connection, names, records)
        proof = first_proof(connection, all_publications(names), [record.table_id for record in records])
    with connect(uri, replication=True) as connection:
        create_slot(connection, f"oracle_{name}")
        start = Position(create_slot(connection, names.slot), proof)
    directory = LogDirectory(str(path / "log"), changefeed="feed", source="postgresql")
    return SyncRig(postgres, name, uri, names, records, start, directory, binary, encoding=encoding)


def drop_slots(rig: SyncRig) -> None:
    """The server has few of them. The database is used again, too."""
    with connect(rig.uri) as connection:
        for slot in (rig.names.slot, f"oracle_{rig.name}"):
            connection.query(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots "
                f"WHERE slot_name = '{slot}' AND active_pid IS NOT NULL"
            )
            connection.query(
                f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'"
            )
    if rig.encoding:
        rig.database.execute(f'DROP DATABASE "{rig.name}" WITH (FORCE)')
    else:
        give_back(rig.database, rig.name)


def _record(connection: Connection, table: str) -> TableRecord:
    (oid,) = connection.query(f"SELECT '{table}'::regclass::oid::int8")[0]
    key = key_of(connection, int(oid or 0))
    schema_name, _, name = table.rpartition(".")
    return TableRecord(table_id=int(oid or 0), schema_name=schema_name or "public", name=name, key=key)


def _events_of(path: str) -> list[LoggedEvent]:
    found = []
    for schema, batch, _ in segment.read_batches(path):
        columns = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        found += [(schema.table_id, commit_ts, seq, event) for commit_ts, seq, event in columns]
    return found


def _oracle_events(messages: Iterable[bytes]) -> list[LoggedEvent]:
    found: list[LoggedEvent] = []
    commit_ts = seq = 0
    for message in messages:
        kind = message[:1]
        if kind == b"B":
            (commit_ts,), seq = struct.unpack_from("!q", message, 1), 0
        elif kind in b"IUD":
            found.append((struct.unpack_from("!I", message, 1)[0], commit_ts, seq, message))
            seq += 1
        elif kind == b"T":
            (count,) = struct.unpack_from("!i", message, 1)
            for relation in struct.unpack_from(f"!{count}I", message, 6):
                found.append((relation, commit_ts, seq, message))
                seq += 1
    return found
