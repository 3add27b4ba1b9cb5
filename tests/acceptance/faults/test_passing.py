"""Transient errors, in one cluster with a PostgreSQL and a MariaDB changefeed: a disk that is full, read-only or
away, under the sink or under the change log; a server that is down, a password that was changed, a role that is locked.

Each time both changefeeds are `warning` with cause and cure, and continue by themselves when the cause is gone. In the
end ``diff`` finds nothing.
"""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.ports.source import Scope
from agent.sources import open_source
from capture.embedded import EmbeddedMariaDB
from reactor.records.changefeed import ChangefeedConfig, FeedState, SinkMode
from tests.acceptance.bed import DATABASE, Bed

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(290)]

PG, MARIA = "pg", "maria"
FEEDS = (PG, MARIA)
_DISK = "48m"
_ROLE, _PASSWORD = "weir_passing", "one"
_TABLE = "CREATE TABLE kept (id int PRIMARY KEY, v varchar(200))"


def run(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


class PassingBed(Bed):
    """Lakes and log are on file systems of their own; each source is read by a role of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, captures=1)
        self.mariadb = EmbeddedMariaDB(directory / "mariadb")
        self.disk, self.lakes, self.log = directory / "disk", directory / "lake", directory / "log"
        self._rows = 0

    def start_source(self) -> None:
        for place in (self.disk, self.log):
            place.mkdir(exist_ok=True)
            if not run("mount", "-t", "tmpfs", "-o", f"size={_DISK}", "weir-test", str(place)):
                pytest.skip("mounting needs privileges")
        (self.disk / "lake").mkdir(exist_ok=True)
        self.lakes.mkdir(exist_ok=True)
        self.bring_lakes()
        super().start_source()
        self.mariadb.start()
        self.mariadb.create_database(DATABASE)
        self.execute(f"CREATE ROLE {_ROLE} LOGIN SUPERUSER PASSWORD '{_PASSWORD}'")
        self.maria(f"CREATE USER {_ROLE} IDENTIFIED BY '{_PASSWORD}'")
        self.maria(f"GRANT ALL ON *.* TO {_ROLE}")
        for execute in (self.execute, self.maria):
            execute(_TABLE)

    def stop_source(self) -> None:
        super().stop_source()
        self.mariadb.stop()

    def close(self) -> None:
        super().close()
        for place in (self.lakes, self.disk, self.log):
            run("umount", "-l", str(place))

    def maria(self, sql: str) -> list[list[object]]:
        return self.mariadb.execute(sql, database=DATABASE)

    def uri(self, feed: str) -> str:
        whole = self.source_uri if feed == PG else self.mariadb.uri(DATABASE)
        scheme, _, rest = whole.partition("://")
        return f"{scheme}://{_ROLE}:{_PASSWORD}@{rest.partition('@')[2]}"

    def write(self) -> dict[str, int]:
        """A row more in each; how far each changefeed must come."""
        self._rows += 1
        for execute in (self.execute, self.maria):
            execute(f"INSERT INTO kept VALUES ({self._rows}, '{'x' * 100}')")
            execute(f"UPDATE kept SET v = '{self._rows}' WHERE id % 3 = {self._rows % 3}")
        found: dict[str, int] = {}
        for feed, uri in ((PG, self.source_uri), (MARIA, self.mariadb.uri(DATABASE))):
            scope = Scope("bed", "bed", SinkMode.UPSERT, ChangefeedConfig())
            found[feed] = open_source(uri, scope).current_ts()
        return found

    def warnings(self) -> dict[str, str]:
        """What each changefeed that is `warning` says."""
        views = {feed: self.query(feed) for feed in FEEDS}
        return {
            feed: f"{view.warning.code}: {view.warning.message}"
            for feed, view in views.items()
            if view.state is FeedState.WARNING and view.warning is not None
        }

    def states(self) -> dict[str, FeedState]:
        return {feed: self.query(feed).state for feed in FEEDS}

    # Faults

    def fill(self, place: Path) -> None:
        with (place / "filler").open("wb") as filler:
            try:
                while filler.write(b"x" * (1 << 20)):
                    filler.flush()
            except OSError:
                pass

    def close_disk(self, place: Path) -> None:
        assert run("mount", "-o", "remount,ro", str(place))

    def open_disk(self, place: Path) -> None:
        assert run("mount", "-o", "remount,rw", str(place))

    def take_lakes(self) -> None:
        assert run("umount", "-l", str(self.lakes))

    def bring_lakes(self) -> None:
        assert run("mount", "--bind", str(self.disk / "lake"), str(self.lakes))

    def change_password(self, password: str) -> None:
        self.execute(f"ALTER ROLE {_ROLE} PASSWORD '{password}'")
        self.maria(f"ALTER USER {_ROLE} IDENTIFIED BY '{password}'")
        self._end_sessions()

    def lock_role(self) -> None:
        self.execute(f"ALTER ROLE {_ROLE} NOLOGIN")
        self.maria(f"ALTER USER {_ROLE} ACCOUNT LOCK")
        self._end_sessions()

    def unlock_role(self) -> None:
        self.execute(f"ALTER ROLE {_ROLE} LOGIN")
        self.maria(f"ALTER USER {_ROLE} ACCOUNT UNLOCK")

    def take_servers(self) -> None:
        self.postgres.stop()
        self.mariadb.stop()

    def bring_servers(self) -> None:
        self.postgres.start()
        self.mariadb.start()

    def _end_sessions(self) -> None:
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{_ROLE}'")
        self.maria(f"KILL CONNECTION USER {_ROLE}")


@dataclass(frozen=True, slots=True)
class Fault:
    """``says``: what is in the warning. ``writes``: whether the sources can be written meanwhile."""

    name: str
    begin: Callable[[PassingBed], object]
    end: Callable[[PassingBed], object]
    says: tuple[str, ...]
    writes: bool = True


FAULTS = (
    Fault("lake full", lambda bed: bed.fill(bed.disk), lambda bed: (bed.disk / "filler").unlink(), ("No space left",)),
    Fault("lake read-only", lambda bed: bed.close_disk(bed.disk), lambda bed: bed.open_disk(bed.disk), ("Read-only",)),
    Fault("lake away", PassingBed.take_lakes, PassingBed.bring_lakes, ("is not the one that was written",)),
    Fault("log full", lambda bed: bed.fill(bed.log), lambda bed: (bed.log / "filler").unlink(), ("No space left",)),
    Fault("log read-only", lambda bed: bed.close_disk(bed.log), lambda bed: bed.open_disk(bed.log), ("Read-only",)),
    Fault("password", lambda bed: bed.change_password("two"), lambda bed: bed.change_password(_PASSWORD), (_ROLE,)),
    Fault("role locked", PassingBed.lock_role, PassingBed.unlock_role, (_ROLE,)),
    Fault("servers down", PassingBed.take_servers, PassingBed.bring_servers, ("SourceUnreachable",), writes=False),
)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PassingBed]:
    with PassingBed(tmp_path_factory.mktemp("bed")) as bed:
        for feed in FEEDS:
            bed.create_feed(feed, source_uri=bed.uri(feed), sink_uri=f"delta+file://{bed.lakes / feed}")
        yield bed


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_both_wait_say_why_and_continue(bed: PassingBed, fault: Fault) -> None:
    before = bed.write()
    bed.wait_for("both follow", lambda: all(bed.covers(feed, before[feed]) for feed in FEEDS), timeout_s=60)
    fault.begin(bed)
    try:
        if fault.writes:
            bed.write()
        bed.wait_for("both say why", lambda: bed.warnings().keys() == set(FEEDS), timeout_s=60)
        for feed, text in bed.warnings().items():
            assert all(part in text for part in fault.says), (feed, text)
    finally:
        fault.end(bed)
    after = bed.write()
    bed.wait_for("both continue", lambda: all(bed.covers(feed, after[feed]) for feed in FEEDS), timeout_s=90)
    bed.wait_for("all is well", lambda: set(bed.states().values()) == {FeedState.NORMAL}, timeout_s=60)


def test_nothing_was_lost(bed: PassingBed) -> None:
    for feed in FEEDS:
        found = bed.ask(lambda client: client.diff(feed), timeout_s=60.0)  # noqa: B023 - asked at once
        assert [(one.table, one.differences) for one in found if not one.equal] == []
        assert any(one.sink_rows >= len(FAULTS) for one in found)
