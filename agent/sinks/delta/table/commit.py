"""Delta commit: makes data files visible together with the record of their spans, in one step (see ``place`` for the
record).

A commit that conflicts with another is decided again from what the table then records: already written, another
writer's, or still to do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field

from agent.errors import SinkConflictError, SinkError, SinkFencedError
from agent.ports.sink import FlushResult, FlushTask
from agent.sinks.delta.table import disk, history, schema
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.commits import Action
from agent.sinks.delta.table.errors import is_of_storage, storage_error
from agent.sinks.delta.table.files import DataFile
from agent.sinks.delta.table.log import TableLog
from agent.sinks.delta.table.place import TablePlace
from reactor.errors import Scope, WeirError
from reactor.ids import TableSpan

#: spans of one table on several captures: one wins each round, so a commit may lose several times
_ATTEMPTS = 24

N = TypeVar("N")
T = TypeVar("T")
Work = tuple[FlushTask, FlushResult]
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a span was not committed, as reported in its result."""

    text: str
    code: str
    retryable: bool
    scope: Scope

    @classmethod
    def of_error(cls, error: WeirError) -> "Refusal":
        return cls(str(error), error.code, error.retryable, error.scope)

    @classmethod
    def of_result(cls, result: FlushResult) -> "Refusal":
        return cls(result.error, result.error_code, result.retryable, result.scope)


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


def commit_results(place: TablePlace, work: Sequence[Work]) -> list[FlushResult]:
    """Commit what the tasks of one flush wrote for one table: all spans in one step, each with all its parts or none.

    A span with a failed part, or one that another writer has advanced, gets an error and is left out.
    """
    errors = {task.span: Refusal.of_result(result) for task, result in work if result.error}
    ready = [(task, result) for task, result in work if result.files and task.span not in errors]
    if ready:
        errors |= _commit_spans(place, ready)
    written = {task.span for task, _ in ready}
    return [_settled(result, errors.get(task.span), is_written=task.span in written) for task, result in work]


def _commit_spans(place: TablePlace, work: Sequence[Work]) -> dict[TableSpan, Refusal]:
    """Return the spans that could not be committed, with reasons; all others are committed."""
    spans = dict.fromkeys(task.span for task, _ in work)
    late: dict[TableSpan, Refusal] = {}

    def attempt(table: DeltaTable | TableLog) -> None:
        expected = []
        for task, result in work:
            try:
                if not delta_table.is_written(table, task):
                    expected.append((task, result))
            except SinkFencedError as error:
                late[task.span] = Refusal.of_error(error)
        if expected:
            tasks = [task for task, _ in expected]
            files = [DataFile.from_json(text) for _, result in expected for text in result.files]
            if isinstance(table, TableLog):
                append_to(table, files, tasks)
            else:
                add_columns(table, files, name=_name(tasks[0]))
                commit_to(table, files, delta_table.commit_properties(table, delta_table.new_records(tasks)))

    try:
        with delta_log.borrowed(place) as log:
            if log is not None and _is_append(log, work):
                on_newest(place, log.refreshed, attempt)
            else:
                with_retries(place, attempt)
    except SinkError as error:
        return dict.fromkeys(spans, Refusal.of_error(error)) | late
    return late


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
    records = delta_table.new_records(tasks)
    log.commit("MERGE" if removed else "WRITE", [*removed, *(file.add() for file in files if file.rows)], records)


def _name(task: FlushTask) -> str:
    return f"{task.table.schema_name}.{task.table.name}"


def _settled(result: FlushResult, refusal: Refusal | None, *, is_written: bool) -> FlushResult:
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


def commit_to(table: DeltaTable, files: Sequence[DataFile], properties: CommitProperties) -> None:
    """Commit on top of ``table``; files before the last truncating one are omitted, like the table's earlier rows."""
    cuts = [at for at, file in enumerate(files) if file.is_truncate]
    visible = files[cuts[-1] :] if cuts else files
    table.create_write_transaction(
        [file.add_action() for file in visible if file.rows],
        "overwrite" if cuts else "append",
        table.schema(),
        commit_properties=properties,
    )


def add_columns(table: DeltaTable, files: Sequence[DataFile], *, name: str) -> None:
    """Add the columns that only the files have: a separate commit, harmless if nothing follows it.

    :raises TableHeldError: a column's type differs from the table's.
    """
    for text in dict.fromkeys(file.schema for file in files if file.schema):
        wanted = Schema.from_json(text)
        add_fields(table, wanted, name=name)


def add_fields(table: DeltaTable, wanted: Schema, *, name: str) -> None:
    """:raises TableHeldError: a column's type differs from the table's."""
    stored = delta_table.arrow_schema(table)
    arrow = delta_table.to_arrow(wanted)
    missing = {item.name for item in schema.missing_fields(stored, arrow, table=name)}
    fields: list[Field] = [field for field in wanted.fields if field.name in missing]
    if fields:
        table.alter.add_columns(fields, commit_properties=delta_table.commit_properties(table, {}))
        table.update_incremental()
