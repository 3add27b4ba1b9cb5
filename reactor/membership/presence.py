"""Presence: decides which captures count as present; the only place that decides when a capture is gone.

A capture that has left is shown for a grace period, so that a short interruption of its session moves no table. Pure:
the caller passes the time.
"""

from collections.abc import Mapping

from reactor.ids import CaptureId
from reactor.records.capture import CaptureInfo


class Presence:
    """Delays the removal of captures by ``grace_s``."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._live: dict[CaptureId, CaptureInfo] = {}
        self._leaving: dict[CaptureId, tuple[CaptureInfo, float | None]] = {}
        #: the last result of ``shown``, while it is certainly still valid
        self._shown: Mapping[CaptureId, CaptureInfo] | None = None

    def put(self, capture: CaptureInfo) -> None:
        self._shown = None
        self._live[capture.id] = capture
        self._leaving.pop(capture.id, None)

    def remove(self, capture: CaptureId) -> None:
        """Remove a capture. Its grace period starts with the next ``shown``, since updates carry no time."""
        self._shown = None
        info = self._live.pop(capture, None)
        if info is not None:
            self._leaving[capture] = (info, None)

    def shown(self, now: float) -> Mapping[CaptureId, CaptureInfo]:
        """Return the captures present at ``now``, sorted by id; the same object while that does not change."""
        if self._shown is not None and not self._leaving:
            return self._shown
        for capture, (info, since) in list(self._leaving.items()):
            since = now if since is None else since
            self._leaving[capture] = (info, since)
            if now - since >= self._grace_s:
                del self._leaving[capture]
        present = self._live | {capture: info for capture, (info, _) in self._leaving.items()}
        self._shown = dict(sorted(present.items()))
        return self._shown
