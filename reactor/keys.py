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

from reactor.errors import InvalidIdError, InvalidKeyError
from reactor.ids import CaptureId, ChangefeedId, parse_changefeed_id

ROOT = "/weir"
DEFAULT_NAMESPACE = "default"


def cluster_prefix(cluster: str) -> str:
    """The prefix every key of one cluster has; it ends in a slash so that no cluster is a prefix of another."""
    return f"{ROOT}/{cluster}/"


def owner_prefix(cluster: str) -> str:
    """What candidates campaign under (see reactor.election)."""
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
class DeleteCountKey:
    cluster: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/__meta__/meta/delete-count"


@dataclass(frozen=True, slots=True)
class LogStorageKey:
    cluster: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/__meta__/meta/log-storage"


@dataclass(frozen=True, slots=True)
class FormatKey:
    cluster: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/__meta__/meta/format"


@dataclass(frozen=True, slots=True)
class ReaderKey:
    cluster: str
    number: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/__meta__/reader/{self.number}"


@dataclass(frozen=True, slots=True)
class InfoKey:
    cluster: str
    namespace: str
    changefeed: ChangefeedId

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/changefeed/info/{self.changefeed}"


@dataclass(frozen=True, slots=True)
class StatusKey:
    cluster: str
    namespace: str
    changefeed: ChangefeedId

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/changefeed/status/{self.changefeed}"


@dataclass(frozen=True, slots=True)
class PositionKey:
    cluster: str
    namespace: str
    capture: CaptureId
    changefeed: ChangefeedId

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/task/position/{self.capture}/{self.changefeed}"


@dataclass(frozen=True, slots=True)
class UnitKey:
    cluster: str
    namespace: str
    changefeed: ChangefeedId
    source: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/task/unit/{self.changefeed}/{self.source}"


@dataclass(frozen=True, slots=True)
class UpstreamKey:
    cluster: str
    namespace: str
    source: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/upstream/{self.source}"


@dataclass(frozen=True, slots=True)
class LogKey:
    cluster: str
    namespace: str
    changefeed: ChangefeedId
    source: str

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/log/{self.changefeed}/{self.source}"


@dataclass(frozen=True, slots=True)
class DdlKey:
    cluster: str
    namespace: str
    changefeed: ChangefeedId
    ts: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/ddl/{self.changefeed}/{self.ts}"


def ddl_prefix(cluster: str, namespace: str, changefeed: ChangefeedId) -> str:
    """What the keys of one changefeed's schema changes begin with."""
    return f"{ROOT}/{cluster}/{namespace}/ddl/{changefeed}/"


@dataclass(frozen=True, slots=True)
class SyncPointKey:
    cluster: str
    namespace: str
    changefeed: ChangefeedId
    ts: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/sync-point/{self.changefeed}/{self.ts}"


@dataclass(frozen=True, slots=True)
class PartitioningKey:
    cluster: str
    namespace: str
    changefeed: ChangefeedId
    table_id: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/cut/{self.changefeed}/{self.table_id}"


@dataclass(frozen=True, slots=True)
class HeldKey:
    cluster: str
    namespace: str
    changefeed: ChangefeedId
    table_id: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.cluster}/{self.namespace}/held/{self.changefeed}/{self.table_id}"


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
