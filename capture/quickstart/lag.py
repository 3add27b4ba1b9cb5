"""Lag meter: measures the time from a commit in the source until it is readable in the sink.

The lag is derived from the movement of a changefeed's checkpoint. When its commit time moves from ``a`` to ``b``,
observed at ``t``, every commit in between became visible by ``t``: commits spread evenly over ``(a, b]`` have lags
spread evenly over ``[t - b, t - a)``. Between two readings the lag is overestimated, never underestimated.
"""

from dataclasses import dataclass, field

_SLICES = 20


@dataclass(slots=True)
class LagMeter:
    """``since``: commits before it (Unix seconds) do not count."""

    since: float
    _last: float = 0.0
    #: (lag in seconds, weight)
    _lags: list[tuple[float, float]] = field(default_factory=list)

    def observe(self, now: float, checkpoint_time: float) -> None:
        """Record a reading: at ``now``, the commit time at the checkpoint is ``checkpoint_time``."""
        start = max(self._last, self.since)
        if checkpoint_time <= start:
            return
        width = (checkpoint_time - start) / _SLICES
        self._lags += [(max(0.0, now - start - width * (i + 0.5)), width) for i in range(_SLICES)]
        self._last = checkpoint_time

    def percentile_ms(self, percent: float) -> float | None:
        """Return a percentile of the lag in milliseconds; None before the first observation."""
        if not self._lags:
            return None
        ordered = sorted(self._lags)
        wanted = sum(weight for _, weight in ordered) * percent / 100
        for lag, weight in ordered:
            wanted -= weight
            if wanted <= 0:
                return round(lag * 1000, 1)
        return round(ordered[-1][0] * 1000, 1)
