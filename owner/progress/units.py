"""Unit sequence: which unit of a task is next: dump copies, load hands over to the sink, sync follows.

``SEQUENCES`` is the table. A task's progress is derived from the record that its last unit left in etcd, so that a new
owner needs to remember nothing.
"""

from reactor.records.changefeed import Mode, Unit, UnitRecord, UnitStage
from reactor.records.tables.table import TableRecord

SEQUENCES: dict[Mode, tuple[Unit, ...]] = {
    Mode.ALL: (Unit.DUMP, Unit.LOAD, Unit.SYNC),
    Mode.FULL: (Unit.DUMP, Unit.LOAD),
    Mode.INCREMENTAL: (Unit.SYNC,),
    Mode.DUMP: (Unit.DUMP,),
    Mode.LOAD_SYNC: (Unit.LOAD, Unit.SYNC),
}

#: the only source of a changefeed, until sharded sources are merged
SOURCE = "main"


def current_unit(mode: Mode, record: UnitRecord | None) -> Unit | None:
    """Return the unit that should run now; None when all have finished. A unit of another mode does not count."""
    sequence = SEQUENCES[mode]
    if record is None or record.unit not in sequence:
        return sequence[0]
    if record.stage is UnitStage.RUNNING:
        return record.unit
    position = sequence.index(record.unit) + 1
    return sequence[position] if position < len(sequence) else None


def can_continue(mode: Mode, record: UnitRecord) -> bool:
    """Return whether a task whose last unit has finished can continue in ``mode`` with the next unit, skipping none."""
    following = SEQUENCES[Mode.ALL][SEQUENCES[Mode.ALL].index(record.unit) + 1 :]
    due = current_unit(mode, record)
    rest = () if due is None else SEQUENCES[mode][SEQUENCES[mode].index(due) :]
    return record.stage is UnitStage.FINISHED and bool(rest) and following[: len(rest)] == rest


def ordinal(mode: Mode, unit: Unit | None) -> int:
    """Return the number of the task's current step; grows as the task continues."""
    sequence = SEQUENCES[mode]
    return len(sequence) if unit is None else sequence.index(unit)


def tables_of(mode: Mode, record: UnitRecord | None) -> tuple[TableRecord, ...] | None:
    """Return the tables whose spans may be replicated; None before the sink has them all (always, without a sync).

    A record without a start is incomplete: no checkpoint may be read from it. One with a start may still have no
    tables.
    """
    if record is None or Unit.SYNC not in SEQUENCES[mode]:
        return None
    is_loaded = record.unit is Unit.LOAD and record.stage is UnitStage.FINISHED
    is_complete = (record.unit is Unit.SYNC or is_loaded) and (record.tables or record.start_ts > 0)
    return record.tables if is_complete else None
