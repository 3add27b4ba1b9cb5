"""Program of ``reader_spark``, which runs in Spark's own environment: does jobs on tables, and says what failed."""

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

#: under this name Weir's embedded catalog has its tables
_CATALOG = "weir"


def _started(jars: str) -> SparkSession:
    settings = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _opened(spark: SparkSession, job: dict[str, Any]) -> tuple[SparkSession, str]:
    """Return a session with the job's catalog, and the table's name in it."""
    if job["format"] == "delta":
        return spark, f"delta.`{job['lake']}/{job['table']}`"
    mine, catalog = spark.newSession(), f"spark.sql.catalog.{_CATALOG}"
    mine.conf.set(f"{catalog}", "org.apache.iceberg.spark.SparkCatalog")
    mine.conf.set(f"{catalog}.type", "jdbc")
    mine.conf.set(f"{catalog}.uri", f"jdbc:sqlite:{job['lake']}/catalog.db")
    mine.conf.set(f"{catalog}.warehouse", f"file://{job['lake']}")
    mine.conf.set(f"{catalog}.jdbc.schema-version", "V1")
    return mine, f"{_CATALOG}.{job['table']}"


def _read(spark: SparkSession, job: dict[str, Any], name: str) -> DataFrame:
    if job["act"] == "stream":
        reading = spark.readStream.format(job["format"])
        rows = reading.load(f"{job['lake']}/{job['table']}") if job["format"] == "delta" else reading.table(name)
        writing = rows.writeStream.format("memory").queryName("streamed").trigger(availableNow=True).start()
        writing.awaitTermination()
        return spark.table("streamed")
    statements = [text for text in job["sql"].format(table=name).split(";") if text.strip()]
    found = [spark.sql(text) for text in statements]
    return found[-1] if job["act"] == "query" else spark.table(name)


def main() -> None:
    jobs = json.load(sys.stdin)
    spark = _started(sys.argv[1])
    errors = {}
    for job in jobs:
        try:
            mine, name = _opened(spark, job)
            _read(mine, job, name).coalesce(1).write.mode("overwrite").parquet(job["out"])
        except Exception as error:
            errors[job["out"]] = str(error)[:2000]
    print(json.dumps(errors))  # noqa: T201


if __name__ == "__main__":
    main()
