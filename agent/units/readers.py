"""Reader ids: the number by which an upstream knows a changefeed's reader (MySQL's server id), on any capture.

A server that meets a number twice ends the older session: so a new sync worker ends what a lost one has left behind,
and no two changefeeds of a cluster may have the same. The number is a hash of the changefeed, or the next one that is
free; who has it is stored in etcd until the changefeed is removed. A later changefeed of the same name is another
holder, whom nobody meets who still cleans up after the first one.
"""

from hashlib import blake2b
from typing import Final

from reactor.keys import ReaderKey
from reactor.store.port import Compare, Delete, EtcdClient, Put, Target

#: far from the small numbers that people give their servers
_FIRST: Final = 1 << 30
_COUNT: Final = 1 << 31


async def claim(client: EtcdClient, cluster: str, holder: str) -> int:
    """The number of ``holder``; asking again gives the same. :raises EtcdError: no answer."""
    number = _home(cluster, holder)
    while True:
        key = str(ReaderKey(cluster, number))
        item = await client.get(key)
        if item is None:
            absent = Compare(key, Target.CREATE_REVISION, 0)
            if (await client.txn([absent], [Put(key, holder.encode())])).succeeded:
                return number
        elif item.value.decode() == holder:
            return number
        else:
            number = _next(number)


async def release(client: EtcdClient, cluster: str, holder: str) -> None:
    """Give the number back; without one, nothing happens. :raises EtcdError: no answer."""
    number = _home(cluster, holder)
    while (item := await client.get(str(ReaderKey(cluster, number)))) is not None:
        if item.value.decode() != holder:
            number = _next(number)
        # by the time that it goes it may be another's: then it is looked at again
        elif (
            await client.txn([Compare(item.key, Target.MOD_REVISION, item.mod_revision)], [Delete(item.key)])
        ).succeeded:
            return


def _home(cluster: str, holder: str) -> int:
    digest = blake2b(f"{cluster}\0{holder}".encode(), digest_size=8).digest()
    return _FIRST + int.from_bytes(digest) % _COUNT


def _next(number: int) -> int:
    return _FIRST + (number - _FIRST + 1) % _COUNT
