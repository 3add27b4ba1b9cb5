"""Settings of this package, with the defaults of a cluster; ``capture.config`` loads them."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

#: a session may not be shorter: two lost keep-alives would end it
SESSION_TTL_S_MIN = 5


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. ``ca`` alone verifies the server; ``cert`` and ``key`` together authenticate us."""

    ca: str
    cert: str | None = None
    key: str | None = None


class ReactorSettings(BaseModel):
    """The pace of the session and of the worker loop."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: how long a silent capture counts as alive
    session_ttl_s: Annotated[int, Field(ge=SESSION_TTL_S_MIN)] = 10
    #: at most one tick per interval, after a burst of two
    tick_interval_s: Annotated[float, Field(ge=0)] = 0.05
    #: at least one tick per interval
    idle_interval_s: Annotated[float, Field(gt=0)] = 0.5
    #: how long a capture that is gone is still shown, so that a short interruption moves no table. Far shorter than
    #: TiCDC's ``max(5, ttl / 2)``: the lease has expired already, and ids are never reused
    capture_removal_grace_s: Annotated[float, Field(ge=0)] = 0.25
