"""Partition keys: what the stream shows of partitions' replica identities, and where it holds their root."""

from dataclasses import replace

from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.stream.partition_keys import PartitionKeys
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

_ROOT = TableRecord(table_id=1, schema_name="s", name="r", key=("id", "k"))
_AT, _LATER = Ts(100), Ts(200)


def declared(number: int, *key: str, identity: str = "d") -> TableSchema:
    columns = tuple(Column(name, 23, -1, is_key=name in key) for name in ("id", "k", "o"))
    return TableSchema(number, "s", f"p{number}", columns, identity)


def found(keys: PartitionKeys) -> list[tuple[int, str]]:
    return [(ts, reason.split()[2]) for ts, _, reason in keys.take(Ts(1_000))]


def test_a_partition_without_the_key_of_its_root_is_found_once() -> None:
    keys = PartitionKeys()
    keys.note(1, _ROOT, declared(2, "o", identity="i"), _AT)
    keys.note(1, _ROOT, declared(3, "o", "k", "id"), _AT)
    keys.note(1, _ROOT, declared(4, "id", "k", "o", identity="f"), _AT)
    keys.note(1, _ROOT, declared(5), _AT)
    assert keys.last_ts == _AT
    assert list(keys.take(Ts(_AT - 1))) == []
    assert found(keys) == [(_AT, "s.p2")]
    assert found(keys) == []


def test_a_root_that_gets_another_key_is_judged_by_its_partitions_as_they_are() -> None:
    keys = PartitionKeys()
    keys.note(1, None, declared(2, "id", "k"), _AT)
    keys.note(1, None, declared(3, "id", "k"), _AT)
    keys.judge(_ROOT, _AT)
    keys.note(1, _ROOT, declared(2, "id", "k", "o", identity="f"), _LATER)
    assert found(keys) == []
    keys.judge(_ROOT.with_(key=("o",)), _LATER)
    assert found(keys) == [(_LATER, "s.p3")]


def test_tables_that_are_emptied_together_are_no_partitions() -> None:
    keys = PartitionKeys()
    keys.note(1, _ROOT, declared(2, "o"), _AT)
    keys.note(1, _ROOT, replace(declared(3, "o"), name="other"), _AT)
    keys.withdraw([1, 3], _AT)
    assert found(keys) == [(_AT, "s.p2")]
    keys.judge(_ROOT, _LATER)
    assert found(keys) == [(_LATER, "s.p2")]
