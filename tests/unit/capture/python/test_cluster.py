"""The Python interface over a served cluster in memory: methods, errors, reprs, and what importing it costs."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import write_deltalake

import capture
from agent.sinks.delta.table.place import TableOwner, first_properties, record_id
from capture.errors import (
    CaptureNotEmptyError,
    CaptureNotFoundError,
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    ConfigError,
    ServerUnreachableError,
    SyncPointNotFoundError,
    TableNotFoundError,
)
from capture.python.cluster import Changefeed
from capture.python.local import LocalChangefeed
from capture.python.moment import Moment
from capture.python.table import Table
from reactor.ids import TableSpan
from reactor.records.changefeed import FeedState, Mode, SinkMode, Unit
from reactor.records.sync_point import SyncPoint
from reactor.views import ChangefeedView, HeldView, SpanView, TableView, called
from tests.unit.capture.api.test_forwarding import SINK, SOURCE, served
from tests.unit.capture.fakes import MemoryCluster


def test_the_interface_for_a_loop_has_every_method_of_the_other() -> None:
    def methods(of: type) -> set[str]:
        return {name for name in dir(of) if not name.startswith("_")}

    assert methods(LocalChangefeed) - methods(Changefeed) == {"subscription"}, "`changes` of the other begins it"


async def test_a_cluster_that_is_connected_to() -> None:
    owner = MemoryCluster()
    async with served(owner) as address:
        cluster = capture.connect(f"http://{address}", token="secret")
        assert (await cluster.check("shop", source=SOURCE, sink=SINK)).source == "postgresql://u:***@h/d"
        feed = await cluster.create("shop", source=SOURCE, sink=SINK, mode="full", config={"held-retention-bytes": 7})
        assert (owner.specs["shop"].mode, owner.specs["shop"].config.held_retention_bytes) == (Mode.FULL, 7)
        with pytest.raises(ChangefeedExistsError):
            await cluster.create("shop", source=SOURCE, sink=SINK)
        assert [each.id for each in await cluster.changefeeds()] == ["shop"]
        assert (await feed.pause()).state is FeedState.STOPPED
        assert (await feed.wait(state="stopped")).state is FeedState.STOPPED
        assert repr(feed) == "<Changefeed shop: stopped, 0 tables>"
        assert "geheim" not in feed._repr_html_()
        assert (await feed.resume()).state is FeedState.NORMAL
        owner.feeds["shop"] = owner.feeds["shop"].model_copy(update={"unit": Unit.SYNC, "checkpoint_ts": 7})
        assert (await feed.wait(timeout=60)).unit is Unit.SYNC
        assert await feed.diff() == []
        point = SyncPoint(ts=7, time=1.0, versions={"public.t": "3"})
        owner.feeds["shop"] = owner.feeds["shop"].model_copy(update={"sync_point": point})
        assert await feed.sync_points() == [point]
        assert (await feed.at()).tables == ["public.t"]
        assert (await feed.at(point)).ts == (await feed.at(9)).ts == 7
        with pytest.raises(SyncPointNotFoundError, match="no sync point at or before 6; the oldest is 7"):
            await feed.at(6)
        with pytest.raises(ConfigError, match="ts is a whole number, not 'latest'"):
            await feed.at("latest")  # type: ignore[arg-type]
        assert (await feed.split("public.t", 4)).wanted == 4
        assert (await feed.join("public.t")).wanted == 1
        assert (await feed.resync("public.t", rows_per_second=500)).resyncing
        assert await feed.diff(sample=0.5, rows_per_second=600) == []
        assert await feed.repair(["public.t"], where="id = 7", rows_per_second=700) == []
        assert (owner.limits, owner.conditions) == ([None, 500, 600, 700], ["id = 7"])
        with pytest.raises(ConfigError, match="sample is wrong"):
            await feed.diff(sample=2)
        assert (await feed.add_table("public.t")).changefeed.id == "shop"
        assert (await feed.remove_table("public.t")).changefeed.id == "shop"
        with pytest.raises(ConfigError, match="mode is 'odd'; use one of"):
            await feed.update(mode="odd")
        with pytest.raises(TableNotFoundError, match=r"has no table public\.t; it has none yet"):
            await feed.table("public.t")
        await feed.remove()
        with pytest.raises(ChangefeedNotFoundError):
            await feed.query()
        await cluster.stop()  # it was not started here
        assert (await cluster.status()).id == "capture-1"
    with pytest.raises(ServerUnreachableError, match="no Weir server at"):
        await cluster.captures()


async def test_the_blocking_interface() -> None:
    owner = MemoryCluster()
    async with served(owner) as address:
        cluster = capture.local(f"http://{address}", token="secret")

        def work() -> None:
            feed = cluster.create("shop", source=SOURCE, sink=SINK)
            assert feed.view is not None
            assert feed.view.source == "postgresql://u:***@h/d"
            with pytest.raises(TimeoutError):
                feed.wait(ts=9, timeout=0.2)
            assert cluster.drain("capture-1").remaining == 0
            owner.load = 3
            with pytest.raises(CaptureNotEmptyError, match="capture-1 still has"):
                cluster.drain("capture-1", timeout=1e-9)
            with pytest.raises(CaptureNotFoundError):
                cluster.drain("capture-9")
            assert [each.id for each in cluster.captures()] == ["capture-1"]

        await to_thread.run_sync(work)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"no-such-key": 1}, "no-such-key"),
        ({"held-retention-bytes": "many"}, "held-retention-bytes"),
        ("/no/such/file.toml", "cannot read /no/such/file.toml"),
    ],
)
async def test_a_wrong_config(config: dict[str, object] | str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        await capture.connect("http://127.0.0.1:9").create("shop", source=SOURCE, sink=SINK, config=config)


def test_tables_are_found_where_their_records_say(tmp_path: Path) -> None:
    feed = ChangefeedView(
        id="shop",
        state=FeedState.NORMAL,
        sink=f"delta+file://{tmp_path}?retention_seconds=***",
        tables=(TableView(table="public.a/b", table_id=1, location="public/a!2Fb"),),
    )
    assert Table.of(feed, "public.a/b").location == f"{tmp_path}/public/a!2Fb"
    with pytest.raises(TableNotFoundError, match=r"it has public\.a/b"):
        Table.of(feed, "public.a")
    with pytest.raises(capture.WeirError, match="cannot be read back"):
        Table.of(feed.model_copy(update={"sink": "blackhole://"}), "public.a/b")


@pytest.mark.parametrize("renamed_to", ["a.old", ""])
@pytest.mark.parametrize("first", [0, 1])
def test_a_name_is_that_of_the_table_which_has_it_at_the_source(tmp_path: Path, first: int, renamed_to: str) -> None:
    """A held table that was renamed or dropped keeps its name at the sink, and another one has taken it since."""
    held = HeldView(table="a.t", table_id=1, stage="held", renamed_to=renamed_to)
    tables = [
        TableView(table="a.t", table_id=1, location="a/t", held=held),
        TableView(table="a.t", table_id=2, location="a/t!t2"),
    ]
    tables = [tables[first], tables[1 - first]]
    feed = ChangefeedView(id="shop", state=FeedState.NORMAL, sink=f"delta+file://{tmp_path}", tables=tuple(tables))
    assert Table.of(feed, "a.t").location == f"{tmp_path}/a/t!t2"
    assert called([table for table in tables if table.held], "a.t") is not None
    assert called(tables, "a.old") is None


def written(path: Path, table_id: int, ts: int, *, row: int) -> None:
    """A version of a table of changefeed shop's, which is at ``ts``."""
    write_deltalake(
        path,
        pa.table({"id": [row]}),
        mode="append",
        description=TableOwner("shop", SinkMode.UPSERT).description(),
        commit_properties=first_properties({record_id("shop", TableSpan(table_id)): ts}),
    )


def test_tables_of_a_moment_have_the_versions_of_its_sync_point(tmp_path: Path) -> None:
    written(tmp_path / "a" / "t", 0, 5, row=1)
    written(tmp_path / "a" / "t", 0, 9, row=2)
    feed = ChangefeedView(
        id="shop",
        state=FeedState.NORMAL,
        sink=f"delta+file://{tmp_path}",
        tables=tuple(TableView(table=f"a.{name}", table_id=id, location=f"a/{name}") for id, name in enumerate("tuv")),
    )
    of_tables: Any = {"table_ids": {"a.t": 0, "a.v": 2}, "left_out": ("a.u",)}
    points = [SyncPoint(ts=ts, time=1.0, versions={"a.t": v, "a.v": ""}, **of_tables) for ts, v in ((5, "0"), (9, "1"))]
    assert [Moment.of(feed, points, ts).ts for ts in (None, 9, 8, 5)] == [9, 9, 5, 5]
    then = Moment.of(feed, points, 8)
    assert (then.tables, repr(then)) == (["a.t"], "<Moment 5 of shop: 1 tables>")
    assert then.table("a.t").version == 0
    assert then.table("a.t").to_arrow()["id"].to_pylist() == [1]
    assert then.table("a.t").to_arrow(version=1).num_rows == 2
    assert "<td>a.t</td><td>0</td>" in then._repr_html_()
    with pytest.raises(TableNotFoundError, match=r"a\.u was held at sync point 5"):
        then.table("a.u")
    with pytest.raises(TableNotFoundError, match=r"has no table a\.v; it has a\.t"):
        then.table("a.v")
    with pytest.raises(SyncPointNotFoundError, match="no sync point at or before 4; the oldest is 5"):
        Moment.of(feed, points, 4)
    with pytest.raises(SyncPointNotFoundError, match="no sync point yet; they need `sync-point-interval-seconds`"):
        Moment.of(feed, [], None)


def test_a_moment_has_the_tables_of_then_whatever_their_names_are_now(tmp_path: Path) -> None:
    """gh-ost and pt-online-schema-change end with a swap of names, which moves the tables at the sink."""
    written(tmp_path / "a" / "_t_old", 7, 4, row=1)
    written(tmp_path / "a" / "t", 8, 5, row=2)
    now = {"a._t_old": 7, "a.t": 8}
    feed = ChangefeedView(
        id="shop",
        state=FeedState.NORMAL,
        sink=f"delta+file://{tmp_path}",
        tables=tuple(TableView(table=t, table_id=id, location=t.replace(".", "/")) for t, id in now.items()),
    )
    versions = {"a.t": "0", "a._t_new": "0", "a.gone": "3"}
    point = SyncPoint(ts=5, time=1.0, versions=versions, table_ids={"a.t": 7, "a._t_new": 8, "a.gone": 9})
    then = Moment.of(feed, [point], None)
    assert [then.table(name).to_arrow()["id"].to_pylist() for name in ("a.t", "a._t_new")] == [[1], [2]]
    with pytest.raises(TableNotFoundError, match=r"a\.gone of sync point 5 was dropped since, .*read version 3 where"):
        then.table("a.gone")
    assert [point.version_of(id) for id in (7, 9, 10)] == ["0", "3", ""]


@pytest.mark.parametrize(
    ("records", "table_ids", "error"),
    [
        ({TableSpan(7): 4}, {}, ""),
        ({}, {"a.t": 7}, ""),  # it had other spans then
        ({}, {}, "version 3 of /lake/a/t is not of a\\.t as it is now"),
        ({TableSpan(7): 6}, {"a.t": 7}, "version 3 of /lake/a/t is not that of sync point 5: the table was set back"),
    ],
    ids=["it is", "split", "a point of the first release, and another table", "set back and written again"],
)
def test_a_version_is_read_only_if_it_is_the_one_of_the_point(
    records: dict[TableSpan, int], table_ids: dict[str, int], error: str
) -> None:
    view = TableView(table="a.t", table_id=7, spans=(SpanView(span="7:0-10", checkpoint_ts=4),))
    asked: list[Any] = []

    def state(spans: Any, *, version: int | None) -> Any:
        asked.extend((*spans, version))
        return SimpleNamespace(records=records)

    reader: Any = SimpleNamespace(state=state, location="/lake/a/t")
    table = Table("shop", "a.t", reader, version=3)
    with pytest.raises(TableNotFoundError, match=error) if error else nullcontext():
        table.check_was(view, SyncPoint(ts=5, time=1.0, versions={"a.t": "3"}, table_ids=table_ids))
    assert asked == [TableSpan(7), TableSpan.parse("7:0-10"), 3]


def test_importing_it_costs_next_to_nothing() -> None:
    code = "import capture, sys; print(sorted({'anyio', 'pyarrow', 'pyspark', 'pydantic'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_is_handed_on() -> None:
    assert {*capture.__all__} <= {*dir(capture)}
    assert all(getattr(capture, name) is not None for name in capture.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'begin'; it has Changefeed"):
        _ = capture.begin


@pytest.mark.parametrize("settings", [{"no_such_setting": 1}, {"session_ttl_seconds": 1}])
async def test_settings_that_are_wrong(tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        await capture.start(tmp_path, **settings)
    with pytest.raises(ConfigError):
        capture.local(tmp_path, **settings)
