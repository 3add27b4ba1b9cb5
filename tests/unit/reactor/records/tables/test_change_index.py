"""The index of schema changes says after any history of writes and removals what a pass over all records says."""

from hypothesis import given
from hypothesis import strategies as st

from reactor.ids import Ts
from reactor.records.tables.change_index import ChangeIndex
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange

tables = st.integers(1, 4)
kinds = st.sampled_from([SchemaChangeKind.ALTER, SchemaChangeKind.DROP, SchemaChangeKind.HOLD])
changes = st.lists(st.builds(TableChange, kind=kinds, table_id=tables), max_size=4).map(tuple)
records = st.builds(
    DdlRecord,
    ts=st.just(Ts(1)),
    changes=changes,
    done=st.booleans(),
    left=st.lists(tables, max_size=2, unique=True).map(tuple),
    never_joined=st.sampled_from([(), (("public", "t"),)]),
)
steps = st.lists(st.tuples(st.integers(2, 9), st.one_of(st.none(), records)), max_size=30)


def newest_done(records: dict[int, DdlRecord]) -> dict[int, tuple[int, TableChange]]:
    found = {}
    for ts, record in sorted(records.items()):
        for change in record.alterations:
            if change.table_id not in record.pending_ids:
                found[change.table_id] = ts, change
    return found


def obsolete(records: dict[int, DdlRecord]) -> tuple[int, ...]:
    last = {table: ts for ts, record in sorted(records.items()) for table in record.table_ids}
    for table in list(last):
        changes = [
            change for _, record in sorted(records.items()) for change in record.changes if change.table_id == table
        ]
        is_alone = sum(table in record.table_ids for record in records.values()) == 1
        if changes[-1].kind is SchemaChangeKind.DROP and is_alone:
            del last[table]
    return tuple(ts for ts, record in sorted(records.items()) if not record.pending_ids and ts not in last.values())


@given(steps)
def test_it_says_what_a_pass_over_all_says(history: list[tuple[int, DdlRecord | None]]) -> None:
    index, model = ChangeIndex(), dict[int, DdlRecord]()
    for ts, record in history:
        version = index.version
        if record is None:
            assert index.pop(ts, None) == model.pop(ts, None)
        else:
            index[ts] = model[ts] = record.with_(ts=Ts(ts))
            assert index.version is not version
        assert index == model
        assert index.pending == tuple(record for _, record in sorted(model.items()) if record.pending_ids)
        assert index.unjoined == next((one for _, one in sorted(model.items()) if one.never_joined), None)
        assert index.obsolete == obsolete(model)
        assert index.newest_done() == newest_done(model)


def test_what_was_given_out_stays_as_it_was() -> None:
    done = DdlRecord(ts=Ts(5), changes=(TableChange(kind=SchemaChangeKind.DROP, table_id=1),), done=True)
    index = ChangeIndex({5: done})
    before = index.newest_done()
    del index[5]
    assert before == {1: (5, done.changes[0])}
    assert index.newest_done() == {}
