"""Moment: the tables of a sink at one sync point, so that they are consistent with each other, for notebooks."""

from collections.abc import Mapping

from capture.api.inputs import whole_of
from capture.errors import SyncPointNotFoundError, TableNotFoundError
from capture.python import html
from capture.python.table import Table
from reactor.records.sync_point import SyncPoint
from reactor.views import ChangefeedView, TableView, called


class Moment:
    """One consistent state of the source, in the sink. Tables are read where they are stored; no server takes part."""

    def __init__(
        self, feed: ChangefeedView, point: SyncPoint, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.changefeed = feed.id
        self.point = point
        self._feed = feed
        self._storage_options = storage_options

    @classmethod
    def of(
        cls,
        feed: ChangefeedView,
        points: list[SyncPoint],
        ts: int | SyncPoint | None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "Moment":
        """Return the moment of the newest point at or before ``ts``; None: of the newest one.

        :raises SyncPointNotFoundError: there is none.
        :raises ConfigError: ``ts`` is something else.
        """
        if ts is not None:
            ts = ts.ts if isinstance(ts, SyncPoint) else whole_of(ts, "ts")
        found = max(
            (point for point in points if ts is None or point.ts <= ts), key=lambda point: point.ts, default=None
        )
        if found is not None:
            return cls(feed, found, storage_options)
        if not points:
            raise SyncPointNotFoundError(
                f"changefeed {feed.id} has no sync point yet; they need `sync-point-interval-seconds` in its config"
            )
        oldest = min(point.ts for point in points)
        raise SyncPointNotFoundError(
            f"changefeed {feed.id} has no sync point at or before {ts}; the oldest is {oldest}"
        )

    @property
    def ts(self) -> int:
        return self.point.ts

    @property
    def tables(self) -> list[str]:
        """Names (schema.name) of the tables that can be read, sorted."""
        return sorted(name for name, version in self.point.versions.items() if version)

    def table(self, name: str) -> Table:
        """Return a table as of this moment. ``name``: schema.name, as it was then.

        :raises TableNotFoundError: the sync point does not cover it, the changefeed no longer has it, or the version
            is not that of the sync point any more.
        """
        if name in self.point.left_out:
            raise TableNotFoundError(f"{name} was held at sync point {self.ts}, which leaves it out")
        version = self.point.versions.get(name)
        if not version:
            known = ", ".join(self.tables[:20]) or "none that can be read"
            raise TableNotFoundError(
                f"sync point {self.ts} of changefeed {self.changefeed} has no table {name}; it has {known}"
            )
        found = self._found(name)
        table = Table.of(self._feed, name, self._storage_options, version=int(version), found=found)
        table.check_was(found, self.point)
        return table

    def _found(self, name: str) -> TableView:
        """Return the table that had this name at the sync point, which may have another one by now."""
        table_id = self.point.table_ids.get(name)
        of_id = (table for table in self._feed.tables if table.table_id == table_id)
        found = called(self._feed.tables, name) if table_id is None else next(of_id, None)
        if found is not None:
            return found
        raise TableNotFoundError(
            f"{name} of sync point {self.ts} was dropped since, or has left changefeed {self.changefeed}; read version "
            f"{self.point.versions[name]} where it lies at the sink"
        )

    def __repr__(self) -> str:
        return f"<Moment {self.ts} of {self.changefeed}: {len(self.tables)} tables>"

    def _repr_html_(self) -> str:
        return html.rows(("table", "version"), [(name, self.point.versions[name]) for name in self.tables])
