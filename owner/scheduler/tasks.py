"""Scheduling tasks: policies' wishes for spans as values, so that policies are pure and wishes can be refused."""

from dataclasses import dataclass

from reactor.ids import CaptureId, TableSpan


@dataclass(frozen=True, slots=True)
class AddTask:
    """Put ``span``, which nobody has, on ``capture``."""

    span: TableSpan
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class RemoveTask:
    """Take ``span`` away: its table is not replicated any more."""

    span: TableSpan


@dataclass(frozen=True, slots=True)
class MoveTask:
    """Let ``capture`` write ``span`` once its present writer has stopped."""

    span: TableSpan
    capture: CaptureId


Task = AddTask | RemoveTask | MoveTask


@dataclass(frozen=True, slots=True)
class Burst:
    """Tasks that start together, whatever is running already: a start or a rebalance, not a trickle."""

    tasks: tuple[Task, ...]
