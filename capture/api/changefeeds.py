"""Changefeeds from Python, for notebooks: the cluster's operations with words as arguments.

async with Capture.embedded("weir-data") as capture:
    feed = await capture.changefeeds.create("shop", source="postgresql://…", sink="delta+file:///lake")
    await capture.changefeeds.wait_synced(feed.id)
"""

import builtins
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from capture.api.client import Client
from capture.api.connection import Connection
from capture.api.inputs import Config, model_of, spec_of
from capture.api.port import (
    CheckView,
    Cluster,
    DiffAsked,
    RepairAsked,
    TableDiff,
    TableRepair,
    TableResyncView,
    TableStepView,
    UpdateView,
)
from reactor.errors import WeirError
from reactor.records.changefeed import FeedState, Mode, SinkMode, Unit
from reactor.views import ChangefeedView, MaintainedView, OwnerMoveView

_POLL_S = 0.1
T = TypeVar("T")

_ENDED = (FeedState.FAILED, FeedState.STOPPED, FeedState.FINISHED, FeedState.REMOVED)


class Changefeeds:
    """Operations on changefeeds; errors are ``WeirError``, one line with cause and cure."""

    def __init__(self, cluster: Cluster, *, token: Callable[[], str] = str, ca_file: str = "") -> None:
        """``token``, ``ca_file``: for the owner, if that is another capture."""
        self._cluster = cluster
        self._token = token
        self._ca_file = ca_file

    async def create(
        self,
        changefeed_id: str,
        *,
        source: str,
        sink: str,
        mode: Mode | str = Mode.ALL,
        sink_mode: SinkMode | str = SinkMode.UPSERT,
        config: Config = None,
    ) -> ChangefeedView:
        """Check source and sink, then create the changefeed; nothing is created if a check fails."""
        spec = spec_of(changefeed_id, source, sink, mode=mode, sink_mode=sink_mode, config=config)
        return await self._answer(lambda here: here.create(spec), lambda owner: owner.create(spec))

    async def check(
        self,
        changefeed_id: str,
        *,
        source: str,
        sink: str,
        mode: Mode | str = Mode.ALL,
        sink_mode: SinkMode | str = SinkMode.UPSERT,
        config: Config = None,
    ) -> CheckView:
        """Run all checks of ``create``; creates nothing."""
        spec = spec_of(changefeed_id, source, sink, mode=mode, sink_mode=sink_mode, config=config)
        return await self._answer(lambda here: here.check(spec), lambda owner: owner.check(spec))

    async def list(self) -> list[ChangefeedView]:
        return await self._answer(lambda here: here.list(), lambda owner: owner.list())

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        """``tables``: with the tables; without, only their number is there."""
        return await self._answer(
            lambda here: here.query(changefeed_id, tables=tables),
            lambda owner: owner.query(changefeed_id, tables=tables),
            changefeed_id,
        )

    async def pause(self, changefeed_id: str) -> ChangefeedView:
        return await self._answer(
            lambda here: here.pause(changefeed_id), lambda owner: owner.pause(changefeed_id), changefeed_id
        )

    async def resume(self, changefeed_id: str, *, resync: bool = False) -> ChangefeedView:
        """``resync``: its position is lost; take a new one, and copy every table again in place."""
        return await self._answer(
            lambda here: here.resume(changefeed_id, resync=resync),
            lambda owner: owner.resume(changefeed_id, resync=resync),
            changefeed_id,
        )

    async def remove(self, changefeed_id: str) -> None:
        await self._answer(
            lambda here: here.remove(changefeed_id), lambda owner: owner.remove(changefeed_id), changefeed_id
        )

    async def resync_table(
        self, changefeed_id: str, table: str, *, rows_per_second: int | None = None
    ) -> TableResyncView:
        """Copy a table (schema.name) again from its source, while all others flow."""
        return await self._answer(
            lambda here: here.resync_table(changefeed_id, table, rows_per_second=rows_per_second),
            lambda owner: owner.resync_table(changefeed_id, table, rows_per_second=rows_per_second),
            changefeed_id,
        )

    async def cancel_resync(self, changefeed_id: str, table: str) -> TableResyncView:
        """Cancel a resync, unless the copy is already replacing the table."""
        return await self._answer(
            lambda here: here.cancel_resync(changefeed_id, table),
            lambda owner: owner.cancel_resync(changefeed_id, table),
            changefeed_id,
        )

    async def move_owner(self, changefeed_id: str, capture_id: str) -> OwnerMoveView:
        """Let another capture own the changefeed; its tables stay where they are written."""
        return await self._answer(
            lambda here: here.move_owner(changefeed_id, capture_id),
            lambda owner: owner.move_owner(changefeed_id, capture_id),
        )

    async def pause_table(self, changefeed_id: str, table: str) -> TableStepView:
        """Hold a table (schema.name) until ``resume_table``, while all others flow."""
        return await self._answer(
            lambda here: here.pause_table(changefeed_id, table),
            lambda owner: owner.pause_table(changefeed_id, table),
            changefeed_id,
        )

    async def resume_table(self, changefeed_id: str, table: str) -> TableStepView:
        """Try a held table again at once, from its position."""
        return await self._answer(
            lambda here: here.resume_table(changefeed_id, table),
            lambda owner: owner.resume_table(changefeed_id, table),
            changefeed_id,
        )

    async def skip_table(self, changefeed_id: str, table: str, ts: int, *, confirmed: bool) -> TableStepView:
        """Let a held table continue from ``ts``, without the changes in between, if that is ``confirmed``."""
        return await self._answer(
            lambda here: here.skip_table(changefeed_id, table, ts, confirmed=confirmed),
            lambda owner: owner.skip_table(changefeed_id, table, ts, confirmed=confirmed),
            changefeed_id,
        )

    async def maintain_table(self, changefeed_id: str, table: str) -> MaintainedView:
        """Join small files of a table (schema.name) at the sink, and remove what nobody reads any more, at once."""
        return await self._answer(
            lambda here: here.maintain_table(changefeed_id, table),
            lambda owner: owner.maintain_table(changefeed_id, table),
        )

    async def add_table(self, changefeed_id: str, table: str) -> UpdateView:
        """Take a table (schema.name) of the source in, with the rows that it has, while all others flow."""
        return await self._answer(
            lambda here: here.add_table(changefeed_id, table),
            lambda owner: owner.add_table(changefeed_id, table),
            changefeed_id,
        )

    async def remove_table(self, changefeed_id: str, table: str) -> UpdateView:
        """Leave a table (schema.name) out from now on; the sink keeps what it has of it."""
        return await self._answer(
            lambda here: here.remove_table(changefeed_id, table),
            lambda owner: owner.remove_table(changefeed_id, table),
            changefeed_id,
        )

    async def diff(
        self, changefeed_id: str, *, sample: float = 1.0, rows_per_second: int | None = None
    ) -> builtins.list[TableDiff]:
        """Compare source and sink, table by table, at one position; ``sample``: such a share of each, at random."""
        asked = model_of(DiffAsked, sample=sample, rows_per_second=rows_per_second)
        return await self._answer(
            lambda here: here.diff(changefeed_id, asked),
            lambda owner: owner.diff(changefeed_id, asked),
            changefeed_id,
        )

    async def repair(
        self,
        changefeed_id: str,
        *,
        tables: Sequence[str] = (),
        dry_run: bool = False,
        where: str = "",
        rows_per_second: int | None = None,
    ) -> builtins.list[TableRepair]:
        """Make rows of the sink equal to the source's, of some tables or all; ``dry_run``: only say which. ``where``:
        of one table only those whose keys match a condition on either side."""
        asked = model_of(
            RepairAsked, tables=tuple(tables), dry_run=dry_run, where=where, rows_per_second=rows_per_second
        )
        return await self._answer(
            lambda here: here.repair(changefeed_id, asked),
            lambda owner: owner.repair(changefeed_id, asked),
            changefeed_id,
        )

    async def wait_synced(self, changefeed_id: str, *, ts: int = 1) -> ChangefeedView:
        """Wait until the snapshot is in the sink and the checkpoint has reached ``ts``.

        :raises WeirError: the changefeed has stopped, failed or finished before.
        """
        while True:
            feed = await self.query(changefeed_id, tables=False)
            if feed.unit is Unit.SYNC and feed.checkpoint_ts >= ts:
                return feed
            if feed.state in _ENDED:
                why = f": {feed.error.message}" if feed.error else ""
                raise WeirError(f"changefeed {changefeed_id} is {feed.state}{why}")
            await anyio.sleep(_POLL_S)

    async def _answer(
        self, here: Callable[[Cluster], Awaitable[T]], there: Callable[[Client], T], changefeed_id: str = ""
    ) -> T:
        """Return this capture's answer if it owns the changefeed (none: if it is the controller), else the owner's over
        HTTP.

        :raises OwnerNotFoundError: there is no owner at the moment, and nothing was done.
        """
        if changefeed_id:
            await self._cluster.wait_for_owner(changefeed_id)
        if self._cluster.answers(changefeed_id):
            return await here(self._cluster)
        owner = await self._cluster.owner_endpoint(changefeed_id)
        connection = Connection(owner.url, token=self._token(), ca_file=self._ca_file, node=owner.node)
        ask = partial(connection.call, there)
        return await to_thread.run_sync(ask, abandon_on_cancel=True, limiter=CapacityLimiter(1))
