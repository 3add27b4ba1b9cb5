"""Embedded servers: an etcd and a PostgreSQL from pip packages, and the machine's own MariaDB.

They are for the quickstart, for a cluster on a single machine, and for tests."""

from capture.embedded.etcd import EmbeddedEtcd
from capture.embedded.mariadb import EmbeddedMariaDB
from capture.embedded.postgres import EmbeddedPostgres

__all__ = ["EmbeddedEtcd", "EmbeddedMariaDB", "EmbeddedPostgres"]
