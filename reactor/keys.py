"""Key space: one frozen dataclass per kind of key; ``str(key)`` and ``parse`` are inverses.

/weir/{cluster}/__meta__/owner/{lease}                      capture id (election; leased)
/weir/{cluster}/__meta__/capture/{capture}                  CaptureInfo (leased)
/weir/{cluster}/__meta__/meta/delete-count                  int, see reactor.txn
/weir/{cluster}/__meta__/meta/format                        ClusterFormat, see reactor.records.formats
/weir/{cluster}/__meta__/reader/{number}                    which changefeed's reader has the number
/weir/{cluster}/{namespace}/changefeed/info/{changefeed}    ChangefeedInfo
/weir/{cluster}/{namespace}/changefeed/status/{changefeed}  ChangefeedStatus
/weir/{cluster}/{namespace}/task/position/{capture}/{changefeed}  TaskPosition
/weir/{cluster}/{namespace}/task/unit/{changefeed}/{source}       UnitRecord
/weir/{cluster}/{namespace}/upstream/{source}               UpstreamInfo
/weir/{cluster}/{namespace}/log/{changefeed}/{source}       LogHead
/weir/{cluster}/{namespace}/ddl/{changefeed}/{ts}           DdlRecord
/weir/{cluster}/{namespace}/sync-point/{changefeed}/{ts}    SyncPoint
/weir/{cluster}/{namespace}/cut/{changefeed}/{table}        TablePartitioning
/weir/{cluster}/{namespace}/held/{changefeed}/{table}       HeldTable
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from reactor.errors import InvalidIdError, InvalidKeyError
from reactor.ids import CaptureId, ChangefeedId, parse_changefeed_id

ROOT = "/weir"
DEFAULT_NAMESPACE = "default"


def cluster_prefix(cluster: str) -> str:
    """The prefix every key of one cluster has; it ends in a slash so that no cluster is a prefix of another."""
    return f"{ROOT}/{cluster}/"


def owner_prefix(cluster: str) -> str:
    """What candidates campaign under (see reactor.membership.election)."""
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
class ReaderKey:
    cluster: str
    number: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/__meta__/reader/{self.number}"


@dataclass(frozen=True, slots=True)
class _MetaKey:
    """One for the whole cluster."""

    KIND: ClassVar[str]
    cluster: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/__meta__/meta/{self.KIND}"


class DeleteCountKey(_MetaKey):
    KIND = "delete-count"


class LogStorageKey(_MetaKey):
    KIND = "log-storage"


class FormatKey(_MetaKey):
    KIND = "format"


@dataclass(frozen=True, slots=True)
class UpstreamKey:
    cluster: str
    namespace: str
    source: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/upstream/{self.source}"


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
    """One for a changefeed."""

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


@dataclass(frozen=True, slots=True)
class _SourceKey(FeedKey):
    """One for each source of a changefeed."""

    source: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/{self.KIND}/{self.changefeed}/{self.source}"


class UnitKey(_SourceKey):
    KIND = "task/unit"


class LogKey(_SourceKey):
    KIND = "log"


@dataclass(frozen=True, slots=True)
class _TsKey(FeedKey):
    """One for each of a changefeed's moments."""

    ts: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/{self.KIND}/{self.changefeed}/{self.ts}"


class DdlKey(_TsKey):
    KIND = "ddl"


def ddl_prefix(cluster: str, namespace: str, changefeed: ChangefeedId) -> str:
    """What the keys of one changefeed's schema changes begin with."""
    return f"{ROOT}/{cluster}/{namespace}/{DdlKey.KIND}/{changefeed}/"


class SyncPointKey(_TsKey):
    KIND = "sync-point"


@dataclass(frozen=True, slots=True)
class _TableKey(FeedKey):
    """One for each of a changefeed's tables."""

    table_id: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/{self.KIND}/{self.changefeed}/{self.table_id}"


class PartitioningKey(_TableKey):
    KIND = "cut"


class HeldKey(_TableKey):
    KIND = "held"


Key = (
    OwnerKey
    | CaptureKey
    | DeleteCountKey
    | LogStorageKey
    | FormatKey
    | ReaderKey
    | InfoKey
    | StatusKey
    | PositionKey
    | UnitKey
    | UpstreamKey
    | LogKey
    | DdlKey
    | SyncPointKey
    | PartitioningKey
    | HeldKey
)


#: as ``str`` writes it, and no larger than what is compared with it
_NUMBER = re.compile(r"^(0|[1-9][0-9]{0,18})\Z")


def parse(text: str) -> Key:
    """The key that ``text`` spells.

    :raises InvalidKeyError: it is none of Weir's.
    """
    match text.split("/"):
        case ["", "weir", cluster, "__meta__", "owner", lease]:
            return OwnerKey(cluster, lease)
        case ["", "weir", cluster, "__meta__", "capture", capture]:
            return CaptureKey(cluster, CaptureId(capture))
        case ["", "weir", cluster, "__meta__", "meta", "delete-count"]:
            return DeleteCountKey(cluster)
        case ["", "weir", cluster, "__meta__", "meta", "log-storage"]:
            return LogStorageKey(cluster)
        case ["", "weir", cluster, "__meta__", "meta", "format"]:
            return FormatKey(cluster)
        case ["", "weir", cluster, "__meta__", "reader", number] if _NUMBER.match(number):
            return ReaderKey(cluster, int(number))
        case ["", "weir", cluster, namespace, "changefeed", "info", changefeed]:
            return InfoKey(cluster, namespace, _feed(changefeed))
        case ["", "weir", cluster, namespace, "changefeed", "status", changefeed]:
            return StatusKey(cluster, namespace, _feed(changefeed))
        case ["", "weir", cluster, namespace, "task", "position", capture, changefeed]:
            return PositionKey(cluster, namespace, CaptureId(capture), _feed(changefeed))
        case ["", "weir", cluster, namespace, "task", "unit", changefeed, source]:
            return UnitKey(cluster, namespace, _feed(changefeed), source)
        case ["", "weir", cluster, namespace, "upstream", source]:
            return UpstreamKey(cluster, namespace, source)
        case ["", "weir", cluster, namespace, "log", changefeed, source]:
            return LogKey(cluster, namespace, _feed(changefeed), source)
        case ["", "weir", cluster, namespace, "ddl", changefeed, ts] if _NUMBER.match(ts):
            return DdlKey(cluster, namespace, _feed(changefeed), int(ts))
        case ["", "weir", cluster, namespace, "sync-point", changefeed, ts] if _NUMBER.match(ts):
            return SyncPointKey(cluster, namespace, _feed(changefeed), int(ts))
        case ["", "weir", cluster, namespace, "cut", changefeed, table] if _NUMBER.match(table):
            return PartitioningKey(cluster, namespace, _feed(changefeed), int(table))
        case ["", "weir", cluster, namespace, "held", changefeed, table] if _NUMBER.match(table):
            return HeldKey(cluster, namespace, _feed(changefeed), int(table))
    raise InvalidKeyError(f"not a key of Weir's: {text!r}")


def _feed(text: str) -> ChangefeedId:
    """Malformed ids are in no key of ours: they become names of directories."""
    try:
        return parse_changefeed_id(text)
    except InvalidIdError as error:
        raise InvalidKeyError(str(error)) from None
