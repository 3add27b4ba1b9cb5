"""Jobs: operators' requests to the owner. Each is answered once, by ``reactor.effects.Answer``.

An answer's ``error`` is empty on success, and otherwise one line; ``value`` is then the error's code
(``UnknownChangefeed``, ``JobRefused``, ...), else what the job's docstring says.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedConfig, CopyLimit, Mode, SealedUri, UnitRecord
from reactor.records.tables.schema_change import DdlRecord, pending_tables


@dataclass(frozen=True, slots=True)
class Query:
    """Value: ``reactor.views.ChangefeedView``; with ``tables`` or only their number."""

    job_id: str
    changefeed: ChangefeedId
    tables: bool = True


@dataclass(frozen=True, slots=True)
class Tables:
    """Value: a tuple of ``reactor.views.TableView``. ``name``: only the one of that name (schema.name); empty: all.

    With ``limit``, they are by id, at most so many, of those behind the id ``after``; None: from the first.
    """

    job_id: str
    changefeed: ChangefeedId
    after: int | None = None
    limit: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class List:
    """Value: a tuple of ``reactor.views.ChangefeedView``, by id; with ``tables`` or only their number."""

    job_id: str
    tables: bool = True


@dataclass(frozen=True, slots=True)
class Pause:
    job_id: str
    changefeed: ChangefeedId


@dataclass(frozen=True, slots=True)
class Resume:
    """``overwrite_checkpoint_ts``: continue from there instead of where it stopped. ``is_resync``: at a new position,
    with every table copied again in place."""

    job_id: str
    changefeed: ChangefeedId
    overwrite_checkpoint_ts: Ts | None = None
    is_resync: bool = False


@dataclass(frozen=True, slots=True)
class Basis:
    """The records that a request to update was made of: the configuration, the tables, and those that join. ``tables``:
    by id, each with its newest name, which is empty if it is dropped: a request names tables that leave by their ids,
    and those that join by their names."""

    config: ChangefeedConfig
    tables: frozenset[tuple[int, str]]
    joining: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, config: ChangefeedConfig, unit: UnitRecord | None, pending: Iterable[DdlRecord]) -> Self:
        """``pending``: the schema changes that the sink does not have."""
        newest = pending_tables(sorted(pending, key=lambda record: record.ts))
        tables = ((one.table_id, newest.get(one.table_id, one)) for one in (unit.tables if unit else ()))
        names = frozenset((id, f"{table.schema_name}.{table.name}" if table else "") for id, table in tables)
        return cls(config, names, unit.joining if unit else ())


@dataclass(frozen=True, slots=True)
class Update:
    """Change the fields that are not None, only while it is stopped, the filter also while it runs; ``mode``: only when
    it has finished. ``target_ts`` 0: none. ``is_trial``: only return the differences. ``joining``: schema and name of
    all tables that another filter takes in, with the rows that they have; ``leaving``: those that it leaves out.
    ``copy_limits``: ``UnitRecord.copy_limits`` from now on; None: as they are. ``copied``: tables to copy again, whose
    rows or columns are filtered otherwise. ``needs``: options of the sink that need a format of the cluster, with it.
    ``basis``: refused with ``StaleRequest`` where the records are others, since
    two requests at the same time would undo each other; None: whatever they are.

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
    joining: tuple[tuple[str, str], ...] | None = None
    leaving: tuple[int, ...] = ()
    copy_limits: tuple[CopyLimit, ...] | None = None
    copied: tuple[int, ...] = ()
    needs: tuple[tuple[str, int], ...] = ()
    basis: Basis | None = None


@dataclass(frozen=True, slots=True)
class Rewind:
    """Continue from ``ts`` when resumed; only while it is stopped, and only as far back as its log reaches."""

    job_id: str
    changefeed: ChangefeedId
    ts: Ts


@dataclass(frozen=True, slots=True)
class Remove:
    """Answered when the last key is deleted. ``force``: even if the source cannot be cleaned up."""

    job_id: str
    changefeed: ChangefeedId
    force: bool = False


@dataclass(frozen=True, slots=True)
class HoldAt:
    """No span writes past ``ts`` for ``timeout_s`` or until ``Release``; refused if one already has. Value: the Ts."""

    job_id: str
    changefeed: ChangefeedId
    ts: Ts
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Release:
    """End ``HoldAt``; succeeds even without a hold, which ends with its time, with the changefeed's run and with the
    owner. Value: the Ts that was held until now, or None."""

    job_id: str
    changefeed: ChangefeedId


@dataclass(frozen=True, slots=True)
class MoveTable:
    """Value: the number of spans that will move."""

    job_id: str
    changefeed: ChangefeedId
    table_id: int
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class Repartition:
    """Split a table into ``spans`` equal spans, or join it again (1). Answered when the request is stored; the table is
    repartitioned as soon as the changefeed runs and its spans are at one Ts. Value: its current number of spans."""

    job_id: str
    changefeed: ChangefeedId
    table_id: int
    spans: int


@dataclass(frozen=True, slots=True)
class ResyncTable:
    """Copy a table again while all others flow; ``is_cancelled``: cancel that. ``rows_per_second``: to read at most.
    Answered when the request is stored."""

    job_id: str
    changefeed: ChangefeedId
    table_id: int
    is_cancelled: bool = False
    rows_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class PauseTable:
    """Hold a table until ``ResumeTable``, while all others flow. Value: the Ts up to which the sink surely has it."""

    job_id: str
    changefeed: ChangefeedId
    table_id: int


@dataclass(frozen=True, slots=True)
class ResumeTable:
    """Try a held table again at once, from its position. Value: as ``PauseTable``."""

    job_id: str
    changefeed: ChangefeedId
    table_id: int


@dataclass(frozen=True, slots=True)
class SkipTable:
    """Let a held table continue from ``ts``, and leave out its changes up to there. Value: its Ts before."""

    job_id: str
    changefeed: ChangefeedId
    table_id: int
    ts: Ts


@dataclass(frozen=True, slots=True)
class Rebalance:
    job_id: str
    changefeed: ChangefeedId


@dataclass(frozen=True, slots=True)
class DrainCapture:
    """Empty a capture of all changefeeds' spans and workers; it accepts no new ones. Value: how many it still has.

    Repeat until 0. Refused for the owner, which has to resign first, and if no capture could take its work.
    """

    job_id: str
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class ResignOwner:
    """Answered when the owner has started to resign."""

    job_id: str


@dataclass(frozen=True, slots=True)
class MoveOwner:
    """Let ``capture`` own the changefeed. Answered when its present owner has been asked to hand it over."""

    job_id: str
    changefeed: ChangefeedId
    capture: CaptureId


TableStep = PauseTable | ResumeTable | SkipTable
FeedJob = (
    Query
    | Tables
    | Pause
    | Resume
    | Update
    | Rewind
    | Remove
    | HoldAt
    | Release
    | MoveTable
    | Repartition
    | ResyncTable
    | TableStep
    | Rebalance
)
ClusterJob = List | DrainCapture | ResignOwner | MoveOwner
Job = FeedJob | ClusterJob
