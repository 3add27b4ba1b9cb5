"""Slots and publications that Weir creates at the server: none stays when a changefeed is removed."""

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent.errors import SlotInUseError, SourceConfigError, SourceError, TableIneligibleError, TableLockedError
from agent.sources.postgres.publication import slots
from agent.sources.postgres.publication.slots import Names, names_for
from agent.sources.postgres.server import table_locks
from agent.sources.postgres.server.connection import Connection, connect
from capture.embedded import EmbeddedPostgres
from reactor.records.tables.table import TableRecord
from tests.patience import patient
from tests.shared_postgres import give_back

_numbers = itertools.count()


@pytest.fixture
def uri(postgres: EmbeddedPostgres) -> Iterator[str]:
    name = f"slots{next(_numbers)}"
    postgres.create_database(name)
    yield postgres.uri(name)
    give_back(postgres, name)


def table(connection: Connection, name: str) -> TableRecord:
    (oid,) = connection.query(f"SELECT '{name}'::regclass::oid::int8")[0]
    return TableRecord(table_id=int(oid or 0), schema_name="public", name=name)


def published(connection: Connection) -> dict[str, list[str]]:
    rows = connection.query("SELECT pubname, tablename FROM pg_publication_tables ORDER BY 1, 2")
    return {name: [str(row[1]) for row in group] for name, group in itertools.groupby(rows, lambda row: str(row[0]))}


@pytest.mark.parametrize(
    ("cluster", "feed", "slot"),
    [("c", "my-feed", "weir_c_my_feed"), ("default", "a1", "weir_default_a1"), ("c", "Feed", "weir_c_feed_")],
)
def test_names_come_from_the_ids(cluster: str, feed: str, slot: str) -> None:
    names = names_for(cluster, feed)
    assert names.slot.startswith(slot)
    assert names.publication == names.slot
    assert names.owns_slot
    assert names.owns_publication


def test_ids_that_differ_in_capitals_have_different_slots() -> None:
    assert len({names_for("c", feed).slot for feed in ("feed", "Feed", "fEED")}) == 3


def test_given_names_are_used_and_checked() -> None:
    assert names_for("c", "f", slot="mine", publication="theirs") == Names(
        "mine", "theirs", owns_slot=False, owns_publication=False
    )
    assert names_for("c", "f", slot="mine") == Names("mine", "weir_c_f", owns_slot=False)
    with pytest.raises(SourceConfigError, match="slot name 'No-Good' is not valid"):
        names_for("c", "f", slot="No-Good")
    with pytest.raises(SourceConfigError, match="too long; choose a shorter changefeed id"):
        names_for("c", "f" * 80)


def test_many_tables_are_published_some_at_a_time(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement would lock more tables than the server has room for."""
    monkeypatch.setattr(slots, "_PUBLISHED_AT_ONCE", 2)
    names = names_for("c", uri.rsplit("/", 1)[-1])
    with connect(uri) as connection:
        connection.query("".join(f"CREATE TABLE t{n} (i int PRIMARY KEY);" for n in range(7)))
        tables = [table(connection, f"t{n}") for n in range(7)]
        for wanted in (tables[:5], tables[3:], tables, tables[:1], tables[6:]):
            slots.ensure_publications(connection, names, wanted)
            assert published(connection) == {names.publication: [record.name for record in wanted]}
        slots.drop_upstream(uri, names)


def test_upstream_objects_follow_the_tables_and_go_with_the_changefeed(uri: str) -> None:
    names = names_for("c", uri.rsplit("/", 1)[-1])
    with connect(uri) as connection:
        connection.query(
            "CREATE TABLE a (i int PRIMARY KEY); CREATE TABLE b (i int PRIMARY KEY); CREATE TABLE h (i int)"
        )
        a, b, h = (table(connection, name) for name in "abh")
        first_ts = slots.open_upstream(uri, names, [a]).ts
        assert published(connection) == {names.publication: ["a"]}
        start_ts = slots.open_upstream(uri, names, [b, h]).ts
        assert start_ts > first_ts
        assert published(connection) == {names.publication: ["b"], names.publication + "_append": ["h"]}
        slots.check_position(connection, names.slot, start_ts)

        with connect(uri, replication=True) as reader:
            reader.start_copy(
                f"START_REPLICATION SLOT {names.slot} LOGICAL 0/0 "
                f"(proto_version '1', publication_names '{names.publication}')"
            )
            with connect(uri, replication=True) as second, pytest.raises(SlotInUseError, match="is active for PID"):
                second.start_copy(
                    f"START_REPLICATION SLOT {names.slot} LOGICAL 0/0 "
                    f"(proto_version '1', publication_names '{names.publication}')"
                )
            slots.drop_upstream(uri, names)
        assert published(connection) == {}
        assert slots.slot_status(connection, names.slot) is None
        slots.drop_upstream(uri, names)


def test_a_late_drop_does_not_meet_a_successor_of_the_same_id(uri: str) -> None:
    feed = uri.rsplit("/", 1)[-1]
    before, after = (names_for("c", feed, incarnation=one) for one in ("0a1b2c3d", "4e5f6a7b"))
    with connect(uri) as connection:
        connection.query("CREATE TABLE a (i int PRIMARY KEY)")
        records = [table(connection, "a")]
        slots.open_upstream(uri, before, records)
        slots.drop_upstream(uri, before)
        start_ts = slots.open_upstream(uri, after, records).ts
        slots.drop_upstream(uri, before)
        slots.check_position(connection, after.slot, start_ts)
        assert published(connection) == {after.publication: ["a"]}
    slots.drop_upstream(uri, after)


def test_a_reader_that_takes_nothing_any_more_is_ended(uri: str) -> None:
    """As one is whose cable is cut: what the server still has to say to it fills every buffer."""
    names = names_for("c", uri.rsplit("/", 1)[-1])
    with connect(uri) as connection, connect(uri, replication=True) as reader:
        connection.query("CREATE TABLE a (i int PRIMARY KEY, t text)")
        slots.open_upstream(uri, names, [table(connection, "a")])
        reader.start_copy(
            f"START_REPLICATION SLOT {names.slot} LOGICAL 0/0 "
            f"(proto_version '1', publication_names '{names.publication}')"
        )
        status = slots.slot_status(connection, names.slot)
        assert status is not None
        pid = status.active_pid
        connection.query("INSERT INTO a SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 10000) AS i")
        blocked = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'WalSenderWriteData'"
        while not connection.query(blocked):
            time.sleep(0.05)
        started = time.monotonic()
        slots.evict_reader(connection, names.slot)
        assert time.monotonic() - started < patient(4)
        slots.drop_slot(connection, names.slot)


def test_who_holds_a_slot_without_reading_it_is_left_alone(uri: str) -> None:
    names = names_for("c", "f")
    with connect(uri) as connection, connect(uri) as other:
        other.query(f"SELECT pg_create_logical_replication_slot('{names.slot}', 'pgoutput', temporary => true)")
        slots.evict_reader(connection, names.slot)
        assert other.query("SELECT 1") == [("1",)]
        with pytest.raises(SlotInUseError):
            slots.drop_slot(connection, names.slot)


def test_a_publication_of_the_user_is_used_but_never_changed(uri: str) -> None:
    names = names_for("c", "f", publication="mine")
    with connect(uri) as connection:
        connection.query("CREATE TABLE a (i int PRIMARY KEY); CREATE TABLE b (i int PRIMARY KEY)")
        connection.query("CREATE PUBLICATION mine FOR TABLE a")
        a, b = (table(connection, name) for name in "ab")
        assert slots.ensure_publications(connection, names, [a]) == ("mine",)
        assert slots.ensure_publications(connection, names, [a, b]) == ("mine",)
        slots.drop_upstream(uri, names)
        assert published(connection) == {"mine": ["a"]}


def test_a_table_of_somebody_else_cannot_be_published(postgres: EmbeddedPostgres, uri: str) -> None:
    with connect(uri) as connection:
        connection.query("CREATE TABLE a (i int PRIMARY KEY)")
        connection.query("DROP ROLE IF EXISTS publisher; CREATE ROLE publisher LOGIN REPLICATION PASSWORD 'pw'")
        records = [table(connection, "a")]
    name = uri.rsplit("/", 1)[-1]
    with (
        connect(f"postgresql://publisher:pw@127.0.0.1:{postgres.port}/{name}") as connection,
        pytest.raises(SourceError, match=r"publisher lacks a privilege .*; have it granted"),
    ):
        slots.ensure_publications(connection, names_for("c", "f"), records)


def test_a_table_without_identity_joins_where_its_updates_are_not_refused(uri: str) -> None:
    """Published with updates, it would take them from the applications of its source."""
    names = names_for("c", uri.rsplit("/", 1)[-1])
    with connect(uri) as connection:
        connection.query(
            "CREATE TABLE a (i int PRIMARY KEY); CREATE TABLE h (i int); CREATE TABLE late (i int); "
            "CREATE TABLE whole (i int); ALTER TABLE whole REPLICA IDENTITY FULL; INSERT INTO late VALUES (1)"
        )
        a, h, late, whole = (table(connection, name) for name in ("a", "h", "late", "whole"))
        ours, append = slots.all_publications(names)
        assert slots.ensure_publications(connection, names, [a]) == (ours, append)
        slots.publish(connection, names, [whole, late])
        slots.publish(connection, names, [whole, late])
        assert published(connection) == {ours: ["a", "whole"], append: ["late"]}
        assert slots.ensure_publications(connection, names, [h]) == (ours, append)
        slots.publish(connection, names, [a, late, whole])
        assert published(connection) == {ours: ["a", "whole"], append: ["h", "late"]}
        connection.query("UPDATE late SET i = 2; UPDATE whole SET i = 2")


def test_a_changefeed_of_an_earlier_version_gets_its_other_publication_with_a_new_slot(uri: str) -> None:
    """Its stream is before the publication, and would end where that does not exist yet."""
    names = names_for("c", uri.rsplit("/", 1)[-1])
    ours, append = slots.all_publications(names)
    with connect(uri) as connection:
        connection.query("CREATE TABLE a (i int PRIMARY KEY); CREATE TABLE h (i int)")
        a, h = (table(connection, name) for name in "ah")
        for there, lacking, member, other in ((ours, append, a, h), (append, ours, h, a)):
            assert slots.ensure_publications(connection, names, []) == (ours, append)
            connection.query(f"DROP PUBLICATION {lacking}")
            for _ in range(2):
                assert slots.ensure_publications(connection, names, [member]) == (there,)
            with pytest.raises(TableIneligibleError, match=r"cannot join: .* replica identity, was not made"):
                slots.publish(connection, names, [other])
            slots.open_upstream(uri, names, [member])
            slots.publish(connection, names, [other])
            assert published(connection) == {ours: ["a"], append: ["h"]}
            slots.drop_upstream(uri, names)


def test_a_table_that_inherits_from_another_is_not_published_with_it(uri: str) -> None:
    """Without a key, its updates were refused to applications."""
    with connect(uri) as connection:
        connection.query("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
        connection.query("CREATE TABLE of_a () INHERITS (a); CREATE TABLE of_b () INHERITS (b)")
        names = names_for("c", "heirs")
        slots.ensure_publications(connection, names, [table(connection, "a")])
        slots.publish(connection, names, [table(connection, "b")])
        assert published(connection) == {names.publication: ["a", "b"]}
        connection.query("INSERT INTO of_a VALUES (1); UPDATE a SET id = 2")
        slots.ensure_publications(connection, names, [table(connection, "a")])
        assert published(connection) == {names.publication: ["a"]}
        slots.drop_upstream(uri, names)


def test_a_creation_that_is_interrupted_is_made_as_a_whole(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first of its two publications."""
    names = names_for("c", uri.rsplit("/", 1)[-1])
    ensure = slots._ensure_publication

    def once(*arguments: Any) -> None:
        ensure(*arguments)
        raise SystemExit

    with connect(uri) as connection:
        connection.query("CREATE TABLE a (i int PRIMARY KEY); CREATE TABLE h (i int)")
        a, h = (table(connection, name) for name in "ah")
        for wanted in ([], [a], [h], [a, h]):
            monkeypatch.setattr(slots, "_ensure_publication", once)
            with pytest.raises(SystemExit):
                slots.ensure_publications(connection, names, wanted)
            monkeypatch.setattr(slots, "_ensure_publication", ensure)
            assert slots.ensure_publications(connection, names, wanted) == slots.all_publications(names)
            slots.drop_upstream(uri, names)


def test_a_locked_table_is_named(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_locks, "LOCK_WAIT_MS", 100)
    names = names_for("c", "locked")
    with connect(uri) as connection, connect(uri) as other:
        connection.query("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
        tables = [table(connection, name) for name in "ab"]
        [[pid]] = other.query("SELECT pg_backend_pid()::int8")
        other.query("BEGIN")
        other.query("LOCK TABLE b IN SHARE UPDATE EXCLUSIVE MODE")
        with pytest.raises(TableLockedError, match=rf"table public\.b of .* is locked by process {pid} \(user '"):
            slots.ensure_publications(connection, names, tables)
        other.query("ROLLBACK")
        slots.ensure_publications(connection, names, tables)
        assert published(connection) == {names.publication: ["a", "b"]}
        slots.drop_upstream(uri, names)


def test_two_sessions_may_publish_the_same_tables_at_once(uri: str) -> None:
    """A run that was given up while it waited for a lock, and the next one: the later of the two was refused, as the
    tables were published by then, and the changefeed failed."""
    names = names_for("c", "twice")
    with connect(uri) as one, connect(uri) as two, connect(uri) as other, ThreadPoolExecutor() as pool:
        other.query("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE h (id int)")
        tables = [table(other, name) for name in "ah"]
        slots.ensure_publications(one, names, [])
        other.query("BEGIN")
        other.query("LOCK TABLE a, h IN ACCESS EXCLUSIVE MODE")
        running = [pool.submit(slots.ensure_publications, session, names, tables) for session in (one, two)]
        both = "relation = 'h'::regclass OR classid = 'pg_publication'::regclass"  # the second waits for the first
        waiting = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND ({both})"
        other.query(f"DO $$ BEGIN WHILE ({waiting}) < 2 LOOP PERFORM pg_sleep(0.01); END LOOP; END $$")
        other.query("ROLLBACK")
        for session in running:
            session.result(patient(20.0))
        assert published(other) == {names.publication: ["a"], names.publication + "_append": ["h"]}
        slots.drop_upstream(uri, names)
