"""etcd connection: a channel to one server, aioetcd3's calls on it, and the authentication token.

A failed call raises errors of ``reactor.errors``. ``endpoints`` decides whether to ask another server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import grpc

from reactor.errors import LeaseExpiredError, StoreError, StoreUnreachableError
from reactor.settings import TlsFiles
from reactor.store.etcd import faults
from reactor.store.etcd.stubs import KV, Auth, Lease, WatchStub, rpc
from reactor.store.etcd.waiting import answer_of

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    # detects a dead server, and finds a restarted one, within about a second
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    # no ping after each answer to estimate the bandwidth; use a window of one mebibyte
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    # fewer filters per call: ``endpoints`` retries, and no message is too large
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.minimal_stack", 1),
)
#: ends a stream when its server loses the cluster's leader, instead of leaving it silent
_REQUIRE_LEADER = ("hasleader", "true")


class EtcdConnection(KV, Lease, Auth):  # type: ignore[misc]  # aioetcd3 has no types
    """The calls on one server, each within ``timeout_s``; ``user`` empty: no authentication."""

    def __init__(
        self, endpoint: str, *, tls: TlsFiles | None, user: str | None, password: str | None, timeout_s: float
    ) -> None:
        self.endpoint = endpoint
        self.tls = tls
        self._token: str | None = None
        super().__init__(_channel(endpoint, tls), timeout=timeout_s, username=user, password=password)
        self._watch_stub = WatchStub(self.channel)

    async def grpc_call(
        self,
        stub_func: Callable[..., Awaitable[Any]],
        request: object,
        timeout: float | None = None,
        skip_auth: bool = False,
    ) -> Any:
        """The entry of all the mixins' calls. A token that etcd no longer accepts is replaced, once.

        ``timeout``: seconds, if fewer than the connection's own; authentication has its own.
        """
        limit_s = self.timeout if timeout is None else timeout
        metadata = () if skip_auth or self.username is None else await self._credentials_metadata()
        try:
            return await answer_of(stub_func(request, metadata=metadata, timeout=limit_s))
        except grpc.aio.AioRpcError as error:
            if skip_auth or self.username is None or not faults.is_stale_token(error):
                raise faults.translate(error, endpoint=self.endpoint) from None
        return await self._call_with_new_token(stub_func, request, stale=metadata, limit_s=limit_s)

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up, as far as is known, so that there is no need to wait for it."""
        return bool(self.channel.get_state() is grpc.ChannelConnectivity.READY)

    async def is_ready(self) -> bool:
        """Wait until the connection is up or has failed; it reconnects in the background."""
        while True:
            state = self.channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.READY:
                return True
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                return False
            if state is grpc.ChannelConnectivity.SHUTDOWN:
                raise StoreUnreachableError("this etcd client is closed; open a new one")
            await answer_of(self.channel.wait_for_state_change(state))

    async def range(self, key: bytes, range_end: bytes = b"") -> Any:
        return await self.grpc_call(self._kv_stub.Range, rpc.RangeRequest(key=key, range_end=range_end))

    async def put(self, key: bytes, value: bytes, lease: int, limit_s: float) -> Any:
        return await self.grpc_call(self._kv_stub.Put, rpc.PutRequest(key=key, value=value, lease=lease), limit_s)

    async def delete(self, key: bytes, limit_s: float) -> Any:
        return await self.grpc_call(self._kv_stub.DeleteRange, rpc.DeleteRangeRequest(key=key), limit_s)

    async def txn(self, request: object, limit_s: float) -> Any:
        """Return the answer with its header, which ``KV.txn`` omits."""
        return await self.grpc_call(self._kv_stub.Txn, request, limit_s)

    async def keep_alive(self, lease: int) -> int:
        """Renew once on a stream of its own, so that no stream becomes stale between renewals.

        :raises LeaseExpiredError: the lease has expired.
        """
        call = self._lease_stub.LeaseKeepAlive(metadata=await self._credentials_metadata(_REQUIRE_LEADER))
        try:
            await answer_of(call.write(rpc.LeaseKeepAliveRequest(ID=lease)))
            answer = await answer_of(call.read())
        except grpc.aio.AioRpcError as error:
            raise self.stream_error(error) from None
        except asyncio.InvalidStateError:
            raise faults.unreachable(self.endpoint, "the keep-alive stream ended") from None
        finally:
            call.cancel()
        if answer is grpc.aio.EOF:
            raise faults.unreachable(self.endpoint, "the keep-alive stream ended")
        if answer.TTL <= 0:
            raise LeaseExpiredError(f"lease {lease:x} is over; start a new session")
        return int(answer.TTL)

    async def open_watch(self) -> Any:
        """Open a new watch stream; the caller writes requests, reads answers, and cancels it."""
        return self._watch_stub.Watch(metadata=await self._credentials_metadata(_REQUIRE_LEADER))

    def stream_error(self, error: grpc.aio.AioRpcError) -> StoreError:
        """Translate with ``faults.translate``; a stale token is dropped, and the next stream authenticates again."""
        if self._token is not None and faults.is_stale_token(error):
            self.drop_token()
            return faults.unreachable(self.endpoint, "the token has run out")
        return faults.translate(error, endpoint=self.endpoint)

    def drop_token(self) -> bool:
        """Drop the token; return whether there was one. The next call authenticates again."""
        had_token, self._token = self._token is not None, None
        return had_token

    async def close(self) -> None:
        await self.channel.close()

    async def _credentials_metadata(self, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        if self.username is None:
            return more
        async with self._auth_lock:
            if self._token is None:
                self._token = await self.authenticate(username=self.username, password=self.password)
        return (("token", self._token), *more)

    async def _call_with_new_token(
        self,
        stub_func: Callable[..., Awaitable[Any]],
        request: object,
        *,
        stale: tuple[tuple[str, str], ...],
        limit_s: float,
    ) -> Any:
        """Repeat a call whose token etcd rejected: it had no effect."""
        if self._token is not None and ("token", self._token) in stale:
            self.drop_token()
        try:
            return await answer_of(stub_func(request, metadata=await self._credentials_metadata(), timeout=limit_s))
        except grpc.aio.AioRpcError as error:
            raise faults.translate(error, endpoint=self.endpoint) from None


def normalize(endpoint: str, *, is_tls: bool) -> str:
    """Return ``scheme://host:port`` of an endpoint written with or without its scheme.

    :raises StoreError: malformed, or containing a password, which would end up in logs.
    """
    text = endpoint if "://" in endpoint else f"{'https' if is_tls else 'http'}://{endpoint}"
    parts = urlsplit(text)
    if parts.username or parts.password:
        raise StoreError(f"etcd endpoint at {parts.hostname}: user and password do not belong into it; set them apart")
    try:
        host, port = parts.hostname, parts.port or 2379
    except ValueError:
        host, port = None, 0
    if parts.scheme not in ("http", "https") or not host:
        raise StoreError(f"not an etcd endpoint: {endpoint!r}; write http://host:port or https://host:port")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _channel(endpoint: str, tls: TlsFiles | None) -> Any:
    scheme, _, target = endpoint.partition("://")
    if scheme == "http":
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, _credentials(tls), options=_OPTIONS)


def _credentials(tls: TlsFiles | None) -> Any:
    if tls is None:
        return grpc.ssl_channel_credentials()
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca),
        private_key=_read(tls.key) if tls.key else None,
        certificate_chain=_read(tls.cert) if tls.cert else None,
    )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise StoreError(f"cannot read the TLS file {path} ({error.strerror}); correct its path or mode") from None
