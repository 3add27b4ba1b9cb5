"""Shared PostgreSQL: the server of a run, whose databases are emptied and used again.

``CREATE DATABASE`` copies a thousand pages and logs them, which is two fifths of what a small test on PostgreSQL costs.
A database that has more in it than schemas and publications (extensions, large objects, settings, prepared
transactions) is not used again.
"""

import contextlib

import pg8000.exceptions

from capture.embedded import EmbeddedPostgres

_CONNECTED = "pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
#: what tests seldom make, and nothing here removes
_OTHERS = """
SELECT count(*) FROM pg_database WHERE datname = current_database() AND (
  datacl IS NOT NULL OR datdba <> 10
  OR EXISTS (SELECT 1 FROM pg_db_role_setting WHERE setdatabase = pg_database.oid)
  OR EXISTS (SELECT 1 FROM pg_prepared_xacts WHERE database = current_database())
  OR EXISTS (SELECT 1 FROM pg_replication_slots WHERE database = current_database())
  OR EXISTS (SELECT 1 FROM pg_subscription WHERE subdbid = pg_database.oid)
  OR EXISTS (SELECT 1 FROM pg_extension WHERE extname <> 'plpgsql')
  OR EXISTS (SELECT 1 FROM pg_event_trigger) OR EXISTS (SELECT 1 FROM pg_foreign_data_wrapper)
  OR EXISTS (SELECT 1 FROM pg_largeobject_metadata) OR EXISTS (SELECT 1 FROM pg_default_acl)
  OR EXISTS (SELECT 1 FROM pg_cast WHERE oid >= 16384) OR EXISTS (SELECT 1 FROM pg_language WHERE oid >= 16384))
"""
_EMPTY = """
DO $do$
DECLARE name text;
BEGIN
  SET LOCAL client_min_messages = error;
  SET LOCAL lock_timeout = '2s';
  FOR name IN SELECT pubname FROM pg_publication LOOP
    EXECUTE format('DROP PUBLICATION %I', name);
  END LOOP;
  FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
    EXECUTE format('DROP SCHEMA %I CASCADE', name);
  END LOOP;
  CREATE SCHEMA public AUTHORIZATION pg_database_owner;
  GRANT USAGE ON SCHEMA public TO PUBLIC;
END $do$
"""


class SharedPostgres(EmbeddedPostgres):
    """``create_database`` returns a new database, or one that ``give_back`` has emptied."""

    #: names of empty databases
    free: tuple[str, ...] = ()
    _count = 0
    _settings = EmbeddedPostgres._settings | {"max_prepared_transactions": "20"}

    def create_database(self, name: str) -> None:
        if not self.free:
            super().create_database(name)
            return
        *rest, empty = self.free
        self.free = tuple(rest)
        self.execute(f'ALTER DATABASE "{empty}" RENAME TO "{name}"')

    def empty(self, name: str) -> bool:
        """Empty a database for the next test; return False if it cannot be."""
        empty = f"empty_{self._count}"
        with contextlib.suppress(pg8000.exceptions.Error, OSError):
            self.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM {_CONNECTED.format(name=name)}")
            if self.execute(_OTHERS, database=name) != [[0]]:
                return False
            self.execute(_EMPTY, database=name)
            self.execute(f'ALTER DATABASE "{name}" RENAME TO "{empty}"')
            self._count += 1
            self.free = (*self.free, empty)
            return True
        return False


def give_back(server: object, name: str) -> bool:
    """The test that made this database has ended, and dropped its slots. Return whether the database is used again."""
    return isinstance(server, SharedPostgres) and server.empty(name)
