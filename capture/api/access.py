"""Access port: whom a token belongs to, what each role may do, and the audit trail.

``Access`` is to the interfaces what ``capture.api.port.Cluster`` is for changefeeds. A token is long and random, so its
plain SHA-256 suffices to identify it; only that is stored.
"""

import builtins
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field

from capture.api.requests.base import CONVERTED, Asked
from reactor.records.access import Role
from reactor.views import View

_PREFIX = "weir_"
_SECRET_BYTES = 32
#: of a token; all of ours are shorter
TOKEN_LENGTH_MAX = 200
#: routes that change nothing, but need more than the role viewer
_READS: tuple[tuple[re.Pattern[str], Role], ...] = (
    (re.compile(r"/api/v2/changefeeds/[^/]+/diff"), Role.OPERATOR),
    (re.compile(r"/api/v2/(tokens|audit)(/.*)?"), Role.ADMIN),
    (re.compile(r"/api/v2/(status|captures|owned)|/metrics"), Role.VIEWER),
    (re.compile(r"/api/v2/changefeeds(/[^/]+(/tables|/table_files|/sync_points|/subscriptions)?)?"), Role.VIEWER),
)
#: what readers ask all the time; that a subscription was opened is recorded
_ROUTINE = re.compile(r"/api/v2/changefeeds/[^/]+/subscriptions/[^/]+/(read|advance)")
_CHANGES: tuple[tuple[re.Pattern[str], Role], ...] = (
    (re.compile(r"/api/v2/changefeeds(/.*)?"), Role.OPERATOR),
    (re.compile(r"/api/v2/captures/[^/]+/drain|/api/v2/owner/resign"), Role.OPERATOR),
)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. ``token``: its id. ``is_server``: another capture, which may act for its own caller."""

    name: str
    role: Role
    token: str
    is_server: bool = False


class TokenAsked(Asked):
    """The properties of a new token. ``expires_in_seconds``: None: until it is revoked."""

    role: Annotated[Role, CONVERTED]
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.@ -]+$")] = "token"
    expires_in_seconds: Annotated[int, Field(ge=1, le=10 * 365 * 86_400)] | None = None


class TokenView(View):
    """``token``: in clear, only in the answer to its creation."""

    id: str
    name: str
    role: Role
    created_at: float
    created_by: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    is_servers: bool = False
    token: str | None = None


class AuditView(View):
    """``detail``: table and Ts that the request names. ``status``: of the answer; None while the change is in progress,
    or if its outcome is unknown."""

    time: float
    name: str
    role: Role
    token: str
    method: str
    path: str
    detail: str = ""
    source: str = ""
    capture: str = ""
    status: int | None = None


class Access(Protocol):
    """All errors are ``WeirError``; without a membership ``OwnerNotFoundError``."""

    async def caller(self, token: str) -> Caller | None:
        """Return the token's owner; None if it is unknown, expired or revoked."""
        ...

    async def create(self, asked: TokenAsked, by: Caller) -> TokenView: ...

    async def list(self) -> builtins.list[TokenView]: ...

    async def revoke(self, token_id: str) -> TokenView:
        """:raises TokenNotFoundError: there is no such token."""
        ...

    async def begin(self, caller: Caller, method: str, path: str, source: str, *, detail: str = "") -> str:
        """Record that a change is about to be tried; return the entry's id.

        :raises WeirError: it cannot be recorded, so the change must not be tried.
        """
        ...

    async def end(self, entry: str, status: int) -> None:
        """Record the outcome."""
        ...

    async def trail(self, limit: int) -> "builtins.list[AuditView]":
        """Return the newest changes, oldest first."""
        ...


def needed_role(method: str, path: str) -> Role:
    """Return the role that a route needs; an unlisted route needs the highest."""
    table = _READS if method in ("GET", "HEAD") else _CHANGES
    return next((role for pattern, role in table if pattern.fullmatch(path)), Role.ADMIN)


def is_recorded(path: str) -> bool:
    """Return whether a request that is no read belongs into the audit trail."""
    return _ROUTINE.fullmatch(path) is None


def new_token() -> str:
    return _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
