"""Fences: whoever writes what a role decides has that role at that moment, by what its transaction compares.

- an owner's progress is written by the capture that the changefeed is assigned to (its transactions compare the
  capture's own record), or by the controller that launches it
- whoever compares its election is the candidate that has been there longest
- of one ownership, all decisions are made by one life of the owners' actor: another one has forgotten its orders
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from owner.metadata.observations import Elected
from owner.progress.shared_progress import remaining
from reactor import keys
from reactor.errors import InvalidKeyError
from reactor.ids import CaptureId, ChangefeedId
from reactor.membership.progress import CaptureProgress
from reactor.store.port import Compare, Event

#: of a key that a planted bug compares in place of the candidate's own
DEPOSED = "-deposed"

if TYPE_CHECKING:
    from tests.simulation.world import World


class Fences:
    """``world.violate`` is called for every violation."""

    def __init__(self, world: "World") -> None:
        self._world = world
        #: changefeed and revision of the ownership → the owner that has decided under it
        self._reigns: dict[tuple[ChangefeedId, int], Any] = {}

    def on_write(self, events: Sequence[Event], compares: Sequence[Compare]) -> None:
        """Check a transaction; ``checks.state`` is as of before it."""
        compared = [(compare, _parsed(compare.key)) for compare in compares]
        # that the key is absent is compared by who becomes a candidate
        self._check_candidates(
            key.lease
            for compare, key in compared
            if isinstance(key, keys.OwnerKey) and (compare.revision or key.lease.endswith(DEPOSED))
        )
        writers = {
            CaptureId(key.capture.removesuffix(DEPOSED)) for _, key in compared if isinstance(key, keys.CaptureKey)
        }
        is_controller = any(isinstance(key, keys.OwnerKey) and compare.revision for compare, key in compared)
        for event in () if is_controller else events:
            key = _parsed(event.key)
            if event.value is None or len(writers) != 1:
                continue
            if isinstance(key, keys.StatusKey):
                self._check_owner(key.changefeed, min(writers))
            elif isinstance(key, keys.ProgressKey):
                self._check_progress(key, CaptureProgress.decode(event.value, key=event.key), min(writers))

    def look(self, owner: Any) -> None:
        """Check an owner between two decisions."""
        if isinstance(owner._ownership, Elected):
            return
        for id, part in owner.changefeeds.items():
            reign = id, part.site.owner_revision
            if self._reigns.setdefault(reign, owner) is not owner:
                self._world.violate(f"{id} is owned again under ownership {reign[1]}, whose orders are forgotten")

    def _check_candidates(self, candidates: Iterable[str]) -> None:
        found = self._world.etcd.get_prefix(f"{keys.owner_prefix(self._world.cluster)}/").items
        leader = min(found, key=lambda item: item.create_revision).key.rpartition("/")[2] if found else ""
        for candidate in candidates:
            if candidate.removesuffix(DEPOSED) != leader:
                self._world.violate(f"candidate {candidate} writes as the elected one, which {leader or 'nobody'} is")

    def _check_progress(self, key: keys.ProgressKey, record: CaptureProgress, writer: CaptureId) -> None:
        """All that is new and counts is of changefeeds that the writer owns."""
        if key.capture != writer:
            self._world.violate(f"{writer[:6]} writes the progress of {key.capture[:6]}")
        before = self._world.checks.state.progress.get(key.capture) or CaptureProgress()
        for feed in remaining(record, self._world.checks.state):
            if record.changefeeds[feed.id] != before.changefeeds.get(feed.id):
                self._check_owner(feed.id, writer)

    def _check_owner(self, id: ChangefeedId, writer: CaptureId) -> None:
        state = self._world.checks.state
        feed = state.changefeeds.get(id)
        if not state.has_owners or feed is None or not feed.has_records:
            return
        owner = feed.assignment.capture if feed.assignment else "nobody"
        if owner != writer:
            self._world.violate(f"{writer[:6]} writes progress of {id}, which {owner[:6]} owns")


def _parsed(key: str) -> keys.Key | None:
    try:
        return keys.parse(key)
    except InvalidKeyError:
        return None
