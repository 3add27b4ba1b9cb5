"""Distributed transactions: what waits for its decision, where the position says so, and how rows come back."""

import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from agent.errors import SnapshotLostByGCError, SourceError, SourceUnreachableError
from agent.rows.arena import Arena
from agent.sources.mysql.binlog import prepared, split
from agent.sources.mysql.binlog.prepared import NO_ROWS, KeptRows, Prepared, digest
from agent.sources.mysql.binlog.recover import xid_name
from agent.sources.mysql.binlog.reread import Reader, Reread
from agent.sources.mysql.decode import wire
from agent.sources.mysql.position.positions import BinlogPosition, SourcePosition, first_epoch, next_epoch, pack
from reactor.ids import Ts
from tests.binlog import Binlog, Line, query, rows, table_map
from tests.unit.agent.sources.mysql.binlog.test_stream import FILE, Fed, describe, is_wanted, lines, read_all, streaming

NAME = "X'01',X'',1"
Ask = tuple[str, BinlogPosition | None, BinlogPosition]


def xa_prepare(*, commits: bool = False, name: bytes = b"\1") -> bytes:
    return bytes([commits]) + struct.pack("<III", 1, len(name), 0) + name


def begun(
    number: int = 1, schema: str = "a", *, count: int = 1, name: str = NAME, binlog: Binlog | None = None
) -> Binlog:
    binlog = (binlog or Binlog().begin()).gtid(number).add(wire.QUERY, query(f"XA START {name}"))
    binlog.add(wire.TABLE_MAP, table_map(5, schema))
    for i in range(count):
        binlog.add(wire.WRITE_V2, rows(5, struct.pack("<BI", 0xFE, i)))
    return binlog.add(wire.QUERY, query(f"XA END {name}"))


def decided(binlog: Binlog, number: int, how: str, name: str = NAME) -> Binlog:
    return binlog.gtid(number).add(wire.QUERY, query(f"XA {how} {name}"))


class Remembered:
    """A ``reread`` that notes what it is asked for, and answers with a binlog's bare events."""

    def __init__(self, *bodies: tuple[int, bytes]) -> None:
        bare = Binlog(checksum=False)
        self._data = b"".join(bare.event(kind, body) for kind, body in bodies)
        self.asked: list[Ask] = []

    def __call__(self, name: str, at: BinlogPosition | None, before: BinlogPosition) -> Reader:
        self.asked.append((name, at, before))
        return self

    def read_into(self, view: memoryview) -> int:
        count = min(len(view), len(self._data), 50)
        view[:count], self._data = self._data[:count], self._data[count:]
        return count


GROUP = (
    (wire.QUERY, query(f"XA START {NAME}")),
    (wire.TABLE_MAP, table_map(5)),
    (wire.WRITE_V2, rows(5)),
    (wire.WRITE_V2, rows(5)),
    (wire.QUERY, query(f"XA END {NAME}")),
    (wire.XA_PREPARE, xa_prepare()),
)


def test_rows_count_where_they_are_committed() -> None:
    binlog = begun(count=2).add(wire.XA_PREPARE, xa_prepare()).transaction(2, 9)
    at = binlog.position
    decided(binlog, 3, "COMMIT").transaction(4, 9)
    with streaming(binlog) as stream:
        found = lines(read_all(stream))
        assert stream.position().prepared == ()
    committed = [(ts, seq >> split.SEQ_SHIFT, event[-4:]) for ts, seq, event in found if ts == pack(0, 1, at)]
    assert committed == [(pack(0, 1, at), 0, b"\0\0\0\0"), (pack(0, 1, at), 1, b"\1\0\0\0")]
    stamps = [ts for ts, _, _ in found]
    assert (len(found), stamps) == (4, sorted(stamps))


def test_what_is_rolled_back_was_never_there() -> None:
    binlog = begun().add(wire.XA_PREPARE, xa_prepare())
    with streaming(decided(binlog, 2, "ROLLBACK").transaction(3, 9)) as stream:
        [(ts, _, _)] = lines(read_all(stream))
        assert stream.position().prepared == ()
        assert stream.position().gtid.endswith(":1-3")
    assert ts > pack(0, 1, 200)


def test_one_phase_commits_where_it_ends() -> None:
    with streaming(begun().add(wire.XA_PREPARE, xa_prepare(commits=True)).transaction(2, 9)) as stream:
        assert next(ts for ts, _, _ in lines(read_all(stream))) == pack(0, 1, 4)
        assert stream.position().prepared == ()


def test_the_position_says_what_is_only_prepared() -> None:
    binlog = begun().add(wire.XA_PREPARE, xa_prepare())
    begun(2, "b", name="X'02',X'',1", binlog=binlog).add(wire.XA_PREPARE, xa_prepare(name=b"\2"))
    with streaming(binlog) as stream:
        assert lines(read_all(stream)) == []
        position = stream.position()
    assert position.prepared == ((digest(NAME), pack(0, 1, 4)), (digest("X'02',X'',1"), NO_ROWS))
    assert SourcePosition.from_json(position.to_json()) == position
    assert (position.needed.position, position.binlog.position) == (4, binlog.position)


@pytest.mark.parametrize("arena_bytes", [400, 1 << 20])
def test_the_next_stream_reads_again_what_it_did_not_see(arena_bytes: int) -> None:
    position = replace(first_epoch("uuid", BinlogPosition("binlog.000003")), prepared=((digest(NAME), pack(0, 1, 44)),))
    binlog, reread = decided(Binlog().begin("binlog.000003"), 8, "COMMIT").transaction(9, 9), Remembered(*GROUP)
    with at_position(binlog, position, reread, arena_bytes=arena_bytes) as stream:
        found = lines(read_all(stream, arena_bytes=arena_bytes))
        assert stream.position().prepared == ()
    assert reread.asked == [(NAME, BinlogPosition(FILE, 44), BinlogPosition("binlog.000003"))]
    assert [ts for ts, _, _ in found] == [pack(0, 3, 4)] * 2 + [found[2][0]]
    assert len({seq for _, seq, _ in found[:2]}) == 2


@contextmanager
def at_position(
    binlog: Binlog,
    position: SourcePosition,
    reread: "Remembered",
    *,
    arena_bytes: int = 1 << 20,
    sent: int | None = None,
) -> Iterator[Fed]:
    with closing(Line()) as line:
        line.far.sendall(binlog.data[:sent])
        stream = Fed(
            line,
            Arena(arena_bytes),
            position=position,
            is_wanted=is_wanted,
            describe=describe,
            reread=reread,
            pause_s=0.0,
        )
        stream.expected_bytes, stream.line = len(binlog.data), line
        yield stream


@pytest.mark.parametrize(
    "known",
    [(), ((digest(NAME), pack(1, 1, 4)),)],
    ids=["prepared before the changefeed began", "prepared at another server"],
)
def test_a_place_that_is_not_known_is_looked_for(known: tuple[tuple[str, int], ...]) -> None:
    position = replace(next_epoch(first_epoch("u", BinlogPosition(FILE)), "v", BinlogPosition(FILE)), prepared=known)
    reread = Remembered(*GROUP)
    with at_position(decided(Binlog().begin(), 1, "COMMIT"), position, reread) as stream:
        assert len(lines(read_all(stream))) == 2
    assert reread.asked == [(NAME, None, BinlogPosition(FILE))]


SMALL = 1 << 11
#: 40 rows of 47 bytes and more
LARGE = tuple((wire.WRITE_V2, rows(5, struct.pack("<BI", 0xFE, i))) for i in range(40))


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
def test_one_that_fills_an_arena_is_not_cut_and_read_again_when_it_counts(how: str) -> None:
    binlog = begun(2, count=40, binlog=Binlog().begin().transaction(1, 9)).add(wire.XA_PREPARE, xa_prepare())
    at = binlog.position
    decided(binlog, 3, how).transaction(4, 9)
    reread = Remembered(*GROUP[:2], *LARGE, *GROUP[4:])
    with streaming(binlog, arena_bytes=SMALL, reread=reread) as stream:
        found = read_all(stream, arena_bytes=SMALL)
    assert [len(reread.asked), len([ts for ts, _, _ in lines(found) if ts == pack(0, 1, at)])] == (
        [1, 40] if how == "COMMIT" else [0, 0]
    )
    assert len(lines(found)) == (42 if how == "COMMIT" else 2)
    assert {cut.first_ts for cut in found if not cut.is_complete} == ({pack(0, 1, at)} if how == "COMMIT" else set())


def test_a_savepoint_does_not_bring_rows_back_into_one_that_overflows() -> None:
    binlog = begun(count=40)
    binlog.add(wire.QUERY, query("ROLLBACK TO a")).add(wire.WRITE_V2, rows(5)).add(wire.XA_PREPARE, xa_prepare())
    reread = Remembered(*GROUP)
    with streaming(decided(binlog, 2, "COMMIT"), arena_bytes=SMALL, reread=reread) as stream:
        assert len(lines(read_all(stream, arena_bytes=SMALL))) == 2
    assert len(reread.asked) == 1


@pytest.mark.parametrize("is_compressed", [False, True])
def test_one_that_fills_an_arena_and_commits_at_once_is_read_again_there(is_compressed: bool) -> None:
    parts = [*GROUP[:2], *LARGE, GROUP[4], (wire.XA_PREPARE, xa_prepare(commits=True))]
    binlog = Binlog().begin().gtid(1)
    bare = Binlog(checksum=False)
    if is_compressed:
        binlog.payload(b"".join(bare.event(kind, body) for kind, body in parts))
    for kind, body in parts * (not is_compressed):
        binlog.add(kind, body)
    reread = Remembered(*parts)
    with streaming(binlog.transaction(2, 9), arena_bytes=SMALL, reread=reread) as stream:
        found = lines(read_all(stream, arena_bytes=SMALL))
        assert stream.position().gtid.endswith(":1-2")
    assert len(reread.asked) == 1
    assert [(ts, seq >> split.SEQ_SHIFT, event[-4:]) for ts, seq, event in found[:-1]] == [
        (pack(0, 1, 4), i, struct.pack("<I", i)) for i in range(40)
    ]


def test_a_rollback_in_a_transaction_that_is_read_again_is_one() -> None:
    parts = [*GROUP[:3], (wire.QUERY, query("SAVEPOINT a")), GROUP[3], (wire.QUERY, query("ROLLBACK TO a")), *GROUP[4:]]
    with streaming(decided(Binlog().begin(), 1, "COMMIT"), reread=Remembered(*parts)) as stream:
        assert len(lines(read_all(stream))) == 1


def test_nothing_is_read_again_for_what_has_no_rows_of_ours() -> None:
    binlog = decided(begun(schema="b").add(wire.XA_PREPARE, xa_prepare()), 2, "COMMIT")
    with streaming(binlog.transaction(3, 9)) as stream:
        assert len(lines(read_all(stream))) == 1


def test_another_server_has_its_own_places() -> None:
    entries = ((digest("a"), pack(0, 7, 99)), (digest("b"), 0))
    before = replace(first_epoch("u", BinlogPosition("binlog.000009", 500), "0-1-5"), prepared=entries)
    after = next_epoch(before, "v", BinlogPosition("log.000002"))
    assert after.prepared == ((digest("a"), pack(1, 2, 4)), (digest("b"), 0))
    assert (str(before.needed), str(after.needed)) == ("binlog.000007:99", "log.000002:4")


# The list, and rows outside of arenas


def kept(length: int, count: int = 1) -> KeptRows:
    lines = np.zeros((count, 6), np.int64)
    lines[:, 1], lines[:, 0] = length, np.arange(count) * length
    return KeptRows(np.full(count * length, 7, np.uint8), lines)


def test_the_oldest_rows_are_forgotten_and_their_places_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "KEPT_BYTES", 3 * kept(100).size)
    known = Prepared()
    for number in range(5):
        known.add(str(number), Ts(number + 1), kept(100))
    assert [known.rows(str(number)) is not None for number in range(5)] == [False, False, True, True, True]
    known.remove("3")
    known.add("5", Ts(6), kept(100))
    assert [known.rows(str(number)) is not None for number in range(6)] == [False, False, True, False, True, True]
    assert [known.place(str(number)) for number in range(6)] == [1, 2, 3, None, 5, 6]
    assert Prepared(known.entries).entries == known.entries


def test_what_the_server_forgot_is_kept_until_no_decision_can_come() -> None:
    known = Prepared([(digest("lost"), 1), (digest("there"), 2), (digest("again"), 3)])
    known.doubt([digest("lost"), digest("again")], Ts(100))
    known.settle(Ts(99))
    known.add("again", Ts(50))
    places = {name: known.place(name) for name in ("lost", "there", "again")}
    known.settle(Ts(100))
    assert places == {"lost": 1, "there": 2, "again": 50}
    assert dict(known.entries) == {digest("there"): 2, digest("again"): 50}
    known.add("lost", Ts(110))
    known.settle(Ts(120))
    assert known.place("lost") == 110


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ((1, 1, "'x'"), "X'78',X'',1"),
        ((7, 3, "'a,b','c',7"), "X'612C62',X'63',7"),
        ((3, 2, "X'00ff',X'',3"), "X'00FF',X'',3"),
        ((7, 4, "0x6974277362"), "X'69742773',X'62',7"),
        ((1, 1, "0x78"), "X'78',X'',1"),
    ],
)
def test_a_server_names_what_it_holds_in_two_ways(row: tuple[int, int, str], name: str) -> None:
    assert xid_name(*row) == name


def test_a_name_that_comes_again_has_its_new_place() -> None:
    known = Prepared([(digest("a"), 1), (digest("b"), 2)])
    known.add("a", Ts(3), kept(10))
    known.add("a", Ts(4))
    assert (known.place("a"), known.rows("a")) == (4, None)
    assert known.entries == ((digest("b"), 2), (digest("a"), 4))


def test_rows_that_come_back_push_aside_what_was_not_read_yet() -> None:
    """Those of an arena that is gone: in the next one there is nothing in front of the commit that they could take."""
    binlog = begun(2, count=40, binlog=Binlog().begin().transaction(1, 9)).add(wire.XA_PREPARE, xa_prepare())
    before = len(binlog.data)
    decided(binlog, 3, "COMMIT").transaction(4, 9).transaction(5, 9)
    with at_position(binlog, first_epoch("u", BinlogPosition(FILE)), Remembered(), sent=before) as stream:
        while stream.bytes_read < before:
            stream.read(timeout_s=10.0)
        assert len(lines([stream.take_chunk(Arena(1 << 12))])) == 1
        stream.line.far.sendall(binlog.data[before:])
        found = lines(read_all(stream))
    assert [event[-4:] for _, _, event in found[:40]] == [struct.pack("<I", i) for i in range(40)]
    assert len({ts for ts, _, _ in found[:40]}) == 1
    assert len(found) == 42


def test_an_arena_makes_room_for_them_in_front_of_what_was_not_read() -> None:
    arena = Arena(16)
    arena.data[:10], arena.filled = range(10), 10
    arena.insert(4, 3)
    assert arena.data[:4].tolist() + arena.data[7 : arena.filled].tolist() == list(range(10))
    arena.insert(4, 30)
    assert arena.data[37 : arena.filled].tolist() == list(range(4, 10))


# The second dump


class Server(Line):
    """Answers with one file for each dump. ``dumps``: where they began."""

    files: dict[str, Binlog]
    asked: list[BinlogPosition]

    def execute(self, sql: str, *, timeout_s: float = 0.0) -> None:
        assert "SESSION net_write_timeout" in sql

    def query(self, sql: str, *, timeout_s: float = 0.0) -> list[tuple[str | None, ...]]:
        return [(name, "1") for name in self.files]

    def send_command(self, code: int, payload: bytes) -> None:
        position, flags, number = struct.unpack_from("<IHI", payload)
        assert (flags, number) == (1, 0)
        file = payload[10:].decode()
        self.asked.append(BinlogPosition(file, position))
        self.far.sendall(self.files[file].data)
        self.far.close()


def server(asked: list[BinlogPosition] | None = None, **files: Binlog) -> Callable[[], Server]:
    def connect() -> Server:
        made = Server()
        made.files = {name.replace("_", "."): binlog for name, binlog in files.items()}
        made.asked = [] if asked is None else asked
        return made

    return connect


def taken(reader: Reader, size: int = 7) -> bytes:
    data, view = b"", memoryview(bytearray(size))
    while count := reader.read_into(view):
        data += bytes(view[:count])
    return data


def kinds(data: bytes) -> list[int]:
    """Of bare events."""
    found = []
    while data:
        found.append(data[wire.TYPE_AT])
        data = data[int.from_bytes(data[wire.LENGTH_AT : wire.POSITION_AT], "little") :]
    return found


def take_without_commit(reader: Reader) -> None:
    view = memoryview(bytearray(1 << 10))
    while count := reader.read_into(view):
        assert kinds(bytes(view[:count]))[0] not in (wire.XID, wire.XA_PREPARE)


BARE = [wire.QUERY, wire.TABLE_MAP, wire.WRITE_V2, wire.QUERY, wire.XA_PREPARE]
BEFORE = BinlogPosition("b.2", 1 << 20)


@pytest.mark.parametrize("checksum", [True, False])
def test_one_transaction_is_read_and_no_more(checksum: bool) -> None:
    binlog = begun(binlog=Binlog(checksum=checksum).begin("b.1")).add(wire.XA_PREPARE, xa_prepare())
    with closing(Reread(server(b_1=binlog.transaction(2, 9).send(b"\xfe")))) as reread:
        assert kinds(taken(reread.rows_of(NAME, BinlogPosition("b.1", 4), BEFORE))) == BARE


def test_a_compressed_one_is_inflated() -> None:
    inside = Binlog(checksum=False)
    events = b"".join(inside.event(kind, body) for kind, body in GROUP)
    binlog = Binlog().begin("b.1").gtid(1).payload(events).transaction(2, 9).send(b"\xfe")
    with closing(Reread(server(b_1=binlog))) as reread:
        assert taken(reread.rows_of(NAME, BinlogPosition("b.1", 4), BEFORE)) == events
        assert taken(reread.rows_of(NAME, None, BinlogPosition("b.1", binlog.position))) == events


def test_it_is_looked_for_from_its_commit_backwards() -> None:
    asked: list[BinlogPosition] = []
    old = begun(binlog=Binlog().begin("b.1")).add(wire.XA_PREPARE, xa_prepare())
    decided(old, 2, "ROLLBACK")
    at = old.position
    begun(3, binlog=old).add(wire.XA_PREPARE, xa_prepare()).rotate("b.2")
    new = Binlog().begin("b.2").transaction(4)
    before = BinlogPosition("b.2", new.position)
    begun(5, binlog=new, count=3).add(wire.XA_PREPARE, xa_prepare())
    with closing(Reread(server(asked, b_1=old, b_2=new, b_3=Binlog().begin("b.3")))) as reread:
        reread.rows_of(NAME, None, before)
        assert [str(place) for place in asked] == ["b.2:4", "b.1:4", f"b.1:{at}"]


def test_what_is_not_there_any_more_is_reported() -> None:
    other = begun(binlog=Binlog().begin("b.1"), name="X'02',X'',1").add(wire.XA_PREPARE, xa_prepare(name=b"\2"))
    plain = Binlog().begin("b.2").transaction(1)
    with closing(Reread(server(b_1=other.send(b"\xfe"), b_2=plain.send(b"\xfe")))) as reread:
        with pytest.raises(SnapshotLostByGCError, match=r"no more.*resume --resync"):
            reread.rows_of(NAME, None, BEFORE)
        for file in ("b.1", "b.2"):
            with pytest.raises(SnapshotLostByGCError, match=r"X'01',X'',1 is not where it was prepared"):
                take_without_commit(reread.rows_of(NAME, BinlogPosition(file), BEFORE))


def error(number: int) -> bytes:
    return b"\xff" + struct.pack("<H", number) + b"#HY000no"


@pytest.mark.parametrize(
    ("binlog", "raised", "match"),
    [
        (Binlog().send(error(1236) + b"t find: purged"), SnapshotLostByGCError, "purged"),
        (begun(), SourceUnreachableError, "opened again"),
        (Binlog().begin().gtid(1).send(b"\0" + bytes(40)), SourceUnreachableError, "checksum"),
        (begun().send(b"\xfe"), SnapshotLostByGCError, "not where"),
    ],
    ids=["refused", "broken off", "damaged", "ended"],
)
def test_what_goes_wrong_has_a_cause(binlog: Binlog, raised: type[SourceError], match: str) -> None:
    with closing(Reread(server(binlog_000001=binlog))) as reread, pytest.raises(raised, match=match):
        taken(reread.rows_of(NAME, BinlogPosition(FILE), BEFORE))


def test_who_aborts_ends_what_is_opened_later_too() -> None:
    with closing(Reread(server(binlog_000001=begun().add(wire.XA_PREPARE, xa_prepare())))) as reread:
        reread.abort()
        with pytest.raises((SourceUnreachableError, OSError)):
            taken(reread.rows_of(NAME, BinlogPosition(FILE), BEFORE))
