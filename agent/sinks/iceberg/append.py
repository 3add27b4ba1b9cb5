"""Append: writes the rows of a flush as files, and commits those of all tasks of a table in one step.

For changelogs, and for tables without a key.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

import pyarrow as pa
from pyiceberg.table import Table

from agent.ports.sink import FlushResult, FlushTask
from agent.rows.changes import Changes
from agent.rows.unify import after_truncate
from agent.sinks.common import changelog
from agent.sinks.common.commits import Stale, Work
from agent.sinks.common.flush_rows import RowCounts, refuse_unless_inserts
from agent.sinks.iceberg.table import commit, compact, files, fit
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.files import TRUNCATION, TableFile
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.schema import FORMS
from agent.sinks.iceberg.table.state import State, TableOwner


def write(place: TablePlace, task: FlushTask, changes: Iterable[Changes], owner: TableOwner) -> FlushResult:
    """Write one task's rows as files for ``commit_results``, some for each schema of the changes."""
    table = place.opened()
    if State.of(table).is_written(task):
        return task.result(committed=True)
    counts = RowCounts()
    parts, found = counts.counted(changes), list[TableFile]()
    if not owner.is_changelog:
        rest, is_truncate = after_truncate(list(parts))
        found += [TRUNCATION] if is_truncate else []
        if is_truncate:
            owner.marks.refuse_truncate(_name(task))
        refuse_unless_inserts(rest)
        parts = iter(rest)
    label = f"changes-{task.from_ts:x}-{task.to_ts:x}-{task.part}"
    for _, group in groupby(parts, lambda part: part.after.schema):
        tables: Iterator[pa.Table] = (_rows(part, task, owner) for part in group)
        first = next(tables)
        last = table.metadata.last_column_id
        schema = iceberg_schema.new_schema(first.schema, known=table.schema(), last_id=last)
        pieces = chain([first], tables)
        del first
        directory, layout = compact.data_directory(table), Layout.of(table)
        found += files.write_files(table.io, directory, label, pieces, schema, layout=layout)
    return task.result(
        rows=counts.rows,
        bytes=sum(file.bytes for file in found),
        files=tuple(file.to_json() for file in found),
        commit_time=counts.commit_time,
    )


def _rows(part: Changes, task: FlushTask, owner: TableOwner) -> pa.Table:
    if owner.is_changelog:
        return changelog.changelog_rows(part, task.span, key=task.table.key, forms=FORMS)
    return owner.marks.appended_rows(part, FORMS)


def commit_work(place: TablePlace, work: Sequence[Work], stale: Stale) -> None:
    """``agent.sinks.common.commits.CommitWork`` for one table."""

    def attempt(table: Table) -> None:
        state = State.of(table)
        expected = stale.expected(work, state.is_written)
        if expected:
            tasks = [task for task, _ in expected]
            found = [TableFile.from_json(text) for _, result in expected for text in result.files]
            append_files(table, found, state.written(tasks), name=_name(tasks[0]))

    commit.on_newest(place, attempt)


def append_files(table: Table, found: Sequence[TableFile], state: State, *, name: str) -> None:
    """Commit files on top of ``table``; those before the last truncating one are omitted, like the table's rows.

    :raises CommitFailedException: another commit was first.
    """
    cuts = [at for at, file in enumerate(found) if file.is_truncate]
    visible = [file for file in (found[cuts[-1] :] if cuts else found) if file.rows]
    columns = fit.widened(table, visible, name=name)
    schema = fit.adopted(table, columns, visible)
    directory = compact.data_directory(table)
    added = fit.fitted(table.io, directory, visible, schema, Layout.of(table))
    live = manifests.live(table)
    if cuts:
        removed = live.keys
        commit.commit(table, Step(state, added, removed=removed, schema=schema, before=live))
        return
    # compaction comes in a commit of its own: a reader of changes sees nothing but appends
    commit.commit(table, Step(state, added, schema=schema, before=live))


def _name(task: FlushTask) -> str:
    return f"{task.table.schema_name}.{task.table.name}"
