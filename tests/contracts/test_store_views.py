"""The views of SQL stores, read with SQL as people do."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pymysql
import pytest

from reactor import keys
from reactor.division.packing import MAGIC, packed
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.membership.progress import CaptureProgress, OwnedProgress, entry_of
from reactor.records.capture import Assignment, CaptureInfo, OwnerState
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, FeedState, RunningError, SealedUri
from reactor.records.formats import ClusterFormat, Feature
from reactor.state import ClusterState
from reactor.store.port import MetaStore
from reactor.store.sql import views
from tests.contracts.store_bed import OWN, sql_connect, sqlite_url

Rows = list[dict[str, Any]]


@dataclass
class Database:
    url: str
    #: no other test has it
    cluster: str
    query: Callable[[str], Rows]

    def rows(self, view: str, *columns: str) -> list[tuple[Any, ...]]:
        order = "capture" if view == "weir_election" else "changefeed"
        found = self.query(f"SELECT * FROM {view} WHERE cluster = '{self.cluster}' ORDER BY {order}")
        return [tuple(row[column] for column in columns) for row in found]


@pytest.fixture(params=["sqlite", "postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    url = sqlite_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue(OWN[request.param])
    return Database(url, f"c-{uuid4().hex[:8]}", lambda sql: _query(url, sql))


def _query(url: str, sql: str) -> Rows:
    """Run one statement over a connection of another program's."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        with closing(sqlite3.connect(parts.path, isolation_level=None)) as plain:
            return _rows(plain.execute(sql))
    if parts.scheme == "postgresql":
        with psycopg.connect(url, autocommit=True) as connection:
            return _rows(connection.execute(sql.encode()))
    place = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
    with closing(pymysql.connect(**place, database=parts.path[1:], autocommit=True)) as session:
        cursor = session.cursor()
        cursor.execute(sql)
        return _rows(cursor)


def _rows(cursor: Any) -> Rows:
    if cursor.description is None:
        return []
    names: Sequence[str] = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def info(id: str, **fields: Any) -> ChangefeedInfo:
    source = SealedUri(masked="mysql://weir:***@db/shop", sealed="gAAAA-geheim")
    return ChangefeedInfo(
        id=ChangefeedId(id), source=source, sink=SealedUri(masked="delta+file:///lake", sealed=""), **fields
    )


async def join(client: MetaStore, cluster: str, *names: str) -> None:
    """Members; the first is elected."""
    for name in names:
        lease = await client.grant(60)
        member = CaptureInfo(
            id=CaptureId(name), address=f"{name}:1", peer_address="h:2", version="9", cluster_id=cluster, started_at=1e9
        )
        await client.put(str(keys.CaptureKey(cluster, CaptureId(name))), member.encode(), lease=lease)
        await client.put(str(keys.OwnerKey(cluster, f"{lease:x}")), name.encode(), lease=lease)


async def test_people_read_the_store_with_sql(database: Database) -> None:
    cluster, ns = database.cluster, keys.DEFAULT_NAMESPACE
    error = RunningError(code="SinkUnreachable", message="the sink 'lake' does \"not\" answer; {ü}")
    async with sql_connect(database.url)() as client:
        await join(client, cluster, "b", "a")
        await client.put(str(keys.FormatKey(cluster)), ClusterFormat(number=Feature.OWNERS).encode())
        for feed in (
            info("orders", state=FeedState.WARNING, warning=error, start_ts=Ts((1 << 62) + 1), created_at=1.7e9 + 0.25),
            info("idle", incarnation="f00", target_ts=Ts(7)),
        ):
            await client.put(str(keys.InfoKey(cluster, ns, feed.id)), feed.encode())
        assigned = Assignment(capture=CaptureId("a"), state=OwnerState.REMOVING, next="b", is_chosen=True)
        revision = await client.put(str(keys.AssignmentKey(cluster, ns, ChangefeedId("orders"))), assigned.encode())
        status = ChangefeedStatus(checkpoint_ts=Ts((1 << 62) + 5), resolved_ts=Ts(9), checkpoint_time=1.7e9 + 0.5)
        await client.put(str(keys.StatusKey(cluster, ns, ChangefeedId("orders"))), status.encode())
    assert database.rows("weir_election", "capture", "is_leader", "address", "lease_seconds") == [
        ("a", 0, "a:1", 60),
        ("b", 1, "b:1", 60),
    ]
    assert database.rows(
        "weir_changefeed", "namespace", "changefeed", "incarnation", "state", "start_ts", "target_ts", "warning"
    ) == [
        (ns, "idle", "f00", "normal", 0, 7, None),
        (ns, "orders", "", "warning", (1 << 62) + 1, None, error.message),
    ]
    assert database.rows("weir_changefeed", "source_uri", "sink_uri")[0] == (
        "mysql://weir:***@db/shop",
        "delta+file:///lake",
    )
    assert [str(row[0])[:22] for row in database.rows("weir_changefeed", "created_at")] == [
        "None",
        "2023-11-14 22:13:20.25",
    ]
    columns = ("changefeed", "owner", "owner_state", "owner_revision", "next_owner", "is_chosen")
    assert database.rows("weir_schedule", *columns) == [
        ("idle", None, "Removed", None, None, 0),
        ("orders", "a", "Removing", revision, "b", 1),
    ]
    assert database.rows("weir_progress", "changefeed", "capture", "checkpoint_ts", "resolved_ts") == [
        ("orders", "a", (1 << 62) + 5, 9)
    ]
    assert str(database.rows("weir_progress", "checkpoint_time")[0][0]).startswith("2023-11-14 22:13:20.5")


async def test_the_progress_of_an_owner_is_newer_than_the_status_that_it_belongs_to(database: Database) -> None:
    cluster, ns = database.cluster, keys.DEFAULT_NAMESPACE
    async with sql_connect(database.url)() as client:
        await client.put(str(keys.FormatKey(cluster)), ClusterFormat(number=Feature.PROGRESS).encode())
        entries = dict[ChangefeedId, OwnedProgress]()
        for name, incarnation, generation in (("now", "1", 4), ("rewound", "1", 3), ("again", "0", 4), ("old", "", 4)):
            feed = info(name, incarnation=incarnation and "1")
            await client.put(str(keys.InfoKey(cluster, ns, feed.id)), feed.encode())
            assigned = Assignment(capture=CaptureId("a"))
            await client.put(str(keys.AssignmentKey(cluster, ns, feed.id)), assigned.encode())
            status = ChangefeedStatus(checkpoint_ts=Ts(5), generation=4)
            await client.put(str(keys.StatusKey(cluster, ns, feed.id)), status.encode())
            newer = status.with_(checkpoint_ts=Ts((1 << 62) + 5), generation=generation)
            entries[feed.id] = entry_of(feed.with_(incarnation=incarnation), newer)
        record = CaptureProgress(changefeeds=entries)
        await client.put(str(keys.ProgressKey(cluster, ns, CaptureId("a"))), record.encode())
        state = ClusterState(cluster)
        state.load(await client.get_prefix(state.prefix))
    shown = dict(database.rows("weir_progress", "changefeed", "checkpoint_ts"))
    assert shown == {"now": (1 << 62) + 5, "rewound": 5, "again": 5, "old": (1 << 62) + 5}
    assert shown == {str(id): feed.status.checkpoint_ts for id, feed in state.changefeeds.items() if feed.status}


async def test_no_view_shows_a_secret(database: Database) -> None:
    async with sql_connect(database.url)() as client:
        await client.put(str(keys.InfoKey(database.cluster, "default", ChangefeedId("f"))), info("f").encode())
    shown = [database.query(f"SELECT * FROM {view}") for view in views.NAMES]
    assert "weir:***@db" in str(shown)
    assert "geheim" not in str(shown)


async def test_before_owners_are_spread_the_elected_capture_owns_all(database: Database) -> None:
    async with sql_connect(database.url)() as client:
        await client.put(str(keys.InfoKey(database.cluster, "default", ChangefeedId("f"))), info("f").encode())
        assert database.rows("weir_schedule", "owner", "owner_state") == [(None, "Removed")]
        await join(client, database.cluster, "x", "y")
        assert database.rows("weir_schedule", "owner", "owner_state") == [("x", "Launched")]
        ((revision,),) = database.rows("weir_schedule", "owner_revision")
        assert (1, revision) in database.rows("weir_election", "is_leader", "revision")


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(
    "value", [b"", b"\xff\xfe", b'{"state": ', MAGIC + b"zzz", packed(b'{"a": "' + b"x" * 70_000 + b'"}')]
)
async def test_a_value_that_is_no_json_harms_no_other_row(database: Database, value: bytes) -> None:
    ns = keys.DEFAULT_NAMESPACE
    async with sql_connect(database.url)() as client:
        await client.put(str(keys.InfoKey(database.cluster, ns, ChangefeedId("bad"))), value)
        await client.put(str(keys.StatusKey(database.cluster, ns, ChangefeedId("bad"))), value)
        await client.put(str(keys.AssignmentKey(database.cluster, ns, ChangefeedId("bad"))), value)
        await client.put(str(keys.InfoKey(database.cluster, ns, ChangefeedId("good"))), info("good").encode())
    assert database.rows("weir_changefeed", "changefeed", "state") == [("bad", None), ("good", "normal")]
    assert database.rows("weir_schedule", "changefeed", "owner") == [("bad", None), ("good", None)]
    assert database.rows("weir_progress", "changefeed", "checkpoint_ts") == [("bad", None)]


async def test_views_of_an_older_version_are_replaced_and_lost_ones_created(database: Database) -> None:
    async with sql_connect(database.url)() as client:
        await client.put("/x", b"")
    for damage in (
        ["DROP VIEW weir_views", "CREATE VIEW weir_views AS SELECT 0 AS version", "DROP VIEW weir_progress"],
        [f"DROP VIEW {name}" for name in views.NAMES],
    ):
        for statement in damage:
            database.query(statement)
        async with sql_connect(database.url)() as client:
            await client.get("/x")
        assert database.rows("weir_progress", "changefeed") == []
        assert database.query(views.READ_VERSION) == [{"version": views.VERSION}]
