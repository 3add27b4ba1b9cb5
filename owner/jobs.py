"""Jobs: operators' requests to the owner. Each is answered once, by ``reactor.effects.Answer``.

An answer's ``error`` is empty when it was done, and otherwise one line; ``value`` is then the error's code
(``UnknownChangefeed``, ``JobRefused``, ...), else what the job's docstring says.
"""

from dataclasses import dataclass

from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedConfig, Mode, SealedUri


@dataclass(frozen=True, slots=True)
class Query:
    """Value: ``reactor.views.ChangefeedView``."""

    job_id: str
    changefeed: ChangefeedId


@dataclass(frozen=True, slots=True)
class List:
    """Value: a tuple of ``reactor.views.ChangefeedView``, by id."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    job_id: str
    changefeed: ChangefeedId


@dataclass(frozen=True, slots=True)
class Resume:
    """``overwrite_checkpoint_ts``: continue from there instead of where it stopped."""

    job_id: str
    changefeed: ChangefeedId
    overwrite_checkpoint_ts: Ts | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Change what is not None, only while it is stopped; ``mode``: only when it has finished. ``target_ts`` 0: none.
    ``is_trial``: only say what would change.

    Value: a tuple of ``owner.feed.amendment.Difference``.
    """

    job_id: str
    changefeed: ChangefeedId
    source: SealedUri | None = None
    sink: SealedUri | None = None
    mode: Mode | None = None
    target_ts: Ts | None = None
    config: ChangefeedConfig | None = None
    is_trial: bool = False


@dataclass(frozen=True, slots=True)
class Rewind:
    """Continue from ``ts`` when it is resumed; only while it is stopped, and only as far as its log reaches back."""

    job_id: str
    changefeed: ChangefeedId
    ts: Ts


@dataclass(frozen=True, slots=True)
class Remove:
    """Answered when the last key is gone. ``force``: also when the source cannot be cleaned up."""

    job_id: str
    changefeed: ChangefeedId
    force: bool = False


@dataclass(frozen=True, slots=True)
class HoldAt:
    """No span writes past ``ts`` for ``timeout_s`` or until ``Release``; refused when one has. Value: the Ts."""

    job_id: str
    changefeed: ChangefeedId
    ts: Ts
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Release:
    """The end of ``HoldAt``; done also when nothing is held: a hold ends with its time, with the changefeed's run and
    with the owner. Value: the Ts that was held until now, or None."""

    job_id: str
    changefeed: ChangefeedId


@dataclass(frozen=True, slots=True)
class MoveTable:
    """Value: how many spans will move."""

    job_id: str
    changefeed: ChangefeedId
    table_id: int
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class Repartition:
    """Split a table into ``spans`` spans of one size, or join it again (1). Done when it is written down; the table is
    repartitioned as soon as the changefeed runs and its spans are at one Ts. Value: how many spans it has now."""

    job_id: str
    changefeed: ChangefeedId
    table_id: int
    spans: int


@dataclass(frozen=True, slots=True)
class Rebalance:
    job_id: str
    changefeed: ChangefeedId


@dataclass(frozen=True, slots=True)
class DrainCapture:
    """Empty a capture, of all changefeeds' spans and workers; it takes no new ones. Value: how many it still has.

    Ask again until 0. Refused for the owner, which has to resign first, and when nobody could take what it has.
    """

    job_id: str
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class ResignOwner:
    """Answered when the owner has begun to give up."""

    job_id: str


FeedJob = Query | Pause | Resume | Update | Rewind | Remove | HoldAt | Release | MoveTable | Repartition | Rebalance
Job = FeedJob | List | DrainCapture | ResignOwner
