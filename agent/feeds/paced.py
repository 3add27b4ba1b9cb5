"""Paced snapshot: a comparison snapshot that is read no faster than a pace, rows and checksums alike.

A checksum costs the source as much as the rows that it sums, so it is paid for by them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from agent.pacing import Pace, paced
from agent.ports.checksums import ChecksumSession, KeyRange, NoChecksums, RangeSum, SourceChecksums
from agent.ports.source import ComparisonSnapshot, ReadsSome, SumsRanges
from agent.rows.row_forms import RowForm
from agent.rows.schema import TableSchema
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord


@dataclass(frozen=True, slots=True)
class _Paced:
    """``agent.ports.source.ComparisonSnapshot``."""

    inner: ComparisonSnapshot
    pace: Pace

    @property
    def ts(self) -> Ts:
        return self.inner.ts

    def schema(self, table: TableRecord) -> TableSchema:
        return self.inner.schema(table)

    def read(self, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        return paced(self.inner.read(schema), self.pace)

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True, slots=True)
class _PacedSums(_Paced):
    """Also ``agent.ports.source.SumsRanges``."""

    def checksums(self, schema: TableSchema) -> SourceChecksums | NoChecksums:
        assert isinstance(self.inner, SumsRanges), "asked for before"
        found = self.inner.checksums(schema)
        return found if isinstance(found, NoChecksums) else _Checksums(found, self.pace)

    def read_range(self, schema: TableSchema, keys: KeyRange) -> Iterator[pa.RecordBatch]:
        assert isinstance(self.inner, SumsRanges), "asked for before"
        return paced(self.inner.read_range(schema, keys), self.pace)


@dataclass(frozen=True, slots=True)
class _PacedAll(_PacedSums):
    """Also ``agent.ports.source.ReadsSome``."""

    def read_where(self, schema: TableSchema, condition: str) -> Iterator[pa.RecordBatch]:
        assert isinstance(self.inner, ReadsSome), "asked for before"
        return paced(self.inner.read_where(schema, condition), self.pace)

    def read_keys(self, schema: TableSchema, keys: pa.Table) -> Iterator[pa.RecordBatch]:
        assert isinstance(self.inner, ReadsSome), "asked for before"
        return paced(self.inner.read_keys(schema, keys), self.pace)


@dataclass(frozen=True, slots=True)
class _Checksums:
    """``agent.ports.checksums.SourceChecksums``."""

    inner: SourceChecksums
    pace: Pace

    @property
    def form(self) -> RowForm:
        return self.inner.form

    @property
    def sessions(self) -> int:
        return self.inner.sessions

    @contextmanager
    def open(self) -> Iterator[ChecksumSession]:
        with self.inner.open() as session:
            yield _Session(session, self.pace)


@dataclass(frozen=True, slots=True)
class _Session:
    """``agent.ports.checksums.ChecksumSession``."""

    inner: ChecksumSession
    pace: Pace

    def has_more_rows(self, count: int) -> bool:
        return self.inner.has_more_rows(count)

    def bounds(self, column: str) -> tuple[int, int] | None:
        return self.inner.bounds(column)

    def sum(self, keys: KeyRange) -> RangeSum:
        self.pace.wait()
        found = self.inner.sum(keys)
        self.pace.spend(found.rows)
        return found


def paced_snapshot(snapshot: ComparisonSnapshot, pace: Pace) -> ComparisonSnapshot:
    """Return the snapshot, read no faster than ``pace``, and until that is stopped."""
    if not isinstance(snapshot, SumsRanges):
        return _Paced(snapshot, pace)
    return _PacedAll(snapshot, pace) if isinstance(snapshot, ReadsSome) else _PacedSums(snapshot, pace)
