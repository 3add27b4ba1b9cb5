"""Joining: makes a capture a member in one transaction with the cluster's format as the capture has read it.

Whoever raises the format meanwhile makes it fail, and is made to fail by it: no capture is a member of a cluster whose
format it does not know.
"""

from reactor.keys import CaptureKey, FormatKey
from reactor.records import formats
from reactor.records.changefeed import CaptureInfo
from reactor.records.formats import ClusterFormat
from reactor.store.port import Compare, EtcdClient, Put, Target


async def join(client: EtcdClient, cluster: str, info: CaptureInfo, *, lease: int) -> int:
    """Store ``info`` under the lease; the revision of that.

    :raises FormatError: this capture does not know the cluster's format.
    :raises InvalidRecordError: the cluster's format cannot be read.
    :raises EtcdError: etcd refused or cannot be reached.
    """
    key, format_key = str(CaptureKey(cluster, info.id)), str(FormatKey(cluster))
    while True:
        stored = await client.get(format_key)
        found = ClusterFormat.decode(stored.value, key=format_key) if stored else ClusterFormat()
        formats.refuse_unknown(found.number)
        as_read = Compare(format_key, Target.MOD_REVISION, stored.mod_revision if stored else 0)
        done = await client.txn([as_read], [Put(key, info.encode(), lease), Put(format_key, found.encode())])
        if done.succeeded:
            return done.revision
