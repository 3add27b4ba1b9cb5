"""Tables as directories: no table leaves the sink's directory or lies in another's, whatever it is called.

Those that have no location, since they were stored by v0.1.0, lie under their names or are refused.
"""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.errors import SinkConfigError, TableNameError
from agent.sinks import open_sink
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table.lake import Lake
from agent.sinks.delta.upkeep.upkeep import remove_replaced_files
from agent.units.load import create_empty
from reactor.errors import Scope
from reactor.ids import TableSpan
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord
from tests.integration.agent.sinks.delta.test_alter import altered, moves
from tests.integration.agent.sinks.delta.test_sink import KEYED, SPAN, flush, loaded, sink_at, task
from tests.unit.agent.changes_build import ARROW, changes, insert, table_schema, update

NOT_NAMES = [
    *("", ".", "..", "../../x", "a/b", "/etc", "a\\b", "%41", "a%2Fb", "_delta_log", "_change_data", ".weir-1-2"),
    *("a\nb", "a\x00b", "a\x7fb", "a\u2028b", "\ud800", "[a]", "a|b", "a^b", "x" * 300, "ü" * 120),
]
NAMES = [
    *("a b", "ü", "e\u0301", "a'b", 'a"b', "a`b", "a?b", "a#b", "a:b", "a*b", "{a}", "<a>", "~", "..a", "a..", ".a"),
    *("-a", "a&b=c", "CON", "a;b", "a,b", "$a", "名前", "😀", "x" * 200, "part-00000", "a.dropped-1f", "Weir"),
]
_parts = st.text(st.sampled_from("ab./\\%41_ -~\n\x00é[^|*?#:'\"`{}<>") | st.characters(), max_size=12)


def record(schema_name: str, name: str, table_id: int = 16384) -> TableRecord:
    """As v0.1.0 stored it."""
    return KEYED.with_(schema_name=schema_name, name=name, table_id=table_id)


def new(schema_name: str, name: str, table_id: int = 16384) -> TableRecord:
    return TableRecord.new(table_id, schema_name, name, key=KEYED.key, start_ts=KEYED.start_ts)


@pytest.mark.sample(0.15)
@pytest.mark.parametrize("name", [name for name in (*NOT_NAMES, *NAMES) if len(name) <= 64])
def test_a_new_table_lies_in_a_directory_of_its_own_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    sink = sink_at(tmp_path / "lake")
    tables = [new("public", name, 1), new(name, "t", 2), new(name, name, 3), new("public", "a", 4)]
    tables = list({table.path: table for table in tables}.values())
    sink.check(tables)
    assert not sink.unfit(tables)
    for table in tables:
        sink.load(table, table_schema(), ARROW, [])
        span = TableSpan(table.table_id)
        for at in (100, 200):
            change = insert(1, "a", "x") if at == 100 else update(1, "b", "y")
            order = replace(task(sink, at, at + 100, table=table), span=span)
            assert flush(sink, order, changes([change])).committed
        remove_replaced_files(sink.place(table))
    found = [Path(above) for above, directories, _ in os.walk(tmp_path) if "_delta_log" in directories]
    assert sorted(found) == sorted(tmp_path / "lake" / table.path for table in tables)
    for table in tables:
        rows = sink.read_rows(table, table_schema(), ARROW)
        assert [batch.to_pylist() for batch in rows] == [[{"id": 1, "name": "b", "big": "y"}]]
        assert DeltaTable(tmp_path / "lake" / table.path).version() == 2
        assert sink.committed_ts(table, TableSpan(table.table_id)) == 300


def test_a_name_longer_than_any_server_has_is_refused_where_no_directory_can_carry_it(tmp_path: Path) -> None:
    sink, longest = sink_at(tmp_path), new("public", "😀" * 64)
    assert not sink.unfit([longest])
    sink.load(longest, table_schema(), ARROW, [])
    assert "takes more than 255 bytes" in sink.unfit([new("public", "😀" * 80)])[SPAN.table_id]


def test_a_table_that_has_no_location_stays_where_it_is(tmp_path: Path) -> None:
    sink, table = sink_at(tmp_path), record("public", "a b")
    sink.load(table, table_schema(), ARROW, [])
    assert (tmp_path / "public" / "a b" / "_delta_log").is_dir()
    assert table.named("public", "a b").path == "public/a b"
    sink.alter([altered(moves(ARROW), before=table, after=table.named("public", "a/b"))])
    assert (tmp_path / "public" / "a!2Fb" / "_delta_log").is_dir()
    assert not (tmp_path / "public" / "a b").exists()


@pytest.mark.parametrize("name", NOT_NAMES)
def test_what_is_no_name_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    sink = sink_at(tmp_path / "lake")
    for table in (record("public", name), record(name, "t")):
        sink.check([table])  # the others may continue
        assert list(sink.unfit([record("public", "good", 1), table])) == [table.table_id]
        for call in (
            partial(sink.committed_ts, table, SPAN),
            partial(sink.load, table, table_schema(), ARROW, []),
        ):
            with pytest.raises(TableNameError, match=r"cannot be a directory of the sink: ") as caught:
                call()
            assert caught.value.scope is Scope.TABLE
            assert str(caught.value).isprintable()
    assert not (tmp_path / "lake").exists()


@pytest.mark.sample(0.15)
@pytest.mark.parametrize("name", NAMES)
def test_all_other_names_are_written_under_themselves(tmp_path: Path, name: str) -> None:
    sink = sink_at(tmp_path)
    for table in (record("public", name), record(name, "t")):
        sink.check([table])
        assert not sink.unfit([table])
        sink.load(table, table_schema(), ARROW, [])
        assert flush(sink, task(sink, 100, 200, table=table), changes([insert(1, "a", "x")])).committed
        assert flush(sink, task(sink, 200, 300, table=table), changes([update(1, "b", "y")])).committed
        found = tmp_path / table.schema_name / table.name
        assert DeltaTable(found).to_pyarrow_table().to_pylist() == [{"id": 1, "name": "b", "big": "y"}]
        assert sink.committed_ts(table, SPAN) == 300


def _tree(directory: str) -> dict[str, bytes]:
    return {
        os.path.join(above, name): Path(above, name).read_bytes()
        for above, _, names in os.walk(os.fsencode(directory).decode("utf-8", "surrogateescape"))
        for name in names
    }


@pytest.mark.matrix
@settings(max_examples=50, deadline=None)
@given(schema_name=_parts, name=_parts, is_new=st.booleans())
@example("..", "..", False)
@example("..", "canary", False)
@example("a", "../../canary", False)
@example("a", "../../canary", True)
@example("a", "b/../../canary", True)
def test_nothing_is_written_beside_a_tables_own_directory(schema_name: str, name: str, is_new: bool) -> None:
    with TemporaryDirectory() as above:
        for place in ("canary", "lake/canary", "lake/a/canary", "lake/a/b/changes-1-2-0-a.parquet"):
            Path(above, place).parent.mkdir(parents=True, exist_ok=True)
            Path(above, place).write_text("untouched")
            os.utime(Path(above, place), (1, 1))
        before = _tree(above)
        sink = open_sink(f"delta+file://{above}/lake?retention_seconds=0", changefeed="feed", mode=SinkMode.UPSERT)
        assert isinstance(sink, DeltaSink)
        table = (new if is_new else record)(schema_name, name)
        own: list[str] = []
        if not sink.unfit([table]) and (schema_name, name) not in (("a", "b"), ("a", "canary")):
            if "canary" in (schema_name, name):
                return
            sink.load(table, table_schema(), ARROW, [])
            assert flush(sink, task(sink, 100, 200, table=table), changes([insert(1, "a", "x")])).committed
            remove_replaced_files(sink.place(table))
            own = [os.path.join(above, "lake", table.path) + os.sep, os.path.join(above, "lake", ".weir-sink")]
            assert os.path.commonpath([os.path.realpath(own[0]), f"{os.path.realpath(above)}/lake"]).endswith("/lake")
        else:
            create_empty(sink, [(table, table_schema())] if sink.unfit([table]) else [])
        after = _tree(above)
        assert before.items() <= after.items()
        assert all(any(path.startswith(each) for each in own) for path in after.keys() - before.keys())


def test_upkeep_removes_files_of_its_own_table_only(tmp_path: Path) -> None:
    """One that lies deeper, as a version of before may have made it; a directory, a link, somebody's notes."""
    sink = open_sink(f"delta+file://{tmp_path}/lake?retention_seconds=0", changefeed="feed", mode=SinkMode.UPSERT)
    assert isinstance(sink, DeltaSink)
    sink.load(KEYED, table_schema(), ARROW, [])
    place = sink.place(KEYED)
    own = Path(place.location)
    outside = tmp_path / "outside.parquet"
    keep = [
        own / "b" / "changes-1-2-0-aa.parquet",
        own / "notes.txt",
        own / "data.parquet",
        own / "rows-x" / "y.parquet",
    ]
    orphans = [own / "changes-1-2-0-aa.parquet", own / "rows-1-2-aa.parquet", own / "rows-1-2-aa.parquet.0123abcd.tmp"]
    for path in (*keep, *orphans, outside):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (1, 1))
    (own / "rest-1-2-aa.parquet").symlink_to(outside)
    remove_replaced_files(place)
    assert all(path.exists() for path in (*keep, outside))
    assert not any(path.exists() for path in orphans)


def test_names_that_the_file_system_takes_for_one_are_not_both_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [record("public", "Orders", 1), record("public", "orders", 2), record("public", "e\u0301", 3)]
    sink = sink_at(tmp_path)
    assert not sink.unfit(tables), "here they are two"
    monkeypatch.setattr(Lake, "_merges_case", lambda lake: True)
    assert list(sink.unfit([*tables, record("PUBLIC", "é", 4)])) == [2, 4]


def test_a_sink_does_not_lie_in_a_table_of_another(tmp_path: Path) -> None:
    loaded(tmp_path)
    with pytest.raises(SinkConfigError, match="lies in the Delta table"):
        sink_at(tmp_path / "public" / "t" / "lake").check([KEYED])
    with pytest.raises(SinkConfigError, match=r"has '\[x\]' in its path"):
        Lake(f"{tmp_path}/[x]", is_local=True).check()
