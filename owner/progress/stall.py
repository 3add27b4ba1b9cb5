"""Stall: measures how long a value has not moved, so that it can be named."""


class Stall:
    """Beats when the value changes."""

    def __init__(self) -> None:
        self._value: object = None
        self._since = 0.0

    def note(self, value: object, now: float) -> None:
        if value != self._value:
            self._value, self._since = value, now

    def still_s(self, now: float) -> float:
        """Seconds since it last changed; 0 before it was ever noted."""
        return now - self._since if self._value is not None else 0.0
