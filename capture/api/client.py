"""The HTTP API's client, for the command line: blocking, one method per route, errors as one line.

Errors of the server are raised as ``RemoteError`` with the server's own code and text.
"""

import re
import socket
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote, urlencode

import httpx
from pydantic import BaseModel

from capture.api import port as views
from capture.api.access import AuditView, TokenAsked, TokenView
from capture.api.credentials import credentials, verification
from capture.api.subscriptions import AdvanceAsked, LogAsked, LogPart, OpenedSubscription, SubscriptionAsked
from capture.errors import ConfigError, ServerUnreachableError, StillRunningError
from reactor.errors import WeirError
from reactor.records.sync_point import SyncPoint
from reactor.tls import tls_failure, untrusted, words_of
from reactor.views import (
    ChangefeedView,
    MaintainedView,
    OwnerMoveView,
    SubscriptionView,
    TableFilesView,
    TableView,
    called,
)

V = TypeVar("V", bound=BaseModel)
_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 60.0
#: seconds until a connection that waits is tested, between two tests, and how many may be lost
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
_NODE = re.compile(r"[a-z0-9-]{1,63}")
#: tables in one answer
_PAGE = 1000


class RemoteError(WeirError):
    """The server refused or failed; ``code`` and text are the server's."""

    def __init__(self, message: str, *, code: str, status: int) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class Client:
    """A context manager; the methods are those of ``capture.api.port.Cluster``."""

    def __init__(
        self,
        server: str,
        *,
        token: str | None = None,
        ca_file: str = "",
        node: str = "",
        timeout_s: float = _ANSWER_TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """``token`` None: that of this user's server there, or ``WEIR_TOKEN``. ``ca_file``: trusted certificates,
        besides the system's; ``node``: the node whose certificate is expected."""
        known = credentials(server, token=token, ca_file=ca_file)
        if node and not _NODE.fullmatch(node):
            raise ConfigError(f"{node[:80]!r} is no name of a node; see `weir capture list`")
        self._server = known.url.rstrip("/") if "://" in known.url else f"http://{known.url.rstrip('/')}"
        self._extensions = {"sni_hostname": node} if node else {}
        headers = {"authorization": f"Bearer {known.token}"} if known.token else {}
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S))
        # no proxies from the environment: captures are called by their own addresses
        self._http = httpx.Client(
            timeout=timeout,
            transport=transport or _network(verification(self._server, known.ca_file)),
            trust_env=False,
            headers=headers,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._http.close()

    def create(self, spec: views.ChangefeedSpec) -> ChangefeedView:
        """Create a changefeed. Includes the checks of source and sink, so it takes as long as they take. Nothing is
        created if the caller disconnects before."""
        return self._one(ChangefeedView, "changefeeds", method="POST", body=_asked(spec), unlimited=True)

    def check(self, spec: views.ChangefeedSpec) -> views.CheckView:
        """Run all checks of ``create``; creates nothing."""
        return self._one(views.CheckView, "changefeeds/check", method="POST", body=_asked(spec), unlimited=True)

    def list(self, *, tables: bool = True) -> "_Views[ChangefeedView]":
        """``tables``: with their tables; without, only their number is there, and the answer is small."""
        return self._many(ChangefeedView, _without_tables("changefeeds", tables=tables))

    def owned(self, *, tables: bool = True) -> "_Views[ChangefeedView]":
        """Return the changefeeds that the capture itself owns; as ``list``."""
        return self._many(ChangefeedView, _without_tables("owned", tables=tables))

    def move_owner(self, changefeed_id: str, capture_id: str) -> OwnerMoveView:
        body = {"capture_id": capture_id}
        return self._one(OwnerMoveView, _path(changefeed_id, "move_owner"), method="POST", body=body)

    def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        """As ``list``."""
        return self._one(ChangefeedView, _without_tables(_path(changefeed_id), tables=tables))

    def pause(self, changefeed_id: str) -> ChangefeedView:
        return self._one(ChangefeedView, _path(changefeed_id, "pause"), method="POST")

    def resume(
        self, changefeed_id: str, *, overwrite_checkpoint_ts: int | None = None, resync: bool = False
    ) -> ChangefeedView:
        body: dict[str, object] = {"resync": True} if resync else {}
        if overwrite_checkpoint_ts is not None:
            body["overwrite_checkpoint_ts"] = overwrite_checkpoint_ts
        return self._one(ChangefeedView, _path(changefeed_id, "resume"), method="POST", body=body)

    def update(self, changefeed_id: str, asked: views.ChangefeedUpdate) -> views.UpdateView:
        body = asked.model_dump(mode="json", exclude_none=True)
        return self._one(views.UpdateView, _path(changefeed_id), method="PUT", body=body)

    def rewind(self, changefeed_id: str, ts: int) -> views.RewindView:
        return self._one(views.RewindView, _path(changefeed_id, "rewind"), method="POST", body={"ts": ts})

    def move_table(self, changefeed_id: str, table: str, capture_id: str) -> views.MoveView:
        body = {"table": table, "capture_id": capture_id}
        return self._one(views.MoveView, _path(changefeed_id, "move_table"), method="POST", body=body)

    def split(self, changefeed_id: str, table: str, spans: int | None = None) -> views.CutView:
        body = {"table": table} | ({} if spans is None else {"spans": spans})
        return self._one(views.CutView, _path(changefeed_id, "split"), method="POST", body=body)

    def resync_table(
        self, changefeed_id: str, table: str, *, rows_per_second: int | None = None
    ) -> views.TableResyncView:
        body: dict[str, object] = {"table": table}
        if rows_per_second is not None:
            body["rows_per_second"] = rows_per_second
        return self._one(views.TableResyncView, _path(changefeed_id, "resync_table"), method="POST", body=body)

    def cancel_resync(self, changefeed_id: str, table: str) -> views.TableResyncView:
        body = {"table": table}
        return self._one(views.TableResyncView, _path(changefeed_id, "cancel_resync"), method="POST", body=body)

    def pause_table(self, changefeed_id: str, table: str) -> views.TableStepView:
        return self._table_step(changefeed_id, "pause_table", table=table)

    def resume_table(self, changefeed_id: str, table: str) -> views.TableStepView:
        return self._table_step(changefeed_id, "resume_table", table=table)

    def skip_table(self, changefeed_id: str, table: str, ts: int, *, confirmed: bool = False) -> views.TableStepView:
        return self._table_step(changefeed_id, "skip_table", table=table, ts=ts, confirmed=confirmed)

    def maintain_table(self, changefeed_id: str, table: str) -> MaintainedView:
        """Takes as long as rewriting the table's small files takes."""
        path, body = _path(changefeed_id, "maintain_table"), {"table": table}
        return self._one(MaintainedView, path, method="POST", body=body, unlimited=True)

    def table_files(self, changefeed_id: str, table: str) -> TableFilesView:
        return self._one(TableFilesView, _path(changefeed_id, f"table_files?{urlencode({'table': table})}"))

    def add_table(self, changefeed_id: str, table: str) -> views.UpdateView:
        """Takes as long as the source takes to show its tables."""
        path, body = _path(changefeed_id, "add_table"), {"table": table}
        return self._one(views.UpdateView, path, method="POST", body=body, unlimited=True)

    def remove_table(self, changefeed_id: str, table: str) -> views.UpdateView:
        """As ``add_table``."""
        path, body = _path(changefeed_id, "remove_table"), {"table": table}
        return self._one(views.UpdateView, path, method="POST", body=body, unlimited=True)

    def _table_step(self, changefeed_id: str, action: str, **body: object) -> views.TableStepView:
        return self._one(views.TableStepView, _path(changefeed_id, action), method="POST", body=body)

    def rebalance(self, changefeed_id: str) -> None:
        self._call("POST", _path(changefeed_id, "rebalance"))

    def drain(self, capture_id: str) -> views.DrainView:
        return self._one(views.DrainView, f"captures/{_part(capture_id)}/drain", method="POST")

    def rotate_secret(self) -> views.RotationView:
        """Continue the rotation as far as possible; repeat until it is done."""
        return self._one(views.RotationView, "secret/rotate", method="POST")

    def resign_owner(self) -> views.ResignView:
        return self._one(views.ResignView, "owner/resign", method="POST")

    def remove(self, changefeed_id: str) -> None:
        self._call("DELETE", _path(changefeed_id))

    def tables(self, changefeed_id: str) -> "_Views[TableView]":
        """Return all tables by name; each request takes a part of them, so that none holds up the server."""
        found: dict[int, TableView] = {}
        after = ""
        while True:
            page = self._many(TableView, _path(changefeed_id, f"tables?limit={_PAGE}{after}"))
            new = [table for table in page if table.table_id not in found]
            found.update((table.table_id, table) for table in new)
            if len(page) != _PAGE or not new:  # a server of an earlier version always answers with all
                return sorted(found.values(), key=lambda table: table.table)
            after = f"&after={max(found)}"

    def table(self, changefeed_id: str, name: str) -> TableView | None:
        """Return the table ``name`` (schema.name); None: there is no such table."""
        page = self._many(TableView, _path(changefeed_id, f"tables?{urlencode({'name': name})}"))
        return called(page, name)

    def sync_points(self, changefeed_id: str) -> "_Views[SyncPoint]":
        return self._many(SyncPoint, _path(changefeed_id, "sync_points"))

    def diff(self, changefeed_id: str, asked: views.DiffAsked = views.WHOLE) -> "_Views[views.TableDiff]":
        """Takes as long as reading both sides takes."""
        wishes = urlencode(asked.model_dump(mode="json", exclude_defaults=True))
        path = _path(changefeed_id, f"diff?{wishes}" if wishes else "diff")
        return self._many(views.TableDiff, path, unlimited=True)

    def repair(self, changefeed_id: str, asked: views.RepairAsked) -> "_Views[views.TableRepair]":
        """As ``diff``."""
        body = asked.model_dump(mode="json", exclude_defaults=True)
        return self._many(views.TableRepair, _path(changefeed_id, "repair"), method="POST", body=body, unlimited=True)

    def open_subscription(self, changefeed_id: str, asked: SubscriptionAsked) -> OpenedSubscription:
        body = asked.model_dump(mode="json", exclude_none=True)
        return self._one(OpenedSubscription, _path(changefeed_id, "subscriptions"), method="POST", body=body)

    def subscriptions(self, changefeed_id: str) -> "_Views[SubscriptionView]":
        return self._many(SubscriptionView, _path(changefeed_id, "subscriptions"))

    def read_log(self, changefeed_id: str, name: str, asked: LogAsked) -> LogPart:
        body = asked.model_dump(mode="json", exclude_none=True)
        return self._one(LogPart, _path(changefeed_id, f"subscriptions/{_part(name)}/read"), method="POST", body=body)

    def advance(self, changefeed_id: str, name: str, asked: AdvanceAsked) -> SubscriptionView:
        body = asked.model_dump(mode="json")
        return self._one(
            SubscriptionView, _path(changefeed_id, f"subscriptions/{_part(name)}/advance"), method="POST", body=body
        )

    def close_subscription(self, changefeed_id: str, name: str) -> None:
        self._call("DELETE", _path(changefeed_id, f"subscriptions/{_part(name)}"))

    def captures(self) -> "_Views[views.CaptureView]":
        return self._many(views.CaptureView, "captures")

    def status(self) -> views.StatusView:
        return self._one(views.StatusView, "status")

    def create_token(self, asked: TokenAsked) -> TokenView:
        return self._one(TokenView, "tokens", method="POST", body=asked.model_dump(mode="json", exclude_none=True))

    def tokens(self) -> "_Views[TokenView]":
        return self._many(TokenView, "tokens")

    def revoke_token(self, token_id: str) -> TokenView:
        return self._one(TokenView, f"tokens/{_part(token_id)}", method="DELETE")

    def audit(self, limit: int) -> "_Views[AuditView]":
        return self._many(AuditView, f"audit?limit={limit}")

    def health(self) -> views.HealthView:
        """An unhealthy cluster is an answer, not an error."""
        return self._one(views.HealthView, "health", accepted=(200, 503))

    def _one(
        self,
        model: type[V],
        path: str,
        *,
        method: str = "GET",
        body: object = None,
        accepted: Sequence[int] = (200, 201, 202),
        unlimited: bool = False,
    ) -> V:
        answer = self._call(method, path, body=body, accepted=accepted, unlimited=unlimited)
        try:
            return model.model_validate_json(answer.content)
        except ValueError:
            raise self._refused(answer) from None

    def _many(
        self, model: type[V], path: str, *, method: str = "GET", body: object = None, unlimited: bool = False
    ) -> "_Views[V]":
        answer = self._call(method, path, body=body, unlimited=unlimited)
        try:
            return [model.model_validate(item) for item in answer.json()]
        except (ValueError, TypeError):
            raise self._refused(answer) from None

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        unlimited: bool = False,
        accepted: Sequence[int] = (200, 201, 202, 204),
    ) -> httpx.Response:
        timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S) if unlimited else httpx.USE_CLIENT_DEFAULT
        try:
            url = f"{self._server}/api/v2/{path}"
            answer = self._http.request(method, url, json=body, timeout=timeout, extensions=self._extensions)
        except httpx.ReadTimeout:
            raise self._unanswered() from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from None
        if answer.status_code in accepted and not _is_still_running(answer):
            return answer
        raise self._refused(answer)

    def _refused(self, answer: httpx.Response) -> WeirError:
        try:
            error = answer.json()
            return RemoteError(error["error_msg"], code=error["error_code"], status=answer.status_code)
        except (ValueError, KeyError, TypeError):
            return self._not_weir(answer)

    def _not_weir(self, answer: httpx.Response) -> ServerUnreachableError:
        text = f"what answers at {self._server} is not Weir (HTTP {answer.status_code}); give another --server URL"
        return ServerUnreachableError(text)

    def _unanswered(self) -> StillRunningError:
        """The server accepted the request, so it may still be executed."""
        wait_s = self._http.timeout.read or 0.0
        text = (
            f"the server at {self._server} has not answered for {wait_s:.0f} s; what was asked for may still be running"
        )
        return StillRunningError(f"{text}: see `weir changefeed query`")

    def _unreachable(self, error: Exception) -> ServerUnreachableError:
        tls = tls_failure(error)
        if isinstance(tls, ssl.SSLCertVerificationError):
            return ServerUnreachableError(untrusted(tls, self._server, "--ca-file"))
        if tls is not None:
            text = f"no TLS session with {self._server} ({words_of(tls)}); use http:// if it has no certificate"
            return ServerUnreachableError(text)
        if isinstance(error, httpx.RemoteProtocolError) and self._server.startswith("http:"):
            why = "it breaks off; one with a certificate wants https://"
        elif isinstance(error, httpx.TimeoutException):
            why = "it does not answer in time"
        else:
            why = str(error) or "no connection"
        text = f"no Weir server at {self._server} ({why}); start one with `weir server`, or give --server URL"
        return ServerUnreachableError(text)


#: inside ``Client`` the name ``list`` is the method
_Views = list


def _network(verify: ssl.SSLContext | bool) -> httpx.HTTPTransport:
    """An answer may take hours, so there is no time limit; a machine that lost power never says that none will come."""
    tests = [(getattr(socket, name), n) for name, n in _KEEPALIVE.items() if hasattr(socket, name)]
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *((socket.IPPROTO_TCP, name, n) for name, n in tests)]
    return httpx.HTTPTransport(verify=verify, trust_env=False, socket_options=options)


def _is_still_running(answer: httpx.Response) -> bool:
    """Return whether the request was accepted, with an unknown outcome so far."""
    if answer.status_code != httpx.codes.ACCEPTED:
        return False
    try:
        said = answer.json()
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("error_code") == StillRunningError.code


def _asked(spec: views.ChangefeedSpec) -> object:
    return spec.model_dump(mode="json", exclude_none=True)


def _without_tables(path: str, *, tables: bool) -> str:
    return path if tables else f"{path}?tables=false"


def _path(changefeed_id: str, action: str = "") -> str:
    path = f"changefeeds/{_part(changefeed_id)}"
    return f"{path}/{action}" if action else path


def _part(name: str) -> str:
    """Return a name as one part of a path.

    :raises ConfigError: it cannot be one: ``..`` would lead to another route, which may remove something else.
    """
    if name not in ("", ".", ".."):
        try:
            return quote(name, safe="")
        except UnicodeEncodeError:
            pass
    raise ConfigError(f"{name!a} is no id or name; see the lists of `weir`")
