"""Conditions in a server's SQL: nothing of their text is there but names of columns and constants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import FilterError
from agent.filter.expression_sql import SqlWords, in_sql
from agent.filter.expressions import parse
from agent.sources.mysql.server import sql as mysql
from agent.sources.postgres.server import sql as postgres

POSTGRES = SqlWords(postgres.identifier, postgres.literal, same="IS NOT DISTINCT FROM", matches="~")
MYSQL = SqlWords(mysql.identifier, mysql.literal, same="<=>", matches="RLIKE")
NAMES = ["id", "Name", 'o"dd', "note"]


@pytest.mark.parametrize(
    ("condition", "of_postgres", "of_mysql"),
    [
        ("ID = 5", '(("id" = 5))', "((`id` = 5))"),
        ("name LIKE 'a%' OR NOT id > -1", '((("Name" LIKE \'a%\') OR (NOT ("id" > (- 1)))))', None),
        ("id <=> NULL", '(("id" IS NOT DISTINCT FROM NULL))', "((`id` <=> NULL))"),
        ("name RLIKE 'x'", "((\"Name\" ~ 'x'))", "((`Name` RLIKE 'x'))"),
        ("id IN (1, 2.50) AND note IS NOT NULL", '((("id" IN (1, 2.50)) AND (NOT ("note" IS NULL))))', None),
        ("lower(name) = coalesce(note, 'x')", '((lower("Name") = coalesce("note", \'x\')))', None),
        ("length(name) BETWEEN 1 AND 2", '((char_length("Name") BETWEEN 1 AND 2))', None),
        ('`o"dd` = TRUE', '(("o""dd" = TRUE))', '((`o"dd` = TRUE))'),
        ("id % 3 + abs(id) * 2 <> 1e2", '(((("id" % 3) + (abs("id") * 2)) <> 100))', None),
    ],
)
def test_conditions(condition: str, of_postgres: str, of_mysql: str | None) -> None:
    assert in_sql(parse(condition), NAMES, POSTGRES) == of_postgres
    written = in_sql(parse(condition), NAMES, MYSQL)
    assert written == (of_mysql or of_postgres.replace('"', "`"))


@given(st.text(alphabet=st.sampled_from("a'\\\";-/*#%`"), max_size=12))
def test_a_text_is_a_constant_of_the_server(text: str) -> None:
    """Whatever the parser takes it for, the server gets just this text, quoted by its source."""
    quoted = text.replace("\\", "\\\\").replace("'", "''")
    parsed = parse(f"note = '{quoted}' OR id = 1")
    for words in (POSTGRES, MYSQL):
        name, literal = words.identifier("note"), words.literal(text)
        assert in_sql(parsed, NAMES, words) == f"((({name} = {literal}) OR ({words.identifier('id')} = 1)))"


def test_columns_that_the_table_lacks_are_refused() -> None:
    with pytest.raises(FilterError, match="names 'secret': there is no such column"):
        in_sql(parse("secret = 1"), NAMES, POSTGRES)
    assert in_sql(parse("A = 1"), ["a", "A"], MYSQL) == "((`A` = 1))"
    with pytest.raises(FilterError, match="no such column"):
        in_sql(parse("bB = 1"), ["bb", "BB"], MYSQL)
