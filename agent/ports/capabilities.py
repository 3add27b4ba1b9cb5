"""Capabilities: what a sink promises and can do, said before it is opened."""

from dataclasses import dataclass
from enum import StrEnum

from reactor.records.changefeed import SinkMode


class Guarantee(StrEnum):
    """What comes of a change that is delivered again. The sink's record of how far it is decides it where there is one;
    without one a span continues where etcd says that it is, which may be further back."""

    #: data and record become visible in one step, so nothing is written twice
    EXACTLY_ONCE = "exactly once"
    #: there is no record, and what is written again leaves what was there
    IDEMPOTENT = "idempotent"
    #: nothing is kept
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """``alters``, ``splits``, ``reads_back``: whether the sink has the methods of ``agent.ports.sink``'s ``Alters``,
    ``Splits`` and ``ReadsBack``."""

    guarantee: Guarantee
    modes: frozenset[SinkMode] = frozenset(SinkMode)
    alters: bool = False
    splits: bool = False
    reads_back: bool = False

    @property
    def keeps_record(self) -> bool:
        """False: what etcd says of a span is all there is to go by."""
        return self.guarantee is Guarantee.EXACTLY_ONCE

    @property
    def words(self) -> tuple[str, ...]:
        """What it can, for people."""
        words = {"schema changes": self.alters, "split tables": self.splits, "diff": self.reads_back}
        return tuple(word for word, can in words.items() if can)
