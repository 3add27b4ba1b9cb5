"""Table ids: the number by which a MySQL table is known in the log, in etcd and at the sink.

The server has none that lasts: the id in a table map is new whenever the table is opened. So it is made of the
name, and every capture makes the same without asking anybody. 63 bits: two of 10,000 tables share one with a chance of
one in 10^11, which whoever collects tables checks all the same (``check_distinct``).

A table that is renamed continues under the id of the name it had first, which its ``TableRecord`` keeps.
"""

from collections.abc import Iterable
from hashlib import blake2b

from agent.errors import SourceConfigError

_ID_BITS = 63


def table_id(schema_name: str, name: str) -> int:
    """Stable, above 0, below 2^63. Names are compared by bytes, as the binlog spells them."""
    # No name holds a NUL: it keeps a.bc and ab.c apart.
    digest = blake2b(f"{schema_name}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - _ID_BITS) or 1


def check_distinct(tables: Iterable[tuple[str, str]]) -> None:
    """:raises SourceConfigError: two of the tables have one id."""
    known: dict[int, str] = {}
    for schema_name, name in tables:
        number, qualified = table_id(schema_name, name), f"{schema_name}.{name}"
        if known.setdefault(number, qualified) != qualified:
            raise SourceConfigError(
                f"tables {known[number]} and {qualified} have the same id (a hash of the name); "
                f"leave one out by a filter rule !{qualified} and give it a changefeed of its own"
            )
