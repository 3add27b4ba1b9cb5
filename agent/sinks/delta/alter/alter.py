"""Alterer: applies the schema changes of one transaction to Delta tables, in an order in which names never collide.

Names change before columns, and all tables leave their old locations before any takes its new one: tables may swap
names. Each step recognises that it is already done (``steps``), wherever a crash was.
"""

from collections.abc import Callable, Collection, Sequence

import pyarrow as pa

from agent.ports.sink import StagedFile
from agent.rows.schema import TableSchema
from agent.rows.schema_change import SchemaChange
from agent.sinks.delta.alter import dropping, moving, steps
from agent.sinks.delta.table.lake import Lake
from agent.sinks.delta.table.place import TableOwner, TablePlace
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from reactor.records.tables.table import TableRecord

Load = Callable[[TableRecord, TableSchema, pa.Schema, Sequence[StagedFile]], None]
#: the columns that divide a new table with these columns
Partitions = Callable[[TableRecord, pa.Schema], Sequence[str]]


class Alterer:
    """For tables of one ``owner``. ``load``: that of ``Sink``; ``maps_columns``: see ``steps.Writer``."""

    def __init__(
        self, lake: Lake, owner: TableOwner, load: Load, partitions: Partitions, *, maps_columns: bool = False
    ) -> None:
        self._lake = lake
        self._owner = owner
        self._load = load
        self._partitions = partitions
        self._writer = steps.Writer(owner.changefeed, owner.mode is SinkMode.CHANGELOG, owner.marks, maps_columns)

    def alter(self, changes: Sequence[SchemaChange]) -> None:
        """See ``agent.ports.sink.Sink.alter``."""
        moves = [change for change in changes if change.is_move]
        for change in moves:
            moving.finish(self._places(change))
        moves = [change for change in moves if not self._has_come_back(change)]
        left = {self._place_of(change.before).location for change in moves if change.before is not None}
        for change in moves:
            self._refuse_taken(change, left)
        for change in moves:
            self._leave(change, left)
        for change in moves:
            self._put_down(change)
        for change in changes:
            self._alter(change)

    def _refuse_taken(self, change: SchemaChange, left: Collection[str]) -> None:
        """Check before any table leaves its location: a table whose new one is taken stays, or returns to its old one.

        :raises TableHeldError: its new location is taken by a table that does not leave it (``left``).
        """
        assert change.before is not None
        assert change.after is not None
        old, new, aside = self._place_of(change.before), self._place_of(change.after), self._aside(change)
        if new.location in left or not moving.exists(new):
            return
        table = new.open()
        if table is None or not steps.is_moving(table, self._writer, change.after.table_id, change.ts):
            if not moving.is_free(new) and moving.exists(aside) and not moving.exists(old):
                moving.move(aside, old, change)
            moving.refuse_taken(new, change)

    def _leave(self, change: SchemaChange, left: Collection[str]) -> None:
        """Move a renamed table from its location, unless that is already done: aside, or on an object store, where each
        move is a copy, directly to a location that no other table leaves (``left``)."""
        assert change.before is not None
        assert change.after is not None
        old, aside = self._place_of(change.before), self._aside(change)
        new = self._place_of(change.after)
        if not self._has_left(change):
            steps.mark_moving(old, self._writer, change)
            moving.move(old, aside if old.is_local or new.location in left else new, change)

    def _has_left(self, change: SchemaChange) -> bool:
        assert change.after is not None
        table = self._place_of(change.after).open()
        is_there = table is not None and steps.is_moving(table, self._writer, change.after.table_id, change.ts)
        return is_there or moving.exists(self._aside(change))

    def _has_come_back(self, change: SchemaChange) -> bool:
        """Return whether a table lies at its old location because it was moved there later: the change is stale.

        :raises TableForeignError: another table lies there.
        """
        assert change.before is not None
        assert change.after is not None
        old = self._place_of(change.before)
        table = None if self._has_left(change) else old.open()
        if table is None:
            return False
        is_done = steps.is_done(table, old, self._writer, change)
        return is_done or steps.moved_ts(table, self._writer, change.after.table_id) > change.ts

    def _put_down(self, change: SchemaChange) -> None:
        assert change.after is not None
        aside = self._aside(change)
        if moving.exists(aside):
            moving.move(aside, self._place_of(change.after), change)

    def _places(self, change: SchemaChange) -> list[TablePlace]:
        """Return the locations to which a move of this change may have begun."""
        assert change.before is not None
        assert change.after is not None
        old, new, aside = self._place_of(change.before), self._place_of(change.after), self._aside(change)
        return [aside, moving.away(new, change), new, old]

    def _alter(self, change: SchemaChange) -> None:
        match change.kind:
            case SchemaChangeKind.CREATE:
                self._create_for(change)
            case SchemaChangeKind.DROP:
                assert change.before is not None
                steps.drop(self._place_of(change.before), self._writer, change)
            case SchemaChangeKind.ALTER | SchemaChangeKind.RENAME:
                assert change.after is not None
                steps.alter(self._place_of(change.after), self._writer, change)

    def _create_for(self, change: SchemaChange) -> None:
        """Create a table; it replaces an earlier one that was dropped, or has left."""
        assert change.after is not None
        assert change.schema is not None
        assert change.arrow is not None
        place = self._place_of(change.after)
        table = place.open()
        if table is not None:
            self._owner.refuse_foreign(table, place)
        if table is not None and dropping.gone_ts(table) is not None:
            partitions = self._partitions(change.after, steps.stored_columns(change, self._writer))
            steps.take_over(place, self._writer, change, self._owner.description(), partitions)
        elif table is None or not steps.is_applied(table, self._writer, change.after.table_id, change.ts):
            self._load(change.after, change.schema, change.arrow, [])

    def _place_of(self, table: TableRecord) -> TablePlace:
        return self._lake.place(table)

    def _aside(self, change: SchemaChange) -> TablePlace:
        """Return the location of a table between its old name and its new one."""
        assert change.after is not None
        return self._lake.aside(change.after, f"{change.after.table_id}-{int(change.ts):x}")
