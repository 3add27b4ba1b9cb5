"""An etcd and a PostgreSQL that come with pip packages, and the machine's own MariaDB: for the quickstart, for a single
machine and for tests."""

from capture.embedded.etcd import EmbeddedEtcd
from capture.embedded.mariadb import EmbeddedMariaDB
from capture.embedded.postgres import EmbeddedPostgres

__all__ = ["EmbeddedEtcd", "EmbeddedMariaDB", "EmbeddedPostgres"]
