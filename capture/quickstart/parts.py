"""Quickstart parts: optionally a Spark cluster instead of local Spark, an S3 server instead of directories, and another
store than etcd.

They run below the quickstart's directory and end with it.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from capture.config import ServerSettings
from capture.embedded import EmbeddedPostgres, EmbeddedS3, EmbeddedSpark
from capture.terminal.progress import Reporter

SparkKind = Literal["local", "standalone"]
StorageKind = Literal["directory", "s3"]
FormatKind = Literal["delta", "iceberg"]
StoreKind = Literal["etcd", "sqlite", "postgresql"]

_BUCKET: Final = "s3://weir"
#: an executor that fits into an embedded worker
_SPARK: Final[Mapping[str, str]] = {
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class Parts:
    """The places in which Spark runs, and log, tables and the cluster's state are stored."""

    directory: Path
    spark: SparkKind = "local"
    storage: StorageKind = "directory"
    format: FormatKind = "delta"
    store: StoreKind = "etcd"

    @property
    def lake(self) -> str:
        """The directory or bucket of the tables."""
        return f"{_BUCKET}/lake" if self.storage == "s3" else str((self.directory / "lake").absolute())

    @property
    def sink_uri(self) -> str:
        if self.format == "iceberg" and self.storage == "s3":  # a catalog of its own, and tables in the bucket
            catalog = (self.directory / "catalog.db").absolute()
            return f"iceberg+sql://localhost{catalog}?dialect=sqlite&warehouse={self.lake}"
        return f"delta+{self.lake}" if self.storage == "s3" else f"{self.format}+file://{self.lake}"

    @contextmanager
    def running(self, settings: ServerSettings, reporter: Reporter) -> Iterator[ServerSettings]:
        """Run the parts, and yield the capture's settings. Blocking to enter and to leave."""
        changed: dict[str, object] = {}
        with ExitStack() as stack:
            if self.store == "postgresql":
                reporter.step("starting a PostgreSQL for the cluster's state")
                database = stack.enter_context(EmbeddedPostgres(self.directory / "store", wal_level="replica"))
                reporter.finish()
                changed["store"] = database.uri()
            if self.storage == "s3":
                reporter.step("starting an S3 server")
                server = stack.enter_context(EmbeddedS3(self.directory / "s3"))
                reporter.finish()
                # for this process and its children: credentials are in no setting, and in no URI
                stack.enter_context(_environment(server.options()))
                changed["log_storage"] = f"{_BUCKET}/log"
            if self.spark == "standalone":
                reporter.step("starting a Spark cluster")
                secret = secrets.token_hex(16)
                cluster = stack.enter_context(EmbeddedSpark(self.directory / "spark-cluster", secret=secret))
                reporter.finish()
                changed |= {
                    "spark_master": cluster.url,
                    "spark": {**_SPARK, "spark.authenticate.secret": secret},
                    "spark_captures": 1,
                }
            yield settings.model_copy(update=changed)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
