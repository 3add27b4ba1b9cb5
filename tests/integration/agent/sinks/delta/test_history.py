"""Delta tables that others write under a running changefeed: what is harmless, what holds the table, and the cure."""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from agent.errors import SinkError, TableForeignError
from agent.ports.sink import FlushResult, FlushTask, SpanRepartition
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks import open_sink
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table import commit, log
from agent.sinks.delta.upkeep import upkeep
from owner.scheduler.spans import even_spans
from reactor.errors import Scope
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.integration.agent.sinks.delta.test_sink import KEYED, SPAN, flush, loaded, rows, sink_at, task
from tests.integration.agent.sinks.delta.test_vectors import rows as stored
from tests.unit.agent.changes_build import ARROW, changes, insert, table_schema, update

Act = Callable[[DeltaTable], object]
ROWS = [(at, "a", "x") for at in range(6)]
WAYS = ["small", "vectors", "merged", "changelog"]


def _append(table: DeltaTable) -> None:
    schema = pa.schema(table.schema().to_arrow())
    row = pa.table({name: pa.nulls(1, schema.field(name).type) for name in schema.names}, schema=schema)
    write_deltalake(table.table_uri, row, mode="append")


def _overwrite(table: DeltaTable) -> None:
    write_deltalake(table.table_uri, pa.table(table.scan()).slice(1), mode="overwrite")


def _replace(table: DeltaTable) -> None:
    write_deltalake(table.table_uri, pa.table({"id": [1]}), mode="overwrite", schema_mode="overwrite")


def _merge(table: DeltaTable) -> None:
    table.merge(
        pa.table({"id": [1]}), "t.id = s.id", source_alias="s", target_alias="t"
    ).when_matched_delete().execute()


HARMFUL: dict[str, Act] = {
    "delete": lambda table: table.delete("id = 1"),
    "delete all": lambda table: table.delete(),
    "update": lambda table: table.update({"name": "'foreign'"}, predicate="id = 2"),
    "merge": _merge,
    "append": _append,
    "overwrite": _overwrite,
    "replace": _replace,
    "restore": lambda table: table.restore(table.version() - 1),
    "restore to the first": lambda table: table.restore(0),
    "new column": lambda table: table.alter.add_columns([Field("note", PrimitiveType("string"))]),
    "description": lambda table: table.alter.set_table_description("mine now"),
}
HARMLESS: dict[str, Act] = {
    "compact": lambda table: table.optimize.compact(),
    "z-order": lambda table: table.optimize.z_order(["id"]),
    "vacuum": lambda table: table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False),
    "checkpoint": lambda table: table.create_checkpoint(),
    "properties": lambda table: table.alter.set_table_properties({"delta.logRetentionDuration": "interval 3 days"}),
    "comment": lambda table: table.alter.set_column_metadata("name", {"comment": "what it is called"}),
    "name": lambda table: table.alter.set_table_name("t"),
}


def location(sink: DeltaSink) -> str:
    return sink.place(KEYED).location


def written(monkeypatch: pytest.MonkeyPatch, way: str, directory: Path) -> DeltaSink:
    """A sink that is written in this way, at Ts 300, with three versions."""
    if way == "merged":
        monkeypatch.setattr(log, "_taken", lambda place: None)
    if way == "vectors":
        sink = open_sink(f"delta+file://{directory}?deletion_vectors=true", changefeed="feed", mode=SinkMode.UPSERT)
        assert isinstance(sink, DeltaSink)
        sink.load(KEYED, table_schema(), ARROW, [])
    else:
        sink = loaded(directory, SinkMode.CHANGELOG if way == "changelog" else SinkMode.UPSERT)
    assert flush(sink, task(sink, 100, 200), changes([insert(*row) for row in ROWS])).committed
    assert flush(sink, task(sink, 200, 300), changes([update(3, "b", "y"), insert(9, "n", "z")])).committed
    return sink


def refusal(sink: DeltaSink) -> SinkError | None:
    """What a flush that would be next says; None where it is written."""
    order = task(sink, 300, 400)
    try:
        [result] = sink.commit([order], [sink.write(order, [changes([update(4, "c", "w"), insert(10, "m", "v")])])])
    except TableForeignError as error:
        return error
    if not result.error:
        return None
    said = SinkError(result.error)
    said.scope, said.retryable = result.scope, result.retryable
    return said


def shown(error: BaseException | None) -> int:
    """The version that the error names to restore."""
    found = re.search(r"restore the table to version (\d+) ", str(error))
    assert found is not None
    return int(found[1])


def contents(sink: DeltaSink) -> Any:
    return rows(sink) if sink._is_changelog else stored(sink)


@pytest.fixture(params=["running", "paused"])
def goes_on(request: pytest.FixtureRequest) -> Callable[[], None]:
    """What happens before the next flush: nothing, or another process begins with what the table says."""
    return (lambda: None) if request.param == "running" else log._known.clear


@pytest.mark.sample(0.05)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("act", HARMFUL)
def test_what_others_change_holds_the_table_until_it_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, act: str, goes_on: Callable[[], None]
) -> None:
    sink = written(monkeypatch, way, tmp_path)
    before, version = contents(sink), DeltaTable(location(sink)).version()
    HARMFUL[act](DeltaTable(location(sink)))
    changed = DeltaTable(location(sink)).version()
    goes_on()
    with pytest.raises(TableForeignError, match="was changed by another writer"):
        sink.committed_ts(KEYED, SPAN)
    for _ in range(2):
        error = refusal(sink)
        assert error is not None, "it was written on top of what others have done"
        assert (error.scope, error.retryable) == (Scope.TABLE, False)
    assert DeltaTable(location(sink)).version() == changed, "nothing was committed"
    assert f"{location(sink)} was changed by another writer: " in str(error)
    assert shown(error) == version
    DeltaTable(location(sink)).restore(shown(error))
    goes_on()
    if way != "merged" or act != "replace":
        assert contents(sink) == before
    assert refusal(sink) is None
    assert len(contents(sink)) == len(before) + (2 if way == "changelog" else 1)


@pytest.mark.sample(0.05)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("act", HARMLESS)
def test_what_changes_no_row_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, act: str, goes_on: Callable[[], None]
) -> None:
    sink = written(monkeypatch, way, tmp_path)
    before = contents(sink)
    HARMLESS[act](DeltaTable(location(sink)))
    goes_on()
    assert sink.committed_ts(KEYED, SPAN) == 300
    assert contents(sink) == before
    assert refusal(sink) is None


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("way", WAYS)
def test_any_order_of_others_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The table is held iff something was changed and not undone; what is held is never written."""
    chance = random.Random(way)
    acts = {name: act for name, act in (HARMFUL | HARMLESS).items() if name not in ("vacuum", "replace")}
    sink, at = written(monkeypatch, way, tmp_path), 300
    for step in range(25):
        expected, is_changed = contents(sink), False
        for name in chance.choices(list(acts), k=chance.randrange(4)):
            if name != "new column" or "note" not in DeltaTable(location(sink)).schema().to_arrow().names:
                acts[name](DeltaTable(location(sink)))
                is_changed |= name in HARMFUL
        if chance.random() < 0.5:
            log._known.clear()
        part, order = changes([insert(100 + step, "n", str(step))]), task(sink, at, at + 1)
        if is_changed:
            with pytest.raises(TableForeignError) as caught:
                sink.committed_ts(KEYED, SPAN)
            with pytest.raises(TableForeignError):
                flush(sink, order, part)
            DeltaTable(location(sink)).restore(shown(caught.value))
            assert contents(sink) == expected
        assert flush(sink, order, part).committed
        assert len(contents(sink)) == len(expected) + 1
        at += 1


@pytest.mark.parametrize("way", WAYS)
def test_a_change_behind_a_checkpoint_is_seen_and_one_that_nobody_can_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    sink = written(monkeypatch, way, tmp_path)
    table = DeltaTable(location(sink))
    table.delete("id = 1")
    table.create_checkpoint()
    log._known.clear()
    error = refusal(sink)
    assert error is not None
    assert "DELETE" in str(error)
    HARMLESS["name"](DeltaTable(location(sink)))
    (Path(location(sink)) / "_delta_log" / f"{table.version():020d}.json").unlink()
    log._known.clear()
    error = refusal(sink)
    assert error is not None
    assert "is not in its log any more: what they did is not known" in str(error)


@pytest.mark.parametrize("way", ["small", "vectors", "changelog"])
def test_a_change_between_reading_and_committing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    sink = written(monkeypatch, way, tmp_path)
    inner, pending = commit.append_to, [HARMFUL["delete"]]

    def append_to(*arguments: Any) -> None:
        if pending:
            pending.pop()(DeltaTable(location(sink)))
        inner(*arguments)

    monkeypatch.setattr(commit, "append_to", append_to)
    error = refusal(sink)
    assert error is not None
    assert "DELETE" in str(error)


def test_delta_rs_puts_nothing_of_ours_on_top_of_what_was_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = written(monkeypatch, "merged", tmp_path)
    inner, pending = commit.add_fields, [HARMFUL["append"]]

    def add_fields(*arguments: Any, **named: Any) -> None:
        inner(*arguments, **named)
        if pending:
            pending.pop()(DeltaTable(location(sink)))

    monkeypatch.setattr(commit, "add_fields", add_fields)
    error = refusal(sink)
    assert error is not None
    assert "WRITE" in str(error)


def test_schema_changes_and_cuts_are_ours_and_see_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = written(monkeypatch, "small", tmp_path)
    wide = pa.schema([*ARROW, pa.field("late", pa.timestamp("us"))])
    columns = tuple(ColumnMove(item.name, item.type, item.name if item.name != "late" else None) for item in wide)
    change = SchemaChange(Ts(310), SchemaChangeKind.ALTER, KEYED, KEYED, columns, table_schema(wide), wide)
    order = SpanRepartition((SPAN,), even_spans(KEYED.table_id, 2), Ts(300), 1)
    HARMFUL["delete"](DeltaTable(location(sink)))
    for call in (lambda: sink.alter([change]), lambda: sink.repartition(KEYED, order)):
        with pytest.raises(TableForeignError, match="DELETE"):
            call()
    DeltaTable(location(sink)).restore(2)
    sink.alter([change])
    assert sink.committed_ts(KEYED, SPAN) == 300
    assert sink.repartition(KEYED, order) == 300
    assert sink.committed_ts(KEYED, order.new[0]) == 300


def test_a_table_that_was_put_back_from_a_copy_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = written(monkeypatch, "small", tmp_path / "lake")
    shutil.copytree(tmp_path / "lake" / "public", tmp_path / "copy")
    assert refusal(sink) is None
    shutil.rmtree(tmp_path / "lake" / "public")
    shutil.copytree(tmp_path / "copy", tmp_path / "lake" / "public")
    with pytest.raises(TableForeignError, match=r"table public\.t was set back: it records 300, and 400 was written"):
        flush(sink, task(sink, 400, 500), changes([insert(11, "a", "x")]))


def test_another_table_in_its_place_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = written(monkeypatch, "small", tmp_path)
    shutil.rmtree(location(sink))
    loaded(tmp_path, table=KEYED.with_(table_id=5))
    with pytest.raises(TableForeignError, match=r"the sink has no record of public\.t: its table was replaced"):
        flush(sink, task(sink, 300, 400), changes([insert(11, "a", "x")]))


def test_a_table_of_before_is_followed_from_the_first_commit_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its commits nor its checkpoints say what was seen."""
    monkeypatch.setattr(upkeep, "begin_if_due", lambda *_, **__: None)  # a checkpoint of ours would say it
    table = tmp_path / "public" / "t"
    sink = loaded(tmp_path, rows=ROWS)
    assert flush(sink, task(sink, 100, 200), changes([update(3, "b", "y")])).committed
    for path in (table / "_delta_log").glob("*.json"):
        kept = [line for line in path.read_text().splitlines() if '"weir/seen"' not in line]
        path.write_text("\n".join([*kept, ""]))
    log._known.clear()
    DeltaTable(table).delete("id = 1")  # nobody can tell
    assert flush(sink_at(tmp_path), task(sink, 200, 300), changes([update(4, "b", "y")])).committed
    DeltaTable(table).delete("id = 2")
    assert refusal(sink) is not None


def test_upkeep_leaves_a_held_table_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a RESTORE needs stays there."""
    sink = written(monkeypatch, "small", tmp_path)
    HARMFUL["delete"](DeltaTable(location(sink)))
    begun: list[object] = []
    monkeypatch.setattr(upkeep, "begin_if_due", lambda *_, **__: begun.append(1))
    order = task(sink, 300, 400)
    with pytest.raises(TableForeignError):
        sink.write(order, [changes([insert(11, "a", "x")])])
    [result] = sink.commit([order], [_failed(order)])
    assert result.error
    assert not begun


def _failed(order: FlushTask) -> FlushResult:
    return FlushResult(order.span, order.from_ts, order.to_ts, error="held", error_code="TableForeign")
