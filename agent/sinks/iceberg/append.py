"""Append: writes the rows of a flush as files, and commits those of all tasks of a table in one step.

For changelogs, and for tables without a key.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from agent.errors import SinkError, SinkFencedError, TableHeldError
from agent.ports.sink import FlushResult, FlushTask
from agent.rows.changes import INSERT, TRUNCATE, Changes
from agent.rows.unify import after_truncate
from agent.sinks.common import changelog
from agent.sinks.iceberg.table import commit, compact, files, fit, manifests, positions
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.files import TRUNCATION, TableFile
from agent.sinks.iceberg.table.lake import TablePlace
from agent.sinks.iceberg.table.schema import FORMS
from agent.sinks.iceberg.table.state import State
from reactor.errors import Scope, WeirError
from reactor.ids import TableSpan

Work = tuple[FlushTask, FlushResult]


def write(place: TablePlace, task: FlushTask, changes: Iterable[Changes], *, is_changelog: bool) -> FlushResult:
    """Write one task's rows as files for ``commit_results``, some for each schema of the changes."""
    table = place.opened()
    if State.of(table).is_written(task):
        return FlushResult(task.span, task.from_ts, task.to_ts, committed=True)
    seen = _Seen()
    parts, found = seen.counted(changes), list[TableFile]()
    if not is_changelog:
        rest, is_truncate = after_truncate(list(parts))
        found += [TRUNCATION] if is_truncate else []
        _refuse_unless_inserts(rest)
        parts = iter(rest)
    label = f"changes-{task.from_ts:x}-{task.to_ts:x}-{task.part}"
    for _, group in groupby(parts, lambda part: part.after.schema):
        tables: Iterator[pa.Table] = (_rows(part, task, is_changelog=is_changelog) for part in group)
        first = next(tables)
        last = table.metadata.last_column_id
        schema = iceberg_schema.new_schema(first.schema, known=table.schema(), last_id=last)
        pieces = chain([first], tables)
        del first
        found += files.write_files(table.io, compact.data_directory(table), label, pieces, schema)
    return FlushResult(
        task.span,
        task.from_ts,
        task.to_ts,
        rows=seen.rows,
        bytes=sum(file.bytes for file in found),
        files=tuple(file.to_json() for file in found),
        commit_time=seen.commit_time,
    )


def _rows(part: Changes, task: FlushTask, *, is_changelog: bool) -> pa.Table:
    if is_changelog:
        return changelog.changelog_rows(part, task.span, key=task.table.key, forms=FORMS)
    return FORMS.table(pa.Table.from_batches([part.after]))


def commit_results(place: TablePlace, work: Sequence[Work]) -> list[FlushResult]:
    """Commit what the tasks of one flush wrote for one table: all spans in one step, each with all its parts or none.

    A span with a failed part, or one that another writer has advanced, gets an error and is left out.
    """
    errors = {task.span: _Refusal.of_result(result) for task, result in work if result.error}
    ready = [(task, result) for task, result in work if result.files and task.span not in errors]
    if ready:
        errors |= _commit_spans(place, ready)
    written = {task.span for task, _ in ready}
    return [_settled(result, errors.get(task.span), is_written=task.span in written) for task, result in work]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a span was not committed, as reported in its result."""

    text: str
    code: str
    retryable: bool
    scope: Scope

    @classmethod
    def of_error(cls, error: WeirError) -> "_Refusal":
        return cls(str(error), error.code, error.retryable, error.scope)

    @classmethod
    def of_result(cls, result: FlushResult) -> "_Refusal":
        return cls(result.error, result.error_code, result.retryable, result.scope)


def _commit_spans(place: TablePlace, work: Sequence[Work]) -> dict[TableSpan, _Refusal]:
    """Return the spans that could not be committed, with reasons; all others are committed."""
    spans = dict.fromkeys(task.span for task, _ in work)
    late: dict[TableSpan, _Refusal] = {}

    def attempt(table: Table) -> None:
        state, expected = State.of(table), list[Work]()
        for task, result in work:
            try:
                if not state.is_written(task):
                    expected.append((task, result))
            except SinkFencedError as error:
                late[task.span] = _Refusal.of_error(error)
        if expected:
            tasks = [task for task, _ in expected]
            found = [TableFile.from_json(text) for _, result in expected for text in result.files]
            append_files(table, found, state.written(tasks), name=_name(tasks[0]))

    try:
        commit.on_newest(place, attempt)
    except SinkError as error:
        return dict.fromkeys(spans, _Refusal.of_error(error)) | late
    return late


def append_files(table: Table, found: Sequence[TableFile], state: State, *, name: str) -> None:
    """Commit files on top of ``table``; those before the last truncating one are omitted, like the table's rows.

    :raises CommitFailedException: another commit was first.
    """
    cuts = [at for at, file in enumerate(found) if file.is_truncate]
    visible = [file for file in (found[cuts[-1] :] if cuts else found) if file.rows]
    columns = fit.widened(table, visible, name=name)
    schema = fit.adopted(table, columns, visible)
    directory = compact.data_directory(table)
    added = fit.fitted(table.io, directory, visible, schema)
    live = manifests.live(table)
    if cuts:
        removed = frozenset(item.path for item in (*live.data, *live.deletes))
        commit.commit(table, Step(state, added, removed=removed, schema=schema, before=live))
        return
    made = compact.compacted(table, schema, live, positions.deleted(table, live.deletes), {})
    if not made.removed:
        commit.commit(table, Step(state, added, schema=schema, before=live))
        return
    step = Step(state, made.files, made.deletes, made.removed, schema=schema, before=live)
    # what the executors wrote stays for the next attempt, and what was joined here does not
    commit.commit_or_remove(table, step, kept=added)


def _name(task: FlushTask) -> str:
    return f"{task.table.schema_name}.{task.table.name}"


def _settled(result: FlushResult, refusal: _Refusal | None, *, is_written: bool) -> FlushResult:
    if refusal is not None:
        return replace(
            result,
            committed=False,
            error=refusal.text,
            error_code=refusal.code,
            retryable=refusal.retryable,
            scope=refusal.scope,
        )
    return replace(result, committed=True) if is_written else result


@dataclass(slots=True)
class _Seen:
    """Statistics of the changes that passed through ``counted``."""

    rows: int = 0
    commit_time: float = 0.0

    def counted(self, changes: Iterable[Changes]) -> Iterator[Changes]:
        for part in changes:
            if len(part):
                self.rows += len(part)
                self.commit_time = max(self.commit_time, part.commit_time)
                yield part
            del part  # free it before the next ones are read


def _refuse_unless_inserts(parts: Sequence[Changes]) -> None:
    for part in parts:
        if not np.isin(part.op, (INSERT, TRUNCATE)).all():
            raise TableHeldError(
                f"{part.schema.qualified_name} has no key, and a row of it was updated or deleted; "
                "give it a primary key, or replicate it in changelog mode"
            )
