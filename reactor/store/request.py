"""Requests: the limits of one transaction, the same for every store as etcd's by default."""

from collections.abc import Sequence

from reactor.errors import StoreError, TxnTooLargeError
from reactor.store.port import Compare, Operation, Put

OPERATIONS_MAX = 128
BYTES_MAX = 1536 * 1024


def check(compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
    """:raises TxnTooLargeError: more compares, operations or bytes than one transaction may have.
    :raises StoreError: a key is written twice.
    """
    size = sum(len(put.key.encode()) + len(put.value) for put in operations if isinstance(put, Put))
    count = max(len(compares), len(operations))
    if count > OPERATIONS_MAX or size > BYTES_MAX:
        raise TxnTooLargeError(f"{count} operations, {size} bytes are over a transaction's limits; do fewer at once")
    if len({operation.key for operation in operations}) != len(operations):
        raise StoreError("duplicate key given in txn request; write each key once")
