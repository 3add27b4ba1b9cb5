"""Stored form: packs the large records that an agent writes by itself, once the cluster's format allows that."""

from agent.errors import HoldTooEarlyError
from reactor.keys import FormatKey
from reactor.records.formats import ClusterFormat, Feature
from reactor.records.packing import PACKED_FROM, packed
from reactor.store.port import EtcdClient
from reactor.txn import BYTES_MAX


async def stored_form(client: EtcdClient, cluster: str, value: bytes) -> bytes:
    """Return a record's value as it is stored: packed if it is large, once all captures of the cluster read that.

    :raises HoldTooEarlyError: older captures run, and it is too large without.
    :raises EtcdError: no answer.
    """
    if len(value) < PACKED_FROM:
        return value
    number = await format_of(client, cluster)
    if number >= Feature.PACKED:
        return packed(value)
    if len(value) > BYTES_MAX:
        raise HoldTooEarlyError(
            f"the record of so many tables has {len(value):,} bytes; to pack it the cluster must use format "
            f"{Feature.PACKED:d}, and uses {number}: upgrade all captures; it is tried again"
        )
    return value


async def format_of(client: EtcdClient, cluster: str) -> int:
    key = str(FormatKey(cluster))
    stored = await client.get(key)
    return (ClusterFormat.decode(stored.value, key=key) if stored else ClusterFormat()).number
