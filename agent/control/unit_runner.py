"""Unit runner: one unit order as an actor that runs the unit, reports its progress, and finally its outcome.

Stopping the actor cancels the unit; ``UnitStopped`` is sent only when nothing of it runs any more.
"""

from collections.abc import Callable
from dataclasses import dataclass

import anyio
import structlog

from agent.control import effects
from agent.control.runtime import SpanRuntime, UnitState
from agent.errors import LogFencedError, UnitFencedError
from agent.running_error import running_error
from reactor.errors import WeirError

Emit = Callable[[effects.UnitEvent], None]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RunUnit:
    order: effects.StartUnit


class UnitRunner:
    """Handles one ``RunUnit``: emits the unit's events, up to the one that ends it."""

    def __init__(self, runtime: SpanRuntime, *, emit: Emit) -> None:
        self._runtime = runtime
        self._emit = emit

    async def handle(self, message: RunUnit) -> None:
        order = message.order
        try:
            await self._runtime.run_unit(order, lambda state: self._on_progress(order, state))
        except (LogFencedError, UnitFencedError) as error:
            # not a fault: another capture was ordered to run it
            _log.info("unit was replaced", unit=order.unit, source=order.source, reason=str(error))
            self._emit(effects.UnitStopped(order.source, order.epoch))
        except WeirError as error:
            _log.warning("unit failed", unit=order.unit, source=order.source, code=error.code, error=str(error))
            self._emit(effects.UnitFailed(order.source, order.epoch, running_error(error)))
        except anyio.get_cancelled_exc_class():
            self._emit(effects.UnitStopped(order.source, order.epoch))
            raise
        else:
            self._emit(effects.UnitFinished(order.source, order.epoch))

    def _on_progress(self, order: effects.StartUnit, state: UnitState) -> None:
        progress = (state.rows_done, state.rows_total, state.trouble, state.bytes_done)
        self._emit(effects.UnitProgress(order.source, order.epoch, *progress))
