"""Table reader port: a sink's table as its readers see it, at its newest or an earlier version."""

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa


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

    def history(self, limit: int) -> list[dict[str, Any]]:
        """Return the last commits, newest first, in the format's own words."""
        ...
