"""Fitness: what a server of MariaDB or MySQL must be like, so that the store keeps its promises there.

Every decision of a cluster is one transaction that all others wait for. Where several servers accept writes at once
(Galera, Group Replication with several primaries), a lock is known to one of them only, and a read may lack what
another has committed. Where commits may be lost in a crash, decisions would be forgotten.
"""

import re
from collections.abc import Iterator, Mapping

from reactor.errors import StoreError, StoreUnreachableError

VARIABLES = (
    "binlog_format",
    "group_replication_single_primary_mode",
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "max_allowed_packet",
    "read_only",
    "sync_binlog",
    "version",
    "version_comment",
    "wsrep_provider",
)
#: the largest commit of a group has 2 MiB of values, which escaping doubles
_PACKET_MIN = 8 << 20
_MARIADB_MIN = (10, 6)
_MYSQL_MIN = (8, 0, 17)


def is_mariadb(variables: Mapping[str, str]) -> bool:
    return "mariadb" in f"{variables.get('version', '')} {variables.get('version_comment', '')}".lower()


def check(name: str, variables: Mapping[str, str]) -> None:
    """``variables``: the server's ``VARIABLES``, as far as it has them.

    :raises StoreUnreachableError: it can only be read; another one may be the primary.
    :raises StoreError: it is not fit.
    """
    if problem := next(_problems(variables), ""):
        raise StoreError(f"{name} {problem}")
    if is_read_only(variables.get("read_only", "OFF")):
        raise StoreUnreachableError(f"{name} is read-only, as standbys are; name the primary, or all hosts")


def is_read_only(value: str) -> bool:
    """``value``: of the variable; newer MariaDBs have words for kinds of it."""
    return value.upper() not in ("0", "OFF")


def _problems(variables: Mapping[str, str]) -> Iterator[str]:
    if problem := _version_problem(variables):
        yield problem
    if variables.get("wsrep_provider", "none") not in ("", "none"):
        yield "is a Galera cluster, where several servers accept writes at once; use one server with standbys, or etcd"
    if variables.get("group_replication_single_primary_mode", "ON") not in ("ON", "1"):
        yield "is a group with several primaries; set group_replication_single_primary_mode = ON, or use etcd"
    if variables.get("innodb_flush_log_at_trx_commit") not in ("1", "3"):
        yield "may forget commits in a crash; set innodb_flush_log_at_trx_commit = 1"
    if variables.get("log_bin") in ("ON", "1"):
        if variables.get("sync_binlog") != "1":
            yield "may forget commits in a crash, since it has a binary log; set sync_binlog = 1"
        if variables.get("binlog_format", "ROW").upper() == "STATEMENT":
            yield "logs statements, which cannot be repeated elsewhere; set binlog_format = ROW or MIXED"
    if int(variables.get("max_allowed_packet", _PACKET_MIN)) < _PACKET_MIN:
        yield f"refuses the statements of a large commit; set max_allowed_packet = {_PACKET_MIN} or more"


def _version_problem(variables: Mapping[str, str]) -> str:
    version = variables.get("version", "")
    if "tidb" in f"{version} {variables.get('version_comment', '')}".lower():
        return "is TiDB; use MariaDB, MySQL, PostgreSQL or etcd"
    numbers = tuple(map(int, re.findall(r"\d+", version.removeprefix("5.5.5-"))[:3]))
    if is_mariadb(variables):
        return "" if numbers >= _MARIADB_MIN else f"is MariaDB {version}; use version 10.6 or newer"
    return "" if numbers >= _MYSQL_MIN else f"is MySQL {version}; use version 8.0.17 or newer"
