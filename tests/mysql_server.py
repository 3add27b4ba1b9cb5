"""A MySQL for tests: as the embedded MariaDB, with the same statements understood where that costs nothing.

Its data directory is made once per machine and copied for each server: MySQL takes seconds to make one.
"""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import ClassVar

from capture.embedded import EmbeddedMariaDB, children
from capture.embedded.mariadb import USER, Session
from capture.errors import EmbeddedError
from tests import mysql_package

_SEQUENCE = re.compile(r"\bseq_(\d+)_to_(\d+)\b")
_DIGITS = "(SELECT 0 AS d " + " ".join(f"UNION ALL SELECT {digit}" for digit in range(1, 10)) + ")"
_PLACES = 6
#: what MariaDB says, and what MySQL says for it
_WORDS = (
    (
        _SEQUENCE,
        r"(WITH RECURSIVE s (seq) AS (SELECT \1 UNION ALL SELECT seq + 1 FROM s WHERE seq < \2) SELECT * FROM s) AS s",
    ),
    (re.compile(r"^SHOW MASTER STATUS"), "SHOW BINARY LOG STATUS"),
    (re.compile(r"^RESET MASTER"), "RESET BINARY LOGS AND GTIDS"),
    (re.compile(r"^CREATE OR REPLACE USER (\S+)"), r"CREATE USER IF NOT EXISTS \1"),
)
#: before 8.2: the words of today are those of MariaDB
_OLD_WORDS = (_WORDS[0], _WORDS[3])
#: before 8.0: no common table expressions either
_OLDEST_WORDS = (
    (
        _SEQUENCE,
        "(SELECT seq FROM (SELECT "
        + " + ".join(f"p{place}.d * {10**place}" for place in range(_PLACES))
        + " AS seq FROM "
        + " JOIN ".join(f"{_DIGITS} AS p{place}" for place in range(_PLACES))
        + r" ) AS every WHERE seq BETWEEN \1 AND \2 ORDER BY seq) AS s",
    ),
    _WORDS[3],
)


#: settings that older servers need
_OLD_SETTINGS = {"log_slave_updates": "ON", "character_set_server": "utf8mb4"}


def _words(version: str) -> Sequence[tuple[re.Pattern[str], str]]:
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < (8, 0):
        return _OLDEST_WORDS
    return _OLD_WORDS if numbers < (8, 2) else _WORDS


def is_mariadb(server: EmbeddedMariaDB) -> bool:
    return not isinstance(server, EmbeddedMysql)


class MysqlSession(Session):
    """Takes some of MariaDB's words, sequences among them."""

    words: ClassVar[Sequence[tuple[re.Pattern[str], str]]] = _words(mysql_package.VERSION)

    def query(self, sql: str | bytearray, unbuffered: bool = False) -> int:
        if isinstance(sql, str):  # many rows at once are bytes
            for pattern, replacement in self.words:
                sql = pattern.sub(replacement, sql)
        return int(super().query(sql, unbuffered))


class EmbeddedMysql(EmbeddedMariaDB):
    """One MySQL below ``directory``; see ``EmbeddedMariaDB``."""

    name = "MySQL"
    version: ClassVar[str] = mysql_package.VERSION
    log_name = "mysql.log"
    session = MysqlSession
    small: ClassVar[Mapping[str, str]] = MappingProxyType({"innodb_redo_log_capacity": "64M"})
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "log_bin": "binlog",
            "binlog_row_metadata": "FULL",
            "gtid_mode": "ON",
            "enforce_gtid_consistency": "ON",
            "skip_name_resolve": "ON",
            "secure_file_priv": "",
            "mysqlx": "OFF",
            "innodb_buffer_pool_size": "128M",
            "cte_max_recursion_depth": "10000000",
        }
    )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.kill()  # nobody comes back to its data, and an orderly end takes seconds
        super().__exit__(kind, error, _)

    @property
    def _template(self) -> Path:
        return mysql_package.root(self.version) / "template"

    def _command(self) -> list[str | Path]:
        usr = mysql_package.root(self.version) / "usr"
        places = {
            "basedir": usr,
            "lc_messages_dir": usr / "share" / "mysql",
            "character_sets_dir": usr / "share" / "mysql" / "charsets",
            "plugin_dir": usr / "lib" / "mysql" / "plugin",
        }
        return [
            *mysql_package.command(self.version),
            "--no-defaults",
            *(f"--{key}={path}" for key, path in places.items()),
        ]

    def _prepare(self) -> None:
        super()._prepare()
        begin = Path(str(self._state["sockets"])) / "begin.sql"
        begin.touch(mode=0o600)
        begin.write_text(
            "SET sql_log_bin = 0;\n"
            "DROP USER IF EXISTS root@localhost;\n"
            f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION;\n"
        )
        children.give(begin, self._user)
        self._settings["init_file"] = str(begin)
        if self.version != mysql_package.NEWEST:
            # loose: a setting that a version does not know is none of its own
            settings = {**_OLD_SETTINGS, **self._settings}
            self._settings = {f"loose_{name.removeprefix('loose_')}": value for name, value in settings.items()}

    def _initialise(self, new: Path) -> None:
        if not self._template.exists():
            self._make_template()
        shutil.copytree(self._template, new, dirs_exist_ok=True)
        # a server of its own: it gives itself a UUID
        (new / "auto.cnf").unlink()
        for path in new.rglob("*"):
            children.give(path, self._user)

    def _make_template(self) -> None:
        """Where every user has access (5.7 looks for its parents), then moved; of two at once the second finds it."""
        made = Path(tempfile.mkdtemp(prefix="weir-my-"))
        children.give(made, self._user)
        command = [
            *self._command(),
            "--initialize-insecure",
            f"--datadir={made}",
            "--loose-innodb-redo-log-capacity=8M",
        ]
        with self._log.open("ab") as output:
            child = children.spawn(command, output=output, user=self._user, reach=self._user is not None)
        if (code := child.wait(120)) != 0:
            raise EmbeddedError(f"mysqld --initialize ended with code {code}; see {self._log}")
        new = Path(tempfile.mkdtemp(prefix="template-", dir=self._template.parent))
        shutil.copytree(made, new, dirs_exist_ok=True)
        with contextlib.suppress(OSError):
            new.rename(self._template)
        for path in (made, new):
            shutil.rmtree(path, ignore_errors=True)


def of_version(version: str) -> type[EmbeddedMysql]:
    """The same of an older release."""
    session = type("Session", (MysqlSession,), {"words": _words(version)})
    return type(f"EmbeddedMysql{version}", (EmbeddedMysql,), {"version": version, "session": session})
