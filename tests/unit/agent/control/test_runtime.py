"""Runtime of a changefeed on a capture: its view of etcd bounds its flushes, whatever the owner has sent so far."""

from agent.control.runtime import FlushLimits, held_tables
from reactor.ids import Ts
from reactor.messages import Barrier
from reactor.records.log_head import LogHead
from reactor.records.tables.change_index import ChangeIndex
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord


def record(ts: int, *tables: int, done: bool = False, after: str = "{}") -> DdlRecord:
    changes = tuple(TableChange(kind=SchemaChangeKind.ALTER, table_id=table, after=after) for table in tables)
    return DdlRecord(ts=Ts(ts), changes=changes, done=done)


NONE = Barrier()


def limits(*ddl: DdlRecord, barrier: Barrier = NONE) -> FlushLimits:
    return FlushLimits(
        LogHead(resolved_ts=Ts(100)),
        barrier,
        held_tables(ddl),
        {},
        ChangeIndex({record.ts: record for record in ddl}).newest_done(),
    )


def test_a_table_is_held_right_before_its_first_change_that_waits() -> None:
    found = limits(record(30, 1, done=True), record(40, 1), record(50, 1, 2))
    assert [found.target(table) for table in (1, 2, 3)] == [39, 49, 100]


def test_the_owners_barrier_counts_too() -> None:
    found = limits(record(40, 1), barrier=Barrier(Ts(80), ((1, Ts(20)), (2, Ts(60)))))
    assert [found.target(table) for table in (1, 2, 3)] == [20, 60, 80]


def test_a_range_knows_the_newest_change_that_lies_in_it() -> None:
    found = limits(record(30, 1, done=True), record(50, 1, done=True, after='{"x":1}'), record(60, 1))
    assert '{\\"x\\":1}' in found.change_since(1, Ts(49))[1]
    assert found.change_since(1, Ts(49))[0] == 50
    assert found.change_since(1, Ts(50))[1] == ""
    assert found.change_since(2, Ts(0))[1] == ""
    assert limits(record(30, 1, done=True, after="")).change_since(1, Ts(0))[1] == "", "it is gone"


def test_the_newest_record_of_a_table_counts() -> None:
    old = TableRecord(table_id=1, schema_name="s", name="a")
    new = old.with_(name="b")
    found = FlushLimits(LogHead(), Barrier(), tables={1: new})
    assert found.table(old) is new
    assert found.table(old.with_(table_id=2)).name == "a"
