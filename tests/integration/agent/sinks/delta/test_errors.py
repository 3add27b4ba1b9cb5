"""Errors of the storage by what they concern and whether they may pass: one table or the sink, now or always."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import DeltaError

from agent.errors import SinkConfigError, SinkError, SinkPassingError, TableForeignError, TableHeldError
from agent.ports.sink import TableCopy
from agent.sinks import open_table
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.errors import MARK, storage_error
from agent.sinks.delta.table.place import TablePlace
from reactor.errors import Scope
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sinks.delta.test_alter import altered, moves
from tests.integration.agent.sinks.delta.test_sink import KEYED, SPAN, both_modes, flush, loaded, rows, sink_at, task
from tests.unit.agent.changes_build import ARROW, changes, insert, table_schema, update

PART = changes([update(1, "b", "y"), insert(2, "c", "z")])
PASSING = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT]


def refused(sink: DeltaSink) -> SinkError:
    """What a flush says; the executor's and the committing capture's part are one here."""
    order = task(sink, 100, 200)
    try:
        [result] = sink.commit([order], [sink.write(order, [PART])])
    except SinkError as error:
        return error
    said = SinkError(result.error)
    said.scope, said.retryable = result.scope, result.retryable
    assert result.error, "it was written"
    return said


@pytest.mark.sample(0.2)
@both_modes
@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize("call", ["link", "replace", "fsync"])
def test_what_may_pass_is_of_the_sink_and_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: SinkMode, number: int, call: str
) -> None:
    sink = loaded(tmp_path, mode, rows=[(1, "a", "x")])

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        error = refused(sink)
    assert (error.scope, error.retryable) == (Scope.CHANGEFEED, True)
    assert "it is tried again" in str(error)
    assert sink.committed_ts(KEYED, SPAN) == 100
    assert flush(sink, task(sink, 100, 200), PART).committed


def _damage(table: Path, what: str) -> None:
    [data] = table.glob("*.parquet")
    last = table / "_delta_log" / f"{0:020}.json"
    match what:
        case "a data file is gone":
            data.unlink()
        case "a data file is cut":
            os.truncate(data, data.stat().st_size // 2)
        case "a data file is empty":
            data.write_bytes(b"")
        case "the log is cut":
            os.truncate(last, 100)
        case "the log is empty":
            last.write_bytes(b"")
        case "the log is gone":
            last.unlink()
        case "the log is no text":
            last.write_bytes(b"\xff\xfe\x00" * 100)
        case "the table is gone":
            shutil.rmtree(table)


@pytest.mark.parametrize(
    "what",
    [
        *("a data file is gone", "a data file is cut", "a data file is empty"),
        *("the log is cut", "the log is empty", "the log is gone", "the log is no text", "the table is gone"),
    ],
)
@pytest.mark.parametrize("is_plain", [True, False], ids=["ours", "delta-rs"])
def test_what_is_damaged_is_of_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, is_plain: bool
) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    _damage(tmp_path / "public" / "t", what)
    if not is_plain:
        monkeypatch.setattr("agent.sinks.delta.table.log._taken", lambda place: None)
    error = refused(sink)
    assert (error.scope, error.retryable) == (Scope.TABLE, False), error
    assert "resume the changefeed" in str(error)
    assert len(str(error).splitlines()) == 1


@both_modes
@pytest.mark.parametrize("leaves", ["nothing", "an empty directory", "another directory"])
def test_a_mount_that_went_away_is_no_removed_table(tmp_path: Path, mode: SinkMode, leaves: str) -> None:
    lake, aside = tmp_path / "lake", tmp_path / "aside"
    sink = loaded(lake, mode, rows=[(1, "a", "x")])
    lake.rename(aside)
    if leaves != "nothing":
        lake.mkdir()
    if leaves == "another directory":
        (lake / "lost+found").mkdir()
    for ask in (lambda: sink.committed_ts(KEYED, SPAN), lambda: sink.visible(KEYED, [SPAN]), lambda: refused(sink)):
        error = _said(ask)
        assert isinstance(error, SinkPassingError)
        assert (error.scope, error.retryable) == (Scope.CHANGEFEED, True)
        assert f"the sink directory {lake} is not the one that was written" in str(error)
    assert (os.listdir(lake) if lake.exists() else []) == (["lost+found"] if leaves == "another directory" else [])
    shutil.rmtree(lake, ignore_errors=True)
    aside.rename(lake)
    assert flush(sink, task(sink, 100, 200), PART).committed


def _said(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except SinkError as error:
        return error


def test_a_new_table_is_not_made_where_the_mount_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tmp_path / "lake"
    sink, other = loaded(lake, rows=[(1, "a", "x")]), KEYED.with_(name="u", table_id=2)
    lake.rename(tmp_path / "aside")
    with monkeypatch.context() as patch:
        patch.setattr(delta_table, "_device", lambda path: -1)
        with pytest.raises(SinkPassingError, match="is not the one that was written"):
            sink.load(other, table_schema(), ARROW, [])
    sink.load(other, table_schema(), ARROW, [])  # removed by hand, on the same device: a new sink


def test_one_table_that_was_removed_is_of_itself(tmp_path: Path) -> None:
    sink, other = loaded(tmp_path, rows=[(1, "a", "x")]), KEYED.with_(name="u", table_id=2)
    sink.load(other, table_schema(), ARROW, [])
    shutil.rmtree(tmp_path / "public" / "t")
    with pytest.raises(TableForeignError, match=r"there is no Delta table at .*/public/t: it was removed"):
        sink.write(task(sink, 100, 200), [PART])


def test_a_directory_of_before_gets_its_mark_when_it_is_read(tmp_path: Path) -> None:
    loaded(tmp_path, rows=[(1, "a", "x")])
    (tmp_path / MARK).unlink()
    assert sink_at(tmp_path).committed_ts(KEYED, SPAN) == 100
    assert (tmp_path / MARK).exists()


def test_staged_rows_that_are_gone_are_not_loaded(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    staged = sink.stage(KEYED, "0", iter([changes([insert(1, "a", "x")]).after]), KEYED.start_ts)
    os.unlink(staged[0].path)
    with pytest.raises(TableHeldError, match=r"rows that were staged in .* were removed"):
        sink.load(KEYED, table_schema(), ARROW, staged)
    assert not (tmp_path / "public" / "t" / "_delta_log").exists()


BUCKET = TablePlace("s3://lake/public/t", is_local=False, root="s3://lake")


@pytest.mark.parametrize(
    "text",
    [
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 8.5s, after 10 retries",
        "Kernel error -> Operation not supported\n  ↳ an error occurred while loading credentials\n  ↳ no IMDS",
    ],
)
def test_an_executor_without_credentials_is_told_apart(text: str) -> None:
    """The client asks for the machine's role last, so its error names an address that nobody has configured."""
    error = storage_error(BUCKET, "write to", DeltaError(text))
    assert type(error) is SinkPassingError
    assert "no credentials" in str(error)
    assert "spark.executorEnv" in str(error)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Generic S3 error: Error performing PUT: error sending request for url", SinkPassingError),
        ("Generic S3 error: response error 503 Slow Down, after 10 retries", SinkPassingError),
        ("Generic S3 error: dns error: failed to lookup address", SinkPassingError),
        ("Generic error: something nobody has seen before", SinkPassingError),
        ("failed to write: No space left on device (os error 28)", SinkPassingError),
        ("Generic S3 error: <Code>NoSuchBucket</Code>", SinkConfigError),
        ("Generic S3 error: 403 Forbidden: InvalidAccessKeyId", SinkConfigError),
        ("Object at location public/t/part-0.parquet not found: 404 NoSuchKey", TableHeldError),
        ("Invalid JSON in log record, version=3", TableHeldError),
        ("Kernel error: corrupt checkpoint", TableHeldError),
    ],
)
def test_an_object_store_says_it_in_words(text: str, kind: type[SinkError]) -> None:
    error = storage_error(BUCKET, "write to", DeltaError(text))
    assert type(error) is kind
    assert (error.scope is Scope.TABLE) == (kind is TableHeldError)


@pytest.mark.parametrize("path", ["file://{}", "../../elsewhere.parquet"])
def test_rows_of_a_file_elsewhere_that_another_writer_has_named_are_not_read(tmp_path: Path, path: str) -> None:
    """delta-rs reads any file: it is not asked. A copy replaces the table."""
    elsewhere = tmp_path / "elsewhere.parquet"
    pq.write_table(pa.table({"id": [99], "name": ["theirs"], "big": ["b"]}), elsewhere)
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    fields = {"path": path.format(elsewhere), "size": 100, "partitionValues": {}, "modificationTime": 1}
    theirs = [{"commitInfo": {"operation": "OPTIMIZE"}}, {"add": fields | {"dataChange": False}}]
    log = Path(sink.place(KEYED).location, "_delta_log", f"{1:020}.json")
    log.write_text("\n".join(map(json.dumps, theirs)))
    renamed = altered(moves(pa.schema([("id", pa.int64()), ("x", pa.string()), ("big", pa.string())]), x="name"))
    for read in (
        lambda: flush(sink, task(sink, 100, 200), PART),
        lambda: sink.alter([renamed]),
        lambda: list(sink.read_rows(KEYED, table_schema(), ARROW)),
        lambda: open_table(f"delta+file://{tmp_path}", KEYED.path).scan().read_all(),
    ):
        with pytest.raises(TableHeldError, match="not in the table's directory; undo what another writer has added"):
            read()
    staged = sink.stage(KEYED, "1", iter([changes([insert(2, "c", "y")]).after]), Ts(300))
    sink.replace(TableCopy(KEYED.with_(start_ts=Ts(300)), (SPAN,), table_schema(), ARROW, tuple(staged)))
    assert rows(sink) == [(2, "c", "y")]
    assert elsewhere.exists()
