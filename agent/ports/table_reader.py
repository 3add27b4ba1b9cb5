"""Table reader port: a sink's table as its readers see it, at its newest or an earlier version."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode


@dataclass(frozen=True, slots=True)
class TableState:
    """One version of a table. ``records``: the Ts up to which it has the changes of each span that was asked for, as
    far as it has a record. ``names``: its columns that are the source's, and in a changelog all."""

    version: int
    mode: SinkMode
    records: Mapping[TableSpan, Ts]
    names: tuple[str, ...]

    def ts(self, spans: Sequence[TableSpan]) -> Ts | None:
        """Return the Ts at which the whole table is; None if ``spans`` are at several, or some is unknown."""
        found = {self.records.get(span) for span in spans}
        return found.pop() if len(found) == 1 else None


class TableReader(Protocol):
    """Methods block, and raise ``agent.errors.SinkError`` if there is no table or its storage fails."""

    @property
    def location(self) -> str:
        """A directory or a URL, without credentials."""
        ...

    def version(self) -> int:
        """Return the newest version."""
        ...

    def scan(self, columns: Sequence[str] | None = None, *, version: int | None = None) -> pa.RecordBatchReader:
        """Return all rows, with all columns or some; None: the newest version."""
        ...

    def state(self, spans: Sequence[TableSpan], *, version: int | None = None) -> TableState:
        """Return what a version has; None: the newest.

        :raises SinkError: also if the table is not Weir's, or was changed by others.
        """
        ...

    def parts(self, version: int, *, bytes_max: int) -> list[tuple[str, ...]]:
        """Return the names of a version's files, in parts of about ``bytes_max``, at least one file each: all its
        rows, for several readers."""
        ...

    def scan_part(self, version: int, files: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of one of its ``parts``, as the source has them.

        :raises SinkError: also if the version, or one of its files, is no longer there.
        """
        ...

    def history(self, limit: int) -> list[dict[str, Any]]:
        """Return the last commits, newest first, in the format's own words."""
        ...
