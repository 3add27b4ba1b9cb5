"""Settings of this package; the README's figures were measured with these defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """The limits of a sync unit's segments, and its timeouts."""

    #: make a segment when this many bytes of the stream are buffered
    segment_bytes: int = 16 << 20
    #: ... or when its oldest event has waited this long
    segment_age_s: float = 0.2
    #: buffers that circulate between reading and writing: bounds the memory
    arenas: int = 2
    #: how often a quiet stream reports its position to the server and to the log
    progress_s: float = 1.0
    #: disconnect if the server is silent for this long
    silence_s: float = 60.0
    #: how often to look for segments that are no longer needed
    retention_check_s: float = 10.0
    reconnect_s: float = 0.25
    reconnect_max_s: float = 10.0
