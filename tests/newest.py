"""An etcd in memory whose cluster uses the newest format, as every cluster does once its captures have joined."""

from reactor.keys import FormatKey
from reactor.records import formats
from reactor.records.formats import ClusterFormat
from reactor.store.memory import MemoryEtcd
from reactor.store.port import Put


def newest_etcd(cluster: str = "c") -> MemoryEtcd:
    etcd = MemoryEtcd()
    # not by a transaction, which asks for the time: there may be no loop yet
    etcd._apply([Put(str(FormatKey(cluster)), ClusterFormat(number=formats.NEWEST).encode())])
    return etcd
