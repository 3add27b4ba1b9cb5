"""Databases that tests give back: the next test finds an empty one, and none with what nothing removes."""

import pytest

from tests.shared_postgres import SharedPostgres, give_back

_LEFT = """
SELECT (SELECT count(*) FROM pg_class WHERE oid >= 16384 AND relnamespace <> 'pg_toast'::regnamespace)
     + (SELECT count(*) FROM pg_type WHERE oid >= 16384) + (SELECT count(*) FROM pg_publication)
"""


def test_a_database_that_is_given_back_is_as_a_new_one(postgres: SharedPostgres) -> None:
    postgres.create_database("given")
    for sql in (
        "CREATE SCHEMA other",
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TABLE t (id int PRIMARY KEY, v mood)",
        "CREATE TABLE other.t (id serial)",
        "CREATE PUBLICATION p FOR ALL TABLES",
    ):
        postgres.execute(sql, database="given")
    assert give_back(postgres, "given")
    assert not postgres.has_database("given")
    postgres.create_database("next")
    assert postgres.execute(_LEFT, database="next") == [[0]]
    postgres.execute("CREATE TABLE t (id int)", database="next")
    assert give_back(postgres, "next")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT lo_create(0)",
        "ALTER DATABASE kept SET timezone = 'Asia/Tokyo'",
        "GRANT CREATE ON DATABASE kept TO PUBLIC",
    ],
)
def test_one_with_more_than_schemas_is_not_used_again(postgres: SharedPostgres, sql: str) -> None:
    postgres.create_database("kept")
    postgres.execute(sql, database="kept")
    assert not give_back(postgres, "kept")
    assert postgres.has_database("kept")
    postgres.execute("DROP DATABASE kept")
