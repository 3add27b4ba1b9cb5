"""Embedded servers: etcd, PostgreSQL and a Spark cluster from pip packages, and the machine's own MariaDB.

They are for the quickstart, for a cluster on a single machine, and for tests.
"""

from capture.embedded.etcd import EmbeddedEtcd
from capture.embedded.mariadb import EmbeddedMariaDB
from capture.embedded.postgres import EmbeddedPostgres
from capture.embedded.s3 import EmbeddedS3
from capture.embedded.spark import EmbeddedSpark

__all__ = ["EmbeddedEtcd", "EmbeddedMariaDB", "EmbeddedPostgres", "EmbeddedS3", "EmbeddedSpark"]
