"""An etcd in memory whose cluster uses the newest format, as every cluster does once its captures have joined."""

from reactor import formats
from reactor.client import Put
from reactor.formats import ClusterFormat
from reactor.keys import FormatKey
from reactor.memory import MemoryEtcd


def newest_etcd(cluster: str = "c") -> MemoryEtcd:
    etcd = MemoryEtcd()
    etcd.txn([], [Put(str(FormatKey(cluster)), ClusterFormat(number=formats.NEWEST).encode())])
    return etcd
