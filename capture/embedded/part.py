"""Embedded server: a child process below one directory that is started, watched, stopped and killed.

``EmbeddedPart`` is any of them. ``EmbeddedDatabase`` is one with a persistent port and password, a data directory that
is created under a temporary name and then renamed (so a killed run leaves no partial one), and a directory for its Unix
socket. Databases run as an unprivileged user if we are root, which they refuse.
"""

import secrets
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from capture.embedded import children, places
from capture.errors import EmbeddedError

_POLL_S = 0.02


class EmbeddedPart(ABC):
    """One server below ``directory``. Blocking calls; a context manager starts and stops it.

    ``host``: the address of this machine that it listens on.
    """

    #: its display name, and its log
    name: ClassVar[str]
    log_name: ClassVar[str]
    #: signals that end it in order, waiting ``stop_timeout_s`` after each
    stop_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM,)
    stop_timeout_s: ClassVar[float] = 20.0

    def __init__(self, directory: Path | str, *, host: str) -> None:
        self._directory = Path(directory).absolute()
        self._host = host
        self._child: children.Child | None = None
        self._state: dict[str, str | int] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start it, and wait until it answers.

        :raises EmbeddedError: it does not; the text names its log.
        """
        deadline = time.monotonic() + timeout_s
        self._directory.mkdir(parents=True, exist_ok=True)
        self._prepare()
        try:
            self._launch()
            while not self._is_ready():
                if time.monotonic() > deadline:
                    cause = f"see {self._log}, and whether another run has its data"
                    raise EmbeddedError(f"embedded {self.name} is not ready in time; {cause}")
                self._check_alive()
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._child is not None:
            children.stop(self._child, *self.stop_signals, timeout_s=self.stop_timeout_s)
            self._child = None

    def kill(self) -> None:
        """Kill it like ``kill -9``, for tests of what survives."""
        if self._child is not None:
            children.stop(self._child)
            self._child = None

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def _log(self) -> Path:
        return self._directory / self.log_name

    @property
    def _who(self) -> str:
        return f"embedded {self.name} in {self._directory}"

    @property
    def _state_file(self) -> Path:
        return self._directory / "state.json"

    @abstractmethod
    def _prepare(self) -> None:
        """Create everything that has to exist before the launch."""

    @abstractmethod
    def _launch(self) -> None:
        """Start the child."""

    @abstractmethod
    def _is_ready(self) -> bool: ...

    def _check_alive(self) -> None:
        assert self._child is not None
        if (code := self._child.poll()) is not None:
            raise EmbeddedError(f"embedded {self.name} ended with code {code} at its start; see {self._log}")


class EmbeddedDatabase(EmbeddedPart):
    """A database server. ``sockets_prefix``: name prefix of the directory for sockets."""

    sockets_prefix: ClassVar[str]

    def __init__(self, directory: Path | str, *, host: str) -> None:
        super().__init__(directory, host=host)
        self._user = children.unprivileged_user()
        self._reach = False

    @property
    def port(self) -> int:
        return int(self._state["port"])

    @property
    def password(self) -> str:
        return str(self._state["password"])

    @property
    def socket_directory(self) -> str:
        """A different directory in every run."""
        return str(self._state["sockets"])

    @property
    def data_directory(self) -> Path:
        return self._directory / "data"

    def stop(self) -> None:
        super().stop()
        self._remove_sockets()

    @abstractmethod
    def _program(self) -> Path:
        """:raises EmbeddedError: it is not installed."""

    @abstractmethod
    def _initialise(self, new: Path) -> None:
        """Create a data directory in the empty directory ``new``."""

    def _prepare(self) -> None:
        program = self._program()
        if self._user is not None:
            self._reach = not all(children.is_reachable_by_all(path) for path in (program, self.data_directory))
        fresh: dict[str, str | int] = {"port": places.free_port(), "password": secrets.token_hex(16)}
        self._state = places.load_state(self._state_file) or fresh
        self._remove_sockets()
        # not below our directory: a socket's path has at most 107 bytes
        sockets = Path(tempfile.mkdtemp(prefix=self.sockets_prefix, dir="/tmp"))
        children.give(sockets, self._user)
        self._state["sockets"] = str(sockets)
        places.save_state(self._state_file, self._state)
        if not self.data_directory.exists():
            self._make_data_directory()
        places.require_free(self.port, who=self._who)

    def _make_data_directory(self) -> None:
        new = self._directory / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        children.give(new, self._user)
        self._initialise(new)
        new.rename(self.data_directory)

    def _run(self, command: list[str | Path], *, timeout_s: float = 120.0) -> None:
        """Run one of its tools to the end.

        :raises EmbeddedError: it failed; the text names the log.
        """
        with self._log.open("ab") as output:
            child = children.spawn(command, output=output, user=self._user, reach=self._reach)
        if (code := child.wait(timeout_s)) != 0:
            tool = Path(command[0]).name
            raise EmbeddedError(f"embedded {self.name}'s {tool} ended with code {code}; see {self._log}")

    def _remove_sockets(self) -> None:
        if "sockets" in self._state:
            shutil.rmtree(self.socket_directory, ignore_errors=True)
