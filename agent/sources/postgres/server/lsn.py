"""Log sequence numbers: PostgreSQL writes them as two hexadecimal halves, Weir uses them as a Ts."""

from typing import Final

from reactor.ids import Ts

#: columns for ``last_ts``; they need no table
END_SQL: Final = (
    "(pg_catalog.pg_current_wal_insert_lsn() - '0/0')::int8, pg_catalog.current_setting('wal_block_size')::int8, "
    "pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))"
)
_PAGE_HEADER, _SEGMENT_HEADER = 24, 40  # bytes, in every version


def parse_lsn(text: str) -> Ts:
    high, _, low = text.partition("/")
    return Ts((int(high, 16) << 32) | int(low, 16))


def format_lsn(ts: Ts) -> str:
    return f"{ts >> 32:X}/{ts & 0xFFFFFFFF:X}"


def last_ts(end: int, page_bytes: int, segment_bytes: int) -> Ts:
    """Return the last position of the log, which a stream reaches without anything being written. ``end``: where the
    next record would begin.

    Where the last record ends with a page, ``end`` is behind the header that the next page will have, and a stream of
    an idle server is in front of it.
    """
    if (end - _SEGMENT_HEADER) % segment_bytes == 0:
        return Ts(end - _SEGMENT_HEADER - 1)
    if (end - _PAGE_HEADER) % page_bytes == 0:
        return Ts(end - _PAGE_HEADER - 1)
    return Ts(end - 1)
