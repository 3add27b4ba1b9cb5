"""Preflight at a real server: each missing grant and setting is named, and the statement that is named cures it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import SourceAuthError, SourceConfigError, SourceError, TableIneligibleError, TableLockedError
from agent.ports.source import Scope, SourceReport
from agent.sources import open_source
from agent.sources.mysql.position import consistency
from agent.sources.mysql.position.consistency import hold_definitions, settled_place
from agent.sources.mysql.preflight import check_source
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.uri import parse_uri
from capture.embedded import EmbeddedMariaDB
from reactor.records.changefeed import ChangefeedConfig, ColumnSelector, FilterConfig, SinkMode
from tests.mysql_server import EmbeddedMysql, is_mariadb

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others

_TABLES = {
    "orders": "(b int, a int, v text, PRIMARY KEY (b, a))",
    "by_unique": "(a int, b int NOT NULL, UNIQUE KEY (a), UNIQUE KEY (b))",
    "no_key": "(v int)",
    "old_engine": "(id int PRIMARY KEY) ENGINE = MyISAM",
    "old_engine_no_key": "(v int) ENGINE = MyISAM",
    "merged": "(id int PRIMARY KEY) ENGINE = MERGE",
}
#: by table: what its foreign key does
_ACTIONS = {
    "plain": "",
    "no_action": "ON DELETE NO ACTION ON UPDATE NO ACTION",
    "restricted": "ON DELETE RESTRICT ON UPDATE RESTRICT",
    "deleted": "ON DELETE CASCADE",
    "updated": "ON UPDATE CASCADE",
    "nulled": "ON DELETE SET NULL",
    "nulled_by_update": "ON UPDATE SET NULL",
}
_HARMLESS = ("plain", "no_action", "restricted")
_MARIADB_TABLES = {
    "versioned": "(id int PRIMARY KEY) WITH SYSTEM VERSIONING",
    "hashed": "(id int PRIMARY KEY, v text NOT NULL, UNIQUE KEY (v) USING HASH)",
}


@pytest.fixture(scope="module")
def server(flavour: type[EmbeddedMariaDB], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMariaDB]:
    """One of our own, whose settings may be changed."""
    settings = {"binlog_ignore_db": "unlogged"}
    if flavour is not EmbeddedMariaDB:
        settings["log_replica_updates"] = "OFF"  # ON unless set otherwise, as MariaDB's is not
    with flavour(tmp_path_factory.mktemp("server"), unsafe_no_fsync=True, settings=settings) as part:
        part.create_database("shop")
        for name, definition in (_TABLES | (_MARIADB_TABLES if is_mariadb(part) else {})).items():
            part.execute(f"CREATE TABLE {name} {definition}", database="shop")
        part.execute("CREATE VIEW a_view AS SELECT * FROM orders", database="shop")
        if is_mariadb(part):
            part.execute("CREATE SEQUENCE a_sequence", database="shop")
        part.create_database("unlogged")
        part.execute("CREATE TABLE unlogged.t (id int PRIMARY KEY)")
        yield part


def _check(
    server: EmbeddedMariaDB,
    *rules: str,
    uri: str = "",
    force: bool = False,
    mode: SinkMode = SinkMode.UPSERT,
    accepts_cascades: bool = False,
    selectors: tuple[ColumnSelector, ...] = (),
) -> SourceReport:
    return check_source(
        uri or server.uri(),
        FilterConfig(rules=rules or ("shop.orders",), column_selectors=selectors),
        force_replicate=force,
        sink_mode=mode,
        accepts_cascades=accepts_cascades,
    )


def _refusal(server: EmbeddedMariaDB, uri: str) -> SourceAuthError | None:
    try:
        _check(server, uri=uri)
    except SourceAuthError as error:
        return error
    return None


def _cure(error: SourceError) -> str:
    """The statement that the error says to run."""
    found = re.search(r"run: ((?:GRANT|SET GLOBAL|ALTER TABLE) .*?)(?: \(|, or|; |$)", str(error))
    assert found is not None, error
    return found[1]


def test_a_server_that_is_fit(server: EmbeddedMariaDB) -> None:
    left_out = ("no_key", "merged", "versioned", "hashed", "old_engine_no_key")
    report = _check(server, "shop.*", *(f"!shop.{name}" for name in left_out))
    assert {table.name: table.key for table in report.tables} == {
        "orders": ("b", "a"),
        "by_unique": ("b",),
        "old_engine": ("id",),
    }
    assert report.identity.system_id.startswith("mariadb-" if is_mariadb(server) else "mysql-")


def test_each_grant_that_is_missing_is_named_and_cures(server: EmbeddedMariaDB) -> None:
    server.execute("CREATE USER poor@'127.0.0.1' IDENTIFIED BY 'pw'")
    # Tables on which one has no privilege at all, nobody sees.
    server.execute("GRANT SELECT (a) ON shop.orders TO poor@'127.0.0.1'")
    uri = f"mysql://poor:pw@127.0.0.1:{server.port}/"
    cures: list[str] = []
    while (error := _refusal(server, uri)) is not None and len(cures) < 5:
        cures.append(_cure(error))
        server.execute(cures[-1])
    report = _check(server, uri=uri)
    assert [table.name for table in report.tables] == ["orders"]
    assert cures == [
        "GRANT REPLICATION CLIENT ON *.* TO 'poor'@'127.0.0.1'",
        "GRANT REPLICATION SLAVE ON *.* TO 'poor'@'127.0.0.1'",
        "GRANT SELECT ON `shop`.`orders` TO 'poor'@'127.0.0.1'",
        *([] if is_mariadb(server) else ["GRANT RELOAD ON *.* TO 'poor'@'127.0.0.1'"]),
    ]


def test_all_that_is_missing_is_named_at_once(server: EmbeddedMariaDB) -> None:
    server.execute("CREATE USER poorest@'127.0.0.1' IDENTIFIED BY 'pw'")
    server.execute("GRANT SELECT (a) ON shop.orders TO poorest@'127.0.0.1'")
    server.execute("SET GLOBAL binlog_format = 'MIXED'")
    server.execute("SET GLOBAL binlog_expire_logs_seconds = 60")
    with pytest.raises(SourceConfigError, match="has binlog_format = MIXED; run") as caught:
        _check(server, uri=f"mysql://poorest:pw@127.0.0.1:{server.port}/")
    text = str(caught.value)
    assert "\n" not in text
    cures = re.findall(r"run: ((?:GRANT|SET GLOBAL) .*?)(?: \(|, or|; |$)", text)
    for cure in cures:
        server.execute(cure)
    assert _check(server, uri=f"mysql://poorest:pw@127.0.0.1:{server.port}/").tables
    assert [cure.partition(" TO ")[0] for cure in cures] == [
        "SET GLOBAL binlog_format = 'ROW'",
        "SET GLOBAL binlog_expire_logs_seconds = 604800",
        "GRANT REPLICATION CLIENT ON *.*",
        "GRANT REPLICATION SLAVE ON *.*",
        "GRANT SELECT ON `shop`.`orders`",
        *([] if is_mariadb(server) else ["GRANT RELOAD ON *.*"]),
    ]


@pytest.mark.parametrize(
    ("setting", "wrong", "message"),
    [
        ("binlog_format", "'STATEMENT'", "has binlog_format = STATEMENT"),
        ("binlog_format", "'MIXED'", "has binlog_format = MIXED"),
        ("binlog_expire_logs_seconds", "60", "removes its binlog after 60 s"),
    ],
)
def test_each_setting_that_does_not_do_is_named_and_cured(
    server: EmbeddedMariaDB, setting: str, wrong: str, message: str
) -> None:
    server.execute(f"SET GLOBAL {setting} = {wrong}")
    with pytest.raises(SourceConfigError, match=message) as caught:
        _check(server)
    server.execute(_cure(caught.value))
    _check(server)


@pytest.mark.parametrize(
    ("setting", "value", "usual"),
    [("binlog_row_image", "MINIMAL", "FULL"), ("binlog_row_metadata", "MINIMAL", "FULL")],
)
def test_what_says_less_is_allowed_and_logged(
    server: EmbeddedMariaDB, capsys: pytest.CaptureFixture[str], setting: str, value: str, usual: str
) -> None:
    server.execute(f"SET GLOBAL {setting} = '{value}'")
    try:
        assert _check(server).tables
    finally:
        server.execute(f"SET GLOBAL {setting} = '{usual}'")
    assert f"SET GLOBAL {setting} = 'FULL' mends it" in capsys.readouterr().out


@pytest.mark.parametrize(
    "lock",
    ["RELOAD ON *.*", "FLUSH_TABLES ON *.*", "LOCK TABLES ON *.*", "LOCK TABLES ON shop.*", r"LOCK TABLES ON `sho%`.*"],
)
def test_each_way_to_lock_is_known_from_its_grant(mysql: EmbeddedMysql, lock: str) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS shop")
    mysql.execute("CREATE TABLE IF NOT EXISTS shop.orders (id int PRIMARY KEY)")
    user = f"l{abs(hash(lock)) % 10**9}"
    mysql.execute(f"CREATE USER {user} IDENTIFIED BY 'pw'")
    mysql.execute(f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO {user}")
    uri = f"mysql://{user}:pw@127.0.0.1:{mysql.port}/"
    with pytest.raises(SourceAuthError, match="may not hold up commits"):
        _check(mysql, uri=uri)
    mysql.execute(f"GRANT {lock} TO {user}")
    _check(mysql, uri=uri)
    assert settled_place(parse_uri(uri), [("shop", "orders")])


@pytest.fixture(scope="module")
def family(server: EmbeddedMariaDB) -> str:
    """The URI of a user who may read a database with every action that a foreign key can have."""
    server.create_database("family")
    server.execute("CREATE TABLE parents (id int PRIMARY KEY)", database="family")
    for name, action in _ACTIONS.items():
        comment = "COMMENT 'CONSTRAINT FOREIGN KEY ON DELETE CASCADE'"
        key = f"FOREIGN KEY (parent) REFERENCES parents (id) {action}"
        server.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, parent int {comment}, {key})", database="family")
    server.execute("INSERT INTO parents VALUES (1), (2)", database="family")
    server.execute("CREATE USER child@'127.0.0.1' IDENTIFIED BY 'pw'")
    server.execute("GRANT REPLICATION SLAVE, REPLICATION CLIENT, RELOAD ON *.* TO child@'127.0.0.1'")
    server.execute("GRANT SELECT ON family.* TO child@'127.0.0.1'")
    return f"mysql://child:pw@127.0.0.1:{server.port}/"


@pytest.mark.sample(0.12)
@pytest.mark.parametrize("table", _ACTIONS)
def test_cascades_that_the_server_does_not_log_are_refused(
    server: EmbeddedMariaDB, family: str, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the server logs is looked up in its binlog: MySQL logs cascades since 9.6."""
    server.execute(f"INSERT INTO {table} VALUES (1, 1), (2, 2)", database="family")
    server.execute("FLUSH BINARY LOGS")
    changes_rows = table not in _HARMLESS
    if changes_rows:
        is_delete = "DELETE" in _ACTIONS[table]
        change = "DELETE FROM" if is_delete else "UPDATE"
        server.execute(f"{change} parents {'' if is_delete else 'SET id = 9'} WHERE id = 1", database="family")
    is_silent = changes_rows and not _is_logged(server, table)
    server.execute(f"DELETE FROM {table}", database="family")
    server.execute("DELETE FROM parents", database="family")
    server.execute("INSERT INTO parents VALUES (1), (2)", database="family")
    assert is_silent is (changes_rows and is_mariadb(server))
    if not is_silent:
        assert len(_check(server, "family.parents", f"family.{table}", uri=family).tables) == 2
        return
    with pytest.raises(TableIneligibleError, match=f"table family.{table} has such a foreign key.*!family.{table}, or"):
        _check(server, f"family.{table}", uri=family)
    assert _check(server, f"family.{table}", uri=family, accepts_cascades=True).tables
    assert f"tables=['family.{table}']" in capsys.readouterr().out


def test_all_cascading_tables_are_named_at_once(server: EmbeddedMariaDB, family: str) -> None:
    if not is_mariadb(server):
        pytest.skip("MySQL logs them since 9.6")
    with pytest.raises(TableIneligibleError) as caught:
        _check(server, "family.*", uri=family)
    rules = _rules(caught.value)
    assert rules == {f"!family.{name}" for name in _ACTIONS if name not in _HARMLESS}
    assert {table.name for table in _check(server, "family.*", *rules, uri=family).tables} == {"parents", *_HARMLESS}


def test_only_a_new_changefeed_is_refused_for_cascades(server: EmbeddedMariaDB, family: str) -> None:
    """One of v0.1.0 begins, or begins again, as it was created; ``accept`` is for new ones."""
    if not is_mariadb(server):
        pytest.skip("MySQL logs them since 9.6")
    rules = FilterConfig(rules=("family.*",))
    refusing = open_source(family, Scope("c", "f", SinkMode.UPSERT, ChangefeedConfig(filter=rules)))
    with pytest.raises(TableIneligibleError):
        refusing.check()
    everything = refusing.discover().tables
    with pytest.raises(TableIneligibleError, match="such a foreign key"):
        refusing.publish(everything)  # they join it now
    refusing.publish([table for table in everything if table.name in {"parents", *_HARMLESS}])
    accepting = ChangefeedConfig(filter=rules, unlogged_cascades="accept")
    accepts = open_source(family, Scope("c", "f", SinkMode.UPSERT, accepting))
    assert accepts.check().tables == everything
    accepts.publish(everything)


def _rules(error: Exception) -> set[str]:
    return set(re.findall(r"!family\.\w+", str(error)))


def _is_logged(server: EmbeddedMariaDB, table: str) -> bool:
    """The newest binlog file says that a row of the table was changed; MariaDB names the tables of all foreign keys."""
    file = server.execute("SHOW BINARY LOGS")[-1][0]
    events = [(str(event[2]), str(event[5])) for event in server.execute(f"SHOW BINLOG EVENTS IN '{file}'")]
    maps = [info for kind, info in events if kind == "Table_map"]
    [number] = {info.split()[1] for info in maps if f"(family.{table})" in info} or {""}
    return any(info.startswith(f"table_id: {number} ") for kind, info in events if "rows" in kind.lower())


def test_parts_of_documents_need_the_documents(server: EmbeddedMariaDB) -> None:
    if is_mariadb(server):
        pytest.skip("MariaDB logs documents as texts")
    server.execute("SET GLOBAL binlog_row_value_options = 'PARTIAL_JSON'")
    _check(server)
    server.execute("SET GLOBAL binlog_row_image = 'MINIMAL'")
    try:
        with pytest.raises(SourceConfigError, match="what has changed in a JSON document") as caught:
            _check(server)
        server.execute(_cure(caught.value))
        _check(server)
    finally:
        server.execute("SET GLOBAL binlog_row_value_options = '', GLOBAL binlog_row_image = 'FULL'")


def test_a_server_without_binlog(flavour: type[EmbeddedMariaDB], tmp_path: Path) -> None:
    with (
        flavour(tmp_path, unsafe_no_fsync=True, settings={"skip_log_bin": "1"}) as server,
        pytest.raises(SourceConfigError, match="writes no binlog; set log_bin"),
    ):
        _check(server)


def test_a_database_that_is_left_out_of_the_binlog(server: EmbeddedMariaDB) -> None:
    with pytest.raises(SourceConfigError, match="leaves database unlogged out of its binlog"):
        _check(server, "unlogged.*")


def test_tables_may_come_later(server: EmbeddedMariaDB) -> None:
    for rules in (("nowhere.*",), ("shop.a_view", "shop.a_sequence"), ("mysql.*",)):
        assert _check(server, *rules).tables == ()


def test_a_locked_table_refuses_no_changefeed(server: EmbeddedMariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its snapshot waits for the lock, and names it."""
    monkeypatch.setattr(consistency, "LOCK_WAIT_S", 1)
    target = parse_uri(server.uri())
    with connect(target) as other, connect(target) as reader:
        other.execute("LOCK TABLES shop.orders WRITE")
        found = _check(server, "shop.orders", "shop.by_unique").tables
        assert sorted(table.name for table in found) == ["by_unique", "orders"]
        with pytest.raises(TableLockedError, match=r"table shop\.orders of .* is locked"):
            hold_definitions(reader, [("shop", "by_unique"), ("shop", "orders")])
        other.execute("UNLOCK TABLES")


def test_a_table_that_the_server_cannot_open_is_named(server: EmbeddedMariaDB) -> None:
    server.create_database("damaged")
    server.execute("CREATE TABLE sound (id int PRIMARY KEY)", database="damaged")
    server.execute("CREATE TABLE part (id int PRIMARY KEY) ENGINE = MyISAM", database="damaged")
    server.execute("CREATE TABLE lost (id int PRIMARY KEY) ENGINE = MERGE UNION = (part)", database="damaged")
    server.execute("DROP TABLE part", database="damaged")
    with pytest.raises(TableIneligibleError, match=r"table damaged\.lost cannot be read .*1168.*!damaged\.lost"):
        _check(server, "damaged.*")
    assert [table.name for table in _check(server, "damaged.*", "!damaged.lost").tables] == ["sound"]


@pytest.mark.parametrize(
    ("rule", "mode", "message"),
    [
        ("shop.no_key", SinkMode.UPSERT, "no primary key or unique NOT NULL key .* force-replicate = true"),
        ("shop.versioned", SinkMode.UPSERT, "is system-versioned"),
        ("shop.hashed", SinkMode.UPSERT, "unique key USING HASH"),
        ("shop.merged", SinkMode.UPSERT, "engine (?i:MRG_MyISAM), which shows rows of other tables"),
        ("shop.old_engine", SinkMode.CHANGELOG, "engine MyISAM, which has no consistent snapshots"),
    ],
)
def test_tables_that_cannot_be_replicated_as_they_are(
    server: EmbeddedMariaDB, rule: str, mode: SinkMode, message: str
) -> None:
    if rule.partition(".")[2] in _MARIADB_TABLES and not is_mariadb(server):
        pytest.skip("a table of MariaDB")
    with pytest.raises(TableIneligibleError, match=message):
        _check(server, rule, mode=mode)


@pytest.mark.parametrize(
    ("expression", "is_of_mariadb"),
    [("from_unixtime(n)", False), ("date(at)", False), ("rand()", True), ("concat(v, current_user())", True)],
)
def test_virtual_columns_that_are_others_for_each_reader_are_refused_unless_they_are_left_out(
    server: EmbeddedMariaDB, expression: str, is_of_mariadb: bool
) -> None:
    if is_of_mariadb and not is_mariadb(server):
        pytest.skip("MySQL refuses it")
    server.create_database("unsteady")
    column = f"w varchar(99) GENERATED ALWAYS AS ({expression}) VIRTUAL"
    table = f"(id int PRIMARY KEY, n int, v text, at timestamp NULL, `now` int, x int AS (`now` + n) VIRTUAL, {column})"
    server.execute(
        f"CREATE OR REPLACE TABLE t {table}" if is_mariadb(server) else f"CREATE TABLE t {table}", database="unsteady"
    )
    try:
        with pytest.raises(TableIneligibleError, match=r"virtual column w has another value .* STORED, .*!unsteady.t"):
            _check(server, "unsteady.*")
        left_out = ColumnSelector(matcher=("unsteady.t",), columns=("*", "!w"))
        assert len(_check(server, "unsteady.*", selectors=(left_out,)).tables) == 1
    finally:
        server.execute("DROP DATABASE unsteady")


def test_virtual_columns_that_updates_do_not_log(server: EmbeddedMariaDB) -> None:
    """MariaDB logs those without an index with full row images only, also where their values change."""
    server.create_database("virtuals")
    table = "(id int PRIMARY KEY, n int, v int AS (n + 1) VIRTUAL, w text AS (n + 2) VIRTUAL, s int AS (n) STORED)"
    try:
        server.execute(f"CREATE TABLE t {table}", database="virtuals")
        for images, columns in (("MINIMAL", "v, w"), ("NOBLOB", "w"), ("FULL", "")):
            server.execute(f"SET GLOBAL binlog_row_image = {images}")
            if columns and is_mariadb(server):
                with pytest.raises(
                    TableIneligibleError, match=f"virtual column {columns} .binlog_row_image = {images}"
                ):
                    _check(server, "virtuals.*")
            else:
                _check(server, "virtuals.*")
    finally:
        server.execute("SET GLOBAL binlog_row_image = FULL")
        server.execute("DROP DATABASE virtuals")


def test_tables_without_key_may_be_appended(server: EmbeddedMariaDB) -> None:
    for options in ({"force": True}, {"mode": SinkMode.CHANGELOG}):
        [table] = _check(server, "shop.no_key", **options).tables
        assert table.key == ()
    with pytest.raises(TableIneligibleError, match="engine MyISAM") as caught:
        _check(server, "shop.old_engine_no_key", force=True)
    server.execute(_cure(caught.value))
    assert _check(server, "shop.old_engine_no_key", force=True).tables


def test_a_replica_that_logs_nothing_of_what_it_replicates(server: EmbeddedMariaDB) -> None:
    if is_mariadb(server):
        setting, change, end = "log_slave_updates", "CHANGE MASTER TO master", "RESET SLAVE ALL"
    else:
        setting, change, end = "log_replica_updates", "CHANGE REPLICATION SOURCE TO source", "RESET REPLICA ALL"
    kind = change.rpartition(" ")[2]
    server.execute(f"{change}_host = '127.0.0.1', {kind}_port = {server.port}, {kind}_user = 'x'")
    try:
        with pytest.raises(SourceConfigError, match=f"set {setting} = ON"):
            _check(server)
    finally:
        server.execute(end)
