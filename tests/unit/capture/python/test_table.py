"""A table in a notebook: what is passed by mistake is answered in one line, before anything is read."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from agent.sinks import open_table
from capture.errors import ConfigError
from capture.python.table import Table

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    deltalake.write_deltalake(str(tmp_path / "public" / "orders"), ROWS)
    return Table("shop", "public.orders", open_table(f"delta+file://{tmp_path}", "public/orders", None))


MISTAKES: dict[str, tuple[Callable[[Table], object], str]] = {
    "a name in place of a list": (
        lambda table: table.to_arrow("id"),
        "columns is a list of names, not 'id': pass ['id']",
    ),
    "no column": (lambda table: table.to_pandas([]), "columns is empty: leave it out to read all columns"),
    "a version as text": (
        lambda table: table.to_batches(version="1"),  # type: ignore[arg-type]
        "version is a whole number that history() shows, not '1'",
    ),
    "a version as truth": (
        lambda table: table.to_arrow(version=True),
        "version is a whole number that history() shows, not True",
    ),
    "a negative limit": (lambda table: table.history(-1), "limit is a whole number of commits, not -1"),
    "a limit as text": (
        lambda table: table.history("all"),  # type: ignore[arg-type]
        "limit is a whole number of commits, not 'all'",
    ),
    "no session": (
        lambda table: table.to_spark(None),
        "spark is a session, such as SparkSession.builder.getOrCreate(), not None",
    ),
    "a connection of something else": (
        lambda table: table.to_duckdb("postgresql://u:secret@h/d"),
        "connection is one of duckdb.connect(), not a str; leave it out for its own",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_line(mistake: str, table: Table) -> None:
    use, text = MISTAKES[mistake]
    with pytest.raises(ConfigError) as error:
        use(table)
    assert str(error.value) == text


def test_every_reader_gives_the_rows(table: Table) -> None:
    assert table.to_arrow() == ROWS
    assert table.to_arrow(["name"]) == ROWS.select(["name"])
    assert table.to_arrow(version=0) == ROWS
    assert table.to_pandas()["id"].tolist() == [1, 2, 3]
    made = list[Any]()
    assert table.to_spark(SimpleNamespace(createDataFrame=made.append)) is None
    assert made == [ROWS]
    assert [commit["version"] for commit in table.history()] == [0]


def test_duckdb_gets_the_rows_in_its_default_connection_or_another(table: Table) -> None:
    duckdb = pytest.importorskip("duckdb")
    assert table.to_duckdb().fetchall() == [(1, "a"), (2, "b"), (3, None)]
    with duckdb.connect() as connection:
        assert table.to_duckdb(connection, ["id"]).fetchall() == [(1,), (2,), (3,)]


def test_polars_gets_the_rows_or_says_how_to_install_it(table: Table) -> None:
    try:
        __import__("polars")
    except ImportError:
        with pytest.raises(ConfigError, match="polars is not installed; pip install polars, or use to_arrow"):
            table.to_polars()
    else:
        assert table.to_polars().to_arrow().to_pylist() == ROWS.to_pylist()


def test_a_name_is_shown_without_what_a_terminal_would_interpret(tmp_path: Path) -> None:
    one = Table("shop", "public.\x1b[2J\nx\u202e", open_table(f"delta+file://{tmp_path}", "public/x"))
    assert repr(one) == rf"<Table public.\x1b[2J x\u202e of shop at {tmp_path}/public/x>"
