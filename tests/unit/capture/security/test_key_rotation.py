"""Every step of a change of keys may be the last one before a crash, and no secret is ever lost."""

from collections.abc import Sequence

import pytest

from capture.errors import ConfigError
from capture.member import joining
from capture.security.key_file import new_key
from capture.security.key_mark import claim_key, mark_key
from capture.security.key_rotation import rotate
from capture.security.secrets import Keeper
from reactor import keys
from reactor.errors import StoreUnreachableError
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.capture import CaptureInfo
from reactor.records.changefeed import ChangefeedInfo
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Operation, Put, TxnResult

OLD, NEW = new_key(), new_key()
BEFORE, BOTH, AFTER = Keeper(OLD), Keeper(OLD, NEW), Keeper(NEW)
FEEDS = [str(keys.InfoKey("c", space, ChangefeedId(name))) for space in ("default", "x") for name in ("a", "b")]


class MortalClient(MemoryClient):
    """Whoever uses it dies at one of its transactions: before it is sent, or before its answer comes."""

    def __init__(self, etcd: MemoryEtcd, at: int, *, is_sent: bool) -> None:
        super().__init__(etcd)
        self.left, self.is_sent = at, is_sent

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        self.left -= 1
        if self.left == 0 and self.is_sent:
            await super().txn(compares, operations)
        if self.left == 0:
            raise StoreUnreachableError("dead")
        return await super().txn(compares, operations)


def info(capture: str, keeper: Keeper) -> CaptureInfo:
    return CaptureInfo(
        id=CaptureId(capture),
        address=f"{capture}:8300",
        peer_address="h:2",
        version="x",
        cluster_id="c",
        started_at=0.0,
        secret_keys=keeper.fingerprints,
    )


async def cluster(*members: CaptureInfo) -> MemoryEtcd:
    etcd = MemoryEtcd()
    client = MemoryClient(etcd)
    await claim_key(client, "c", BEFORE)
    for key in FEEDS:
        source, sink = BEFORE.seal(f"postgresql://u:{key}@h/d"), BEFORE.seal("delta+file:///x")
        made = ChangefeedInfo(id=ChangefeedId(key[-1]), source=source, sink=sink)
        etcd.txn([], [Put(key, made.encode())])
    for member in members:
        await joining.join(client, "c", member, lease=etcd.grant(60))
    return etcd


def opens(etcd: MemoryEtcd, keeper: Keeper) -> None:
    for key in FEEDS:
        item = etcd.get(key)
        assert item is not None
        stored = ChangefeedInfo.decode(item.value, key=key)
        assert keeper.open(stored.source) == f"postgresql://u:{key}@h/d"
        assert keeper.open(stored.sink) == "delta+file:///x"


def mark(etcd: MemoryEtcd) -> str:
    item = etcd.get(mark_key("c"))
    assert item is not None
    return item.value.decode()


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("at", range(1, 7))
async def test_whoever_rotates_may_die_at_any_step(at: int, is_sent: bool) -> None:
    etcd = await cluster(info("a", BOTH), info("b", BOTH))
    with pytest.raises(StoreUnreachableError):
        await rotate(MortalClient(etcd, at, is_sent=is_sent), "c", Keeper(OLD, NEW))
    opens(etcd, BOTH)
    assert (await rotate(MemoryClient(etcd), "c", Keeper(OLD, NEW))).done
    opens(etcd, AFTER)
    assert mark(etcd) == AFTER.fingerprint


async def test_six_transactions_are_all() -> None:
    etcd = await cluster(info("a", BOTH))
    view = await rotate(MortalClient(etcd, 7, is_sent=False), "c", Keeper(OLD, NEW))
    assert (view.done, view.resealed) == (True, len(FEEDS))
    assert (await rotate(MemoryClient(etcd), "c", Keeper(OLD, NEW))).resealed == 0, "asked again it changes nothing"


async def test_captures_that_lack_the_key_are_named_and_nothing_is_done() -> None:
    etcd = await cluster(info("a", BOTH), info("b", BEFORE), info("c", BEFORE).with_(secret_keys=()))
    before = etcd.get_prefix("/").revision
    view = await rotate(MemoryClient(etcd), "c", Keeper(OLD, NEW))
    assert (view.lacking, view.done) == (("b at b:8300", "c at c:8300"), False)
    assert etcd.get_prefix("/").revision == before


async def test_nobody_joins_without_the_new_key_once_it_has_begun() -> None:
    etcd = await cluster(info("a", BOTH))
    with pytest.raises(StoreUnreachableError):
        await rotate(MortalClient(etcd, 2, is_sent=False), "c", Keeper(OLD, NEW))
    assert mark(etcd) == f"{BEFORE.fingerprint} {AFTER.fingerprint}"
    for keeper in (BEFORE, AFTER):
        with pytest.raises(ConfigError, match=r"is being changed, and this capture lacks .*; give it the key file"):
            await claim_key(MemoryClient(etcd), "c", keeper)
        with pytest.raises(ConfigError, match="is being changed"):
            await joining.join(MemoryClient(etcd), "c", info("z", keeper), lease=etcd.grant(60))
    joined = Keeper(OLD, NEW)
    await claim_key(MemoryClient(etcd), "c", joined)
    assert joined.fingerprint == AFTER.fingerprint, "what is sealed from now on is sealed with the new key"


async def test_without_a_newer_key_there_is_nothing_to_do() -> None:
    etcd = await cluster(info("a", BEFORE))
    with pytest.raises(ConfigError, match="holds no newer key"):
        await rotate(MemoryClient(etcd), "c", Keeper(OLD))


async def test_who_begins_again_continues_with_the_key_that_was_begun_with() -> None:
    etcd = await cluster(info("a", BOTH))
    with pytest.raises(StoreUnreachableError):
        await rotate(MortalClient(etcd, 3, is_sent=True), "c", Keeper(OLD, NEW))
    with pytest.raises(ConfigError, match="has begun, and this capture lacks it"):
        await rotate(MemoryClient(etcd), "c", Keeper(OLD, new_key()))
    assert (await rotate(MemoryClient(etcd), "c", Keeper(OLD, NEW, new_key()))).fingerprint == AFTER.fingerprint
