"""Unit sequence: which unit of a task is due: dump copies, load hands over to the sink, sync follows.

``SEQUENCES`` is the table. A task's progress is read backward from the record that its last unit left in etcd, so
that a new owner needs to remember nothing.
"""

from reactor.records.changefeed import Mode, TableRecord, Unit, UnitRecord, UnitStage

SEQUENCES: dict[Mode, tuple[Unit, ...]] = {
    Mode.ALL: (Unit.DUMP, Unit.LOAD, Unit.SYNC),
    Mode.FULL: (Unit.DUMP, Unit.LOAD),
    Mode.INCREMENTAL: (Unit.SYNC,),
    Mode.DUMP: (Unit.DUMP,),
    Mode.LOAD_SYNC: (Unit.LOAD, Unit.SYNC),
}

#: The one source of a changefeed, until sharded sources are merged.
SOURCE = "main"


def current_unit(mode: Mode, record: UnitRecord | None) -> Unit | None:
    """The unit that should run now; None when all have finished. A unit of another mode does not count."""
    sequence = SEQUENCES[mode]
    if record is None or record.unit not in sequence:
        return sequence[0]
    if record.stage is UnitStage.RUNNING:
        return record.unit
    position = sequence.index(record.unit) + 1
    return sequence[position] if position < len(sequence) else None


def goes_on(mode: Mode, record: UnitRecord) -> bool:
    """Whether a task whose last unit has finished continues in ``mode`` with the unit that follows, none left out."""
    following = SEQUENCES[Mode.ALL][SEQUENCES[Mode.ALL].index(record.unit) + 1 :]
    due = current_unit(mode, record)
    rest = () if due is None else SEQUENCES[mode][SEQUENCES[mode].index(due) :]
    return record.stage is UnitStage.FINISHED and bool(rest) and following[: len(rest)] == rest


def ordinal(mode: Mode, unit: Unit | None) -> int:
    """Which step of the task it is; grows as the task continues."""
    sequence = SEQUENCES[mode]
    return len(sequence) if unit is None else sequence.index(unit)


def tables_of(mode: Mode, record: UnitRecord | None) -> tuple[TableRecord, ...] | None:
    """The tables whose spans may be replicated; None before the sink has them all (or for ever, without a sync).

    A record without a start is one that is not complete yet: no checkpoint may be read from it. One with a start may
    have no tables, until they come.
    """
    if record is None or Unit.SYNC not in SEQUENCES[mode]:
        return None
    is_loaded = record.unit is Unit.LOAD and record.stage is UnitStage.FINISHED
    is_complete = (record.unit is Unit.SYNC or is_loaded) and (record.tables or record.start_ts > 0)
    return record.tables if is_complete else None
