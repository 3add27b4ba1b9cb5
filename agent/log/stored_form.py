"""Stored form: reads and writes the large records that an agent writes by itself (``reactor.division``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.errors import HoldTooEarlyError
from reactor.division import divided
from reactor.division.divided import is_pointer, joined, names_of
from reactor.errors import TxnTooLargeError
from reactor.keys import FormatKey
from reactor.records.formats import ClusterFormat, Feature
from reactor.store import writes as division
from reactor.store.port import Compare, Delete, KeyValue, MetaStore, Operation, Put, Target
from reactor.store.request import OPERATIONS_MAX
from reactor.txn import BYTES_MAX

#: of one transaction: what comes with the records
_OTHERS = 8


@dataclass(frozen=True, slots=True)
class StoredForm:
    """The writes of one transaction, which is committed if ``compares`` hold."""

    operations: tuple[Operation, ...]
    compares: tuple[Compare, ...] = ()


async def stored_form(
    client: MetaStore, cluster: str, values: Mapping[str, bytes], *, before: Mapping[str, bytes] | None = None
) -> StoredForm:
    """Return records' values as they are stored: packed or divided if they are large, once all captures of the cluster
    read that. If these do not fit into one transaction, their parts have been written. ``before``: what was read.

    :raises HoldTooEarlyError: older captures run, and one is too large without.
    :raises StoreError: no answer.
    """
    if all(len(value) <= divided.LIMITS.whole and not is_pointer(value) for value in values.values()) and not before:
        return StoredForm(tuple(Put(key, value) for key, value in values.items()))
    number = await format_of(client, cluster)
    formed: dict[str, bytes | None] = {key: division.stored_form(key, v, number) for key, v in values.items()}
    if number < Feature.DIVIDED:
        _refuse_early(formed, number)
    flat = division.flat(formed, before or {})
    if _fits(flat) and division.come_together(flat, formed):
        return StoredForm(tuple(_operation(key, value) for key, value in flat.items()))
    puts, firsts = division.early(flat, formed)
    if not puts:
        raise TxnTooLargeError("a record is over the store's limits; divide the changefeed's tables by rules")
    revisions = [(await client.txn((), batch)).revision for batch in division.batches(puts)]
    last = {**{key: flat[key] for key in firsts}, **formed}
    fences = tuple(Compare(key, Target.MOD_REVISION, revisions[0]) for key in firsts)
    return StoredForm(tuple(_operation(key, value) for key, value in last.items()), fences)


async def get_whole(client: MetaStore, key: str) -> KeyValue | None:
    """Return a key's value with its parts, if it is divided.

    :raises StoreError: no answer.
    """
    while (item := await client.get(key)) is not None and is_pointer(item.value):
        found = {name: await client.get(division.part_key(key, name)) for name in names_of(item.value)}
        parts = {name: part.value for name, part in found.items() if part is not None}
        if len(parts) == len(found):
            return replace(item, value=joined(item.value, parts.get))
        if await client.get(key) == item:
            return item  # a part is missing; its record reports that
    return item


async def get_prefix_whole(client: MetaStore, prefix: str) -> Sequence[KeyValue]:
    """Return the values under a prefix like ``get_whole``.

    :raises StoreError: no answer.
    """
    items = (await client.get_prefix(prefix)).items
    found = [await get_whole(client, item.key) if is_pointer(item.value) else item for item in items]
    return [item for item in found if item is not None]


async def format_of(client: MetaStore, cluster: str) -> int:
    key = str(FormatKey(cluster))
    stored = await client.get(key)
    return (ClusterFormat.decode(stored.value, key=key) if stored else ClusterFormat()).number


def _refuse_early(formed: Mapping[str, bytes | None], number: int) -> None:
    """:raises HoldTooEarlyError: it is too large as long as older captures run."""
    size = max(len(value or b"") for value in formed.values())
    if size > BYTES_MAX:
        raise HoldTooEarlyError(
            f"the record of so many tables has {size:,} bytes; to divide it the cluster must use format "
            f"{Feature.DIVIDED:d}, and uses {number}: upgrade all captures; it is tried again"
        )


def _fits(flat: Mapping[str, bytes | None]) -> bool:
    size = sum(2 * len(key) + len(value or b"") for key, value in flat.items())
    return len(flat) <= OPERATIONS_MAX - _OTHERS and size <= BYTES_MAX


def _operation(key: str, value: bytes | None) -> Operation:
    return Delete(key) if value is None else Put(key, bytes(value))
