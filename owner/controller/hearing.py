"""Hearing: decides which other captures this one hears, and whether it is isolated: it reaches the store but no other
capture.

A capture is heard while it answers on the connection that this one keeps to it, which proves that messages arrive in
both directions. One that joins has a moment to answer for the first time. A process that was suspended, or so busy
that it did not look, gives all others the whole time again: it has read no answers, and its connections may have
ended. Decisions only, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from reactor.ids import CaptureId

#: for the first answer
_GREETING_S = 2.0
#: between two looks; after more, this process was suspended
_ATTENTIVE_S = 2.0


class Contact(Protocol):
    """``since``: when the peer became known. ``heard_at``: when it last answered; None: never."""

    @property
    def since(self) -> float: ...

    @property
    def heard_at(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Heard:
    """``heard``: the other captures that answer; ``silent``: those that do not. Of one that has just joined neither is
    known."""

    heard: frozenset[CaptureId] = frozenset()
    silent: frozenset[CaptureId] = frozenset()
    is_isolated: bool = False


class Hearing:
    """``silence_s``: how long a capture may be silent and still be heard."""

    def __init__(self, *, silence_s: float) -> None:
        self.heard = Heard()
        self._silence_s = silence_s
        #: silent in the last look
        self._silent: frozenset[CaptureId] = frozenset()
        self._looked_at = float("inf")
        self._attentive_since = float("-inf")

    def look(self, contacts: Mapping[CaptureId, Contact], now: float) -> bool:
        """Judge all ``contacts``; return whether the result has changed."""
        if now - self._looked_at > _ATTENTIVE_S:
            self._attentive_since = now
        self._looked_at = now
        silent = frozenset(peer for peer, contact in contacts.items() if self._is_silent(contact, now))
        lasting, self._silent = silent & self._silent, silent
        answering = {peer for peer, contact in contacts.items() if contact.heard_at is not None}
        strange = {peer for peer in contacts.keys() - answering if now - contacts[peer].since >= _GREETING_S}
        is_isolated = bool(contacts) and lasting == contacts.keys()
        before, self.heard = self.heard, Heard(frozenset(answering - lasting), lasting | strange, is_isolated)
        return self.heard != before

    def _is_silent(self, contact: Contact, now: float) -> bool:
        last = contact.since if contact.heard_at is None else contact.heard_at
        return now - max(last, self._attentive_since) >= self._silence_s
