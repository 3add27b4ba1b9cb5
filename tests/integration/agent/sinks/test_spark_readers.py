"""Spark with Delta's and Iceberg's own jars, as others run it: it reads what Weir says, of every kind of table; it
follows changelogs as streams; and tables that it has rewritten flow again."""

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from agent.ports.sink import Maintains
from agent.sinks import open_table
from reactor.records.changefeed import SinkMode
from tests import reader_spark
from tests.contracts.change_feed import assert_plays_back
from tests.contracts.sink_bed import COMBINATIONS, IMPLEMENTATIONS, TABLE, Bed
from tests.integration.agent.sinks.grown import RENAMED, grown
from tests.reader_spark import Job
from tests.unit.agent.changes_build import delete, insert, update

pytestmark = [pytest.mark.matrix, pytest.mark.skipif(bool(reader_spark.why_not()), reason=reader_spark.why_not())]

_ALL = IMPLEMENTATIONS | COMBINATIONS
_KINDS = [name for name in _ALL if name.startswith(("delta", "iceberg"))]


def _job(bed: Bed, act: str, sql: str = "") -> Job:
    form = "delta" if bed.uri.startswith("delta") else "iceberg"
    lake = re.sub(r"\?.*|^.*?://", "", bed.uri)
    table = TABLE.path if form == "delta" else TABLE.path.replace("/", ".")
    return Job(act, form, lake, table, f"{lake}-{act}", sql)


def _rows(bed: Bed, act: str) -> list[tuple[Any, ...]]:
    return _sorted(pq.read_table(_job(bed, act).out))


def _ours(bed: Bed) -> list[tuple[Any, ...]]:
    return _sorted(open_table(bed.uri, TABLE.path).scan().read_all())


def _sorted(rows: pa.Table) -> list[tuple[Any, ...]]:
    names = sorted(rows.schema.names)
    return sorted((tuple(row[name] for name in names) for row in rows.to_pylist()), key=repr)


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bed]:
    made = {name: Bed.of(_ALL[name], tmp_path_factory.mktemp(name)) for name in _KINDS}
    for bed in made.values():
        grown(bed)
    return made


@pytest.fixture(scope="module")
def answers(beds: dict[str, Bed]) -> Callable[[Bed, str], list[tuple[Any, ...]]]:
    """Return what Spark reads of a table, by kind and act: one session does all."""
    jobs = [_job(bed, "read") for bed in beds.values()]
    jobs += [_job(bed, "stream") for bed in beds.values() if bed.mode is SinkMode.CHANGELOG]
    errors = reader_spark.run(jobs)

    def answer(bed: Bed, act: str) -> list[tuple[Any, ...]]:
        out = _job(bed, act).out
        assert out not in errors, errors[out]
        return _rows(bed, act)

    return answer


@pytest.mark.parametrize("name", _KINDS)
def test_it_reads_what_weir_reads(
    name: str, beds: dict[str, Bed], answers: Callable[[Bed, str], list[tuple[Any, ...]]]
) -> None:
    assert answers(beds[name], "read") == _ours(beds[name])


@pytest.mark.parametrize("name", [name for name in _KINDS if "changelog" in name])
def test_it_follows_a_changelog_as_a_stream(
    name: str, beds: dict[str, Bed], answers: Callable[[Bed, str], list[tuple[Any, ...]]]
) -> None:
    assert answers(beds[name], "stream") == _ours(beds[name])


def test_it_reads_the_changes_of_tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    """From their renamed column on: it refuses versions of before."""
    jobs: dict[str, Job] = {}
    expected = {}
    for name in _KINDS:
        if "feed" not in name:
            continue
        bed = Bed.of(_ALL[name], tmp_path_factory.mktemp(name))
        grown(bed)
        location = f"{_job(bed, 'query').lake}/{TABLE.path}"
        schemas = [DeltaTable(location, version=at).schema() for at in range(DeltaTable(location).version() + 1)]
        renamed = max(at for at in range(1, len(schemas)) if schemas[at - 1] != schemas[at])
        jobs[name] = _job(bed, "query", f"SELECT * FROM table_changes_by_path('{location}', {renamed})")
        expected[name] = [change for change in assert_plays_back(location, TABLE.key) if change[0] >= renamed]
    assert reader_spark.run(list(jobs.values())) == {}
    for name, job in jobs.items():
        rows = [
            (row.pop("_commit_version"), row.pop("_change_type"), row) for row in pq.read_table(job.out).to_pylist()
        ]
        found = [(at, kind, tuple(v for k, v in row.items() if k != "_commit_timestamp")) for at, kind, row in rows]
        assert sorted(found, key=repr) == expected[name], name


#: what others' jobs do with our tables, by format; tables flow again after each
_OTHERS = {
    "delta-upsert": "OPTIMIZE {table} ZORDER BY (id); VACUUM {table}",
    "delta-vectors": "OPTIMIZE {table}; REORG TABLE {table} APPLY (PURGE)",
    "delta-changelog": "OPTIMIZE {table}",
    "delta-history": "OPTIMIZE {table}; REORG TABLE {table} APPLY (PURGE)",
    "delta-mapped": "OPTIMIZE {table} ZORDER BY (id); VACUUM {table}",
    "delta-vectors-mapped": "OPTIMIZE {table}; REORG TABLE {table} APPLY (PURGE)",
    "iceberg-upsert": (
        "CALL weir.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'));"
        "CALL weir.system.rewrite_manifests('public.t');"
        "CALL weir.system.expire_snapshots(table => 'public.t', older_than => TIMESTAMP '2100-01-01', retain_last => 2)"
    ),
    "iceberg-partitioned": "CALL weir.system.rewrite_position_delete_files(table => 'public.t', "
    "options => map('rewrite-all', 'true'))",
    "iceberg-history": "ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '3')",
    "iceberg-marks": "ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '3');"
    "CALL weir.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))",
    "iceberg-v3": (
        "CALL weir.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'));"
        "CALL weir.system.rewrite_manifests('public.t');"
        "CALL weir.system.expire_snapshots(table => 'public.t', older_than => TIMESTAMP '2100-01-01', retain_last => 2)"
    ),
    "iceberg-changelog": "CALL weir.system.rewrite_data_files(table => 'public.t', "
    "options => map('rewrite-all', 'true'))",
}


def test_tables_that_it_has_rewritten_flow_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = {name: Bed.of(_ALL[name], tmp_path_factory.mktemp(name)) for name in _OTHERS}
    for bed in made.values():
        grown(bed)
    before = {name: _ours(bed) for name, bed in made.items()}
    errors = reader_spark.run([_job(bed, "read", _OTHERS[name]) for name, bed in made.items()])
    assert errors == {}
    for name, bed in made.items():
        assert _rows(bed, "read") == before[name], name
        assert _ours(bed) == before[name], name
        some = [
            update(1, "again", "y", 7, ts=905),
            insert(99, "new", "z", 8, ts=905),
            delete(1, None, None, None, ts=906),
        ]
        done = bed.flush(400, 910, some, arrow=RENAMED)
        assert (done.error, done.committed) == ("", True), name
        sink = bed.open()
        assert isinstance(sink, Maintains)
        sink.maintain(TABLE)
    assert reader_spark.run([_job(bed, "read") for bed in made.values()]) == {}
    for name, bed in made.items():
        assert _rows(bed, "read") == _ours(bed), name
        assert _ours(bed) != before[name], name


def test_rows_of_version_3_keep_their_ids(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Spark reads ids that are unique, and stay when files are joined."""
    bed = Bed.of(_ALL["iceberg-v3"], tmp_path_factory.mktemp("ids"))
    bed.load(*((key, "a", "x") for key in range(50)))
    for turn in range(20):
        some = [update(turn, "b", "x", ts=105 + turn * 10), insert(100 + turn, "c", "y", ts=105 + turn * 10)]
        assert bed.flush(100 + turn * 10, 110 + turn * 10, some).committed
    sql = "SELECT id, _row_id, _last_updated_sequence_number FROM {table}"
    first = _job(bed, "query", sql)
    assert reader_spark.run([first]) == {}
    before = _rows(bed, "query")
    sink = bed.open()
    assert isinstance(sink, Maintains)
    assert sink.maintain(TABLE).joined > 1
    assert reader_spark.run([first]) == {}
    assert _rows(bed, "query") == before
    assert len({row[1] for row in before}) == len(before) == 70
    assert None not in {row[1] for row in before}
