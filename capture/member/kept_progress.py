"""Kept progress: records in the metadata store how far the comparison of a changefeed has come.

It is kept once all captures of the cluster know it. A record does not outlive its changefeed.
"""

import structlog

from agent.log.stored_form import stored_form
from capture.member.services import PresentMembership
from reactor import keys
from reactor.errors import StoreError, WeirError
from reactor.records.changefeed import ChangefeedInfo
from reactor.records.formats import Feature
from reactor.records.schedules import DiffProgress
from reactor.store.port import Compare, Delete, Target

_log = structlog.get_logger()


class KeptProgress:
    def __init__(self, membership: PresentMembership, info: ChangefeedInfo) -> None:
        self._membership = membership
        self._info = info

    def load(self) -> DiffProgress | None:
        feed = self._membership.state.changefeeds.get(self._info.id)
        return feed.diff_progress if feed else None

    async def save(self, progress: DiffProgress | None) -> None:
        """Errors of the store are logged."""
        state = self._membership.state
        stored = state.raw.get(str(keys.InfoKey(state.cluster, self._info.namespace, self._info.id)))
        if stored is None or state.format < Feature.DIVIDED:
            return
        is_there = Compare(stored.key, Target.CREATE_REVISION, stored.create_revision)
        key = str(keys.DiffProgressKey(state.cluster, self._info.namespace, self._info.id))
        try:
            if progress is None:
                await self._membership.client.txn([is_there], [Delete(key)])
                return
            form = await stored_form(self._membership.client, state.cluster, {key: progress.encode()})
            await self._membership.client.txn([is_there, *form.compares], form.operations)
        except (StoreError, WeirError) as error:
            _log.warning("the progress of a comparison is not stored", changefeed=self._info.id, error=str(error))
