"""Key space: one frozen dataclass per kind of key; ``str(key)`` and ``parse`` are inverses.

/weir/{cluster}/__meta__/owner/{lease}                      capture id (election; leased)
/weir/{cluster}/__meta__/capture/{capture}                  CaptureInfo (leased)
/weir/{cluster}/__meta__/waiting/{capture}                  WaitingCapture (leased)
/weir/{cluster}/__meta__/meta/delete-count                  int, see reactor.txn
/weir/{cluster}/__meta__/meta/format                        ClusterFormat, see reactor.records.formats
/weir/{cluster}/__meta__/meta/secret-key                    SecretKeyMark
/weir/{cluster}/__meta__/reader/{number}                    which changefeed's reader has the number
/weir/{cluster}/__meta__/token/{token}                      TokenRecord (a capture's own is leased)
/weir/{cluster}/__meta__/audit/{entry}                      AuditRecord, in the order of their names
/weir/{cluster}/{namespace}/changefeed/info/{changefeed}    ChangefeedInfo
/weir/{cluster}/{namespace}/changefeed/status/{changefeed}  ChangefeedStatus
/weir/{cluster}/{namespace}/progress/{capture}              CaptureProgress
/weir/{cluster}/{namespace}/owner-of/{changefeed}           Assignment
/weir/{cluster}/{namespace}/task/position/{capture}/{changefeed}  TaskPosition
/weir/{cluster}/{namespace}/task/unit/{changefeed}/{source}       UnitRecord
/weir/{cluster}/{namespace}/upstream/{source}               UpstreamInfo
/weir/{cluster}/{namespace}/log/{changefeed}/{source}       LogHead
/weir/{cluster}/{namespace}/ddl/{changefeed}/{ts}           DdlRecord
/weir/{cluster}/{namespace}/sync-point/{changefeed}/{ts}    SyncPoint
/weir/{cluster}/{namespace}/cut/{changefeed}/{table}        TablePartitioning
/weir/{cluster}/{namespace}/held/{changefeed}/{table}       HeldTable
/weir/{cluster}/{namespace}/[schema-]attempt/{changefeed}/{capture}  Attempt, of flushes and of schema changes
/weir/{cluster}/{namespace}/suspects/{changefeed}           Suspects
/weir/{cluster}/{namespace}/stream-attempt/{changefeed}/{source}  StreamAttempt
/weir/{cluster}/{namespace}/resync/{changefeed}/{table}     TableResync
/weir/{cluster}/{namespace}/last-diff/{changefeed}          LastDiff
/weir/{cluster}/{namespace}/diff-progress/{changefeed}      DiffProgress
/weir/{cluster}/{namespace}/subscription/{changefeed}/{name}  Subscription
/weir/{cluster}/{namespace}/signals/{changefeed}            HandledSignals
/weir/{cluster}/{namespace}/part/{changefeed}/{token}/{number}  a part of a large value, see reactor.division
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from reactor.errors import InvalidIdError, InvalidKeyError
from reactor.ids import CaptureId, ChangefeedId, parse_changefeed_id

ROOT = "/weir"
DEFAULT_NAMESPACE = "default"


def cluster_prefix(cluster: str) -> str:
    """Return the prefix of all keys of one cluster. Its slash at the end keeps other clusters' keys out."""
    return f"{ROOT}/{cluster}/"


def token_prefix(cluster: str) -> str:
    """Return the prefix of the keys of all tokens."""
    return f"{ROOT}/{cluster}/__meta__/token/"


def audit_prefix(cluster: str) -> str:
    """Return the prefix of the keys of the audit trail."""
    return f"{ROOT}/{cluster}/__meta__/audit/"


def capture_prefix(cluster: str) -> str:
    """Return the prefix of the members' keys."""
    return f"{ROOT}/{cluster}/__meta__/capture/"


def owner_prefix(cluster: str) -> str:
    """Return the prefix that candidates campaign under (see ``reactor.membership.election``)."""
    return f"{ROOT}/{cluster}/__meta__/owner"


@dataclass(frozen=True, slots=True)
class OwnerKey:
    cluster: str
    lease: str

    def __str__(self) -> str:
        return f"{owner_prefix(self.cluster)}/{self.lease}"


@dataclass(frozen=True, slots=True)
class CaptureKey:
    cluster: str
    capture: CaptureId

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/__meta__/capture/{self.capture}"


@dataclass(frozen=True, slots=True)
class TokenKey:
    cluster: str
    token: str

    def __str__(self) -> str:
        return f"{token_prefix(self.cluster)}{self.token}"


@dataclass(frozen=True, slots=True)
class AuditKey:
    """``entry`` begins with the time in nanoseconds, so keys are in chronological order."""

    cluster: str
    entry: str

    def __str__(self) -> str:
        return f"{audit_prefix(self.cluster)}{self.entry}"


@dataclass(frozen=True, slots=True)
class WaitingKey:
    cluster: str
    capture: CaptureId

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/__meta__/waiting/{self.capture}"


@dataclass(frozen=True, slots=True)
class ReaderKey:
    cluster: str
    number: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/__meta__/reader/{self.number}"


@dataclass(frozen=True, slots=True)
class _MetaKey:
    """One key per cluster."""

    KIND: ClassVar[str]
    cluster: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/__meta__/meta/{self.KIND}"


class DeleteCountKey(_MetaKey):
    KIND = "delete-count"


class LogStorageKey(_MetaKey):
    KIND = "log-storage"


class SecretKeyKey(_MetaKey):
    KIND = "secret-key"


class FormatKey(_MetaKey):
    KIND = "format"


_META: Mapping[str, type[DeleteCountKey | LogStorageKey | SecretKeyKey | FormatKey]] = {
    kind.KIND: kind for kind in (DeleteCountKey, LogStorageKey, SecretKeyKey, FormatKey)
}


@dataclass(frozen=True, slots=True)
class UpstreamKey:
    cluster: str
    namespace: str
    source: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/upstream/{self.source}"


@dataclass(frozen=True, slots=True)
class ProgressKey:
    cluster: str
    namespace: str
    capture: CaptureId

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/progress/{self.capture}"


@dataclass(frozen=True, slots=True)
class PositionKey:
    cluster: str
    namespace: str
    capture: CaptureId
    changefeed: ChangefeedId

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/task/position/{self.capture}/{self.changefeed}"


@dataclass(frozen=True, slots=True)
class FeedKey:
    """One key per changefeed."""

    KIND: ClassVar[str]
    cluster: str
    namespace: str
    changefeed: ChangefeedId

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/{self.KIND}/{self.changefeed}"


class InfoKey(FeedKey):
    KIND = "changefeed/info"


class StatusKey(FeedKey):
    KIND = "changefeed/status"


class AssignmentKey(FeedKey):
    """Exists while a capture owns the changefeed; its creation revision is the owner revision."""

    KIND = "owner-of"


@dataclass(frozen=True, slots=True)
class _SourceKey(FeedKey):
    """One key per source of a changefeed."""

    source: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/{self.KIND}/{self.changefeed}/{self.source}"


class UnitKey(_SourceKey):
    KIND = "task/unit"


class LogKey(_SourceKey):
    KIND = "log"


class StreamAttemptKey(_SourceKey):
    KIND = "stream-attempt"


@dataclass(frozen=True, slots=True)
class _TsKey(FeedKey):
    """One key per Ts of a changefeed."""

    ts: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/{self.KIND}/{self.changefeed}/{self.ts}"


class DdlKey(_TsKey):
    KIND = "ddl"


def ddl_prefix(cluster: str, namespace: str, changefeed: ChangefeedId) -> str:
    """Return the prefix of the keys of one changefeed's schema changes."""
    return f"{ROOT}/{cluster}/{namespace}/{DdlKey.KIND}/{changefeed}/"


class SyncPointKey(_TsKey):
    KIND = "sync-point"


@dataclass(frozen=True, slots=True)
class _TableKey(FeedKey):
    """One key per table of a changefeed."""

    table_id: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/{self.KIND}/{self.changefeed}/{self.table_id}"


class PartitioningKey(_TableKey):
    KIND = "cut"


class HeldKey(_TableKey):
    KIND = "held"


@dataclass(frozen=True, slots=True)
class AttemptKey(FeedKey):
    """One key per capture that writes the changefeed's tables."""

    KIND = "attempt"
    capture: CaptureId

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/{self.KIND}/{self.changefeed}/{self.capture}"


class SchemaAttemptKey(AttemptKey):
    """One key per capture that changes the schema of the changefeed's tables."""

    KIND = "schema-attempt"


class SuspectsKey(FeedKey):
    KIND = "suspects"


class ResyncKey(_TableKey):
    KIND = "resync"


class LastDiffKey(FeedKey):
    KIND = "last-diff"


class DiffProgressKey(FeedKey):
    KIND = "diff-progress"


class SignalsKey(FeedKey):
    KIND = "signals"


_NUMBERED: Mapping[str, type[DdlKey | SyncPointKey | PartitioningKey | HeldKey | ResyncKey]] = {
    kind.KIND: kind for kind in (DdlKey, SyncPointKey, PartitioningKey, HeldKey, ResyncKey)
}
_OF_FEEDS: Mapping[str, type[SuspectsKey | LastDiffKey | DiffProgressKey | SignalsKey | AssignmentKey]] = {
    kind.KIND: kind for kind in (SuspectsKey, LastDiffKey, DiffProgressKey, SignalsKey, AssignmentKey)
}


@dataclass(frozen=True, slots=True)
class _NamedKey(FeedKey):
    name: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/{self.KIND}/{self.changefeed}/{self.name}"


class SubscriptionKey(_NamedKey):
    KIND = "subscription"


class PartKey(_NamedKey):
    """``name``: token and number, with a slash between."""

    KIND = "part"


_OfCluster = OwnerKey | CaptureKey | WaitingKey | ReaderKey | TokenKey | AuditKey | UpstreamKey | ProgressKey
_OfMeta = DeleteCountKey | LogStorageKey | SecretKeyKey | FormatKey
Key = _OfCluster | _OfMeta | PositionKey | FeedKey

#: as ``str`` writes it, and within 64 bits
_NUMBER = re.compile(r"^(0|[1-9][0-9]{0,18})\Z")


def parse(text: str) -> Key:
    """Parse a key.

    :raises InvalidKeyError: the text is not a key of Weir's.
    """
    match text.split("/"):
        case ["", "weir", cluster, "__meta__", "owner", lease]:
            return OwnerKey(cluster, lease)
        case ["", "weir", cluster, "__meta__", "capture" | "waiting" as kind, capture]:
            return (CaptureKey if kind == "capture" else WaitingKey)(cluster, CaptureId(capture))
        case ["", "weir", cluster, "__meta__", "meta", kind] if kind in _META:
            return _META[kind](cluster)
        case ["", "weir", cluster, "__meta__", "token" | "audit" as kind, name]:
            return (TokenKey if kind == "token" else AuditKey)(cluster, name)
        case ["", "weir", cluster, "__meta__", "reader", number] if _NUMBER.match(number):
            return ReaderKey(cluster, int(number))
        case ["", "weir", cluster, namespace, "changefeed", "info" | "status" as kind, changefeed]:
            return (InfoKey if kind == "info" else StatusKey)(cluster, namespace, _feed(changefeed))
        case ["", "weir", cluster, namespace, "progress", capture]:
            return ProgressKey(cluster, namespace, CaptureId(capture))
        case ["", "weir", cluster, namespace, "task", "position", capture, changefeed]:
            return PositionKey(cluster, namespace, CaptureId(capture), _feed(changefeed))
        case ["", "weir", cluster, namespace, "task", "unit", changefeed, source]:
            return UnitKey(cluster, namespace, _feed(changefeed), source)
        case ["", "weir", cluster, namespace, "upstream", source]:
            return UpstreamKey(cluster, namespace, source)
        case ["", "weir", cluster, namespace, kind, changefeed, number] if kind in _NUMBERED and _NUMBER.match(number):
            return _NUMBERED[kind](cluster, namespace, _feed(changefeed), int(number))
        case ["", "weir", cluster, namespace, "attempt" | "schema-attempt" as kind, changefeed, capture]:
            of_kind = AttemptKey if kind == AttemptKey.KIND else SchemaAttemptKey
            return of_kind(cluster, namespace, _feed(changefeed), CaptureId(capture))
        case ["", "weir", cluster, namespace, "log" | "stream-attempt" as kind, changefeed, source]:
            of_source = LogKey if kind == LogKey.KIND else StreamAttemptKey
            return of_source(cluster, namespace, _feed(changefeed), source)
        case ["", "weir", cluster, namespace, kind, changefeed] if kind in _OF_FEEDS:
            return _OF_FEEDS[kind](cluster, namespace, _feed(changefeed))
        case ["", "weir", cluster, namespace, "subscription", changefeed, name]:
            return SubscriptionKey(cluster, namespace, _feed(changefeed), name)
        case ["", "weir", cluster, namespace, "part", changefeed, token, number] if _NUMBER.match(number):
            return PartKey(cluster, namespace, _feed(changefeed), f"{token}/{number}")
    raise InvalidKeyError(f"not a key of Weir's: {text!r}")


def _feed(text: str) -> ChangefeedId:
    """Reject malformed ids: they are never in our keys, and become directory names."""
    try:
        return parse_changefeed_id(text)
    except InvalidIdError as error:
        raise InvalidKeyError(str(error)) from None
