"""Unit slot: the unit that this capture runs for one source: at most one, with the newest order.

A newer order replaces an older one: the running unit is stopped first, and only its last event starts the next. This
keeps one *capture* from running two. A unit that still runs on another, unreachable capture is fenced where it writes:
``UnitRecord`` and ``LogHead`` accept only the newest epoch.
"""

from agent.control import effects
from reactor.messages import StartWorker, StopWorker, WorkerStage, WorkerStatus


class UnitSlot:
    """``status``: reported to the owner with every heartbeat; None if nothing was ever ordered."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.status: WorkerStatus | None = None
        self._next: StartWorker | None = None
        self._stop_asked = False

    @property
    def is_running(self) -> bool:
        return self.status is not None and self.status.stage is WorkerStage.RUNNING

    @property
    def epoch(self) -> int:
        """The newest epoch this slot has received; orders at or below it are stale."""
        return max(self.status.epoch if self.status else 0, self._next.epoch if self._next else 0)

    def handle_order(self, order: StartWorker | StopWorker) -> list[effects.AgentEffect]:
        if isinstance(order, StopWorker):
            return self._handle_stop(order)
        if order.epoch <= self.epoch:
            return []
        self._next = order
        return self._stop_running() if self.is_running else self._start_next()

    def handle_event(self, event: effects.UnitEvent) -> list[effects.AgentEffect]:
        status = self.status
        if status is None or status.epoch != event.epoch or not self.is_running:
            return []
        self.status = _after(status, event)
        return [] if self.is_running else self._start_next()

    def validate(self) -> None:
        """Assert the invariants between two messages."""
        assert self.is_running or not self._stop_asked, f"{self.source}: a stop was requested, but no unit runs"
        if self._next is not None:
            assert self._stop_asked, f"{self.source}: an order waits, but no unit is stopping"
            assert self.status is not None, f"{self.source}: an order waits, but no unit was started"
            assert self._next.epoch > self.status.epoch, (
                f"{self.source}: the waiting order {self._next.epoch} is older than the running unit"
            )

    def _handle_stop(self, order: StopWorker) -> list[effects.AgentEffect]:
        if self._next is not None and self._next.epoch <= order.epoch:
            self._next = None
        is_meant = self.status is not None and self.status.epoch <= order.epoch
        return self._stop_running() if self.is_running and is_meant else []

    def _stop_running(self) -> list[effects.AgentEffect]:
        if self._stop_asked or self.status is None:
            return []
        self._stop_asked = True
        return [effects.StopUnit(self.source, self.status.epoch)]

    def _start_next(self) -> list[effects.AgentEffect]:
        order, self._next, self._stop_asked = self._next, None, False
        if order is None:
            return []
        assert not self.is_running, f"two units of {self.source} would run here"
        assert self.status is None or order.epoch > self.status.epoch, "orders only get newer"
        self.status = WorkerStatus(order.source, order.unit, order.epoch, WorkerStage.RUNNING)
        return [effects.StartUnit(order.source, order.unit, order.epoch)]


def _after(status: WorkerStatus, event: effects.UnitEvent) -> WorkerStatus:
    stage, error = status.stage, None
    rows_done, rows_total, bytes_done = status.rows_done, status.rows_total, status.bytes_done
    match event:
        case effects.UnitProgress():
            rows_done, rows_total, bytes_done = event.rows_done, event.rows_total, event.bytes_done
            error = event.trouble
        case effects.UnitFinished():
            stage = WorkerStage.FINISHED
        case effects.UnitStopped():
            stage = WorkerStage.STOPPED
        case effects.UnitFailed():
            stage, error = WorkerStage.ERROR, event.error
    return WorkerStatus(status.source, status.unit, status.epoch, stage, rows_done, rows_total, error, bytes_done)
