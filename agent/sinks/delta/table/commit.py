"""Delta commit: makes data files visible together with the record of their spans, in one step (see ``place`` for the
record).

A commit that conflicts with another is decided again from what the table then records: already written, another
writer's, or still to do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
import structlog
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field

from agent.errors import RESYNC, SinkConflictError, TableHeldError
from agent.ports.sink import FlushTask
from agent.sinks.common.commits import Stale, Work
from agent.sinks.common.forms import missing_fields
from agent.sinks.delta.table import change_feed, disk, history
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.commits import Action
from agent.sinks.delta.table.errors import is_of_storage, storage_error
from agent.sinks.delta.table.files import DataFile
from agent.sinks.delta.table.layout import Layout
from agent.sinks.delta.table.log import TableLog
from agent.sinks.delta.table.place import TablePlace

#: spans of one table on several captures: one wins each round, so a commit may lose several times
_ATTEMPTS = 24

N = TypeVar("N")
T = TypeVar("T")
_log = structlog.get_logger()


def with_retries(place: TablePlace, attempt: Callable[[DeltaTable], T]) -> T:
    """Run ``attempt`` on the newest version of the table, opened by delta-rs; see ``on_newest``."""

    def durable(table: DeltaTable) -> T:
        history.check(place, table)
        first = table.version() + 1
        done = attempt(table)
        disk.sync_commits(place, first)
        return done

    return on_newest(place, place.opened, durable)


def on_newest(place: TablePlace, newest: Callable[[], N], attempt: Callable[[N], T]) -> T:
    """Run ``attempt`` on the ``newest`` version of the table, and retry it after commit conflicts.

    :raises SinkConflictError: it lost against other commits every time.
    :raises SinkError: the table cannot be read or written.
    """
    for count in range(1, _ATTEMPTS + 1):
        table = newest()
        try:
            return attempt(table)
        except CommitFailedError as error:
            _log.info("another commit was first", table=str(place), attempt=count, reason=str(error).splitlines()[0])
        except BaseException as error:
            if not is_of_storage(error):
                raise
            raise storage_error(place, "write to", error) from error
    raise SinkConflictError(f"{_ATTEMPTS} commits to {place} lost against others; it is tried again")


def commit_work(place: TablePlace, work: Sequence[Work], stale: Stale) -> None:
    """``agent.sinks.common.commits.CommitWork`` for one table."""

    def attempt(table: DeltaTable | TableLog) -> None:
        expected = stale.expected(work, lambda task: delta_table.is_written(table, task))
        if expected:
            tasks = [task for task, _ in expected]
            files = [DataFile.from_json(text) for _, result in expected for text in result.files]
            if isinstance(table, TableLog):
                append_to(table, files, tasks)
            else:
                add_columns(place, table, files, name=_name(tasks[0]))
                commit_to(place, table, files, delta_table.new_records(tasks))

    with delta_log.borrowed(place) as log:
        if log is not None and _is_append(log, work):
            on_newest(place, log.refreshed, attempt)
        else:
            with_retries(place, attempt)


def _is_append(log: TableLog, work: Sequence[Work]) -> bool:
    """:raises TableHeldError: a column's type differs from the table's."""
    files = [DataFile.from_json(text) for _, result in work for text in result.files]
    return all(not file.is_truncate and log.has_columns(file.schema, name=_name(work[0][0])) for file in files)


def append_to(
    log: TableLog, files: Sequence[DataFile], tasks: Sequence[FlushTask], removed: Sequence[Action] = ()
) -> None:
    """Commit on top of ``log``. ``removed``: actions for files that are removed and added again with fewer rows.

    :raises CommitFailedError: another commit was first.
    """
    if not all(log.has_columns(file.schema, name=_name(tasks[0])) for file in files):
        raise CommitFailedError("the table has other columns now")
    _refuse_laid_otherwise(files, log.layout)
    records = delta_table.new_records(tasks)
    log.commit("MERGE" if removed else "WRITE", [*removed, *(file.add() for file in files if file.rows)], records)


def _name(task: FlushTask) -> str:
    return f"{task.table.schema_name}.{task.table.name}"


def commit_to(
    place: TablePlace,
    table: DeltaTable,
    files: Sequence[DataFile],
    records: Mapping[str, int],
    *,
    key: Sequence[str] = (),
) -> None:
    """Commit on top of ``table``; files before the last truncating one are omitted, like the table's earlier rows.
    ``key``: see ``overwrite``."""
    cuts = [at for at, file in enumerate(files) if file.is_truncate]
    visible = files[cuts[-1] :] if cuts else files
    layout = delta_table.layout(table)
    _refuse_laid_otherwise(visible, layout)
    columns = delta_table.plain_schema(table.schema())
    if cuts and (layout.names.is_mapped or change_feed.is_on(table.metadata().configuration, columns.names)):
        overwrite(place, table, columns, visible, layout, records, key=key)
        return
    if layout.names.is_mapped:
        own_log(place, table).commit("WRITE", [file.add() for file in visible if file.rows], records)
        return
    table.create_write_transaction(
        [file.add_action() for file in visible if file.rows],
        "overwrite" if cuts else "append",
        table.schema(),
        commit_properties=delta_table.commit_properties(table, records),
    )


def is_own(place: TablePlace) -> bool:
    """Return whether we make all kinds of commits in a table's log: it has no features of others."""
    log = TableLog(place)
    log.refresh()
    return log.is_plain


def own_log(place: TablePlace, table: DeltaTable) -> TableLog:
    """Return the log of ``table``, for commits on top of it that delta-rs does not make.

    :raises CommitFailedError: another commit was first.
    :raises TableHeldError: the table has features of others.
    """
    log = TableLog(place)
    log.refresh()
    if not log.is_plain:
        raise TableHeldError(
            f"{place} has features of others, with which its partitions, columns and their names cannot change; move "
            f"it away, and {RESYNC}"
        )
    if log.version != table.version():
        raise CommitFailedError(f"version {table.version() + 1} exists")
    return log


def _refuse_laid_otherwise(files: Sequence[DataFile], layout: Layout) -> None:
    """:raises SinkConflictError: a file was written for other partitions, or names of columns, than the table has."""
    if any(file.rows and not file.fits(layout) for file in files):
        raise SinkConflictError(
            "the table was given other partitions or columns while rows were written; they are written again"
        )


def overwrite(
    place: TablePlace,
    table: DeltaTable,
    columns: pa.Schema,
    files: Sequence[DataFile],
    layout: Layout,
    records: Mapping[str, int],
    *,
    key: Sequence[str] = (),
    changed: Callable[[], Iterable[pa.Table]] | None = None,
) -> None:
    """Commit on top of ``table`` that it has other columns, layout and rows. delta-rs changes no layout, knows no
    change feed, and columns are the same to it in any order. ``key``: of rows that a feed compares, if they are not all
    others; ``changed``: what it has in place of their comparison.

    :raises CommitFailedError: another commit was first.
    """
    stored, before = delta_table.arrow_schema(table).names, delta_table.layout(table)
    is_like = layout.partitions == before.partitions and not before.names.is_mapped
    is_in_order = columns.names == stored or {*columns.names} != {*stored}
    has_feed = change_feed.is_on(table.metadata().configuration, stored)
    if is_like and ((is_in_order and not has_feed) or not is_own(place)):
        table.create_write_transaction(
            [file.add_action() for file in files if file.rows],
            "overwrite",
            Schema.from_arrow(columns),
            commit_properties=delta_table.commit_properties(table, records),
        )
        return
    log, feed = own_log(place, table), None
    if has_feed:
        feed = change_feed.write(
            place, _differences(place, table, columns, files, key) if changed is None else changed(), layout
        )
    log.overwrite(columns, layout, files, records, feed)


def _differences(
    place: TablePlace, table: DeltaTable, columns: pa.Schema, files: Sequence[DataFile], key: Sequence[str]
) -> Iterator[pa.Table]:
    before = delta_table.plain_schema(table.schema())

    def stored() -> Iterator[pa.Table]:
        for batch in pa.RecordBatchReader.from_stream(table.scan(columns=before.names)):
            yield change_feed.as_they_were(batch, columns)

    def written() -> Iterator[pa.Table]:
        for file in files:
            if file.rows:
                yield from delta_files.read_file(place, file.path, columns, layout=file.layout)

    every = pa.schema([*columns, *(item for item in before if item.name not in columns.names)])
    count = table.count() + sum(file.rows for file in files)
    return change_feed.differences(stored, written, key, every, rows=count)


def add_columns(place: TablePlace, table: DeltaTable, files: Sequence[DataFile], *, name: str) -> None:
    """Add the columns that only the files have: a separate commit, harmless if nothing follows it.

    :raises TableHeldError: a column's type differs from the table's.
    """
    for text in dict.fromkeys(file.schema for file in files if file.schema):
        wanted = Schema.from_json(text)
        add_fields(place, table, wanted, name=name)


def add_fields(place: TablePlace, table: DeltaTable, wanted: Schema, *, name: str) -> None:
    """:raises TableHeldError: a column's type differs from the table's, or its name only in case."""
    stored = delta_table.arrow_schema(table)
    arrow = delta_table.plain_schema(wanted)
    missing = [item.name for item in missing_fields(stored, arrow, table=name)]
    if missing:
        delta_schema.refuse_alike([*stored.names, *missing], table=name)
        if change_feed.is_on(table.metadata().configuration, stored.names):
            change_feed.refuse_reserved(missing, table=name)
        _add_columns(place, table, pa.schema([arrow.field(column) for column in missing]))
        table.update_incremental()


def _add_columns(place: TablePlace, table: DeltaTable, columns: pa.Schema) -> None:
    """Add columns by delta-rs, which refuses to where columns have names in files."""
    layout = delta_table.layout(table)
    if not layout.names.is_mapped:
        fields: list[Field] = list(Schema.from_arrow(columns).fields)
        table.alter.add_columns(fields, commit_properties=delta_table.commit_properties(table, {}))
        return
    stored = delta_table.plain_schema(table.schema())
    origins = [*((name, name) for name in stored.names), *((name, None) for name in columns.names)]
    after = layout.after(origins, layout.partitions)
    own_log(place, table).define("ADD COLUMNS", pa.schema([*stored, *columns]), after, {})
