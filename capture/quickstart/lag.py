"""Lag meter: the time from a commit in the source until it can be read in the sink.

It is derived from how a changefeed's checkpoint moves. When the checkpoint's commit time goes from ``a`` to ``b`` and
this is seen at ``t``, every commit in between became visible by ``t``: commits spread evenly over ``(a, b]`` have lags
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
        """``checkpoint_time``: commit time at the checkpoint, as seen at ``now``."""
        start = max(self._last, self.since)
        if checkpoint_time <= start:
            return
        width = (checkpoint_time - start) / _SLICES
        self._lags += [(max(0.0, now - start - width * (i + 0.5)), width) for i in range(_SLICES)]
        self._last = checkpoint_time

    def percentile_ms(self, percent: float) -> float | None:
        """None as long as nothing was observed."""
        if not self._lags:
            return None
        ordered = sorted(self._lags)
        wanted = sum(weight for _, weight in ordered) * percent / 100
        for lag, weight in ordered:
            wanted -= weight
            if wanted <= 0:
                return round(lag * 1000, 1)
        return round(ordered[-1][0] * 1000, 1)
