"""Refusals: each attempt of somebody who was refused is logged once, and again at intervals."""

from collections import OrderedDict

import anyio
import structlog

#: interval after which a repeated attempt is logged again
_AGAIN_S = 60.0
#: how many attempts are tracked individually, and the maximum lines per interval
_KNOWN_MAX, _LINES_MAX = 1_000, 100

_log = structlog.get_logger()


class Refusals:
    """Logs ``event`` for each attempt (address, name, cause).

    Names are chosen by the other side, so the number of lines is limited too; the rest is counted.
    """

    def __init__(self, event: str) -> None:
        self.count = 0
        self._event = event
        self._seen: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._began, self._lines, self._unsaid = -_AGAIN_S, 0, 0

    def note(self, reason: str, cause: str, *, host: str, sender: str = "") -> None:
        self.count += 1
        attempt, now = (host, sender[:64], cause[:200]), anyio.current_time()
        if now - self._began >= _AGAIN_S:
            self._began, self._lines = now, 0
        if now - self._seen.get(attempt, -_AGAIN_S) < _AGAIN_S or self._lines >= _LINES_MAX:
            self._unsaid += 1
            return
        self._seen[attempt] = now
        self._seen.move_to_end(attempt)
        if len(self._seen) > _KNOWN_MAX:
            self._seen.popitem(last=False)
        shown = {"sender": attempt[1]} if sender else {}
        more = {"unsaid": self._unsaid} if self._unsaid else {}
        _log.warning(self._event, reason=reason, cause=attempt[2], host=host, **shown, **more)
        self._lines, self._unsaid = self._lines + 1, 0
