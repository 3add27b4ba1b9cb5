"""Settings of this package, with the defaults a cluster runs with; ``capture.config`` loads them."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

#: A session may not be shorter: two lost keep-alives would end it.
SESSION_TTL_S_MIN = 5


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. ``ca`` alone checks the server; ``cert`` and ``key`` together prove who we are."""

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
    #: a tick happens at least this often
    idle_interval_s: Annotated[float, Field(gt=0)] = 0.5
    #: how long a capture that has gone is still shown, so that what is put right at once moves no table. Far shorter
    #: than TiCDC's ``max(5, ttl / 2)``: its lease has run out already, and nobody comes back under an old id
    capture_removal_grace_s: Annotated[float, Field(ge=0)] = 0.25
