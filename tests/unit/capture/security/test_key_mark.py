"""Key mark: who has another key than the cluster does not join, and says so in one line."""

import pytest

from capture.errors import ConfigError
from capture.security.key_file import new_key
from capture.security.key_mark import claim_key
from capture.security.secrets import Keeper
from reactor import keys
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.changefeed import ChangefeedInfo
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Put

OURS, OTHER = Keeper(new_key()), Keeper(new_key())
MARK = str(keys.SecretKeyKey("c"))
INFO = str(keys.InfoKey("c", "default", ChangefeedId("shop")))
MEMBER = str(keys.CaptureKey("c", CaptureId("a")))


def sealed(keeper: Keeper) -> bytes:
    uri = keeper.seal("postgresql://u:p@h/d")
    return ChangefeedInfo(id=ChangefeedId("shop"), source=uri, sink=uri).encode()


async def claim(etcd: MemoryEtcd, keeper: Keeper) -> None:
    await claim_key(MemoryClient(etcd), "c", keeper)


def mark(etcd: MemoryEtcd) -> str:
    found = etcd.get(MARK)
    return found.value.decode() if found else ""


async def test_the_first_capture_leaves_the_mark_and_another_key_is_refused() -> None:
    etcd = MemoryEtcd()
    await claim(etcd, OURS)
    assert mark(etcd) == OURS.fingerprint
    etcd.txn([], [Put(MEMBER, b"{}")])
    await claim(etcd, OURS)
    with pytest.raises(ConfigError, match=r"secret key .* is another than this capture's .*; give") as error:
        await claim(etcd, OTHER)
    assert str(error.value).isprintable()
    assert mark(etcd) == OURS.fingerprint


@pytest.mark.parametrize("stored", [b"", b"garbage", b"\xff" * 16, None])
async def test_without_a_readable_mark_it_is_who_opens_what_is_stored(stored: bytes | None) -> None:
    etcd = MemoryEtcd()
    etcd.txn([], [Put(INFO, sealed(OURS)), *([] if stored is None else [Put(MARK, stored)])])
    with pytest.raises(ConfigError, match="is another than this capture's"):
        await claim(etcd, OTHER)
    await claim(etcd, OURS)
    assert mark(etcd) == OURS.fingerprint


async def test_a_changefeed_that_cannot_be_read_keeps_no_one_out() -> None:
    etcd = MemoryEtcd()
    etcd.txn([], [Put(INFO, b"{"), Put(str(keys.InfoKey("c", "default", ChangefeedId("b"))), sealed(OURS))])
    await claim(etcd, OURS)
    assert mark(etcd) == OURS.fingerprint


async def test_a_mark_that_is_obsolete_is_replaced() -> None:
    etcd = MemoryEtcd()
    await claim(etcd, OURS)
    await claim(etcd, OTHER)
    assert mark(etcd) == OTHER.fingerprint
    etcd.txn([], [Put(INFO, sealed(OTHER))])
    with pytest.raises(ConfigError):
        await claim(etcd, OURS)


def test_a_fingerprint_shows_nothing_of_the_key() -> None:
    assert OURS.fingerprint != OTHER.fingerprint
    assert len(OURS.fingerprint) == 16
    assert OURS.fingerprint.encode() not in OURS.keys[0]
