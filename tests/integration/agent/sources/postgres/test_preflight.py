"""Every way in which a source can be unfit for a changefeed is one line that names cause and cure."""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from agent.errors import SourceAuthError, SourceConfigError, SourceUnreachableError, TableIneligibleError
from agent.ports.source import Scope, SourceReport
from agent.sources.postgres.preflight import check_source
from agent.sources.postgres.publication import digest, slots
from agent.sources.postgres.publication.slots import create_slot, drop_slot, names_for
from agent.sources.postgres.server.connection import catalog_session, connect
from agent.sources.postgres.source import PostgresSource
from capture.embedded import EmbeddedPostgres
from capture.embedded import postgres as embedded
from reactor.errors import WeirError
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests.shared_postgres import give_back

_numbers = itertools.count()


@pytest.fixture
def uri(postgres: EmbeddedPostgres) -> Iterator[str]:
    name = f"preflight{next(_numbers)}"
    postgres.create_database(name)
    yield postgres.uri(name)
    give_back(postgres, name)


def execute(uri: str, sql: str) -> None:
    with connect(uri) as connection:
        connection.query(sql)


def check(uri: str, *rules: str, force: bool = False, mode: SinkMode = SinkMode.UPSERT, slot: str = "") -> SourceReport:
    return check_source(uri, rules or ("*.*",), force_replicate=force, sink_mode=mode, new_slot=slot)


def keys_of(report: SourceReport) -> dict[str, tuple[str, ...]]:
    return {f"{table.schema_name}.{table.name}": table.key for table in report.tables}


def test_tables_are_found_with_the_key_their_changes_will_carry(uri: str) -> None:
    execute(
        uri,
        "CREATE TABLE plain (b int, a int, PRIMARY KEY (b, a));"
        "CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, CONSTRAINT u UNIQUE (code));"
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX u;"
        "CREATE TABLE whole (x int NOT NULL, y int); CREATE UNIQUE INDEX ON whole (x);"
        "ALTER TABLE whole REPLICA IDENTITY FULL;"
        "CREATE SCHEMA s; CREATE TABLE s.parts (id int PRIMARY KEY) PARTITION BY HASH (id);"
        "CREATE TABLE s.parts0 PARTITION OF s.parts FOR VALUES WITH (MODULUS 1, REMAINDER 0);"
        "CREATE UNLOGGED TABLE fast (id int PRIMARY KEY); CREATE TEMP TABLE gone (id int PRIMARY KEY);"
        "CREATE VIEW v AS SELECT 1",
    )
    report = check(uri)
    assert keys_of(report) == {
        "public.by_index": ("code",),
        "public.plain": ("b", "a"),
        "public.whole": ("x",),
        "s.parts": ("id",),
    }
    assert report.identity.system_id.isdigit()
    assert keys_of(check(uri, "*.*", "!s.*", "!public.[a-b]*")) == {"public.plain": ("b", "a"), "public.whole": ("x",)}


@pytest.mark.parametrize(
    ("sql", "mode", "message"),
    [
        ("CREATE TABLE t (a int)", SinkMode.UPSERT, r"public\.t has no primary key.*force-replicate = true"),
        ("CREATE TABLE t (a int)", SinkMode.CHANGELOG, r"public\.t has no primary key.*REPLICA IDENTITY FULL"),
        (
            "CREATE TABLE t (a int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING",
            SinkMode.UPSERT,
            r"set to NOTHING.*REPLICA IDENTITY FULL",
        ),
        (
            "CREATE TABLE t (a int); ALTER TABLE t REPLICA IDENTITY FULL",
            SinkMode.UPSERT,
            r"public\.t has no primary key or unique NOT NULL key.*changelog",
        ),
        # neither a partial index nor one over a nullable column is a key
        (
            "CREATE TABLE t (a int, b int NOT NULL); CREATE UNIQUE INDEX ON t (a);"
            "CREATE UNIQUE INDEX ON t (b) WHERE b > 0; ALTER TABLE t REPLICA IDENTITY FULL",
            SinkMode.UPSERT,
            r"public\.t has no primary key or unique NOT NULL key",
        ),
    ],
)
def test_a_table_without_a_usable_key_needs_force(uri: str, sql: str, mode: SinkMode, message: str) -> None:
    execute(uri, sql)
    with pytest.raises(TableIneligibleError, match=message):
        check(uri, mode=mode)
    assert keys_of(check(uri, mode=mode, force=True)) == {"public.t": ()}


def test_a_table_without_columns_is_for_a_changelog_only(uri: str) -> None:
    """A changefeed that upserted it stayed pending."""
    execute(uri, "CREATE TABLE t ()")
    with pytest.raises(TableIneligibleError, match=r"public\.t has no columns"):
        check(uri, mode=SinkMode.UPSERT, force=True)
    check(uri, mode=SinkMode.CHANGELOG, force=True)


def test_full_identity_without_key_is_fine_for_a_changelog(uri: str) -> None:
    execute(uri, "CREATE TABLE t (a int); ALTER TABLE t REPLICA IDENTITY FULL")
    assert keys_of(check(uri, mode=SinkMode.CHANGELOG)) == {"public.t": ()}


def test_tables_may_come_later(uri: str) -> None:
    assert check(uri).tables == ()
    execute(uri, "CREATE TABLE t (a int PRIMARY KEY)")
    assert check(uri, "other.*").tables == ()


_PARTS = """
CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
CREATE TABLE r11 PARTITION OF r1 FOR VALUES FROM (0) TO (5);
CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20);
CREATE TABLE t (id int PRIMARY KEY);
"""


@pytest.mark.parametrize(
    ("publication", "rules", "tables"),
    [
        ("", ("*.*",), {"r", "t"}),
        ("", ("public.r*",), {"r"}),
        ("", ("public.r1*",), {"r1"}),
        ("", ("public.r11", "public.r2"), {"r11", "r2"}),
        ("FOR ALL TABLES", ("*.*",), {"r11", "r2", "t"}),
        ("FOR ALL TABLES", ("public.r11", "public.t"), {"r11", "t"}),
        ("FOR ALL TABLES WITH (publish_via_partition_root)", ("*.*",), {"r", "t"}),
        ("FOR TABLE r, t", ("*.*",), {"r11", "r2", "t"}),
        ("FOR TABLE r1", ("public.r1*",), {"r11"}),
        ("FOR TABLE r, t WITH (publish_via_partition_root)", ("*.*",), {"r", "t"}),
        ("FOR TABLE r, r1 WITH (publish_via_partition_root)", ("public.r*",), {"r"}),
        ("FOR TABLES IN SCHEMA public", ("*.*",), {"r11", "r2", "t"}),
    ],
)
def test_tables_are_those_that_the_publication_sends(
    uri: str, publication: str, rules: tuple[str, ...], tables: set[str]
) -> None:
    """Under the names under which it sends them."""
    execute(uri, _PARTS)
    if publication:
        execute(uri, f"CREATE PUBLICATION mine {publication}")
    report = check_source(
        uri, rules, force_replicate=False, sink_mode=SinkMode.UPSERT, publication="mine" if publication else ""
    )
    assert {table.name for table in report.tables} == tables


@pytest.mark.parametrize(
    ("publication", "is_refused"),
    [("FOR ALL TABLES", False), ("FOR TABLE r, t, e", False), ("FOR TABLES IN SCHEMA public", False),
     ("FOR TABLE r, t", True)],
)  # fmt: skip
def test_a_partitioned_table_without_partitions_is_sent_once_it_has_some(
    uri: str, publication: str, is_refused: bool
) -> None:
    """By leaf; the publication seemed to lack it."""
    execute(uri, f"{_PARTS}; CREATE TABLE e (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    execute(uri, "CREATE TABLE e1 PARTITION OF e FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id)")
    execute(uri, f"CREATE PUBLICATION mine {publication}")
    with pytest.raises(SourceConfigError, match=r"lacks public\.e;") if is_refused else nullcontext():
        report = check_source(uri, ("*.*",), force_replicate=False, sink_mode=SinkMode.UPSERT, publication="mine")
        assert {table.name for table in report.tables} == {"r11", "r2", "t"}


@pytest.mark.parametrize(
    ("publication", "rules", "refusal"),
    [
        ("FOR TABLE r", ("public.r",), "sends the rows of public.r as rows of its partitions; name those"),
        (
            "FOR ALL TABLES WITH (publish_via_partition_root)",
            ("public.r11",),
            "rows of public.r11 as rows of public.r;",
        ),
        (
            "FOR TABLE r",
            ("*.*",),
            "publication mine lacks public.t; run: ALTER PUBLICATION mine ADD TABLE public.t; or leave tables out by "
            "filter rules: !public.t",
        ),
        ("FOR TABLE t WITH (publish = 'insert, delete')", ("public.t",), "does not publish update, truncate, so"),
        ("", ("public.t",), "there is no publication mine"),
    ],
)
def test_a_publication_that_does_not_fit(uri: str, publication: str, rules: tuple[str, ...], refusal: str) -> None:
    execute(uri, _PARTS)
    if publication:
        execute(uri, f"CREATE PUBLICATION mine {publication}")
    with pytest.raises(SourceConfigError, match=refusal):
        check_source(uri, rules, force_replicate=False, sink_mode=SinkMode.UPSERT, publication="mine")


def test_all_tables_that_a_publication_lacks_are_named_at_once(uri: str) -> None:
    execute(uri, "; ".join(f"CREATE TABLE t{number:02} (a int PRIMARY KEY)" for number in range(23)))
    execute(uri, "CREATE PUBLICATION mine FOR TABLE t00")
    with pytest.raises(
        SourceConfigError,
        match=r"lacks public\.t01, .*t20 and 2 other tables; run: .* ADD TABLE public\.t01, .*!public",
    ):
        check_source(uri, ("*.*",), force_replicate=False, sink_mode=SinkMode.UPSERT, publication="mine")


def test_all_tables_without_a_key_are_named_at_once(uri: str) -> None:
    """They were refused one by one."""
    execute(uri, "; ".join(f"CREATE TABLE t{number:02} (a int)" for number in range(23)))
    with pytest.raises(
        TableIneligibleError, match=r"table public\.t00 .*; so it is with public\.t01, .*t20 and 2 more$"
    ):
        check_source(uri, ("*.*",), force_replicate=False, sink_mode=SinkMode.UPSERT)


def test_a_partition_without_identity_is_one_of_its_table(uri: str) -> None:
    """PostgreSQL does not pass REPLICA IDENTITY on: updates would be refused to the application."""
    execute(
        uri,
        "CREATE TABLE r (id int) PARTITION BY RANGE (id); ALTER TABLE r REPLICA IDENTITY FULL;"
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
    )
    with pytest.raises(
        TableIneligibleError, match=r"public\.r has no primary key or replica identity in its partition r1"
    ):
        check(uri, mode=SinkMode.CHANGELOG)
    execute(uri, "ALTER TABLE r1 REPLICA IDENTITY FULL")
    check(uri, mode=SinkMode.CHANGELOG)


def test_a_taken_slot_name(uri: str) -> None:
    execute(uri, "CREATE TABLE t (a int PRIMARY KEY)")
    with connect(uri, replication=True) as connection:
        create_slot(connection, "taken_name")
        with pytest.raises(SourceConfigError, match="slot taken_name exists already"):
            check(uri, slot="taken_name")
        drop_slot(connection, "taken_name")
    check(uri, slot="taken_name")


def test_no_replication_privilege(postgres: EmbeddedPostgres, uri: str) -> None:
    execute(uri, "CREATE TABLE t (a int PRIMARY KEY); CREATE ROLE reader_only LOGIN PASSWORD 'pw'")
    name = uri.rsplit("/", 1)[-1]
    with pytest.raises(SourceAuthError, match=r"reader_only may not replicate .* ALTER ROLE reader_only REPLICATION"):
        check(f"postgresql://reader_only:pw@127.0.0.1:{postgres.port}/{name}")


def test_nobody_there(postgres: EmbeddedPostgres, uri: str) -> None:
    secret = "s3cr3t"
    host = f"127.0.0.1:{postgres.port}"
    cases: list[tuple[str, type[WeirError], str]] = [
        (f"postgresql://postgres:{secret}@{host}/nowhere", SourceAuthError, "refuses the password of user postgres"),
        (uri.rsplit("/", 1)[0] + "/nowhere", SourceConfigError, "there is no such database"),
        (f"postgresql://postgres:{secret}@127.0.0.1:1/x", SourceUnreachableError, "connection refused"),
        (f"postgresql://postgres:{secret}@no.such.host.invalid/x", SourceUnreachableError, "is not known"),
    ]
    for source, kind, message in cases:
        with pytest.raises(kind, match=message) as caught:
            check(source)
        assert secret not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.fixture
def small_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmbeddedPostgres]:
    """A server of its own with the settings that the test names."""
    settings = dict(request.param)
    wal_level = settings.pop("wal_level", "logical")
    for name, value in settings.items():
        monkeypatch.setitem(embedded._SETTINGS, name, value)
    directory: Path = tmp_path_factory.mktemp("small")
    with EmbeddedPostgres(directory, unsafe_no_fsync=True, wal_level=wal_level) as server:
        server.execute("CREATE TABLE t (a int PRIMARY KEY)")
        yield server


@pytest.mark.parametrize("small_server", [{"wal_level": "replica"}], indirect=True)
def test_wal_level(small_server: EmbeddedPostgres) -> None:
    with pytest.raises(SourceConfigError, match="wal_level = replica; set wal_level = logical and restart"):
        check(small_server.uri())
    with (
        connect(small_server.uri(), replication=True) as connection,
        pytest.raises(SourceConfigError, match="wal_level = logical"),
    ):
        create_slot(connection, "x")


@pytest.mark.parametrize("small_server", [{"max_replication_slots": "1", "max_wal_senders": "2"}], indirect=True)
def test_no_free_slot_and_no_free_sender(small_server: EmbeddedPostgres) -> None:
    check(small_server.uri(), slot="second")
    with connect(small_server.uri(), replication=True) as connection:
        create_slot(connection, "first")
        with pytest.raises(SourceConfigError, match="no free replication slot; raise max_replication_slots"):
            check(small_server.uri(), slot="second")
        with pytest.raises(SourceConfigError, match="no free replication slot"):
            create_slot(connection, "second")
        with (
            connect(small_server.uri(), replication=True),
            pytest.raises(SourceConfigError, match="no free WAL sender; raise max_wal_senders"),
        ):
            check(small_server.uri())


def test_a_role_that_may_not_read_or_publish_is_shown_what_to_grant(uri: str) -> None:
    role = f"reader{next(_numbers)}"
    execute(
        uri,
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'p'; CREATE TABLE t (id int PRIMARY KEY);"
        f"REVOKE USAGE ON SCHEMA public FROM PUBLIC",
    )
    own = uri.replace(uri.partition("://")[2].partition("@")[0], f"{role}:p")

    def look() -> SourceReport:
        return check_source(own, ("*.*",), force_replicate=False, sink_mode=SinkMode.UPSERT, new_publication="weir_c_f")

    with pytest.raises(SourceAuthError, match=rf'GRANT SELECT ON "public"."t" TO "{role}"'):
        look()
    execute(uri, f"GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON t TO {role}")
    with pytest.raises(SourceAuthError, match=r'does not own "public"."t".*publication = "weir_c_f"'):
        look()
    assert check_source(own, ("*.*",), force_replicate=False, sink_mode=SinkMode.UPSERT).tables
    execute(uri, f"ALTER TABLE t OWNER TO {role}")
    with pytest.raises(SourceAuthError, match="GRANT CREATE ON DATABASE"):
        look()
    execute(uri, f"DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$")
    assert look().tables


def test_a_slot_begins_when_it_is_made_and_nowhere_else(uri: str) -> None:
    execute(uri, "CREATE TABLE a (i int PRIMARY KEY)")
    source = PostgresSource(uri, Scope("c", "f", SinkMode.UPSERT, ChangefeedConfig()))
    now_ts = source.current_ts()
    with pytest.raises(SourceConfigError, match="sends no change of before its replication slot was made"):
        source.check_start(now_ts)
    with pytest.raises(SourceConfigError, match=rf"start Ts {now_ts + 10**9} is past the end of .*'s log, which is at"):
        source.check_start(Ts(now_ts + 10**9))


_LATIN = r"""
CREATE TABLE plain (id int PRIMARY KEY);
DO $do$ BEGIN
  EXECUTE E'CREATE TABLE "caf\xe9" (id int PRIMARY KEY)';
  EXECUTE E'CREATE TABLE cafe (id int PRIMARY KEY, "caf\xe9" int)';
END $do$
"""


def test_tables_whose_names_are_not_utf_8_are_left_out_alone(
    postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """A database in SQL_ASCII takes any bytes."""
    postgres.execute("CREATE DATABASE latin ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    uri = postgres.uri("latin")
    execute(uri, _LATIN)
    assert keys_of(check(uri)) == {"public.plain": ("id",)}
    assert capsys.readouterr().out.count("names are not UTF-8; rename them") == 2
    postgres.execute("DROP DATABASE latin WITH (FORCE)")


@pytest.mark.parametrize("is_safe", [True, False])
def test_functions_and_operators_of_who_may_create_some_are_not_called(uri: str, *, is_safe: bool) -> None:
    """One whose parameters fit better than those of PostgreSQL's own is called in its place, with our rights."""
    take = "INSERT INTO public.stolen VALUES (current_user)"
    traps = {
        "unnest(smallint[]) RETURNS SETOF smallint": "RETURN QUERY SELECT pg_catalog.unnest($1);",
        "concat_ws(text, oid, xid) RETURNS text": "RETURN '';",
        "is_it(oid, integer) RETURNS boolean": "RETURN $1::int8 = $2::int8;",
    }
    execute(uri, "CREATE TABLE stolen (who text); CREATE TABLE t (a int, b int, PRIMARY KEY (b, a))")
    for head, body in traps.items():
        execute(uri, f"CREATE FUNCTION public.{head} LANGUAGE plpgsql AS $$ BEGIN {take}; {body} END $$")
    execute(uri, "CREATE OPERATOR public.= (FUNCTION = public.is_it, LEFTARG = oid, RIGHTARG = integer)")
    assert keys_of(check(uri, "public.t")) == {"public.t": ("b", "a")}
    with (catalog_session if is_safe else connect)(uri) as connection:
        slots.ensure_publications(connection, names_for("c", "f"), check(uri, "public.t").tables)
        [[table]] = connection.query("SELECT oid::int8 FROM pg_catalog.pg_class WHERE relname = 't'")
        assert connection.query(f"SELECT relname FROM pg_catalog.pg_class WHERE oid = {table}") == [("t",)]
        digest.prepare(connection, slots.all_publications(names_for("c", "f")), [int(table or 0)])
        assert digest.read(connection)
        assert digest.changes(connection)
        assert (connection.query("SELECT who FROM public.stolen") == []) is is_safe
        assert connection.query("SHOW search_path") == [('""' if is_safe else '"$user", public',)]


def test_event_triggers_find_what_they_name(uri: str) -> None:
    execute(uri, "CREATE TABLE defined (tag text); CREATE TABLE t (id int PRIMARY KEY)")
    execute(
        uri,
        "CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO defined VALUES (tg_tag); END $$;"
        "CREATE EVENT TRIGGER noting ON ddl_command_end EXECUTE FUNCTION note()",
    )
    with catalog_session(uri) as connection:
        slots.ensure_publications(connection, names_for("c", "f"), check(uri, "public.t").tables)
    with connect(uri) as connection:
        tags = connection.query("SELECT tag FROM defined ORDER BY tag")
        assert tags == [("ALTER PUBLICATION",), ("CREATE PUBLICATION",), ("CREATE PUBLICATION",)]
