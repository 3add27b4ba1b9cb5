"""Table rules: the last one that matches decides."""

import pytest

from agent.errors import SourceConfigError
from agent.filter.tables import TableFilter


@pytest.mark.parametrize(
    ("rules", "wanted", "unwanted"),
    [
        (["*.*"], ["public.t", "s.a b", "pg_shop.t"], []),
        (["public.*", "!public.tmp*"], ["public.t", "public.atmp"], ["public.tmp", "public.tmp_1", "other.t"]),
        (["!public.t", "public.*"], ["public.t"], []),
        (["public.*", "!public.*", "public.kept"], ["public.kept"], ["public.t"]),
        (["public.t?"], ["public.t1", "public.tx"], ["public.t", "public.t12"]),
        (["public.[a-c]*", "!public.[!a]z"], ["public.a", "public.az", "public.bb"], ["public.d", "public.bz"]),
        (["/s[0-9]+/.t"], ["s1.t", "s22.t"], ["s.t", "s1.tt", "xs1.t"]),
        (["/^s\\.(a|b)$/"], ["s.a", "s.b"], ["s.c", "xs.a"]),
        (['"odd.schema"."a*"'], ["odd.schema.a*"], ["odd.schema.ab"]),
        (["Public.T"], ["Public.T"], ["public.t"]),
        ([], [], ["public.t"]),
    ],
)
def test_which_tables_are_wanted(rules: list[str], wanted: list[str], unwanted: list[str]) -> None:
    tables = TableFilter(rules)
    assert [name for name in wanted if not tables.wants(*name.rsplit(".", 1))] == []
    assert [name for name in unwanted if tables.wants(*name.rsplit(".", 1))] == []


@pytest.mark.parametrize("rule", ["", "public", "a.b.c", ".t", "public.", "!", "public..t", "/unfinished.t"])
def test_what_is_no_rule_is_refused_with_the_way_to_write_one(rule: str) -> None:
    with pytest.raises(SourceConfigError, match=r"cannot be read; write schema\.table"):
        TableFilter([rule])


def test_a_broken_expression_names_its_rule() -> None:
    with pytest.raises(SourceConfigError, match=r"'\(' is no regular expression"):
        TableFilter(["/(/.t"])
