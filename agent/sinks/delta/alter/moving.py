"""Table moves: a table leaves its location for another one in the sink.

A directory is renamed. An object store has no directories: the store copies each object to its new name (the server
does, no row passes through here), then the old ones are removed. A mark in the new location, written first and removed
last, names the old one: whoever finds it finishes the move (``finish``), so that a move is done once wherever it broke
off. The log's commits are copied in their order, after the files that they name, and no part of them that is left in
the old location is an earlier version: a writer that opened that would write again what the new location has.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from agent.errors import TableHeldError
from agent.object_store import ObjectStore
from agent.rows.schema_change import SchemaChange
from agent.sinks.delta.alter import dropping
from agent.sinks.delta.table import disk, names
from agent.sinks.delta.table.commits import LOG
from agent.sinks.delta.table.errors import storage_errors
from agent.sinks.delta.table.place import TablePlace

#: in a location that receives a table: the path of the one that it leaves, below the sink's
_MARK: Final = ".weir-moving"
_COPIES_AT_ONCE: Final = 16


def exists(place: TablePlace) -> bool:
    """Return whether something is stored at the location.

    :raises SinkError: the storage fails.
    """
    if place.is_local:
        return os.path.isdir(place.location)
    with storage_errors(place, "list"):
        return place.store.holds_any()


def is_free(place: TablePlace) -> bool:
    """Return whether the location is empty, or has only a table that was dropped, or has left."""
    if not exists(place):
        return True
    table = place.open()
    return table is not None and dropping.gone_ts(table) is not None


def refuse_taken(place: TablePlace, change: SchemaChange) -> None:
    """:raises TableHeldError: the location has another table."""
    if not is_free(place):
        raise TableHeldError(
            f"table {change.name} was renamed, but {place} is taken; it follows when the table there is renamed or "
            "dropped, or when what lies there is moved away"
        )


def move(old: TablePlace, new: TablePlace, change: SchemaChange) -> None:
    """Move a table to its new location; a table there that is written no more is moved away.

    :raises SinkError: the location is taken, or the storage fails.
    """
    refuse_taken(new, change)
    if exists(new):
        _move(new, away(new, change))
    _move(old, new)


def away(place: TablePlace, change: SchemaChange) -> TablePlace:
    """Return where a table goes that is written no more, and whose location ``change`` needs."""
    above, name = place.location.rsplit("/", 1)
    return place.at(f"{above}/{names.dropped(name, change.ts)}")


def finish(places: Sequence[TablePlace]) -> None:
    """Finish the moves to these locations that have begun.

    :raises SinkError: the storage fails.
    """
    for place in places:
        if place.is_local:
            continue
        with storage_errors(place, "move the table to"):
            try:
                origin = place.store.read(_MARK).decode()
            except FileNotFoundError:
                continue
        _carry_over(place.at(f"{place.root}/{origin}"), place)


def _move(old: TablePlace, new: TablePlace) -> None:
    if new.is_local:
        Path(new.location).parent.mkdir(parents=True, exist_ok=True)
        os.rename(old.location, new.location)
        disk.sync_names(new)
        disk.sync(os.path.dirname(old.location))
        return
    with storage_errors(new, "move the table to"):
        new.store.write(_MARK, _below_root(old).encode())
    _carry_over(old, new)


def _carry_over(old: TablePlace, new: TablePlace) -> None:
    """Copy what is not there yet, and remove the old objects. Those that were removed before had been copied."""
    store = ObjectStore(new.root, new.options)
    origin, target = _below_root(old), _below_root(new)
    with storage_errors(new, "move the table to"), ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
        there = set(new.store.all_names())
        found = old.store.all_names()
        missing = [name for name in found if name not in there]
        for group in _ordered(missing):
            for copied in [pool.submit(store.copy, f"{origin}/{name}", f"{target}/{name}") for name in group]:
                copied.result()
        for group in _removals(found):
            for removed in [pool.submit(old.store.discard, name) for name in group]:
                removed.result()
        new.store.remove(_MARK)


def _ordered(found: Sequence[str]) -> list[list[str]]:
    """Return groups that are copied one after the other: data, checkpoints, then each commit."""
    data, checkpoints, commits = _parts(found)
    return [data, checkpoints, *([name] for name in commits)]


def _removals(found: Sequence[str]) -> list[list[str]]:
    """Return groups that are removed one after the other: checkpoints, the oldest commit, by which the log cannot be
    read any more, and the rest."""
    data, checkpoints, commits = _parts(found)
    return [checkpoints, commits[:1], [*commits[1:], *data]]


def _parts(found: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return a table's data files, the checkpoints of its log, and its commits in order."""
    of_log = sorted(name for name in found if name.startswith(f"{LOG}/"))
    commits = [name for name in of_log if name.endswith(".json")]
    checkpoints = [name for name in of_log if not name.endswith(".json")]
    return [name for name in found if not name.startswith(f"{LOG}/")], checkpoints, commits


def _below_root(place: TablePlace) -> str:
    assert place.location.startswith(f"{place.root}/"), f"{place} is not in its sink"
    return place.location.removeprefix(f"{place.root}/")
