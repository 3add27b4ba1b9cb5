"""Spark options: those of one reader of Spark's ``weir`` source, checked, and the subscriptions that they ask for."""

import hashlib
import re
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from agent.feeds import changes
from capture.api.connection import Connection
from capture.api.subscriptions import EXPIRES_DEFAULT_S
from capture.errors import ConfigError
from capture.python.changes import Subscription
from capture.python.snapshot_start import Pinned, SnapshotStart

_NAME_MAX = 64
_OPTIONS: Final = {
    "server": "the URL of any capture, or several with commas between them",
    "changefeed": "its id",
    "table": "schema.name, or several with commas between them: a struct column for each",
    "token": "default: that of this user's server there, or WEIR_TOKEN",
    "cafile": "trusted certificates, besides the system's",
    "startingts": "a Ts, earliest or latest (default: latest; earliest for spark.read)",
    "startingversion": "snapshot: the table as it is in the sink, then the changes after it",
    "endingts": "spark.read: the last Ts (default: the log's end)",
    "name": "of the reader, whose position holds the log (default: a new one for each query)",
    "expires": "seconds that its position is kept without a request",
    "maxbytespertrigger": "of the log, compressed",
    "maxrowspertrigger": "changes, as far as transactions are not divided",
    "mergeschema": "true: leave out columns that the query does not know",
}


@dataclass(frozen=True)
class Options:
    """The options of one reader, checked."""

    server: str
    changefeed: str
    tables: tuple[str, ...]
    token: str | None = field(repr=False)
    ca_file: str
    starting: int | str | None
    ending: int | None
    from_snapshot: bool
    name: str
    expires: float
    max_bytes: int | None
    max_rows: int | None
    leaves_out: bool

    @classmethod
    def of(cls, given: dict[str, str]) -> "Options":
        """:raises ConfigError: an option is unknown, missing or wrong."""
        known = {name.lower(): value for name, value in given.items() if name.lower() != "path"}
        for name in known.keys() - _OPTIONS.keys():
            raise ConfigError(f"unknown option {name}; there are: {', '.join(_OPTIONS)}")
        for name in ("server", "changefeed", "table"):
            if not known.get(name):
                raise ConfigError(f'option "{name}" is missing: {_OPTIONS[name]}')
        starting, version = known.get("startingts"), known.get("startingversion")
        if version not in (None, "snapshot", "latest"):
            raise ConfigError(f"option startingVersion is {version!r}; it may be snapshot or latest")
        if starting is not None and version is not None:
            raise ConfigError("options startingTs and startingVersion are both given; leave one out")
        if version is not None:
            starting = "earliest" if version == "snapshot" else "latest"
        made = cls(
            server=known["server"],
            changefeed=known["changefeed"],
            tables=tuple(_tables(known["table"])),
            token=known.get("token"),
            ca_file=known.get("cafile", ""),
            starting=starting if starting in (None, "earliest", "latest") else _number("startingTs", starting),
            ending=_number("endingTs", known["endingts"]) if "endingts" in known else None,
            from_snapshot=version == "snapshot",
            name=known.get("name") or f"spark-{uuid.uuid4().hex[:12]}",
            expires=float(_number("expires", known["expires"])) if "expires" in known else EXPIRES_DEFAULT_S,
            max_bytes=_limit("maxBytesPerTrigger", known),
            max_rows=_limit("maxRowsPerTrigger", known),
            leaves_out=_flag("mergeSchema", known),
        )
        if problem := made.connection.unprotected():
            warnings.warn(problem, stacklevel=2)
        return made

    @property
    def connection(self) -> Connection:
        return Connection(self.server, token=self.token, ca_file=self.ca_file)

    @property
    def columns(self) -> dict[str, str]:
        """The struct column of each table: its name, with that of its schema where another table has it too."""
        names = [table.partition(".")[2] for table in self.tables]
        return {
            table: name if names.count(name) == 1 else table.replace(".", "_")
            for table, name in zip(self.tables, names, strict=True)
        }

    def snapshot(self, table: str) -> SnapshotStart:
        return SnapshotStart(self.connection, self.changefeed, table)

    def pin(self, table: str, subscription: Subscription) -> Pinned:
        """Choose the version to begin with; ``subscription`` holds the log meanwhile."""
        names = None if self.leaves_out else changes.source_names(subscription.schema())
        return self.snapshot(table).pin(names)

    def subscribe(self, table: str, default: str, *, at_ts: int | None = None) -> Subscription:
        """Each of several tables has a position of its own."""
        name = self.name
        if len(self.tables) > 1:
            name = f"{name}.{re.sub(r'[^A-Za-z0-9_.-]', '_', self.columns[table])}"[:_NAME_MAX]
        return Subscription(
            self.connection,
            self.changefeed,
            table,
            name=name,
            from_ts=default if self.starting is None else self.starting,
            at_ts=at_ts,
            expires=self.expires,
        )

    def looking(self, table: str) -> Subscription:
        """Return a subscription that ends with its block, for a table's columns. It begins at the log's end: where a
        query began may be gone when it continues from its checkpoint."""
        return Subscription(self.connection, self.changefeed, table, expires=self.expires)

    def one_time(self, table: str) -> Subscription:
        """Return a subscription that ends with its block."""
        return Subscription(
            self.connection,
            self.changefeed,
            table,
            from_ts="earliest" if self.starting is None else self.starting,
            expires=self.expires,
        )

    def hold(self, table: str, table_id: int, ts: int) -> None:
        """Keep the log behind ``ts`` while a batch query reads it: Spark does not tell when it ends, so until the
        position expires. All with the same options have one, so that repeated queries do not add up."""
        asked = f"{table_id} {self.starting} {self.from_snapshot}"
        name = f"read-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
        Subscription(self.connection, self.changefeed, table, name=name, at_ts=ts, expires=self.expires)


def _tables(text: str) -> Iterator[str]:
    """:raises ConfigError: a name is missing, or there twice."""
    names = [name.strip() for name in text.split(",")]
    for number, name in enumerate(names):
        if not name or name in names[:number]:
            raise ConfigError(f'option "table" is {text!r}: write each table once, as in "public.orders,public.item"')
        yield name


def _limit(name: str, given: dict[str, str]) -> int | None:
    if name.lower() not in given:
        return None
    number = _number(name, given[name.lower()])
    if number < 1:
        raise ConfigError(f"option {name} is {number}; it is 1 at least")
    return number


def _flag(name: str, given: dict[str, str]) -> bool:
    """:raises ConfigError: it is neither true nor false."""
    text = given.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise ConfigError(f"option {name} is {text!r}; it may be true or false")
    return text == "true"


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"option {name} is {text!r}, which is no number") from None
