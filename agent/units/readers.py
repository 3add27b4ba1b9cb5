"""Reader ids: allocates the number by which a source knows a changefeed's reader (MySQL's server id), on any capture.

A server that sees a number twice ends the older session: so a new sync worker ends what a lost one has left, and no two
changefeeds of a cluster may share a number. The number is a hash of the changefeed, or the next free one, and stored in
etcd until the changefeed is removed. A later changefeed of the same name is another holder, so cleaning up after the
first does not affect it.
"""

from hashlib import blake2b
from typing import Final

from reactor.keys import ReaderKey
from reactor.store.port import Compare, Delete, MetaStore, Put, Target

#: far above the small numbers that people give their servers
_FIRST: Final = 1 << 30
_COUNT: Final = 1 << 31


async def claim(client: MetaStore, cluster: str, holder: str) -> int:
    """Return the number of ``holder``, allocated on the first call.

    :raises StoreError: no answer.
    """
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


async def release(client: MetaStore, cluster: str, holder: str) -> None:
    """Release the number, if there is one.

    :raises StoreError: no answer.
    """
    number = _home(cluster, holder)
    while (item := await client.get(str(ReaderKey(cluster, number)))) is not None:
        if item.value.decode() != holder:
            number = _next(number)
        # it may have a new holder by the time the delete runs: then read it again
        elif (
            await client.txn([Compare(item.key, Target.MOD_REVISION, item.mod_revision)], [Delete(item.key)])
        ).succeeded:
            return


def _home(cluster: str, holder: str) -> int:
    digest = blake2b(f"{cluster}\0{holder}".encode(), digest_size=8).digest()
    return _FIRST + int.from_bytes(digest) % _COUNT


def _next(number: int) -> int:
    return _FIRST + (number - _FIRST + 1) % _COUNT
