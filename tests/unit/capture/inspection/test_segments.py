"""``weir log inspect`` of a segment."""

import json
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from agent.log import segment
from agent.log.storage import LogDirectory
from agent.rows.batches import TableBatch
from agent.rows.schema import LOG_BATCH, Column, TableSchema
from capture.cli.main import main
from capture.inspection.contents import inspect_segment
from reactor.ids import Ts

TABLE = TableSchema(
    table_id=77,
    schema_name="public",
    name="person",
    columns=(Column("id", 23, -1, "int4", is_key=True), Column("name", 25, -1, "text"), Column("note", 25, -1, "text")),
)


def image(*values: str | None) -> bytes:
    """A row in text form; ``...`` for a value that the server left out."""
    parts = [struct.pack("!h", len(values))]
    for value in values:
        if value is None or value == "...":
            parts.append(b"n" if value is None else b"u")
        else:
            parts.append(b"t" + struct.pack("!i", len(value.encode())) + value.encode())
    return b"".join(parts)


@pytest.fixture
def path(tmp_path: Path) -> str:
    relation = struct.pack("!I", TABLE.table_id)
    events = [
        b"I" + relation + b"N" + image("1", "Ada", None),
        b"U" + relation + b"N" + image("1", "Ada L.", "..."),
        b"D" + relation + b"K" + image("1", None, None),
        b"T" + struct.pack("!IB", 1, 0) + relation,
    ]
    columns = [pa.array([100, 100, 200, 300]), pa.array([1, 2, 3, 4]), pa.array(events, pa.large_binary())]
    batch = pa.record_batch(columns, schema=LOG_BATCH)
    name = segment.SegmentName(1, 1, Ts(100), Ts(300), Ts(300))
    directory = LogDirectory(str(tmp_path), changefeed="test/feed", source="s")
    return segment.write(directory, name, [TableBatch(TABLE, batch, 1_760_000_000.0)]).path


def test_batches_and_their_first_changes_are_shown(path: str) -> None:
    (batch,) = inspect_segment(path, limit=10)
    assert (batch.table, batch.changes, batch.first_ts, batch.last_ts) == ("public.person", 4, 100, 300)
    assert [row.operation for row in batch.rows] == ["insert", "update", "delete", "truncate"]
    assert batch.rows[0].after == {"id": "1", "name": "Ada", "note": None}
    assert batch.rows[1].after == {"id": "1", "name": "Ada L.", "note": "(unchanged)"}
    assert batch.rows[2].after is None
    assert batch.rows[2].before is not None
    assert batch.rows[2].before["id"] == "1"


def test_the_limit_holds_for_each_batch(path: str) -> None:
    assert [len(batch.rows) for batch in inspect_segment(path, limit=2)] == [2]
    assert next(inspect_segment(path, limit=0)).rows == ()


def test_the_command_prints_it(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "inspect", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["batches"][0]["rows"][1]["operation"] == "update"
    assert main(["log", "inspect", path]) == 0
    assert "public.person (4 changes" in capsys.readouterr().out


def test_what_is_no_segment_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.arrow").write_text("nonsense")
    for file in ("x.arrow", "none.arrow"):
        assert main(["log", "inspect", str(tmp_path / file)]) == 1
        error = capsys.readouterr().err
        assert file in error
        assert error.count("\n") == 1
        assert "fault in Weir" not in error
