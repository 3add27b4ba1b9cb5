"""Linearizability: whether a history of concurrent calls on one register can be one of calls that follow each other.

The algorithm is that of Wing and Gong with the memory of Lowe, as in Porcupine
(https://github.com/anishathalye/porcupine): calls are put in an order that keeps each call after all that had returned
before it began; an order that leads to the same set of calls and the same value as one before is not followed again. A
call whose answer was lost may have been done at any time after it began, or never.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    GET = "get"
    PUT = "put"
    SWAP = "swap"


@dataclass(frozen=True, slots=True)
class Call:
    """``began``, ``returned``: of one clock; None: the answer was lost. ``value``: what was read or is written, None:
    no key. ``expected``: what a swap replaces; ``succeeded``: whether it said so."""

    kind: Kind
    began: float
    returned: float | None
    value: bytes | None
    expected: bytes | None = None
    succeeded: bool = True

    def after(self, stored: bytes | None) -> tuple[bool, bytes | None]:
        """Return whether it can have answered so with ``stored`` in the register, and what is stored then."""
        match self.kind:
            case Kind.GET:
                return self.value == stored, stored
            case Kind.PUT:
                return True, self.value
            case _:
                is_done = stored == self.expected
                return self.returned is None or is_done == self.succeeded, self.value if is_done else stored


def is_linearizable(history: Iterable[Call], *, first: bytes | None = None) -> bool:
    """``first``: what the register held before."""
    calls = sorted((call for call in history if call.kind is not Kind.GET or call.returned is not None), key=_began)
    known = sum(1 << index for index, call in enumerate(calls) if call.returned is not None)
    seen = {(0, first)}
    stack: list[tuple[int, bytes | None]] = [(0, first)]
    while stack:
        done, stored = stack.pop()
        if done & known == known:
            return True
        for index in _next(calls, done):
            is_possible, after = calls[index].after(stored)
            state = done | 1 << index, after
            if is_possible and state not in seen:
                seen.add(state)
                stack.append(state)
    return False


def _began(call: Call) -> float:
    return call.began


def _next(calls: Sequence[Call], done: int) -> list[int]:
    """Return the calls that may come next: those that began before any other one that is left had returned."""
    found: list[int] = []
    first_returned = float("inf")
    index = (~done & (done + 1)).bit_length() - 1  # the first that is left
    for index in range(index, len(calls)):  # noqa: B020
        call = calls[index]
        if call.began > first_returned:
            break
        if not done >> index & 1:
            found.append(index)
            first_returned = min(first_returned, float("inf") if call.returned is None else call.returned)
    return [index for index in found if calls[index].began <= first_returned]
