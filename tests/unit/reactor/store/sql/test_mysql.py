"""URLs of stores in MariaDB and MySQL, and which servers are fit to be one."""

import pytest

from reactor.errors import StoreError, StoreUnreachableError
from reactor.store.sql.mysql import fitness
from reactor.store.sql.mysql.target import parse

_FIT = {
    "version": "10.11.19-MariaDB-log",
    "version_comment": "Debian 12",
    "innodb_flush_log_at_trx_commit": "1",
    "log_bin": "OFF",
    "sync_binlog": "0",
    "max_allowed_packet": "16777216",
    "read_only": "OFF",
    "wsrep_provider": "none",
}


def test_a_url_names_hosts_user_and_database() -> None:
    found = parse("mariadb://we%40ir:p%2Fw@h1,[fe80::1]:3307,h3:1/d%20b?ssl_mode=required")
    assert found.hosts == (("h1", 3306), ("fe80::1", 3307), ("h3", 1))
    assert (found.user, found.password, found.database, found.mode) == ("we@ir", "p/w", "d b", "required")
    assert found.name == "MariaDB at h1:3306,[fe80::1]:3307,h3:1/d b"
    assert "p/w" not in repr(found)
    assert parse("mysql://u@h/d?password=x").password == "x"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mysql://u:geheim@h:x/db", "malformed"),
        ("mysql://u:geheim@h:0/db", "malformed"),
        ("mysql://u:geheim@h:70000/db", "malformed"),
        ("mysql://u:geheim@,h/db", "malformed"),
        ("mysql://u:geheim@[h/db", "malformed"),
        ("mysql://h/db", "needs a user and one database"),
        ("mysql://u:geheim@h", "needs a user and one database"),
        ("mysql://u:geheim@h/a/b", "needs a user and one database"),
        ("mysql://u:geheim@h/db?ssl-mode=maybe", "ssl-mode=maybe"),
        ("mysql://u:geheim@h/db?sslmode=require", "no parameter sslmode"),
        ("mysql://u:geheim@h/db?ssl-ca=/ca.pem", "uses no certificates"),
        ("mysql://u:geheim@h/db?ssl-mode=required&ssl-key=/k.pem", "give ssl-cert"),
        ("mysql://u:geheim@h/db?ssl-mode=required&ssl-cert=/c.pem", "ssl-cert=/c.pem"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_one_line_without_secrets(url: str, text: str) -> None:
    with pytest.raises(StoreError, match=text) as caught:
        parse(url)
    assert "geheim" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"innodb_flush_log_at_trx_commit": "3"},
        {"log_bin": "ON", "sync_binlog": "1", "binlog_format": "MIXED"},
        {"version": "5.5.5-10.6.12-MariaDB", "wsrep_provider": ""},
        {"version": "8.0.17", "version_comment": "MySQL Community Server"},
        {"version": "9.7.0", "version_comment": "Debian", "group_replication_single_primary_mode": "ON"},
    ],
)
def test_a_server_is_fit(variables: dict[str, str]) -> None:
    fitness.check("it", _FIT | variables)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, "Galera"),
        ({"version": "8.0.36-28.1", "version_comment": "Percona XtraDB Cluster", "wsrep_provider": "/x.so"}, "Galera"),
        ({"version": "8.4.0", "version_comment": "x", "group_replication_single_primary_mode": "OFF"}, "primaries"),
        ({"version": "8.0.11-TiDB-v7.5.0", "version_comment": "TiDB Server"}, "is TiDB"),
        ({"version": "5.7.44", "version_comment": "MySQL"}, "is MySQL 5.7.44; use version 8.0.17"),
        ({"version": "10.5.2-MariaDB"}, "is MariaDB 10.5.2-MariaDB; use version 10.6"),
        ({"innodb_flush_log_at_trx_commit": "0"}, "may forget commits"),
        ({"log_bin": "ON", "sync_binlog": "1000"}, "since it has a binary log"),
        ({"log_bin": "ON", "sync_binlog": "1", "binlog_format": "STATEMENT"}, "logs statements"),
        ({"max_allowed_packet": "4194304"}, "max_allowed_packet"),
    ],
)
def test_a_server_that_would_break_a_promise_is_refused(variables: dict[str, str], text: str) -> None:
    with pytest.raises(StoreError, match=text) as caught:
        fitness.check("it", _FIT | variables)
    assert not isinstance(caught.value, StoreUnreachableError), "asking again is of no use"


@pytest.mark.parametrize("value", ["ON", "1", "NO_LOCK", "NO_LOCK_NO_ADMIN"])
def test_a_standby_is_no_store_now(value: str) -> None:
    with pytest.raises(StoreUnreachableError, match="read-only"):
        fitness.check("it", _FIT | {"read_only": value})
