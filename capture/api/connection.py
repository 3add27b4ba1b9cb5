"""Connection: sends single requests to a cluster's HTTP API; errors are the classes of the command line."""

from collections.abc import Callable
from typing import TypeVar

from capture.api.client import Client, RemoteError
from capture.errors import (
    CaptureNotFoundError,
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    JobRefusedError,
    PositionGoneError,
    StillRunningError,
    SubscriptionNotFoundError,
    TableNotFoundError,
)
from reactor.errors import NotOwnerError, WeirError

T = TypeVar("T")

_NAMED = (
    CaptureNotFoundError,
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    JobRefusedError,
    NotOwnerError,
    PositionGoneError,
    StillRunningError,
    SubscriptionNotFoundError,
    TableNotFoundError,
)
_BY_CODE: dict[str, Callable[[str], WeirError]] = {kind.code: kind for kind in _NAMED}


class Connection:
    """``server``: the URL of any capture; the other arguments are those of ``Client``. Threads may share it."""

    def __init__(self, server: str, *, token: str | None = None, ca_file: str = "", node: str = "") -> None:
        self.server = server
        self._token = token
        self._ca_file = ca_file
        self._node = node

    def call(self, question: Callable[[Client], T]) -> T:
        """Return the answer; blocks.

        :raises WeirError: the server's error, or why it was not reached.
        """
        with Client(self.server, token=self._token, ca_file=self._ca_file, node=self._node) as client:
            try:
                return question(client)
            except RemoteError as error:
                kind = _BY_CODE.get(error.code)
                raise (kind(str(error)) if kind else error) from None
