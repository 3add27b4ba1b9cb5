"""A cluster's state goes from any store to any other whole, or not at all; and never can two stores be joined."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from capture.embedded import EmbeddedEtcd
from capture.member.joining import join, refuse_halted
from reactor import keys
from reactor.errors import FormatError, StoreUnreachableError, TransferError
from reactor.ids import CaptureId
from reactor.records.capture import CaptureInfo
from reactor.records.formats import HALTED, NEWEST, ClusterFormat
from reactor.store import transfer
from reactor.store.image import Image
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import MetaStore, Put
from reactor.store.transfer import Place
from tests.contracts.store_bed import OWN, etcd_connect, memory_connect, sql_connect, sqlite_url

_CLUSTERS = (f"moved-{number}" for number in itertools.count())
_INFO = CaptureInfo(
    id=CaptureId("a"), address="h:1", peer_address="h:2", version="x", cluster_id="c", started_at=0.0, format=NEWEST
)
_WAYS = [
    "memory-memory",
    "etcd-postgres",
    "postgres-etcd",
    "sqlite-postgres",
    "postgres-sqlite",
    *(
        pytest.param(way, marks=pytest.mark.matrix)
        for way in ("sqlite-mariadb", "mariadb-etcd", "mysql-mariadb", "mariadb-mysql")
    ),
]


@dataclass
class Two:
    source: Place
    target: Place

    def key(self, name: str) -> str:
        return f"{self.source.prefix}{name}"


@pytest.fixture(params=_WAYS)
async def two(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Two]:
    cluster = next(_CLUSTERS)
    source, target = request.param.split("-")
    async with _store(source, request, tmp_path) as one, _store(target, request, tmp_path) as other:
        yield Two(Place(one, cluster, "the source"), Place(other, cluster, "the target"))


@asynccontextmanager
async def _store(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetaStore]:
    if name == "memory":
        opened = memory_connect()
    elif name == "etcd":
        etcd: EmbeddedEtcd = request.getfixturevalue("own_etcd")
        opened = etcd_connect(etcd.url)
    elif name == "sqlite":
        opened = sql_connect(sqlite_url(tmp_path))
    else:
        opened = sql_connect(request.getfixturevalue(OWN[name]))
    async with opened() as client:
        yield client


async def live_and_leave(place: Place) -> None:
    """A capture joins, works and leaves."""
    lease = await place.client.grant(60)
    await join(place.client, place.cluster, _INFO, lease=lease)
    await place.client.put(place.format_key, ClusterFormat(number=NEWEST).encode())
    for number in range(230):
        await place.client.put(f"{place.prefix}default/ddl/feed/{number}", b'{"a": %d}' % number)
    await place.client.put(f"{place.prefix}default/held/feed/1", bytes(range(256)))
    await place.client.put(f"{place.prefix}default/cut/feed/1", bytes(900_000))
    await place.client.put(f"{place.prefix}default/cut/feed/2", bytes(900_000))
    await place.client.revoke(lease)


async def content(place: Place) -> dict[str, bytes]:
    """Return the keys and values without the format's key, whose transfer name differs."""
    items = (await place.client.get_prefix(place.prefix)).items
    return {item.key: item.value for item in items if item.key != place.format_key}


async def format_of(place: Place) -> ClusterFormat:
    item = await place.client.get(place.format_key)
    assert item is not None
    return ClusterFormat.decode(item.value, key=item.key)


async def can_join(place: Place) -> bool:
    lease = await place.client.grant(60)
    try:
        await refuse_halted(place.client, place.cluster)
        await join(place.client, place.cluster, _INFO, lease=lease)
    except FormatError:
        return False
    finally:
        await place.client.revoke(lease)
    return True


@pytest.mark.sample(0.2)
async def test_a_moved_cluster_is_whole_and_all_its_revisions_are_new(two: Two) -> None:
    await live_and_leave(two.source)
    await two.source.client.pass_revision(
        (await two.target.client.get_prefix(two.target.prefix)).revision + 2500, key=two.key("passing")
    )
    before, last = await content(two.source), (await two.source.client.get_prefix(two.source.prefix)).revision
    moved = await transfer.move(two.source, two.target)
    assert await content(two.target) == before
    assert set(moved.items) == {*before, two.target.format_key}
    items = (await two.target.client.get_prefix(two.target.prefix)).items
    fresh = [item.create_revision for item in items if item.key != two.target.format_key]
    assert min(fresh) > last, "epochs and fences that are counted from revisions continue to grow"
    assert (await format_of(two.target)).number == NEWEST
    assert await can_join(two.target)
    assert not await can_join(two.source)
    with pytest.raises(FormatError, match="it was moved to the target; start captures with that store"):
        await refuse_halted(two.source.client, two.source.cluster)
    assert (await format_of(two.source)).number == HALTED, "captures that do not know the word refuse, too"


@pytest.mark.sample(0.2)
async def test_moving_twice_does_nothing_and_back_needs_room(two: Two) -> None:
    await live_and_leave(two.source)
    await transfer.move(two.source, two.target)
    await two.target.client.put(two.key("default/ddl/feed/9999"), b"later")
    await transfer.move(two.source, two.target)
    assert (await two.target.client.get(two.key("default/ddl/feed/9999"))) is not None, "it was not written again"
    with pytest.raises(TransferError, match=r"the source has a cluster .* already"):
        await transfer.move(two.target, two.source)
    assert await transfer.remove(two.source) == 234
    await transfer.move(two.target, two.source)
    assert (await content(two.source)) == (await content(two.target))
    assert (await can_join(two.source), await can_join(two.target)) == (True, False)


@pytest.mark.sample(0.2)
async def test_an_export_can_be_imported(two: Two) -> None:
    await live_and_leave(two.source)
    image, halted = await transfer.export(two.source)
    assert not halted
    read = Image.decode(image.encode(), name="file")
    assert read == image
    await transfer.load(read, two.target)
    assert await content(two.target) == await content(two.source)
    assert (await can_join(two.source), await can_join(two.target)) == (True, True), "an export halts nothing"
    with pytest.raises(TransferError, match=r"the target has a cluster .* already"):
        await transfer.load(read, two.target)


async def test_a_cluster_in_use_is_not_moved(two: Two) -> None:
    lease = await two.source.client.grant(60)
    await join(two.source.client, two.source.cluster, _INFO, lease=lease)
    for attempt in (transfer.export(two.source), transfer.move(two.source, two.target), transfer.remove(two.source)):
        with pytest.raises(TransferError, match=r"is in use in the source \(captures: a\); stop all captures"):
            await attempt
    await two.source.client.revoke(lease)
    assert await content(two.target) == {}
    assert await can_join(two.source)


@pytest.mark.sample(0.2)
async def test_a_place_with_a_cluster_is_not_written_to(two: Two) -> None:
    await live_and_leave(two.source)
    await two.target.client.put(two.key("default/ddl/feed/1"), b"mine")
    with pytest.raises(TransferError, match="choose an empty place"):
        await transfer.move(two.source, two.target)
    assert await content(two.target) == {two.key("default/ddl/feed/1"): b"mine"}
    assert await can_join(two.source)


class _Broken(Exception):
    """The process is killed here."""


class _Dying(MemoryClient):
    """Dies at the given call that may write; ``is_lost``: after it was applied, else before."""

    def __init__(self, server: MemoryEtcd, left: list[int], *, is_lost: bool, error: type[Exception]) -> None:
        super().__init__(server, fault=self)
        self._left, self._is_lost, self._error = left, is_lost, error

    async def before(self, call: str) -> None:
        if call in ("txn", "put", "delete", "pass_revision"):
            self._left[0] -= 1
            self._die(is_lost=False)

    async def after(self, call: str) -> None:
        self._die(is_lost=True)

    def _die(self, *, is_lost: bool) -> None:
        if self._left[0] == 0 and is_lost == self._is_lost:
            self._left[0] = -1
            raise self._error


@pytest.mark.parametrize("error", [_Broken, StoreUnreachableError])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_whenever_it_is_interrupted_at_most_one_store_can_be_joined(
    *, is_lost: bool, error: type[Exception]
) -> None:
    points = 0
    for point in range(1, 100):
        cluster, one, other = next(_CLUSTERS), MemoryEtcd(), MemoryEtcd()
        source, target = (
            Place(MemoryClient(one), cluster, "the source"),
            Place(MemoryClient(other), cluster, "a target"),
        )
        await live_and_leave(source)
        whole, left = await content(source), [point]
        try:
            await transfer.move(
                replace(source, client=_Dying(one, left, is_lost=is_lost, error=error)),
                replace(target, client=_Dying(other, left, is_lost=is_lost, error=error)),
            )
            break
        except error:
            points = point
        usable = [place for place in (source, target) if await content(place) and await can_join(place)]
        assert len(usable) <= 1
        for place in usable:
            assert await content(place) == whole
        if not usable or usable == [source]:
            with pytest.raises(TransferError, match=r"not whole|no cluster"):
                await transfer.export(target)
        await transfer.move(source, target)
        assert await content(target) == whole
        assert (await can_join(source), await can_join(target)) == (False, True)
    assert points >= 8, "marker, revision, groups, halt, end"


async def test_a_capture_that_joins_meanwhile_keeps_its_cluster() -> None:
    """It joins after the source was read, before it is halted."""
    cluster, one, other = next(_CLUSTERS), MemoryEtcd(), MemoryEtcd()
    source, target = Place(MemoryClient(one), cluster, "the source"), Place(MemoryClient(other), cluster, "the target")
    await live_and_leave(source)

    class Joins(MemoryClient):
        async def pass_revision(self, revision: int, *, key: str) -> None:
            await super().pass_revision(revision, key=key)
            lease = await source.client.grant(60)
            await join(source.client, cluster, _INFO, lease=lease)
            await source.client.revoke(lease)  # and has left

    with pytest.raises(TransferError, match=r"somebody else writes .* in the source"):
        await transfer.move(source, replace(target, client=Joins(other)))
    assert await can_join(source)
    assert not await can_join(target)


async def test_a_write_without_joining_is_noticed() -> None:
    """A capture claims its log storage before it joins."""
    cluster, one, other = next(_CLUSTERS), MemoryEtcd(), MemoryEtcd()
    source, target = Place(MemoryClient(one), cluster, "the source"), Place(MemoryClient(other), cluster, "the target")
    await live_and_leave(source)

    class Writes(MemoryClient):
        async def pass_revision(self, revision: int, *, key: str) -> None:
            await super().pass_revision(revision, key=key)
            await source.client.put(str(keys.LogStorageKey(cluster)), b"mark")

    with pytest.raises(TransferError, match=r"somebody else writes .* in the source"):
        await transfer.move(source, replace(target, client=Writes(other)))
    assert await can_join(source), "it is as before"


async def test_of_two_transfers_into_one_place_one_is_refused() -> None:
    cluster, one, other = next(_CLUSTERS), MemoryEtcd(), MemoryEtcd()
    source, target = Place(MemoryClient(one), cluster, "the source"), Place(MemoryClient(other), cluster, "the target")
    await live_and_leave(source)
    image, _ = await transfer.export(source)

    class Overtaken(MemoryClient):
        async def pass_revision(self, revision: int, *, key: str) -> None:
            await super().pass_revision(revision, key=key)
            await transfer.load(image, target)

    with pytest.raises(TransferError, match="somebody else writes"):
        await transfer.load(image, replace(target, client=Overtaken(other)))
    assert await content(target) == await content(source)
    assert await can_join(target)


async def test_a_moved_cluster_goes_nowhere_else() -> None:
    cluster, stores = next(_CLUSTERS), [MemoryEtcd() for _ in range(3)]
    first, second, third = (Place(MemoryClient(store), cluster, f"store {n}") for n, store in enumerate(stores))
    await live_and_leave(first)
    await transfer.move(first, second)
    with pytest.raises(TransferError, match=r"is halted: it was moved to store 1; .* can be exported"):
        await transfer.move(first, third)
    image, halted = await transfer.export(first)
    assert "moved to store 1" in halted
    assert b"halted" not in image.items[first.format_key], "what is imported can be used"


async def test_a_cluster_that_can_be_used_is_removed_only_if_that_is_said() -> None:
    cluster = next(_CLUSTERS)
    place = Place(MemoryClient(MemoryEtcd()), cluster, "the store")
    with pytest.raises(TransferError, match="has no cluster"):
        await transfer.remove(place)
    await live_and_leave(place)
    with pytest.raises(TransferError, match="can be used in the store; give --usable"):
        await transfer.remove(place)
    await transfer.remove(place, usable=True)
    assert (await place.client.get_prefix(place.prefix)).items == ()


async def test_other_clusters_of_the_store_are_left_alone() -> None:
    server = MemoryEtcd()
    one, longer = (Place(MemoryClient(server), name, "the store") for name in ("shop", "shop-2"))
    for place in (one, longer):
        await live_and_leave(place)
    before = await content(longer)
    await transfer.remove(one, usable=True)
    assert await content(longer) == before
    assert await can_join(longer)


async def test_a_cluster_that_only_v0_1_0_has_used_is_refused() -> None:
    """It does not look at what halts a cluster."""
    place = Place(MemoryClient(MemoryEtcd()), next(_CLUSTERS), "the store")
    await place.client.put(f"{place.prefix}default/ddl/feed/1", b"{}")
    for stored in (None, ClusterFormat(number=1).encode()):
        if stored:
            await place.client.txn([], [Put(place.format_key, stored)])
        with pytest.raises(TransferError, match=r"last used by v0\.1\.0"):
            await transfer.export(place)


@pytest.mark.parametrize("change", ["cut", "value", "revision", "other", "none"])
async def test_a_file_that_is_not_as_it_was_exported_is_refused(change: str) -> None:
    place = Place(MemoryClient(MemoryEtcd()), next(_CLUSTERS), "the store")
    await live_and_leave(place)
    text = (await transfer.export(place))[0].encode()
    revision = (await place.client.get_prefix(place.prefix)).revision
    changed = {
        "cut": text[: len(text) // 2],
        "value": text.replace('{\\"a\\": 17}', '{\\"a\\": 18}'),
        "revision": text.replace(f'"revision": {revision}', '"revision": 1'),
        "other": "[1, 2]",
        "none": "",
    }[change]
    assert changed != text
    with pytest.raises(TransferError, match="take a file of `weir store export`"):
        Image.decode(changed, name="backup.json")
