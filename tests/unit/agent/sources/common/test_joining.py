"""Positions at which tables join: one that a reading of their definitions certainly covers."""

import pytest

from agent.ports.source import StreamRestart
from agent.rows.schema import Column, TableSchema
from agent.sources.common.joining import Joining, Reading
from reactor.ids import Ts

NAME = ("public", "t")


def schema(*columns: str) -> TableSchema:
    return TableSchema(1, *NAME, tuple(Column(name, 23, -1, "int4", is_key=False) for name in columns))


def reading(end_ts: int, *columns: str, horizon: int = 0, ahead: int = 0) -> Reading:
    return Reading({NAME: schema(*columns)} if columns else {}, Ts(end_ts), horizon, ahead)


def test_a_table_joins_when_the_stream_is_past_a_reading_that_still_holds() -> None:
    joining = Joining({NAME})
    assert joining.ready(reading(100, "a"), Ts(50)) == {}
    assert joining.ready(reading(110, "a"), Ts(99)) == {}, "the stream may come to an older definition"
    joining.restart()
    assert joining.ready(reading(120, "a"), Ts(100)) == {NAME: schema("a")}
    assert joining.names == set()
    with pytest.raises(StreamRestart):
        joining.restart()


def test_one_reading_is_enough_at_the_end_of_the_log() -> None:
    """An idle server writes nothing, so the stream comes to no later position."""
    joining = Joining({NAME})
    assert joining.ready(reading(100, "a"), Ts(99)) == {}
    assert joining.ready(reading(100, "a", "b", horizon=7, ahead=8), Ts(100)) == {}, "a transaction runs"
    assert joining.ready(reading(100, "a", "b", horizon=8, ahead=8), Ts(100)) == {NAME: schema("a", "b")}


def test_a_definition_that_has_changed_is_read_again() -> None:
    joining = Joining({NAME})
    joining.ready(reading(100, "a"), Ts(50))
    assert joining.ready(reading(200, "a", "b"), Ts(150)) == {}
    assert joining.ready(reading(210, "a", "b"), Ts(199)) == {}
    assert joining.ready(reading(220, "a", "b"), Ts(200)) == {NAME: schema("a", "b")}


def test_a_table_that_is_gone_begins_anew_when_it_comes_back() -> None:
    joining = Joining({NAME})
    joining.ready(reading(100, "a"), Ts(50))
    assert joining.ready(reading(150), Ts(120)) == {}
    assert joining.ready(reading(200, "a"), Ts(180)) == {}
    assert joining.ready(reading(210, "a"), Ts(200)) == {NAME: schema("a")}


def test_transactions_of_before_have_ended_when_it_joins() -> None:
    joining = Joining({NAME})
    joining.ready(reading(100, "a", horizon=7, ahead=9), Ts(50))
    assert joining.ready(reading(110, "a", horizon=8, ahead=12), Ts(105)) == {}, (
        "one may have changes that are not sent"
    )
    assert joining.ready(reading(120, "a", horizon=9, ahead=15), Ts(115)) == {NAME: schema("a")}


def test_what_the_stream_has_taken_in_by_itself_does_not_join() -> None:
    joining = Joining({NAME})
    joining.leave_out([NAME])
    assert joining.ready(reading(100, "a"), Ts(200)) == {}


def test_the_catalog_is_not_read_for_every_chunk() -> None:
    joining = Joining({NAME}, pause_s=3600.0)
    assert joining.is_due()
    joining.ready(reading(100), Ts(50))
    assert not joining.is_due()
    joining.pause_s = 0.0
    assert joining.is_due()
    joining.leave_out([NAME])
    assert not joining.is_due()


def test_a_table_that_is_gone_is_given_up_once() -> None:
    other = ("public", "u")
    joining = Joining({NAME, other})
    assert joining.give_up([NAME, other]) == ()
    assert not joining.has_given_up
    assert joining.give_up([other]) == (NAME,)
    assert (joining.names, joining.has_given_up) == ({other}, True)
    assert joining.give_up([NAME, other]) == ()
    assert not joining.has_given_up
