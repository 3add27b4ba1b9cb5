"""Scheduling tasks: the changes that policies propose, as values, so that policies are pure and tasks can be
rejected."""

from dataclasses import dataclass

from reactor.ids import CaptureId, TableSpan


@dataclass(frozen=True, slots=True)
class AddTask:
    """Assign ``span``, which no capture has, to ``capture``."""

    span: TableSpan
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class RemoveTask:
    """Remove ``span``: its table is no longer replicated."""

    span: TableSpan


@dataclass(frozen=True, slots=True)
class MoveTask:
    """Let ``capture`` write ``span`` once its current writer has stopped."""

    span: TableSpan
    capture: CaptureId


Task = AddTask | RemoveTask | MoveTask


@dataclass(frozen=True, slots=True)
class Burst:
    """Tasks that start together regardless of the concurrency limit: the initial assignment, or a rebalance."""

    tasks: tuple[Task, ...]
