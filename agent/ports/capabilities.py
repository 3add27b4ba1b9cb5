"""Capabilities: the delivery guarantee and the optional features of a sink, known before it is opened."""

from dataclasses import dataclass
from enum import StrEnum

from reactor.records.changefeed import SinkMode


class Guarantee(StrEnum):
    """The effect of a change that is delivered again. With EXACTLY_ONCE, the sink records each span's position itself.
    Otherwise a span resumes from its checkpoint in etcd, which may be behind what was written."""

    #: data and position become visible in one atomic step, so nothing is written twice
    EXACTLY_ONCE = "exactly once"
    #: the sink records no position, and writing a change again has no effect
    IDEMPOTENT = "idempotent"
    #: duplicates are possible
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """``alters``, ``splits``, ``reads_back``, ``replaces``, ``maintains``, ``lays_out``: whether the sink implements
    ``Alters``, ``Splits``, ``ReadsBack``, ``Replaces``, ``Maintains`` and ``LaysOut`` of ``agent.ports.sink``.
    ``takes_changes``: whether there is anything to flush."""

    guarantee: Guarantee
    #: history is in those that name it
    modes: frozenset[SinkMode] = frozenset({SinkMode.UPSERT, SinkMode.CHANGELOG})
    alters: bool = False
    splits: bool = False
    reads_back: bool = False
    replaces: bool = False
    takes_changes: bool = True
    maintains: bool = False
    lays_out: bool = False
    #: how many tables ``Sink.load`` may create at a time, each in a thread of its own
    loads_at_once: int = 1

    @property
    def keeps_record(self) -> bool:
        """Whether the sink records each span's position; otherwise only the checkpoint in etcd does."""
        return self.guarantee is Guarantee.EXACTLY_ONCE

    @property
    def words(self) -> tuple[str, ...]:
        """The optional features, named for people."""
        words = {
            "schema changes": self.alters,
            "split tables": self.splits,
            "diff": self.reads_back,
            "table resync": self.replaces,
            "table maintain": self.maintains,
            "layouts": self.lays_out,
        }
        return tuple(word for word, can in words.items() if can)
