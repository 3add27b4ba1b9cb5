"""Bed of a soak: the captures of the usual bed, over the soak's own sources."""

from collections.abc import Collection
from pathlib import Path

from tests.acceptance.bed import Bed
from tests.soak.mariadb import MariaDB, Mysql
from tests.soak.postgres import Postgres, PostgresByRoot
from tests.soak.source import Source


class SoakBed(Bed):
    """The captures of the usual bed, over the soak's own sources."""

    def __init__(self, directory: Path, *, captures: int, sources: Collection[str]) -> None:
        super().__init__(directory, captures=captures)
        known: list[Source] = [
            Postgres(directory),
            PostgresByRoot(directory),
            MariaDB(directory, "FULL"),
            MariaDB(directory, "NO_LOG"),
            MariaDB(directory, "FULL", image="MINIMAL"),
            Mysql(directory, "FULL"),
            Mysql(directory, "FULL", image="MINIMAL"),
        ]
        assert {source.name for source in known}.issuperset(sources)
        self.sources = [source for source in known if source.name in sources]

    @property
    def source_uri(self) -> str:
        return self.sources[0].uri

    def start_source(self) -> None:
        for source in self.sources:
            source.start()

    def stop_source(self) -> None:
        for source in self.sources:
            source.stop()
