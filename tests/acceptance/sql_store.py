"""The cluster's store in a PostgreSQL of its own, which can fail over to another address."""

import json
from pathlib import Path

from capture.embedded import EmbeddedPostgres, places


class SqlStore:
    """The cluster's store in PostgreSQL; it has two addresses, of which one answers."""

    def __init__(self, directory: Path) -> None:
        self._parts = [EmbeddedPostgres(directory / name, wal_level="replica") for name in ("first", "second")]
        self._ports = (0, 0)
        self.url = ""

    def start(self) -> None:
        self._parts[0].start()
        if not self.url:
            here, there = self._parts[0], places.free_port()
            self.url = here.uri().replace(f":{here.port}/", f":{here.port},127.0.0.1:{there}/")
            self._ports = here.port, there

    def stop(self) -> None:
        self._parts[0].stop()

    def kill(self) -> None:
        self._parts[0].kill()

    def restart(self) -> None:
        self._parts[0].restart()

    def fail_over(self) -> None:
        """The server is gone, and another one has all of its commits, at the other address."""
        self.kill()
        here, there = (part.data_directory.parent for part in self._parts)
        here.rename(there)
        state = json.loads((there / "state.json").read_text())
        (port,) = {*self._ports} - {int(state["port"])}
        (there / "state.json").write_text(json.dumps(state | {"port": port}))
        (there / "data" / "postmaster.pid").unlink(missing_ok=True)
        self._parts.reverse()
        self._parts[0].start()
