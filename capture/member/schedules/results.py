"""Results of comparisons: the newest one of each changefeed is stored, whether it ran by schedule or was asked for."""

from collections.abc import Sequence

import structlog

from capture.api import port as views
from capture.member.services import PresentMembership
from reactor import keys
from reactor.errors import StoreError
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedInfo
from reactor.records.schedules import LastDiff
from reactor.store.port import Compare, Put, Target

_NAMES_MAX = 20

_log = structlog.get_logger()


def result_of(found: Sequence[views.TableDiff]) -> LastDiff:
    """Return the counts and names of a comparison. The caller adds its time, duration and share."""
    waiting = [one.table for one in found if one.waiting]
    differing = [one.table for one in found if not (one.equal or one.waiting)]
    return LastDiff(
        time=0.0,
        ts=Ts(max((one.ts for one in found if not one.waiting), default=0)),
        compared=len(found) - len(waiting),
        differ=len(differing),
        wait=len(waiting),
        differing=tuple(differing[:_NAMES_MAX]),
        waiting=tuple(waiting[:_NAMES_MAX]),
    )


async def store_result(membership: PresentMembership, info: ChangefeedInfo, result: LastDiff) -> None:
    """Store it, unless the changefeed is gone: a result must not outlive it. Errors of the store are logged."""
    state = membership.state
    stored = state.raw.get(str(keys.InfoKey(state.cluster, info.namespace, info.id)))
    if stored is None:
        return
    is_there = Compare(stored.key, Target.CREATE_REVISION, stored.create_revision)
    key = keys.LastDiffKey(state.cluster, info.namespace, info.id)
    try:
        await membership.client.txn([is_there], [Put(str(key), result.encode())])
    except StoreError as error:
        _log.warning("the result of a comparison is not stored", changefeed=info.id, error=str(error))
