"""Clean-up: releases a changefeed's source (slot, publication) and change log, retried until it succeeds.

A slot cannot be dropped while its reader is still disconnecting, and a source may be down, so it is requested at
intervals. It is idempotent, so only the current owner has to remember that it is done.
"""

from typing import Any

from owner.feed.state import is_running
from owner.questions import ReleaseSource
from owner.settings import OwnerSettings
from reactor.ids import ChangefeedId
from reactor.questions import Answered, Ask
from reactor.records.changefeed import ChangefeedInfo


class CleanUp:
    """``error``: why it has not succeeded so far, one line."""

    def __init__(self, settings: OwnerSettings) -> None:
        self.error = ""
        self.is_done = False
        self._settings = settings
        self._ask_at = float("-inf")

    def tick(self, changefeed: ChangefeedId, info: ChangefeedInfo, now: float) -> list[Ask[None]]:
        """Return the request if it is due."""
        assert not is_running(info.state), f"the source of a changefeed that is {info.state} is not cleaned up"
        if self.is_done or now < self._ask_at:
            return []
        self._ask_at = now + self._settings.remove_retry_s
        return [Ask(changefeed, info, ReleaseSource())]

    def next_at(self) -> float:
        return float("inf") if self.is_done else self._ask_at

    def begin_again(self) -> None:
        """What was released is made again, and will be released another time."""
        self.is_done, self.error, self._ask_at = False, "", float("-inf")

    def handle_answer(self, answer: Answered[Any]) -> None:
        """Process the outcome."""
        if isinstance(answer.question, ReleaseSource):
            self.error = answer.error.message if answer.error else ""
            self.is_done = self.is_done or answer.error is None
