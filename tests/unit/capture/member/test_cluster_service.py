"""Cluster service: requests that it answers without the owner."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from agent.ports.source import Signal
from capture.api import port as views
from capture.api.port import ChangefeedSpec
from capture.errors import ChangefeedExistsError, ChangefeedNotFoundError
from capture.member.access import OwnToken
from capture.member.cluster_service import ClusterService
from capture.member.comparisons import diff as comparison
from capture.member.ownership.gathering import HttpOwners
from capture.member.schedules.signals import ID_MAX, ROWS_MAX
from capture.security.key_file import new_key
from capture.security.secrets import Keeper
from owner import jobs
from reactor import keys
from reactor.errors import FormatError, WeirError
from reactor.ids import ChangefeedId
from reactor.records.changefeed import ChangefeedConfig, ChangefeedInfo, FeedState, SealedUri
from reactor.records.formats import Feature
from reactor.records.schedules import HandledSignals
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Delete, Put
from reactor.views import ChangefeedView

_INFO = "/weir/c/default/changefeed/info/feed1"


async def test_a_changefeed_begins_at_an_epoch_that_none_of_its_name_has_had() -> None:
    etcd = MemoryEtcd()
    membership: Any = SimpleNamespace(client=MemoryClient(etcd))
    capture: Any = SimpleNamespace(membership=membership)
    service = ClusterService(capture, HttpOwners(OwnToken(), ""))
    etcd.txn([], [Put(f"{_INFO}0", b"its id only begins alike")])
    first = await service._check_absent(membership, _INFO, ChangefeedId("feed1"))
    etcd.txn([], [Put(_INFO, b"x")])
    with pytest.raises(ChangefeedExistsError):
        await service._check_absent(membership, _INFO, ChangefeedId("feed1"))
    etcd.txn([], [Put(_INFO, b"its epoch grows with it")])
    etcd.txn([], [Delete(_INFO)])
    assert await service._check_absent(membership, _INFO, ChangefeedId("feed1")) > first + 2


class ASlowOwner:
    """Takes a changefeed up when ``sees`` is set."""

    is_owner = True

    def __init__(self) -> None:
        self.sees, self.asked = anyio.Event(), anyio.Event()
        self.removed: list[str] = []

    async def submit(self, job: jobs.Job) -> object:
        await anyio.lowlevel.checkpoint()
        if isinstance(job, jobs.Remove):
            self.removed.append(job.changefeed)
            return None
        self.asked.set()
        if not self.sees.is_set():
            raise ChangefeedNotFoundError("not seen yet")
        return ChangefeedView(id="feed1", state=FeedState.NORMAL)


async def test_a_changefeed_whose_creator_has_left_is_removed() -> None:
    async def check(_: object) -> tuple[str, ...]:
        return ()

    owner = ASlowOwner()
    membership: Any = SimpleNamespace(
        client=MemoryClient(MemoryEtcd()), state=ClusterState("c"), candidacy=owner, copies={}
    )
    data_plane = SimpleNamespace(check=check, keeper=Keeper(new_key()))
    capture: Any = SimpleNamespace(membership=membership, data_plane=data_plane)
    spec = ChangefeedSpec(changefeed_id="feed1", source_uri="postgresql://u@h/d", sink_uri="delta+file:///x")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ClusterService(capture, HttpOwners(OwnToken(), "")).create, spec)
        await owner.asked.wait()
        assert await membership.client.get(_INFO) is not None
        tasks.cancel_scope.cancel()
        owner.sees.set()
    assert owner.removed == ["feed1"]


async def test_an_option_of_the_sink_that_older_captures_do_not_keep_waits_for_the_format() -> None:
    """They would write files under the wrong names."""

    async def check(_: object) -> tuple[str, ...]:
        return ()

    state = ClusterState("c")
    membership: Any = SimpleNamespace(client=MemoryClient(MemoryEtcd()), state=state, candidacy=ASlowOwner(), copies={})
    data_plane = SimpleNamespace(check=check, keeper=Keeper(new_key()))
    capture: Any = SimpleNamespace(membership=membership, data_plane=data_plane)
    service = ClusterService(capture, HttpOwners(OwnToken(), ""))
    uri = "delta+file:///x?column_mapping=name"
    spec = ChangefeedSpec(changefeed_id="feed1", source_uri="postgresql://u@h/d", sink_uri=uri)
    state.format = Feature.COLUMN_MAPPING - 1
    with pytest.raises(FormatError, match="option column_mapping of the sink needs format 18, and the cluster uses 17"):
        await service.check(spec)
    state.format = Feature.COLUMN_MAPPING
    await service.check(spec)


@pytest.mark.parametrize("there", [[], ["7"], ["7"] * (ROWS_MAX + 1), ["7" * (ID_MAX + 1)]])
async def test_signals_of_before_a_changefeed_are_noted_with_it(there: list[str]) -> None:
    """So each row that is inserted behind the answer asks for something."""

    async def check(_: object) -> tuple[str, ...]:
        return ()

    async def signals(_: object, limit: int) -> list[Signal]:
        return [Signal(id, "resync", "public.t") for id in there][:limit]

    owner = ASlowOwner()
    owner.sees.set()
    client, state = MemoryClient(MemoryEtcd()), ClusterState("c")
    state.format = Feature.SIGNALS
    membership: Any = SimpleNamespace(client=client, state=state, candidacy=owner, copies={})
    data_plane = SimpleNamespace(check=check, signals=signals, keeper=Keeper(new_key()))
    capture: Any = SimpleNamespace(membership=membership, data_plane=data_plane)
    service = ClusterService(capture, HttpOwners(OwnToken(), ""))
    spec = ChangefeedSpec(
        changefeed_id="feed1",
        source_uri="postgresql://u@h/d",
        sink_uri="delta+file:///x",
        config=ChangefeedConfig(signal_table="public.weir_signal"),
    )
    if len(there) > ROWS_MAX or len("".join(there)) > ID_MAX:
        with pytest.raises(WeirError, match="signal-table has"):
            await service.create(spec)
        assert await client.get(_INFO) is None
        return
    await service.create(spec)
    stored = await client.get(str(keys.SignalsKey("c", "default", ChangefeedId("feed1"))))
    assert stored is not None
    assert HandledSignals.decode(stored.value, key="") == HandledSignals(ids=tuple(there), table="public.weir_signal")


async def test_the_result_of_a_comparison_that_was_asked_for_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def compare(*_: object) -> list[views.TableDiff]:
        await anyio.lowlevel.checkpoint()
        return [
            views.TableDiff(table="public.t", equal=True, ts=7),
            views.TableDiff(table="public.u", equal=False, ts=9),
        ]

    monkeypatch.setattr(comparison, "compare", compare)
    etcd, state = MemoryEtcd(), ClusterState("c")
    uri = SealedUri(masked="x", sealed="x")
    info = ChangefeedInfo(id=ChangefeedId("feed1"), source=uri, sink=uri)
    etcd.txn([], [Put(str(keys.InfoKey("c", "default", info.id)), info.encode())])

    def see() -> None:
        for item in etcd.get_prefix("/weir/c/").items:
            state.update(item.key, item.value, mod_revision=item.mod_revision, create_revision=item.create_revision)

    see()
    membership: Any = SimpleNamespace(client=MemoryClient(etcd), state=state)
    capture: Any = SimpleNamespace(membership=membership, data_plane=None)
    service = ClusterService(capture, HttpOwners(OwnToken(), ""))
    found = await service.diff(info.id, views.DiffAsked(sample=0.5))
    assert [one.table for one in found] == ["public.t", "public.u"]
    see()
    last = state.changefeeds[info.id].last_diff
    assert last is not None
    assert (last.ts, last.compared, last.differing, last.sample) == (9, 2, ("public.u",), 0.5)
    assert last.time > 0
