"""Survivor comparison of a key that got another type: which rows of the sink the source has under other keys."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from agent.errors import UnknownValuesError
from agent.rows.schema import TableSchema
from agent.rows.schema_change import SchemaChange
from agent.rows.survivors import Survivors
from agent.sinks.common import changelog
from agent.sinks.common.row_marks import DELETED
from agent.sinks.common.survivors import Comparison
from agent.sinks.delta.table.schema import FORMS
from reactor.ids import Ts
from reactor.records.tables.schema_change import SchemaChangeKind
from reactor.records.tables.table import TableRecord

_CHANGE = SchemaChange(
    Ts(9),
    SchemaChangeKind.ALTER,
    TableRecord(table_id=1, schema_name="public", name="t", key=("id",)),
    None,
    (),
    TableSchema(1, "public", "t", ()),
)
_IDS = pa.schema([("id", pa.int64())])


def ids(values: Sequence[int]) -> pa.Table:
    return pa.table({"id": list(values)}, schema=_IDS)


def is_held(unchanged: Sequence[int], now: Sequence[int] | None, rows: pa.Table, *, is_changelog: bool) -> bool:
    found = Survivors(
        ids(unchanged), ("id",), ("id",), is_key_kept=False, moves_key=True, all_keys=None if now is None else ids(now)
    )
    comparison = Comparison(found, is_changelog=is_changelog, forms=FORMS)
    for part in rows.to_batches(max_chunksize=2):
        comparison.note(pa.Table.from_batches([part]))
    try:
        comparison.verdict(_CHANGE)
    except UnknownValuesError:
        return True
    return False


@pytest.mark.parametrize(
    ("unchanged", "now", "sink", "held"),
    [
        ([1, 2], [1, 2], [1, 2], False),
        ([1], [1, 5], [1, 2], False),  # 2 was deleted since
        ([10, 20], [10, 20], [1, 2], True),
        ([1, 20], [1, 20], [1, 2], True),
        ([], [1, 2], [1, 2], False),  # all were changed since, and have their keys
        ([], [10, 20], [1, 2], True),
        ([], [], [1, 2], True),
        ([], [], [], False),
        ([1, 2], [1, 2], [], False),  # the sink began later
        ([1, 2], [1, 2], [2], False),
        ([1, 2], None, [1, 2, 3], False),  # too large for all keys
        ([1, 20], None, [1, 2, 3], True),
        ([], None, [1], True),
        ([], None, [], False),
    ],
)
def test_rows_that_have_other_keys_at_the_source_hold_the_table(
    unchanged: list[int], now: list[int] | None, sink: list[int], *, held: bool
) -> None:
    assert is_held(unchanged, now, ids(sink), is_changelog=False) == held
    kinds = pa.table(
        {
            "id": [*sink, 7, 7, 8, 9, 9],
            changelog.CHANGE_TYPE: [
                *("insert" for _ in sink),
                *("insert", "delete", "update_preimage", "insert", "delete"),
            ],
            changelog.COMMIT_VERSION: [*(3 for _ in sink), 1, 2, 4, 1, 5],
            changelog.COMMIT_SEQ: [*range(len(sink)), 0, 0, 0, 1, 0],
        }
    )
    assert is_held(unchanged, now, kinds, is_changelog=True) == (held or (now is None and not unchanged))


def test_what_a_changelog_had_before_a_truncate_is_no_row() -> None:
    log = pa.table(
        {
            "id": [1, None, 2],
            changelog.CHANGE_TYPE: ["insert", "truncate", "insert"],
            changelog.COMMIT_VERSION: [1, 2, 3],
            changelog.COMMIT_SEQ: [0, 0, 0],
        }
    )
    assert not is_held([2], [2], log, is_changelog=True)
    assert not is_held([], [2], log, is_changelog=True)
    assert is_held([], [1], log, is_changelog=True)


def test_rows_that_are_marked_as_deleted_are_none() -> None:
    rows = ids([1, 2]).append_column(DELETED, pa.array([False, True]))
    assert not is_held([], [1], rows, is_changelog=False)
    assert is_held([], [2], rows, is_changelog=False)
