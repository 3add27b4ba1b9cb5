"""Shared bed: one capture for all modules of this folder, each on a database of its own."""

from collections.abc import Iterator

import pytest

from tests.acceptance.bed import Bed


@pytest.fixture(scope="package")
def shared_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with Bed(tmp_path_factory.mktemp("bed"), captures=1) as bed:
        yield bed


@pytest.fixture(scope="module")
def bed(shared_bed: Bed, request: pytest.FixtureRequest) -> Iterator[Bed]:
    """The shared bed on a database that has the name of the module."""
    with shared_bed.on_database(request.module.__name__.rpartition(".test_")[2]) as bed:
        yield bed
