"""Columns that get another type: what our conversion makes of every sample value is what a real server makes of it."""

import contextlib
import random
from collections.abc import Sequence

import pymysql
import pytest

from agent.rows.schema_change import Exact
from agent.sources.mysql.retyping.retyping import conversion
from agent.sources.mysql.retyping.terms import RetypeTerms
from capture.embedded import EmbeddedMariaDB
from tests.integration.agent.sources.mysql.retyping.conversion_types import TYPES, Sample
from tests.integration.agent.sources.mysql.retyping.rig import Session, differences, retyped
from tests.mysql_server import is_mariadb

_STRICT = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE"
_STRICT_BITS = 1 << 22
#: of each server's own mode about digits behind the second
_ROUNDING = {True: ("TIME_ROUND_FRACTIONAL", 1 << 34), False: ("TIME_TRUNCATE_FRACTIONAL", 1 << 32)}
_SAMPLED = 4
_DIGITS = [*range(1, 9)] * 40
_TEMPORAL = ("date", "time", "datetime", "timestamp")


def types_of(server: EmbeddedMariaDB) -> list[Sample]:
    name = "mariadb" if is_mariadb(server) else "mysql"
    return [sample for sample in TYPES if sample.only in ("", name)]


@pytest.fixture(scope="module")
def database(server: EmbeddedMariaDB) -> str:
    server.create_database("retyping")
    return "retyping"


def wrong(
    server: EmbeddedMariaDB,
    database: str,
    olds: Sequence[Sample],
    news: Sequence[Sample],
    session: Session,
    bits: int,
    suffix: str = "",
) -> list[str]:
    found = []
    for old in olds:
        for pair in retyped(server, database, old, news, session, suffix):
            required = frozenset({pair.after.name}) if "NOT NULL" in suffix else frozenset[str]()
            terms = RetypeTerms(
                is_mariadb(server), bits, session.time_zone, required, pair.zero_dates, second=session.second
            )
            found += differences(pair, terms)
    return found


@pytest.mark.matrix
def test_some_types_as_all_others(server: EmbeddedMariaDB, database: str) -> None:
    types = types_of(server)
    olds = random.Random(11).sample(types, 7)[:_SAMPLED]
    assert wrong(server, database, olds, types, Session(), 0) == []


@pytest.mark.minutes(1.8)
@pytest.mark.matrix
@pytest.mark.in_turn("flavour")
@pytest.mark.timeout(900)
def test_all_types_as_all_others(server: EmbeddedMariaDB, database: str) -> None:
    types = types_of(server)
    assert wrong(server, database, types, types, Session(), 0) == []


def test_digits_behind_the_second_in_the_other_mode(server: EmbeddedMariaDB, database: str) -> None:
    mode, bits = _ROUNDING[is_mariadb(server)]
    olds = [sample for sample in types_of(server) if sample.definition.endswith(("(6)", "(6) NULL", "varchar(40)"))]
    news = [sample for sample in types_of(server) if sample.definition.startswith(_TEMPORAL)]
    news += [sample for sample in types_of(server) if sample.definition in ("bigint", "varchar(40)", "decimal(20,6)")]
    assert wrong(server, database, olds, news, Session(mode, "-03:30"), bits) == []


def test_floats_as_texts(server: EmbeddedMariaDB, database: str) -> None:
    """Of every size, with as many digits as they have: where a server takes the exponent depends on both."""
    dice = random.Random(13)
    numbers = [dice.choice((1, -1)) * dice.randrange(10**digits) * 10.0 ** dice.randint(-24, 18) for digits in _DIGITS]
    texts = [sample for sample in types_of(server) if sample.definition in ("varchar(40)", "varchar(10)")]
    for definition in ("float", "double"):
        old = Sample(definition, tuple(f"{number!r}" for number in numbers))
        [long] = [pair for pair in retyped(server, database, old, texts[:1], Session()) if pair.zero_dates == "null"]
        assert len(set(long.found.to_pylist())) > len(numbers) // 2
        assert wrong(server, database, [old], texts, Session(), 0) == []
        found = conversion(long.before, long.after, RetypeTerms(is_mariadb(server), 0))
        assert isinstance(found, Exact)
        assert found.convert(long.values).equals(long.found), "no value is refused"


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(("mode", "bits"), [("", 0), (_STRICT, _STRICT_BITS)])
def test_geometries_and_vectors_of_other_shapes(server: EmbeddedMariaDB, database: str, mode: str, bits: int) -> None:
    """Their bytes stay, or the server refuses the statement."""
    shapes = ("geometry", "point", "linestring", "multipoint", "vector")
    samples = [sample for sample in types_of(server) if sample.definition.startswith(shapes)]
    assert wrong(server, database, samples, samples, Session(mode), bits) == []


def test_null_becomes_the_zero_of_its_type(server: EmbeddedMariaDB, database: str) -> None:
    news = [sample for sample in types_of(server) if "NULL" not in sample.definition]
    [old] = [sample for sample in news if sample.definition == "varchar(40)"]
    assert wrong(server, database, [Sample(old.definition, ("'1'",))], news, Session(), 0, " NOT NULL") == []
    for new in ("datetime(3)", "timestamp(3) NULL", "int", "enum('a','b','c')", "set('a','b','c')", "binary(5)"):
        [sample] = [item for item in types_of(server) if item.definition == new]
        [after] = [Sample(new.removesuffix(" NULL"), ())]
        assert wrong(server, database, [sample], [after], Session(), 0, " NOT NULL") == []


@pytest.mark.matrix
def test_null_may_become_the_default_of_before(server: EmbeddedMariaDB, database: str) -> None:
    """InnoDB of MariaDB puts it where it does not copy the table, as for a single column that keeps its type."""
    tried = 0
    for sample in types_of(server):
        for value in sample.values[:2]:
            old = Sample(f"{sample.definition} DEFAULT {value}", (value,))
            with contextlib.suppress(pymysql.err.Error):  # no default for this type
                assert wrong(server, database, [old], [sample], Session(), 0, " NOT NULL") == []
                tried += 1
    assert tried > len(types_of(server)) // 2


@pytest.mark.matrix
def test_a_strict_server_keeps_what_a_lax_one_keeps(server: EmbeddedMariaDB, database: str) -> None:
    """Value by value, as one that it refuses ends the statement."""
    types, dice = types_of(server), random.Random(12)
    for old in dice.sample(types, 12)[:8]:
        value = dice.choice(old.values)
        news = dice.sample(types, 6)
        assert wrong(server, database, [Sample(old.definition, (value,))], news, Session(_STRICT), _STRICT_BITS) == []
