"""The binlog stream over binlogs built by hand: MySQL's events, cuts, rollbacks, broken and giant packets."""

import contextlib
import socket
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from agent.errors import (
    DecodeError,
    PositionLostError,
    SnapshotLostByGCError,
    SourceConfigError,
    SourceError,
    SourceUnreachableError,
)
from agent.ports.source import StreamRestart
from agent.rows.arena import Arena, LogChunk
from agent.rows.schema import Column, TableSchema
from agent.sources.mysql.binlog import declarations as declarations_module
from agent.sources.mysql.binlog import split
from agent.sources.mysql.binlog.declarations import Declarations
from agent.sources.mysql.binlog.rolled_back import NOTHING, Range, RolledBack
from agent.sources.mysql.binlog.stream import BinlogStream
from agent.sources.mysql.ddl import statements
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.decode.table_name import parse_table_name
from agent.sources.mysql.dialect import DIALECT
from agent.sources.mysql.position.positions import BinlogPosition, first_epoch, pack
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord
from tests.binlog import CLOCK, SOURCE, Binlog, Line, query, rows, table_map

FILE = "binlog.000001"


def describe(body: bytes) -> TableSchema:
    schema_name, name = parse_table_name(body)
    return TableSchema(
        table_id(schema_name, name), schema_name, name, (Column("i", 3, 0, is_key=True),), dialect=DIALECT
    )


def is_wanted(schema_name: str, name: str) -> bool:
    return schema_name == "a"


def changed(event: DdlEvent) -> DdlRecord | None:
    return DdlRecord(ts=event.ts, statement=event.statement) if event.database == "a" else None


class Fed(BinlogStream):
    """A stream that knows how much is coming."""

    expected_bytes = 0
    line: Line


@contextmanager
def streaming(
    binlog: Binlog, *, arena_bytes: int = 1 << 20, start: int = 4, gtid: str = "", **options: Any
) -> Iterator[Fed]:
    """A stream whose server sends ``binlog`` as fast as it is read."""
    line = Line()
    options = {"is_wanted": is_wanted, "describe": describe, "interpret": changed, "pause_s": 0.0, **options}
    position = first_epoch("uuid", BinlogPosition(FILE, start), gtid)
    stream = Fed(line, Arena(arena_bytes), position=position, **options)
    stream.expected_bytes = len(binlog.data)
    sender = threading.Thread(target=send_all, args=(line.far, binlog.data))
    sender.start()
    try:
        yield stream
    finally:
        line.abort()  # whoever has read enough lets the sender go
        sender.join()
        line.close()


def send_all(far: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        far.sendall(data)


def read_all(stream: Fed, *, arena_bytes: int = 1 << 20) -> list[LogChunk]:
    """Cuts where they must be, and one at the end."""
    cuts = []
    while True:
        if stream.is_full:
            cuts.append(stream.take_chunk(Arena(arena_bytes)))
        elif not stream.read(timeout_s=10.0 if stream.bytes_read < stream.expected_bytes else 0.001):
            break
    return [*cuts, stream.take_chunk(Arena(arena_bytes))] if stream.complete_rows else cuts


def lines(cuts: list[LogChunk]) -> list[tuple[int, int, bytes]]:
    """Commit Ts, ordinal and event of every line, in order."""
    return [
        (row["commit_ts"], row["seq"], row["event"])
        for cut in cuts
        for batch in cut.batches()
        for row in batch.batch.to_pylist()
    ]


def test_transactions_of_mysql_become_lines() -> None:
    binlog = Binlog().begin().transaction(1, count=2).transaction(2)
    with streaming(binlog) as stream:
        (cut,) = read_all(stream)
        first, *_, last = found = lines([cut])
        assert [seq >> split.SEQ_SHIFT for _, seq, _ in found] == [0, 1, 0]
        assert first[0] == pack(0, 1, 4) == cut.first_ts
        assert last[0] == cut.last_ts > first[0]
        assert first[2] == bytes([wire.WRITE_V2]) + rows(5)
        assert cut.resolved_ts == pack(0, 1, binlog.position) - 1
        assert cut.resolved_time == CLOCK
        assert stream.position().gtid == f"{SOURCE}:1-2"
        assert stream.position().binlog == BinlogPosition(FILE, binlog.position)
        assert stream.transactions == 2
        assert cut.position == stream.position().to_json()


def test_the_time_of_commit_has_microseconds_where_the_server_tells_them() -> None:
    binlog = Binlog().begin().gtid(1, time_us=1_700_000_000_123_456).add(wire.QUERY, query("BEGIN"))
    binlog.add(wire.TABLE_MAP, table_map(5)).add(wire.WRITE_V2, rows(5)).add(wire.XID, bytes(8))
    with streaming(binlog) as stream:
        assert read_all(stream)[0].resolved_time == 1_700_000_000.123456


def test_a_gap_in_gtids_stays_a_gap_and_many_gaps_fit() -> None:
    binlog = Binlog().begin()
    for number in range(1, 201):
        binlog.transaction(2 * number)
    with streaming(binlog, gtid=f"{SOURCE}:1") as stream:
        read_all(stream)
        intervals = stream.position().gtid.split(":")[1:]
        assert len(intervals) == 200
        assert intervals[0] == "1-2"
        assert intervals[-1] == "400"


def test_a_tagged_gtid_counts_when_its_transaction_is_over() -> None:
    from tests.unit.agent.sources.mysql.binlog.test_control_events import TAGGED

    binlog = Binlog().begin().add(wire.TAGGED_GTID, TAGGED).add(wire.QUERY, query("BEGIN"))
    binlog.add(wire.TABLE_MAP, table_map(5)).add(wire.WRITE_V2, rows(5))
    with streaming(binlog) as stream:
        assert read_all(stream) == []
        assert stream.position().gtid == ""
    binlog.add(wire.XID, bytes(8))
    with streaming(binlog) as stream:
        (cut,) = read_all(stream)
        assert cut.resolved_time == pytest.approx(1_739_823_289.369365)
        assert stream.position().gtid == "896e7882-18fe-11ef-ab88-22222d34d411:foobaz:1"


def test_servers_without_gtids_are_read_by_their_begins() -> None:
    binlog = Binlog().begin()
    for _ in range(2):
        binlog.add(wire.QUERY, query("BEGIN")).add(wire.TABLE_MAP, table_map(5)).add(wire.WRITE_V2, rows(5))
        binlog.add(wire.QUERY, query("COMMIT"))
    binlog.add(wire.QUERY, query("ALTER TABLE t ADD c INT"))
    with streaming(binlog) as stream:
        (cut,) = read_all(stream)
        assert len(lines([cut])) == 2
        assert [record.statement for record in cut.ddl] == ["ALTER TABLE t ADD c INT"]
        assert cut.last_ts == cut.ddl[0].ts


def test_what_the_log_has_is_skipped() -> None:
    binlog = Binlog().begin().transaction(1)
    middle = binlog.position
    binlog.transaction(2)
    with streaming(binlog, start=middle) as stream:
        assert [ts for ts, _, _ in lines(read_all(stream))] == [pack(0, 1, middle)]
        assert stream.position().gtid == f"{SOURCE}:1-2"


def test_a_definition_ends_its_cut_and_nothing_is_read_behind_it() -> None:
    binlog = Binlog().begin().transaction(1)
    binlog.gtid(2).add(wire.QUERY, query("ALTER TABLE t ADD c INT"))
    binlog.gtid(3).add(wire.QUERY, query("ALTER TABLE x.t ADD c INT", "b"))
    binlog.gtid(4).add(wire.QUERY, query("GRANT ALL ON a.* TO u"))
    binlog.transaction(5).gtid(6).add(wire.QUERY, query("DROP TABLE u")).transaction(7)
    with streaming(binlog) as stream:
        first, second, third = read_all(stream)
        assert [len(lines([cut])) for cut in (first, second, third)] == [1, 1, 1]
        assert [[record.statement for record in cut.ddl] for cut in (first, second, third)] == [
            ["ALTER TABLE t ADD c INT"],
            ["DROP TABLE u"],
            [],
        ]
        assert first.resolved_ts >= first.ddl[0].ts == first.last_ts
        assert second.first_ts > first.resolved_ts


def test_a_definition_alone_makes_a_cut_without_rows() -> None:
    binlog = Binlog().begin().gtid(1).add(wire.QUERY, query("CREATE TABLE t (i int)"))
    with streaming(binlog) as stream:
        (cut,) = read_all(stream)
        assert (cut.rows, cut.batches(), len(cut.ddl), cut.is_complete) == (0, [], 1, True)
        assert cut.first_ts == cut.last_ts == cut.ddl[0].ts


def test_a_table_filled_as_it_is_created_is_one_cut() -> None:
    binlog = Binlog().begin().gtid(1).add(wire.QUERY, query("BEGIN"))
    binlog.add(wire.QUERY, query("CREATE TABLE t (i int) START TRANSACTION"))
    binlog.add(wire.TABLE_MAP, table_map(5)).add(wire.WRITE_V2, rows(5)).add(wire.XID, bytes(8))
    with streaming(binlog) as stream:
        (cut,) = read_all(stream)
        assert len(lines([cut])) == 1
        assert len(cut.ddl) == 1


def test_an_emptied_table_is_a_line() -> None:
    truncate = query("TRUNCATE TABLE t")
    binlog = Binlog().begin().transaction(1).gtid(2).add(wire.QUERY, truncate).transaction(3)
    with streaming(binlog) as stream:
        assert [event[0] for _, _, event in lines(read_all(stream))] == [wire.WRITE_V2, wire.TRUNCATED, wire.WRITE_V2]
    binlog = Binlog().begin().gtid(1).add(wire.QUERY, truncate)
    with streaming(binlog) as stream:  # nobody knows its columns: then it is a definition like others
        assert [record.statement for record in read_all(stream)[0].ddl] == ["TRUNCATE TABLE t"]
    with streaming(binlog, known=lambda schema, name: describe(table_map(5))) as stream:
        assert [event for _, _, event in lines(read_all(stream))] == [bytes([wire.TRUNCATED])]


@pytest.mark.parametrize(
    ("column", "is_new"),
    [
        (Column("i", 3, 0, "int(11)", is_key=True), False),
        (Column("j", 3, 0, is_key=True), True),
        (Column("i", 8, 0, is_key=True), True),
        (Column("i", 3, 0, is_key=True, is_unsigned=True), True),
    ],
)
def test_a_table_that_is_emptied_has_the_columns_of_then(column: Column, is_new: bool) -> None:
    """No rows have come since they were changed: a changelog would get a column again that it has no more."""
    binlog = Binlog().begin().transaction(1).gtid(2).add(wire.QUERY, query("TRUNCATE TABLE t")).transaction(3)
    before = describe(table_map(5))
    after = replace(before, columns=(column,))
    with streaming(binlog, known=lambda schema, name: after) as stream:
        found = [batch.schema for cut in read_all(stream) for batch in cut.batches() for _ in range(len(batch.batch))]
    assert found == ([before, before, after] if is_new else [before] * 3)


@pytest.mark.parametrize("statement", ["TRUNCATE TABLE = t", "UPDATE t SET odd = 1", "XA COMMIT odd t"])
def test_a_statement_that_nobody_can_classify_holds_its_tables(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[list[tuple[str, str]]] = []

    def hold(names: list[tuple[str, str]], reason: str, ts: Ts) -> DdlRecord:
        held.append(names)
        return DdlRecord(ts=ts)

    def kind(text: str) -> statements.StatementKind:
        if "odd" in text:
            raise OverflowError(text)
        return classify(text)

    classify = statements.kind
    monkeypatch.setattr(statements, "kind", kind)
    binlog = Binlog().begin().gtid(1).add(wire.QUERY, query(statement)).transaction(2)
    with streaming(binlog, hold=hold, written=lambda text, database: [(database, text[-1])]) as stream:
        assert sum(len(lines([cut])) for cut in read_all(stream)) == 1, "the stream continues"
    assert held == [[("a", statement[-1])]]


def test_rows_of_unwanted_tables_leave_nothing() -> None:
    binlog = Binlog().begin().gtid(1).add(wire.QUERY, query("BEGIN")).add(wire.TABLE_MAP, table_map(6, "b"))
    binlog.add(wire.WRITE_V2, rows(6)).add(wire.TABLE_MAP, table_map(5)).add(wire.WRITE_V2, rows(5))
    binlog.add(wire.WRITE_V2, rows(0xFFFFFF)).add(wire.XID, bytes(8))
    with streaming(binlog) as stream:
        assert [seq >> split.SEQ_SHIFT for _, seq, _ in lines(read_all(stream))] == [1]


def rolled_back(*statements: str | bytes) -> Binlog:
    """One transaction of statements and (bytes) rows, and then another one."""
    binlog = Binlog().begin().gtid(1).add(wire.QUERY, query("BEGIN")).add(wire.TABLE_MAP, table_map(5))
    for statement in statements:
        if isinstance(statement, str):
            binlog.add(wire.QUERY, query(statement))
        else:
            binlog.add(wire.WRITE_V2, rows(5, statement))
    return binlog


LOAD = query("LOAD DATA INFILE 'x' INTO TABLE t")
A, B, C = (b"\xfe" + struct.pack("<i", value) for value in (1, 2, 3))


def test_what_is_rolled_back_to_a_savepoint_leaves_nothing() -> None:
    binlog = rolled_back(A, "SAVEPOINT `x`", B, "SAVEPOINT y", B, "ROLLBACK TO `X`", C).add(wire.XID, bytes(8))
    with streaming(binlog) as stream:
        assert [event[-5:] for _, _, event in lines(read_all(stream))] == [A, C]


def test_a_transaction_that_is_rolled_back_leaves_nothing() -> None:
    binlog = rolled_back(A, B, "ROLLBACK").transaction(2)
    with streaming(binlog) as stream:
        assert len(lines(read_all(stream))) == 1


def test_what_is_in_the_log_by_half_is_left_out_when_it_is_read_again() -> None:
    binlog = rolled_back(*([A] * 100), "ROLLBACK").transaction(2)
    known = RolledBack()
    with streaming(binlog, arena_bytes=2_000, rolled_back=known) as stream, pytest.raises(StreamRestart):
        read_all(stream, arena_bytes=2_000)
    with streaming(binlog, arena_bytes=2_000, rolled_back=known) as stream:
        assert len(lines(read_all(stream, arena_bytes=2_000))) == 1


def test_a_stream_is_not_opened_for_the_same_rollback_again_and_again() -> None:
    class Forgetful(RolledBack):
        def following(self, ts: Ts, ordinal: int) -> Range:
            return NOTHING

    binlog, known = rolled_back(*([A] * 100), "ROLLBACK"), Forgetful()
    for error in (StreamRestart, SourceError):
        with streaming(binlog, arena_bytes=2_000, rolled_back=known) as stream, pytest.raises(error):
            read_all(stream, arena_bytes=2_000)


def test_a_transaction_that_the_server_did_not_live_to_finish_leaves_nothing() -> None:
    binlog = rolled_back(A).rotate("binlog.000002")
    binlog.begin("binlog.000002").transaction(1, 6)
    with streaming(binlog) as stream:
        assert [ts for ts, _, _ in lines(read_all(stream))] == [pack(0, 2, 4)]


def test_a_large_transaction_goes_through_many_small_arenas() -> None:
    binlog = Binlog().begin().transaction(1, count=500).transaction(2)
    with streaming(binlog, arena_bytes=2_000) as stream:
        cuts = read_all(stream, arena_bytes=2_000)
        assert len(cuts) > 5
        assert not any(cut.is_complete for cut in cuts[:-1])
        assert all(cut.resolved_ts < cut.first_ts for cut in cuts if not cut.is_complete)
        found = lines(cuts)
        assert [seq >> split.SEQ_SHIFT for _, seq, _ in found] == [*range(500), 0]
        assert len({ts for ts, _, _ in found[:500]}) == 1


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("size", [0xFFFFFF - 1, 0xFFFFFF, 0xFFFFFF + 1, 2 * 0xFFFFFF + 5])
def test_an_event_over_several_packets_is_joined(size: int) -> None:
    """``size``: of the packet's payload, a marker and an event."""
    image = np.random.default_rng(size).bytes(size - 1 - 19 - 4 - len(rows(5, b"")))
    binlog = Binlog().begin().gtid(1).add(wire.QUERY, query("BEGIN")).add(wire.TABLE_MAP, table_map(5))
    binlog.add(wire.WRITE_V2, rows(5)).add(wire.WRITE_V2, rows(5, image)).add(wire.XID, bytes(8)).transaction(2)
    with streaming(binlog) as stream:
        found = lines(read_all(stream))
        assert [len(event) for _, _, event in found] == [len(rows(5)) + 1, len(rows(5, image)) + 1, len(rows(5)) + 1]
        assert found[1][2] == bytes([wire.WRITE_V2]) + rows(5, image)


def compressed(count: int) -> bytes:
    inner = Binlog(checksum=False, position=0)
    parts = [inner.event(wire.QUERY, query("BEGIN")), inner.event(wire.TABLE_MAP, table_map(5))]
    parts += [inner.event(wire.WRITE_V2, rows(5)) for _ in range(count)]
    return b"".join([*parts, inner.event(wire.XID, bytes(8))])


@pytest.mark.parametrize("compression", [0, 255])
@pytest.mark.parametrize("arena_bytes", [2_000, 1 << 20])
def test_a_compressed_transaction_is_inflated(compression: int, arena_bytes: int) -> None:
    binlog = Binlog().begin().transaction(1).gtid(2).payload(compressed(1_000), compression=compression)
    binlog.transaction(3)
    with streaming(binlog, arena_bytes=arena_bytes) as stream:
        cuts = read_all(stream, arena_bytes=arena_bytes)
        assert [seq >> split.SEQ_SHIFT for _, seq, _ in lines(cuts)] == [0, *range(1_000), 0]
        assert {event for _, _, event in lines(cuts)} == {bytes([wire.WRITE_V2]) + rows(5)}
        assert stream.position().binlog.position == binlog.position
        assert stream.position().gtid == f"{SOURCE}:1-3"


def test_a_compressed_transaction_that_is_broken_is_an_error() -> None:
    binlog = Binlog().begin().gtid(1).payload(compressed(10), compression=7)
    with streaming(binlog) as stream, pytest.raises(SourceConfigError, match="binlog_transaction_compression=OFF"):
        read_all(stream)
    body = bytes([2, 1, 0, 0]) + b"no zstd at all"
    binlog = Binlog().begin().gtid(1).add(wire.TRANSACTION_PAYLOAD, body)
    with streaming(binlog) as stream, pytest.raises(DecodeError, match="cannot be inflated"):
        read_all(stream)


def test_a_binlog_may_have_no_checksums() -> None:
    with streaming(Binlog(checksum=False).begin().transaction(1)) as stream:
        assert len(lines(read_all(stream))) == 1


@pytest.mark.parametrize("kind", [wire.GTID, wire.QUERY, wire.TABLE_MAP, wire.WRITE_V2, wire.XID])
def test_a_wrong_checksum_is_noticed_in_whatever_is_used(kind: int) -> None:
    binlog = Binlog().begin()
    for event, body in (
        (wire.GTID, b"\0" + SOURCE.bytes + bytes(8)),
        (wire.QUERY, query("BEGIN")),
        (wire.TABLE_MAP, table_map(5)),
        (wire.WRITE_V2, rows(5)),
        (wire.XID, bytes(8)),
    ):
        sent = bytearray(b"\0" + binlog.event(event, body))
        sent[-6] ^= event == kind  # a bit of the body
        binlog.send(bytes(sent))
    with streaming(binlog) as stream, pytest.raises(SourceUnreachableError, match="checksum is wrong"):
        read_all(stream)


def test_a_transaction_behind_our_own_position_is_an_error() -> None:
    binlog = Binlog().begin().transaction(1)
    binlog.position = 50
    with (
        streaming(binlog.transaction(2)) as stream,
        pytest.raises(SourceUnreachableError, match="behind its own position"),
    ):
        read_all(stream)


def test_positions_continue_in_an_overlong_file() -> None:
    binlog = Binlog(position=(1 << 32) - 200).begin()
    start = binlog.position
    binlog.transaction(1, count=10)
    assert binlog.position > 1 << 32
    binlog.rotate("binlog.000002").transaction(2)
    with streaming(binlog, start=start) as stream:
        found = [ts for ts, _, _ in lines(read_all(stream))]
        assert found == [pack(0, 1, start)] * 10 + [pack(0, 2, 4)]


def test_a_file_of_another_name_begins_an_epoch() -> None:
    binlog = Binlog().begin().transaction(1).rotate("other.000001").transaction(2)
    with streaming(binlog) as stream:
        assert [ts for ts, _, _ in lines(read_all(stream))] == [pack(0, 1, 4), pack(1, 1, 4)]
        assert stream.position().binlog.file == "other.000001"
        assert stream.position().epoch.gtid == f"{SOURCE}:1"


def test_heartbeats_move_the_position_of_an_idle_stream_in_our_time() -> None:
    binlog = Binlog().begin().transaction(1)
    binlog.position += 500  # what a server keeps to itself
    beat = bytearray(binlog.event(wire.HEARTBEAT, FILE.encode()))
    struct.pack_into("<I", beat, 13, 5_000)
    with streaming(binlog.send(b"\0" + bytes(beat))) as stream:
        (cut,) = read_all(stream)
        assert cut.resolved_ts == pack(0, 1, 5_000) - 1
        assert cut.resolved_time > CLOCK + 1_000
        assert stream.progress().resolved_ts == cut.resolved_ts


@pytest.mark.parametrize(
    ("kind", "body", "flags", "error", "match"),
    [
        (wire.INCIDENT, b"\1\0\4lost", 0, PositionLostError, r"gap, says the server \(lost"),
        (200, b"", 0, SourceError, "unknown type 200"),
        (20, b"", wire.FLAG_IGNORABLE, SourceError, "unknown type 20"),
        (wire.WRITE_V2, rows(99), 0, SourceUnreachableError, "no binlog event"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_ends_the_stream(
    kind: int, body: bytes, flags: int, error: type[SourceError], match: str
) -> None:
    binlog = Binlog().begin().gtid(1).add(kind, body, flags=flags)
    with streaming(binlog) as stream, pytest.raises(error, match=match):
        read_all(stream)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.QUERY, query("INSERT INTO t VALUES (1)")),
        (wire.QUERY, query("delete x from x join t")),
        (wire.EXECUTE_LOAD, LOAD[:13] + bytes(13) + LOAD[13:]),
    ],
)
def test_rows_that_a_statement_changes_hold_their_table(kind: int, body: bytes) -> None:
    held: list[tuple[list[tuple[str, str]], str]] = []

    def hold(names: list[tuple[str, str]], reason: str, ts: Ts) -> DdlRecord:
        held.append((names, reason))
        return DdlRecord(ts=ts)

    binlog = Binlog().begin().gtid(1).add(kind, body).add(wire.QUERY, query("COMMIT")).transaction(2)
    written = lambda statement, database: [(database, "t")] if " t" in statement else []  # noqa: E731
    with streaming(binlog, hold=hold, written=written) as stream:
        cuts = read_all(stream)
    assert held == [([("a", "t")], held[0][1])]
    assert "logged as a statement" in held[0][1]
    assert [record.ts for cut in cuts for record in cut.ddl]


def test_what_says_nothing_is_passed_over() -> None:
    binlog = Binlog().begin()
    for kind in (wire.PREVIOUS_GTIDS, wire.ANNOTATE, wire.CHECKPOINT, wire.GTID_LIST, wire.START_ENCRYPTION, wire.STOP):
        binlog.add(kind, b"whatever")
    binlog.add(250, flags=wire.FLAG_IGNORABLE).gtid(1).add(wire.QUERY, query("INSERT INTO b.t VALUES (1)"))
    binlog.gtid(2).add(wire.QUERY, query("UPDATE user, db SET a = 1", "mysql")).transaction(3)
    with streaming(binlog) as stream:
        assert len(lines(read_all(stream))) == 1


@pytest.mark.parametrize(
    ("packet", "error", "match"),
    [
        (b"\xff" + struct.pack("<H", 1236) + b"#HY000Could not find first log file", SnapshotLostByGCError, "purged"),
        (b"\xff" + struct.pack("<H", 1927) + b"#70100Connection was killed", SourceUnreachableError, "tried again"),
        (b"\xfe\0\0\2\0", SourceUnreachableError, "ended the binlog"),
        (b"\x17", SourceUnreachableError, "no binlog event"),
        (b"", SourceUnreachableError, "no binlog event"),
        (b"\0too short", SourceUnreachableError, "no binlog event"),
    ],
)  # fmt: skip
def test_the_server_may_end_the_stream(packet: bytes, error: type[SourceError], match: str) -> None:
    with streaming(Binlog().begin().send(packet).transaction(1)) as stream, pytest.raises(error, match=match):
        read_all(stream)


def test_a_closed_line_ends_the_stream() -> None:
    line = Line()
    stream = BinlogStream(
        line,
        Arena(1_000),
        position=first_epoch("u", BinlogPosition(FILE)),
        is_wanted=is_wanted,
        describe=describe,
    )
    assert not stream.read(timeout_s=0.001)
    line.far.close()
    with pytest.raises(SourceUnreachableError, match="ended the binlog"):
        stream.read(timeout_s=1.0)
    line.close()


def declarations(calls: list[bytes] | None = None) -> Declarations:
    def counted(body: bytes) -> TableSchema:
        if calls is not None:
            calls.append(body)
        return describe(body)

    return Declarations(is_wanted, counted)


def test_ever_new_numbers_for_the_same_tables_cost_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations_module, "MAPS_MAX", 1_000)
    calls: list[bytes] = []
    declared = declarations(calls)
    for number in range(10_000):
        assert declared.declare(table_map(number, name=f"t{number % 3}"), txn=number // 2) == number % 3
    assert len(declared.maps) <= 2_048
    assert len(declared.bodies) <= 1 << 16
    assert len(calls) == len(declared.schemas) == 3
    assert declared.slot(1) == split.ABSENT


def test_forgetting_keeps_the_maps_of_the_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations_module, "MAPS_MAX", 1_000)
    declared = declarations()
    for number in range(3, 900):
        declared.declare(table_map(number, name="other"), txn=number)
    kept = [declared.declare(table_map(number, name=f"t{number % 5}"), txn=7) for number in range(7_000, 12_000)]
    assert [declared.slot(number) for number in range(7_000, 12_000)] == kept
    assert declared.slot(4) == split.ABSENT


def test_a_version_that_comes_back_gets_a_slot_of_its_own() -> None:
    versions = {b"\3": "x", b"\3\3": "y"}

    def named(body: bytes) -> TableSchema:
        columns = tuple(Column(name, 3, 0) for name in versions[body[body.index(b"t\0") + 3 : -2]])
        return TableSchema(1, "a", "t", columns, dialect=DIALECT)

    declared = Declarations(is_wanted, named)
    slots = [declared.declare(table_map(n, columns=c), txn=n) for n, c in enumerate((b"\3", b"\3\3", b"\3", b"\3"), 1)]
    assert slots == [0, 1, 2, 2]
    assert declared.newest_slot(1) == 2


def test_ts_and_uuid_are_what_the_server_wrote() -> None:
    """The kernels keep a UUID in two signed halves."""
    source = uuid4()
    binlog = Binlog().begin()
    body = b"\0" + b"\xff" * 8 + source.bytes[8:] + struct.pack("<q", 3)
    binlog.add(wire.GTID, body).add(wire.QUERY, query("BEGIN")).add(wire.XID, bytes(8))
    with streaming(binlog) as stream:
        read_all(stream)
        assert stream.position().gtid == f"ffffffff-ffff-ffff-{str(source)[19:]}:3"
        assert stream.resolved_ts == Ts(pack(0, 1, binlog.position) - 1)


def test_a_renamed_table_is_emptied_under_the_id_it_keeps() -> None:
    kept = replace(describe(table_map(5)), table_id=99)
    binlog = Binlog().begin().transaction(1).gtid(2).add(wire.QUERY, query("TRUNCATE TABLE t"))
    with streaming(binlog, describe=lambda body: kept, known=lambda schema, name: kept) as stream:
        (cut,) = read_all(stream)
        assert [batch.schema.table_id for batch in cut.batches()] == [99]
        assert [event[0] for _, _, event in lines([cut])] == [wire.WRITE_V2, wire.TRUNCATED]


def test_a_definition_waits_for_the_commit_of_its_transaction() -> None:
    binlog = Binlog().begin().transaction(1).gtid(2).add(wire.QUERY, query("BEGIN"))
    binlog.add(wire.QUERY, query("CREATE TABLE u (i int) START TRANSACTION"))
    with streaming(binlog) as stream:
        (cut,) = read_all(stream)
        assert (len(lines([cut])), cut.ddl) == (1, ())
        assert not stream.is_full


def test_the_error_of_a_lost_connection_does_not_keep_the_memory() -> None:
    with streaming(Binlog()) as stream:
        arena = stream._arena
        memory = weakref.ref(arena.data)
        stream._connection.abort()
        with pytest.raises(SourceUnreachableError) as kept:
            stream.read(timeout_s=1.0)
        arena.release()
        assert memory() is None, kept.value
