"""Positions in a binlog as Ts, and GTID sets."""

from dataclasses import replace

import pytest

from agent.errors import SourceConfigError, SourceError
from agent.sources.mysql.position.gtid import MariaGtidSet, MysqlGtidSet, parse_gtid_set
from agent.sources.mysql.position.positions import (
    BinlogPosition,
    SourcePosition,
    behind,
    first_epoch,
    next_epoch,
    pack,
    split_file_name,
    unpack,
)

UUID_A, UUID_B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_a_ts_holds_epoch_file_and_position_and_orders_as_they_do() -> None:
    places = [(0, 1, 4), (0, 1, 1 << 31), (0, 2, 4), (0, (1 << 24) - 1, 7), (1, 1, 4), (127, (1 << 24) - 1, 0xFFFFFFFF)]
    stamps = [pack(*place) for place in places]
    assert [unpack(ts) for ts in stamps] == places
    assert stamps == sorted(stamps)
    assert stamps[-1] < 1 << 63


@pytest.mark.parametrize("place", [(128, 1, 4), (0, 1 << 24, 4), (0, 1, (1 << 32) + 1), (0, -1, 4)])
def test_what_does_not_fit_into_a_ts_is_refused(place: tuple[int, int, int]) -> None:
    with pytest.raises(SourceError, match="do not fit"):
        pack(*place)


def test_the_end_of_an_overlong_file_is_the_beginning_of_the_next() -> None:
    end = first_epoch("1", BinlogPosition("binlog.000009", 1 << 32))
    assert end.binlog == BinlogPosition("binlog.000010", 4)


def test_a_source_position_survives_as_text() -> None:
    begun = first_epoch("uuid-1", BinlogPosition("my-bin.with.dots.000099", 1234), f"{UUID_A}:1-7")
    later = next_epoch(begun, "uuid-2", BinlogPosition("other.001", 4))
    for position in (begun, later):
        assert SourcePosition.from_json(position.to_json()) == position
    assert begun.binlog == BinlogPosition("my-bin.with.dots.000099", 1234)
    assert str(later.binlog) == "other.001:4"
    assert later.epoch.gtid == later.gtid == begun.gtid
    assert later.resolved > begun.ts
    with pytest.raises(SourceError, match="damaged"):
        SourcePosition.from_json('{"epochs": 3}')


def test_epochs_are_used_up_with_a_message() -> None:
    position = first_epoch("0", BinlogPosition("b.000001"))
    for number in range(1, 128):
        position = next_epoch(position, str(number), BinlogPosition("b.000001"))
    with pytest.raises(SourceError, match="epoch 128"):
        next_epoch(position, "128", BinlogPosition("b.000001"))


def test_a_binlog_file_has_a_base_and_a_number() -> None:
    assert split_file_name("mysql-bin.000012") == ("mysql-bin", 12)
    with pytest.raises(SourceConfigError, match="no binlog file"):
        split_file_name("mysql-bin")


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (f"{UUID_A}:1-5:7:9-11", f"{UUID_A}:1-5:7:9-11"),
        (f"{UUID_A.upper()}:7:1-3:4-6 ,\n{UUID_B}:2", f"{UUID_A}:1-7,{UUID_B}:2"),
        (f"{UUID_A}:1-3:tag_a:1-2:5:other:9", f"{UUID_A}:1-3,{UUID_A}:other:9,{UUID_A}:tag_a:1-2:5"),
        ("", ""),
    ],
)
def test_mysql_sets_are_written_in_one_way(text: str, normal: str) -> None:
    found = MysqlGtidSet.parse(text)
    assert str(found) == normal
    assert MysqlGtidSet.parse(normal) == found
    assert bool(found) == bool(normal)


def test_mysql_sets_add() -> None:
    big = MysqlGtidSet.parse(f"{UUID_A}:1-9,{UUID_B}:1-3")
    small = MysqlGtidSet.parse(f"{UUID_A}:2-4:6")
    assert str(small.add(UUID_A, 5, 5)) == f"{UUID_A}:2-6"
    assert str(big.add(UUID_B, 5, 5)) == f"{UUID_A}:1-9,{UUID_B}:1-3:5"


def test_mysql_sets_are_encoded_for_the_server() -> None:
    encoded = MysqlGtidSet.parse(f"{UUID_A}:1-5:7").encode()
    numbers = [int.from_bytes(encoded[at : at + 8], "little") for at in range(24, len(encoded), 8)]
    assert encoded[:8] == b"\1" + bytes(7)
    assert encoded[8:24].hex() == UUID_A.replace("-", "")
    assert numbers == [2, 1, 6, 7, 8]  # two intervals, their ends not included
    tagged = MysqlGtidSet.parse(f"{UUID_A}:1,{UUID_A}:tag:2").encode()
    assert tagged[:8] == b"\1\2" + bytes(5) + b"\1"
    assert tagged[24] == 0
    assert b"\x06tag" in tagged


def test_mariadb_sets_keep_the_last_of_each_domain() -> None:
    position = MariaGtidSet.parse("1-7-9, 0-1-5")
    assert str(position) == "0-1-5,1-7-9"
    assert str(position.add(0, 2, 6)) == "0-2-6,1-7-9"
    assert not MariaGtidSet()


@pytest.mark.parametrize(
    ("text", "is_mariadb"), [("0-1", True), ("a-b-c", True), ("no-uuid:1-2", False), (f"{UUID_A}:1-x", False)]
)
def test_malformed_sets_are_refused(text: str, is_mariadb: bool) -> None:
    with pytest.raises(SourceError, match="written"):
        parse_gtid_set(text, is_mariadb=is_mariadb)


@pytest.mark.parametrize(
    ("file", "server", "epoch"),
    [
        ("binlog.000008", "one", 1),
        ("binlog.000007", "one", 2),  # it was reset, and is not as far as it was
        ("binlog.000009", "two", 2),
        ("other.000009", "one", 2),
    ],
)
def test_a_position_behind_a_lost_one_is_always_larger(file: str, server: str, epoch: int) -> None:
    before = next_epoch(
        first_epoch("zero", BinlogPosition("binlog.000003", 90)), "one", BinlogPosition("binlog.000001")
    )
    lost = replace(before, file_number=7, position=500)
    now = behind(lost, first_epoch(server, BinlogPosition(file, 400), "0-1-9"))
    assert now.ts > lost.ts
    assert (now.epoch.number, now.epoch.server, str(now.binlog)) == (epoch, server, f"{file}:400")
    assert SourcePosition.from_json(now.to_json()) == now
