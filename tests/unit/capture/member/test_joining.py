"""Joining a cluster: never one whose format this capture does not know, also when that is raised in the same moment."""

import pytest

from capture.member import joining
from reactor.errors import FormatError, InvalidRecordError
from reactor.ids import CaptureId
from reactor.keys import CaptureKey, FormatKey
from reactor.records import formats
from reactor.records.capture import CaptureInfo
from reactor.records.formats import ClusterFormat
from reactor.records.log_mark import mark_of, marked
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Put

INFO = CaptureInfo(
    id=CaptureId("a"), address="h:1", peer_address="h:2", version="x", cluster_id="c", started_at=0.0, format=2
)
KEY, FORMAT = str(CaptureKey("c", INFO.id)), str(FormatKey("c"))


def raise_to(etcd: MemoryEtcd, number: int) -> None:
    etcd.txn([], [Put(FORMAT, b'{"number": %d, "since": "later"}' % number)])


async def test_a_member_says_what_it_knows_and_leaves_the_format_as_it_is() -> None:
    etcd = MemoryEtcd()
    raise_to(etcd, 2)
    before = etcd.revision
    lease = etcd.grant(10)
    revision = await joining.join(MemoryClient(etcd), "c", INFO, lease=lease)
    stored, number = etcd.get(KEY), etcd.get(FORMAT)
    assert stored is not None
    assert number is not None
    assert (revision, stored.create_revision, stored.lease) == (before + 1, before + 1, lease)
    assert CaptureInfo.decode(stored.value, key=KEY) == INFO
    assert number.mod_revision == revision, "an owner that raises it now has to look again"
    assert ClusterFormat.decode(number.value, key=FORMAT).model_extra == {"since": "later"}


async def test_an_unknown_format_is_refused_by_a_line() -> None:
    etcd = MemoryEtcd()
    raise_to(etcd, formats.NEWEST + 1)
    words = (
        f"the cluster uses format {formats.NEWEST + 1}, and this version of Weir knows formats up to {formats.NEWEST}"
    )
    with pytest.raises(FormatError, match=words):
        await joining.join(MemoryClient(etcd), "c", INFO, lease=0)
    etcd.txn([], [Put(FORMAT, b"garbage")])
    with pytest.raises(InvalidRecordError, match=r"meta/format does not hold a ClusterFormat"):
        await joining.join(MemoryClient(etcd), "c", INFO, lease=0)
    assert etcd.get(KEY) is None


class RaisedMeanwhile(MemoryClient):
    """An etcd in which the owner raises the format right after it was read."""

    def __init__(self, etcd: MemoryEtcd) -> None:
        super().__init__(etcd)
        self._etcd = etcd
        self._is_raised = False

    async def get(self, key: str):  # type: ignore[no-untyped-def]  # as its base
        found = await super().get(key)
        if not self._is_raised:
            self._is_raised = True
            raise_to(self._etcd, formats.NEWEST + 1)
        return found


async def test_nobody_joins_while_the_format_is_raised_past_him() -> None:
    etcd = MemoryEtcd()
    with pytest.raises(FormatError):
        await joining.join(RaisedMeanwhile(etcd), "c", INFO, lease=0)
    assert etcd.get(KEY) is None


def test_the_mark_of_the_log_storage_is_the_same_in_both_formats() -> None:
    assert mark_of(b"c:123") == mark_of(marked(b"c:123") or b"") == "c:123"
    assert marked(marked(b"c:123")) == marked(b"c:123")
    assert marked(None) is None
