"""The statements of each call, against the store in memory, whose clock they share."""

import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from reactor.errors import CompactedError, LeaseExpiredError, RevisionsLostError, StoreUnreachableError
from reactor.store.memory import MemoryEtcd
from reactor.store.port import Compare, Delete, Event, Operation, Put, Target
from reactor.store.sql import logic
from reactor.store.sql.database import Query, after
from reactor.store.sql.logic import Change, Seen
from reactor.store.sql.sqlite import Clock, SqliteDatabase

T = TypeVar("T")


class Time:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0


def _open(path: Path, time: Time, boot: str = "first boot") -> SqliteDatabase:
    return SqliteDatabase(path, busy_s=5, clock=Clock(boot, lambda: time.now))


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def database(path: Path, time: Time) -> Iterator[SqliteDatabase]:
    with closing(_open(path, time)) as found:
        yield found


def write(database: SqliteDatabase, ask: Callable[[Change], T]) -> T:
    with database.writing(lambda: False) as statements:
        change = Change(statements)
        try:
            return ask(change)
        finally:
            change.finish()


def txn(database: SqliteDatabase, operations: list[Operation], compares: list[Compare] | None = None) -> int:
    return write(database, lambda change: change.txn(compares or [], operations, Seen())[0]).revision


def grant(database: SqliteDatabase, ttl_s: int) -> int:
    return write(database, lambda change: change.grant(ttl_s, Seen()))


def leases_of(database: SqliteDatabase) -> int:
    write(database, lambda change: change.settle(Seen()))
    with database.reading() as statements:
        ((count,),) = statements.read(Query("SELECT count(*) FROM weir_lease"))[0]
    return int(count)


def keys(database: SqliteDatabase) -> list[str]:
    with database.reading() as statements:
        return [item.key for item in logic.get_prefix(statements, "")[0].items]


def events(database: SqliteDatabase, start: int) -> list[Event]:
    found, is_last = list[Event](), False
    while not is_last:
        with database.reading() as statements:
            page, _ = logic.page(statements, "", start)
        found += page.events
        start, is_last = page.next_revision, page.is_last
    return found


@pytest.mark.matrix
@pytest.mark.looptime
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(2, 8))])
async def test_it_answers_as_the_store_in_memory_while_leases_come_and_end(path: Path, seed: int) -> None:
    chance, memory = random.Random(seed), MemoryEtcd()
    ids = {0: 0}
    with closing(SqliteDatabase(path, busy_s=5, clock=Clock("", anyio.current_time))) as database:
        for step in range(250):
            # so often that no two leases end at once: in which order they do then is nobody's promise
            for _ in range(chance.choice([0, 0, 40])):
                await anyio.sleep(chance.uniform(0.005, 0.02))
                memory.expire()
                if len(memory._leases) < leases_of(database):  # its deadlines are rounded up
                    await anyio.sleep(0.002)
                    memory.expire()
                assert len(memory._leases) == leases_of(database)
            match chance.choice(["txn", "txn", "txn", "grant", "keep", "revoke"]):
                case "grant":
                    ttl_s = chance.randint(1, 20)
                    ids[memory.grant(ttl_s)] = grant(database, ttl_s)
                    await anyio.sleep(0.01)
                case "keep" if (lease := chance.choice(list(ids))) in memory._leases:
                    kept = write(database, lambda change: change.keep_alive(ids[lease], Seen()))  # noqa: B023
                    assert kept == memory.keep_alive(lease)
                    await anyio.sleep(0.01)
                case "revoke" if chance.random() < 0.2:
                    lease = chance.choice(list(ids))
                    memory.revoke(lease)
                    write(database, lambda change: change.revoke(ids[lease], Seen()))  # noqa: B023
                case _:
                    names = chance.sample("abcdefgh", chance.randint(1, 4))
                    leases = [chance.choice([lease for lease in ids if not lease or lease in memory._leases])]
                    compare = Compare(chance.choice("abcdefgh"), chance.choice(list(Target)), chance.choice([0, 1, 5]))
                    asked: list[Operation] = [
                        Put(name, b"%d" % step, leases[0]) if chance.random() < 0.7 else Delete(name) for name in names
                    ]
                    own = [Put(op.key, op.value, ids[op.lease]) if isinstance(op, Put) else op for op in asked]
                    expected = memory.txn([compare], asked)
                    assert write(database, lambda c: c.txn([compare], own, Seen())[0]) == expected  # noqa: B023
        found = memory.events_from("", 1)
        assert found is not None
        theirs = [
            (each.key, each.value, each.mod_revision, each.create_revision, ids[each.lease]) for each in found.events
        ]
        ours = [(e.key, e.value, e.mod_revision, e.create_revision, e.lease) for e in events(database, 1)]
        assert ours == theirs


def test_a_lease_that_is_over_is_never_extended_and_its_keys_are_never_compared(
    database: SqliteDatabase, time: Time
) -> None:
    lease = grant(database, 10)
    revision = txn(database, [Put("/a", b"", lease)])
    time.now += 10.1
    held = Compare("/a", Target.MOD_REVISION, revision)
    result, _ = write(database, lambda change: change.txn([held], [Put("/b", b"")], Seen()))
    assert not result.succeeded
    assert keys(database) == []
    time.now -= 5  # a clock of a database server may be set
    with pytest.raises(LeaseExpiredError):
        write(database, lambda change: change.keep_alive(lease, Seen()))
    with pytest.raises(LeaseExpiredError):
        txn(database, [Put("/a", b"", lease)])


def test_a_lease_lasts_as_long_as_the_session_that_asked_before_it_was_granted(
    database: SqliteDatabase, time: Time
) -> None:
    time.now = 1000.0009
    txn(database, [Put("/a", b"", grant(database, 10))])
    time.now += 10
    write(database, lambda change: change.settle(Seen()))
    assert keys(database) == ["/a"]
    time.now += 0.002
    write(database, lambda change: change.settle(Seen()))
    assert keys(database) == []


def test_after_a_boot_each_lease_has_its_whole_time_once_more(path: Path, time: Time) -> None:
    with closing(_open(path, time)) as before:
        txn(before, [Put("/a", b"", grant(before, 10))])
    time.now = 3
    with closing(_open(path, time, "second boot")) as after:
        write(after, lambda change: change.settle(Seen()))
        time.now += 9.9
        write(after, lambda change: change.settle(Seen()))
        assert keys(after) == ["/a"]
        time.now += 0.2
        write(after, lambda change: change.settle(Seen()))
        assert keys(after) == []


def test_the_journal_keeps_a_bounded_number_of_revisions(database: SqliteDatabase) -> None:
    with database.writing(lambda: False) as statements:
        statements.write("UPDATE weir_store SET revision = ? WHERE id = ?", [[14_998, 1]])
        statements.write(
            "INSERT INTO weir_change VALUES (?, 0, 0, 'x', NULL, 0, 0)", [[revision] for revision in range(2, 14_999)]
        )
    txn(database, [Put("/a", b"")])
    assert len(events(database, 2)) == 14_998
    txn(database, [Put("/a", b"")])
    with pytest.raises(CompactedError):
        events(database, 4_999)
    assert len(events(database, 5_000)) == 10_001


def test_a_store_that_went_back_is_noticed(path: Path, database: SqliteDatabase, time: Time) -> None:
    txn(database, [Put("/a", b"1")])
    txn(database, [Put("/a", b"2")])
    with database.reading() as statements:
        seen = logic.head(statements).seen
    other = path.with_name("backup.db")
    with closing(_open(other, time)) as backup:
        txn(backup, [Put("/a", b"1")])
        with pytest.raises(RevisionsLostError):
            write(backup, lambda change: change.settle(seen))
        txn(backup, [Put("/a", b"other")])
        with pytest.raises(RevisionsLostError):  # the same number, but not the same revision
            write(backup, lambda change: change.settle(seen))
        txn(backup, [Put("/a", b"more")])
        with backup.reading() as statements, pytest.raises(RevisionsLostError):  # beyond, by another way
            logic.check_same(statements, seen)
    txn(database, [Put("/a", b"3")])
    with database.reading() as statements:
        logic.check_same(statements, seen)


def _seen(database: SqliteDatabase) -> Seen:
    with database.reading() as statements:
        return logic.head(statements).seen


def test_a_standby_that_lacked_revisions_is_noticed_however_far_it_has_gone(path: Path, time: Time) -> None:
    """Its journal has forgotten where it left the history that was seen."""
    standby, late = path.with_name("standby.db"), path.with_name("late.db")
    with closing(_open(path, time)) as primary:
        txn(primary, [Put("/a", b"1")])
        _copy(path, standby)
        txn(primary, [Put("/a", b"2")])
        seen = _seen(primary)
        _copy(path, late)
    for file, has_all in ((standby, False), (late, True)):
        with closing(_open(file, time, "another server")) as promoted:
            for number in range(3):
                txn(promoted, [Put("/a", b"%d" % number)])
            write(promoted, lambda change: change.pass_revision(50_000, Seen()))
            with promoted.reading() as statements:
                if has_all:
                    logic.check_same(statements, seen)
                else:
                    with pytest.raises(RevisionsLostError, match="a standby took over without it"):
                        logic.check_same(statements, seen)


def test_a_standby_that_lacks_the_lineage_that_was_seen_is_noticed(path: Path, time: Time) -> None:
    """The server was restarted, and wrote, after the last that the standby has."""
    standby = path.with_name("standby.db")
    with closing(_open(path, time)) as primary:
        txn(primary, [Put("/a", b"1")])
        _copy(path, standby)
    with closing(_open(path, time, "restarted")) as primary:
        txn(primary, [Put("/a", b"2")])
        seen = _seen(primary)
    with closing(_open(standby, time, "another server")) as promoted:
        for _ in range(3):
            txn(promoted, [Put("/a", b"other")])
        write(promoted, lambda change: change.pass_revision(50_000, Seen()))
        with promoted.reading() as statements, pytest.raises(RevisionsLostError):
            logic.check_same(statements, seen)


def test_restarts_of_the_same_store_are_not_taken_for_another(path: Path, time: Time) -> None:
    seen = [Seen()]
    for boot in range(5):
        with closing(_open(path, time, f"boot {boot}")) as database:
            if boot % 2:
                write(database, lambda change: change.settle(Seen()))  # under another clock, without a revision
            for old in seen:
                with database.reading() as statements:
                    logic.check_same(statements, old)
            txn(database, [Put("/a", b"%d" % boot)])
            seen.append(_seen(database))
            for old in seen:
                with database.reading() as statements:
                    logic.check_same(statements, old)


def _copy(path: Path, to: Path) -> None:
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(to)) as other:
        one.backup(other)


def test_a_store_that_was_written_before_lineages_gets_one(path: Path, time: Time) -> None:
    with closing(_open(path, time)) as database:
        txn(database, [Put("/a", b"1")])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE weir_lineage")
    with closing(_open(path, time)) as database:
        seen = _seen(database)
        assert seen.lineage
        with database.reading() as statements:
            logic.check_same(statements, seen)
        assert keys(database) == ["/a"]


def test_what_a_caller_has_given_up_is_not_committed(database: SqliteDatabase) -> None:
    with pytest.raises(StoreUnreachableError), database.writing(lambda: True) as statements:
        Change(statements).txn([], [Put("/a", b"")], Seen())
    assert keys(database) == []


@contextmanager
def _killed_at(database: SqliteDatabase, place: int) -> Iterator[None]:
    """Kill this process when it begins its statement number ``place``."""
    left = place

    def count(_: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    database._connection.set_trace_callback(count)
    yield
    database._connection.set_trace_callback(None)


def _survives(path: Path, time: Time, place: int) -> bool:
    child = os.fork()
    if not child:
        database = _open(path, time)
        with _killed_at(database, place):
            txn(database, [Put("/b", b""), Delete("/c")])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


@pytest.mark.matrix
def test_a_process_killed_between_any_two_statements_has_done_all_or_nothing(tmp_path: Path, time: Time) -> None:
    """It ends a lease with two keys, then writes; the next process finds both done or neither."""
    outcomes = set()
    for place in range(1, 100):
        path = tmp_path / f"{place}.db"
        with closing(_open(path, time)) as database:
            lease = grant(database, 10)
            start = txn(database, [Put("/a", b"", lease), Put("/aa", b"", lease), Put("/c", b"")])
        later = Time()
        later.now = time.now + 11
        has_survived = _survives(path, later, place)
        with closing(_open(path, time)) as database:
            found = (
                tuple(keys(database)),
                tuple((event.key, event.mod_revision) for event in events(database, start + 1)),
            )
            outcomes.add(found)
            with database.reading() as statements:
                left, _ = logic.time_to_live(statements, lease)
            assert (left is None) == bool(found[1])
        if has_survived:
            break
    assert outcomes == {
        (("/a", "/aa", "/c"), ()),
        (("/b",), (("/a", start + 1), ("/aa", start + 1), ("/b", start + 2), ("/c", start + 2))),
    }
    assert place > 10, "every statement of the transaction was a place to die at"


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(
    ("prefix", "expected"), [("/a/", "/a0"), ("a\U0010ffff", "b"), ("", "\U0010ffff"), ("\ud7ff", "\ue000")]
)
def test_the_end_of_a_prefix(prefix: str, expected: str) -> None:
    assert after(prefix) == expected
