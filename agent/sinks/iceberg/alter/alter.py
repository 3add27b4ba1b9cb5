"""Alterer: applies the schema changes of one transaction to Iceberg tables, in an order in which names never collide.

Names change before columns, and all tables leave their old names before any takes its new one: tables may swap names. A
rename is the catalog's; the files stay. A table says in its state that it is about to leave, so that it is recognised
wherever a crash left it. A dropped table stays in the catalog, marked; when another takes its name, it gets one that no
table ever has (``…!dropped-{Ts}``).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from pyiceberg.table import Table

from agent.errors import TableHeldError
from agent.rows.schema_change import SchemaChange
from agent.sinks.common.layouts import Wanted
from agent.sinks.common.span_records import RETIRED
from agent.sinks.iceberg import load
from agent.sinks.iceberg.alter import columns
from agent.sinks.iceberg.table import commit
from agent.sinks.iceberg.table.catalogs.lake import Lake, TablePlace
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.state import State, TableOwner
from reactor.ids import Ts
from reactor.records.tables.schema_change import SchemaChangeKind
from reactor.records.tables.table import TableRecord


class Alterer:
    """For tables of one ``owner``. ``wanted``: the layout of a new table."""

    def __init__(self, lake: Lake, owner: TableOwner, wanted: Callable[[TableRecord], Wanted]) -> None:
        self._lake = lake
        self._owner = owner
        self._wanted = wanted

    def alter(self, changes: Sequence[SchemaChange]) -> None:
        """See ``agent.ports.sink.Alters.alter``."""
        moves = [change for change in changes if change.is_move and not self._has_come_back(change)]
        left = {self._place(change.before).identifier for change in moves}
        for change in moves:
            self._refuse_taken(change, left)
        for change in moves:
            self._set_aside(change)
        for change in moves:
            self._put_down(change)
        for change in changes:
            self._alter(change)

    def _refuse_taken(self, change: SchemaChange, left: Collection[tuple[str, str]]) -> None:
        """Check before any table leaves its name: a table whose new one is taken stays, or returns to its old one.

        :raises TableHeldError: its new name is another's that does not leave it (``left``).
        """
        old, new, aside = self._place(change.before), self._place(change.after), self._aside(change)
        table = new.open()
        state = None if table is None else State.of(table)
        if new.identifier in left or table is None or state is None or _is_moved(table, change):
            return
        if state.dropped or state.left:
            return
        if aside.open() is not None and old.open() is None:
            aside.rename_to(old)
        raise TableHeldError(
            f"table {change.name} was renamed, but {new} is taken; it follows when the table there is renamed or "
            "dropped"
        )

    def _set_aside(self, change: SchemaChange) -> None:
        """Move a renamed table from its name, unless that is already done."""
        if self._has_left(change):
            return
        old = self._place(change.before)

        def mark(table: Table) -> None:
            state = State.of(table)
            if state.moved < change.ts:
                commit.commit(table, Step(replace(state, moved=int(change.ts))))

        commit.on_newest(old, mark)
        old.rename_to(self._aside(change))

    def _has_left(self, change: SchemaChange) -> bool:
        new = self._place(change.after).open()
        return (new is not None and _is_moved(new, change)) or self._aside(change).open() is not None

    def _has_come_back(self, change: SchemaChange) -> bool:
        """Return whether a table has its old name because it got it again later: the change is stale.

        :raises TableForeignError: another table has that name.
        """
        old = self._place(change.before)
        table = None if self._has_left(change) else old.open()
        if table is None:
            return False
        state = State.of(table)
        return columns.is_done(state, old, change) or state.moved > change.ts

    def _put_down(self, change: SchemaChange) -> None:
        aside, new = self._aside(change), self._place(change.after)
        if aside.open() is None:
            return
        there = new.open()
        if there is not None:
            _make_way(new, there, change.ts)
        aside.rename_to(new)

    def _alter(self, change: SchemaChange) -> None:
        match change.kind:
            case SchemaChangeKind.CREATE:
                self._create(change)
            case SchemaChangeKind.DROP:
                self._drop(change)
            case SchemaChangeKind.ALTER | SchemaChangeKind.RENAME:
                columns.alter(self._place(change.after), change, owner=self._owner)

    def _create(self, change: SchemaChange) -> None:
        """Create a table; an earlier one that was dropped, or has left, makes way."""
        assert change.after is not None
        assert change.schema is not None
        assert change.arrow is not None
        place = self._place(change.after)
        table = place.open()
        if table is not None:
            self._owner.refuse_foreign(table, place)
            state = State.of(table)
            # a table that was held may have been dropped later than its source gave its name to this one
            is_earlier = max(state.placed, state.moved) < change.ts and not state.tells_of(change.after.table_id)
            if 0 < (state.dropped or state.left) <= change.ts or (state.dropped and is_earlier):
                _make_way(place, table, Ts(state.dropped or state.left))
            elif state.dropped or _is_created(state, change):
                return  # already done; one statement may drop a table and create it
        wanted = self._wanted(change.after)
        load.load(place, self._owner, wanted, change.after, change.schema, change.arrow, [], ddl=int(change.ts))

    def _drop(self, change: SchemaChange) -> None:
        """Mark the table as dropped at its source. One that was held from the beginning never existed here, and a table
        of its name is a different one."""
        assert change.before is not None
        place, table_id = self._place(change.before), change.before.table_id

        def mark(table: Table) -> None:
            state = State.of(table)
            known = [ts for ts in state.records.values() if ts != RETIRED]
            # a later table of this name is past the change
            if state.tells_of(table_id) and not state.dropped and min(known, default=0) <= change.ts:
                commit.commit(table, Step(replace(state, ddl=int(change.ts), dropped=int(change.ts))))

        if place.open() is not None:
            commit.on_newest(place, mark)

    def _place(self, table: TableRecord | None) -> TablePlace:
        assert table is not None
        return self._lake.place(table)

    def _aside(self, change: SchemaChange) -> TablePlace:
        """Return the place of a table between its old name and its new one."""
        assert change.after is not None
        place = self._place(change.after)
        return place.renamed(f"!moved-{change.after.table_id}-{int(change.ts):x}")


def _is_created(state: State, change: SchemaChange) -> bool:
    assert change.after is not None
    return state.ddl >= change.ts and state.tells_of(change.after.table_id)


def _is_moved(table: Table, change: SchemaChange) -> bool:
    """Return whether the table is the one of ``change``, after its move began."""
    assert change.after is not None
    state = State.of(table)
    return state.moved >= change.ts and state.tells_of(change.after.table_id)


def _make_way(place: TablePlace, table: Table, ts: Ts) -> None:
    """Give a table that is written no more a name that no table ever has."""
    state = State.of(table)
    assert state.dropped or state.left, "others were refused before"
    short = place.name if len(place.name.encode()) < 220 else f"{place.name[:40]}-{table.metadata.table_uuid}"
    place.rename_to(place.renamed(f"{short}!dropped-{int(ts):x}"))
