"""Cluster access: tokens and the audit trail in the metadata store, as ``capture.api.access.Access``.

Tokens are looked up in the state of the membership's watch, so a revoked one is refused everywhere within moments. An
unknown one may have been created a moment ago at another capture: the lookup waits for it for a while, which also slows
down guessing. This server's own token is known without the store.
"""

import builtins
import secrets
import time
import uuid
from pathlib import Path
from typing import NoReturn, Protocol

import anyio
import structlog

from capture.api.access import AuditView, Caller, TokenAsked, TokenView, hash_of, new_token
from capture.errors import TokenNotFoundError
from capture.security import own_token
from reactor import keys
from reactor.errors import InvalidRecordError, OwnerNotFoundError, StoreError
from reactor.ids import CaptureId
from reactor.records.access import AuditRecord, Role, TokenRecord
from reactor.state import ClusterState
from reactor.store.port import Compare, MetaStore, Put, Target

_NEWS_S = 0.5
_POLL_S = 0.05
#: audit entries kept in the store; the log has all of them
_TRAIL_MAX = 1_000
_TRAIL_SLACK = 100

_log = structlog.get_logger()


class OwnToken:
    """This server's own token; none if a capture has no data directory of its own (simulated clusters)."""

    def __init__(self) -> None:
        self.value = ""
        self._data_dir: Path | None = None

    def load(self, data_dir: Path) -> None:
        """:raises ConfigError: it cannot be read or created."""
        self._data_dir = data_dir
        self.value = own_token.own_token(data_dir, new_token())

    @property
    def id(self) -> str:
        return f"server-{hash_of(self.value)[:12]}"

    async def register(self, client: MetaStore, cluster: str, capture: CaptureId, hostname: str, lease: int) -> None:
        """Publish it to other captures while this one is a member; a revoked one is replaced."""
        if not self.value or self._data_dir is None:
            return
        while True:
            key = str(keys.TokenKey(cluster, self.id))
            stored = await client.get(key)
            if stored is not None and not _is_good(stored.value, key):
                self.value = new_token()
                own_token.replace_token(self._data_dir, self.value)
                continue
            record = TokenRecord(
                id=self.id,
                name=f"server {hostname or capture}",
                role=Role.ADMIN,
                hash=hash_of(self.value),
                created_at=time.time(),
                is_servers=True,
            )
            as_read = Compare(key, Target.MOD_REVISION, stored.mod_revision if stored else 0)
            if (await client.txn([as_read], [Put(key, record.encode(), lease)])).succeeded:
                return


class _Membership(Protocol):
    """The part of a membership that access needs."""

    @property
    def client(self) -> MetaStore: ...

    @property
    def state(self) -> ClusterState: ...

    @property
    def capture_id(self) -> CaptureId: ...


class _Capture(Protocol):
    @property
    def membership(self) -> _Membership | None: ...


class ClusterAccess:
    """See ``capture.api.access.Access``."""

    def __init__(self, capture: _Capture, own: OwnToken) -> None:
        self._capture = capture
        self._own = own
        self._written = 0

    async def caller(self, token: str) -> Caller | None:
        hashed, membership = hash_of(token), self._capture.membership
        if membership is None:
            return self._own_caller(token) or _nobody_knows()
        if (record := _found(membership.state, hashed)) is None and (own := self._own_caller(token)) is not None:
            return own
        with anyio.move_on_after(_NEWS_S):
            while record is None:
                await anyio.sleep(_POLL_S)
                record = _found(membership.state, hashed)
        if record is None or not record.is_good(time.time()):
            return None
        return Caller(record.name, record.role, record.id, record.is_servers)

    async def create(self, asked: TokenAsked, by: Caller) -> TokenView:
        membership, token, now = self._present, new_token(), time.time()
        record = TokenRecord(
            id=secrets.token_hex(4),
            name=asked.name,
            role=asked.role,
            hash=hash_of(token),
            created_at=now,
            created_by=by.name,
            expires_at=None if asked.expires_in_seconds is None else now + asked.expires_in_seconds,
        )
        await membership.client.put(str(keys.TokenKey(membership.state.cluster, record.id)), record.encode())
        return _view(record).model_copy(update={"token": token})

    async def list(self) -> list[TokenView]:
        return [_view(record) for record in sorted(self._present.state.tokens.values(), key=lambda one: one.created_at)]

    async def revoke(self, token_id: str) -> TokenView:
        membership = self._present
        key = str(keys.TokenKey(membership.state.cluster, token_id))
        while (stored := await membership.client.get(key)) is not None:
            record = TokenRecord.decode(stored.value, key=key)
            revoked = record if record.revoked_at else record.with_(revoked_at=time.time())
            as_read = Compare(key, Target.MOD_REVISION, stored.mod_revision)
            if (await membership.client.txn([as_read], [Put(key, revoked.encode())])).succeeded:
                return _view(revoked)
        raise TokenNotFoundError(f"no token {token_id[:64]!r}; `weir token list` shows which there are")

    async def begin(self, caller: Caller, method: str, path: str, source: str, *, detail: str = "") -> str:
        membership, now = self._present, time.time_ns()
        entry = f"{now:020}-{uuid.uuid4().hex[:8]}"
        record = AuditRecord(
            time=now / 1e9,
            name=caller.name,
            role=caller.role,
            token=caller.token,
            method=method,
            path=path,
            detail=detail,
            source=source,
            capture=membership.capture_id,
        )
        await membership.client.put(str(keys.AuditKey(membership.state.cluster, entry)), record.encode())
        return entry

    async def end(self, entry: str, status: int) -> None:
        membership = self._capture.membership
        if membership is None:
            return
        key = str(keys.AuditKey(membership.state.cluster, entry))
        try:
            stored = await membership.client.get(key)
            if stored is not None:
                record = AuditRecord.decode(stored.value, key=key).with_(status=status)
                await membership.client.put(key, record.encode())
            await self._forget_oldest(membership)
        except (StoreError, InvalidRecordError) as error:
            _log.warning("audit trail: how a change went is not stored", entry=entry, status=status, cause=str(error))

    async def trail(self, limit: int) -> "builtins.list[AuditView]":
        membership = self._present
        found = await membership.client.get_prefix(keys.audit_prefix(membership.state.cluster))
        newest = sorted(found.items, key=lambda item: item.key)[-limit:]
        records = [AuditRecord.decode(item.value, key=item.key) for item in newest]
        return [AuditView.model_validate(record.model_dump()) for record in records]

    async def _forget_oldest(self, membership: _Membership) -> None:
        self._written += 1
        if self._written % _TRAIL_SLACK == 0:
            found = await membership.client.get_prefix(keys.audit_prefix(membership.state.cluster))
            for item in sorted(found.items, key=lambda item: item.key)[:-_TRAIL_MAX]:
                await membership.client.delete(item.key)

    def _own_caller(self, token: str) -> Caller | None:
        if not self._own.value or not secrets.compare_digest(token.encode(), self._own.value.encode()):
            return None
        return Caller("this server", Role.ADMIN, self._own.id, is_server=True)

    @property
    def _present(self) -> _Membership:
        return self._capture.membership or _nobody_knows()


def _nobody_knows() -> NoReturn:
    raise OwnerNotFoundError("this capture is not a member at the moment, and cannot look up tokens; try again")


def _found(state: ClusterState, hashed: str) -> TokenRecord | None:
    return next((record for record in state.tokens.values() if record.hash == hashed), None)


def _is_good(value: bytes, key: str) -> bool:
    try:
        return TokenRecord.decode(value, key=key).is_good(time.time())
    except InvalidRecordError:
        return False


def _view(record: TokenRecord) -> TokenView:
    return TokenView.model_validate(record.model_dump())
