"""Shared bed: two captures and two changefeeds of a MariaDB under sysbench, for all modules of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.failpoints import VARIABLE, Action, Point
from reactor.records.changefeed import SinkMode
from tests.acceptance.checks import CHANGELOG, UPSERT
from tests.acceptance.maria_bed import MariaBed


@pytest.fixture(scope="package")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file: while it is there, the next capture that has written a schema change to the sink falls."""
    return tmp_path_factory.mktemp("traps") / "trap"


@pytest.fixture(scope="package")
def bed(tmp_path_factory: pytest.TempPathFactory, trap: Path) -> Iterator[MariaBed]:
    bed = MariaBed(tmp_path_factory.mktemp("bed"), captures=2)
    bed.environment[VARIABLE] = f"{Point.SCHEMA_AFTER_SINK}={Action.KILL},when:{trap}"
    with bed:
        bed.execute("CREATE TABLE thing (id int PRIMARY KEY, a varchar(20), b int, gone text)")
        bed.execute("INSERT INTO thing SELECT id, CONCAT('a', id), k, 'g' FROM sbtest1")
        bed.execute("CREATE TABLE ring (id int PRIMARY KEY, a int, b int, c int)")
        bed.execute("INSERT INTO ring VALUES (1, 1, 2, 3)")
        bed.execute("CREATE DATABASE aside")
        config = {"filter": {"rules": ["*.*", "!aside.*"]}}
        bed.create_feed(UPSERT, SinkMode.UPSERT, config=config)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG, config=config)
        yield bed
