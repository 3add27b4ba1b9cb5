"""Hearing: decides which other captures this one hears, and whether it is isolated: it reaches the store but no other
capture.

A capture is heard while it answers on the connection that this one keeps to it, which proves that messages arrive in
both directions. One that has never answered is not heard; one that was heard counts as silent only in the second of
two looks, since a process that was suspended finds all others silent until it has read their answers. Decisions only,
no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from reactor.ids import CaptureId


class Contact(Protocol):
    """``since``: when the peer became known. ``heard_at``: when it last answered; None: never."""

    @property
    def since(self) -> float: ...

    @property
    def heard_at(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Heard:
    """``unheard``: the other captures that do not answer."""

    unheard: frozenset[CaptureId] = frozenset()
    is_isolated: bool = False


class Hearing:
    """``silence_s``: how long a capture may be silent and still be heard."""

    def __init__(self, *, silence_s: float) -> None:
        self.heard = Heard()
        self._silence_s = silence_s
        #: silent in the last look
        self._silent: frozenset[CaptureId] = frozenset()

    def look(self, contacts: Mapping[CaptureId, Contact], now: float) -> bool:
        """Judge all ``contacts``; return whether the result has changed."""
        silent = frozenset(peer for peer, contact in contacts.items() if self._is_silent(contact, now))
        lasting, self._silent = silent & self._silent, silent
        strange = {peer for peer, contact in contacts.items() if contact.heard_at is None}
        before = self.heard
        self.heard = Heard(lasting | strange, is_isolated=bool(contacts) and lasting == contacts.keys())
        return self.heard != before

    def _is_silent(self, contact: Contact, now: float) -> bool:
        last = contact.since if contact.heard_at is None else contact.heard_at
        return now - last >= self._silence_s
