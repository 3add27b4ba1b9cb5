"""Every sink under test is opened by its URI, as a capture does; the example package is installed for it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.ports import plugin as plugins
from tests import example_package
from tests.contracts.sink_bed import IMPLEMENTATIONS, Bed


@pytest.fixture(scope="session")
def example_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """``examples/weir-sqlite``, installed where this process and its children find it."""
    site = tmp_path_factory.mktemp("site")
    example_package.install("weir-sqlite", site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
        plugins.sinks.cache_clear()
        yield site
    plugins.sinks.cache_clear()


@pytest.fixture(params=IMPLEMENTATIONS)
def bed(request: pytest.FixtureRequest, tmp_path: Path, example_site: Path) -> Bed:
    return Bed.of(IMPLEMENTATIONS[request.param], tmp_path)
