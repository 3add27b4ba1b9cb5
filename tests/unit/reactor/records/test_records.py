"""Stored records: what of an unknown version survives, what users may write, and which values are refused."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reactor.errors import InvalidKeyError, InvalidRecordError
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.keys import parse
from reactor.patches import patch_record
from reactor.records import attempts, capture, changefeed, log_head, sync_point, task_position, upstream
from reactor.records.attempts import Attempt, StreamAttempt, Suspects
from reactor.records.base import Record, UserConfig
from reactor.records.capture import Assignment, CaptureInfo, OwnerState
from reactor.records.changefeed import (
    ChangefeedConfig,
    ChangefeedInfo,
    ChangefeedStatus,
    ColumnSelector,
    EventFilter,
    FilterConfig,
    RunningError,
    SealedUri,
    Unit,
    UnitRecord,
    UnitStage,
)
from reactor.records.log_head import Era, LogHead
from reactor.records.sink_settings import TableLayout
from reactor.records.sync_point import SyncPoint
from reactor.records.tables import held, partitioning, schema_change, table
from reactor.records.tables.held import HeldTable
from reactor.records.tables.partitioning import LeftTable, RepartitionUnderWay, TablePartitioning
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.records.task_position import TaskPosition
from reactor.records.upstream import UpstreamInfo

URI = SealedUri(masked="x://", sealed="s")
TABLE = TableRecord(table_id=7, schema_name="public", name="t", key=("id",))
ERROR = RunningError(code="X", message="why", capture=CaptureId("a"), time=1.5)
CONFIG = ChangefeedConfig(
    filter=FilterConfig(
        event_filters=(EventFilter(ignore_event=("delete",)),),
        column_selectors=(ColumnSelector(matcher=("a.*",), columns=("*",)),),
    )
)
#: one of each kind that has a key, with all it can hold
EXAMPLES: tuple[Record, ...] = (
    ChangefeedInfo(id=ChangefeedId("f"), source=URI, sink=URI, config=CONFIG, error=ERROR, target_ts=Ts(9)),
    ChangefeedStatus(checkpoint_ts=Ts(7)),
    TaskPosition(error=ERROR, warning=ERROR),
    UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=(TABLE, TABLE.with_(table_id=8))),
    LogHead(epoch=3, last_seq=9, complete_seq=9, eras=(Era(epoch=1, first_seq=1), Era(epoch=3, first_seq=5))),
    DdlRecord(ts=Ts(9), changes=(TableChange(kind=SchemaChangeKind.ALTER, table_id=7, table=TABLE),)),
    SyncPoint(ts=Ts(8), time=1.0, versions={"public.t": "3"}, table_ids={"public.t": 7}),
    LeftTable(table_id=7, schema_name="public", name="t", location="public/t-64", ts=Ts(9), time=1.5, message="held"),
    TablePartitioning(table_id=7, under_way=RepartitionUnderWay(spans=4, ts=Ts(9))),
    HeldTable(table_id=7, error=ERROR),
    Attempt(tables=(7, 8), is_trial=True),
    StreamAttempt(capture=CaptureId("a"), process="p", epoch=2, ts=Ts(9), is_settled=True, ended=(CaptureId("b"),)),
    Suspects(tables=(7, 8), ts=Ts(9), capture=CaptureId("a")),
    UpstreamInfo(source="main", kind="postgresql", system_id="1"),
    CaptureInfo(id=CaptureId("a"), address="h:1", peer_address="h:2", version="1", cluster_id="c", started_at=0.0),
    Assignment(capture=CaptureId("a"), state=OwnerState.REMOVING, next="b", is_chosen=True),
)
by_kind = pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
#: what a newer version may have put beside what we know: any JSON but null, which is the same as nothing
UNKNOWN = st.dictionaries(
    st.text("xyz_", min_size=1, max_size=6).map("later_".__add__),
    st.recursive(
        st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=5,
    ),
    min_size=1,
    max_size=2,
)


def objects_of(value: Any) -> list[dict[str, Any]]:
    """Every object inside that is a record: all but the mappings of names."""
    if isinstance(value, list):
        return [found for item in value for found in objects_of(item)]
    if not isinstance(value, dict):
        return []
    inner = [found for name, item in value.items() if name not in _MAPPINGS for found in objects_of(item)]
    return [value, *inner]


_MAPPINGS = ("versions", "table_ids", "renames", "fills")


@given(data=st.data(), record=st.sampled_from(EXAMPLES))
def test_unknown_fields_are_kept_at_every_depth(data: st.DataObject, record: Record) -> None:
    stored = json.loads(record.encode())
    for place in objects_of(stored):
        place.update(data.draw(UNKNOWN))
    value = json.dumps(stored).encode()
    read = type(record).decode(value, key="k")
    assert json.loads(read.encode()) == stored
    assert json.loads(read.with_().encode()) == stored
    assert read == type(record).decode(value, key="k")
    assert read != record
    assert json.loads(record.keeping(read).encode()).keys() == stored.keys()


def test_a_patch_of_one_field_keeps_what_a_newer_capture_has_written() -> None:
    stored = b'{"checkpoint_ts": 5, "regions": {"eu": [1, 2]}}'
    key = parse("/weir/c/default/changefeed/status/f")
    patch = patch_record(key, ChangefeedStatus, lambda old: (old or ChangefeedStatus()).with_(checkpoint_ts=Ts(6)))
    written = json.loads(patch.function(stored) or b"")
    assert (written["checkpoint_ts"], written["regions"]) == (6, {"eu": [1, 2]})


@given(data=st.data(), record=st.sampled_from(EXAMPLES), junk=JSON)
def test_any_value_of_a_field_is_read_or_refused(data: st.DataObject, record: Record, junk: Any) -> None:
    stored = json.loads(record.encode())
    place = data.draw(st.sampled_from(objects_of(stored)))
    place[data.draw(st.sampled_from([*place, *(["new"] if junk is not None else [])]))] = junk
    with contextlib.suppress(InvalidRecordError):
        read = type(record).decode(json.dumps(stored).encode(), key="/k")
        assert type(record).decode(read.encode(), key="/k") == read


@given(
    record=st.sampled_from(EXAMPLES), value=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode())
)
def test_what_is_no_record_at_all_is_refused(record: Record, value: bytes) -> None:
    try:
        type(record).decode(value, key="/k")
    except InvalidRecordError:
        return
    assert isinstance(json.loads(value), dict)


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (ChangefeedInfo, "start_ts", 1 << 70),
        (ChangefeedInfo, "start_ts", -1),
        (ChangefeedInfo, "target_ts", 1 << 63),
        (ChangefeedInfo, "epoch", 1 << 63),
        (ChangefeedInfo, "state", "dancing"),
        (LogHead, "last_seq", 1 << 63),
        (LogHead, "first_seq", 100),
        (LogHead, "complete_seq", 100),
        (LogHead, "eras", [{"epoch": 1, "first_seq": 9}, {"epoch": 2, "first_seq": 3}]),
        (DdlRecord, "ts", 0),
        (TablePartitioning, "spans", 1 << 40),
        (TablePartitioning, "wanted", 0),
    ],
)
def test_numbers_that_nobody_can_continue_from_are_refused(record: type[Record], field: str, value: object) -> None:
    example = next(known for known in EXAMPLES if type(known) is record)
    stored = json.loads(example.encode()) | {field: value}
    with pytest.raises(InvalidRecordError, match=record.__name__):
        record.decode(json.dumps(stored).encode(), key="/k")


def test_nan_is_no_json() -> None:
    for value in (b'{"checkpoint_time": NaN}', b'{"new": NaN}', b'{"new": {"a": [-Infinity]}}'):
        with pytest.raises(InvalidRecordError):
            ChangefeedStatus.decode(value, key="/k")
    assert ChangefeedStatus.decode(b'{"new": "NaN, Infinity"}', key="/k").model_extra == {"new": "NaN, Infinity"}


def test_users_are_refused_unknown_keys_and_stored_values_are_not() -> None:
    for model, fields in ((ChangefeedConfig, {"fliter": {}}), (FilterConfig, {"rule": ()}), (EventFilter, {"x": 1})):
        with pytest.raises(ValidationError, match=f"unknown key {next(iter(fields))}; known keys: "):
            model(**fields)
        with pytest.raises(ValidationError, match="unknown key"):
            model.model_validate(fields)
    with pytest.raises(ValidationError, match="unknown key colour"):
        ChangefeedConfig.model_validate({"filter": {"event_filters": [{"colour": "red"}]}})
    stored = b'{"id": "f", "source": {"masked": "", "sealed": ""}, "sink": {"masked": "", "sealed": ""}, "config": %s}'
    info = ChangefeedInfo.decode(stored % b'{"colour": "red", "filter": {"event_filters": [{"x": 1}]}}', key="k")
    assert json.loads(info.encode())["config"]["colour"] == "red"
    assert json.loads(info.encode())["config"]["filter"]["event_filters"][0]["x"] == 1


def test_tables_share_what_they_need_not_have_each() -> None:
    unit = UnitRecord.decode(EXAMPLES[3].encode(), key="k")
    assert all(table.model_extra is None for table in unit.tables)
    assert unit.tables[0] == TABLE
    assert unit.tables[0].with_(name="u").encode() == TABLE.with_(name="u").encode()


@pytest.mark.parametrize(
    "key",
    [
        "/weir/c/default/ddl/f/²",
        "/weir/c/default/ddl/f/٣",
        "/weir/c/default/ddl/f/007",
        "/weir/c/default/ddl/f/" + "9" * 5000,
        "/weir/c/default/changefeed/info/",
        "/weir/c/default/changefeed/info/..",
        "/weir/c/default/changefeed/info/f\n",
        "/weir/c/__meta__/reader/01",
    ],
)
def test_keys_that_str_would_not_write_are_none_of_ours(key: str) -> None:
    with pytest.raises(InvalidKeyError):
        parse(key)


@by_kind
def test_every_field_is_written_and_read(record: Record) -> None:
    assert type(record).decode(record.encode(), key="k") == record


def test_every_stored_record_has_an_example() -> None:
    found = [
        kind
        for module in (
            attempts,
            capture,
            partitioning,
            held,
            log_head,
            changefeed,
            schema_change,
            table,
            sync_point,
            task_position,
            upstream,
        )
        for kind in vars(module).values()
    ]
    kinds = {kind for kind in found if isinstance(kind, type) and issubclass(kind, Record)}
    inner = {Record, UserConfig, Era, RepartitionUnderWay, TableChange, TableRecord, RunningError, SealedUri}
    configs = {ChangefeedConfig, FilterConfig, EventFilter, ColumnSelector, TableLayout}
    assert kinds - inner - configs == {type(record) for record in EXAMPLES}


def test_what_is_derived_from_a_record_is_not_that_of_the_one_before() -> None:
    """Copies keep what was derived once, if nobody drops it: a change would stay pending for good."""
    pending = DdlRecord(ts=Ts(5), changes=(TableChange(kind=SchemaChangeKind.ALTER, table_id=7, table=TABLE),))
    assert (pending.pending_ids, len(pending.alterations), len(pending.holds)) == (frozenset({7}), 1, 0)
    done = pending.done_for({7})
    assert done.pending_ids == frozenset()
    held = pending.with_(changes=(pending.changes[0].with_(kind=SchemaChangeKind.HOLD, table_id=8),))
    assert (held.table_ids, len(held.alterations), len(held.holds)) == (frozenset({8}), 0, 1)
    read = DdlRecord.decode(done.encode(), key="k")
    assert read == done, "what is derived is no part of it"
    assert b"pending" not in done.encode()
