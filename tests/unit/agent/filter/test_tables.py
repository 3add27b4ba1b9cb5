"""Table rules: the last one that matches decides."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import SourceConfigError
from agent.filter.tables import TableFilter, TableRule

_PARTS = ("a", "b", "c*", "?", "[ab]", "*", '"a"', '"c*"', "/a|b/", "ab", "a ]")
_NAMES = ("a", "b", "c", "c*", "ab", "c1", "a ]")


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


@given(
    st.lists(st.tuples(st.sampled_from(["", "!"]), st.sampled_from(_PARTS), st.sampled_from(_PARTS)), max_size=8),
    st.sampled_from(_NAMES),
    st.sampled_from(_NAMES),
)
def test_tables_that_rules_name_are_looked_up_and_the_last_rule_decides_all_the_same(
    rules: list[tuple[str, str, str]], schema: str, table: str
) -> None:
    found = TableFilter(f"{sign}{first}.{second}" for sign, first, second in rules)
    decisive = [rule for rule in found.rules if rule.matches(schema, table)][-1:]
    assert found.wants(schema, table) == any(not rule.excludes for rule in decisive)


def test_a_table_is_not_held_against_each_of_thousands_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [("s", f"t{number}") for number in range(500)]
    found, compared, matches = (
        TableFilter(["*.*", *(f"!s.{name}" for _, name in names[::2])]),
        count(),
        TableRule.matches,
    )
    monkeypatch.setattr(TableRule, "matches", lambda rule, *name: next(compared) >= 0 and matches(rule, *name))
    assert sum(found.wants(*name) for name in names) == 250
    assert next(compared) <= len(names), "with the one pattern at most"
