"""etcd client: ``reactor.store.port.MetaStore`` on a cluster of etcd servers."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio

from reactor import keys
from reactor.errors import LeaseExpiredError, StoreError
from reactor.settings import TlsFiles
from reactor.store.etcd.connection import EtcdConnection, normalize
from reactor.store.etcd.endpoints import Endpoints
from reactor.store.etcd.shown import Shown
from reactor.store.etcd.stubs import increment_last_byte, rpc
from reactor.store.etcd.watching import Watching
from reactor.store.port import Compare, Delete, KeyValue, Operation, Put, Snapshot, Target, TxnResult, WatchBatch

#: to pass a revision by writing: some minutes, and some hundred megabytes until etcd compacts
_WRITES_MAX = 1_000_000
_WRITERS = 32


async def connect(
    endpoints: Sequence[str],
    *,
    tls: TlsFiles | None = None,
    user: str | None = None,
    password: str | None = None,
    timeout_s: float = 5.0,
) -> "GrpcEtcdClient":
    """Return a client that has had one answer, so that a wrong endpoint, user or password is reported at once.

    Every call takes at most ``timeout_s`` over all endpoints; a write that has to authenticate first, as much again for
    that. Close the client in the loop that opened it.

    :raises StoreUnreachableError: no endpoint answers.
    :raises StoreAuthError: user or password are refused, or missing.
    """
    if not endpoints:
        raise StoreError("no etcd endpoint is given; give at least one, as http://host:port")
    names = [normalize(endpoint, is_tls=tls is not None) for endpoint in endpoints]
    connections = [
        EtcdConnection(name, tls=tls, user=user or None, password=password or "", timeout_s=timeout_s) for name in names
    ]
    client = GrpcEtcdClient(Endpoints(connections, timeout_s=timeout_s))
    try:
        await client.get(f"{keys.ROOT}/")
    except BaseException:
        await client.close()
        raise
    return client


class GrpcEtcdClient:
    """Created by ``connect``."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._shown = Shown()

    async def get(self, key: str) -> KeyValue | None:
        before = self._shown.revision
        answer = await self._endpoints.repeatable(lambda connection: connection.range(key.encode()))
        self._shown.check(answer.header.revision, before=before)
        return _key_value(answer.kvs[0]) if answer.kvs else None

    async def get_prefix(self, prefix: str) -> Snapshot:
        start, before = prefix.encode(), self._shown.revision
        answer = await self._endpoints.repeatable(
            lambda connection: connection.range(start, increment_last_byte(start))
        )
        self._shown.check(answer.header.revision, before=before)
        return Snapshot(tuple(_key_value(kv) for kv in answer.kvs), answer.header.revision)

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        before = self._shown.revision
        answer = await self._endpoints.once(
            lambda connection, left_s: connection.put(key.encode(), value, lease, left_s)
        )
        self._shown.check(answer.header.revision, before=before, is_new=True)
        return int(answer.header.revision)

    async def delete(self, key: str) -> bool:
        answer = await self._endpoints.once(lambda connection, left_s: connection.delete(key.encode(), left_s))
        return bool(answer.deleted)

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        request = rpc.TxnRequest(
            compare=[_compare(compare) for compare in compares], success=[_request(each) for each in operations]
        )
        before = self._shown.revision
        answer = await self._endpoints.once(lambda connection, left_s: connection.txn(request, left_s))
        is_new = answer.succeeded and any(isinstance(operation, Put) for operation in operations)
        self._shown.check(answer.header.revision, before=before, is_new=is_new)
        return TxnResult(answer.succeeded, answer.header.revision)

    async def grant(self, ttl_s: int) -> int:
        lease = await self._endpoints.repeatable(lambda connection: connection.grant_lease(ttl_s))
        return int(lease.id)

    async def revoke(self, lease: int) -> None:
        try:
            await self._endpoints.repeatable(lambda connection: connection.revoke_lease(lease))
        except LeaseExpiredError:
            return  # already revoked, which is the goal

    async def keep_alive(self, lease: int) -> int:
        return await self._endpoints.repeatable(lambda connection: connection.keep_alive(lease))

    async def time_to_live(self, lease: int) -> int | None:
        found, _ = await self._endpoints.repeatable(lambda connection: connection.get_lease_info(lease))
        return int(found.ttl) if found is not None else None

    async def compact(self, revision: int) -> None:
        await self._endpoints.once(lambda connection, left_s: connection.compact(revision, timeout=left_s))

    async def pass_revision(self, revision: int, *, key: str) -> None:
        """etcd counts writes and nothing else, so that many are made."""
        left = revision - (await self.get_prefix(key)).revision
        if left > _WRITES_MAX:
            raise StoreError(
                f"etcd would have to make {left} writes to pass revision {revision}; take another etcd, and raise its "
                f"revision by that many before it holds anything (`etcdutl snapshot restore --bump-revision {left} "
                "--mark-compacted`, from etcd 3.5.10)"
            )

        async def write() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self.put(key, b"")

        while left > 0:
            async with anyio.create_task_group() as tasks:
                for _ in range(_WRITERS):
                    tasks.start_soon(write)
            left = revision - (await self.get_prefix(key)).revision
        await self.delete(key)

    @asynccontextmanager
    async def watch_prefix(self, prefix: str, *, start_revision: int) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        watching = Watching(
            self._endpoints, prefix, start_revision=start_revision, catch_up=self.get, shown=self._shown
        )
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks, aclosing(watching.batches()) as batches:
            tasks.start_soon(watching.attend)
            try:
                yield batches
            except Exception as error:
                failure = error  # kept out of the task group, which would wrap it
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        await self._endpoints.close()


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def _compare(compare: Compare) -> Any:
    request = rpc.Compare(key=compare.key.encode(), result=rpc.Compare.EQUAL)
    if compare.last:
        request.range_end = compare.last.encode() + b"\0"
    match compare.target:
        case Target.MOD_REVISION:
            request.target, request.mod_revision = rpc.Compare.MOD, compare.revision
        case Target.CREATE_REVISION:
            request.target, request.create_revision = rpc.Compare.CREATE, compare.revision
    return request


def _request(operation: Operation) -> Any:
    match operation:
        case Put(key, value, lease):
            return rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=value, lease=lease))
        case Delete(key):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key.encode()))
