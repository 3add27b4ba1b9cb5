"""A place in a source's log as people see it."""

import pytest

from agent.ports.source import BEGIN, Position
from agent.sources import place_name
from agent.sources.mysql.position.positions import BinlogPosition, first_epoch, next_epoch
from reactor.ids import Ts


@pytest.mark.parametrize("uri", ["mysql://weir:***@db/", "mariadb://weir:***@db/"])
def test_a_place_in_a_binlog_is_its_file_and_offset_at_the_server_that_is_read_now(uri: str) -> None:
    at = first_epoch("one", BinlogPosition("mysql-bin.000012", 4567))
    assert place_name(uri, Position(at.resolved, at.to_json())) == "mysql-bin.000012:4567"
    later = next_epoch(at, "two", BinlogPosition("binlog.000003"))
    assert place_name(uri, Position(later.resolved, later.to_json())) == "binlog.000003:4"


def test_a_place_in_the_wal_is_its_lsn() -> None:
    assert place_name("postgresql://weir:***@db/shop", Position(Ts(0x1_0000_00AB))) == "1/AB"


@pytest.mark.parametrize("uri", ["mysql://db/", "postgresql://db/shop"])
def test_no_place_is_no_name(uri: str) -> None:
    assert place_name(uri, BEGIN) == ""


def test_a_damaged_place_has_none_either() -> None:
    assert place_name("mysql://db/", Position(Ts(7), "{")) == ""
