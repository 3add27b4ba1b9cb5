"""Stored values: the owner writes large values in the form of the cluster's format, and removes parts left behind.

Captures of an older format have stored large values whole; each is divided when the cluster's format allows it.
A writer that ends between parts and pointer leaves parts that no pointer names, and so does a pointer's transaction
that has no room for deletions. Such parts are removed after a minute, a token's first part first: its writer, if it is
only slow, then fails and writes again (``reactor.store.writes``).
"""

from itertools import groupby
from typing import Final

from reactor import keys, patches
from reactor.effects import Commit, Effect, Log, WakeAt
from reactor.errors import IgnorePatchError
from reactor.ids import ChangefeedId
from reactor.patches import Patch
from reactor.records.formats import Feature
from reactor.state import ChangefeedState, ClusterState
from reactor.store.writes import in_parts

#: how long parts that no pointer names are kept
LEFT_FOR_S: Final = 60.0
#: parts of one transaction
_AT_ONCE: Final = 100


class StoredValues:
    """The large values of all changefeeds, as this owner has seen them."""

    def __init__(self) -> None:
        #: changefeed and token → when parts of it were first seen that no pointer names
        self._since: dict[tuple[ChangefeedId, str], float] = {}

    def tick(self, state: ClusterState, now: float) -> list[Effect]:
        if state.format < Feature.DIVIDED:
            return []
        return [*_divide_one(state), *self._remove_left(state, now)]

    def _remove_left(self, state: ClusterState, now: float) -> list[Effect]:
        left = {(feed.id, token): parts for feed in state.changefeeds.values() for token, parts in _left(feed)}
        self._since = {place: self._since.get(place, now) for place in left}
        due = [place for place, since in sorted(self._since.items()) if now >= since + LEFT_FOR_S]
        effects: list[Effect] = []
        for id, token in due[:1]:
            doomed = sorted(left[id, token], key=_number)[:_AT_ONCE]
            places = [keys.PartKey(state.cluster, state.namespace, id, name) for name in doomed]
            effects.append(Commit(patches.group(map(patches.delete, places), requires=places)))
        if self._since:
            effects.append(WakeAt(now if len(due) > 1 else min(self._since.values()) + LEFT_FOR_S))
        return effects


def _divide_one(state: ClusterState) -> list[Effect]:
    """Divide one value per tick: it may fill a transaction."""
    if not state.large:
        return []
    key = min(state.large)

    def divide(old: bytes | None) -> bytes | None:
        if old is None:
            raise IgnorePatchError
        return in_parts(key, old)

    entry = Log("info", "a large value is divided", (("key", key),))
    return [entry, Commit(patches.PatchGroup((Patch(key, divide),)))]


def _left(feed: ChangefeedState) -> list[tuple[str, list[str]]]:
    """Return the parts that no pointer names, by token."""
    if not feed.parts or feed.broken:
        return []
    named = {name for value in feed.divided.values() for name in value.names}
    if len(named) == len(feed.parts):
        return []
    left = sorted(feed.parts.keys() - named)
    return [(token, list(names)) for token, names in groupby(left, key=lambda name: name.partition("/")[0])]


def _number(name: str) -> int:
    return int(name.partition("/")[2])
