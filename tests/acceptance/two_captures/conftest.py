"""Shared bed: two captures for all modules of this folder, each on a database of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.failpoints import VARIABLE, Action, Point
from tests.acceptance.bed import Bed


@pytest.fixture(scope="package")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory: the first capture that reaches a fail-point whose name is a file there removes it, and falls."""
    return tmp_path_factory.mktemp("traps")


@pytest.fixture(scope="package")
def shared_bed(tmp_path_factory: pytest.TempPathFactory, traps: Path) -> Iterator[Bed]:
    points = (Point.SCHEMA_BEFORE_SINK, Point.SCHEMA_AFTER_SINK)
    variable = ";".join(f"{point}={Action.KILL},when:{traps / point}" for point in points)
    with Bed(tmp_path_factory.mktemp("bed"), captures=2, environment={VARIABLE: variable}) as bed:
        yield bed


@pytest.fixture(scope="module")
def bed(shared_bed: Bed, request: pytest.FixtureRequest) -> Iterator[Bed]:
    """The shared bed on a database that has the name of the module."""
    with shared_bed.on_database(request.module.__name__.rpartition(".test_")[2]) as bed:
        yield bed
