"""Changes: the order in which changefeeds have changed, so that a tick finds those that have without a look at the
others."""

from reactor.ids import ChangefeedId


class Changes:
    """The last change of each changefeed, also of those that are gone. ``latest``: the number of changes so far;
    ``news``: of the last one that was more than progress."""

    def __init__(self) -> None:
        self.latest = self.news = 0
        #: in the order of the numbers
        self._last: dict[ChangefeedId, int] = {}

    def note(self, changefeed: ChangefeedId) -> int:
        """Return the number of this change."""
        self.latest += 1
        self._last.pop(changefeed, None)
        self._last[changefeed] = self.latest
        return self.latest

    def since(self, change: int) -> list[ChangefeedId]:
        """Return the changefeeds that have changed since ``latest`` was ``change``."""
        found: list[ChangefeedId] = []
        for changefeed in reversed(self._last):
            if self._last[changefeed] <= change:
                break
            found.append(changefeed)
        return found
