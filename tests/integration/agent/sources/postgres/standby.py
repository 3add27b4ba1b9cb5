"""Standby: a copy of an embedded PostgreSQL that follows it, with its failover slots, and can take its place."""

from pathlib import Path
from typing import Final

from capture.embedded import EmbeddedPostgres, places
from capture.embedded.postgres import tool

_SLOT: Final = "standby"
_SETTINGS: Final = {"hot_standby_feedback": "on"}


class StandbyPostgres(EmbeddedPostgres):
    """The standby of ``primary``, which runs; of PostgreSQL 17 or later."""

    _settings = EmbeddedPostgres._settings | _SETTINGS

    def __init__(self, directory: Path, primary: EmbeddedPostgres) -> None:
        super().__init__(directory, unsafe_no_fsync=True)
        self._primary = primary
        self._keep(places.free_port())

    def promote(self, *, port: int | None = None) -> None:
        """Make it a primary. ``port``: where it answers from then on."""
        self.execute("SELECT pg_promote()")
        if port is not None:
            self.stop()
            self._keep(port)
            self.start()

    def has_slot(self, name: str) -> bool:
        """Copy the primary's failover slots, as the server's own worker does twice a minute. Return whether this one
        can be used once the standby is promoted."""
        self._primary.execute("SELECT pg_log_standby_snapshot()")  # as it does by itself four times a minute
        self.execute("SELECT pg_sync_replication_slots()")
        slot = f"FROM pg_replication_slots WHERE slot_name = '{name}' AND synced AND NOT temporary"
        return self.execute(f"SELECT count(*) {slot}") == [[1]]

    def hold_back_primary(self, *, is_on: bool) -> None:
        """Let the primary's failover slots send only what the standby has, or more than that."""
        self._primary.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{_SLOT if is_on else ''}'")
        self._primary.execute("SELECT pg_reload_conf()")

    def cut_off(self) -> None:
        """Receive nothing more."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")

    def _keep(self, port: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        places.save_state(self._state_file, {"port": port, "password": self._primary.password})

    def _initialise(self, new: Path) -> None:
        self._primary.execute(f"SELECT pg_create_physical_replication_slot('{_SLOT}', true)")
        command: list[str | Path] = [tool("pg_basebackup"), "-D", new, "-d", self._primary.dsn(), "-R"]
        self._run([*command, "-S", _SLOT, "-X", "stream", "-c", "fast", "--no-sync"])
