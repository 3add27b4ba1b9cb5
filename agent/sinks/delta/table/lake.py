"""Lake: a sink's directory or bucket; says where each Delta table lies, and whether the directory is there.

A directory that Weir writes has a mark, a file of its own: a mount that has gone leaves an empty directory behind, and
without the mark all of its tables would seem to have been removed. Whoever makes a table or finds one leaves the mark,
so directories of before have it too.
"""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import SinkConfigError, TableNameError
from agent.sinks.delta.table import names
from agent.sinks.delta.table.place import TablePlace
from reactor.records.changefeed import TableRecord


@dataclass(frozen=True, slots=True)
class Lake:
    """``location``: a directory or a URL. ``options``: for the storage; may hold secrets, so never shown."""

    location: str
    is_local: bool
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def place(self, schema_name: str, name: str) -> TablePlace:
        """Where a table lies: in a directory of its own, two below this one.

        :raises TableNameError: no directory can have that name.
        """
        if reason := names.refusal(schema_name, name, is_local=self.is_local):
            raise TableNameError(reason)
        return self._place(schema_name, name)

    def aside(self, schema_name: str, label: str) -> TablePlace:
        """Where a table waits while it changes its name."""
        self.place(schema_name, "any")  # the schema's name has to be fit
        return self._place(schema_name, f"{names.ASIDE}{label}")

    def _place(self, schema_name: str, name: str) -> TablePlace:
        return TablePlace(f"{self.location}/{schema_name}/{name}", self.is_local, self.options, root=self.location)

    def unfit(self, tables: Sequence[TableRecord]) -> Iterator[tuple[TableRecord, str]]:
        """The tables that no directory here can carry, with the reason."""
        merges, taken = self._merges_case(), dict[str, TableRecord]()
        for table in tables:
            reason = names.refusal(table.schema_name, table.name, is_local=self.is_local)
            if not reason and merges:
                first = taken.setdefault(_folded(f"{table.schema_name}/{table.name}"), table)
                reason = "" if first is table else names.merged(table, first)
            if reason:
                yield table, reason

    def _merges_case(self) -> bool:
        """Whether two names that differ in case alone are one directory here."""
        above = next((path for path in (Path(self.location), *Path(self.location).parents) if path.is_dir()), None)
        if not self.is_local or above is None or above == Path(above.anchor):
            return False
        other = above.with_name(above.name.swapcase())
        return other != above and other.exists() and other.samefile(above)

    def check(self) -> None:
        """:raises SinkConfigError: tables cannot lie here."""
        if not self.is_local:
            return
        if part := next((part for part in Path(self.location).parts if names.is_refused(part)), ""):
            raise SinkConfigError(f"sink directory {self.location} has {part!r} in its path; choose another directory")
        for path in (Path(self.location), *Path(self.location).parents):
            if (path / "_delta_log").is_dir():
                raise SinkConfigError(f"sink directory {self.location} lies in the Delta table {path}; choose another")
        _refuse_unwritable(Path(self.location))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _refuse_unwritable(directory: Path) -> None:
    """Try whether files can be made in ``directory``; leaves nothing behind.

    :raises SinkConfigError: they cannot.
    """
    made: list[Path] = []
    try:
        for path in [*reversed(directory.parents), directory]:
            if not path.exists():
                path.mkdir()
                made.append(path)
        probe = directory / f".weir-probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise SinkConfigError(
            f"sink directory {directory} is not writable ({error.strerror}); check its owner"
        ) from error
    finally:
        for path in reversed(made):
            path.rmdir()
