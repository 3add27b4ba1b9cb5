"""Access records: tokens that identify people and programs to the API, and the audit trail of their changes.

A token itself is never stored, only its hash.
"""

from enum import StrEnum

from pydantic import Field

from reactor.records.base import Count, Record, later


class Role(StrEnum):
    """Each role includes those before it (docs/security.md has the table)."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, needed: "Role") -> bool:
        order = tuple(Role)
        return order.index(self) >= order.index(needed)


class TokenRecord(Record):
    """``hash``: SHA-256. ``is_servers``: a capture's own, which exists as long as the capture is a member."""

    id: str
    name: str
    role: Role
    hash: str
    created_at: float
    created_by: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    is_servers: bool = False

    def is_good(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class AuditRecord(Record):
    """One requested change. ``detail``: table and Ts that it names. ``status``: of the answer; None while it is in
    progress, or if the outcome is unknown."""

    time: float
    name: str
    role: Role
    token: str
    method: str
    path: str
    detail: str = later("")
    source: str = ""
    capture: str = ""
    status: Count | None = Field(default=None)
