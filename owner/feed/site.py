"""Site: the owner, cluster and namespace in which a changefeed is decided."""

from dataclasses import dataclass

from reactor.ids import CaptureId


@dataclass(frozen=True, slots=True)
class Site:
    """The owner, the cluster and the namespace."""

    capture: CaptureId
    owner_revision: int
    cluster: str
    namespace: str
