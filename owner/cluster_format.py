"""Cluster format: raised when every present capture supports a newer one (``reactor.records.formats``).

A capture that joins writes the same key in the transaction that makes it a member, so none can join unnoticed. Captures
of v0.1.0 do not know that key; but they compare the log storage's mark when they start. From format 2 on it is stored
differently, so that such a capture refuses to start.
"""

from collections.abc import Collection

from reactor import keys, patches
from reactor.effects import Commit, Effect, Log
from reactor.ids import CaptureId
from reactor.patches import Patch
from reactor.records import formats
from reactor.records.formats import ClusterFormat
from reactor.records.log_mark import marked
from reactor.state import ClusterState


def tick(state: ClusterState) -> list[Effect]:
    """Raise the format if possible."""
    number = formats.raised(state.format, [info.format for info in state.captures.values()])
    key = keys.FormatKey(state.cluster)
    if number == state.format or str(key) in state.broken:
        return []

    def put(old: ClusterFormat | None) -> ClusterFormat:
        return (old or ClusterFormat()).with_(number=number)

    mark = Patch(str(keys.LogStorageKey(state.cluster)), marked)
    members = [keys.CaptureKey(state.cluster, capture) for capture in state.captures]
    group = patches.group([patches.patch_record(key, ClusterFormat, put), mark], requires=members)
    return [Log("info", "the cluster's format is raised", (("format", number),)), Commit(group)]


def knowing(state: ClusterState) -> Collection[CaptureId]:
    """Return the captures that support the cluster's format: no other gets any work."""
    return [capture for capture, info in state.captures.items() if info.format >= state.format]
