"""Worker loads: the number of workers on each capture, of all changefeeds, for the placement of another one.

Counted when somebody asks, which is seldom, and kept up from then on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from owner.feed.changefeed import Changefeed
from owner.feed.state import is_running
from reactor.ids import CaptureId, ChangefeedId
from reactor.state import ClusterState


class WorkerLoads(Mapping[CaptureId, int]):
    """``count`` yields the capture of each worker."""

    def __init__(self, count: Callable[[], Iterable[CaptureId]]) -> None:
        self._count = count
        self._counted: Counter[CaptureId] | None = None

    def note(self, before: Iterable[CaptureId], after: Iterable[CaptureId]) -> None:
        """The workers of one changefeed have been on the captures ``before``, and are on those ``after``."""
        if self._counted is not None:
            self._counted.subtract(before)
            self._counted.update(after)

    def __getitem__(self, capture: CaptureId) -> int:
        return self._known[capture]

    def __iter__(self) -> Iterator[CaptureId]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def _known(self) -> Counter[CaptureId]:
        self._counted = Counter(self._count()) if self._counted is None else self._counted
        return self._counted


def workers_of(changefeed: Changefeed) -> list[CaptureId]:
    return changefeed.run.running_workers() if changefeed.run else []


def all_workers(own: Mapping[ChangefeedId, Changefeed], state: ClusterState) -> Iterator[CaptureId]:
    """Yield the captures of the workers of ``own`` changefeeds, and of those that owners on other captures have placed,
    as the store shows them."""
    for changefeed in own.values():
        yield from workers_of(changefeed)
    for feed in state.changefeeds.values() if len(own) < len(state.changefeeds) else ():
        if feed.id not in own and feed.info is not None and is_running(feed.info.state):
            yield from (unit.worker for unit in feed.units.values() if unit.worker)
