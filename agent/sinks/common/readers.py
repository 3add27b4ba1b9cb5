"""Readers: which tables, with which features, the readers of a changefeed's tables can read.

``readers=duckdb,trino`` in a sink's URI names them; the sink then uses only what all of them read. What is said of each
is from tests, or from the reader's own sources and documentation where it could not be run (``docs/sinks.md``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Format(StrEnum):
    DELTA = "Delta"
    ICEBERG = "Iceberg"


@dataclass(frozen=True, slots=True)
class Reader:
    """``formats``: of the tables that it reads as Weir writes them by default. ``vectors``: whether it also reads
    Delta's deletion vectors that are in the table's log, without settings of its own; ``version_3``: Iceberg's, which
    tables of format version 3 have; ``mapping``: Delta's names of columns that differ from those in files."""

    formats: frozenset[Format]
    vectors: bool = False
    version_3: bool = False
    mapping: bool = False


_DELTA, _ICEBERG, _BOTH = frozenset({Format.DELTA}), frozenset({Format.ICEBERG}), frozenset(Format)

READERS: Final = {
    "chdb": Reader(_BOTH, mapping=True),  # with vectors a bare count(*) counts rows that are gone
    "daft": Reader(_BOTH),
    "databricks": Reader(_DELTA, vectors=True, mapping=True),
    "delta-kernel": Reader(_DELTA, vectors=True, mapping=True),
    "delta-rs": Reader(_DELTA, vectors=True, mapping=True),
    "duckdb": Reader(_BOTH, vectors=True, version_3=True, mapping=True),
    "flink": Reader(_ICEBERG),
    "pandas": Reader(_DELTA),  # through delta-rs's to_pandas
    "polars": Reader(_BOTH, vectors=True, version_3=True),
    "presto": Reader(_BOTH),
    "pyiceberg": Reader(_ICEBERG, version_3=True),
    "sail": Reader(_DELTA, vectors=True),
    "spark": Reader(_BOTH, vectors=True, version_3=True, mapping=True),
    "trino": Reader(_BOTH),
    "weir": Reader(_BOTH, vectors=True, version_3=True, mapping=True),
}


def parse_readers(text: str, of: Format) -> tuple[str, ...]:
    """Return the names in ``text``, which commas divide.

    :raises ValueError: one is not known, or does not read tables of this format.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in READERS or of not in READERS[name].formats:
            known = ", ".join(each for each, reader in READERS.items() if of in reader.formats)
            raise ValueError(f"there is no reader {name!r} of {of} tables; known are {known}")
    return names


def without_version_3(names: Sequence[str]) -> tuple[str, ...]:
    """Return the readers that are not known to read deletion vectors of Iceberg."""
    return tuple(name for name in names if not READERS[name].version_3)


def without_mapping(names: Sequence[str]) -> tuple[str, ...]:
    """Return the readers that are not known to read Delta's column mapping."""
    return tuple(name for name in names if not READERS[name].mapping)


def without_vectors(names: Sequence[str]) -> tuple[str, ...]:
    """Return the readers that do not read deletion vectors."""
    return tuple(name for name in names if not READERS[name].vectors)
