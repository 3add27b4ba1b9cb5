"""Quickstart load: a database with tables made once, and a steady load on them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import Protocol

import anyio
from anyio import to_thread

from capture.embedded import children
from capture.errors import EmbeddedError

_POLL_S = 0.05
_STOP_TIMEOUT_S = 5.0


class RunningLoad:
    """A load that runs as a child process."""

    def __init__(self, name: str, child: children.Child, log: Path) -> None:
        self._name = name
        self._child = child
        self._log = log

    def is_running(self) -> bool:
        """:raises EmbeddedError: the load has failed."""
        code = self._child.poll()
        if code:
            raise EmbeddedError(f"{self._name} ended with code {code}; see {self._log}")
        return code is None

    async def wait(self) -> None:
        while self.is_running():  # noqa: ASYNC110 - the event loop cannot wait for a child's end
            await anyio.sleep(_POLL_S)


class Workload(Protocol):
    """A database with a load. ``start`` and ``stop`` block."""

    @property
    def server(self) -> str:
        """The server's product name, for people."""
        ...

    @property
    def uri(self) -> str: ...

    @property
    def rules(self) -> tuple[str, ...]:
        """Filter rules that match its tables."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def is_prepared(self) -> bool:
        """Return whether ``prepare`` has finished."""
        ...

    def describe(self, scale: int) -> str: ...

    async def prepare(self, scale: int) -> None:
        """Create the tables: 100,000 rows for each ``scale``.

        :raises EmbeddedError: the tool failed; the text names its log.
        """
        ...

    def writing(self, *, seconds: int, rate: int) -> AbstractAsyncContextManager[RunningLoad]:
        """Write for ``seconds`` at ``rate`` transactions (four changes each) per second; 0: as fast as possible."""
        ...


@asynccontextmanager
async def running(
    argv: Sequence[str | Path], log: Path, *, environment: Mapping[str, str] | None = None
) -> AsyncIterator[RunningLoad]:
    """Run ``argv`` as a load; its output goes to ``log``."""
    with log.open("ab") as output:
        child = children.spawn(argv, output=output, environment=environment)
    try:
        yield RunningLoad(Path(argv[0]).name, child, log)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(partial(children.stop, child, SIGTERM, timeout_s=_STOP_TIMEOUT_S))
