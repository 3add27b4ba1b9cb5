"""Cluster port: the operations of a running cluster, and the shapes of their results.

``Cluster`` is the port between the interfaces (HTTP API, quickstart, notebooks) and the capture that executes the
operations. Results are frozen pydantic models: they are the JSON of the HTTP API and of ``--json``. URIs in results are
always masked.
"""

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol

from pydantic import Field, model_validator

from capture.api.requests.base import CONVERTED, Asked, Condition, Name, PositionTs, TableNames, Uri
from reactor.records.base import RowsPerSecond
from reactor.records.changefeed import ChangefeedConfig, Mode, SinkMode
from reactor.records.sync_point import SyncPoint
from reactor.views import ChangefeedView, MaintainedView, OwnerMoveView, TableFilesView, TableView, View
from reactor.views import CutView as CutView
from reactor.views import DrainView as DrainView
from reactor.views import MoveView as MoveView
from reactor.views import ResignView as ResignView
from reactor.views import RotationView as RotationView

_NO_SINK: Final = "none://"


class ChangefeedSpec(Asked):
    """The parameters of ``changefeed create``. URIs are in clear here, and sealed before they are stored.

    The sink ``none`` is ``none://``. It has no tables to copy into, so mode ``all`` is ``incremental`` there.
    """

    changefeed_id: Name
    source_uri: Uri
    sink_uri: Uri
    mode: Annotated[Mode, CONVERTED] = Mode.ALL
    sink_mode: Annotated[SinkMode, CONVERTED] = SinkMode.UPSERT
    #: None: where the dump (or the slot) starts
    start_ts: PositionTs | None = None
    target_ts: PositionTs | None = None
    config: ChangefeedConfig = ChangefeedConfig()

    @model_validator(mode="before")
    @classmethod
    def _without_sink(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("sink_uri") not in ("none", _NO_SINK):
            return given
        mode = Mode.INCREMENTAL if given.get("mode", Mode.ALL) == Mode.ALL else given["mode"]
        return {**given, "sink_uri": _NO_SINK, "mode": mode}


class ChangefeedUpdate(Asked):
    """The parameters of ``changefeed update``; None: unchanged. ``target_ts`` 0: none. ``resync``: copy tables again
    whose rows or columns are filtered otherwise. ``dry_run``: only show."""

    source_uri: Uri | None = None
    sink_uri: Uri | None = None
    mode: Annotated[Mode | None, CONVERTED] = None
    target_ts: PositionTs | None = None
    config: ChangefeedConfig | None = None
    resync: bool = False
    dry_run: bool = False


class CheckView(View):
    """A changefeed that could be created. ``notices``: warnings for its user, line by line."""

    id: str
    source: str
    sink: str
    notices: tuple[str, ...] = ()


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
    #: ids of the changefeeds that it owns
    owns: tuple[str, ...] = ()
    is_leaving: bool = False
    #: "changefeed/unit" of each worker that runs here, and the number of table spans
    workers: tuple[str, ...] = ()
    spans: int = 0
    #: of a process that has not joined yet: what it waits for
    waits_for: str = ""
    #: why it takes no work at all; empty while it is well
    fault: str = ""
    #: what it lacks to work for a changefeed, one line each
    faults: tuple[str, ...] = ()


class TableDiff(View):
    """Comparison of one table in source and sink at one Ts; of a table
    compared by ranges of its key, ``ts`` is that of the last. ``differences``: the first few keys that differ, and how.

    ``waiting``: why the table is not at that Ts, and was not compared. ``by_rows``: why rows were compared instead of
    checksums; empty if checksums were. ``share``: of the table that was compared, in ranges of its key; rows are those
    of them.
    """

    table: str
    equal: bool
    source_rows: int = 0
    sink_rows: int = 0
    ts: int = 0
    differences: tuple[str, ...] = ()
    waiting: str = ""
    by_rows: str = ""
    share: float = 1.0


class DiffAsked(View):
    """``sample``: compare such a share of each table, in ranges of its key that are chosen at random.
    ``rows_per_second``: to read from the source at most. ``resume``: continue one that has not ended, of that share."""

    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    resume: bool = False
    rows_per_second: RowsPerSecond | None = None


#: all rows, as fast as it goes
WHOLE = DiffAsked()


class RepairAsked(Asked):
    """``tables``: schema.name; none: all of the changefeed. ``dry_run``: only show what differs. ``where``: a condition
    over the columns of the one table; only rows whose keys match it, at the source or at the sink, are compared.
    ``rows_per_second``: to read from the source at most."""

    tables: TableNames = ()
    dry_run: bool = False
    where: Condition = ""
    rows_per_second: RowsPerSecond | None = None


class KeyRepair(View):
    """``what``: inserted, updated or deleted. ``columns``: those of an updated row whose values differ."""

    key: dict[str, str]
    what: str
    columns: tuple[str, ...] = ()


class TableRepair(View):
    """Rows of one table that were made equal to the source's at ``ts``, or (``dry_run``) would be. ``refused``: why the
    table is left as it is. ``waiting``: why it is not at that Ts, and was not looked at."""

    table: str
    ts: int = 0
    keys: tuple[KeyRepair, ...] = ()
    dry_run: bool = False
    refused: str = ""
    waiting: str = ""


class FieldChange(View):
    """One changed field for display; secrets are masked."""

    field: str
    before: str
    after: str


class UpdateView(View):
    """The changes of ``changefeed update``, made or planned. ``outdated``: tables with rows or columns in the sink that
    the new filter would not have chosen, or without some that it would have; with ``resync`` they are copied again."""

    changefeed: ChangefeedView
    changes: tuple[FieldChange, ...] = ()
    outdated: tuple[str, ...] = ()
    dry_run: bool = False


class TablePosition(View):
    table: str
    ts: int


class RewindView(View):
    """``tables``: the position from which each will be written again. A sink that records its own Ts continues from
    that."""

    changefeed: ChangefeedView
    tables: tuple[TablePosition, ...] = ()


class TableResyncView(View):
    """A table that will be copied again (``resyncing``), or whose resync was cancelled."""

    changefeed_id: str
    table: str
    resyncing: bool = True


class TableStepView(View):
    """A table that is paused, resumed, or skips changes. ``ts``: every change up to it is in the sink, before this.
    ``notices``: warnings for its operator, line by line."""

    changefeed_id: str
    table: str
    ts: int
    notices: tuple[str, ...] = ()


class HealthView(View):
    """``problem``: one line, empty when healthy."""

    healthy: bool
    owner: str = ""
    problem: str = ""


class ReadyView(View):
    """Whether this capture has joined its cluster and can move rows; otherwise what it waits for, in one line.

    ``is_fit``: no fault of its own keeps it from work; `weir capture list` has the cause.
    """

    ready: bool
    waits_for: str = ""
    is_fit: bool = True


class StatusView(View):
    """This capture's own view of itself."""

    version: str
    id: str
    cluster_id: str
    pid: int
    is_owner: bool
    liveness: str = "alive"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A capture's HTTP API. ``node``: of its certificate; empty without TLS."""

    address: str
    node: str = ""

    @property
    def url(self) -> str:
        return f"{'https' if self.node else 'http'}://{self.address}"


class Cluster(Protocol):
    """The operations of a cluster that a capture offers.

    Methods about a changefeed work on its owner alone, and those about the cluster (``create``, ``list``, ``drain``,
    ``move_owner``, ``resign_owner``) on the elected controller: elsewhere they raise ``NotOwnerError``, and the caller
    should use ``owner_endpoint``. All errors are ``WeirError``: ``ChangefeedNotFoundError``,
    ``CaptureNotFoundError``, ``ChangefeedExistsError``, source and sink errors at creation, ``JobRefusedError``.
    """

    @property
    def is_owner(self) -> bool: ...

    def answers(self, changefeed_id: str = "") -> bool:
        """Return whether this capture answers requests about a changefeed, or (none) about the cluster."""
        ...

    async def wait_for_owner(self, changefeed_id: str) -> None:
        """Wait for a moment while a changefeed is given to an owner."""

    async def owner_endpoint(self, changefeed_id: str = "") -> Endpoint:
        """Return the HTTP API of the capture that answers.

        :raises OwnerNotFoundError: there is no owner at the moment.
        """
        ...

    async def owned(self, *, tables: bool = True) -> list[ChangefeedView]:
        """Return the changefeeds that this capture owns; as ``list``."""

    async def move_owner(self, changefeed_id: str, capture_id: str) -> OwnerMoveView:
        """Let another capture own a changefeed."""

    async def status(self) -> StatusView: ...

    async def health(self) -> HealthView: ...

    async def ready(self) -> ReadyView: ...

    async def captures(self) -> builtins.list[CaptureView]: ...

    async def create(self, spec: ChangefeedSpec) -> ChangefeedView:
        """Create a changefeed; if cancelled, nothing is created."""
        ...

    async def check(self, spec: ChangefeedSpec) -> CheckView:
        """Run all checks of ``create``; creates nothing."""
        ...

    async def list(self, *, tables: bool = True) -> list[ChangefeedView]:
        """``tables``: with their tables; without, only their number is there."""
        ...

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        """As ``list``."""
        ...

    async def pause(self, changefeed_id: str) -> ChangefeedView: ...

    async def resume(
        self, changefeed_id: str, *, overwrite_checkpoint_ts: int | None = None, resync: bool = False
    ) -> ChangefeedView:
        """``resync``: at a new position, with every table copied again in place."""
        ...

    async def update(self, changefeed_id: str, asked: ChangefeedUpdate) -> UpdateView: ...

    async def rewind(self, changefeed_id: str, ts: int) -> RewindView: ...

    async def remove(self, changefeed_id: str) -> None: ...

    async def move_table(self, changefeed_id: str, table: str, capture_id: str) -> MoveView: ...

    async def split(self, changefeed_id: str, table: str, spans: int | None = None) -> CutView:
        """Divide the table into ``spans`` spans (1 joins it), or as many as the captures can share evenly."""
        ...

    async def resync_table(
        self, changefeed_id: str, table: str, *, rows_per_second: int | None = None
    ) -> TableResyncView:
        """Copy a table again from its source, while all others flow; returns when the request is stored.
        ``rows_per_second``: to read at most."""
        ...

    async def cancel_resync(self, changefeed_id: str, table: str) -> TableResyncView:
        """Cancel a resync, unless the copy is already replacing the table."""
        ...

    async def pause_table(self, changefeed_id: str, table: str) -> TableStepView:
        """Hold a table until ``resume_table``, while all others flow."""
        ...

    async def resume_table(self, changefeed_id: str, table: str) -> TableStepView:
        """Try a held table again at once, from its position."""
        ...

    async def skip_table(self, changefeed_id: str, table: str, ts: int, *, confirmed: bool = False) -> TableStepView:
        """Let a held table continue from ``ts``, without the changes in between; refused unless it is confirmed."""
        ...

    async def maintain_table(self, changefeed_id: str, table: str) -> MaintainedView: ...

    async def table_files(self, changefeed_id: str, table: str) -> TableFilesView:
        """Look at the table's data files in the sink."""
        ...

    async def add_table(self, changefeed_id: str, table: str) -> UpdateView:
        """Change the filter so that it takes a table of the source in, which is copied with the rows that it has."""
        ...

    async def remove_table(self, changefeed_id: str, table: str) -> UpdateView:
        """Change the filter so that it leaves a table out; the sink keeps what it has of it."""
        ...

    async def rebalance(self, changefeed_id: str) -> None: ...

    async def drain(self, capture_id: str) -> DrainView: ...

    async def rotate_secret(self) -> RotationView:
        """Continue the rotation to the newest secret key; repeat until it is ``done``."""
        ...

    async def resign_owner(self) -> ResignView:
        """Return when another capture is owner."""
        ...

    async def tables(
        self, changefeed_id: str, *, after: int | None = None, limit: int | None = None, name: str = ""
    ) -> "builtins.list[TableView]":
        """Return all tables, or the one called ``name`` (schema.name).

        With ``limit``, at most so many, by id, behind the id ``after``.
        """
        ...

    async def sync_points(self, changefeed_id: str) -> "builtins.list[SyncPoint]":
        """Return those that are kept, oldest first."""
        ...

    async def diff(self, changefeed_id: str, asked: DiffAsked = WHOLE) -> "builtins.list[TableDiff]": ...

    async def repair(self, changefeed_id: str, asked: RepairAsked) -> "builtins.list[TableRepair]":
        """Make rows of the sink equal to the source's."""
        ...
