"""Joining: makes a capture a member in one transaction with the cluster's format and key as the capture has read them.

A concurrent raise of the format and a join make each other fail: no capture is a member of a cluster whose format it
does not support. A concurrent change of the secret key also makes a join fail.
"""

from capture.security.key_mark import read_mark, refuse_lacking
from reactor.keys import CaptureKey, FormatKey
from reactor.records import formats
from reactor.records.capture import CaptureInfo
from reactor.records.formats import ClusterFormat
from reactor.store.port import Compare, MetaStore, Put, Target


async def refuse_halted(client: MetaStore, cluster: str) -> None:
    """Look before anything is started, or written to the store.

    :raises FormatError: the cluster is halted.
    :raises StoreError: the store refused or cannot be reached.
    """
    key = str(FormatKey(cluster))
    if stored := await client.get(key):
        ClusterFormat.decode(stored.value, key=key).refuse_halted()


async def join(client: MetaStore, cluster: str, info: CaptureInfo, *, lease: int) -> int:
    """Store ``info`` under the lease; return the revision.

    :raises FormatError: this capture does not support the cluster's format, or the cluster is halted.
    :raises ConfigError: it lacks one of the cluster's secret keys.
    :raises InvalidRecordError: the cluster's format cannot be read.
    :raises StoreError: etcd refused or cannot be reached.
    """
    key, format_key = str(CaptureKey(cluster, info.id)), str(FormatKey(cluster))
    while True:
        stored = await client.get(format_key)
        found = ClusterFormat.decode(stored.value, key=format_key) if stored else ClusterFormat()
        found.refuse_halted()
        formats.refuse_unknown(found.number)
        mark, same_mark = await read_mark(client, cluster)
        if info.secret_keys:
            refuse_lacking(mark, info.secret_keys)
        as_read = Compare(format_key, Target.MOD_REVISION, stored.mod_revision if stored else 0)
        done = await client.txn([as_read, same_mark], [Put(key, info.encode(), lease), Put(format_key, found.encode())])
        if done.succeeded:
            return done.revision
