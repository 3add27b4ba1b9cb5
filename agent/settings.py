"""Settings of this package; the defaults are those that the figures in the README were measured with."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """How a sync unit cuts the stream into segments, and how long it waits for whom."""

    #: a segment is cut when this many bytes of the stream are at hand
    segment_bytes: int = 16 << 20
    #: ... or when its oldest event has waited so long
    segment_age_s: float = 0.2
    #: buffers that go round between reading and writing: the bound on memory
    arenas: int = 2
    #: how often a quiet stream reports its position to the server and to the log
    progress_s: float = 1.0
    #: no sign of life from the server for so long: the connection is given up
    silence_s: float = 60.0
    #: how often segments that nobody needs are looked for
    retention_check_s: float = 10.0
    reconnect_s: float = 0.25
    reconnect_max_s: float = 10.0
