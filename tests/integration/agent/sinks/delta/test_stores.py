"""Delta tables on object stores: what a directory does by a rename, and what a store must keep."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.errors import SinkConfigError, TableHeldError
from agent.object_store import ObjectStore
from agent.rows.schema_change import SchemaChange
from agent.sinks import open_sink
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.upkeep import upkeep
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord
from tests.conftest import RunStore
from tests.gcs_gateway import GcsGateway
from tests.integration.agent.sinks.delta.test_alter import OTHER, ROWS, altered, created, dropped, moves
from tests.integration.agent.sinks.delta.test_sink import KEYED, SPAN, flush, task
from tests.object_stores import KINDS
from tests.patience import HANG_S
from tests.unit.agent.changes_build import ARROW, changes, delete, insert, table_schema, update

_PLACES = count()
#: requests of ``swap``, each of which may be the last one of a capture
_REQUESTS = 48
_SWAP = [
    altered(moves(ARROW), before=KEYED, after=KEYED.with_(name="u")),
    altered(moves(ARROW), before=OTHER, after=OTHER.with_(name="t")),
]


class Lake:
    """A sink in a bucket, whose table ``t`` has rows."""

    def __init__(self, uri: str, options: str = "") -> None:
        self.location = f"{uri}/lake-{next(_PLACES)}"
        sink = open_sink(f"delta+{self.location}{options}", changefeed="feed", mode=SinkMode.UPSERT)
        assert isinstance(sink, DeltaSink)
        self.sink = sink
        staged = sink.stage(KEYED, "0", iter([changes([insert(*row) for row in ROWS]).after]), Ts(100))
        sink.load(KEYED, table_schema(), ARROW, staged)

    def rows(self, name: str = "t") -> list[tuple[Any, ...]]:
        found = pa.table(DeltaTable(f"{self.location}/public/{name}").scan(columns=["id", "name", "big"]))
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=str)

    def objects(self, name: str) -> list[str]:
        return ObjectStore(f"{self.location}/public/{name}").all_names()

    def renamed(self, table: TableRecord, name: str, *, ts: int = 150) -> SchemaChange:
        return altered(moves(ARROW), before=table, after=table.with_(name=name), ts=ts)


@pytest.fixture(params=["s3", *(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("az", "gs"))])
def lake(request: pytest.FixtureRequest, object_store: RunStore) -> Lake:
    return Lake(object_store(request.param).uri, "?deletion_vectors=true")


@pytest.mark.matrix
def test_a_table_moves_with_its_name(lake: Lake) -> None:
    lake.sink.check([KEYED])
    for _ in range(2):
        lake.sink.alter([lake.renamed(KEYED, "z")])
    record = KEYED.with_(name="z")
    assert lake.rows("z") == ROWS
    assert lake.objects("t") == []
    assert lake.sink.committed_ts(record, SPAN) == 100
    part = changes([update(1, "aa", "x", ts=160), insert(3, "c", "z", ts=160)])
    assert flush(lake.sink, task(lake.sink, 100, 160, table=record), part).committed
    assert lake.rows("z") == [(1, "aa", "x"), (2, None, "y"), (3, "c", "z")]
    again = OTHER.with_(name="t", start_ts=Ts(170))
    lake.sink.alter([created(again, ts=170)])
    assert lake.rows("t") == []


class _Ended(BaseException):
    """The process ended here."""


@contextmanager
def ends_after(requests: int) -> Iterator[None]:
    """The process ends after this many requests that change something."""
    left = iter(range(requests))

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any) -> Any:
            if next(left, None) is None:
                raise _Ended
            return call(*given)

        return counting

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "copy", "discard", "remove"):
            patch.setattr(ObjectStore, name, counted(getattr(ObjectStore, name)))
        yield


@pytest.mark.matrix
@pytest.mark.parametrize("requests", range(_REQUESTS))
def test_tables_that_change_names_with_each_other_wherever_a_crash_is(object_store: RunStore, requests: int) -> None:
    lake = Lake(object_store("s3").uri)
    lake.sink.alter([created(OTHER.with_(start_ts=Ts(120)), ts=121)])
    is_ended = False
    with ends_after(requests):
        try:
            lake.sink.alter(_SWAP)
        except _Ended:
            is_ended = True
    assert is_ended or requests > _REQUESTS // 2  # it got so far
    assert not is_ended or requests < _REQUESTS - 1  # and the numbers reach the end
    lake.sink.alter(_SWAP)
    assert lake.rows("u") == ROWS
    assert lake.rows("t") == []
    assert lake.sink.committed_ts(KEYED.with_(name="u"), SPAN) == 100
    assert lake.sink.committed_ts(OTHER.with_(name="t"), TableSpan(OTHER.table_id)) == 120
    assert not any("moving" in name for name in ObjectStore(lake.location).all_names())


@pytest.mark.matrix
def test_a_dropped_table_gives_way_and_another_does_not(object_store: RunStore) -> None:
    lake = Lake(object_store("s3").uri)
    lake.sink.alter([created(OTHER.with_(start_ts=Ts(120)), ts=121)])
    move = lake.renamed(KEYED, "u")
    with pytest.raises(TableHeldError, match="is taken; it follows when the table there"):
        lake.sink.alter([move])
    assert lake.rows("u") == []
    assert lake.rows("t") == ROWS
    lake.sink.alter([dropped(OTHER, ts=140)])
    for _ in range(2):
        lake.sink.alter([move])
    assert lake.rows("u") == ROWS
    assert lake.rows("u.dropped-96") == []


def keep_nothing(location: str) -> None:
    """Let replaced files go at once. In a process of its own: delta-rs keeps Python's lock meanwhile, and the server of
    Google Cloud Storage's API answers through this process."""
    properties = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    script = f"from deltalake import DeltaTable; DeltaTable({location!r}).alter.set_table_properties({properties!r})"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_S)


def test_replaced_files_are_removed_and_small_ones_compacted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_SMALL_FILES_MAX", 3)
    at = 100
    for number in range(6):
        part = changes([insert(10 + number, "n", None, ts=at + 5), delete(9 + number, None, None, ts=at + 6)])
        assert flush(lake.sink, task(lake.sink, at, at + 10), part).committed
        at += 10
    place = lake.sink.place(KEYED)
    before = lake.rows()
    upkeep.compact_small_files(place)
    keep_nothing(place.location)
    removed = upkeep.remove_replaced_files(place)
    assert removed
    assert not set(removed) & set(lake.objects("t"))
    assert lake.rows() == before == sorted([*ROWS, (15, "n", None)], key=str)


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [503, 429])
def test_a_store_under_load_is_asked_again(object_store: RunStore, kind: str, status: int) -> None:
    store = object_store(kind, is_proxied=True)
    lake = Lake(store.uri)
    store.proxy.refusing, store.proxy.refusal = 4, status
    assert flush(lake.sink, task(lake.sink, 100, 160), changes([insert(3, "c", "z", ts=160)])).committed
    assert store.proxy.refusing == 0
    assert lake.rows() == [*ROWS, (3, "c", "z")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_keeps_conditional_puts_is_accepted(object_store: RunStore, kind: str) -> None:
    sink = open_sink(f"delta+{object_store(kind).uri}/fit", changefeed="feed", mode=SinkMode.UPSERT)
    sink.check([])


def test_a_server_without_conditional_puts_is_refused(object_store: RunStore) -> None:
    store = object_store("gs")
    assert isinstance(store.proxy, GcsGateway)
    store.proxy.keeps_conditions = False
    try:
        with pytest.raises(SinkConfigError, match="does not keep conditional puts"):
            open_sink(f"delta+{store.uri}/unfit", changefeed="feed", mode=SinkMode.UPSERT).check([])
    finally:
        store.proxy.keeps_conditions = True
