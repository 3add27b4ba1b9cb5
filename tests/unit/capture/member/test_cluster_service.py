"""What the cluster service does by itself, without the owner."""

from types import SimpleNamespace
from typing import Any

import pytest

from capture.errors import ChangefeedExistsError
from capture.member.cluster_service import ClusterService
from reactor.ids import ChangefeedId
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Delete, Put

_INFO = "/weir/c/default/changefeed/info/feed1"


async def test_a_changefeed_begins_at_an_epoch_that_none_of_its_name_has_had() -> None:
    etcd = MemoryEtcd()
    life: Any = SimpleNamespace(client=MemoryClient(etcd))
    capture: Any = SimpleNamespace(life=life)
    service = ClusterService(capture)
    etcd.txn([], [Put(f"{_INFO}0", b"its id only begins alike")])
    first = await service._check_absent(life, _INFO, ChangefeedId("feed1"))
    etcd.txn([], [Put(_INFO, b"x")])
    with pytest.raises(ChangefeedExistsError):
        await service._check_absent(life, _INFO, ChangefeedId("feed1"))
    etcd.txn([], [Put(_INFO, b"its epoch grows with it")])
    etcd.txn([], [Delete(_INFO)])
    assert await service._check_absent(life, _INFO, ChangefeedId("feed1")) > first + 2
