"""Stall: measures how long a value has not changed."""


class Stall:
    """Notes changes of a value."""

    def __init__(self) -> None:
        self._value: object = None
        self._since = 0.0

    def note(self, value: object, now: float) -> None:
        if value != self._value:
            self._value, self._since = value, now

    def still_s(self, now: float) -> float:
        """Return the seconds since the last change; 0 before the first value."""
        return now - self._since if self._value is not None else 0.0
