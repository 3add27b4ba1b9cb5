"""Copy groups: small tables whose copies are asked for at the same time are copied together.

One group of a changefeed is copied at a time; what is asked for meanwhile is the next one. So no copy waits for others
to come, and the more wait, the less each of them costs.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio

from agent.feeds.copies import Copied, CopyOrder
from agent.units.dump import DumpProgress
from capture.member.asking import is_same_work
from reactor.errors import WeirError
from reactor.records.changefeed import ChangefeedInfo

#: tables under one snapshot: their locks are held until all are read
_TABLES_MAX: Final = 64

OnProgress = Callable[[DumpProgress], None]
CopyTogether = Callable[[Sequence[CopyOrder], OnProgress], Awaitable[list[Copied | WeirError]]]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A table that waits for its copy. ``info``: of the changefeed as it was when that was asked for."""

    info: ChangefeedInfo
    order: CopyOrder
    on_progress: OnProgress
    result: Copied | WeirError | None = None


@dataclass(slots=True)
class _Queue:
    """Those of one changefeed. ``lock``: held while a group is copied."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    waiting: list[_Waiting] = field(default_factory=list)


class CopyGroups:
    """Those of one membership. ``copy``: see ``agent.feeds.copies.copy_together``."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    async def copy(self, info: ChangefeedInfo, copy: CopyTogether, order: CopyOrder, on_progress: OnProgress) -> Copied:
        """Copy a table with all others that wait. If whoever copies a group is cancelled, the next in line does.

        :raises WeirError: it cannot be copied.
        """
        queue = self._queues.setdefault(info.id, _Queue())
        mine = _Waiting(info, order, on_progress)
        queue.waiting.append(mine)
        try:
            async with queue.lock:
                if mine.result is None:
                    await _copy_with(mine, queue.waiting, copy)
        finally:
            queue.waiting.remove(mine)
            if not queue.waiting:
                self._queues.pop(info.id, None)
        assert mine.result is not None, "its group has been copied"
        if isinstance(mine.result, WeirError):
            raise mine.result
        return mine.result


async def _copy_with(mine: _Waiting, waiting: Sequence[_Waiting], copy: CopyTogether) -> None:
    others = (one for one in waiting if one is not mine and one.result is None and is_same_work(one.info, mine.info))
    group = [mine, *others][:_TABLES_MAX]

    def note(at: DumpProgress) -> None:
        """Called on the copy's own thread. Rows and tables of a group are no progress of one table."""
        for one in group:
            one.on_progress(DumpProgress((), at.start, 0, 0, 0, "", at.trouble))

    results: Sequence[Copied | WeirError]
    try:
        results = await copy([one.order for one in group], note)
    except WeirError as error:
        results = [error] * len(group)
    for one, result in zip(group, results, strict=True):
        one.result = result
