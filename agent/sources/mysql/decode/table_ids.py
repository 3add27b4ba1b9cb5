"""Table ids: computes the number that identifies a MySQL table in the log, in etcd and at the sink.

The server has no permanent one: the id in a table map is new whenever the table is opened. So it is a hash of the name,
which every capture computes alike. With 63 bits, two of 10,000 tables share an id with a probability of one in 10^11;
``check_distinct`` checks it nevertheless.

A renamed table keeps the id of its first name, which is in its ``TableRecord``.
"""

from collections.abc import Iterable
from hashlib import blake2b

from agent.errors import SourceConfigError

_ID_BITS = 63


def table_id(schema_name: str, name: str) -> int:
    """Return the id: stable, above 0, below 2^63. Names are compared by bytes, as in the binlog."""
    # a name cannot contain NUL: it separates a.bc from ab.c
    digest = blake2b(f"{schema_name}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - _ID_BITS) or 1


def check_distinct(tables: Iterable[tuple[str, str]]) -> None:
    """Check that ids are distinct.

    :raises SourceConfigError: two of the tables have the same id.
    """
    known: dict[int, str] = {}
    for schema_name, name in tables:
        number, qualified = table_id(schema_name, name), f"{schema_name}.{name}"
        if known.setdefault(number, qualified) != qualified:
            raise SourceConfigError(
                f"tables {known[number]} and {qualified} have the same id (a hash of the name); "
                f"leave one out by a filter rule !{qualified} and give it a changefeed of its own"
            )
