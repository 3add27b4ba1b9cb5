"""Moment: the tables of a sink at one sync point, so that they are consistent with each other, for notebooks."""

from collections.abc import Mapping

from capture.api.inputs import whole_of
from capture.errors import SyncPointNotFoundError, TableNotFoundError
from capture.python import html
from capture.python.table import Table
from reactor.records.sync_point import SyncPoint
from reactor.views import ChangefeedView


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
        """Return a table (schema.name) as of this moment.

        :raises TableNotFoundError: the sync point does not cover it.
        """
        if name in self.point.left_out:
            raise TableNotFoundError(f"{name} was held at sync point {self.ts}, which leaves it out")
        version = self.point.versions.get(name)
        if not version:
            known = ", ".join(self.tables[:20]) or "none that can be read"
            raise TableNotFoundError(
                f"sync point {self.ts} of changefeed {self.changefeed} has no table {name}; it has {known}"
            )
        return Table.of(self._feed, name, self._storage_options, version=int(version))

    def __repr__(self) -> str:
        return f"<Moment {self.ts} of {self.changefeed}: {len(self.tables)} tables>"

    def _repr_html_(self) -> str:
        return html.rows(("table", "version"), [(name, self.point.versions[name]) for name in self.tables])
