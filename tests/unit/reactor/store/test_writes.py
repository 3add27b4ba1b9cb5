"""Division: a large value is in parts of its own; a change writes the parts of what changed, and a pointer last."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reactor import keys, patches
from reactor.division import divided as division
from reactor.division.divided import Divided, after, divided, is_pointer, joined
from reactor.division.packing import packed
from reactor.errors import InvalidRecordError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import Unit, UnitRecord, UnitStage
from reactor.records.formats import ClusterFormat, Feature
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Event, Put, Target
from reactor.store.writes import in_parts
from reactor.txn import Plan, Seen, plan

FEED = ChangefeedId("feed")
KEY = keys.UnitKey("c", "default", FEED, "main")
COUNT = str(keys.DeleteCountKey("c"))
KEY_MAX = 64 << 10


def table(number: int, *, ts: int = 0) -> TableRecord:
    return TableRecord.new(number, "public", f"customer_orders_{number:06}", key=("id",), start_ts=Ts(ts))


def unit(tables: Sequence[TableRecord]) -> UnitRecord:
    return UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=tuple(tables))


class Bed:
    """A store, and a state that sees each of its revisions."""

    def __init__(self, format: int = Feature.DIVIDED) -> None:
        self.etcd = MemoryEtcd()
        self.etcd.txn([], [Put(str(keys.FormatKey("c")), ClusterFormat(number=format).encode())])
        self.state = ClusterState("c")
        self.see()

    def see(self) -> None:
        """A new state, and one that has followed: they are the same."""
        snapshot = self.etcd.get_prefix("/weir/c/")
        self.state.load(snapshot)
        fresh = ClusterState("c")
        fresh.load(snapshot)
        assert self.state.broken == fresh.broken == {}
        found, same = self.state.changefeeds.get(FEED), fresh.changefeeds.get(FEED)
        assert (found.units, found.ddl) == (same.units, same.ddl) if found and same else found is same

    def plan(self, *changes: patches.Patch) -> Plan:
        seen = Seen.of(patches.group(changes), self.state.raw)
        return plan([seen], self.state.raw, delete_count_key=COUNT, format=self.state.format)

    def commit(self, *changes: patches.Patch) -> Plan:
        planned = self.plan(*changes)
        assert not planned.rejected
        revisions = [self.etcd.txn([], puts).revision for puts in planned.txn.early]
        fences = [Compare(key, Target.MOD_REVISION, revisions[0]) for key in planned.txn.fenced]
        assert self.etcd.txn([*planned.txn.compares, *fences], planned.txn.operations).succeeded
        self.see()
        return planned

    def put(self, record: UnitRecord) -> Plan:
        return self.commit(patches.patch_record(KEY, UnitRecord, lambda _old: record))

    @property
    def record(self) -> UnitRecord:
        return self.state.changefeeds[FEED].units["main"]

    @property
    def parts(self) -> dict[str, bytes]:
        found = self.etcd.get_prefix("/weir/c/default/part/").items
        return {item.key: item.value for item in found}

    def check_sizes(self) -> None:
        for item in self.etcd.get_prefix("/weir/c/").items:
            assert len(item.key) + len(item.value) < KEY_MAX, item.key


@pytest.mark.matrix
def test_one_table_of_twenty_thousand_is_changed_in_one_part() -> None:
    bed = Bed()
    tables = [table(n) for n in range(20_000)]
    first = bed.put(unit(tables))
    assert bed.record == unit(tables)
    assert len(first.txn.writes) > 40
    bed.check_sizes()
    tables[12_345] = table(12_345, ts=7)
    second = bed.put(unit(tables))
    assert bed.record == unit(tables)
    written = {key: value for key, value in second.txn.writes.items() if value is not None}
    assert len(written) == 2, "the part, and the pointer"
    assert sum(len(value) for value in written.values()) < 30_000
    assert bed.parts.keys() == {key for key in bed.parts if key.partition("/part/feed/")[2] in names(bed)}, "no more"
    bed.check_sizes()


def names(bed: Bed) -> set[str]:
    value = bed.state.raw[str(KEY)].value
    assert isinstance(value, Divided)
    return set(value.names)


@pytest.mark.matrix
@settings(max_examples=12)
@given(st.randoms(use_true_random=False))
def test_any_changes_are_read_as_written_and_leave_no_part(chance: random.Random) -> None:
    """Tables come, go, change, change places; the record grows and shrinks across the limit."""
    bed = Bed()
    tables = [table(n) for n in range(chance.choice((0, 10, 900, 3_000)))]
    bed.put(unit(tables))
    number = 10_000
    for _ in range(6):
        match chance.randrange(6):
            case 0:
                count = chance.choice((1, 40, 2_000))
                at = chance.randrange(len(tables) + 1)
                tables[at:at] = [table(number + n) for n in range(count)]
                number += count
            case 1:
                chance.shuffle(tables)
            case 2:
                tables = [one for one in tables if chance.random() < 0.5]
            case 3:
                tables = tables[: len(tables) // 20]
            case _:
                for _ in range(min(len(tables), 3)):
                    at = chance.randrange(len(tables))
                    tables[at] = tables[at].with_(start_ts=Ts(chance.randrange(1_000)))
        bed.put(unit(tables).with_(timeline=chance.randrange(3)))
        assert bed.record.tables == tuple(tables)
        bed.check_sizes()
        value = bed.state.raw[str(KEY)].value
        assert len(bed.parts) == (len(value.names) if isinstance(value, Divided) else 0)
        if not isinstance(value, Divided):
            assert not is_pointer(value)


@pytest.mark.matrix
def test_a_change_that_needs_many_transactions_shows_with_the_last() -> None:
    bed = Bed()
    chance = random.Random(7)
    named = (table(n).with_(name=chance.randbytes(30).hex()) for n in range(40_000))
    before = unit([table(n) for n in range(2_000)])
    bed.put(before)
    after_ = unit(list(named))
    planned = bed.plan(patches.patch_record(KEY, UnitRecord, lambda _old: after_))
    assert len(planned.txn.early) > 1
    for puts in planned.txn.early:
        bed.etcd.txn([], puts)
        bed.see()
        assert bed.record == before
    bed.commit(patches.patch_record(KEY, UnitRecord, lambda _old: after_))
    assert bed.record == after_
    bed.check_sizes()


@pytest.mark.matrix
def test_parts_that_were_removed_meanwhile_are_noticed() -> None:
    """A writer is slow between its parts and its pointer; the owner removes what nobody names."""
    bed = Bed()
    chance = random.Random(7)
    record = unit([table(n).with_(name=chance.randbytes(30).hex()) for n in range(40_000)])
    planned = bed.plan(patches.patch_record(KEY, UnitRecord, lambda _old: record))
    revisions = [bed.etcd.txn([], puts).revision for puts in planned.txn.early]
    bed.see()
    first = keys.parse(planned.txn.fenced[0])
    bed.commit(patches.delete(first))
    fences = [Compare(key, Target.MOD_REVISION, revisions[0]) for key in planned.txn.fenced]
    assert not bed.etcd.txn([*planned.txn.compares, *fences], planned.txn.operations).succeeded
    bed.put(record)
    assert bed.record == record


def test_the_same_change_has_the_same_parts() -> None:
    """What got no answer is written again, and the watch of the first one is recognised."""
    bed = Bed()
    record = unit([table(n) for n in range(3_000)])
    change = patches.patch_record(KEY, UnitRecord, lambda _old: record)
    assert bed.plan(change).txn == bed.plan(change).txn
    bed.put(record)
    assert bed.plan(change).txn.is_empty


@pytest.mark.matrix
@pytest.mark.parametrize(("count", "is_packed"), [(5_000, False), (14_000, True)])
def test_what_older_captures_stored_is_divided(count: int, *, is_packed: bool) -> None:
    bed = Bed(Feature.PACKED)
    record = unit([table(n) for n in range(count)])
    bed.etcd.txn([], [Put(str(KEY), packed(record.encode()) if is_packed else record.encode())])
    bed.see()
    assert (bed.record, bed.state.large) == (record, {str(KEY)})
    moved = record.with_(timeline=3)
    kept = bed.put(moved)
    assert len(kept.txn.writes) == 1, "they still run"
    bed.etcd.txn([], [Put(str(keys.FormatKey("c")), ClusterFormat(number=Feature.DIVIDED).encode())])
    bed.see()
    bed.commit(patches.Patch(str(KEY), lambda old: in_parts(str(KEY), old or b"")))
    assert (bed.record, bed.state.large) == (moved, set())
    bed.check_sizes()


def test_a_schema_change_of_huge_tables_is_divided_too() -> None:
    """Also where one element exceeds a part: a definition of thousands of columns that compresses badly."""
    chance = random.Random(1)
    changes = (
        TableChange(kind=SchemaChangeKind.ALTER, table_id=n, table=table(n), after=chance.randbytes(100_000).hex())
        for n in range(3)
    )
    record = DdlRecord(ts=Ts(5), changes=tuple(changes), statement=chance.randbytes(80_000).hex())
    bed = Bed()
    key = keys.DdlKey("c", "default", FEED, 5)
    bed.commit(patches.put_record(key, record))
    assert bed.state.changefeeds[FEED].ddl[5] == record
    bed.check_sizes()
    done = record.with_(done=True)
    changed = bed.commit(patches.replace_record(key, record, done))
    assert bed.state.changefeeds[FEED].ddl[5] == done
    assert sum(len(value or b"") for value in changed.txn.writes.values()) < 180_000, "the statement, no definitions"
    bed.commit(patches.delete(key))
    assert bed.parts == {}


def test_a_missing_part_is_reported_and_stops_only_its_changefeed() -> None:
    bed = Bed()
    record = unit([table(n) for n in range(3_000)])
    bed.put(record)
    stored = {item.key: item for item in bed.etcd.get_prefix("/weir/c/").items}
    lost = min(key for key in stored if "/part/" in key)
    state = ClusterState("c")
    snapshot = bed.etcd.get_prefix("/weir/c/")
    state.load(type(snapshot)(tuple(item for item in snapshot.items if item.key != lost), snapshot.revision))
    assert list(state.broken) == [str(KEY)]
    assert "parts of it are missing" in state.broken[str(KEY)]


@given(st.binary(max_size=40))
def test_a_damaged_pointer_names_its_key(tail: bytes) -> None:
    pointer = division.MAGIC + tail
    state = ClusterState("c")
    state.update(str(KEY), pointer, mod_revision=2)
    assert list(state.broken) == [str(KEY)]
    with pytest.raises(InvalidRecordError, match=r"^the key does not hold"):
        UnitRecord.decode(pointer, key="the key")


def test_events_of_one_revision_are_read_in_any_order() -> None:
    bed = Bed()
    state = ClusterState("c")
    events: list[Event] = []
    for record in (unit([table(n) for n in range(3_000)]), unit([table(n, ts=n) for n in range(3_000)])):
        planned = bed.put(record)
        events += planned.txn.events({}, bed.etcd.revision)
    random.Random(3).shuffle(events)
    state.apply(sorted(events, key=lambda event: event.mod_revision))
    assert state.changefeeds[FEED].units["main"] == bed.record
    assert state.broken == {}


@pytest.mark.matrix
async def test_an_agent_reads_and_writes_the_same_form() -> None:
    from agent.units.records import UnitRecords

    bed = Bed()
    records = UnitRecords(MemoryClient(bed.etcd), KEY)
    record = unit([table(n) for n in range(30_000)]).with_(unit=Unit.DUMP)
    await records.write(record)
    bed.see()
    assert bed.record == await records.read() == record
    before = bed.parts
    await records.write(record.with_(rows_done=9))
    bed.see()
    assert bed.record == await records.read() == record.with_(rows_done=9)
    assert len(bed.parts.keys() - before.keys()) == 1
    bed.check_sizes()


def test_a_divided_value_equals_its_whole() -> None:
    record = unit([table(n) for n in range(4_000)])
    value = divided(record.encode(), "tables")
    assert value.read(UnitRecord) == record
    assert after(value, record) == value
    parts = value.pieces
    assert joined(bytes(value), parts.get).read(UnitRecord) == record
    assert is_pointer(value)


def test_equal_values_under_two_keys_have_parts_of_their_own() -> None:
    bed = Bed()
    record = DdlRecord(ts=Ts(5), statement=random.Random(1).randbytes(80_000).hex())
    places = [keys.SuspectsKey("c", "default", FEED), keys.SignalsKey("c", "default", FEED)]
    for place in places:
        bed.commit(patches.Patch(str(place), lambda _old: record.encode()))
    assert len(bed.parts) == 2 * len(bed.state.changefeeds[FEED].divided[str(places[0])].names)
    bed.commit(patches.delete(places[0]))
    value = bed.state.raw[str(places[1])].value
    assert isinstance(value, Divided)
    assert set(value.names) == {key.partition("/part/feed/")[2] for key in bed.parts}
