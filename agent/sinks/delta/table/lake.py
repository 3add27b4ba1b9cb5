"""Lake: a sink's directory or bucket: locates its Delta tables, and checks that the directory is mounted.

A directory that Weir writes has a marker file: an unmounted directory is empty, and without the marker all of its
tables would seem to have been removed. Whoever creates or finds a table writes the marker, so that older directories
get it too.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from agent.errors import SinkConfigError, TableNameError
from agent.sinks.common.directory import refuse_unwritable
from agent.sinks.delta.table import names
from agent.sinks.delta.table.errors import storage_errors
from agent.sinks.delta.table.place import TablePlace
from reactor.records.tables.table import TableRecord


@dataclass(frozen=True, slots=True)
class Lake:
    """``location``: a directory or a URL. ``options``: for the storage; may hold secrets, so not in the repr."""

    location: str
    is_local: bool
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def place(self, table: TableRecord) -> TablePlace:
        """Return a table's location: a directory of its own, two levels below this one.

        :raises TableNameError: it has no recorded location, and its name is not possible as a directory.
        """
        if reason := names.refusal(table, is_local=self.is_local):
            raise TableNameError(reason)
        return self._place(table.path)

    def aside(self, table: TableRecord, label: str) -> TablePlace:
        """Return a temporary location for a table that is being renamed.

        :raises TableNameError: as for ``place``.
        """
        self.place(table)
        return self._place(f"{table.path.partition('/')[0]}/{names.ASIDE}{label}")

    def _place(self, path: str) -> TablePlace:
        assert len(path.split("/")) == 2, f"{path!a} is not a table's directory"
        return TablePlace(f"{self.location}/{path}", self.is_local, self.options, root=self.location)

    def unfit(self, tables: Sequence[TableRecord]) -> Iterator[tuple[TableRecord, str]]:
        """Yield the tables that cannot be stored here, with the reasons."""
        merges, taken = self._merges_case(), dict[str, TableRecord]()
        for table in tables:
            reason = names.refusal(table, is_local=self.is_local)
            if not reason and merges:
                first = taken.setdefault(_folded(table.path), table)
                reason = "" if first is table else names.merged(table, first)
            if reason:
                yield table, reason

    def _check_store(self) -> None:
        """Check that of two concurrent creations of an object one is refused, on which commits rest."""
        place = TablePlace(self.location, is_local=False, options=self.options, root=self.location)
        with storage_errors(place, "write to"):
            keeps = place.store.supports_create(f".weir-probe-{uuid4().hex}")
        if not keeps:
            raise SinkConfigError(
                f"the object store of {self.location} does not keep conditional puts (If-None-Match: *), so two "
                "writers could make one commit of a table; use a store that does, or a newer version of this one"
            )

    def _merges_case(self) -> bool:
        """Return whether two names that differ only in case are one directory here."""
        above = next((path for path in (Path(self.location), *Path(self.location).parents) if path.is_dir()), None)
        if not self.is_local or above is None or above == Path(above.anchor):
            return False
        other = above.with_name(above.name.swapcase())
        return other != above and other.exists() and other.samefile(above)

    def check(self) -> None:
        """:raises SinkConfigError: tables cannot be stored here."""
        if not self.is_local:
            self._check_store()
            return
        if part := next((part for part in Path(self.location).parts if names.is_refused(part)), ""):
            raise SinkConfigError(f"sink directory {self.location} has {part!r} in its path; choose another directory")
        refuse_unwritable(Path(self.location))
        for path in (Path(self.location), *Path(self.location).parents):
            if (path / "_delta_log").is_dir():
                raise SinkConfigError(f"sink directory {self.location} lies in the Delta table {path}; choose another")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
