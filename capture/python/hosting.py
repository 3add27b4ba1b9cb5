"""Hosting: runs a capture in this process, beside a notebook's cells or a script.

The capture runs in a task of its own, which enters and leaves all of its cancel scopes; so it can be started and
stopped in different tasks. One that is never stopped ends with the process.
"""

import asyncio
import atexit
import threading
from pathlib import Path

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from capture import logs
from capture.capture import Capture
from capture.config import ServerSettings, load_server_settings
from capture.directory import make_directory
from capture.errors import CaptureStoppedError, root_cause
from capture.server import running

_LOG = "weir.log"
_HEALTHY_POLL_S = 0.05
#: of a script that ends without ``stop``
_EXIT_TIMEOUT_S = 60.0


def prepared(directory: Path | str, settings: dict[str, object]) -> ServerSettings:
    """Return the settings of a capture that stores its files below ``directory`` and listens on any free local port.
    Without another configuration, its log goes to ``weir.log`` there.

    :raises ConfigError: a setting is unknown or wrong.
    """
    data_dir = Path(directory).absolute() if directory != "" else directory  # which the settings refuse
    loaded = load_server_settings(**{"data_dir": data_dir, "addr": "127.0.0.1:0"} | settings)
    if not structlog.is_configured():
        make_directory(loaded.data_dir)
        logs.configure(loaded.log_level, file=loaded.log_file or loaded.data_dir / _LOG, libraries=False)
    return loaded


class TaskHost:
    """A capture in a task of the current event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._asked = asyncio.Event()
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Return the URL of its API when it has joined the cluster and there is an owner.

        :raises WeirError: it cannot start.
        """
        self._task = asyncio.create_task(self._run(), name="capture")
        try:
            await asyncio.wait((self._task, self._address), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait((self._task,))
            raise
        if self._task.done():
            self._raise(self._task)
        return f"http://{self._address.result()}"

    async def stop(self) -> None:
        """:raises WeirError: it had failed."""
        assert self._task is not None, "a capture is started before it is stopped"
        self._asked.set()
        await asyncio.wait((self._task,))
        if not self._task.cancelled() and self._task.exception() is not None:
            self._raise(self._task)

    async def _run(self) -> None:
        async with running(self._settings, new_member=Capture) as member:
            while not (await member.cluster.health()).healthy:  # noqa: ASYNC110 - elected in a moment
                await anyio.sleep(_HEALTHY_POLL_S)
            assert isinstance(member, Capture)
            self._address.set_result(member.settings.addr)
            await self._asked.wait()

    def _raise(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            raise CaptureStoppedError("the capture was stopped while it started; start it again")
        raise root_cause(error) from None


class ThreadHost:
    """A capture in an event loop of its own, in a thread. It leaves its cluster when the process exits."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._started = threading.Event()
        self._asked = threading.Event()
        self._ended = threading.Event()
        self._url = ""
        self._error: BaseException | None = None
        # a daemon: a script that forgets it must be able to end
        self._thread = threading.Thread(target=self._work, name="capture", daemon=True)

    def start(self) -> str:
        """As ``TaskHost.start``."""
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        atexit.register(self._exit)
        return self._url

    def stop(self) -> None:
        """:raises WeirError: it had failed."""
        atexit.unregister(self._exit)
        self._asked.set()
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def _exit(self) -> None:
        self._asked.set()
        self._ended.wait(_EXIT_TIMEOUT_S)

    def _work(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()
            self._started.set()
            self._asked.set()  # for the thread that waits for it, if the start failed

    async def _serve(self) -> None:
        host = TaskHost(self._settings)
        asked = to_thread.run_sync(self._asked.wait, abandon_on_cancel=True, limiter=CapacityLimiter(1))
        starting, stopping = asyncio.create_task(host.start()), asyncio.create_task(asked)
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            return
        self._url = starting.result()
        self._started.set()
        await stopping
        await host.stop()
