"""Dates that no calendar has, in columns that get another type: what MariaDB makes of them, text for text."""

import random

import pyarrow as pa
import pytest

from agent.rows.schema import ZeroDates
from agent.rows.schema_change import Exact
from agent.sources.mysql.retyping.retyping import conversion
from agent.sources.mysql.retyping.terms import RetypeTerms
from capture.embedded import EmbeddedMariaDB
from tests.integration.agent.sources.mysql.binlog_rig import run
from tests.integration.agent.sources.mysql.retyping.rig import read

_NO_ZERO_IN_DATE, _ALLOWED, _ROUNDED = 1 << 23, 1 << 25, 1 << 34
_MODES = {
    "": 0,
    "ALLOW_INVALID_DATES": _ALLOWED,
    "NO_ZERO_IN_DATE": _NO_ZERO_IN_DATE,
    "TIME_ROUND_FRACTIONAL": _ROUNDED,
    "TIME_ROUND_FRACTIONAL,ALLOW_INVALID_DATES": _ROUNDED | _ALLOWED,
}
_TYPES = ("date", "datetime", "datetime(3)", "datetime(6)")
_DAYS = ("2024-02-31", "2023-02-29", "2024-02-00", "2024-00-00", "0000-00-00", "0000-01-01", "2024-02-28")
_CLOCKS = ("00:00:00", "03:59:59.999999", "03:04:05.678901", "23:59:59.999999", "10:00:00.5", "23:59:58.9995")


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("mode", _MODES)
def test_impossible_dates_become_what_the_server_makes_of_them(mariadb: EmbeddedMariaDB, mode: str) -> None:
    dice = random.Random(mode)
    database = f"impossible_{list(_MODES).index(mode)}"
    mariadb.create_database(database)
    terms = RetypeTerms(is_mariadb=True, sql_mode=_MODES[mode], zero_dates=ZeroDates.STRING)
    for old in _TYPES:
        values = [f"('{day} {clock}')" for day in _DAYS for clock in dice.sample(_CLOCKS, 3)]
        columns = ", ".join(f"c{at} {old}" for at in range(len(_TYPES)))
        rows = ", ".join(f"({row}, {', '.join([value] * len(_TYPES))})" for row, value in enumerate(values))
        definition = f"CREATE OR REPLACE TABLE t (id int PRIMARY KEY, {columns})"
        run(mariadb, database, "SET sql_mode = 'ALLOW_INVALID_DATES'", definition, f"INSERT INTO t VALUES {rows}")
        before, shown = read(mariadb, database, "t", ZeroDates.STRING)
        parts = ", ".join(f"MODIFY c{at} {new}" for at, new in enumerate(_TYPES))
        run(mariadb, database, f"SET sql_mode = '{mode}'", f"ALTER TABLE t {parts}")
        after, there = read(mariadb, database, "t", ZeroDates.STRING)
        for one, other in zip(before.columns[1:], after.columns[1:], strict=True):
            if one.type_name == other.type_name:
                continue
            found = conversion(one, other, terms)
            given = shown.column(one.name).combine_chunks()
            made = found.convert(pa.concat_arrays([given])) if isinstance(found, Exact) else given
            title = f"{old} as {other.type_name}"
            assert (title, made.to_pylist()) == (title, there.column(one.name).to_pylist())
