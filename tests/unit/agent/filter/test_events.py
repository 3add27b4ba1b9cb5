"""Event filters and column selectors, in the stream and in the snapshot."""

import re
from typing import Any

import pytest

from agent.errors import FilterError, SourceConfigError
from agent.filter import events
from agent.filter.events import TableRules, rules_for
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY
from reactor.records.changefeed import ColumnSelector, EventFilter, FilterConfig
from tests.unit.agent.changes_build import ARROW, UNCHANGED, changes, delete, insert, table_schema, truncate, update

ROWS = [
    insert(1, "a", "x"),
    update(1, "b", "x", before=(1, "a", "x"), before_kind=BEFORE_FULL),
    update(2, "b", UNCHANGED, before=(2, None, None), before_kind=BEFORE_KEY),
    delete(1, "b", "x", before_kind=BEFORE_FULL),
    truncate(),
]


def rules(*filters: EventFilter, columns: tuple[str, ...] = ()) -> TableRules:
    selectors = (ColumnSelector(matcher=("public.*",), columns=columns),) if columns else ()
    return rules_for(FilterConfig(event_filters=filters, column_selectors=selectors), "public", "t")


def kept(**fields: Any) -> list[int]:
    found = rules(EventFilter(**fields)).apply(changes(ROWS))
    return [int(seq) for seq in found.seq]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"ignore_event": ("insert",)}, [1, 2, 3, 4]),
        ({"ignore_event": ("Delete", "TRUNCATE  table")}, [0, 1, 2]),
        ({"ignore_event": ("all dml",)}, [4]),
        ({"ignore_event": ("all ddl",)}, [0, 1, 2, 3]),
        ({"ignore_insert_value_expr": "name = 'a'"}, [1, 2, 3, 4]),
        ({"ignore_update_new_value_expr": "name = 'b'"}, [0, 3, 4]),
        ({"ignore_update_old_value_expr": "name = 'a'"}, [0, 2, 3, 4]),
        ({"ignore_update_old_value_expr": "id = 2"}, [0, 1, 3, 4]),
        ({"ignore_update_new_value_expr": "big = 'x'"}, [0, 2, 3, 4]),
        ({"ignore_delete_value_expr": "id = 1"}, [0, 1, 2, 4]),
        ({"matcher": ("other.*",), "ignore_event": ("all dml",)}, [0, 1, 2, 3, 4]),
        ({"matcher": ("*.*", "!public.t"), "ignore_event": ("all dml",)}, [0, 1, 2, 3, 4]),
    ],
)
def test_what_is_ignored(fields: dict[str, Any], expected: list[int]) -> None:
    assert kept(**fields) == expected


@pytest.mark.parametrize(
    ("event", "leaves"),
    [
        ("drop table partition", True),
        ("Truncate  table PARTITION", True),
        ("all ddl", True),
        ("delete", True),
        ("insert", False),
        ("drop table", False),
    ],
)
def test_rows_that_stay_may_meet_inserts_of_their_keys(event: str, leaves: bool) -> None:
    assert rules(EventFilter(ignore_event=(event,))).leaves_rows is leaves


def test_all_filters_of_a_table_apply() -> None:
    both = rules(EventFilter(ignore_event=("insert",)), EventFilter(ignore_delete_value_expr="id = 1"))
    assert both.apply(changes(ROWS)).seq.tolist() == [1, 2, 4]


def test_a_selector_keeps_columns_in_every_image() -> None:
    found = rules(columns=("*", "!big")).apply(changes(ROWS))
    assert found.after.schema.names == ["id", "name"]
    assert found.before is not None
    assert found.before.schema.names == ["id", "name"]
    assert found.unchanged == {}
    assert [column.name for column in found.schema.columns] == ["id", "name"]


def test_an_expression_may_read_what_the_selector_leaves_out() -> None:
    config = rules(EventFilter(ignore_insert_value_expr="big = 'x'"), columns=("id", "n*"))
    assert config.apply(changes(ROWS)).seq.tolist() == [1, 2, 3, 4]
    rows = config.snapshot(changes([insert(1, "a", "x"), insert(2, "b", "y")]).after)
    assert rows.to_pydict() == {"id": [2], "name": ["b"]}


def test_names_of_events_are_about_the_stream_only() -> None:
    rows = changes([insert(1, "a", "x")]).after
    assert rules(EventFilter(ignore_event=("all dml",))).snapshot(rows).num_rows == 1


def test_statements_are_ignored_by_what_they_do_or_say() -> None:
    config = rules(EventFilter(ignore_event=("drop column",), ignore_sql=("add\\s+index",)))
    assert config.ignores_ddl(["alter table", "drop column"], "ALTER TABLE t DROP COLUMN a")
    assert config.ignores_ddl(["alter table"], "ALTER TABLE t ADD  INDEX i (a)")
    assert not config.ignores_ddl(["alter table", "add column"], "ALTER TABLE t ADD COLUMN b int")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (FilterConfig(event_filters=(EventFilter(ignore_event=("upsert",)),)), "'upsert' is not known"),
        (FilterConfig(event_filters=(EventFilter(ignore_sql=("(",)),)), "no regular expression"),
        (FilterConfig(event_filters=(EventFilter(ignore_insert_value_expr="prize > 1"),)), "reads prize"),
        (FilterConfig(event_filters=(EventFilter(ignore_insert_value_expr="1 +"),)), "cannot be read"),
        (FilterConfig(event_filters=(EventFilter(ignore_insert_value_expr="id = 'abc'"),)), "does not fit its columns"),
        (FilterConfig(event_filters=(EventFilter(ignore_delete_value_expr="id IN (1, 'x')"),)), "does not fit its"),
        (FilterConfig(event_filters=(EventFilter(ignore_update_old_value_expr="id LIKE 'a'"),)), "does not fit its"),
        (FilterConfig(event_filters=(EventFilter(ignore_update_new_value_expr="lower(id)='x'"),)), "does not fit"),
        (FilterConfig(column_selectors=(ColumnSelector(matcher=("*.*",), columns=("name",)),)), "leaves out id"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(config: FilterConfig, reason: str) -> None:
    with pytest.raises(FilterError, match=reason):
        events.check(config, table_schema(), ARROW, key=("id",))


def test_a_config_that_fits_is_accepted() -> None:
    item = EventFilter(ignore_insert_value_expr="id = '7' OR name LIKE 'a%'", ignore_delete_value_expr="big IS NULL")
    events.check(FilterConfig(event_filters=(item,)), table_schema(), ARROW, key=("id",))


def test_no_filter_costs_nothing() -> None:
    assert not rules_for(FilterConfig(), "public", "t")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (FilterConfig(event_filters=(EventFilter(ignore_event=("inserts",)),)), "ignore-event 'inserts' is not known"),
        (FilterConfig(event_filters=(EventFilter(ignore_sql=("[",)),)), "is no regular expression"),
        (FilterConfig(event_filters=(EventFilter(ignore_insert_value_expr="a >"),)), "a >"),
        (FilterConfig(event_filters=(EventFilter(matcher=("a..b",)),)), "filter rule 'a..b' cannot be read"),
        (
            FilterConfig(column_selectors=(ColumnSelector(matcher=("/[/.b",), columns=("*",)),)),
            "no regular expression",
        ),
    ],
)
def test_rules_are_read_before_there_are_tables(config: FilterConfig, message: str) -> None:
    with pytest.raises((FilterError, SourceConfigError), match=re.escape(message)):
        events.check_words(config)
