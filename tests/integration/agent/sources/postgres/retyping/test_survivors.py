"""Columns that get another type by an expression: what the sink would make of its old values is compared with rows that
the source has, and the table is held where they differ."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import TableHeldError
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.server.terms import ALL_ROWS, AllTerms, PublishedTerms
from agent.sources.postgres.snapshot import survivors
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sources.postgres.retyping.test_retyped_table import Bed

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others

#: pairs that the server always rewrites: type, values of row n, the next type, an expression
_PAIRS = (
    ("int", "n", "bigint", "v * 10"),
    ("smallint", "n", "int", "v + 1"),
    ("bigint", "n", "int", "(-v)::int"),
    ("int", "n", "numeric(9,2)", "v / 100.0"),
    ("int", "n", "text", "'#' || v"),
    ("int", "n", "double precision", "v * 0.5"),
    ("numeric(9,2)", "n", "int", "(v * 100)::int"),
    ("numeric(9,2)", "n + 0.25", "numeric(9,4)", "v * 2"),
    ("real", "n + 0.5", "double precision", "v * 2"),
    ("boolean", "n % 2 = 0", "text", "CASE WHEN v THEN 'yes' ELSE 'no' END"),
    ("date", "'2024-01-01'::date + n", "timestamp", "v + time '12:00'"),
    ("timestamp", "'2024-01-01'::timestamp + n * interval '1 hour'", "date", "(v + interval '1 day')::date"),
    ("time", "'00:00:00'::time + n * interval '1 minute'", "text", "left(v::text, 5)"),
    ("uuid", "md5(n::text)::uuid", "text", "replace(v::text, '-', '')"),
    ("inet", "'10.0.0.0'::inet + n", "text", "host(v)"),
    ("json", "json_build_object('a', n)", "jsonb", "v::jsonb || '{\"b\": 1}'"),
    ("char(5)", "n::text", "text", "v || 'x'"),
    ("text", "repeat('é', n)", "varchar(9)", "left(reverse(v || 'x'), 9)"),
    ("int[]", "ARRAY[n, NULL]", "bigint[]", "array_reverse(v)"),
)
_WIDE = ", ".join(f"v{at} {old}" for at, (old, *_) in enumerate(_PAIRS))
_VALUES = ", ".join(value for _, value, *_ in _PAIRS)
_CREATE = (
    "CREATE TABLE {t} (id int PRIMARY KEY, {columns}); INSERT INTO {t} SELECT n, {values} FROM generate_series(1, 9) n"
)
_DML = "UPDATE {t} SET id = id WHERE id = 1; DELETE FROM {t} WHERE id = 2"


@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_an_expression_that_says_what_the_type_says_holds_nothing(
    postgres: EmbeddedPostgres, tmp_path: Path, mode: SinkMode
) -> None:
    bed = Bed(postgres, tmp_path, mode, _CREATE.format(t="t", columns=_WIDE, values=_VALUES))
    bed.execute(
        "ALTER TABLE t " + ", ".join(f"ALTER v{at} TYPE {p[2]} USING v{at}::{p[2]}" for at, p in enumerate(_PAIRS))
    )
    bed.execute(_DML.format(t="t"))
    bed.follow()
    assert bed.differences() == ("id=2: only in the sink",)


@pytest.mark.parametrize(("mode", "pairs"), [(SinkMode.UPSERT, _PAIRS), (SinkMode.CHANGELOG, _PAIRS[3:6])])
def test_what_an_expression_has_made_holds_the_table(
    postgres: EmbeddedPostgres, tmp_path: Path, mode: SinkMode, pairs: tuple[tuple[str, str, str, str], ...]
) -> None:
    for at, (old, value, new, using) in enumerate(pairs):
        t = f"t{at}"
        bed = Bed(postgres, tmp_path, mode, _CREATE.format(t=t, columns=f"v {old}", values=value), t)
        some = f"CASE WHEN id = 7 THEN {using} ELSE v::{new} END" if at % 2 else using
        bed.execute(f"ALTER TABLE {t} ALTER v TYPE {new} USING {some}; {_DML.format(t=t)}")
        with pytest.raises(TableHeldError, match=rf"public\.{t} has other values in v at the source"):
            bed.follow()


_BED = (
    "CREATE TABLE t (id int PRIMARY KEY, v int, w int, n text); "
    "INSERT INTO t SELECT n, n, n, 'n' FROM generate_series(1, 20) n"
)
#: each is done to the table after its rows were loaded; whether the sink may follow
_STORIES = {
    "ALTER TABLE t ALTER id TYPE bigint": True,
    "ALTER TABLE t ALTER id TYPE bigint USING id * 1000": False,
    # what changes rows afterwards names them by their new keys
    "ALTER TABLE t ALTER id TYPE bigint; UPDATE t SET n = 'm'": True,
    "ALTER TABLE t ALTER id TYPE bigint; DELETE FROM t WHERE id < 9; INSERT INTO t VALUES (99, 1, 1, '')": True,
    "ALTER TABLE t ALTER id TYPE bigint USING id * 1000; UPDATE t SET n = 'm'": False,
    "ALTER TABLE t ALTER id TYPE bigint USING id * 1000; DELETE FROM t": False,
    "ALTER TABLE t ALTER id TYPE text USING CASE WHEN id > 18 THEN '#' || id ELSE id::text END": False,
    "ALTER TABLE t ALTER id TYPE text USING CASE id WHEN 3 THEN '#' ELSE id::text END; UPDATE t SET n = 'm'": False,
    "ALTER TABLE t ALTER id TYPE bigint, ALTER v TYPE bigint USING v + 1": False,
    "ALTER TABLE t ALTER v TYPE bigint; ALTER TABLE t ALTER v SET NOT NULL; ALTER TABLE t ALTER v SET DEFAULT 3": True,
    # the server rewrites the table for one column, and computes another's values on the way
    "ALTER TABLE t ALTER v TYPE bigint, ALTER n TYPE varchar": True,
    "ALTER TABLE t ALTER v TYPE bigint, ALTER n TYPE varchar USING n || 'x'": False,
    "ALTER TABLE t ALTER v TYPE bigint USING -v; ALTER TABLE t ALTER v SET NOT NULL": False,
    "ALTER TABLE t ALTER v TYPE bigint USING -v; VACUUM FULL t; REINDEX TABLE t; CREATE INDEX ON t (n)": False,
    "ALTER TABLE t ALTER v TYPE bigint USING -v; ALTER TABLE t ALTER w TYPE bigint": False,
    "ALTER TABLE t ALTER v TYPE bigint USING -v; ALTER TABLE t RENAME w TO x; GRANT SELECT ON t TO public": False,
    "ALTER TABLE t ALTER v TYPE bigint; VACUUM FREEZE t; CREATE INDEX ON t (v)": True,
    # every row has been changed since, so the log has all values
    "ALTER TABLE t ALTER v TYPE bigint USING -v; UPDATE t SET n = 'm'": True,
    "ALTER TABLE t ALTER v TYPE bigint USING -v; UPDATE t SET n = 'm' WHERE id > 1": False,
    "ALTER TABLE t ALTER n TYPE jsonb USING to_jsonb(repeat(md5(n), 99)); UPDATE t SET v = 0": False,
    "TRUNCATE t; ALTER TABLE t ALTER v TYPE bigint USING -v": True,
    "BEGIN; ALTER TABLE t ALTER v TYPE bigint; INSERT INTO t VALUES (30, 3, 3, ''); COMMIT": True,
    "BEGIN; ALTER TABLE t ALTER v TYPE bigint; UPDATE t SET v = 1 << 30 WHERE id = 7; COMMIT": True,
    "BEGIN; ALTER TABLE t ALTER v TYPE bigint USING -v; UPDATE t SET v = 9 WHERE id = 7; COMMIT": False,
    # rows are read under the name that the table has by now
    "ALTER TABLE t ALTER v TYPE bigint; ALTER TABLE t RENAME TO t_next": True,
    "ALTER TABLE t ALTER v TYPE bigint USING -v; ALTER TABLE t RENAME TO t_other": False,
    "BEGIN; SAVEPOINT s; ALTER TABLE t ALTER v TYPE bigint USING -v; RELEASE s; COMMIT": False,
}


@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_rows_are_judged_by_the_transaction_that_wrote_them(
    postgres: EmbeddedPostgres, tmp_path: Path, mode: SinkMode
) -> None:
    for at, (story, is_followed) in enumerate(_STORIES.items()):
        create = _BED.replace("t (id", f"t{at} (id").replace("INTO t", f"INTO t{at}")
        bed = Bed(postgres, tmp_path, mode, create, f"t{at}")
        for statement in [story] if story.startswith("BEGIN") else story.split("; "):
            bed.execute(re.sub(r"\bt(_\w+)?\b", rf"t{at}\1", statement))
        if is_followed:
            bed.follow()
        else:
            with pytest.raises(TableHeldError):
                bed.follow()


@pytest.mark.parametrize(
    ("story", "is_compared"),
    [
        ("ALTER TABLE t ALTER v TYPE bigint, ALTER n TYPE varchar USING n || 'x'", True),
        ("ALTER TABLE t ALTER n TYPE varchar", False),
        ("ALTER TABLE t ALTER v TYPE bigint; ALTER TABLE t ALTER n TYPE varchar", False),
    ],
)
def test_a_column_is_compared_where_one_that_is_not_replicated_was_altered_with_it(
    postgres: EmbeddedPostgres, tmp_path: Path, story: str, *, is_compared: bool
) -> None:
    bed = Bed(postgres, tmp_path, SinkMode.UPSERT, _BED)
    for statement in story.split("; "):
        bed.execute(statement)
    before, after = (
        replace(schema, columns=tuple(column for column in schema.columns if column.name != "v"))
        for schema in (bed.schema, bed.read_schema())
    )
    origins = {column.name: column.name for column in after.columns}
    found = survivors.read(bed.uri, before, after, origins, ("id",), ALL_ROWS)
    assert (found.columns if found else ()) == (("n",) if is_compared else ())


def test_a_column_that_is_altered_again_before_it_is_compared_holds_the_table(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    bed = Bed(postgres, tmp_path, SinkMode.UPSERT, _BED)
    bed.execute("ALTER TABLE t ALTER v TYPE bigint, ALTER n TYPE varchar USING n || 'x'")
    after = bed.read_schema()
    bed.execute("ALTER TABLE t ALTER n TYPE text")
    origins = {column.name: column.name for column in after.columns}
    with pytest.raises(TableHeldError, match="altered again"):
        survivors.read(bed.uri, bed.schema, after, origins, ("id",), ALL_ROWS)


@pytest.mark.parametrize("is_altered", [False, True])
def test_of_a_large_table_some_pages_are_read(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_altered: bool
) -> None:
    monkeypatch.setattr(survivors, "_WHOLE_BYTES", 8192)
    monkeypatch.setattr(survivors, "_EDGE_PAGES", 30)
    monkeypatch.setattr(survivors, "_SPREAD_PAGES", 4)
    create = "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT n, n FROM generate_series(1, 20000) n"
    bed = Bed(postgres, tmp_path, SinkMode.UPSERT, create)
    last = "CASE WHEN id > 19900 THEN v + 1 ELSE v END" if is_altered else "v"
    bed.execute(f"ALTER TABLE t ALTER v TYPE bigint USING {last}")
    after = bed.read_schema()
    found = survivors.read(bed.uri, bed.schema, after, {"id": "id", "v": "v"}, ["id"], "true")
    assert found is not None
    assert 1000 < found.rows.num_rows < 16_000  # the pages at the end may be empty yet
    if is_altered:
        with pytest.raises(TableHeldError):
            bed.follow()
    else:
        bed.follow()
        assert not bed.differences()
    bed.execute("UPDATE t SET v = 0 WHERE id < 19990")
    rest = survivors.read(bed.uri, bed.schema, after, {"id": "id", "v": "v"}, ["id"], "true")
    assert rest is not None
    assert set(rest.rows["id"].to_pylist()) == set(range(19990, 20001))


def test_a_generated_column_is_compared(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    bed = Bed(
        postgres, tmp_path, SinkMode.UPSERT, f"{_BED}; ALTER TABLE t ADD g int GENERATED ALWAYS AS (v + 1) STORED"
    )
    stored = AllTerms(PublishedTerms(sends_stored=True))
    with connect(bed.uri) as connection:
        before = read_schemas(connection, [bed.table_id], stored)[bed.table_id]
        connection.query("ALTER TABLE t ALTER g TYPE bigint")
        after = read_schemas(connection, [bed.table_id], stored)[bed.table_id]
    origins = {column.name: column.name for column in after.columns}
    found = survivors.read(bed.uri, before, after, origins, ("id",), ALL_ROWS)
    assert found is not None
    assert found.columns == ("g",)
