"""The stream reader: whatever blocks the bytes come in and wherever it is cut, every event comes out once."""

import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import SnapshotLostByGCError, SourceUnreachableError
from agent.rows.arena import ArenaPool, LogChunk
from agent.rows.schema import TableSchema
from agent.sources.postgres.stream.stream import ReplicationStream
from tests.example_counts import many
from tests.unit.agent.stream_build import (
    StreamedEvent,
    Wire,
    begin,
    commit,
    copy_data,
    events_of,
    keepalive,
    message,
    relation,
    row,
    row_body,
    stream_on,
    taken,
    truncate_body,
)


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


@pytest.fixture
def pool() -> ArenaPool:
    return ArenaPool(3, 4096)


def read_all(stream: ReplicationStream) -> None:
    while not stream.is_full and stream.read(timeout_s=0.001):
        pass


def feed(wire: Wire, stream: ReplicationStream, *messages: bytes) -> None:
    wire.server.sendall(b"".join(messages))
    read_all(stream)


def test_events_are_grouped_by_table_with_their_commit_and_ordinal(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool)
    feed(wire, stream, begin(100), relation(1), row(1, b"a"), relation(2, columns=("k",)), row(2, b"b"), row(1, b"c"))
    assert stream.complete_rows == 0
    assert stream.resolved_ts == 0
    feed(wire, stream, commit(100), begin(200, time=3_000_000), row(1, b"d", kind=b"D"), commit(200, time=3_000_000))
    assert stream.complete_rows == 4
    cut = stream.take_chunk(taken(pool))
    assert (cut.first_ts, cut.last_ts, cut.resolved_ts, cut.is_complete) == (100, 200, 209, True)
    assert cut.resolved_time == 946684803.0
    first, second = cut.batches()
    assert (first.commit_time, second.commit_time) == (946684803.0, 946684801.0)
    assert events_of(cut) == [
        (1, 100, 0, row_body(1, b"a"), "id"),
        (1, 100, 2, row_body(1, b"c"), "id"),
        (1, 200, 0, row_body(1, b"d", kind=b"D"), "id"),
        (2, 100, 1, row_body(2, b"b"), "k"),
    ]


def test_tables_that_take_long_are_declared_in_turns(wire: Wire, pool: ArenaPool) -> None:
    """The server hangs up on a reader that is silent while it asks about thousands of changed tables."""
    asked: list[int] = []

    def resolve(schema: TableSchema) -> TableSchema:
        asked.append(schema.table_id)
        return schema

    stream = stream_on(wire, pool, resolve=resolve, split_s=0.0)
    tables = [message for n in range(1, 6) for message in (relation(n), row(n, b"a"))]
    wire.server.sendall(b"".join([begin(100), *tables, commit(100)]))
    for n in range(1, 6):
        assert stream.read(timeout_s=1.0)
        assert asked == [*range(1, n + 1)]
        assert (stream.is_behind, stream.complete_rows) == (True, 0)
    assert stream.read(timeout_s=1.0)
    assert (stream.is_behind, stream.complete_rows) == (False, 5)


def test_a_cut_leaves_the_open_transaction_to_the_next_arena(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool)
    feed(wire, stream, begin(100), relation(1), row(1, b"a"), commit(100), begin(200), row(1, b"b"))
    assert [event[3] for event in events_of(stream.take_chunk(taken(pool)))] == [row_body(1, b"a")]
    assert stream.complete_rows == 0
    feed(wire, stream, row(1, b"c"), commit(200))
    assert [event[1:4] for event in events_of(stream.take_chunk(taken(pool)))] == [
        (200, 0, row_body(1, b"b")),
        (200, 1, row_body(1, b"c")),
    ]


def test_a_transaction_that_fills_an_arena_is_cut_without_moving_the_position(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool)
    feed(wire, stream, begin(100), relation(1), *(row(1, bytes([n]) * 500) for n in range(10)), commit(100))
    assert stream.is_full
    first = stream.take_chunk(taken(pool))
    assert (first.is_complete, first.resolved_ts) == (False, 0)
    pool.give(taken_arena(first))
    read_all(stream)
    second = stream.take_chunk(taken(pool))
    assert (second.is_complete, second.resolved_ts) == (True, 109)


def taken_arena(cut: LogChunk):  # type: ignore[no-untyped-def]
    assert cut.arena is not None
    return cut.arena


def test_a_message_larger_than_an_arena_makes_it_grow(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool)
    feed(wire, stream, begin(100), relation(1), row(1, b"x" * 50_000), commit(100))
    while stream.is_full:
        pool.give(taken_arena(stream.take_chunk(taken(pool))))
        read_all(stream)
    assert len(events_of(stream.take_chunk(taken(pool)))[0][3]) == 50_005


def test_what_the_log_has_already_is_skipped_and_skipped_bytes_are_forgotten(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool, resolved=150)
    skipped = [begin(100), relation(1), *(row(1, b"o" * 900) for _ in range(20)), commit(100)]
    feed(wire, stream, *skipped, begin(200), row(1, b"n"), commit(200))
    assert [event[3] for event in events_of(stream.take_chunk(taken(pool)))] == [row_body(1, b"n")]


def test_tables_that_are_not_wanted_leave_no_trace_but_count_as_ordinals(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool, is_wanted=lambda table: table != 1)
    feed(wire, stream, begin(9), relation(1), row(1, b"a"), relation(2), row(2, b"b"), commit(9))
    assert [event[:3] for event in events_of(stream.take_chunk(taken(pool)))] == [(2, 9, 1)]


def test_a_truncate_is_one_event_for_each_of_its_tables(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool)
    body = truncate_body(1, 2)
    feed(wire, stream, begin(9), relation(1), relation(2), row(1, b"a"), message(body), row(2, b"b"), commit(9))
    assert sorted(events_of(stream.take_chunk(taken(pool)))) == [
        (1, 9, 0, row_body(1, b"a"), "id"),
        (1, 9, 1, body, "id"),
        (2, 9, 2, body, "id"),
        (2, 9, 3, row_body(2, b"b"), "id"),
    ]


def test_a_new_version_of_a_table_is_a_batch_of_its_own_even_when_it_is_an_old_one(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool)
    old, new = relation(1, columns=("a",)), relation(1, columns=("b",))
    feed(wire, stream, begin(9), old, row(1, b"1"), old, row(1, b"2"), new, row(1, b"3"), old, row(1, b"4"), commit(9))
    cut = stream.take_chunk(taken(pool))
    assert [item.batch.num_rows for item in cut.batches()] == [2, 1, 1]
    assert [(event[2], event[4]) for event in events_of(cut)] == [(0, "a"), (1, "a"), (2, "b"), (3, "a")]


def test_a_keepalive_moves_the_position_only_between_transactions(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool)
    feed(wire, stream, keepalive(1000, clock=5_000_000, reply=True))
    assert stream.wants_reply
    progress = stream.progress()
    assert (progress.arena, progress.resolved_ts, progress.resolved_time) == (None, 999, 946684805.0)
    feed(wire, stream, begin(2000), keepalive(1500))
    assert stream.resolved_ts == 999
    feed(wire, stream, relation(1), row(1, b"a"), commit(2000), keepalive(2005))
    assert stream.resolved_ts == 2009


def test_reports_say_the_end_of_what_is_durable(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool)
    stream.report(stream.resolved_ts, ask_reply=True)
    sent = wire.server.recv(100)
    assert sent[:6] == b"d\x00\x00\x00\x26r"
    assert [int.from_bytes(sent[at : at + 8], "big") for at in (6, 14, 22)] == [1, 1, 1]
    assert sent[-1:] == b"\x01"


@pytest.mark.parametrize(
    ("messages", "error", "words"),
    [
        ([begin(9), row(5, b"a")], SourceUnreachableError, "has not described"),
        ([b"d\0\0\0\1"], SourceUnreachableError, "no replication message"),
        ([message(b"B1234")], SourceUnreachableError, "no replication message"),
        ([message(b"C1234")], SourceUnreachableError, "no replication message"),
        ([begin(9), message(b"I12")], SourceUnreachableError, "no replication message"),
        ([keepalive(100), begin(50)], SourceUnreachableError, "behind its own position"),
        ([b"c\0\0\0\4"], SourceUnreachableError, "ended the replication stream"),
        (
            [b"E\0\0\0\x33SFATAL\0C57P01\0Mterminating connection: shutdown\0\0"],
            SourceUnreachableError,
            "terminating connection",
        ),
    ],
)
def test_what_ends_a_stream(
    wire: Wire, pool: ArenaPool, messages: list[bytes], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        feed(wire, stream_on(wire, pool), *messages)


def test_an_invalidated_slot_is_a_lost_position(wire: Wire, pool: ArenaPool) -> None:
    text = b'SERROR\0C55000\0Mcan no longer access replication slot "x"\0\0'
    with pytest.raises(SnapshotLostByGCError, match=r"`weir changefeed resume --resync`"):
        feed(wire, stream_on(wire, pool), b"E" + (len(text) + 4).to_bytes(4, "big") + text)


def test_a_closed_connection_ends_a_stream(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool)
    wire.server.close()
    with pytest.raises(SourceUnreachableError):
        stream.read(timeout_s=1.0)


def test_the_error_of_a_lost_connection_does_not_keep_the_memory(wire: Wire, pool: ArenaPool) -> None:
    stream = stream_on(wire, pool)
    memory = weakref.ref(stream._arena.data)
    wire.server.close()
    with pytest.raises(SourceUnreachableError) as kept:
        stream.read(timeout_s=1.0)
    pool.close()
    assert memory() is None, kept.value


def test_what_a_burst_has_filled_is_given_back_after_it(pool: ArenaPool) -> None:
    arena = taken(pool)
    for filled, is_kept in ((100, True), (4000, True), (4000, True), (100, False)):
        arena.filled = filled
        pool.give(arena)
        others = [taken(pool) for _ in range(3)]
        assert (arena in others) is is_kept
        for other in others:
            if other is not arena:
                pool.give(other)


_transactions = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.binary(max_size=300)), min_size=1, max_size=12), max_size=25
)


@settings(max_examples=many(60), deadline=None)
@given(
    transactions=_transactions,
    blocks=st.lists(st.integers(1, 5000), min_size=1),
    eager=st.booleans(),
    in_turns=st.booleans(),
)
def test_every_event_comes_out_once_and_in_order(
    transactions: list[list[tuple[int, bytes]]], blocks: list[int], eager: bool, in_turns: bool
) -> None:
    sent, expected = _model(transactions)
    pool, found, positions = ArenaPool(2, 1024), list[StreamedEvent](), list[int]()
    wire, sent_bytes = Wire(), 0
    try:
        stream = stream_on(wire, pool, split_s=0.0 if in_turns else 60.0)
        for block in _blocks(sent, blocks):
            wire.server.sendall(block)
            sent_bytes += len(block)
            while stream.bytes_read < sent_bytes or stream.is_behind:
                stream.read(timeout_s=1.0)
                while stream.is_full or (eager and stream.complete_rows):
                    cut = stream.take_chunk(taken(pool))
                    found += events_of(cut)
                    positions.append(cut.resolved_ts)
                    pool.give(taken_arena(cut))
        if stream.complete_rows:
            found += events_of(stream.take_chunk(taken(pool)))
    finally:
        wire.close()
    assert sorted(found, key=lambda event: event[1:3]) == expected
    assert positions == sorted(positions)
    assert stream.resolved_ts == (100 * len(transactions) + 9 if transactions else 0)


def _model(transactions: list[list[tuple[int, bytes]]]) -> tuple[bytes, list[StreamedEvent]]:
    sent, expected, declared = b"", [], set()
    for number, rows in enumerate(transactions, 1):
        sent += begin(100 * number)
        for seq, (table, data) in enumerate(rows):
            if table not in declared:
                declared.add(table)
                sent += relation(table)
            sent += row(table, data)
            expected.append((table, 100 * number, seq, row_body(table, data), "id"))
        sent += commit(100 * number) + copy_data(b"k" + bytes(17))
    return sent, expected


def _blocks(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at, number = 0, 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        yield data[at : at + size]
        at, number = at + size, number + 1
