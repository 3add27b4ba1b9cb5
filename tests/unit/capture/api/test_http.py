"""The HTTP API over a cluster in memory, through its own client: routes, statuses, forwarding, no secrets in errors."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import anyio
import httpx
import pytest
from anyio.abc import SocketAttribute, SocketListener
from pydantic import ValidationError
from structlog.testing import capture_logs

from capture.api.client import Client, RemoteError
from capture.api.http import create_app
from capture.api.port import ChangefeedSpec, ChangefeedUpdate, KeyRepair, RepairAsked, TableDiff, TableRepair
from capture.api.requests import forwarding
from capture.api.requests.forwarding import FORWARDED_FROM
from capture.errors import ServerUnreachableError, StillRunningError
from reactor.errors import OwnerNotFoundError, StoreUnreachableError
from reactor.ids import Ts
from reactor.records.changefeed import FeedState, SinkMode
from reactor.records.schedules import LastDiff
from reactor.views import TableView
from tests.patience import HANG_S
from tests.unit.capture.fakes import MemoryAccess, MemoryCluster

SPEC = ChangefeedSpec(changefeed_id="feed", source_uri="postgresql://u:geheim@h/d", sink_uri="delta+file:///lake")


class AppTransport(httpx.BaseTransport):
    """The application behind the blocking client, without a socket."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._app = create_app(cluster, MemoryAccess(), names=("weir",))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport) as client:
                sent = httpx.Request(request.method, request.url, headers=request.headers, content=request.read())
                answer = await client.send(sent)
                return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())

        # In a thread of its own: pytest-asyncio keeps a loop in this one.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(anyio.run, call).result()


@contextmanager
def client_of(cluster: MemoryCluster) -> Iterator[Client]:
    with Client("http://weir", token="secret", transport=AppTransport(cluster)) as client:
        yield client


async def call(cluster: MemoryCluster, method: str, path: str, **arguments: object) -> httpx.Response:
    app = create_app(cluster, MemoryAccess(), names=("weir",))
    known = {"authorization": "Bearer secret"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://weir", headers=known) as client:
        return await client.request(method, path, **arguments)  # type: ignore[arg-type]


def test_a_changefeed_lives_through_the_client() -> None:
    cluster = MemoryCluster()
    with client_of(cluster) as client:
        created = client.create(SPEC.model_copy(update={"sink_mode": SinkMode.CHANGELOG}))
        assert created.source == "postgresql://u:***@h/d"
        assert cluster.specs["feed"].source_uri == SPEC.source_uri
        assert cluster.specs["feed"].sink_mode is SinkMode.CHANGELOG
        assert [feed.id for feed in client.list()] == ["feed"]
        assert client.pause("feed").state is FeedState.STOPPED
        assert client.resume("feed", overwrite_checkpoint_ts=7).checkpoint_ts == 7
        client.pause("feed")
        assert client.resume("feed", resync=True).state is FeedState.NORMAL
        assert client.tables("feed") == []
        client.remove("feed")
        assert client.list() == []


def tables(count: int) -> tuple[TableView, ...]:
    """With ids that are in another order than their names."""
    return tuple(TableView(table=f"public.t{n:05}", table_id=n * 7919 % 100_003) for n in range(count))


def test_pollers_get_the_number_of_tables_in_place_of_the_tables() -> None:
    cluster = MemoryCluster()
    with client_of(cluster) as client:
        client.create(SPEC)
        cluster.feeds["feed"] = cluster.feeds["feed"].model_copy(update={"tables": tables(3)})
        whole, light = client.query("feed"), client.query("feed", tables=False)
        assert (len(whole.tables), whole.table_count) == (3, 3)
        assert light == whole.model_copy(update={"tables": ()})
        assert client.list() == [whole]
        assert client.list(tables=False) == client.owned(tables=False) == [light]


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_tables_are_asked_for_page_by_page(count: int) -> None:
    cluster = MemoryCluster()
    with client_of(cluster) as client:
        client.create(SPEC)
        known = tables(count)
        cluster.feeds["feed"] = cluster.feeds["feed"].model_copy(update={"tables": known})
        assert client.tables("feed") == list(known), "each of them once, by name"
        assert cluster.pages == [1000] * (count // 1000 + 1)
        assert client.table("feed", "public.t00000") == (known[0] if known else None)
        assert client.table("feed", "public.other") is None


def test_a_server_of_an_earlier_version_answers_with_all_tables() -> None:
    """It ignores what it does not know: the number of a page, and the name."""

    class Earlier(MemoryCluster):
        async def tables(self, changefeed_id: str, **_: object) -> list[TableView]:
            return list((await self.query(changefeed_id)).tables)

    cluster = Earlier()
    with client_of(cluster) as client:
        client.create(SPEC)
        for count in (3, 1000, 1001):
            cluster.feeds["feed"] = cluster.feeds["feed"].model_copy(update={"tables": tables(count)})
            assert client.tables("feed") == list(tables(count))
            assert client.table("feed", "public.t00002") == tables(3)[2]


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=many", "after=-1", "after=9" + "9" * 20, "names=x"])
async def test_pages_of_tables_have_bounds(query: str) -> None:
    cluster = MemoryCluster()
    await cluster.create(SPEC)
    answer = await call(cluster, "GET", f"/api/v2/changefeeds/feed/tables?{query}")
    assert answer.status_code == 400
    assert answer.json()["error_code"] == "InvalidRequest"


def test_operators_commands_go_through_the_client() -> None:
    cluster = MemoryCluster()
    with client_of(cluster) as client:
        client.create(SPEC)
        client.pause("feed")
        asked = ChangefeedUpdate(sink_uri="delta+file:///other", target_ts=0, dry_run=True)
        assert client.update("feed", asked).dry_run
        assert cluster.updates == [asked]
        rewound = client.rewind("feed", 9)
        assert (rewound.changefeed.checkpoint_ts, rewound.tables[0].ts) == (9, 9)
        assert client.move_table("feed", "public.t", "capture-1").spans == 1
        assert client.split("feed", "public.t", 4).wanted == 4
        assert client.split("feed", "public.t").wanted == 6
        assert client.resync_table("feed", "public.t").resyncing
        assert cluster.resynced == ["public.t"]
        assert not client.cancel_resync("feed", "public.t").resyncing
        assert cluster.resynced == []
        assert client.pause_table("feed", "public.t").ts == 7
        assert client.resume_table("feed", "public.t").notices == ()
        assert client.skip_table("feed", "public.t", 9, confirmed=True).notices == ("changes are left out",)
        assert cluster.steps == ["pause public.t", "resume public.t", "skip to 9 public.t"]
        with pytest.raises(RemoteError, match="confirm that"):
            client.skip_table("feed", "public.t", 9)
        assert client.add_table("feed", "public.t").changefeed.id == "feed"
        assert client.remove_table("feed", "public.t").changefeed.id == "feed"
        assert client.maintain_table("feed", "public.t").files == 1
        assert client.table_files("feed", "public.t").deleted_rows == 25
        assert cluster.steps[3:] == ["add public.t", "remove public.t", "maintain public.t"]
        client.rebalance("feed")
        assert client.drain("capture-1").remaining == 2
        assert client.resign_owner().owner == "capture-2"


def test_the_members_answer_for_themselves() -> None:
    with client_of(MemoryCluster(is_owner=False)) as client:
        assert client.status().cluster_id == "test"
        assert client.health().problem == "no owner"


async def test_a_capture_that_waits_is_not_ready_and_says_for_what() -> None:
    for is_owner, status, waits_for in ((True, 200, ""), (False, 503, "this capture waits for Spark")):
        transport = httpx.ASGITransport(create_app(MemoryCluster(is_owner=is_owner), MemoryAccess(), names=("weir",)))
        async with httpx.AsyncClient(transport=transport, base_url="http://weir") as client:
            answer = await client.get("/ready")
        expected = {"ready": is_owner, "waits_for": waits_for, "is_fit": True}
        assert (answer.status_code, answer.json()) == (status, expected)


def test_the_owner_knows_all_captures() -> None:
    with client_of(MemoryCluster()) as client:
        assert [capture.id for capture in client.captures()] == ["capture-1"]
    with client_of(MemoryCluster(is_owner=False)) as client, pytest.raises(RemoteError, match="no owner"):
        client.captures()


@pytest.mark.parametrize(
    ("action", "status", "code"),
    [
        (lambda client: client.query("none"), 404, "ChangefeedNotFound"),
        (lambda client: client.create(SPEC), 409, "ChangefeedExists"),
        (lambda client: client.resume("feed"), 409, "JobRefused"),
        (lambda client: client.update("feed", ChangefeedUpdate()), 409, "JobRefused"),
        (lambda client: client.rewind("feed", 1), 409, "JobRefused"),
        (lambda client: client.rewind("none", 1), 404, "ChangefeedNotFound"),
        (lambda client: client.drain("none"), 404, "CaptureNotFound"),
    ],
)
def test_refusals_come_back_with_status_and_code(action: object, status: int, code: str) -> None:
    cluster = MemoryCluster()
    with client_of(cluster) as client:
        client.create(SPEC)
        assert callable(action)
        with pytest.raises(RemoteError) as caught:
            action(client)
    assert (caught.value.status, caught.value.code) == (status, code)


async def test_what_passes_by_itself_is_503() -> None:
    cluster = MemoryCluster()
    cluster.breaks_with = StoreUnreachableError("etcd does not answer; is it running?")
    answer = await call(cluster, "GET", "/api/v2/changefeeds")
    assert (answer.status_code, answer.json()["error_code"]) == (503, "StoreUnreachable")


async def test_our_own_faults_are_500_in_one_masked_line() -> None:
    cluster = MemoryCluster()
    cluster.breaks_with = RuntimeError("no route to\npostgresql://u:geheim@h/d")
    with capture_logs() as logged:
        answer = await call(cluster, "GET", "/api/v2/changefeeds")
    assert [entry["log_level"] for entry in logged] == ["error"]
    assert answer.status_code == 500
    assert answer.json() == {
        "error_code": "Internal",
        "error_msg": "RuntimeError: no route to postgresql://u:***@h/d; see this capture's log",
    }


@pytest.mark.parametrize(
    "body",
    [
        {"changefeed_id": "feed", "source_uri": "postgresql://u:geheim@h/d"},
        {**SPEC.model_dump(mode="json"), "sinkmode": "postgresql://u:geheim@h/d"},
        {**SPEC.model_dump(mode="json"), "start_ts": "postgresql://u:geheim@h/d"},
    ],
)
async def test_a_wrong_body_is_400_and_never_echoed(body: dict[str, object]) -> None:
    answer = await call(MemoryCluster(), "POST", "/api/v2/changefeeds", json=body)
    assert (answer.status_code, answer.json()["error_code"]) == (400, "InvalidRequest")
    assert "geheim" not in answer.text


async def test_a_wrong_update_is_400_and_never_echoed() -> None:
    body = {"sink_url": "s3://key:geheim@bucket"}
    answer = await call(MemoryCluster(), "PUT", "/api/v2/changefeeds/feed", json=body)
    assert (answer.status_code, answer.json()["error_code"]) == (400, "InvalidRequest")
    assert "geheim" not in answer.text


async def test_only_the_owner_drains_and_resigns() -> None:
    for path in ("captures/capture-1/drain", "owner/resign"):
        answer = await call(MemoryCluster(is_owner=False), "POST", f"/api/v2/{path}")
        assert answer.json()["error_code"] == "OwnerNotFound"


async def test_unknown_routes_have_our_error_shape() -> None:
    answer = await call(MemoryCluster(), "GET", "/api/v2/nothing")
    assert (answer.status_code, answer.json()["error_code"]) == (404, "Http")


async def test_the_owners_metrics_show_every_changefeed() -> None:
    cluster = MemoryCluster()
    await cluster.create(SPEC)
    text = (await call(cluster, "GET", "/metrics")).text
    assert f'weir_changefeed_state{{changefeed="{SPEC.changefeed_id}",state="normal"}} 1.0' in text
    assert f'weir_changefeed_checkpoint_ts{{changefeed="{SPEC.changefeed_id}"}}' in text
    assert "weir_capture_is_owner 1.0" in text
    assert "weir_diff_equal{" not in text
    last = LastDiff(time=9.0, ts=Ts(7), compared=3, differ=1, wait=2)
    cluster.feeds[SPEC.changefeed_id] = cluster.feeds[SPEC.changefeed_id].model_copy(update={"last_diff": last})
    text = (await call(cluster, "GET", "/metrics")).text
    of_feed = f'changefeed="{SPEC.changefeed_id}"'
    assert f"weir_diff_equal{{{of_feed}}} 0.0" in text
    assert f"weir_diff_time_seconds{{{of_feed}}} 9.0" in text
    assert f"weir_diff_ts{{{of_feed}}} 7.0" in text
    for result, count in {"equal": 2.0, "differs": 1.0, "waiting": 2.0}.items():
        assert f'weir_diff_tables{{{of_feed},result="{result}"}} {count}' in text
    cluster.breaks_with = OwnerNotFoundError("no owner; try again")
    assert "weir_capture_is_owner 1.0" in (await call(cluster, "GET", "/metrics")).text


async def test_metrics_and_documentation_are_served() -> None:
    assert "python_info" in (await call(MemoryCluster(), "GET", "/metrics")).text
    paths = (await call(MemoryCluster(), "GET", "/openapi.json")).json()["paths"]
    assert "/api/v2/changefeeds/{changefeed_id}/diff" in paths


async def test_nobody_is_owner() -> None:
    answer = await call(MemoryCluster(is_owner=False), "GET", "/api/v2/changefeeds")
    assert (answer.status_code, answer.json()["error_code"]) == (503, "OwnerNotFound")


async def test_an_owner_that_does_not_answer_is_503() -> None:
    answer = await call(MemoryCluster(is_owner=False, owner="127.0.0.1:1"), "GET", "/api/v2/changefeeds")
    assert (answer.status_code, answer.json()["error_code"]) == (503, "OwnerUnreachable")


async def test_an_owner_that_hangs_is_asked_no_longer_than_it_is_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection, as a stopped process does, and answers nothing."""
    monkeypatch.setattr(forwarding, "_OWNER_POLL_S", 0.01)
    monkeypatch.setattr(forwarding, "_LAST_WORDS_S", 0.01)
    answered = anyio.Event()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listeners:
        [listener] = listeners.listeners
        assert isinstance(listener, SocketListener)
        cluster = MemoryCluster(is_owner=False, owner=f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}")

        async def stand_still() -> None:
            async with await listener.accept():
                cluster.owner = "127.0.0.1:1"
                await answered.wait()

        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stand_still)
                answer = await call(cluster, "GET", "/api/v2/changefeeds")
                answered.set()
    assert (answer.status_code, answer.json()["error_code"]) == (503, "OwnerUnreachable")
    assert "another has taken its place" in answer.json()["error_msg"]


@pytest.mark.parametrize(("hops", "code"), [("capture-2", "OwnerUnreachable"), ("capture-2,capture-3", "NotOwner")])
async def test_a_request_is_forwarded_to_the_controller_and_from_there_to_the_owner_only(hops: str, code: str) -> None:
    cluster = MemoryCluster(is_owner=False, owner="127.0.0.1:1")
    answer = await call(cluster, "GET", "/api/v2/changefeeds", headers={FORWARDED_FROM: hops})
    assert (answer.status_code, answer.json()["error_code"]) == (503, code)
    assert answer.headers["retry-after"] == "1"


async def test_a_request_about_a_changefeed_is_for_its_owner_and_others_for_the_controller() -> None:
    cluster = MemoryCluster(is_owner=False)
    cluster.owned_ids = {"feed"}
    await cluster.create(SPEC)
    assert (await call(cluster, "GET", "/api/v2/changefeeds/feed")).json()["id"] == "feed"
    assert cluster.waited_for[-1] == "feed", "it may be on its way to its owner"
    for method, path in (
        ("GET", "changefeeds"),
        ("GET", "changefeeds/other"),
        ("POST", "changefeeds/check"),
        ("POST", "changefeeds/feed/move_owner"),
    ):
        answer = await call(cluster, method, f"/api/v2/{path}")
        assert (answer.status_code, answer.json()["error_code"]) == (503, "OwnerNotFound"), path
    cluster = MemoryCluster()
    await cluster.create(SPEC)
    cluster.owned_ids = {"other"}
    answer = await call(cluster, "POST", "/api/v2/changefeeds/feed/move_owner", json={"capture_id": "capture-9"})
    assert answer.json() == {"changefeed_id": "feed", "capture": "capture-9"}
    assert (await call(cluster, "GET", "/api/v2/owned")).json()[0]["id"] == "feed"


def test_differences_are_listed() -> None:
    cluster = MemoryCluster()
    cluster.diffs = [
        TableDiff(table="public.t", equal=False, differences=("id=1 is missing in the sink",)),
        TableDiff(table="public.u", equal=False, waiting="at 7, not yet at 9: it is behind"),
    ]
    with client_of(cluster) as client:
        client.create(SPEC)
        assert client.diff("feed") == cluster.diffs


def test_repairs_are_asked_for_by_table() -> None:
    cluster = MemoryCluster()
    keys = (KeyRepair(key={"id": "1"}, what="inserted"),)
    cluster.repairs = [TableRepair(table="public.t", ts=9, keys=keys), TableRepair(table="public.u", ts=9)]
    with client_of(cluster) as client:
        client.create(SPEC)
        [found] = client.repair("feed", RepairAsked(tables=("public.t",), dry_run=True))
        assert (found.table, found.keys, found.dry_run) == ("public.t", keys, True)


def test_nobody_at_the_url() -> None:
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(ServerUnreachableError, match=r"no Weir server at http://127.*;"),
    ):
        client.list()
    with Client("http://[bad") as client, pytest.raises(ServerUnreachableError, match="no Weir server"):
        client.list()


@pytest.mark.parametrize("content", [b"<html>", json.dumps({"x": 1}).encode()])
@pytest.mark.parametrize("status", [200, 404])
def test_somebody_else_at_the_url(content: bytes, status: int) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=content))
    with Client("http://x", transport=transport) as client, pytest.raises(ServerUnreachableError, match="is not Weir"):
        client.query("feed")


async def test_a_job_that_still_runs_is_accepted_and_reports_it() -> None:
    cluster = MemoryCluster()
    cluster.breaks_with = StillRunningError("it is still running; query it")
    answer = await call(cluster, "GET", "/api/v2/changefeeds")
    assert (answer.status_code, answer.json()["error_code"]) == (202, "StillRunning")


def test_the_client_tells_still_running_from_done_and_from_gone() -> None:
    cluster = MemoryCluster()
    with client_of(cluster) as client:
        client.create(SPEC)
        cluster.breaks_with = StillRunningError("it is still running; query it")
        for ask in (client.pause, client.rebalance, client.remove):  # the answers to the others have no body
            with pytest.raises(RemoteError, match="still running") as found:
                ask("feed")
            assert found.value.code == "StillRunning"

    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    with (
        Client("http://x", transport=httpx.MockTransport(silent)) as client,
        pytest.raises(StillRunningError, match=r"has not answered for 60 s; .* may still be running"),
    ):
        client.create(SPEC)


def test_positions_that_nobody_can_reach_are_refused() -> None:
    for field in ("start_ts", "target_ts"):
        for value in (-1, 1 << 63, 1 << 70):
            with pytest.raises(ValidationError):
                ChangefeedSpec.model_validate(SPEC.model_dump() | {field: value})
