"""GTID sets of both dialects: which transactions have been read, in the servers' own notation.

MySQL's is a set of intervals by source (``uuid[:tag]:1-5:7``), since transactions of one source may arrive with gaps.
MariaDB's is a position: the last ``domain-server-sequence`` of every domain. Both are immutable; ``GtidSet`` is either.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self
from uuid import UUID

from agent.errors import SourceError

_U64: Final = struct.Struct("<Q")
#: first and last number, inclusive
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MariaGtidSet:
    """``domains``: server id and sequence number of the last transaction of each domain."""

    domains: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the server's notation.

        :raises SourceError: malformed.
        """
        domains = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            numbers = part.split("-")
            if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
                raise SourceError(f"{part[:60]!r} is no GTID of MariaDB; it is written domain-server-sequence")
            domain, server, sequence = map(int, numbers)
            domains[domain] = server, sequence
        return cls(domains)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{seq}" for domain, (server, seq) in sorted(self.domains.items()))

    def __bool__(self) -> bool:
        return bool(self.domains)

    def add(self, domain: int, server: int, sequence: int) -> "MariaGtidSet":
        return MariaGtidSet({**self.domains, domain: (server, sequence)})


@dataclass(frozen=True, slots=True)
class MysqlGtidSet:
    """``sources``: intervals by source (``uuid`` or ``uuid:tag``), sorted and disjoint."""

    sources: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the server's notation.

        :raises SourceError: malformed.
        """
        found: dict[str, list[Interval]] = {}
        for part in filter(None, ("".join(part.split()).lower() for part in text.split(","))):
            uuid, *rest = part.split(":")
            source = _uuid(uuid)
            for piece in rest:
                if piece[0].isdecimal():
                    found.setdefault(source, []).append(_interval(piece))
                else:
                    source = f"{_uuid(uuid)}:{piece}"
        return cls({source: _merged(intervals) for source, intervals in found.items()})

    def __str__(self) -> str:
        return ",".join(
            ":".join([source, *(str(a) if a == b else f"{a}-{b}" for a, b in intervals)])
            for source, intervals in sorted(self.sources.items())
        )

    def __bool__(self) -> bool:
        return bool(self.sources)

    def add(self, source: str, first: int, last: int) -> "MysqlGtidSet":
        return MysqlGtidSet({**self.sources, source: _merged([*self.sources.get(source, ()), (first, last)])})

    def encode(self) -> bytes:
        """Encode for COM_BINLOG_DUMP_GTID. With tags, the count is encoded differently, and every source has a tag."""
        is_tagged = any(":" in source for source in self.sources)
        count = len(self.sources)
        parts = [_U64.pack(1 << 56 | count << 8 | 1 if is_tagged else count)]
        for source, intervals in sorted(self.sources.items()):
            uuid, _, tag = source.partition(":")
            parts.append(UUID(uuid).bytes)
            if is_tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(_U64.pack(len(intervals)))
            parts += [_U64.pack(first) + _U64.pack(last + 1) for first, last in intervals]
        return b"".join(parts)


GtidSet = MariaGtidSet | MysqlGtidSet


def parse_gtid_set(text: str, *, is_mariadb: bool) -> GtidSet:
    """Parse the server's notation.

    :raises SourceError: malformed.
    """
    return MariaGtidSet.parse(text) if is_mariadb else MysqlGtidSet.parse(text)


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise SourceError(f"{text[:60]!r} is no server UUID; MySQL's GTIDs are written uuid:first-last") from None


def _interval(text: str) -> Interval:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last or "0").isdecimal():
        raise SourceError(f"{text[:60]!r} is no interval of GTIDs; it is written first-last")
    return int(first), int(last or first)


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)
