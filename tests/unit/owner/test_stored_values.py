"""Stored values: the owner divides what older captures stored whole, and removes parts that no pointer names."""

import pytest

from owner.stored_values import LEFT_FOR_S, StoredValues
from reactor import keys, patches
from reactor.division.packing import packed
from reactor.effects import Commit
from reactor.errors import ConflictError
from reactor.ids import ChangefeedId
from reactor.patches import patch_record
from reactor.records.changefeed import Unit, UnitRecord, UnitStage
from reactor.records.formats import ClusterFormat, Feature
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.store.memory import MemoryEtcd
from reactor.store.port import Put
from reactor.txn import Plan, Seen, plan

FEED = ChangefeedId("feed")
KEY = keys.UnitKey("c", "default", FEED, "main")
TABLES = tuple(TableRecord.new(n, "public", f"customer_orders_{n:06}", key=("id",)) for n in range(9_000))
UNIT = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=TABLES)


class Bed:
    def __init__(self) -> None:
        self.etcd = MemoryEtcd()
        self.state = ClusterState("c")
        self.subject = StoredValues()
        self.set_format(Feature.DIVIDED)

    def set_format(self, number: int) -> None:
        self.put(str(keys.FormatKey("c")), ClusterFormat(number=number).encode())

    def put(self, key: str, value: bytes) -> None:
        self.etcd.txn([], [Put(key, value)])
        self.see()

    def see(self) -> None:
        self.state.load(self.etcd.get_prefix("/weir/c/"))

    def tick(self, now: float) -> list[Seen]:
        effects = self.subject.tick(self.state, now)
        return [Seen.of(one.group, self.state.raw) for one in effects if isinstance(one, Commit)]

    def plan(self, groups: list[Seen]) -> Plan:
        return plan(groups, self.state.raw, delete_count_key=str(keys.DeleteCountKey("c")), format=self.state.format)

    def run(self, groups: list[Seen]) -> None:
        planned = self.plan(groups)
        assert not planned.rejected
        assert self.etcd.txn(planned.txn.compares, planned.txn.operations).succeeded
        self.see()

    def write(self, unit: UnitRecord) -> None:
        self.run([Seen.of(patches.group([patch_record(KEY, UnitRecord, lambda _old: unit)]), self.state.raw)])

    @property
    def parts(self) -> list[str]:
        return [item.key for item in self.etcd.get_prefix("/weir/c/default/part/").items]


@pytest.mark.parametrize("is_packed", [False, True])
def test_values_of_older_captures_are_divided_when_all_are_newer(*, is_packed: bool) -> None:
    bed = Bed()
    bed.set_format(Feature.PACKED)
    bed.put(str(KEY), packed(UNIT.encode()) if is_packed else UNIT.encode())
    assert bed.tick(0.0) == []
    bed.set_format(Feature.DIVIDED)
    bed.run(bed.tick(1.0))
    assert bed.state.changefeeds[FEED].units["main"] == UNIT
    assert max(len(item.key) + len(item.value) for item in bed.etcd.get_prefix("/weir/").items) < 64 << 10
    assert bed.tick(2.0) == []


def test_parts_that_no_pointer_names_are_removed_after_a_while() -> None:
    bed = Bed()
    bed.write(UNIT)
    whole = bed.parts
    for number in range(150):
        bed.put(str(keys.PartKey("c", "default", FEED, f"left/{number}")), b"x")
    assert bed.tick(0.0) == []
    assert bed.tick(LEFT_FOR_S - 1) == []
    bed.run(bed.tick(LEFT_FOR_S))
    assert f"{keys.PartKey('c', 'default', FEED, 'left/0')}" not in bed.parts, "the first part is the first to go"
    bed.run(bed.tick(LEFT_FOR_S + 1))
    assert bed.parts == whole
    assert bed.tick(LEFT_FOR_S + 2) == []
    assert bed.state.changefeeds[FEED].units["main"] == UNIT


def test_parts_whose_pointer_is_written_meanwhile_stay() -> None:
    """The decision is void if one of them has changed, rather than repeated."""
    bed = Bed()
    bed.write(UNIT)
    value = bed.state.raw[str(KEY)].value
    stored = {item.key: item.value for item in bed.etcd.get_prefix("/weir/c/default/part/").items}
    bed.run([Seen.of(patches.group([patches.delete(KEY)]), bed.state.raw)])
    assert bed.parts == []
    for key, part in stored.items():
        bed.put(key, part)
    bed.tick(0.0)
    [doomed] = bed.tick(LEFT_FOR_S)
    bed.etcd.txn([], [Put(key, part) for key, part in stored.items()])
    bed.put(str(KEY), bytes(value))
    planned = bed.plan([doomed])
    assert [type(one.error) for one in planned.rejected] == [ConflictError]
    assert bed.tick(2 * LEFT_FOR_S) == []
    assert bed.state.changefeeds[FEED].units["main"] == UNIT
