"""Site: where a changefeed is decided about."""

from dataclasses import dataclass

from reactor.ids import CaptureId


@dataclass(frozen=True, slots=True)
class Site:
    """By which owner, in which cluster and namespace."""

    capture: CaptureId
    owner_revision: int
    cluster: str
    namespace: str
