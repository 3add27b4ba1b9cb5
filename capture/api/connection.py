"""Connection: sends single requests to a cluster's HTTP API; errors are the classes of the command line."""

from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from capture.address import DEFAULT_ADDRESS
from capture.api.client import Client, RemoteError
from capture.api.credentials import unprotected
from capture.errors import (
    CaptureNotFoundError,
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    ConfigError,
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


def may_pass(error: WeirError) -> bool:
    """Return whether the same request may be answered later, or by another capture."""
    is_unavailable = isinstance(error, RemoteError) and error.status == HTTPStatus.SERVICE_UNAVAILABLE
    return error.retryable or is_unavailable or isinstance(error, NotOwnerError)


class Connection:
    """``server``: the URLs of one or more captures, separated by commas. A request goes to the capture that answered
    last, then to the others. The other arguments are those of ``Client``. Threads may share a connection.

    :raises ConfigError: ``server`` is no text.
    """

    def __init__(self, server: str, *, token: str | None = None, ca_file: str = "", node: str = "") -> None:
        if not isinstance(server, str):
            raise ConfigError(f"the server is {type(server).__name__}; give its URL, such as http://{DEFAULT_ADDRESS}")
        self.server = server
        self._servers = tuple(url for part in server.split(",") if (url := part.strip())) or (server,)
        self._token = token
        self._ca_file = ca_file
        self._node = node

    def unprotected(self) -> str:
        """Return a warning if the token would go over a network without TLS; else empty."""
        found = (unprotected(server, token=self._token) for server in self._servers)
        return next(filter(None, found), "")

    def call(self, question: Callable[[Client], T]) -> T:
        """Return the answer; blocks.

        :raises WeirError: the server's error, or why it was not reached; of several, the last one's.
        """
        *others, last = servers = self._servers
        for server in others:
            try:
                answer = self._ask(server, question)
            except WeirError as error:
                if not may_pass(error):
                    raise
            else:
                self._servers = (server, *(one for one in servers if one != server))
                return answer
        answer = self._ask(last, question)
        self._servers = (last, *others)
        return answer

    def _ask(self, server: str, question: Callable[[Client], T]) -> T:
        with Client(server, token=self._token, ca_file=self._ca_file, node=self._node) as client:
            try:
                return question(client)
            except RemoteError as error:
                kind = _BY_CODE.get(error.code)
                raise (kind(str(error)) if kind else error) from None
