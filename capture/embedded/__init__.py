"""An etcd and a PostgreSQL that come with pip packages: for the quickstart, for a single machine and for tests."""

from capture.embedded.etcd import EmbeddedEtcd
from capture.embedded.postgres import EmbeddedPostgres

__all__ = ["EmbeddedEtcd", "EmbeddedPostgres"]
