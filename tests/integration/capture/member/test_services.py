"""The real data plane: what it checks at source and sink before a stopped changefeed is changed or rewound."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent.control.runtime import SpanPosition
from agent.errors import (
    PositionLostError,
    SinkConfigError,
    SinkFencedError,
    SinkPassingError,
    SourceConfigError,
    SourceUnreachableError,
)
from agent.ports.sink import SpanRepartition, Splits
from agent.ports.source import Identity, Scope, SourceReport
from agent.rows.schema import TableSchema
from agent.sinks import open_sink
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.server.identity import read_identity
from agent.units.load import create_empty
from capture.api.port import ChangefeedSpec
from capture.config import load_server_settings
from capture.embedded import EmbeddedPostgres
from capture.embedded.places import free_port
from capture.errors import ConfigError, GoneError
from capture.member import preflight
from capture.member.preflight import SinkRecord
from capture.member.services import LocalDataPlane
from owner.questions import ReadPositions, RepartitionTable, TableRead
from owner.scheduler.spans import even_spans
from reactor import keys
from reactor.errors import WeirError
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.questions import Ask
from reactor.records.changefeed import ChangefeedConfig, ChangefeedInfo, Mode, SinkMode, Unit, UnitRecord, UnitStage
from reactor.records.log_head import LogHead
from reactor.records.sink_settings import TableLayout
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from tests.integration.agent.flush.pgoutput_build import TABLE

RECORD = TableRecord(table_id=TABLE.table_id, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
SPAN = TableSpan(TABLE.table_id)
UNIT = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=(RECORD,))


def works_with_a_table(root: Path) -> LocalDataPlane:
    sink = open_sink(f"delta+file://{root}/lake", changefeed="c/feed", mode=SinkMode.UPSERT)
    create_empty(sink, [(RECORD, TABLE)])
    return LocalDataPlane(load_server_settings(data_dir=root / "data", cluster_id="c"))


def feed(data_plane: LocalDataPlane, *, sink: str = "blackhole://", source: str = "postgresql://h/d") -> ChangefeedInfo:
    return ChangefeedInfo(
        id=ChangefeedId("feed"), source=data_plane.keeper.seal(source), sink=data_plane.keeper.seal(sink)
    )


async def test_a_sink_tells_what_it_records_also_at_another_place(tmp_path: Path) -> None:
    data_plane = works_with_a_table(tmp_path)
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    for lake in ("lake", "copy"):
        of_lake = feed(data_plane, sink=f"delta+file://{tmp_path}/{lake}")
        assert await data_plane.recorded(of_lake, UNIT, {}) == (SinkRecord(Ts(100)),)
    data_plane.feed(of_lake).furthest("main", "a").note(
        [SpanPosition(TableSpan(TABLE.table_id), RECORD, Ts(120), Ts(130))]
    )
    assert await data_plane.recorded(of_lake, UNIT, {}) == (SinkRecord(Ts(100), back_ts=Ts(100)),), "it was set back"
    assert await data_plane.recorded(feed(data_plane), UNIT, {}) == (), "nothing is recorded there"
    with pytest.raises(SinkPassingError, match="is not the one that was written"):
        await data_plane.recorded(feed(data_plane, sink=f"delta+file://{tmp_path}/empty"), UNIT, {})


class _AnySource:
    """Fit to be replicated."""

    def __init__(self, uri: str, scope: Scope) -> None:
        pass

    def check(self) -> SourceReport:
        return SourceReport(Identity("1", 1), (RECORD,))

    def check_start(self, start_ts: Ts) -> None:
        if start_ts < 50:
            raise SourceConfigError(f"no log at {start_ts}")

    def current_ts(self) -> Ts:
        return Ts(100)

    def read_schemas(self, tables: Sequence[TableRecord]) -> dict[int, TableSchema]:
        return {table.table_id: TABLE for table in tables}


@pytest.mark.parametrize("spans", [1, 2])
async def test_what_a_removed_changefeed_has_left_is_found_before_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spans: int
) -> None:
    data_plane = works_with_a_table(tmp_path)
    monkeypatch.setattr(preflight, "open_source", _AnySource)
    spec = ChangefeedSpec(changefeed_id="feed", source_uri="postgresql://h/d", sink_uri=f"delta+file://{tmp_path}/lake")
    if spans > 1:
        sink = open_sink(spec.sink_uri, changefeed="c/feed", mode=SinkMode.UPSERT)
        assert isinstance(sink, Splits)
        sink.repartition(RECORD, SpanRepartition((SPAN,), even_spans(TABLE.table_id, spans), Ts(100), 1))
    for mode in (Mode.ALL, Mode.FULL):
        with pytest.raises(
            SinkConfigError, match=r"the sink still holds public\.t of an earlier changefeed of this name"
        ):
            await data_plane.check(spec.model_copy(update={"mode": mode}))
    await data_plane.check(spec.model_copy(update={"mode": Mode.INCREMENTAL}))
    shutil.rmtree(tmp_path / "lake")
    await data_plane.check(spec)


async def test_tables_that_will_be_held_for_their_names_are_named_before_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_plane = LocalDataPlane(load_server_settings(data_dir=tmp_path / "data", cluster_id="c"))
    names = ["..", *(f"a/{number}" for number in range(12)), "t"]
    tables = tuple(RECORD.with_(table_id=number, name=name) for number, name in enumerate(names))
    monkeypatch.setattr(preflight, "open_source", _AnySource)
    monkeypatch.setattr(_AnySource, "check", lambda _: SourceReport(Identity("1", 1), tables))
    spec = ChangefeedSpec(changefeed_id="feed", source_uri="postgresql://h/d", sink_uri=f"delta+file://{tmp_path}/lake")
    for mode in (Mode.ALL, Mode.INCREMENTAL):
        first, *others, last = await data_plane.check(spec.model_copy(update={"mode": mode}))
        assert first.startswith("this table will be held: table public... cannot be a directory of the sink: the name")
        assert (len(others), last) == (9, "3 more tables will be held for their names; `weir tables` shows them")
    assert await data_plane.check(spec.model_copy(update={"sink_uri": "blackhole://"})) == ()


@pytest.mark.parametrize(
    ("uri", "partition", "refusal"),
    [
        ("iceberg+file://{}/lake", "bucket(4, id)", ""),
        ("iceberg+file://{}/lake", "day(nope)", r"the layout of public\.t names column nope, which it lacks; it has"),
        ("iceberg+file://{}/lake", "week(id)", r"partition-by has week\(id\); known are a column, year\(c\)"),
        ("blackhole://", "id", r"this sink's tables have no layout of their own; leave \[\[layout\]\] out"),
    ],
)
async def test_a_layout_that_a_table_cannot_have_is_refused(
    uri: str, partition: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_plane = works_with_a_table(tmp_path)
    monkeypatch.setattr(preflight, "open_source", _AnySource)
    layouts = tuple(TableLayout(matcher=(name,), partition_by=(partition,)) for name in ("*.none", "public.t"))
    spec = ChangefeedSpec(
        changefeed_id="feed",
        source_uri="postgresql://h/d",
        sink_uri=uri.format(tmp_path / "new"),
        config=ChangefeedConfig(layout=layouts),
        mode=Mode.INCREMENTAL,
    )
    if not refusal:
        await data_plane.check(spec)
        return
    with pytest.raises(SinkConfigError, match=refusal):
        await data_plane.check(spec)


async def test_nothing_is_loaded_without_a_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_plane = works_with_a_table(tmp_path)
    monkeypatch.setattr(preflight, "open_source", _AnySource)
    spec = ChangefeedSpec(changefeed_id="feed", source_uri="postgresql://h/d", sink_uri=f"delta+file://{tmp_path}/new")
    with pytest.raises(ConfigError, match="a new changefeed has none; use mode all"):
        await data_plane.check(spec.model_copy(update={"mode": Mode.LOAD_SYNC}))
    await data_plane.check(spec)


@pytest.mark.parametrize(
    ("mode", "bounds", "refusal"),
    [
        (Mode.ALL, (60, None), "mode all begins with a snapshot"),
        (Mode.FULL, (60, None), "mode full begins with a snapshot"),
        (Mode.DUMP, (60, None), "mode dump begins with a snapshot"),
        (Mode.INCREMENTAL, (60, 59), "target Ts 59 is before start Ts 60"),
        (Mode.INCREMENTAL, (40, None), "no log at 40"),
        (Mode.ALL, (None, 99), "target Ts 99 has passed: the source is at 100"),
        (Mode.ALL, (0, 100), ""),
        (Mode.INCREMENTAL, (60, 60), ""),
    ],
)
async def test_a_start_or_target_that_cannot_be_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    bounds: tuple[int | None, int | None],
    refusal: str,
) -> None:
    data_plane = works_with_a_table(tmp_path)
    monkeypatch.setattr(preflight, "open_source", _AnySource)
    spec = ChangefeedSpec(
        changefeed_id="feed",
        source_uri="postgresql://h/d",
        sink_uri=f"delta+file://{tmp_path}/new",
        mode=mode,
        start_ts=bounds[0],
        target_ts=bounds[1],
    )
    if not refusal:
        await data_plane.check(spec)
        return
    with pytest.raises(WeirError, match=refusal):
        await data_plane.check(spec)


async def test_the_source_must_be_the_same_server(tmp_path: Path, postgres: EmbeddedPostgres) -> None:
    data_plane = works_with_a_table(tmp_path)
    uri = postgres.uri("postgres")
    with connect(uri, replication=True) as connection:
        found = read_identity(connection)
    same, head = UNIT.with_(system_id=found.system_id, timeline=found.timeline), LogHead()
    await data_plane.check_source_again(feed(data_plane, source=uri), same, head)
    with pytest.raises(PositionLostError, match="began on 12345; name that server"):
        await data_plane.check_source_again(feed(data_plane, source=uri), same.with_(system_id="12345"), head)
    elsewhere = feed(data_plane, source=f"postgresql://u@127.0.0.1:{free_port()}/d")
    with pytest.raises(SourceUnreachableError):
        await data_plane.check_source_again(elsewhere, same, head)
    with pytest.raises(PositionLostError, match="it is an old primary; name the new one"):
        await data_plane.check_source_again(feed(data_plane, source=uri), same.with_(timeline=2), head)
    await data_plane.check_source_again(feed(data_plane, source=uri), same.with_(timeline=0), head)


async def test_the_sink_shows_a_version_with_what_it_records(tmp_path: Path) -> None:
    data_plane = works_with_a_table(tmp_path)
    life = data_plane.for_member(MemoryClient(MemoryEtcd()), CaptureId("a"), ClusterState("c"))
    question = ReadPositions((RECORD,), (SPAN,), Ts(100))

    async def read(sink: str) -> tuple[TableRead, ...]:
        return await life.answer(Ask(ChangefeedId("feed"), feed(data_plane, sink=sink), question))

    assert await read(f"delta+file://{tmp_path}/lake") == (TableRead("public.t", "0", Ts(100)),)
    assert await read("blackhole://") == (TableRead("public.t", "", Ts(0)),)
    with pytest.raises(WeirError, match=f"the sink directory {tmp_path}/none is not the one that was written"):
        await read(f"delta+file://{tmp_path}/none")


async def test_a_cut_reaches_the_sink_and_is_reported_to_the_owner(tmp_path: Path) -> None:
    data_plane = works_with_a_table(tmp_path)
    known = feed(data_plane, sink=f"delta+file://{tmp_path}/lake")
    state = ClusterState("weir")
    client = MemoryClient(MemoryEtcd())
    await client.put(str(keys.InfoKey("weir", "default", known.id)), known.encode())
    life = data_plane.for_member(client, CaptureId("a"), state)
    question = RepartitionTable(RECORD, (SPAN,), even_spans(RECORD.table_id, 2), Ts(150), 1)
    assert await life.answer(Ask(known.id, known, question)) == 150
    assert await life.answer(Ask(known.id, known, question)) == 150, "asked again, it is done already"
    with pytest.raises(WeirError, match="set back or replaced"):
        await life.answer(Ask(known.id, known, replace(question, number=3)))
    with pytest.raises(GoneError):
        await life.answer(Ask(known.id, known.with_(created_at=9.0), question))
    cuts = {RECORD.table_id: TablePartitioning(table_id=RECORD.table_id, spans=2, wanted=2, number=1)}
    assert await data_plane.recorded(known, UNIT, cuts) == (SinkRecord(Ts(150)),)
    with pytest.raises(SinkFencedError):
        await data_plane.recorded(known, UNIT, {})
