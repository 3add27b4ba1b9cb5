"""Cluster port: what can be asked of a running cluster, and the shapes of the answers.

``Cluster`` is the port between the interfaces (HTTP API, quickstart, notebooks) and the capture that carries the
questions out. Answers are frozen pydantic models: they are the JSON of the HTTP API and of ``--json``. URIs in answers
are always masked.
"""

import builtins
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field

from reactor.ids import MAX_TS
from reactor.records.changefeed import ChangefeedConfig, Mode, SinkMode
from reactor.views import ChangefeedView, TableView, View

#: a Ts that somebody asks for
PositionTs = Annotated[int, Field(ge=0, le=MAX_TS)]


class ChangefeedSpec(BaseModel):
    """What a user asks for with ``changefeed create``. URIs are in clear here, and sealed before they are stored."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    changefeed_id: str
    source_uri: str
    sink_uri: str
    mode: Mode = Mode.ALL
    sink_mode: SinkMode = SinkMode.UPSERT
    #: None: where the dump (or the slot) starts
    start_ts: PositionTs | None = None
    target_ts: PositionTs | None = None
    config: ChangefeedConfig = ChangefeedConfig()


class ChangefeedUpdate(BaseModel):
    """What ``changefeed update`` changes: what is not None. ``target_ts`` 0: none. ``dry_run``: only show."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    source_uri: str | None = None
    sink_uri: str | None = None
    mode: Mode | None = None
    target_ts: PositionTs | None = None
    config: ChangefeedConfig | None = None
    dry_run: bool = False


class CaptureView(View):
    """One member of the cluster."""

    id: str
    address: str
    peer_address: str = ""
    is_owner: bool = False
    version: str = ""
    cluster_id: str = ""
    hostname: str = ""
    pid: int = 0
    started_at: float = 0.0
    #: "changefeed/unit" of each worker that runs here, and the number of table spans
    workers: tuple[str, ...] = ()
    spans: int = 0


class TableDiff(View):
    """Source and sink of one table at one Ts. ``differences``: the first few keys that differ, and how.

    ``waiting``: why the table is not at that Ts, and was not compared."""

    table: str
    equal: bool
    source_rows: int = 0
    sink_rows: int = 0
    ts: int = 0
    differences: tuple[str, ...] = ()
    waiting: str = ""


class FieldChange(View):
    """One field of a changefeed, as people read it; secrets are masked."""

    field: str
    before: str
    after: str


class UpdateView(View):
    """What ``changefeed update`` changed, or would change."""

    changefeed: ChangefeedView
    changes: tuple[FieldChange, ...] = ()
    dry_run: bool = False


class TablePosition(View):
    table: str
    ts: int


class RewindView(View):
    """``tables``: from where each will be written again. A sink that records its own Ts continues from that."""

    changefeed: ChangefeedView
    tables: tuple[TablePosition, ...] = ()


class MoveView(View):
    """The ``spans`` of a table that are on their way to a capture."""

    changefeed_id: str
    table: str
    capture: str
    spans: int


class CutView(View):
    """A table that has ``spans`` spans and is to have ``wanted``; `tables` shows when it has them."""

    changefeed_id: str
    table: str
    spans: int
    wanted: int


class DrainView(View):
    """``remaining``: table spans and workers that the capture still has; ask again until 0."""

    capture: str
    remaining: int


class ResignView(View):
    """Who was owner, and who is now."""

    capture: str
    owner: str


class HealthView(View):
    """``problem``: one line, empty when healthy."""

    healthy: bool
    owner: str = ""
    problem: str = ""


class StatusView(View):
    """This capture, as seen by itself."""

    version: str
    id: str
    cluster_id: str
    pid: int
    is_owner: bool
    liveness: str = "alive"


class Cluster(Protocol):
    """The service of a cluster that a capture offers.

    Methods about changefeeds work on the owner alone: elsewhere they raise ``NotOwnerError``, and whoever asked goes to
    ``owner_address``. So do ``drain`` and ``resign_owner``. All errors are ``WeirError``: ``ChangefeedNotFoundError``,
    ``CaptureNotFoundError``, ``ChangefeedExistsError``, source and sink errors at creation, ``JobRefusedError``.
    """

    @property
    def is_owner(self) -> bool: ...

    async def owner_address(self) -> str:
        """host:port of the owner's HTTP API.

        :raises OwnerNotFoundError: there is none at the moment.
        """
        ...

    async def status(self) -> StatusView: ...

    async def health(self) -> HealthView: ...

    async def captures(self) -> builtins.list[CaptureView]: ...

    async def create(self, spec: ChangefeedSpec) -> ChangefeedView: ...

    async def list(self) -> list[ChangefeedView]: ...

    async def query(self, changefeed_id: str) -> ChangefeedView: ...

    async def pause(self, changefeed_id: str) -> ChangefeedView: ...

    async def resume(self, changefeed_id: str, *, overwrite_checkpoint_ts: int | None = None) -> ChangefeedView: ...

    async def update(self, changefeed_id: str, asked: ChangefeedUpdate) -> UpdateView: ...

    async def rewind(self, changefeed_id: str, ts: int) -> RewindView: ...

    async def remove(self, changefeed_id: str) -> None: ...

    async def move_table(self, changefeed_id: str, table: str, capture_id: str) -> MoveView: ...

    async def split(self, changefeed_id: str, table: str, spans: int | None = None) -> CutView:
        """Let the table have so many spans (1 joins it), or as many as the captures can share well."""
        ...

    async def rebalance(self, changefeed_id: str) -> None: ...

    async def drain(self, capture_id: str) -> DrainView: ...

    async def resign_owner(self) -> ResignView:
        """Returns when another capture is owner."""
        ...

    async def tables(self, changefeed_id: str) -> "builtins.list[TableView]": ...

    async def diff(self, changefeed_id: str) -> "builtins.list[TableDiff]": ...
